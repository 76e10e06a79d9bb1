#pragma once

#include <qat/autograd/fake_quantize.h>
#include <qat/autograd/learned_quantize.h>

#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "support/tensor_matchers.h"

namespace qat::testing {

// What the kernels for GPUs are tried with.

inline constexpr torch::ScalarType kTypes[] = {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16};
inline constexpr Rounding kRoundings[] = {Rounding::kHalfToEven, Rounding::kHalfAwayFromZero,
                                          Rounding::kHalfUp};
inline const std::vector<Activation> kActivations{{}, {0.0}, {0.0, 1.0}, {0.1}, {1.0, 0.7}, {-0.5}};

/// A shape and its channel axis: long rows of a channel, short ones, single elements; a scalar; the shape of
/// a weight.
struct Layout {
  std::vector<std::int64_t> shape;
  std::optional<std::int64_t> axis;
};
inline const std::vector<Layout> kLayouts{{{}, {}},          {{1023}, {}},   {{3, 5, 67}, 1},
                                          {{30, 5, 3}, 1},   {{401, 3}, -1}, {{2, 300}, 1},
                                          {{6, 3, 3, 3}, 0}, {{2, 4099}, 0}, {{2, 3, 41, 41}, 1}};

/// Multiples of an eighth, which decide ties and lie on ends, and others; NaN, infinities, zeros, extremes.
inline torch::Tensor awkward(const std::vector<std::int64_t>& shape, torch::ScalarType type) {
  const auto steps = torch::randint(-24, 24, shape, torch::kDouble) * 0.125;
  auto x = torch::where(torch::rand(shape) < 0.5, steps, torch::randn(shape, torch::kDouble) * 1.5);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto special = torch::tensor(
      {std::nan(""), infinity, -infinity, 0.0, -0.0, 1e30, -1e30, 1e-42, -1e-42}, torch::kDouble);
  if (x.numel() >= 20) x.view({-1}).slice(0, 5, 14).copy_(special);
  return x.to(type);
}

inline torch::Tensor gradient_for(const torch::Tensor& x) {
  return torch::arange(1, x.numel() + 1, torch::kDouble)
      .remainder(16)
      .sub(5)
      .mul(0.3)
      .reshape(x.sizes())
      .to(x.scalar_type());
}

inline std::int64_t channels_of(const Layout& layout) {
  if (!layout.axis) return 1;
  const auto dim = static_cast<std::int64_t>(layout.shape.size());
  return layout.shape[static_cast<std::size_t>((*layout.axis + dim) % dim)];
}

/// Numbers of the channels as a parameter has them.
inline torch::Tensor of_channels(const torch::Tensor& values, const Layout& layout) {
  return layout.axis ? values.contiguous() : values[0].contiguous();
}

inline torch::Tensor scales(const Layout& layout) {
  const auto index = torch::arange(channels_of(layout), torch::kFloat);
  return of_channels(
      torch::where(index.remainder(2) == 0, torch::tensor(0.25F), 0.07 * (index.remainder(5) + 1)), layout);
}

inline AffineParams affine(const Layout& layout) {
  const auto zero_points = torch::arange(channels_of(layout), torch::kInt).remainder(4);
  return {.scale = scales(layout),
          .zero_point = of_channels(zero_points, layout),
          .range = {3, Signedness::kUnsigned},
          .axis = layout.axis};
}

inline UniformGrid uniform(const Layout& layout) {
  const auto scale = scales(layout);
  const auto index = torch::arange(channels_of(layout), torch::kInt);
  return {.scale = scale,
          .lower = scale * -8,
          .upper = scale * 7.25,
          .zero_point = of_channels(index.remainder(3) - 1, layout),
          .low = of_channels(torch::full_like(index, -8), layout),
          .high = of_channels(7 - index.remainder(2), layout),
          .axis = layout.axis};
}

inline PowerOfTwoGrid powers(const Layout& layout, bool is_signed, bool with_zero) {
  const auto exponents = torch::arange(channels_of(layout)).remainder(3);
  return {.xmin = of_channels(torch::exp2(-2.0 - exponents).to(torch::kFloat), layout),
          .xmax = of_channels(torch::exp2(1.0 - exponents).to(torch::kFloat), layout),
          .is_signed = is_signed,
          .with_zero = with_zero,
          .axis = layout.axis};
}

/// As mismatch; also zeros must have the same sign.
inline std::string bits_mismatch(const torch::Tensor& actual, const torch::Tensor& expected) {
  const auto text = mismatch(actual, expected);
  if (!text.empty()) return text;
  const auto signs = [](const torch::Tensor& tensor) {
    const auto numbers = tensor.detach().to(torch::kCPU, torch::kDouble);
    return torch::signbit(torch::where(torch::isnan(numbers), torch::zeros_like(numbers), numbers));
  };
  return torch::equal(signs(actual), signs(expected)) ? "" : "zeros have other signs";
}

}  // namespace qat::testing
