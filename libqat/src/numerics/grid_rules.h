#pragma once

#include "numerics/scalar_tape.h"
#include <qat/numerics/affine_scale.h>
#include <qat/quantizers/learned_kinds.h>

#include <cmath>
#include <cstdint>

namespace qat::detail {

/// From the parameters of one channel to what is computed of them: written once, for values and gradients,
/// for CPU and CUDA. A rule's derive() takes the channel's two parameters (the second is 0 if there is none)
/// and the limit of bits.

/// The grid of one channel; fields as in UniformGrid and PowerOfTwoGrid.
struct ScalarGrid {
  Scalar scale;  ///< power of two: xmin.
  Scalar lower;
  Scalar upper;  ///< power of two: xmax.
  double zero_point = 0;
  double low = 0;
  double high = 0;
};

struct Bounds {
  double min = 0;
  double max = 0;
};

/// `value` in the float32 precision that grids have.
QAT_HOST_DEVICE Scalar in_float32(const Scalar& v) {
  return v.with(static_cast<float>(v.value()), 1);
}

/// The parameters of ParametricQuantizer, named by the kind: (n, m), (n, xmax), (d, xmax), (n, d), (n, xmin),
/// (xmin, xmax).
struct ParametricRule {
  ParametricKind kind;
  bool is_signed;
  bool with_zero;
  bool compatible;
  double most_magnitudes;  ///< power of two: a grid never has more.
  Bounds first;
  Bounds second;

  /// Bits that no magnitude has: the sign's, and the one that a zero takes from a power-of-two grid.
  QAT_HOST_DEVICE double sign_bits() const { return is_signed ? 1 : 0; }
  QAT_HOST_DEVICE double zero_codes() const { return with_zero ? 1 : 0; }
  QAT_HOST_DEVICE bool has_power_of_two_grid() const { return kind >= ParametricKind::kPow2NM; }
  QAT_HOST_DEVICE double taken_bits() const {
    return sign_bits() + (has_power_of_two_grid() ? zero_codes() : 0);
  }

  QAT_HOST_DEVICE Scalar bounded_first(const Scalar& v) const {
    return bounded(v, first.min, first.max, compatible);
  }
  QAT_HOST_DEVICE Scalar bounded_second(const Scalar& v) const {
    return bounded(v, second.min, second.max, compatible);
  }

  QAT_HOST_DEVICE ScalarGrid derive(const Scalar& p, const Scalar& q, double bits_limit) const {
    return has_power_of_two_grid() ? power_of_two(bounded_first(p), bounded_second(q), bits_limit)
                                   : uniform(bounded_first(p), bounded_second(q), bits_limit);
  }

 private:
  /// Whole bits of n for the magnitudes, within the limit; beyond it the gradient passes as if there were
  /// none.
  QAT_HOST_DEVICE Scalar limited_width(const Scalar& n, double bits_limit) const {
    const Scalar wanted = rounded(n) - taken_bits();
    const double most = bits_limit - taken_bits();
    return wanted.value() > most ? replaced(wanted, most) : wanted;
  }

  QAT_HOST_DEVICE ScalarGrid uniform(const Scalar& p, const Scalar& q, double bits_limit) const {
    Scalar d;
    Scalar upper;
    if (kind == ParametricKind::kFpDXmax) {
      d = step_below(nearest_power_of_two(p), q);
      upper = q;
    } else if (kind == ParametricKind::kFpDB) {
      d = nearest_power_of_two(q);
      upper = d * (exp2(rounded(p) - taken_bits()) - 1);
    } else {
      const Scalar levels = exp2(limited_width(p, bits_limit)) - 1;
      if (kind == ParametricKind::kFpNM) {
        d = nearest_power_of_two(exp2(q) / levels);
        upper = d * levels;
      } else {
        d = step_below(nearest_power_of_two(q / levels), q);
        const Scalar reachable = levels * d;
        upper = !compatible && reachable.value() < q.value() ? reachable : q;
      }
    }
    if (!compatible) {
      // Coarser where the codes up to `upper` would exceed the limit: the smallest power of two that fits.
      const double most_codes = std::exp2(bits_limit - sign_bits()) - 1;
      const bool fits = std::floor(upper.value() / d.value()) <= most_codes;
      d = fits ? d : replaced(d, 2 * power_of_two_below(upper.value() / (most_codes + 1)));
    }
    d = in_float32(d);
    upper = in_float32(upper);
    const auto quotient = static_cast<float>(upper.value()) / static_cast<float>(d.value());
    const double high = std::floor(compatible ? quotient + 0.5F : quotient);
    return {.scale = d,
            .lower = is_signed ? -upper : Scalar(0),
            .upper = upper,
            .low = is_signed ? -high : 0,
            .high = high};
  }

  QAT_HOST_DEVICE Scalar step_below(const Scalar& d, const Scalar& xmax) const {
    return compatible ? d : held_below(d, power_of_two_below(xmax.value()));
  }

  QAT_HOST_DEVICE ScalarGrid power_of_two(const Scalar& p, const Scalar& q, double bits_limit) const {
    Scalar xmin;
    Scalar xmax;
    if (kind == ParametricKind::kPow2XminXmax) {
      xmax = nearest_power_of_two(q);
      xmin = nearest_power_of_two(p);
      if (!compatible) xmin = held_below(xmin, xmax.value());
    } else if (kind == ParametricKind::kPow2BXmin) {
      xmin = nearest_power_of_two(q);
      xmax = xmin * exp2(exp2(rounded(p) - taken_bits()) - 1);
    } else {
      const Scalar magnitudes = exp2(limited_width(p, bits_limit));
      if (kind == ParametricKind::kPow2NM) {
        const Scalar m = rounded(q);
        xmax = exp2(m);
        xmin = exp2(m - magnitudes + 1);
      } else {
        xmax = nearest_power_of_two(q);
        xmin = exp2(1 - magnitudes) * xmax;
      }
    }
    if (!compatible) {
      const double fitting = std::exp2(bits_limit - taken_bits());
      const double most = fitting < most_magnitudes ? fitting : most_magnitudes;
      const double smallest = xmax.value() * std::exp2(1 - most);
      if (xmin.value() < smallest) xmin = replaced(xmin, smallest);
    }
    return {.scale = in_float32(xmin), .lower = {}, .upper = in_float32(xmax)};
  }
};

/// ParametricQuantizer::bit_count() of one channel, in `scale`.
struct BitCountRule {
  ParametricRule grid;
  double fewest_bits;

  QAT_HOST_DEVICE ScalarGrid derive(const Scalar& p, const Scalar& q, double) const {
    const Scalar first = grid.bounded_first(p);
    const Scalar second = grid.bounded_second(q);
    Scalar bits;
    if (grid.kind == ParametricKind::kFpDXmax) {
      bits = rounded_up(log2(rounded(second / nearest_power_of_two(first)) + 1)) + grid.sign_bits();
    } else if (grid.kind == ParametricKind::kPow2XminXmax) {
      const Scalar doublings = log2(nearest_power_of_two(second) / nearest_power_of_two(first));
      const Scalar held = doublings.value() < 0 ? Scalar(0) : doublings;
      bits = rounded_up(log2(held + 1 + grid.zero_codes())) + grid.sign_bits();
    } else {
      bits = rounded(first);
    }
    return {.scale = bits.value() > fewest_bits ? bits : Scalar(fewest_bits), .lower = {}, .upper = {}};
  }
};

/// The parameters of LearnedStepQuantizer: (scale, none), (scale, offset), (alpha, none), (log2_t, none).
struct LearnedStepRule {
  LearnedStepKind kind;
  double qmin;
  double qmax;
  double step_bits;        ///< tqt: scale = threshold / 2^step_bits.
  Bounds bounds;           ///< of the first parameter.
  double gradient_factor;  ///< lsq, lsq_plus: of the parameters' gradients.

  QAT_HOST_DEVICE ScalarGrid derive(const Scalar& p, const Scalar& q, double) const {
    const Scalar held = bounded(p, bounds.min, bounds.max);
    ScalarGrid grid;
    grid.low = qmin;
    grid.high = qmax;
    switch (kind) {
      case LearnedStepKind::kLsq:
        grid.scale = with_gradient_scale(held, gradient_factor);
        grid.lower = qmin * grid.scale;
        grid.upper = qmax * grid.scale;
        break;
      case LearnedStepKind::kLsqPlus: {
        grid.scale = with_gradient_scale(held, gradient_factor);
        const Scalar offset = with_gradient_scale(q, gradient_factor);
        const Scalar zero = bounded(rounded(-offset / grid.scale), qmin, qmax);
        grid.lower = (qmin - zero) * grid.scale;
        grid.upper = (qmax - zero) * grid.scale;
        grid.zero_point = zero.value();
        break;
      }
      case LearnedStepKind::kPact: {
        const double step = held.value() / qmax;
        grid.upper = held;
        grid.scale = Scalar(step > kScaleFloor ? step : kScaleFloor);
        break;
      }
      case LearnedStepKind::kTqt:
        grid.scale = exp2(rounded_up(held) - step_bits);
        grid.lower = (qmin - 0.5) * grid.scale;
        grid.upper = (qmax + 0.5) * grid.scale;
        break;
    }
    grid.scale = in_float32(grid.scale);
    grid.lower = in_float32(grid.lower);
    grid.upper = in_float32(grid.upper);
    return grid;
  }
};

}  // namespace qat::detail
