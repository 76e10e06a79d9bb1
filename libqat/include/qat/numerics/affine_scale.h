#pragma once

#include <qat/numerics/elementary.h>
#include <qat/numerics/host_device.h>

#include <cmath>
#include <cstdint>

namespace qat {

/// How a scale and a zero point follow from a range [min, max]; real = scale * (code - zero_point).
enum class Symmetry : std::int8_t {
  /// zero_point = 0. Signed codes: scale = max(|min|, |max|) / qmax. Unsigned codes:
  /// scale = max(max, 0) / qmax, negative data saturate to 0.
  kSymmetric,
  /// lo = min(min, 0), hi = max(max, 0), scale = (hi - lo) / (qmax - qmin),
  /// zero_point = clamp(round_half_to_even(qmin - lo / scale), qmin, qmax).
  kAffine,
  /// The same with the nearest even zero point inside [qmin, qmax]: runtimes that add the zero point before
  /// rounding and runtimes that add it after agree on ties then. An end of the range may lose up to one step.
  kAffineEvenZero,
};

/// What happens to the scale's exponent. Exact, by frexp and ldexp.
enum class PowerOfTwo : std::int8_t {
  kNotRound,  ///< the scale stays as it is.
  kRound,     ///< to the nearest power of two in log2 (no float is a tie). May clip up to 29 % of the range.
  kCeil,      ///< up: nothing of the range is clipped.
  kFloor,     ///< down: clips up to half of the range.
};

/// The smallest scale in use: the product of two such scales (a bias, an accumulator) is still a normal
/// float32.
inline constexpr float kScaleFloor = 0x1p-63F;

/// The scale of a range of zero width: zeros stay zeros, the clipped straight-through estimator lets
/// gradients pass, and a bias at scale_x * scale_w stays representable.
inline constexpr float kZeroRangeScale = 1.0F;

/// The largest finite float32 and the largest power of two below it.
inline constexpr float kScaleCeiling = 0x1.fffffep127F;
inline constexpr float kPowerOfTwoCeiling = 0x1p127F;

/// 2^ceil(log2 v), 2^round(log2 v) or 2^floor(log2 v); kNotRound returns v. Exact for every float,
/// sub-normals included: no logarithm is taken. As by logarithms 0 gives 0, infinity gives infinity, a
/// negative number or NaN gives NaN. kCeil and kRound give infinity where 2^128 would be needed.
QAT_HOST_DEVICE float round_to_power_of_two(float value, PowerOfTwo rounding) {
  if (rounding == PowerOfTwo::kNotRound || value == 0.0F || value == INFINITY) return value;
  if (!(value > 0.0F)) return NAN;
  if (rounding == PowerOfTwo::kRound) return nearest_power_of_two(value);
  int exponent = 0;
  const float mantissa = std::frexp(value, &exponent);  // value = mantissa * 2^exponent, mantissa in [0.5, 1)
  const bool is_up = rounding == PowerOfTwo::kCeil && mantissa > 0.5F;
  return std::ldexp(1.0F, is_up ? exponent : exponent - 1);
}

/// Scale and zero point of one channel: real = scale * (code - zero_point).
struct AffineScale {
  float scale;
  std::int32_t zero_point;
};

/// The scale that is used where the range asks for `raw`: rounded to float32 and, as `rounding` says, to a
/// power of two, held in [kScaleFloor, the largest finite float]. Zero (and NaN) give kZeroRangeScale.
QAT_HOST_DEVICE float usable_scale(double raw, PowerOfTwo rounding) {
  if (!(raw > 0.0)) return kZeroRangeScale;
  if (raw < kScaleFloor) return kScaleFloor;
  if (rounding == PowerOfTwo::kNotRound) return raw > kScaleCeiling ? kScaleCeiling : static_cast<float>(raw);
  if (raw > kPowerOfTwoCeiling) return kPowerOfTwoCeiling;
  return round_to_power_of_two(static_cast<float>(raw), rounding);
}

/// Computes the scale and the zero point for real values in [min, max] and codes in [qmin, qmax]; see
/// Symmetry.
///
/// The scale is rounded first, the zero point follows from the rounded scale. Arithmetic in double: a
/// quotient of floats comes out as float32 division gives it. A scale that keeps the width of the range gives
/// its zero point by qmin - lo * (qmax - qmin) / (hi - lo), which depends on the proportion of lo and hi
/// alone: (-1, 1), (-3, 3) and (-0.1, 0.1) all give 127.5, hence 128 for codes in [0, 255].
/// Always finite and in range: NaN counts as 0, an infinite bound gives the largest scale.
QAT_HOST_DEVICE AffineScale affine_scale(float min, float max, std::int32_t qmin, std::int32_t qmax,
                                         Symmetry symmetry, PowerOfTwo power_of_two) {
  const double lo = min < 0.0F ? min : 0.0F;
  const double hi = max > 0.0F ? max : 0.0F;
  if (symmetry == Symmetry::kSymmetric) {
    const double bound = qmin < 0 && -lo > hi ? -lo : hi;
    return {usable_scale(bound / qmax, power_of_two), 0};
  }
  const double width = hi - lo;
  const double levels = static_cast<double>(qmax) - qmin;
  const double raw = width / levels;
  const float scale = usable_scale(raw, power_of_two);
  const bool keeps_width = scale == static_cast<float>(raw);
  const double position = qmin + (keeps_width ? -lo * levels / width : -lo / scale);
  const bool even = symmetry == Symmetry::kAffineEvenZero;
  const double rounded = even ? 2.0 * std::rint(position / 2.0) : std::rint(position);
  const std::int32_t lowest = even ? qmin + (qmin & 1) : qmin;
  const std::int32_t highest = even ? qmax - (qmax & 1) : qmax;
  if (!(rounded > lowest)) return {scale, lowest};
  if (rounded > highest) return {scale, highest};
  return {scale, static_cast<std::int32_t>(rounded)};
}

}  // namespace qat
