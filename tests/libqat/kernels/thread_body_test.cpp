#include "libqat/autograd/learned_quantize_check.h"
#include "libqat/kernels/gpu_examples.h"
#include "libqat/kernels/simulated_gpu.h"
#include <qat/autograd/fake_quantize.h>
#include <qat/autograd/learned_quantize.h>

#include <cmath>
#include <string>

#include "support/catch.h"

namespace {

using namespace qat::kernels;
using qat::Activation;
using qat::Rounding;
using namespace qat::testing;
using torch::Tensor;

AffineTables tables(const qat::AffineParams& params, Rounding rounding) {
  return {.scale = params.scale.const_data_ptr<float>(),
          .zero_point = params.zero_point.const_data_ptr<std::int32_t>(),
          .qmin = static_cast<std::int32_t>(params.range.qmin()),
          .qmax = static_cast<std::int32_t>(params.range.qmax()),
          .rounding = rounding};
}

UniformTables tables(const qat::UniformGrid& grid, Rounding rounding) {
  return {.codes = {.scale = grid.scale.const_data_ptr<float>(),
                    .zero_point = grid.zero_point.const_data_ptr<std::int32_t>(),
                    .low = grid.low.const_data_ptr<std::int32_t>(),
                    .high = grid.high.const_data_ptr<std::int32_t>(),
                    .rounding = rounding},
          .lower = grid.lower.const_data_ptr<float>(),
          .upper = grid.upper.const_data_ptr<float>()};
}

PowerOfTwoTables tables(const qat::PowerOfTwoGrid& grid, Rounding) {
  return {grid.xmin.const_data_ptr<float>(), grid.xmax.const_data_ptr<float>(), grid.is_signed,
          grid.with_zero};
}

/// Runs `Pass<E>` for the type of x.
template <template <class> class Pass, class... Arguments>
bool simulate_values(const DevicePass& pass, const Arguments&... arguments) {
  bool has_nan = false;
  with_element(pass.element, [&](auto element) {
    using Done = Pass<decltype(element)>;
    const auto note = [&](const Done& done) {
      if constexpr (requires { done.has_nan; }) has_nan = has_nan || done.has_nan;
    };
    simulate<Done>(make_thread_plan(pass.view), note, pass, arguments...);
  });
  return has_nan;
}

/// Compares values, gradients and sums of a learned grid with the CPU's and with a plain loop. "" or a
/// sentence.
template <template <class> class GridCell, class Grid>
std::string gradient_differs(const Tensor& x, const Grid& fixed, Rounding rounding,
                             const Activation& activation) {
  const auto dy = gradient_for(x);
  const auto expected = x.scalar_type() == torch::kDouble
                            ? learned_reference<double>(x, dy, fixed, rounding, activation)
                            : learned_reference<float>(x, dy, fixed, rounding, activation);
  const auto leaf = x.clone().requires_grad_();
  const auto y = quantize(leaf, fixed, rounding, activation);
  const auto dx = torch::empty_like(x);
  auto pass = device_pass(x, fixed.axis, activation);
  pass.dy = dy.const_data_ptr();
  pass.out = dx.mutable_data_ptr();
  std::string difference;
  with_element(pass.element, [&](auto element) {
    const auto sums = simulate_gradient<decltype(element), GridCell>(pass, tables(fixed, rounding));
    for (std::size_t k = 0; k < sums.size(); ++k) {
      for (std::size_t c = 0; c < sums[k].size(); ++c) {
        if (!(std::fabs(sums[k][c] - expected.sums[k][c]) <= 1e-12 * expected.sizes[k][c]))
          difference = "sum " + std::to_string(k) + " of channel " + std::to_string(c);
      }
    }
  });
  const auto text = bits_mismatch(dx, torch::autograd::grad({y}, {leaf}, {dy})[0]);
  return text.empty() ? difference : "gradient: " + text;
}

}  // namespace

TEST_CASE("the threads of a GPU fake-quantize as the CPU does") {
  torch::manual_seed(5);
  for (const auto& layout : kLayouts) {
    const auto params = affine(layout);
    for (const auto type : kTypes) {
      const auto x = awkward(layout.shape, type);
      const auto dy = gradient_for(x);
      for (const auto& activation : kActivations) {
        for (const auto rounding : kRoundings) {
          CAPTURE(layout.shape, type, activation.negative_slope, activation.upper,
                  static_cast<int>(rounding));
          const auto at = tables(params, rounding);
          auto pass = device_pass(x, params.axis, activation);
          const auto y = torch::empty_like(x);
          pass.out = y.mutable_data_ptr();
          simulate_values<ForwardPass>(pass, at);
          CHECK(bits_mismatch(y, qat::fake_quantize(x, params,
                                                    {.rounding = rounding, .activation = activation})) == "");

          for (const bool clipped : {true, false}) {
            const auto leaf = x.clone().requires_grad_();
            const auto through = clipped ? qat::StraightThrough::kClipped : qat::StraightThrough::kUnclipped;
            const auto expected = torch::autograd::grad(
                {qat::fake_quantize(
                    leaf, params,
                    {.rounding = rounding, .straight_through = through, .activation = activation})},
                {leaf}, {dy});
            pass.dy = dy.const_data_ptr();
            simulate_values<BackwardPass>(pass, at, clipped);
            CHECK(bits_mismatch(y, expected[0]) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("the threads of a GPU find the codes that the CPU finds, and notice NaN") {
  torch::manual_seed(6);
  for (const auto& layout : kLayouts) {
    const auto grid = uniform(layout);
    for (const auto type : kTypes) {
      for (const auto rounding : kRoundings) {
        const auto x = awkward(layout.shape, type);
        const auto numbers = torch::where(torch::isnan(x), torch::zeros_like(x), x);
        const auto codes = torch::empty_like(x, torch::kInt);
        auto pass = device_pass(numbers, grid.axis, {});
        pass.out = codes.mutable_data_ptr();
        CAPTURE(layout.shape, type, static_cast<int>(rounding));
        CHECK(!simulate_values<CodesPass>(pass, tables(grid, rounding).codes));
        CHECK(bits_mismatch(codes, qat::uniform_codes(numbers, grid, rounding)) == "");
        pass.x = x.const_data_ptr();
        CHECK(simulate_values<CodesPass>(pass, tables(grid, rounding).codes) == (x.numel() >= 20));
      }
    }
  }
}

TEST_CASE("the threads of a GPU compute values and gradients of uniform grids as the CPU does") {
  torch::manual_seed(7);
  for (const auto& layout : kLayouts) {
    const auto grid = uniform(layout);
    for (const auto type : kTypes) {
      const auto x = awkward(layout.shape, type);
      for (const auto& activation : kActivations) {
        for (const auto rounding : kRoundings) {
          CAPTURE(layout.shape, type, activation.negative_slope, activation.upper,
                  static_cast<int>(rounding));
          const auto y = torch::empty_like(x);
          auto pass = device_pass(x, grid.axis, activation);
          pass.out = y.mutable_data_ptr();
          simulate_values<ForwardPass>(pass, tables(grid, rounding).codes);
          CHECK(bits_mismatch(y, qat::uniform_quantize(x, grid, rounding, activation)) == "");
          CHECK(gradient_differs<UniformGridCell>(x, grid, rounding, activation) == "");
        }
      }
    }
  }
}

TEST_CASE("the threads of a GPU compute values and gradients of power-of-two grids as the CPU does") {
  torch::manual_seed(8);
  for (const auto& layout : kLayouts) {
    for (const int kind : {0, 1, 2, 3}) {
      const auto grid = powers(layout, kind % 2 == 0, kind / 2 == 0);
      for (const auto type : kTypes) {
        const auto x = awkward(layout.shape, type);
        for (const auto& activation : kActivations) {
          CAPTURE(layout.shape, type, activation.negative_slope, activation.upper, kind);
          const auto y = torch::empty_like(x);
          auto pass = device_pass(x, grid.axis, activation);
          pass.out = y.mutable_data_ptr();
          simulate_values<PowerOfTwoPass>(pass, tables(grid, Rounding::kHalfToEven));
          CHECK(bits_mismatch(y, qat::power_of_two_quantize(x, grid, activation)) == "");
          CHECK(gradient_differs<PowerOfTwoGridCell>(x, grid, Rounding::kHalfToEven, activation) == "");
        }
      }
    }
  }
}
