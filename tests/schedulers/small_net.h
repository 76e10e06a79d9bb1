#pragma once

#include "images.h"
#include <qat/nn/nn.h>
#include <qat/schedulers/qat_config.h>

#include <torch/optim/optimizer.h>

#include <cstddef>

namespace qat::testing {

/// conv, BatchNorm, ReLU, linear. Layer names: 0, 1, 2, 4.
inline nn::Sequential small_net() {
  torch::manual_seed(0);
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 2, 3).bias(false)), nn::BatchNorm2d(2), nn::ReLU(),
                        nn::Flatten(), nn::Linear(8, 3));
}

/// Everything is quantized, transitions by explicit call.
inline QATConfig everything() {
  QATConfig config = integer_only_config();
  config.bn_folding = BatchNormFolding::kOff;
  return config;
}

template <class Layer>
nn::QuantizableLayer& layer(nn::Sequential& net, std::size_t index) {
  return *net->ptr<typename Layer::Impl>(index);
}

/// One step of a training loop; the loss.
inline double train_step(nn::Sequential& net, torch::optim::Optimizer& optimizer, bool set_to_none = true) {
  optimizer.zero_grad(set_to_none);
  const auto loss = net->forward(images()).square().mean();
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

}  // namespace qat::testing
