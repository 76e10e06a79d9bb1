#include "autograd/dense_view.h"

namespace qat::detail {

std::optional<kernels::ElementType> element_type(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat:
      return kernels::ElementType::kFloat;
    case torch::kDouble:
      return kernels::ElementType::kDouble;
    case torch::kHalf:
      return kernels::ElementType::kHalf;
    case torch::kBFloat16:
      return kernels::ElementType::kBFloat16;
    default:
      return std::nullopt;
  }
}

std::optional<std::int64_t> resolve_axis(const torch::Tensor& x, std::optional<std::int64_t> axis) {
  if (!axis) return std::nullopt;
  const std::int64_t resolved = *axis < 0 ? *axis + x.dim() : *axis;
  TORCH_CHECK_VALUE(resolved >= 0 && resolved < x.dim(), "qat: channel axis ", *axis,
                    " does not exist in a tensor of shape ", x.sizes(), "; expected ", -x.dim(), " to ",
                    x.dim() - 1);
  return resolved;
}

std::optional<kernels::ChannelView> dense_view(const torch::Tensor& x, std::optional<std::int64_t> axis) {
  if (!x.is_non_overlapping_and_dense()) return std::nullopt;
  const std::int64_t size = x.numel();
  if (!axis || x.size(*axis) <= 1 || size == 0) return kernels::ChannelView{1, 1, size};
  // Dense: the elements within one step along the axis are exactly those of the axes with smaller strides.
  const std::int64_t channels = x.size(*axis);
  const std::int64_t inner = x.stride(*axis);
  return kernels::ChannelView{size / (channels * inner), channels, inner};
}

kernels::ChannelView unrolled(const kernels::ChannelView& view) {
  constexpr std::int64_t kShort = 32;
  constexpr std::int64_t kLongest = 65536;
  const std::int64_t period = view.channels * view.inner;
  if (view.channels == 1 || view.outer < 4 || period > kLongest) return view;
  if (view.inner >= kShort || (view.inner == 1 && view.channels >= 256)) return view;
  const std::int64_t repeats = (256 + period - 1) / period;
  return {1, period * repeats, 1};
}

bool same_order(const torch::Tensor& a, const torch::Tensor& b) {
  for (std::int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
  }
  return !a.is_neg() && !b.is_neg();
}

}  // namespace qat::detail
