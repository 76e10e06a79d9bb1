#pragma once

#include <qat/numerics/elementary.h>
#include <qat/numerics/host_device.h>

#include <cmath>

namespace qat {

/// The grid of a power-of-two ("log") quantizer for one channel: magnitudes xmin, 2 xmin, ..., xmax, all
/// powers of two, xmin <= xmax, both normal numbers. `T` is float or double.
///
/// Signed: both signs; zero counts as positive. Unsigned: negative numbers count as 0. With zero: magnitudes
/// below xmin / sqrt(2) become 0, else they become xmin.
template <class T>
struct PowerOfTwoCell {
  T xmin;
  T xmax;
};

/// |v| to the nearest power of two in log2, for v in [the smallest normal number, the largest power of two]:
/// nearest_power_of_two without its special cases, so that loops become vector code.
template <class T>
[[gnu::always_inline]] QAT_HOST_DEVICE T power_of_two_of_normal(T v) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  constexpr int mantissa_bits = std::numeric_limits<T>::digits - 1;
  constexpr Bits mantissa_size = Bits(1) << mantissa_bits;
  constexpr Bits round_up_from =
      sizeof(T) == 4 ? static_cast<Bits>(0x3504F4U) : static_cast<Bits>(0x6A09E667F3BCDULL);
  Bits bits;
  std::memcpy(&bits, &v, sizeof(bits));
  bits = (bits + (mantissa_size - round_up_from)) & ~(mantissa_size - 1);
  T power;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}

/// The magnitude that is quantized: |x|, or max(x, 0); NaN counts as 0.
template <class T>
[[gnu::always_inline]] QAT_HOST_DEVICE T power_of_two_magnitude(T x, bool is_signed) {
  const T magnitude = is_signed ? std::fabs(x) : x;
  return magnitude > T(0) ? magnitude : T(0);
}

/// The power of two of a magnitude, held in [smallest normal, xmax].
template <class T>
[[gnu::always_inline]] QAT_HOST_DEVICE T power_of_two_nearest(T magnitude, const PowerOfTwoCell<T>& cell) {
  constexpr T smallest = std::numeric_limits<T>::min();
  const T held = magnitude < cell.xmax ? magnitude : cell.xmax;
  return power_of_two_of_normal(held > smallest ? held : smallest);
}

/// The quantized value; infinities saturate, NaN stays NaN.
template <class T>
[[gnu::always_inline]] QAT_HOST_DEVICE T power_of_two_real(T x, const PowerOfTwoCell<T>& cell, bool is_signed,
                                                           bool with_zero) {
  const T nearest = power_of_two_nearest(power_of_two_magnitude(x, is_signed), cell);
  const T magnitude = nearest < cell.xmin ? (with_zero ? T(0) : cell.xmin) : nearest;
  const T real = is_signed & (x < T(0)) ? -magnitude : magnitude;
  return x == x ? real : x;
}

/// What one element adds to the gradients: to x where its magnitude lies in [xmin, xmax), with the slope of
/// nearest_power_of_two, P / |x|; to xmin where it was raised to xmin; to xmax where it was lowered to it.
/// Pruned elements and NaN give nothing. (Uhlich et al., arXiv 1905.11452, eq. 5.)
template <class T>
struct PowerOfTwoGradient {
  T dx;
  T xmin;
  T xmax;
};

template <class T>
[[gnu::always_inline]] QAT_HOST_DEVICE PowerOfTwoGradient<T> power_of_two_gradient(
    T x, T dy, const PowerOfTwoCell<T>& cell, bool is_signed, bool with_zero) {
  const T magnitude = power_of_two_magnitude(x, is_signed);
  const T nearest = power_of_two_nearest(magnitude, cell);
  const T number_dy = x == x ? dy : T(0);
  const T towards = (is_signed ? x : T(1)) < T(0) ? -number_dy : number_dy;
  const T kept_from = with_zero ? cell.xmin : T(0);
  const T kept = nearest >= kept_from ? towards : T(0);
  const T passed = magnitude >= cell.xmin ? dy * (nearest / magnitude) : T(0);
  return {magnitude < cell.xmax ? passed : T(0), magnitude < cell.xmin ? kept : T(0),
          magnitude >= cell.xmax ? towards : T(0)};
}

}  // namespace qat
