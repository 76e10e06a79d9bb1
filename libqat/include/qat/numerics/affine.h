#pragma once

#include <qat/numerics/host_device.h>
#include <qat/numerics/rounding.h>

namespace qat {

/// The affine mapping of one element, `real = scale * (code - zero_point)`: the only place where it is
/// written down. All kernels and whoever needs a code call these functions. `T` is float
/// (also for half and bfloat16 data) or double; codes are integers held as `T`, so that clamping happens
/// before any integer cast.

/// The code before clamping: round(x / scale) + zero_point. Division, not multiplication by a reciprocal; the
/// zero point is added after rounding, as in ONNX QuantizeLinear. NaN gives NaN.
template <Rounding rounding, class T>
QAT_HOST_DEVICE T affine_raw_code(T x, T scale, T zero_point) {
  return round_to_integer<rounding>(x / scale) + zero_point;
}

/// clamp(code, qmin, qmax); NaN stays NaN.
template <class T>
QAT_HOST_DEVICE T clamp_code(T code, T qmin, T qmax) {
  return code < qmin ? qmin : (code > qmax ? qmax : code);
}

/// code = clamp(round(x / scale) + zero_point, qmin, qmax).
template <Rounding rounding, class T>
QAT_HOST_DEVICE T affine_code(T x, T scale, T zero_point, T qmin, T qmax) {
  return clamp_code(affine_raw_code<rounding>(x, scale, zero_point), qmin, qmax);
}

/// The same with the rounding chosen at run time.
template <class T>
QAT_HOST_DEVICE T affine_code(T x, T scale, T zero_point, T qmin, T qmax, Rounding rounding) {
  return clamp_code(round_to_integer(x / scale, rounding) + zero_point, qmin, qmax);
}

/// real = scale * (code - zero_point).
template <class T>
QAT_HOST_DEVICE T affine_real(T code, T scale, T zero_point) {
  return (code - zero_point) * scale;
}

/// Whether the clipped straight-through estimator passes the gradient of x: the code before clamping lies in
/// [qmin, qmax]. NaN passes nothing.
template <class T>
QAT_HOST_DEVICE bool affine_passes(T raw_code, T qmin, T qmax) {
  return raw_code >= qmin && raw_code <= qmax;
}

/// A ReLU-like activation that a quantizer computes in its own pass:
/// f(x) = min(x > 0 ? x : negative_slope * x, upper). The default is the identity.
/// ReLU: slope 0. ReLU6: slope 0, upper 6. LeakyReLU: its slope.
struct Activation {
  double negative_slope = 1.0;
  double upper = HUGE_VAL;

  bool is_identity() const { return negative_slope == 1.0 && upper == HUGE_VAL; }
  bool operator==(const Activation&) const = default;
};

/// f(x); NaN stays NaN.
template <class T>
QAT_HOST_DEVICE T activate(T x, T negative_slope, T upper) {
  // As torch: relu(x) = x where x > 0, and x * 0 must not turn an infinity into NaN.
  const T y = x > T(0) ? x : (negative_slope == T(0) ? (x != x ? x : T(0)) : x * negative_slope);
  return y > upper ? upper : y;
}

/// f'(x) by torch's conventions: 0 at x = 0 for ReLU and ReLU6, negative_slope for x <= 0, 0 for x >= upper
/// if there is such a bound. NaN has the slope of negative numbers.
template <class T>
QAT_HOST_DEVICE T activation_slope(T x, T negative_slope, T upper) {
  return x >= upper && upper < T(HUGE_VAL) ? T(0) : (x > T(0) ? T(1) : negative_slope);
}

}  // namespace qat
