#include "quantizers/learned_functions.h"

#include "autograd/affine_operators.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <cmath>
#include <ostream>

namespace qat::detail {
namespace {

using torch::Tensor;

/// A given value with a given derivative.
struct GivenSlope : torch::autograd::Function<GivenSlope> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor&, const Tensor& value,
                        const Tensor& slope) {
    context->save_for_backward({slope});
    return value;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] * context->get_saved_variables()[0], Tensor(), Tensor()};
  }
};

struct Bounded : torch::autograd::Function<Bounded> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& v, double min, double max,
                        bool strict) {
    context->save_for_backward({v});
    context->saved_data["min"] = min;
    context->saved_data["max"] = max;
    context->saved_data["strict"] = strict;
    return v.clamp(min, max);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto v = context->get_saved_variables()[0];
    const auto& gradient = gradients[0];
    const auto above_min = v > context->saved_data["min"].toDouble();
    const auto below_max = v < context->saved_data["max"].toDouble();
    const bool strict = context->saved_data["strict"].toBool();
    const auto passes =
        strict ? above_min & below_max : (above_min | (gradient < 0)) & (below_max | (gradient > 0));
    return {torch::where(passes, gradient, torch::zeros_like(gradient)), Tensor(), Tensor(), Tensor()};
  }
};

struct HeldBelow : torch::autograd::Function<HeldBelow> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& v, const Tensor& upper) {
    context->save_for_backward({v <= upper});
    return torch::minimum(v, upper);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto& gradient = gradients[0];
    const auto passes = context->get_saved_variables()[0] | (gradient > 0);
    return {torch::where(passes, gradient, torch::zeros_like(gradient)), Tensor()};
  }
};

Tensor given_slope(const Tensor& v, const Tensor& value, const Tensor& slope) {
  return v.requires_grad() && torch::GradMode::is_enabled() ? GivenSlope::apply(v, value, slope) : value;
}

}  // namespace

Tensor bounded(const Tensor& v, double min, double max, bool strict) {
  return Bounded::apply(v, min, max, strict);
}

Tensor held_below(const Tensor& v, const Tensor& upper) {
  return HeldBelow::apply(v, upper.detach());
}

Tensor rounded(const Tensor& v) {
  const auto value = round_to_integer(v.detach(), Rounding::kHalfAwayFromZero);
  return given_slope(v, value, torch::ones_like(value));
}

Tensor rounded_up(const Tensor& v) {
  const auto value = torch::ceil(v.detach());
  return given_slope(v, value, torch::ones_like(value));
}

Tensor power_of_two(const Tensor& v) {
  const auto at = v.detach();
  const auto [mantissa, exponent] = torch::frexp(at);  // mantissa in [1/2, 1)
  const auto up = mantissa >= std::sqrt(0.5);          // the nearest float64 lies above sqrt(1/2)
  const auto power = torch::ldexp(torch::ones_like(at), exponent - 1 + up.to(exponent.scalar_type()));
  const auto value = torch::where((at > 0) & torch::isfinite(at), power, at);
  return given_slope(v, value, torch::where(at > 0, value / at, torch::zeros_like(at)));
}

Tensor with_gradient_scale(const Tensor& v, double factor) {
  return given_slope(v, v.detach(), torch::full_like(v.detach(), factor));
}

Tensor power_of_two_below(const Tensor& v) {
  const auto at = v.detach();
  const auto exponent = std::get<1>(torch::frexp(at));
  return torch::ldexp(torch::ones_like(at), exponent - 1);
}

void print_parameters(std::ostream& stream, const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters()) {
    const auto& v = parameter.value();
    stream << ", " << parameter.key() << "=";
    if (v.dim() == 0) {
      stream << v.item<float>();
    } else {
      stream << "[" << v.min().item<float>() << " to " << v.max().item<float>() << "]";
    }
  }
}

}  // namespace qat::detail
