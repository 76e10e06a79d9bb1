#include "libqat/autograd/learned_quantize_check.h"
#include <qat/autograd/learned_quantize.h>
#include <qat/quantizers/learned_step_quantizer.h>
#include <qat/quantizers/parametric_quantizer.h>

#include <limits>
#include <optional>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace {

using qat::Activation;
using qat::PowerOfTwoGrid;
using qat::Rounding;
using qat::UniformGrid;
using qat::testing::error_lacks;
using qat::testing::learned_differs;
using qat::testing::learning;
using qat::testing::mismatch;
using qat::testing::run_traced;
using torch::Tensor;

using Axis = std::optional<std::int64_t>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr torch::ScalarType kTypes[] = {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16};
constexpr Rounding kRoundings[] = {Rounding::kHalfToEven, Rounding::kHalfAwayFromZero, Rounding::kHalfUp};
const std::vector<Activation> kActivations{{}, {0.0}, {0.0, 6.0}, {0.1}, {1.0, 2.0}};

Tensor values(std::vector<double> numbers, torch::ScalarType type = torch::kFloat) {
  return torch::tensor(numbers, torch::kDouble).to(type);
}

/// Scales of a quarter and others in turn, codes -8 to 7, or with a zero point.
UniformGrid uniform(Axis axis = {}, std::int64_t channels = 1, std::int64_t zero_point = 0) {
  const auto index = torch::arange(channels, torch::kFloat);
  const auto scale = torch::where(index.remainder(2) == 0, torch::tensor(0.25F), 0.07 * (index + 1));
  UniformGrid grid{.scale = scale,
                   .lower = scale * static_cast<double>(-8 - zero_point),
                   .upper = scale * static_cast<double>(7 - zero_point),
                   .zero_point = torch::full({channels}, zero_point, torch::kInt),
                   .low = torch::full({channels}, -8, torch::kInt),
                   .high = torch::full({channels}, 7, torch::kInt),
                   .axis = axis};
  if (!axis) {
    for (auto* tensor : {&grid.scale, &grid.lower, &grid.upper, &grid.zero_point, &grid.low, &grid.high})
      *tensor = (*tensor)[0];
  }
  return grid;
}

PowerOfTwoGrid powers(Axis axis = {}, std::int64_t channels = 1, bool is_signed = true,
                      bool with_zero = true) {
  const auto exponents = torch::arange(channels).remainder(3);
  PowerOfTwoGrid grid{.xmin = torch::exp2(-2.0 - exponents).to(torch::kFloat),
                      .xmax = torch::exp2(1.0 - exponents).to(torch::kFloat),
                      .is_signed = is_signed,
                      .with_zero = with_zero,
                      .axis = axis};
  if (!axis) {
    grid.xmin = grid.xmin[0];
    grid.xmax = grid.xmax[0];
  }
  return grid;
}

/// Multiples of an eighth, which decide ties and lie on ends, and other numbers; with NaN, infinities and
/// zeros.
Tensor awkward(std::vector<std::int64_t> shape) {
  const auto steps = torch::randint(-24, 24, shape, torch::kDouble) * 0.125;
  const auto x =
      torch::where(torch::rand(shape) < 0.5, steps, torch::randn(shape, torch::kDouble) * 1.5).contiguous();
  const auto special = values({kNan, kInfinity, -kInfinity, 0.0, -0.0, 1e30, 1e-42, -1e-42}, torch::kDouble);
  if (x.numel() >= 16) x.view({-1}).slice(0, 5, 13).copy_(special);
  return x;
}

}  // namespace

TEST_CASE("the fused passes agree with a plain loop for all types and roundings and activations") {
  torch::manual_seed(51);
  const auto x = awkward({3, 4, 2, 5});
  for (const auto type : kTypes) {
    for (const auto& activation : kActivations) {
      for (const auto rounding : kRoundings) {
        CAPTURE(type, qat::to_string(rounding), activation.negative_slope, activation.upper);
        CHECK(learned_differs(x.to(type), uniform(), rounding, activation) == "");
        CHECK(learned_differs(x.to(type), uniform({}, 1, -8), rounding, activation) == "");
        CHECK(learned_differs(x.to(type), uniform(1, 4, 3), rounding, activation) == "");
      }
      for (const bool is_signed : {true, false}) {
        for (const bool with_zero : {true, false}) {
          CAPTURE(type, activation.negative_slope, activation.upper, is_signed, with_zero);
          CHECK(learned_differs(x.to(type), powers({}, 1, is_signed, with_zero), {}, activation) == "");
          CHECK(learned_differs(x.to(type), powers(1, 4, is_signed, with_zero), {}, activation) == "");
        }
      }
    }
  }
}

TEST_CASE("the fused passes map every channel layout, short rows too") {
  torch::manual_seed(52);
  const std::vector<std::vector<std::int64_t>> shapes{
      {7}, {300, 3}, {64, 3, 2, 2}, {16, 40, 1, 1}, {5, 6, 7}, {2, 300, 2, 1}, {2, 3, 40, 41}};
  for (const auto& shape : shapes) {
    const auto x = awkward(shape).to(torch::kFloat);
    for (std::int64_t axis = -x.dim(); axis < x.dim(); ++axis) {
      CAPTURE(shape, axis);
      CHECK(learned_differs(x, uniform(axis, x.size(axis))) == "");
      CHECK(learned_differs(x.to(torch::kHalf), uniform(axis, x.size(axis)), {}, {0.1}) == "");
      CHECK(learned_differs(x, powers(axis, x.size(axis))) == "");
    }
    CHECK(learned_differs(x, uniform()) == "");
    CHECK(learned_differs(x, powers()) == "");
  }
}

TEST_CASE("scalars and empty tensors pass the fused passes") {
  CHECK(learned_differs(torch::tensor(0.33F), uniform()) == "");
  CHECK(learned_differs(torch::tensor(-9.0F), powers()) == "");
  const auto leaf = torch::empty({0, 3}).requires_grad_();
  for (const auto& y : {qat::uniform_quantize(leaf, learning(uniform(1, 3))),
                        qat::power_of_two_quantize(leaf, learning(powers(1, 3)))}) {
    CHECK(y.sizes() == leaf.sizes());
    CHECK(torch::autograd::grad({y.sum()}, {leaf})[0].sizes() == leaf.sizes());
  }
  CHECK(qat::uniform_codes(leaf, uniform()).sizes() == leaf.sizes());
  CHECK(qat::power_of_two_codes(leaf, powers()).scalar_type() == torch::kInt);
}

TEST_CASE("the three roundings differ at ties alone") {
  const auto x = values({-0.625, -0.375, -0.125, 0.125, 0.375, 0.625, 0.3});
  CHECK(mismatch(qat::uniform_codes(x, uniform()), torch::tensor({-2, -2, 0, 0, 2, 2, 1}, torch::kInt)) ==
        "");
  CHECK(mismatch(qat::uniform_codes(x, uniform(), Rounding::kHalfAwayFromZero),
                 torch::tensor({-3, -2, -1, 1, 2, 3, 1}, torch::kInt)) == "");
  CHECK(mismatch(qat::uniform_codes(x, uniform(), Rounding::kHalfUp),
                 torch::tensor({-2, -1, 0, 1, 2, 3, 1}, torch::kInt)) == "");
}

TEST_CASE("gradients have the same bits for any number of threads") {
  torch::manual_seed(53);
  const auto wide = torch::randn({31, 24, 20, 21});
  const auto dy = torch::randn(wide.sizes());
  const int threads = at::get_num_threads();
  const auto results = [&](const auto& fixed, const Tensor& x) {
    auto grid = learning(fixed);
    const auto leaf = x.detach().requires_grad_();
    std::vector<Tensor> inputs{leaf};
    for (const auto* tensor : qat::testing::learned_tensors(grid))
      inputs.push_back(*tensor);
    const auto y = qat::testing::quantize(leaf, grid, {}, {0.1});
    auto all = torch::autograd::grad({y}, inputs, {dy.to(x.scalar_type())});
    all.push_back(y.detach());
    return all;
  };
  const auto compare = [&](const auto& grid, const Tensor& x) {
    at::set_num_threads(1);
    const auto expected = results(grid, x);
    for (const int count : {2, 3, 4}) {
      at::set_num_threads(count);
      const auto actual = results(grid, x);
      for (std::size_t i = 0; i < actual.size(); ++i) {
        CAPTURE(count, i);
        CHECK(torch::equal(actual[i], expected[i]));
      }
    }
    at::set_num_threads(threads);
  };
  for (const auto type : {torch::kFloat, torch::kHalf}) {
    const auto x = wide.to(type);
    compare(uniform(), x);
    compare(powers(), x);
    for (const std::int64_t axis : {0, 1, -1}) {
      compare(uniform(axis, x.size(axis)), x);
      compare(powers(axis, x.size(axis)), x);
      compare(uniform(axis, x.size(axis)), x.contiguous(torch::MemoryFormat::ChannelsLast));
    }
  }
}

TEST_CASE("a NaN in the gradient reaches only what its element contributes to") {
  const auto gradients = [](const Tensor& x, const Tensor& dy, auto grid, const Activation& activation) {
    grid = learning(grid);
    const auto leaf = x.clone().requires_grad_();
    std::vector<Tensor> inputs{leaf};
    for (const auto* tensor : qat::testing::learned_tensors(grid))
      inputs.push_back(*tensor);
    return torch::autograd::grad({qat::testing::quantize(leaf, grid, {}, activation)}, inputs, {dy});
  };
  // Inside, below, above, NaN: only the first has a gradient of x.
  const auto x = values({0.3, -9, 9, kNan});
  for (std::size_t bad = 0; bad < 4; ++bad) {
    auto dy = torch::ones({4});
    dy[static_cast<std::int64_t>(bad)] = kNan;
    const auto result = gradients(x, dy, uniform(), {});
    CAPTURE(bad);
    CHECK(mismatch(result[0], values({bad == 0 ? kNan : 1.0, 0, 0, 0})) == "");
    CHECK(result[1].isnan().item<bool>() == (bad != 3));  // all numbers give their rounding error
    CHECK(mismatch(result[2], torch::tensor(bad == 1 ? std::nanf("") : 1.0F)) == "");
    CHECK(mismatch(result[3], torch::tensor(bad == 2 ? std::nanf("") : 1.0F)) == "");
  }
  // Inside, pruned, raised, above, NaN.
  const auto magnitudes = values({0.7, 0.1, -0.2, 9, kNan});
  for (std::int64_t bad = 0; bad < 5; ++bad) {
    auto dy = torch::ones({5});
    dy[bad] = kNan;
    const auto result = gradients(magnitudes, dy, powers(), {});
    CAPTURE(bad);
    CHECK(mismatch(result[0], values({bad == 0 ? kNan : 0.5 / 0.7, 0, 0, 0, 0}), {1e-6}) == "");
    CHECK(mismatch(result[1], torch::tensor(bad == 2 ? std::nanf("") : -1.0F)) == "");
    CHECK(mismatch(result[2], torch::tensor(bad == 3 ? std::nanf("") : 1.0F)) == "");
  }
  // A ReLU blocks the gradient of a negative number.
  const auto blocked = gradients(values({-1, 0.3}), values({kNan, 1}), uniform(), {0.0});
  CHECK(mismatch(blocked[0], values({0, 1})) == "");
}

TEST_CASE("a traced quantizer computes what the eager one does") {
  torch::manual_seed(54);
  const auto x = torch::randn({3, 4, 5}) * 2.0;
  const auto compare = [&](qat::Quantizer& quantizer) {
    quantizer.eval();
    for (const auto& activation : kActivations) {
      CAPTURE(quantizer.config(), activation.negative_slope, activation.upper);
      const auto traced = run_traced([&](const Tensor& v) { return quantizer.forward(v, activation); }, x);
      CHECK(mismatch(traced, quantizer.forward(x, activation).detach()) == "");
    }
  };
  for (const Axis axis : {Axis{}, Axis{1}, Axis{-1}}) {
    const std::int64_t channels = axis ? x.size(*axis) : 0;
    for (int i = 0; i < 8; ++i) {
      qat::ParametricQuantizer quantizer({.kind = static_cast<qat::ParametricKind>(i),
                                          .n = qat::Learnable{4, 2, 7},
                                          .axis = axis,
                                          .channels = channels});
      compare(quantizer);
    }
    for (int i = 0; i < 4; ++i) {
      qat::LearnedStepQuantizer quantizer({.kind = static_cast<qat::LearnedStepKind>(i),
                                           .range = qat::IntegerRange(4, qat::Signedness::kUnsigned),
                                           .axis = axis,
                                           .channels = channels});
      compare(quantizer);
    }
  }
}

TEST_CASE("codes of both grids") {
  const auto x = values({-9, -0.3, 0, 0.2, 0.7, 1.5, kInfinity});
  CHECK(mismatch(qat::uniform_codes(x, uniform({}, 1, 3)),
                 torch::tensor({-8, 2, 3, 4, 6, 7, 7}, torch::kInt)) == "");
  CHECK(mismatch(qat::power_of_two_codes(x, powers()), torch::tensor({-8, -1, 0, 1, 2, 8, 8}, torch::kInt)) ==
        "");
  CHECK(error_lacks([] { qat::uniform_codes(values({1, kNan}), uniform()); }, {"NaN"}) == "");
  CHECK(error_lacks([] { qat::power_of_two_codes(values({1, kNan}), powers()); }, {"NaN"}) == "");
  auto wide = powers();
  wide.xmin = torch::tensor(0x1p-15F);
  CHECK(error_lacks([&] { qat::power_of_two_codes(x, wide); }, {"would not fit 16 bits"}) == "");
  CHECK_FALSE(qat::uniform_codes(x, learning(uniform())).requires_grad());
}

TEST_CASE("a gradient of the gradient is refused by both grids") {
  const auto x = values({0.3, 0.7}).requires_grad_();
  for (const auto& y :
       {qat::uniform_quantize(x, learning(uniform())), qat::power_of_two_quantize(x, learning(powers()))}) {
    CHECK(error_lacks([&] { torch::autograd::grad({y.square().sum()}, {x}, {}, true, true); },
                      {"create_graph"}) == "");
  }
}

TEST_CASE("grids of another length than the tensor has channels are refused by name") {
  const auto x = torch::ones({4, 2});
  CHECK(error_lacks([&] { qat::uniform_quantize(x, uniform(0, 3)); },
                    {"3", "scale", "4 channels", "axis 0"}) == "");
  CHECK(error_lacks([&] { qat::uniform_codes(x, uniform(0, 3)); }, {"3", "scale", "4 channels"}) == "");
  CHECK(error_lacks([&] { qat::uniform_quantize(x, uniform(2, 4)); }, {"axis 2", "[4, 2]"}) == "");
  CHECK(error_lacks([&] { qat::power_of_two_quantize(x, powers(1, 3)); }, {"3", "xmin", "2 channels"}) == "");
  CHECK(error_lacks([&] { qat::power_of_two_codes(x, powers(1, 3)); }, {"3", "xmin", "2 channels"}) == "");
  const std::vector<std::pair<std::string, Tensor UniformGrid::*>> members{
      {"scale", &UniformGrid::scale}, {"lower", &UniformGrid::lower},
      {"upper", &UniformGrid::upper}, {"zero_point", &UniformGrid::zero_point},
      {"low", &UniformGrid::low},     {"high", &UniformGrid::high}};
  for (const auto& [name, member] : members) {
    for (const auto& bad : {torch::ones({3}, torch::kInt), Tensor()}) {
      auto grid = uniform(0, 4);
      grid.*member = bad;
      CAPTURE(name, bad.defined());
      CHECK(error_lacks([&] { qat::uniform_quantize(x, grid); }, {name, "4 channels"}) == "");
      CHECK(error_lacks([&] { qat::uniform_codes(x, grid); }, {name, "4 channels"}) == "");
    }
  }
  CHECK(error_lacks([] { qat::uniform_quantize(Tensor(), uniform()); }, {"undefined"}) == "");
  CHECK(error_lacks([] { qat::uniform_codes(Tensor(), uniform()); }, {"undefined"}) == "");
  CHECK(error_lacks([] { qat::power_of_two_quantize(Tensor(), powers()); }, {"undefined"}) == "");
  CHECK(error_lacks([] { qat::power_of_two_codes(Tensor(), powers()); }, {"undefined"}) == "");
}

TEST_CASE("scales and bounds that make no sense are refused with their values") {
  const auto x = torch::ones({2, 2});
  for (const double bad : {0.0, -0.1, kNan, kInfinity}) {
    auto grid = uniform(0, 2);
    grid.scale = values({1, bad});
    CHECK(error_lacks([&] { qat::uniform_quantize(x, grid); }, {"channel 1", "positive"}) == "");
    CHECK(error_lacks([&] { qat::uniform_codes(x, grid); }, {"channel 1", "positive"}) == "");
    auto logarithmic = powers(0, 2);
    logarithmic.xmin = values({0.25, bad});
    CHECK(error_lacks([&] { qat::power_of_two_quantize(x, logarithmic); }, {"channel 1", "xmin"}) == "");
  }
  auto reversed = uniform(0, 2);
  reversed.lower = values({-1, 3});
  reversed.upper = values({1, 2});
  CHECK(error_lacks([&] { qat::uniform_quantize(x, reversed); }, {"channel 1", "3", "2", "lower <= upper"}) ==
        "");
  auto crossed = powers(0, 2);
  crossed.xmin = values({0.25, 64});
  CHECK(error_lacks([&] { qat::power_of_two_quantize(x, crossed); }, {"channel 1", "64", "xmin <= xmax"}) ==
        "");
}

TEST_CASE("the gradient belongs to the grid that was used, and to what learns") {
  const auto x = values({0.3, 9}).requires_grad_();
  auto grid = uniform();
  const auto scale = grid.scale.clone().requires_grad_();
  grid.scale = scale;
  const auto y = qat::uniform_quantize(x * 1.0, grid);
  {
    const torch::NoGradGuard no_grad;
    scale.fill_(100.0F);
    CHECK_FALSE(qat::uniform_quantize(x, grid).requires_grad());
  }
  const auto gradients = torch::autograd::grad({y.sum()}, {x, scale});
  CHECK(mismatch(gradients[0], values({1, 0})) == "");
  CHECK(mismatch(gradients[1], torch::tensor(-0.2F), {1e-6}) == "");
  const auto constant = qat::uniform_quantize(x.detach(), uniform());
  CHECK_FALSE(constant.requires_grad());
  const auto transposed = torch::randn({3, 4}).t().requires_grad_();
  const auto wide = qat::power_of_two_quantize(transposed, powers());
  const auto expected = torch::autograd::grad({wide}, {transposed}, {torch::ones({4, 3})}, true)[0];
  CHECK(mismatch(torch::autograd::grad({wide}, {transposed}, {torch::ones({1}).expand({4, 3})})[0],
                 expected) == "");
}
