#pragma once

#include <qat/nn/quantizable.h>

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace qat::nn {

/// Layers whose output holds the values of their input (Dropout: in eval): the input's quantizer serves both.

/// Joins dimensions start_dim to end_dim.
class FlattenImpl
    : public Quantizable<Stateless<FlattenImpl, torch::nn::FlattenImpl, torch::nn::FlattenOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
  bool keeps_codes() const final { return true; }
};
TORCH_MODULE(Flatten);

class IdentityImpl : public Quantizable<Stateless<IdentityImpl, torch::nn::IdentityImpl>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
  bool keeps_codes() const final { return true; }
};
TORCH_MODULE(Identity);

/// As torch's; in train mode kept values are scaled by 1 / (1 - p) and leave the grid of the input's
/// quantizer.
class DropoutImpl : public Quantizable<torch::nn::detail::_DropoutNd<DropoutImpl>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
  bool keeps_codes() const final { return true; }
  void pretty_print(std::ostream& stream) const final;
};
TORCH_MODULE(Dropout);

}  // namespace qat::nn
