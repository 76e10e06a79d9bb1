#pragma once

#include <qat/numerics/host_device.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace qat {

/// The integer with the bits of a float or a double; of a pack of them, a pack of such integers.
template <class Number>
struct NumberBits {
  using Element = std::remove_cvref_t<decltype(Number{}[0])>;
  using Type = decltype(Number{} < Number{});
};
template <>
struct NumberBits<float> {
  using Element = float;
  using Type = std::int32_t;
};
template <>
struct NumberBits<double> {
  using Element = double;
  using Type = std::int64_t;
};

/// The grid of a power-of-two ("log") quantizer for one channel: magnitudes xmin, 2 xmin, ..., xmax, all
/// powers of two, xmin <= xmax, both normal numbers. `Number` is float, double or a pack of them whose
/// comparisons give masks.
///
/// Signed: both signs; zero counts as positive. Unsigned: negative numbers count as 0. With zero: magnitudes
/// below xmin / sqrt(2) become 0, else they become xmin.
template <class Number>
struct PowerOfTwoCell {
  Number xmin;
  Number xmax;
  Number negative;  ///< numbers below it count as negative: 0 if signed, else -infinity.
  Number kept;   ///< magnitudes that round to at least this give xmin its gradient: xmin with zero, else 0.
  Number least;  ///< the magnitude of what rounds below xmin: 0 with zero, else xmin.
};

/// A cell from the ends of its grid.
template <class Number>
[[gnu::always_inline]] QAT_HOST_DEVICE PowerOfTwoCell<Number> power_of_two_cell(const Number& xmin,
                                                                                const Number& xmax,
                                                                                bool is_signed,
                                                                                bool with_zero) {
  using Element = typename NumberBits<Number>::Element;
  const Number infinity = Number{} + std::numeric_limits<Element>::infinity();
  return {xmin, xmax, is_signed ? Number{} : -infinity, with_zero ? xmin : Number{},
          with_zero ? Number{} : xmin};
}

/// |v| to the nearest power of two in log2, for v in [the smallest normal number, the largest power of two]:
/// nearest_power_of_two without its special cases, so that loops become vector code.
template <class Number>
[[gnu::always_inline]] QAT_HOST_DEVICE Number power_of_two_of_normal(const Number& v) {
  using Element = typename NumberBits<Number>::Element;
  using Integer = std::conditional_t<sizeof(Element) == 4, std::int32_t, std::int64_t>;
  constexpr Integer mantissa_size = Integer(1) << (std::numeric_limits<Element>::digits - 1);
  constexpr Integer round_up_from =
      sizeof(Element) == 4 ? static_cast<Integer>(0x3504F4) : static_cast<Integer>(0x6A09E667F3BCDLL);
  typename NumberBits<Number>::Type bits;
  std::memcpy(&bits, &v, sizeof(bits));
  bits = (bits + (mantissa_size - round_up_from)) & ~(mantissa_size - 1);
  Number power;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}

/// The magnitude that is quantized: |x|, or max(x, 0); NaN counts as 0.
template <class Number>
[[gnu::always_inline]] QAT_HOST_DEVICE Number power_of_two_magnitude(const Number& x,
                                                                     const PowerOfTwoCell<Number>& cell) {
  const Number magnitude = x < cell.negative ? -x : x;
  return magnitude > Number{} ? magnitude : Number{};
}

/// The power of two of a magnitude, held in [smallest normal, xmax].
template <class Number>
[[gnu::always_inline]] QAT_HOST_DEVICE Number power_of_two_nearest(const Number& magnitude,
                                                                   const PowerOfTwoCell<Number>& cell) {
  const Number smallest = Number{} + std::numeric_limits<typename NumberBits<Number>::Element>::min();
  const Number held = magnitude < cell.xmax ? magnitude : cell.xmax;
  return power_of_two_of_normal(held > smallest ? held : smallest);
}

/// The quantized value; infinities saturate, NaN stays NaN.
template <class Number>
[[gnu::always_inline]] QAT_HOST_DEVICE Number power_of_two_real(const Number& x,
                                                                const PowerOfTwoCell<Number>& cell) {
  const Number nearest = power_of_two_nearest(power_of_two_magnitude(x, cell), cell);
  const Number magnitude = nearest < cell.xmin ? cell.least : nearest;
  const Number real = x < cell.negative ? -magnitude : magnitude;
  return x == x ? real : x;
}

/// What one element adds to the gradients: to x where its magnitude lies in [xmin, xmax), with the slope of
/// nearest_power_of_two, P / |x|; to xmin where it was raised to xmin; to xmax where it was lowered to it.
/// Pruned elements and NaN give nothing. (Uhlich et al., arXiv 1905.11452, eq. 5.)
template <class Number>
struct PowerOfTwoGradient {
  Number dx;
  Number xmin;
  Number xmax;
};

template <class Number>
[[gnu::always_inline]] QAT_HOST_DEVICE PowerOfTwoGradient<Number> power_of_two_gradient(
    const Number& x, const Number& dy, const PowerOfTwoCell<Number>& cell) {
  const Number magnitude = power_of_two_magnitude(x, cell);
  const Number nearest = power_of_two_nearest(magnitude, cell);
  const Number number_dy = x == x ? dy : Number{};
  const Number towards = x < cell.negative ? -number_dy : number_dy;
  const Number kept = nearest >= cell.kept ? towards : Number{};
  const Number passed = magnitude >= cell.xmin ? dy * (nearest / magnitude) : Number{};
  return {magnitude < cell.xmax ? passed : Number{}, magnitude < cell.xmin ? kept : Number{},
          magnitude >= cell.xmax ? towards : Number{}};
}

}  // namespace qat
