#pragma once

#include <qat/nn/quantizable.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/pimpl.h>

namespace qat::nn {

/// Activations with slots for input and output; options are torch's. With a quantizer in the output slot,
/// ReLU, ReLU6 and LeakyReLU are computed in the quantizer's pass (`inplace` is then ignored).

class ReLUImpl : public Quantizable<Stateless<ReLUImpl, torch::nn::ReLUImpl, torch::nn::ReLUOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
  std::optional<Activation> fusable_activation() const final { return Activation{.negative_slope = 0}; }
};
TORCH_MODULE(ReLU);

class ReLU6Impl : public Quantizable<Stateless<ReLU6Impl, torch::nn::ReLU6Impl, torch::nn::ReLU6Options>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
  std::optional<Activation> fusable_activation() const final {
    return Activation{.negative_slope = 0, .upper = 6};
  }
};
TORCH_MODULE(ReLU6);

class LeakyReLUImpl
    : public Quantizable<Stateless<LeakyReLUImpl, torch::nn::LeakyReLUImpl, torch::nn::LeakyReLUOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
  std::optional<Activation> fusable_activation() const final {
    return Activation{.negative_slope = options.negative_slope()};
  }
};
TORCH_MODULE(LeakyReLU);

/// x * relu6(x + 3) / 6. LibTorch has the function `torch::hardswish` and no module.
class HardswishImpl : public Quantizable<Stateless<HardswishImpl>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
};
TORCH_MODULE(Hardswish);

class SigmoidImpl : public Quantizable<Stateless<SigmoidImpl, torch::nn::SigmoidImpl>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
};
TORCH_MODULE(Sigmoid);

class TanhImpl : public Quantizable<Stateless<TanhImpl, torch::nn::TanhImpl>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
};
TORCH_MODULE(Tanh);

class GELUImpl : public Quantizable<Stateless<GELUImpl, torch::nn::GELUImpl, torch::nn::GELUOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
};
TORCH_MODULE(GELU);

class SiLUImpl : public Quantizable<Stateless<SiLUImpl, torch::nn::SiLUImpl>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
};
TORCH_MODULE(SiLU);

}  // namespace qat::nn
