#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <iosfwd>

namespace qat::detail {

/// Functions of learned quantizer parameters (small float64 tensors) with the gradients that training needs.

/// clip(v, min, max) for a parameter. The gradient passes strictly between the bounds. At or beyond a bound
/// it passes if descent moves the parameter inward, so that no parameter stays at its bound for ever;
/// `strict`: never (nnabla).
torch::Tensor bounded(const torch::Tensor& v, double min, double max, bool strict = false);

/// min(v, upper), `upper` without gradient. Where v is above, the gradient passes if descent lowers v.
torch::Tensor held_below(const torch::Tensor& v, const torch::Tensor& upper);

/// Rounds half away from zero; gradient 1.
torch::Tensor rounded(const torch::Tensor& v);

/// Rounds up; gradient 1.
torch::Tensor rounded_up(const torch::Tensor& v);

/// The nearest power of two, nearest_power_of_two(v); gradient P / v (0 at 0).
torch::Tensor power_of_two(const torch::Tensor& v);

/// v, with `factor` times the gradient.
torch::Tensor with_gradient_scale(const torch::Tensor& v, double factor);

/// The largest power of two that is not above v (v > 0), without gradient.
torch::Tensor power_of_two_below(const torch::Tensor& v);

/// ", d=0.25, xmax=[0.5 to 2]": the module's own parameters, those of several channels by their extremes.
void print_parameters(std::ostream& stream, const torch::nn::Module& module);

}  // namespace qat::detail
