#include "quantizable_weighted-inl.h"
#include <qat/nn/conv.h>

#include <torch/nn/functional/conv.h>
#include <torch/nn/functional/padding.h>

#include <algorithm>

namespace qat::nn {
namespace {

namespace F = torch::nn::functional;

template <std::size_t D>
torch::nn::detail::ConvNdOptions<D> general_options(const torch::nn::ConvOptions<D>& options) {
  return torch::nn::detail::ConvNdOptions<D>(options.in_channels(), options.out_channels(),
                                             options.kernel_size())
      .stride(options.stride())
      .padding(options.padding())
      .dilation(options.dilation())
      .groups(options.groups())
      .bias(options.bias())
      .padding_mode(options.padding_mode());
}

template <std::size_t D>
torch::nn::detail::ConvNdOptions<D> general_options(const torch::nn::ConvTransposeOptions<D>& options) {
  return torch::nn::detail::ConvNdOptions<D>(options.in_channels(), options.out_channels(),
                                             options.kernel_size())
      .stride(options.stride())
      .padding(options.padding())
      .output_padding(options.output_padding())
      .dilation(options.dilation())
      .transposed(true)
      .groups(options.groups())
      .bias(options.bias())
      .padding_mode(options.padding_mode());
}

F::PadFuncOptions::mode_t pad_mode(const torch::nn::detail::conv_padding_mode_t& mode) {
  if (std::holds_alternative<torch::enumtype::kReflect>(mode)) return torch::kReflect;
  if (std::holds_alternative<torch::enumtype::kReplicate>(mode)) return torch::kReplicate;
  return torch::kCircular;
}

template <std::size_t D>
torch::Tensor convolve(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                       const torch::nn::detail::ConvNdOptions<D>& options,
                       const torch::nn::detail::conv_padding_t<D>& padding) {
  if constexpr (D == 1) {
    return F::detail::conv1d(x, weight, bias, options.stride(), padding, options.dilation(),
                             options.groups());
  } else if constexpr (D == 2) {
    return F::detail::conv2d(x, weight, bias, options.stride(), padding, options.dilation(),
                             options.groups());
  } else {
    return F::detail::conv3d(x, weight, bias, options.stride(), padding, options.dilation(),
                             options.groups());
  }
}

/// `padding_twice`: before and after, last dimension first, for the padding modes other than zeros.
template <std::size_t D>
torch::Tensor convolve(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                       const torch::nn::detail::ConvNdOptions<D>& options,
                       const std::vector<std::int64_t>& padding_twice) {
  const auto& mode = options.padding_mode();
  if (std::holds_alternative<torch::enumtype::kZeros>(mode))
    return convolve<D>(x, weight, bias, options, options.padding());
  const auto padded = F::pad(x, F::PadFuncOptions(padding_twice).mode(pad_mode(mode)));
  return convolve<D>(padded, weight, bias, options, torch::ExpandingArray<D>(0));
}

template <std::size_t D>
torch::Tensor convolve_transposed(const torch::Tensor& x, const torch::Tensor& weight,
                                  const torch::Tensor& bias,
                                  const torch::nn::detail::ConvNdOptions<D>& options,
                                  at::IntArrayRef output_padding) {
  const auto& padding = std::get<torch::ExpandingArray<D>>(options.padding());
  const auto function = [] {
    if constexpr (D == 1) return F::detail::conv_transpose1d;
    if constexpr (D == 2) return F::detail::conv_transpose2d;
    if constexpr (D == 3) return F::detail::conv_transpose3d;
  }();
  return function(x, weight, bias, options.stride(), padding, output_padding, options.groups(),
                  options.dilation());
}

}  // namespace

template <std::size_t D, class Derived>
ConvLayer<D, Derived>::ConvLayer(const torch::nn::ConvOptions<D>& options_)
    : QuantizableWeighted<torch::nn::ConvNdImpl<D, Derived>>(general_options<D>(options_)) {}

template <std::size_t D, class Derived>
bool ConvLayer<D, Derived>::pads_with_zeros() const {
  const auto& options = this->options;
  if (!std::holds_alternative<torch::enumtype::kZeros>(options.padding_mode())) return false;
  if (std::holds_alternative<torch::enumtype::kValid>(options.padding())) return false;
  if (const auto* padding = std::get_if<torch::ExpandingArray<D>>(&options.padding()))
    return std::any_of((*padding)->begin(), (*padding)->end(), [](std::int64_t each) { return each != 0; });
  // "same": as much as the kernel is wide.
  const auto& kernel = *options.kernel_size();
  return std::any_of(kernel.begin(), kernel.end(), [](std::int64_t each) { return each != 1; });
}

template <std::size_t D, class Derived>
torch::Tensor ConvLayer<D, Derived>::forward(const torch::Tensor& input) {
  const LayerScope scope(*this, {input});
  const auto& padding = this->_reversed_padding_repeated_twice;
  if (this->is_float())
    return scope.output(convolve<D>(input, this->weight, this->bias, this->options, padding));
  const auto x = this->slot_input(input);
  const auto [weight, bias] = this->slot_parameters(this->weight, this->bias);
  return scope.output(this->slot_output(convolve<D>(x, weight, bias, this->options, padding)));
}

template <std::size_t D, class Derived>
ConvTransposeLayer<D, Derived>::ConvTransposeLayer(const torch::nn::ConvTransposeOptions<D>& options_)
    : QuantizableWeighted<torch::nn::ConvTransposeNdImpl<D, Derived>>(general_options<D>(options_)) {}

template <std::size_t D, class Derived>
torch::Tensor ConvTransposeLayer<D, Derived>::forward(const torch::Tensor& input,
                                                      const std::optional<at::IntArrayRef>& output_size) {
  TORCH_CHECK_VALUE(std::holds_alternative<torch::enumtype::kZeros>(this->options.padding_mode()),
                    this->describe(), ": only the padding mode zeros is supported");
  const LayerScope scope(*this, {input});
  const auto extra = output_padding(input, output_size);
  if (this->is_float())
    return scope.output(convolve_transposed<D>(input, this->weight, this->bias, this->options, extra));
  const auto x = this->slot_input(input);
  const auto [weight, bias] = this->slot_parameters(this->weight, this->bias);
  return scope.output(this->slot_output(convolve_transposed<D>(x, weight, bias, this->options, extra)));
}

template <std::size_t D, class Derived>
std::vector<std::int64_t> ConvTransposeLayer<D, Derived>::output_padding(
    const torch::Tensor& input, const std::optional<at::IntArrayRef>& output_size) const {
  const auto& options = this->options;
  if (!output_size) return {options.output_padding()->begin(), options.output_padding()->end()};
  const std::size_t leading = input.dim() - D;  // batch and channels
  TORCH_CHECK_VALUE(output_size->size() == D || output_size->size() == D + leading, this->describe(),
                    ": expected ", D, " or ", D + leading, " elements in output_size, got ",
                    output_size->size());
  const auto wanted = output_size->slice(output_size->size() - D);
  std::vector<std::int64_t> extra(D);
  for (std::size_t d = 0; d < D; ++d) {
    const std::int64_t stride = (*options.stride())[d];
    const std::int64_t smallest = (input.size(leading + d) - 1) * stride - 2 * (*this->padding())[d] +
                                  (*options.dilation())[d] * ((*options.kernel_size())[d] - 1) + 1;
    extra[d] = wanted[d] - smallest;
    TORCH_CHECK_VALUE(extra[d] >= 0 && extra[d] < stride, this->describe(), ": expected output_size[", d,
                      "] in [", smallest, ", ", smallest + stride - 1, "], got ", wanted[d]);
  }
  return extra;
}

template class ConvLayer<1, Conv1dImpl>;
template class ConvLayer<2, Conv2dImpl>;
template class ConvLayer<3, Conv3dImpl>;
template class ConvTransposeLayer<1, ConvTranspose1dImpl>;
template class ConvTransposeLayer<2, ConvTranspose2dImpl>;
template class ConvTransposeLayer<3, ConvTranspose3dImpl>;

}  // namespace qat::nn
