#pragma once

#include "autograd/learned_operators.h"
#include "libqat/autograd/fake_quantize_check.h"
#include <qat/autograd/learned_quantize.h>

#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "support/tensor_matchers.h"

namespace qat::testing {

/// What a plain loop gives: values, gradients of x, and the sums for the tensors of the grid in float64, with
/// the sum of the magnitudes of what was added.
struct LearnedReference {
  torch::Tensor y;
  torch::Tensor dx;
  std::array<std::vector<double>, 3> sums;
  std::array<std::vector<double>, 3> sizes;
};

/// One element of such a loop, in the type of the arithmetic.
template <class T>
struct LearnedElement {
  T y;
  T dx = 0;
  std::array<T, 3> parts{};
};

template <class T>
T rounded(T v, Rounding rounding) {
  if (rounding == Rounding::kHalfToEven) return std::nearbyint(v);
  if (rounding == Rounding::kHalfAwayFromZero || std::isinf(v)) return std::round(v);
  return static_cast<T>(std::floor(static_cast<long double>(v) + 0.5L));
}

/// The numbers of a grid's tensor.
template <class T>
std::vector<T> numbers_of(const torch::Tensor& tensor) {
  const auto wide = tensor.detach().to(torch::kDouble).contiguous();
  const double* const from = wide.const_data_ptr<double>();
  std::vector<T> numbers;
  for (std::int64_t i = 0; i < wide.numel(); ++i)
    numbers.push_back(static_cast<T>(from[i]));
  return numbers;
}

template <class T>
class ReferenceRule {
 public:
  ReferenceRule(const UniformGrid& grid, Rounding rounding)
      : rounding_(rounding), tables_{numbers_of<T>(grid.scale), numbers_of<T>(grid.zero_point),
                                     numbers_of<T>(grid.low),   numbers_of<T>(grid.high),
                                     numbers_of<T>(grid.lower), numbers_of<T>(grid.upper)} {}
  ReferenceRule(const PowerOfTwoGrid& grid, Rounding)
      : is_uniform_(false),
        is_signed_(grid.is_signed),
        with_zero_(grid.with_zero),
        tables_{numbers_of<T>(grid.xmin), numbers_of<T>(grid.xmax)} {}

  /// f: the element after the activation.
  LearnedElement<T> operator()(T f, T dy, std::int64_t channel) const {
    if (std::isnan(f)) return {f};
    const auto c = static_cast<std::size_t>(channel);
    return is_uniform_ ? uniform(f, dy, c) : power_of_two(f, dy, c);
  }

 private:
  LearnedElement<T> uniform(T f, T dy, std::size_t c) const {
    const T s = tables_[0][c];
    const T z = tables_[1][c];
    const T lower = tables_[4][c];
    const T upper = tables_[5][c];
    const auto clamped = [&](T code) { return std::min(std::max(code, tables_[2][c]), tables_[3][c]); };
    LearnedElement<T> element{(clamped(rounded(f / s, rounding_) + z) - z) * s};
    const T position = std::min(std::max(f, lower), upper) / s;
    element.parts[0] = dy * (clamped(rounded(position, rounding_) + z) - z - position);
    if (f >= upper) {
      element.parts[2] = dy;
    } else if (f <= lower) {
      element.parts[1] = dy;
    } else {
      element.dx = dy;
    }
    return element;
  }

  LearnedElement<T> power_of_two(T f, T dy, std::size_t c) const {
    const T xmin = tables_[0][c];
    const T xmax = tables_[1][c];
    const T sign = is_signed_ && f < 0 ? T(-1) : T(1);
    const T magnitude = is_signed_ ? std::fabs(f) : std::max(f, T(0));
    if (magnitude >= xmax) return {sign * xmax, 0, {0, sign * dy, 0}};
    if (magnitude >= xmin) {
      const T power = static_cast<T>(std::exp2(std::round(std::log2(static_cast<double>(magnitude)))));
      return {sign * power, dy * (power / magnitude)};
    }
    if (with_zero_ && static_cast<double>(magnitude) < static_cast<double>(xmin) * std::sqrt(0.5)) return {0};
    return {sign * xmin, 0, {sign * dy, 0, 0}};
  }

  bool is_uniform_ = true;
  bool is_signed_ = true;
  bool with_zero_ = true;
  Rounding rounding_ = Rounding::kHalfToEven;
  std::vector<std::vector<T>> tables_;
};

template <class T, class Grid>
LearnedReference learned_reference(const torch::Tensor& x, const torch::Tensor& dy, const Grid& grid,
                                   Rounding rounding, const Activation& activation) {
  const auto type = sizeof(T) == 8 ? torch::kDouble : torch::kFloat;
  const auto wide = x.detach().to(type).contiguous();
  const auto gradients = dy.detach().to(type).contiguous();
  auto y = torch::empty_like(wide);
  auto dx = torch::empty_like(wide);
  std::int64_t inner = 1;
  std::int64_t channels = 1;
  if (grid.axis) {
    const std::int64_t axis = *grid.axis < 0 ? *grid.axis + x.dim() : *grid.axis;
    channels = x.size(axis);
    for (std::int64_t d = axis + 1; d < x.dim(); ++d)
      inner *= x.size(d);
  }
  LearnedReference result;
  for (int k = 0; k < 3; ++k) {
    result.sums[k].resize(static_cast<std::size_t>(channels));
    result.sizes[k].resize(static_cast<std::size_t>(channels));
  }
  const ReferenceRule<T> rule(grid, rounding);
  const auto slope = static_cast<T>(activation.negative_slope);
  const auto upper = static_cast<T>(activation.upper);
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    const std::int64_t c = i / inner % channels;
    const T v = wide.template const_data_ptr<T>()[i];
    T f = v > 0 ? v : (slope == 0 ? (std::isnan(v) ? v : T(0)) : slope * v);
    if (f > upper) f = upper;
    T factor = v > 0 ? T(1) : slope;
    if (std::isfinite(upper) && v >= upper) factor = 0;
    const auto element = rule(f, gradients.template const_data_ptr<T>()[i], c);
    y.template mutable_data_ptr<T>()[i] = element.y;
    dx.template mutable_data_ptr<T>()[i] = factor == 0 ? T(0) : element.dx * factor;
    for (std::size_t k = 0; k < 3; ++k) {
      result.sums[k][static_cast<std::size_t>(c)] += static_cast<double>(element.parts[k]);
      result.sizes[k][static_cast<std::size_t>(c)] += std::fabs(static_cast<double>(element.parts[k]));
    }
  }
  result.y = y.to(x.scalar_type());
  result.dx = dx.to(x.scalar_type());
  return result;
}

/// The tensors of a grid that may learn, in the order of their gradients.
inline std::vector<torch::Tensor*> learned_tensors(UniformGrid& grid) {
  return {&grid.scale, &grid.lower, &grid.upper};
}
inline std::vector<torch::Tensor*> learned_tensors(PowerOfTwoGrid& grid) {
  return {&grid.xmin, &grid.xmax};
}

/// The same grid with leaves that learn.
template <class Grid>
Grid learning(Grid grid) {
  for (auto* tensor : learned_tensors(grid))
    *tensor = tensor->detach().clone().requires_grad_();
  return grid;
}

inline torch::Tensor quantize(const torch::Tensor& x, const UniformGrid& grid, Rounding rounding,
                              const Activation& activation) {
  return uniform_quantize(x, grid, rounding, activation);
}
inline torch::Tensor quantize(const torch::Tensor& x, const PowerOfTwoGrid& grid, Rounding,
                              const Activation& activation) {
  return power_of_two_quantize(x, grid, activation);
}

/// Whether float32 sums agree up to their own rounding. "" or a sentence.
inline std::string sums_differ(const torch::Tensor& actual, const std::vector<double>& expected,
                               const std::vector<double>& sizes) {
  if (actual.scalar_type() != torch::kFloat || actual.numel() != static_cast<std::int64_t>(expected.size()))
    return "another type or length";
  const auto numbers = numbers_of<double>(actual);
  for (std::size_t c = 0; c < expected.size(); ++c) {
    const double v = numbers[c];
    const double error = std::fabs(v - expected[c]);
    if (!(error <= 1.2e-7 * std::fabs(expected[c]) + 1e-12 * sizes[c] + 1e-40))
      return "channel " + std::to_string(c) + " is " + std::to_string(v) + " instead of " +
             std::to_string(expected[c]);
  }
  return "";
}

/// Compares values and gradients with the plain loop and with the composed operators: for every layout, with
/// gradients on and off, and traced once. Returns the first difference, or "".
template <class Grid>
std::string learned_differs(const torch::Tensor& x, const Grid& fixed,
                            Rounding rounding = Rounding::kHalfToEven, const Activation& activation = {}) {
  const auto dy = torch::arange(1, x.numel() + 1, torch::kDouble)
                      .remainder(16)
                      .sub(5)
                      .to(x.scalar_type())
                      .reshape(x.sizes());
  const auto expected = x.scalar_type() == torch::kDouble
                            ? learned_reference<double>(x, dy, fixed, rounding, activation)
                            : learned_reference<float>(x, dy, fixed, rounding, activation);
  std::string difference;
  const auto note = [&](const std::string& what, const std::string& text) {
    if (difference.empty() && !text.empty()) difference = what + ": " + text;
  };
  for (const auto& [layout, view] : layouts_of(x)) {
    const auto before = view.clone();
    {
      const torch::NoGradGuard no_grad;
      const auto y = quantize(view, fixed, rounding, activation);
      note(layout + ", without gradient", mismatch(y, expected.y));
      if (view.is_non_overlapping_and_dense() && y.strides() != view.strides())
        difference = layout + ": other strides";
    }
    auto grid = learning(fixed);
    const auto leaf = view.detach().clone(torch::MemoryFormat::Preserve).requires_grad_();
    const auto input = layout == "every second element"
                           ? torch::stack({leaf, leaf.detach()}, -1).select(-1, 0)
                           : leaf.view_as(leaf);
    const auto y = quantize(input, grid, rounding, activation);
    note(layout + ", with gradient", mismatch(y, expected.y));
    std::vector<torch::Tensor> inputs{leaf};
    for (const auto* tensor : learned_tensors(grid))
      inputs.push_back(*tensor);
    const auto gradients = torch::autograd::grad({y}, inputs, {dy});
    note(layout + ", gradient", mismatch(gradients[0], expected.dx));

    const torch::NoGradGuard no_grad;
    note(layout + ", composed",
         mismatch(detail::learned_values(view, fixed, rounding, activation), expected.y));
    const auto composed = detail::learned_gradients(view, dy, fixed, rounding, activation);
    note(layout + ", composed gradient", mismatch(composed.dx, expected.dx));
    const std::array<torch::Tensor, 3> composed_sums{composed.first, composed.second, composed.third};
    for (std::size_t k = 0; k + 1 < inputs.size(); ++k) {
      const auto what = layout + ", sum " + std::to_string(k);
      if (gradients[k + 1].sizes() != inputs[k + 1].sizes()) difference = what + ": another shape";
      note(what, sums_differ(gradients[k + 1], expected.sums[k], expected.sizes[k]));
      note(what + " composed", sums_differ(composed_sums[k], expected.sums[k], expected.sizes[k]));
    }
    note(layout + ", input afterwards", mismatch(view, before));
    if (layout != "contiguous") continue;  // each trace is compiled, which takes long
    note(layout + ", traced",
         mismatch(run_traced([&](const torch::Tensor& v) { return quantize(v, fixed, rounding, activation); },
                             view),
                  expected.y));
  }
  return difference;
}

}  // namespace qat::testing
