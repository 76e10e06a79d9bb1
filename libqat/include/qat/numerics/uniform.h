#pragma once

#include <qat/numerics/affine.h>
#include <qat/numerics/elementary.h>
#include <qat/numerics/host_device.h>
#include <qat/numerics/rounding.h>

namespace qat {

/// The uniform grid of one channel whose ends may learn: real = scale * (code - zero_point), code in [low,
/// high]. Elements at or beyond `lower` and `upper` give their gradient to that bound. `T` is float or
/// double.
template <class T>
struct UniformCell {
  T scale;
  T zero_point;  ///< an integer.
  T low;         ///< the lowest and the highest code in use.
  T high;
  T lower;  ///< the real bounds; lower <= upper, low is the code of lower, high that of upper, up to
            ///< rounding.
  T upper;
};

/// What one element adds to the gradients, dy being the gradient of its quantized value. The value is
/// scale * (r + c / scale) with c = clip(x, lower, upper) and r the rounding error in codes, rounding counted
/// as the identity (straight-through estimator): d/dx = 1 strictly between the bounds, d/dscale = r, d/dlower
/// and d/dupper = 1 for elements on or beyond them. NaN gives nothing to anyone. (Learned step: Esser et al.,
/// arXiv 1902.08153, eq. 3; range: Uhlich et al., arXiv 1905.11452, eq. 4.)
template <class T>
struct UniformGradient {
  T dx;
  T scale;
  T lower;
  T upper;
};

template <Rounding rounding, class T>
[[gnu::always_inline]] QAT_HOST_DEVICE UniformGradient<T> uniform_gradient(T x, T dy,
                                                                           const UniformCell<T>& cell) {
  const T held_below = x < cell.upper ? x : cell.upper;
  const T clipped = x > cell.lower ? held_below : cell.lower;
  const T position = clipped / cell.scale;
  const T code = clamp_code(round_to_integer<rounding>(position), cell.low - cell.zero_point,
                            cell.high - cell.zero_point);
  const T finite_dy = x == x ? dy : T(0);
  const T not_above = x < cell.upper ? dy : T(0);
  const T below = x <= cell.lower ? dy : T(0);
  return {x > cell.lower ? not_above : T(0), finite_dy * (code - position), x >= cell.upper ? T(0) : below,
          x >= cell.upper ? dy : T(0)};
}

}  // namespace qat
