#pragma once

#include <qat/autograd/fake_quantize.h>

#include <torch/types.h>

namespace qat::detail {

/// The functions of numerics/affine.h, composed of ATen operators with the same values: for traces, which
/// must not see a kernel, and for devices without one. `x` float32 or float64; scale and zero point of the
/// type of x, shaped to broadcast.

torch::Tensor activate(const torch::Tensor& x, const Activation& activation);
torch::Tensor activation_slope(const torch::Tensor& x, const Activation& activation);
torch::Tensor round_to_integer(const torch::Tensor& v, Rounding rounding);
/// round(x / scale) + zero_point.
torch::Tensor affine_raw_code(const torch::Tensor& x, const torch::Tensor& scale,
                              const torch::Tensor& zero_point, Rounding rounding);
/// scale * (code - zero_point).
torch::Tensor affine_real(const torch::Tensor& code, const torch::Tensor& scale,
                          const torch::Tensor& zero_point);

/// `parameter` [C] as [1, C, 1, 1] for a tensor of `dim` dimensions; [] and [1] as [].
torch::Tensor along_axis(const torch::Tensor& parameter, std::int64_t dim, std::optional<std::int64_t> axis);

}  // namespace qat::detail
