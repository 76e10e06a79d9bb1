#pragma once

#include <qat/nn/quantizable.h>

#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

namespace qat::nn {

/// Convolution with slots for input, weight, bias and output; options and parameters are those of
/// torch::nn::ConvNd.
template <std::size_t D, class Derived>
class ConvLayer : public QuantizableWeighted<torch::nn::ConvNdImpl<D, Derived>> {
 public:
  explicit ConvLayer(const torch::nn::ConvOptions<D>& options_);
  ConvLayer(std::int64_t in_channels, std::int64_t out_channels, torch::ExpandingArray<D> kernel_size)
      : ConvLayer(torch::nn::ConvOptions<D>(in_channels, out_channels, kernel_size)) {}

  bool pads_with_zeros() const final;
  /// Shape: [N, in_channels, (D extents)] or without N.
  torch::Tensor forward(const torch::Tensor& input);

 private:
  std::int64_t output_channels() const final { return this->options.out_channels(); }
};

// Each class has a forward of its own: Sequential::at<Conv2dImpl>() looks for it there.

class Conv1dImpl : public ConvLayer<1, Conv1dImpl> {
 public:
  using ConvLayer<1, Conv1dImpl>::ConvLayer;
  torch::Tensor forward(const torch::Tensor& input) { return ConvLayer::forward(input); }
};
class Conv2dImpl : public ConvLayer<2, Conv2dImpl> {
 public:
  using ConvLayer<2, Conv2dImpl>::ConvLayer;
  torch::Tensor forward(const torch::Tensor& input) { return ConvLayer::forward(input); }
};
class Conv3dImpl : public ConvLayer<3, Conv3dImpl> {
 public:
  using ConvLayer<3, Conv3dImpl>::ConvLayer;
  torch::Tensor forward(const torch::Tensor& input) { return ConvLayer::forward(input); }
};
TORCH_MODULE(Conv1d);
TORCH_MODULE(Conv2d);
TORCH_MODULE(Conv3d);

/// Transposed convolution. Its weight is [in, out / groups, ...]: the axis of output channels is 1.
template <std::size_t D, class Derived>
class ConvTransposeLayer : public QuantizableWeighted<torch::nn::ConvTransposeNdImpl<D, Derived>> {
 public:
  explicit ConvTransposeLayer(const torch::nn::ConvTransposeOptions<D>& options_);
  ConvTransposeLayer(std::int64_t in_channels, std::int64_t out_channels,
                     torch::ExpandingArray<D> kernel_size)
      : ConvTransposeLayer(torch::nn::ConvTransposeOptions<D>(in_channels, out_channels, kernel_size)) {}

  std::int64_t weight_channel_axis() const final { return 1; }
  bool pads_with_zeros() const final { return true; }
  /// `output_size`: the D extents of the output (or all of its sizes), where stride > 1 leaves several
  /// possible.
  torch::Tensor forward(const torch::Tensor& input,
                        const std::optional<at::IntArrayRef>& output_size = std::nullopt);

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::IntArrayRef>())})

 private:
  std::int64_t output_channels() const final { return this->options.out_channels(); }
  std::vector<std::int64_t> output_padding(const torch::Tensor& input,
                                           const std::optional<at::IntArrayRef>& output_size) const;
};

class ConvTranspose1dImpl : public ConvTransposeLayer<1, ConvTranspose1dImpl> {
 public:
  using ConvTransposeLayer<1, ConvTranspose1dImpl>::ConvTransposeLayer;
  torch::Tensor forward(const torch::Tensor& input,
                        const std::optional<at::IntArrayRef>& output_size = std::nullopt) {
    return ConvTransposeLayer::forward(input, output_size);
  }
};
class ConvTranspose2dImpl : public ConvTransposeLayer<2, ConvTranspose2dImpl> {
 public:
  using ConvTransposeLayer<2, ConvTranspose2dImpl>::ConvTransposeLayer;
  torch::Tensor forward(const torch::Tensor& input,
                        const std::optional<at::IntArrayRef>& output_size = std::nullopt) {
    return ConvTransposeLayer::forward(input, output_size);
  }
};
class ConvTranspose3dImpl : public ConvTransposeLayer<3, ConvTranspose3dImpl> {
 public:
  using ConvTransposeLayer<3, ConvTranspose3dImpl>::ConvTransposeLayer;
  torch::Tensor forward(const torch::Tensor& input,
                        const std::optional<at::IntArrayRef>& output_size = std::nullopt) {
    return ConvTransposeLayer::forward(input, output_size);
  }
};
TORCH_MODULE(ConvTranspose1d);
TORCH_MODULE(ConvTranspose2d);
TORCH_MODULE(ConvTranspose3d);

}  // namespace qat::nn
