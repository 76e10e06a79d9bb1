#pragma once

#include <qat/numerics/host_device.h>

namespace qat {

/// The uniform grid of one channel whose ends may learn: real = scale * code, code in [first, last]. Elements
/// at or beyond `lower` and `upper` give their gradient to that bound. `Number` is float, double or a pack of
/// them whose comparisons give masks.
template <class Number>
struct UniformCell {
  Number scale;
  Number first;  ///< the lowest and the highest code in use, each less the zero point.
  Number last;
  Number lower;  ///< the real bounds; lower <= upper, first is the code of lower, last that of upper, up to
                 ///< rounding.
  Number upper;
};

/// What one element adds to the gradients, dy being the gradient of its quantized value. The value is
/// scale * (r + c / scale) with c = clip(x, lower, upper) and r the rounding error in codes, rounding counted
/// as the identity (straight-through estimator): d/dx = 1 strictly between the bounds, d/dscale = r, d/dlower
/// and d/dupper = 1 for elements on or beyond them. NaN gives nothing to anyone. (Learned step: Esser et al.,
/// arXiv 1902.08153, eq. 3; range: Uhlich et al., arXiv 1905.11452, eq. 4.)
template <class Number>
struct UniformGradient {
  Number dx;
  Number scale;
  Number lower;
  Number upper;
};

/// `round(position)` is round_to_integer of a Number.
template <class Number, class Round>
[[gnu::always_inline]] QAT_HOST_DEVICE UniformGradient<Number> uniform_gradient(
    const Number& x, const Number& dy, const UniformCell<Number>& cell, const Round& round) {
  // Selects in the form of minimum and maximum instructions.
  const Number held_below = x < cell.upper ? x : cell.upper;
  const Number clipped = held_below > cell.lower ? held_below : cell.lower;
  const Number position = clipped / cell.scale;
  const Number rounded = round(position);
  const Number from_first = rounded > cell.first ? rounded : cell.first;
  const Number code = from_first < cell.last ? from_first : cell.last;
  const Number error = dy * (code - position);
  const Number not_above = x < cell.upper ? dy : Number{};
  return {x > cell.lower ? not_above : Number{}, x == x ? error : Number{},
          x <= cell.lower ? not_above : Number{}, x >= cell.upper ? dy : Number{}};
}

}  // namespace qat
