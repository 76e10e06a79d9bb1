#pragma once

#include <qat/nn/batch_norm.h>

#include <torch/nn/module.h>

namespace qat::testing {

/// Random numbers in everything that a BatchNorm holds: statistics as after training, gammas of both signs.
inline void set_statistics(nn::BatchNormLayer& bn) {
  const torch::NoGradGuard no_grad;
  const auto statistics = bn.statistics();
  torch::Tensor(statistics.mean).normal_();
  torch::Tensor(statistics.variance).uniform_(0.5, 2.0);
  if (statistics.gamma.defined()) torch::Tensor(statistics.gamma).normal_();
  if (statistics.beta.defined()) torch::Tensor(statistics.beta).normal_();
}

/// The same for all BatchNorms of a model.
inline void set_all_statistics(torch::nn::Module& model) {
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* bn = dynamic_cast<nn::BatchNormLayer*>(module.get())) set_statistics(*bn);
  }
}

}  // namespace qat::testing
