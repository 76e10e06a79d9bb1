#pragma once

#include <qat/numerics/host_device.h>

#include <cmath>

namespace qat {

/// The elements of the weight quantizers of few bits; see LowBitWeightKind. `T` is float or double; values
/// are code * scale. `Number` is T or a pack of them.

template <class Number>
[[gnu::always_inline]] QAT_HOST_DEVICE Number low_bit_magnitude(const Number& w) {
  return w < Number{} ? -w : w;
}

/// -1 below zero, else 1, for NaN too.
template <class T>
[[gnu::always_inline]] QAT_HOST_DEVICE T binary_code(T w) {
  return w < T(0) ? T(-1) : T(1);
}

/// The gradient of binary weights: dy where |w| <= 1, else 0, for NaN too.
template <class T>
[[gnu::always_inline]] QAT_HOST_DEVICE T binary_gradient(T w, T dy) {
  return low_bit_magnitude(w) <= T(1) ? dy : T(0);
}

/// The gradient of ternary weights: dy, 0 for NaN.
template <class T>
[[gnu::always_inline]] QAT_HOST_DEVICE T ternary_gradient(T w, T dy) {
  return w == w ? dy : T(0);
}

/// Weights of at most this share of the mean magnitude become 0 in ternary weights.
inline constexpr double kTernaryThreshold = 0.7;

/// `value` where |w| is above the threshold, else 0.
template <class Number>
[[gnu::always_inline]] QAT_HOST_DEVICE Number ternary_kept(const Number& w, const Number& threshold,
                                                           const Number& value) {
  return low_bit_magnitude(w) > threshold ? value : Number{};
}

/// -1, 0 or 1.
template <class T>
[[gnu::always_inline]] QAT_HOST_DEVICE T ternary_code(T w, T threshold) {
  return ternary_kept(w, threshold, w < T(0) ? T(-1) : T(1));
}

/// The code of t = tanh(w): 2 q - levels with q = round(levels (t / (2 largest) + 1/2)).
template <class T>
[[gnu::always_inline]] QAT_HOST_DEVICE T dorefa_code(T t, T largest, T levels) {
  return T(2) * std::rint((t / largest * T(0.5) + T(0.5)) * levels) - levels;
}

/// The gradient of w through the rounding and through tanh, 0 for NaN; `largest` is a constant.
template <class T>
[[gnu::always_inline]] QAT_HOST_DEVICE T dorefa_gradient(T t, T dy, T largest) {
  return t == t ? dy / largest * (T(1) - t * t) : T(0);
}

}  // namespace qat
