#pragma once

#include <qat/numerics/host_device.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace qat {

/// How a real number becomes an integer. A property of every quantizer; training, engine and exporters use
/// the same one.
enum class Rounding : std::int8_t {
  kHalfToEven,        ///< 0.5 -> 0, 1.5 -> 2, -2.5 -> -2: IEEE and ONNX; the default of affine quantizers.
  kHalfAwayFromZero,  ///< 0.5 -> 1, -2.5 -> -3: C's round(); nnabla's F.round.
  kHalfUp,            ///< 0.5 -> 1, -2.5 -> -2: floor(v + 1/2) in exact arithmetic; Q formats.
};

/// The name used in configuration files: "half_to_even", "half_away_from_zero", "half_up".
std::string to_string(Rounding rounding);
/// Reads such a name. Throws: c10::ValueError listing the allowed names.
Rounding parse_rounding(std::string_view text);

/// Rounds `v` to an integer, as a real number. NaN stays NaN, infinities stay. `T` is float or double.
/// Exact for every input: no "+ 0.5" that would carry 0.49999997 to 1.
template <Rounding rounding, class T>
QAT_HOST_DEVICE T round_to_integer(T v) {
  if constexpr (rounding == Rounding::kHalfToEven) {
    return std::rint(v);
  } else if constexpr (rounding == Rounding::kHalfAwayFromZero) {
    const T whole = std::trunc(v);
    return std::fabs(v - whole) >= T(0.5) ? whole + std::copysign(T(1), v) : whole;
  } else {
    const T whole = std::floor(v);
    return v - whole >= T(0.5) ? whole + T(1) : whole;
  }
}

/// The same with the rounding chosen at run time.
template <class T>
QAT_HOST_DEVICE T round_to_integer(T v, Rounding rounding) {
  switch (rounding) {
    case Rounding::kHalfAwayFromZero:
      return round_to_integer<Rounding::kHalfAwayFromZero>(v);
    case Rounding::kHalfUp:
      return round_to_integer<Rounding::kHalfUp>(v);
    default:
      return round_to_integer<Rounding::kHalfToEven>(v);
  }
}

}  // namespace qat
