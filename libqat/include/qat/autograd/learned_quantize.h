#pragma once

#include <qat/numerics/affine.h>
#include <qat/numerics/rounding.h>

#include <torch/types.h>

#include <cstdint>
#include <optional>

namespace qat {

/// A uniform grid with ends that may learn: real = scale * (code - zero_point), code = clamp(round(x / scale)
/// + zero_point, low, high). All tensors have the shape [] or, with an axis, [C].
struct UniformGrid {
  torch::Tensor scale;  ///< float32, positive, finite. May require a gradient.
  torch::Tensor
      lower;  ///< float32: elements at or below it give their gradient to it. May require a gradient.
  torch::Tensor upper;       ///< float32: the same at or above it; lower <= upper.
  torch::Tensor zero_point;  ///< int32, in [low, high].
  torch::Tensor low;         ///< int32: the lowest and highest code in use.
  torch::Tensor high;
  std::optional<std::int64_t> axis = std::nullopt;  ///< the channel axis; nullopt per tensor.
  bool compatible =
      false;  ///< NaN becomes `lower`, nothing is checked: as nnabla computes. Composed of operators.
};

/// A power-of-two ("log") grid: 0 (with_zero) and +-xmin, +-2 xmin, ..., +-xmax; magnitudes go to the nearest
/// power of two in log2. Unsigned: no negative numbers. Without zero, 0 (and for unsigned grids every
/// negative number) becomes +xmin.
struct PowerOfTwoGrid {
  torch::Tensor
      xmin;  ///< float32, powers of two, normal numbers, xmin <= xmax; [] or [C]. May require a gradient.
  torch::Tensor xmax;
  bool is_signed = true;
  bool with_zero = true;
  bool compatible =
      false;  ///< float32 logarithms, infinities and the gradient of 0 give NaN: as nnabla computes.
  std::optional<std::int64_t> axis = std::nullopt;
};

/// Quantizes f(x), f the activation, and computes the gradients of x and of the grid's scale, lower and upper
/// in one pass each; see UniformGradient for what an element adds. The sums are float64 in a fixed order: the
/// bits do not depend on the number of threads. (PyTorch cannot save a pass here: its learnable
/// fake-quantizer makes several.)
///
/// Shape, types, strides, NaN, traces: as fake_quantize. In a trace the grid is a constant.
/// A gradient of the gradient is not supported: c10::Error.
/// Throws: c10::ValueError if a tensor of the grid has another length than x has channels and, on CPU, if a
/// scale is not positive and finite or bounds are reversed.
torch::Tensor uniform_quantize(const torch::Tensor& x, const UniformGrid& grid,
                               Rounding rounding = Rounding::kHalfToEven, const Activation& activation = {});
/// The codes, int32, without gradient. Throws: as uniform_quantize, and for NaN in x.
torch::Tensor uniform_codes(const torch::Tensor& x, const UniformGrid& grid,
                            Rounding rounding = Rounding::kHalfToEven);

/// The same for a power-of-two grid; see PowerOfTwoGradient. Infinities saturate.
torch::Tensor power_of_two_quantize(const torch::Tensor& x, const PowerOfTwoGrid& grid,
                                    const Activation& activation = {});
/// Codes in units of xmin: 0, +-1, +-2, +-4, ..., int32. Throws: c10::ValueError for NaN in x, and where xmax
/// / xmin is above 2^15 (signed: 2^14): codes of more than 16 bits.
torch::Tensor power_of_two_codes(const torch::Tensor& x, const PowerOfTwoGrid& grid);

}  // namespace qat
