#pragma once

#include <qat/nn/quantizable.h>

#include <torch/nn/modules/pooling.h>
#include <torch/nn/pimpl.h>

#include <tuple>

namespace qat::nn {

/// Pools with slots for input and output; options are torch's. The output of max pools holds values of the
/// input only, so that the input's quantizer serves both.

class MaxPool1dImpl
    : public Quantizable<Stateless<MaxPool1dImpl, torch::nn::MaxPool1dImpl, torch::nn::MaxPool1dOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
  /// The positions of the maxima as second result; the values pass the slots as in `forward`.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_indices(const torch::Tensor& input);
  bool keeps_codes() const final { return true; }
};
TORCH_MODULE(MaxPool1d);

class MaxPool2dImpl
    : public Quantizable<Stateless<MaxPool2dImpl, torch::nn::MaxPool2dImpl, torch::nn::MaxPool2dOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
  /// The positions of the maxima as second result; the values pass the slots as in `forward`.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_indices(const torch::Tensor& input);
  bool keeps_codes() const final { return true; }
};
TORCH_MODULE(MaxPool2d);

class MaxPool3dImpl
    : public Quantizable<Stateless<MaxPool3dImpl, torch::nn::MaxPool3dImpl, torch::nn::MaxPool3dOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
  /// The positions of the maxima as second result; the values pass the slots as in `forward`.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_indices(const torch::Tensor& input);
  bool keeps_codes() const final { return true; }
};
TORCH_MODULE(MaxPool3d);

class AdaptiveMaxPool1dImpl
    : public Quantizable<Stateless<AdaptiveMaxPool1dImpl, torch::nn::AdaptiveMaxPool1dImpl,
                                   torch::nn::AdaptiveMaxPool1dOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
  /// The positions of the maxima as second result; the values pass the slots as in `forward`.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_indices(const torch::Tensor& input);
  bool keeps_codes() const final { return true; }
};
TORCH_MODULE(AdaptiveMaxPool1d);

class AdaptiveMaxPool2dImpl
    : public Quantizable<Stateless<AdaptiveMaxPool2dImpl, torch::nn::AdaptiveMaxPool2dImpl,
                                   torch::nn::AdaptiveMaxPool2dOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
  /// The positions of the maxima as second result; the values pass the slots as in `forward`.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_indices(const torch::Tensor& input);
  bool keeps_codes() const final { return true; }
};
TORCH_MODULE(AdaptiveMaxPool2d);

class AdaptiveMaxPool3dImpl
    : public Quantizable<Stateless<AdaptiveMaxPool3dImpl, torch::nn::AdaptiveMaxPool3dImpl,
                                   torch::nn::AdaptiveMaxPool3dOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
  /// The positions of the maxima as second result; the values pass the slots as in `forward`.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_indices(const torch::Tensor& input);
  bool keeps_codes() const final { return true; }
};
TORCH_MODULE(AdaptiveMaxPool3d);

class AvgPool1dImpl
    : public Quantizable<Stateless<AvgPool1dImpl, torch::nn::AvgPool1dImpl, torch::nn::AvgPool1dOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
};
TORCH_MODULE(AvgPool1d);

class AvgPool2dImpl
    : public Quantizable<Stateless<AvgPool2dImpl, torch::nn::AvgPool2dImpl, torch::nn::AvgPool2dOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
};
TORCH_MODULE(AvgPool2d);

class AvgPool3dImpl
    : public Quantizable<Stateless<AvgPool3dImpl, torch::nn::AvgPool3dImpl, torch::nn::AvgPool3dOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
};
TORCH_MODULE(AvgPool3d);

class AdaptiveAvgPool1dImpl
    : public Quantizable<Stateless<AdaptiveAvgPool1dImpl, torch::nn::AdaptiveAvgPool1dImpl,
                                   torch::nn::AdaptiveAvgPool1dOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
};
TORCH_MODULE(AdaptiveAvgPool1d);

class AdaptiveAvgPool2dImpl
    : public Quantizable<Stateless<AdaptiveAvgPool2dImpl, torch::nn::AdaptiveAvgPool2dImpl,
                                   torch::nn::AdaptiveAvgPool2dOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
};
TORCH_MODULE(AdaptiveAvgPool2d);

class AdaptiveAvgPool3dImpl
    : public Quantizable<Stateless<AdaptiveAvgPool3dImpl, torch::nn::AdaptiveAvgPool3dImpl,
                                   torch::nn::AdaptiveAvgPool3dOptions>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& input);
};
TORCH_MODULE(AdaptiveAvgPool3d);

}  // namespace qat::nn
