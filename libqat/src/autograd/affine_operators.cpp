#include "autograd/affine_operators.h"

#include <torch/types.h>

#include <cmath>

namespace qat::detail {

torch::Tensor activate(const torch::Tensor& x, const Activation& activation) {
  torch::Tensor y = x;
  if (activation.negative_slope == 0.0) {
    y = torch::relu(y);
  } else if (activation.negative_slope != 1.0) {
    y = torch::leaky_relu(y, activation.negative_slope);
  }
  return std::isinf(activation.upper) ? y : torch::clamp_max(y, activation.upper);
}

torch::Tensor activation_slope(const torch::Tensor& x, const Activation& activation) {
  auto slope = torch::where(x > 0, torch::ones_like(x), torch::full_like(x, activation.negative_slope));
  return std::isinf(activation.upper) ? slope : slope.masked_fill(x >= activation.upper, 0);
}

torch::Tensor round_to_integer(const torch::Tensor& v, Rounding rounding) {
  switch (rounding) {
    case Rounding::kHalfAwayFromZero: {
      const auto whole = torch::trunc(v);
      return torch::where(torch::abs(v - whole) >= 0.5, whole + torch::sign(v), whole);
    }
    case Rounding::kHalfUp: {
      const auto whole = torch::floor(v);
      return torch::where(v - whole >= 0.5, whole + 1, whole);
    }
    default:
      return torch::round(v);
  }
}

torch::Tensor affine_raw_code(const torch::Tensor& x, const torch::Tensor& scale,
                              const torch::Tensor& zero_point, Rounding rounding) {
  return round_to_integer(x / scale, rounding) + zero_point;
}

torch::Tensor affine_real(const torch::Tensor& code, const torch::Tensor& scale,
                          const torch::Tensor& zero_point) {
  return (code - zero_point) * scale;
}

torch::Tensor along_axis(const torch::Tensor& parameter, std::int64_t dim, std::optional<std::int64_t> axis) {
  if (parameter.numel() == 1 && !axis) return parameter.dim() == 0 ? parameter : parameter.reshape({});
  std::vector<std::int64_t> shape(static_cast<std::size_t>(dim), 1);
  if (axis) shape[static_cast<std::size_t>(*axis)] = -1;
  return parameter.reshape(shape);
}

}  // namespace qat::detail
