#pragma once

#include <qat/numerics/affine.h>
#include <qat/numerics/affine_params.h>

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace qat {

/// Which gradient a fake-quantizer passes to its input.
enum class StraightThrough : std::int8_t {
  kClipped,    ///< dx = dy where round(x / scale) + zero_point lies in [qmin, qmax], else 0.
  kUnclipped,  ///< dx = dy everywhere, saturated elements too (QuantizeLinear, DequantizeLinear of nnabla).
};

/// "clipped", "unclipped".
std::string to_string(StraightThrough straight_through);
/// Reads such a name. Throws: c10::ValueError listing the names.
StraightThrough parse_straight_through(std::string_view text);

struct FakeQuantizeOptions {
  Rounding rounding = Rounding::kHalfToEven;
  StraightThrough straight_through = StraightThrough::kClipped;
  /// Applied to x before quantizing, in the same pass; its derivative multiplies the gradient.
  Activation activation = {};
};

/// Quantizes and dequantizes: y = scale * (code - zero_point), code = clamp(round(f(x) / scale) + zero_point,
/// qmin, qmax), with f the activation. One fused pass forward, one backward. Between them is kept: nothing,
/// where kUnclipped without activation lets every gradient pass; on the CPU a byte for each element, whether
/// its gradient passes; on other devices, and with an activation whose negative slope is not 0, x, from which
/// backward computes the code again.
///
/// Shape: x any shape, y the same, with the strides of x where x is dense (channels-last stays so).
///
/// Types: float32, float64 (float64 arithmetic), half and bfloat16 (float32 arithmetic); scale stays float32.
/// Integer and boolean tensors are returned unchanged. NaN stays NaN.
///
/// Bits do not depend on the number of threads. While tracing, ATen operators with the same values are
/// emitted. A gradient of the gradient is supported: the factor of dy counts as constant.
///
/// Non-dense views (strided slices, expanded tensors) are quantized through a contiguous copy.
/// Throws: c10::Error for complex types and other layouts; c10::ValueError if scale or zero point has another
/// length than x has channels (both are named), if the axis is out of range and, on CPU, if a scale is not
/// positive and finite or a zero point lies outside the range.
torch::Tensor fake_quantize(const torch::Tensor& x, const AffineParams& params,
                            const FakeQuantizeOptions& options = {});

/// The codes alone, int32, without gradient. NaN is refused. Throws: as fake_quantize, and for NaN in x.
torch::Tensor affine_codes(const torch::Tensor& x, const AffineParams& params,
                           const FakeQuantizeOptions& options = {});

/// real = scale * (code - zero_point), float32.
torch::Tensor affine_dequantize(const torch::Tensor& codes, const AffineParams& params);

}  // namespace qat
