#pragma once

#include <qat/autograd/fake_quantize.h>

#include <ATen/Parallel.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/types.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/tensor_matchers.h"

namespace qat::testing {

/// A plain loop over the reference rules: R1 (forward) and R5 (gradient of x) for any axis, in float32 or,
/// for float64 tensors, in double.
struct FakeQuantizeReference {
  torch::Tensor y;
  torch::Tensor dx;
  torch::Tensor codes;
};

template <class T>
FakeQuantizeReference fake_quantize_reference(const torch::Tensor& x, const torch::Tensor& dy,
                                              const AffineParams& params,
                                              const FakeQuantizeOptions& options) {
  const auto type = sizeof(T) == 8 ? torch::kDouble : torch::kFloat;
  const auto wide = x.detach().to(type).contiguous();
  const auto gradient = dy.detach().to(type).contiguous();
  auto y = torch::empty_like(wide);
  auto dx = torch::empty_like(wide);
  auto codes = torch::empty_like(wide, torch::kInt);
  std::int64_t inner = 1;
  std::int64_t channels = 1;
  if (params.axis) {
    const std::int64_t axis = *params.axis < 0 ? *params.axis + x.dim() : *params.axis;
    channels = x.size(axis);
    for (std::int64_t d = axis + 1; d < x.dim(); ++d)
      inner *= x.size(d);
  }
  const auto scales = params.scale.contiguous();
  const auto zero_points = params.zero_point.contiguous();
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    const std::int64_t c = i / inner % channels;
    const T s = scales.template const_data_ptr<float>()[c];
    const auto z = static_cast<T>(zero_points.template const_data_ptr<std::int32_t>()[c]);
    const auto qmin = static_cast<T>(params.range.qmin());
    const auto qmax = static_cast<T>(params.range.qmax());
    const T v = wide.template const_data_ptr<T>()[i];
    const auto slope = static_cast<T>(options.activation.negative_slope);
    const auto upper = static_cast<T>(options.activation.upper);
    T f = v > 0 ? v : (slope == 0 ? (std::isnan(v) ? v : T(0)) : slope * v);
    if (f > upper) f = upper;
    const T quotient = f / s;
    T rounded = std::nearbyint(quotient);
    if (options.rounding == Rounding::kHalfAwayFromZero) rounded = std::round(quotient);
    if (options.rounding == Rounding::kHalfUp) {
      rounded = static_cast<T>(std::floor(static_cast<long double>(quotient) + 0.5L));
      if (std::isinf(quotient)) rounded = quotient;
    }
    const T raw = rounded + z;
    T code = raw;
    if (code < qmin) code = qmin;
    if (code > qmax) code = qmax;
    y.template mutable_data_ptr<T>()[i] = s * (code - z);
    codes.mutable_data_ptr<std::int32_t>()[i] = std::isnan(code) ? 0 : static_cast<std::int32_t>(code);
    T factor = v > 0 ? T(1) : slope;
    if (std::isfinite(upper) && v >= upper) factor = 0;
    const bool inside = raw >= qmin && raw <= qmax;
    if (options.straight_through == StraightThrough::kClipped && !inside) factor = 0;
    dx.template mutable_data_ptr<T>()[i] =
        factor == 0 ? T(0) : factor * gradient.template const_data_ptr<T>()[i];
  }
  return {y.to(x.scalar_type()), dx.to(x.scalar_type()), codes};
}

/// The same tensor with other strides.
inline std::vector<std::pair<std::string, torch::Tensor>> layouts_of(const torch::Tensor& x) {
  std::vector<std::pair<std::string, torch::Tensor>> layouts{{"contiguous", x.contiguous()}};
  if (x.dim() == 0) return layouts;
  const auto wide = torch::stack({torch::full_like(x, 99), x}, -1);
  layouts.emplace_back("every second element", wide.select(-1, 1));
  if (x.dim() >= 2) {
    layouts.emplace_back("transposed", x.transpose(0, -1).contiguous().transpose(0, -1));
    layouts.emplace_back("first axes swapped", x.transpose(0, 1).contiguous().transpose(0, 1));
  }
  if (x.dim() == 4) layouts.emplace_back("channels last", x.contiguous(torch::MemoryFormat::ChannelsLast));
  return layouts;
}

/// Runs `function` on `x` through a trace that was made with other numbers.
inline torch::Tensor run_traced(const std::function<torch::Tensor(const torch::Tensor&)>& function,
                                const torch::Tensor& x) {
  const torch::NoGradGuard no_grad;
  const auto traced = torch::jit::tracer::trace(
      {torch::zeros_like(x)},
      [&](torch::jit::Stack inputs) { return torch::jit::Stack{function(inputs[0].toTensor())}; },
      [](const torch::autograd::Variable&) { return std::string(); });
  torch::jit::CompilationUnit unit;
  auto* compiled = unit.create_function(c10::QualifiedName("forward"), traced.first->graph);
  return (*compiled)({x}).toTensor();
}

/// Compares forward and backward of fake_quantize, and the codes, with the plain loop: for every layout, with
/// gradients on and off, with one and two threads, and traced. Returns the first difference, or "".
inline std::string fake_quantize_differs(const torch::Tensor& x, const AffineParams& params,
                                         const FakeQuantizeOptions& options = {}) {
  auto dy = torch::arange(1, x.numel() + 1, torch::kDouble)
                .remainder(16)
                .sub(5)
                .to(x.scalar_type())
                .reshape(x.sizes());
  const auto expected = x.scalar_type() == torch::kDouble
                            ? fake_quantize_reference<double>(x, dy, params, options)
                            : fake_quantize_reference<float>(x, dy, params, options);
  const int threads = at::get_num_threads();
  std::string difference;
  const auto compare = [&](const std::string& what, const torch::Tensor& actual,
                           const torch::Tensor& reference) {
    const auto text = mismatch(actual, reference);
    if (difference.empty() && !text.empty()) difference = what + ": " + text;
  };
  for (const auto& [layout, view] : layouts_of(x)) {
    const auto before = view.clone();
    for (const int count : {1, 2}) {
      at::set_num_threads(count);
      {
        const torch::NoGradGuard no_grad;
        const auto y = fake_quantize(view, params, options);
        compare(layout + ", without gradient", y, expected.y);
        if (view.is_non_overlapping_and_dense() && y.strides() != view.strides())
          difference = layout + ": other strides";
        if (!torch::isnan(x).any().item<bool>())
          compare(layout + ", codes", affine_codes(view, params, options), expected.codes);
      }
      const auto leaf = view.detach().clone(torch::MemoryFormat::Preserve).requires_grad_();
      const auto input = layout == "every second element"
                             ? torch::stack({leaf, leaf.detach()}, -1).select(-1, 0)
                             : leaf.view_as(leaf);
      const auto y = fake_quantize(input, params, options);
      compare(layout + ", with gradient", y, expected.y);
      compare(layout + ", gradient", torch::autograd::grad({y}, {leaf}, {dy})[0], expected.dx);
    }
    compare(layout + ", input afterwards", view, before);
    compare(layout + ", traced",
            run_traced([&](const torch::Tensor& v) { return fake_quantize(v, params, options); }, view),
            expected.y);
  }
  at::set_num_threads(threads);
  return difference;
}

}  // namespace qat::testing
