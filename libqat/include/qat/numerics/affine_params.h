#pragma once

#include <qat/numerics/integer_range.h>

#include <torch/types.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace qat {

/// The smallest scale that is ever used, the smallest normal float32 times 2^23: below it x / scale and the products of
/// two scales lose precision or vanish. A range of zero width gets this scale, so zeros stay zeros and nothing is NaN.
inline constexpr float kScaleFloor = 0x1p-103F;

/// Real values [min, max] that were seen: float32 tensors of shape [] (per tensor) or [C] (per channel), min <= max.
struct ValueRange {
  torch::Tensor min;
  torch::Tensor max;
};

/// How a scale and a zero point follow from a range.
enum class Symmetry : std::int8_t {
  kSymmetric,       ///< zero_point 0; scale = max(|min|, |max|) / qmax.
  kAffine,          ///< lo = min(min, 0), hi = max(max, 0); scale = (hi - lo) / (qmax - qmin); zero point nudged to an integer.
  kAffineEvenZero,  ///< the same with an even zero point (runtimes that add it before rounding agree on ties then).
};

/// What happens to the scale's exponent. Exact, by frexp.
enum class PowerOfTwo : std::int8_t {
  kNotRound,  ///< the scale stays as it is.
  kRound,     ///< to the nearest power of two in log2, ties to the even exponent. May clip up to 29 % of the range.
  kCeil,      ///< up: nothing of the range is clipped.
  kFloor,     ///< down.
};

std::string to_string(Symmetry symmetry);
std::string to_string(PowerOfTwo rounding);
/// Read the names "symmetric", "affine", "affine_even_zero" and "notround", "round", "ceil", "floor" (any case).
/// Throws: c10::ValueError listing the allowed names.
Symmetry parse_symmetry(std::string_view text);
PowerOfTwo parse_power_of_two(std::string_view text);

/// Rounds a positive float to a power of two as `rounding` says; kNotRound returns it unchanged. Exact for sub-normals.
float round_to_power_of_two(float value, PowerOfTwo rounding);

/// real = scale * (code - zero_point), code in [range.qmin(), range.qmax()].
struct AffineParams {
  torch::Tensor scale;       ///< float32, positive, finite; shape [] or [C].
  torch::Tensor zero_point;  ///< int32, in [qmin, qmax] (0 for symmetric ranges); shape of `scale`.
  IntegerRange range;
  std::optional<std::int64_t> axis;  ///< the channel axis of a [C] scale; nullopt per tensor.
};

/// Computes scale and zero point. A range of zero width gives kScaleFloor... see kScaleFloor; 0.0 always has an exact code.
/// Ranges that do not hold 0 are widened to hold it.
/// Throws: c10::ValueError if min or max is NaN or infinite, if min > max, if shapes differ.
AffineParams affine_params_from_range(const ValueRange& values, const IntegerRange& range, Symmetry symmetry,
                                      PowerOfTwo power_of_two = PowerOfTwo::kNotRound,
                                      std::optional<std::int64_t> axis = std::nullopt);

}  // namespace qat
