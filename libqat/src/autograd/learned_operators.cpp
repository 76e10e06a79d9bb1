#include "autograd/learned_operators.h"

#include "autograd/affine_operators.h"
#include "autograd/dense_view.h"
#ifdef QAT_CUDA
#include "autograd/quantize_cuda.h"
#endif

#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <vector>

namespace qat::detail {
namespace {

using torch::Tensor;

torch::ScalarType arithmetic_type(const Tensor& x) {
  return x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

/// A grid tensor, shaped to broadcast against x, of the type of the arithmetic.
Tensor aligned(const Tensor& values, const Tensor& x, std::optional<std::int64_t> axis) {
  return along_axis(values.detach().to(x.device()), x.dim(), resolve_axis(x, axis)).to(arithmetic_type(x));
}

/// The sum of what the elements add, for each channel, in float64.
Tensor channel_sum(const Tensor& contributions, std::optional<std::int64_t> axis, const Tensor& like) {
  const auto wide = contributions.to(torch::kDouble);
  const auto resolved = resolve_axis(contributions, axis);
  const auto sum = resolved ? wide.transpose(0, *resolved).unsqueeze(-1).flatten(1).sum(1) : wide.sum();
  return sum.to(torch::kFloat).reshape(like.sizes());
}

/// Where an element is not selected it adds 0, whatever its gradient.
Tensor selected(const Tensor& condition, const Tensor& dy) {
  return torch::where(condition, dy, torch::zeros_like(dy));
}

struct UniformOperands {
  Tensor x;  ///< after the activation.
  Tensor scale, zero_point, low, high, lower, upper;
  Tensor is_nan;

  UniformOperands(const Tensor& input, const UniformGrid& grid, const Activation& activation)
      : x(activate(input.to(arithmetic_type(input)), activation)),
        scale(aligned(grid.scale, input, grid.axis)),
        zero_point(aligned(grid.zero_point, input, grid.axis)),
        low(aligned(grid.low, input, grid.axis)),
        high(aligned(grid.high, input, grid.axis)),
        lower(aligned(grid.lower, input, grid.axis)),
        upper(aligned(grid.upper, input, grid.axis)),
        is_nan(torch::isnan(x)) {
    if (grid.compatible) x = torch::where(is_nan, lower, x);
  }
};

Tensor uniform_code(const UniformOperands& at, Rounding rounding) {
  return torch::minimum(torch::maximum(affine_raw_code(at.x, at.scale, at.zero_point, rounding), at.low),
                        at.high);
}

/// |v| to the nearest power of two: 2^e for v = m * 2^e, m in [sqrt(1/2), sqrt(2)).
Tensor nearest_power(const Tensor& v) {
  const auto [mantissa, exponent] = torch::frexp(v);  // mantissa in [1/2, 1)
  // The nearest float32 to sqrt(1/2) lies below it, the nearest float64 above.
  const auto up = v.scalar_type() == torch::kDouble ? mantissa >= std::sqrt(0.5) : mantissa > std::sqrt(0.5);
  return torch::ldexp(torch::ones_like(v), exponent - 1 + up.to(exponent.scalar_type()));
}

struct PowerOfTwoOperands {
  Tensor x;
  Tensor xmin, xmax;
  Tensor magnitude;
  Tensor nearest;

  PowerOfTwoOperands(const Tensor& input, const PowerOfTwoGrid& grid, const Activation& activation)
      : x(activate(input.to(arithmetic_type(input)), activation)),
        xmin(aligned(grid.xmin, input, grid.axis)),
        xmax(aligned(grid.xmax, input, grid.axis)),
        magnitude(torch::nan_to_num(grid.is_signed ? x.abs() : torch::relu(x), 0.0,
                                    std::numeric_limits<float>::infinity())),
        nearest(nearest_power(
            torch::clamp_min(torch::minimum(magnitude, xmax), std::numeric_limits<float>::min()))) {}
};

Tensor real_of(const PowerOfTwoOperands& at, const PowerOfTwoGrid& grid) {
  const auto low = grid.with_zero ? torch::zeros_like(at.xmin) : at.xmin;
  auto real = torch::where(at.nearest < at.xmin, low, at.nearest);
  if (grid.is_signed) real = torch::where(at.x < 0, -real, real);
  return torch::where(torch::isnan(at.x), at.x, real);
}

/// nnabla's power-of-two quantizer: masks that multiply, a float32 logarithm, no order of the bounds.
struct NnablaOperands {
  Tensor x, sign, magnitude, power, xmin, xmax;
  Tensor raised, inside, above;  ///< 0 or 1.

  NnablaOperands(const Tensor& input, const PowerOfTwoGrid& grid, const Activation& activation)
      : x(activate(input.to(arithmetic_type(input)), activation)),
        sign(grid.is_signed ? torch::where(x < 0, -torch::ones_like(x), torch::ones_like(x))
                            : torch::ones_like(x)),
        magnitude(grid.is_signed ? x.abs() : torch::where(x > 0, x, torch::zeros_like(x))),
        power(torch::exp2(
            round_to_integer(torch::log(magnitude.to(torch::kDouble)).to(x.scalar_type()) * 1.442695F,
                             Rounding::kHalfAwayFromZero))),
        xmin(aligned(grid.xmin, input, grid.axis)),
        xmax(aligned(grid.xmax, input, grid.axis)) {
    const auto mask = [&](const Tensor& condition) { return condition.to(x.scalar_type()); };
    above = mask(magnitude >= xmax);
    inside = mask(magnitude >= xmin) * mask(magnitude < xmax);
    raised = mask(magnitude < xmin);
    if (grid.with_zero) raised = raised * mask(magnitude >= xmin * 0.70710677F);
  }
};

/// Multiplies by the activation's slope; gradients that it blocks become 0 even if infinite.
Tensor through_activation(const Tensor& dx, const Tensor& x, const Activation& activation) {
  if (activation.is_identity()) return dx.to(x.scalar_type());
  const auto slope = activation_slope(x.to(dx.scalar_type()), activation);
  return torch::where(slope == 0, torch::zeros_like(dx), dx * slope).to(x.scalar_type());
}

}  // namespace

Tensor learned_values(const Tensor& x, const UniformGrid& grid, Rounding rounding,
                      const Activation& activation) {
#ifdef QAT_CUDA
  if (has_cuda_kernel(x) && !grid.compatible) return cuda_values(x, grid, rounding, activation);
#endif
  const UniformOperands at(x, grid, activation);
  return affine_real(uniform_code(at, rounding), at.scale, at.zero_point).to(x.scalar_type());
}

Tensor learned_values(const Tensor& x, const PowerOfTwoGrid& grid, Rounding, const Activation& activation) {
#ifdef QAT_CUDA
  if (has_cuda_kernel(x) && !grid.compatible) return cuda_values(x, grid, activation);
#endif
  if (grid.compatible) {
    const NnablaOperands at(x, grid, activation);
    return (at.sign * (at.xmin * at.raised + at.power * at.inside + at.xmax * at.above)).to(x.scalar_type());
  }
  return real_of(PowerOfTwoOperands(x, grid, activation), grid).to(x.scalar_type());
}

LearnedGradients learned_gradients(const Tensor& x, const Tensor& gradient, const UniformGrid& grid,
                                   Rounding rounding, const Activation& activation) {
#ifdef QAT_CUDA
  if (has_cuda_kernel(x) && !grid.compatible) return cuda_gradients(x, gradient, grid, rounding, activation);
#endif
  const UniformOperands at(x, grid, activation);
  const auto dy = gradient.to(at.x.scalar_type());
  // nnabla: the upper bound wins where the bounds are equal, and a NaN counts for the step.
  const auto reached = grid.compatible ? torch::maximum(at.x, at.lower) : at.x;
  const auto above = (reached >= at.upper) & ~at.is_nan;
  const auto below = (at.x <= at.lower) & ~above & ~at.is_nan;
  const auto inside = (at.x > at.lower) & (at.x < at.upper);
  const auto position = torch::minimum(torch::maximum(at.x, at.lower), at.upper) / at.scale;
  const auto code = torch::minimum(
      torch::maximum(round_to_integer(position, rounding), at.low - at.zero_point), at.high - at.zero_point);
  const auto error =
      selected(grid.compatible ? torch::ones_like(at.is_nan) : ~at.is_nan, dy * (code - position));
  auto passed = selected(inside, dy);
  if (grid.compatible) passed = passed * (at.scale / at.scale);  // NaN for an infinite step
  return {through_activation(passed, x, activation), channel_sum(error, grid.axis, grid.scale),
          channel_sum(selected(below, dy), grid.axis, grid.scale),
          channel_sum(selected(above, dy), grid.axis, grid.scale)};
}

LearnedGradients learned_gradients(const Tensor& x, const Tensor& gradient, const PowerOfTwoGrid& grid,
                                   Rounding, const Activation& activation) {
#ifdef QAT_CUDA
  if (has_cuda_kernel(x) && !grid.compatible) return cuda_gradients(x, gradient, grid, activation);
#endif
  if (grid.compatible) {
    const NnablaOperands at(x, grid, activation);
    auto slope = at.inside * at.power / at.magnitude;
    if (!grid.is_signed) slope = torch::where(at.x > 0, slope, torch::zeros_like(slope));
    return {through_activation(gradient * slope, x, activation),
            channel_sum(gradient * at.sign * at.raised, grid.axis, grid.xmin),
            channel_sum(gradient * at.sign * at.above, grid.axis, grid.xmin),
            {}};
  }
  const PowerOfTwoOperands at(x, grid, activation);
  const auto dy = gradient.to(at.x.scalar_type());
  const auto towards = grid.is_signed ? torch::where(at.x < 0, -dy, dy) : dy;
  const auto above = at.magnitude >= at.xmax;
  const auto inside = (at.magnitude >= at.xmin) & ~above;
  auto raised = (at.magnitude < at.xmin) & ~torch::isnan(at.x);
  if (grid.with_zero) raised = raised & (at.nearest >= at.xmin);
  return {through_activation(selected(inside, dy * (at.nearest / at.magnitude)), x, activation),
          channel_sum(selected(raised, towards), grid.axis, grid.xmin),
          channel_sum(selected(above, towards), grid.axis, grid.xmin),
          {}};
}

Tensor learned_codes(const Tensor& x, const UniformGrid& grid, Rounding rounding) {
#ifdef QAT_CUDA
  if (has_cuda_kernel(x) && !grid.compatible) return cuda_codes(x, grid, rounding);
#endif
  const auto codes = uniform_code(UniformOperands(x, grid, {}), rounding);
  TORCH_CHECK_VALUE(torch::jit::tracer::isTracing() || !torch::isnan(codes).any().item<bool>(),
                    "qat::uniform_codes: the tensor holds a NaN, which has no code");
  return codes.to(torch::kInt);
}

Tensor learned_codes(const Tensor& x, const PowerOfTwoGrid& grid, Rounding) {
  const PowerOfTwoOperands at(x, grid, {});
  const double largest = grid.is_signed ? 0x1p14 : 0x1p15;
  TORCH_CHECK_VALUE((grid.xmax / grid.xmin <= largest).all().item<bool>(),
                    "qat::power_of_two_codes: xmax / xmin is above ", largest,
                    ", codes in units of xmin would not fit 16 bits; use fewer bits");
  const auto codes = real_of(at, grid) / at.xmin;
  TORCH_CHECK_VALUE(torch::jit::tracer::isTracing() || !torch::isnan(codes).any().item<bool>(),
                    "qat::power_of_two_codes: the tensor holds a NaN, which has no code");
  return codes.to(torch::kInt);
}

}  // namespace qat::detail
