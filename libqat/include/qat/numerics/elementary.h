#pragma once

#include <qat/numerics/host_device.h>
#include <qat/numerics/rounding.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace qat {

/// The elementary functions that the parametric quantizers are made of: value and derivative of one element,
/// `T` float or double. They follow nnabla's conventions at corners, which are not torch's: rounding passes
/// its gradient, sign(0) is +1, bounds take the gradient of the elements on them.
///
/// Rounding itself is round_to_integer<Rounding::kHalfAwayFromZero>, with the derivative 1 everywhere.

/// Who receives the gradient of a clipped element.
enum class ClipReceiver : std::int8_t { kNone, kInput, kLower, kUpper };

/// min(max(x, lower), upper) with bounds that learn. NaN gives the lower bound; lower > upper gives the upper
/// one.
template <class T>
QAT_HOST_DEVICE T clip(T x, T lower, T upper) {
  const T above = x > lower ? x : lower;
  return above < upper ? above : upper;
}

/// Elements strictly between the bounds keep their gradient; those on or beyond a bound give it to the bound;
/// the upper bound wins where both apply. The gradient of a NaN goes nowhere.
template <class T>
QAT_HOST_DEVICE ClipReceiver clip_receiver(T x, T lower, T upper) {
  const T above = x > lower ? x : lower;
  if (above >= upper) return ClipReceiver::kUpper;
  if (x > lower) return ClipReceiver::kInput;
  return x <= lower ? ClipReceiver::kLower : ClipReceiver::kNone;
}

/// The derivative of clip() with constant bounds: 1 strictly between them, else 0, on the bounds too.
template <class T>
QAT_HOST_DEVICE T clip_slope(T x, T lower, T upper) {
  return x > lower && x < upper ? T(1) : T(0);
}

/// 1 for x > 0, -1 for x < 0, `at_zero` for zeros of both signs and NaN. Derivative by the straight-through
/// rule: 1.
template <class T>
QAT_HOST_DEVICE T sign(T x, T at_zero = T(1)) {
  return x > T(0) ? T(1) : (x < T(0) ? T(-1) : at_zero);
}

/// The derivative of |x|: -1 for x < 0, else 1, also at 0.
template <class T>
QAT_HOST_DEVICE T abs_slope(T x) {
  return x < T(0) ? T(-1) : T(1);
}

/// max(x, 0); NaN gives 0. (The activation of layers, qat::activate, keeps NaN.)
template <class T>
QAT_HOST_DEVICE T relu(T x) {
  return x > T(0) ? x : T(0);
}

/// 1 for x > 0, else 0.
template <class T>
QAT_HOST_DEVICE T relu_slope(T x) {
  return x > T(0) ? T(1) : T(0);
}

/// The derivative of 2^x: 2^x * ln 2. The value itself is std::exp2.
template <class T>
QAT_HOST_DEVICE T exp2_slope(T x) {
  return std::exp2(x) * T(0.693147180559945309417232121458L);
}

/// |v| rounded to a power of two, to the nearest exponent: 2^round(log2 |v|). Exact: no logarithm is taken;
/// there is no tie because sqrt(2) is irrational. 0 gives 0; infinities, and what rounds beyond the largest
/// float, give infinity; NaN stays NaN.
template <class T>
QAT_HOST_DEVICE T nearest_power_of_two(T v) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  static_assert(sizeof(T) == sizeof(Bits) && std::numeric_limits<T>::is_iec559);
  constexpr int mantissa_bits = std::numeric_limits<T>::digits - 1;
  constexpr Bits mantissa_size = Bits(1) << mantissa_bits;
  // The mantissa field of the smallest number above sqrt(2): from there on the exponent rounds up.
  constexpr Bits round_up_from =
      sizeof(T) == 4 ? static_cast<Bits>(0x3504F4U) : static_cast<Bits>(0x6A09E667F3BCDULL);
  // Sub-normal numbers have no leading one: move them into the normal range and back.
  const T magnitude = std::fabs(v);
  const bool is_subnormal = magnitude < std::numeric_limits<T>::min();
  const T normal = is_subnormal ? magnitude * T(mantissa_size) : magnitude;
  Bits bits;
  std::memcpy(&bits, &normal, sizeof(bits));
  bits += mantissa_size - round_up_from;  // carries into the exponent
  bits &= ~(mantissa_size - 1);
  T power;
  std::memcpy(&power, &bits, sizeof(power));
  power = is_subnormal ? power * (T(1) / T(mantissa_size)) : power;
  return magnitude > T(0) ? power : magnitude;
}

/// The derivative of nearest_power_of_two by the straight-through rule on the rounded exponent: P / v,
/// between 1/sqrt(2) and sqrt(2) in magnitude; 0 at v = 0.
template <class T>
QAT_HOST_DEVICE T nearest_power_of_two_slope(T v) {
  return v == T(0) ? T(0) : nearest_power_of_two(v) / v;
}

}  // namespace qat
