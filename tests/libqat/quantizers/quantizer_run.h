#pragma once

#include <qat/quantizers/quantizer.h>

#include <torch/types.h>

#include <map>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/tensor_matchers.h"

namespace qat::testing {

inline torch::Tensor values(const std::vector<double>& numbers, torch::ScalarType type = torch::kFloat) {
  return torch::tensor(numbers, torch::kDouble).to(type);
}

/// 1, 2, 3, ... in the shape of x.
inline torch::Tensor counting(const torch::Tensor& x) {
  return torch::arange(1, x.numel() + 1, torch::kDouble).to(x.scalar_type()).reshape(x.sizes());
}

/// What a quantizer makes of a tensor, and the gradients.
struct Outcome {
  torch::Tensor y;
  torch::Tensor dx;
  std::map<std::string, torch::Tensor> gradients;  ///< of the parameters that learn.

  double gradient(const std::string& name) const { return gradients.at(name).item<double>(); }
};

inline Outcome run(Quantizer& quantizer, const torch::Tensor& x, const torch::Tensor& dy,
                   const Activation& activation = {}) {
  const auto leaf = x.detach().clone(torch::MemoryFormat::Preserve).requires_grad_();
  std::vector<torch::Tensor> inputs{leaf};
  std::vector<std::string> names;
  for (const auto& parameter : quantizer.named_parameters()) {
    if (!parameter.value().requires_grad()) continue;
    inputs.push_back(parameter.value());
    names.push_back(parameter.key());
  }
  Outcome outcome;
  outcome.y = quantizer.forward(leaf, activation);
  const auto gradients = torch::autograd::grad({outcome.y}, inputs, {dy});
  outcome.y = outcome.y.detach();
  outcome.dx = gradients[0];
  for (std::size_t i = 0; i < names.size(); ++i)
    outcome.gradients[names[i]] = gradients[i + 1];
  return outcome;
}

/// Gives a parameter a value, inside its bounds or not.
inline void set(const torch::nn::Module& module, const std::string& name, const torch::Tensor& value) {
  const torch::NoGradGuard no_grad;
  module.named_parameters()[name].copy_(value);
}
inline void set(const torch::nn::Module& module, const std::string& name, double value) {
  set(module, name, torch::tensor(value, torch::kDouble));
}

inline double number(const torch::nn::Module& module, const std::string& name) {
  return module.named_parameters()[name].item<double>();
}

}  // namespace qat::testing
