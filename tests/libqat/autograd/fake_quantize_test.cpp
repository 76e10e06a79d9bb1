#include "libqat/autograd/fake_quantize_check.h"
#include <qat/autograd/fake_quantize.h>

#include <cstdlib>
#include <limits>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/tensor_matchers.h"

namespace {

using qat::AffineParams;
using qat::FakeQuantizeOptions;
using qat::IntegerRange;
using qat::Rounding;
using qat::Signedness;
using qat::StraightThrough;
using qat::testing::error_lacks;
using qat::testing::fake_quantize_differs;
using qat::testing::mismatch;
using torch::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr torch::ScalarType kTypes[] = {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16};
const IntegerRange kInt8;
const IntegerRange kUint8(8, Signedness::kUnsigned);

Tensor values(std::vector<double> numbers, torch::ScalarType type = torch::kFloat) {
  return torch::tensor(numbers, torch::kDouble).to(type);
}

AffineParams per_tensor(double scale, std::int64_t zero_point = 0, IntegerRange range = kInt8) {
  return {torch::tensor(scale, torch::kFloat), torch::tensor(zero_point, torch::kInt), range, {}};
}

AffineParams per_channel(std::vector<double> scales, std::vector<std::int64_t> zero_points, std::int64_t axis,
                         IntegerRange range = kInt8) {
  return {torch::tensor(scales, torch::kFloat), torch::tensor(zero_points, torch::kInt), range, axis};
}

/// The gradient of x where that of y is 1.
Tensor mask(const Tensor& x, const AffineParams& params, const FakeQuantizeOptions& options = {}) {
  const auto leaf = x.detach().clone().requires_grad_();
  return torch::autograd::grad({qat::fake_quantize(leaf, params, options).sum()}, {leaf})[0];
}

}  // namespace

TEST_CASE("fake_quantize agrees with a plain loop for every type and rounding and estimator and activation") {
  torch::manual_seed(11);
  // Multiples of half a step decide ties, the random part does not.
  const auto steps = torch::randint(-300, 300, {3, 4, 2, 5}, torch::kDouble) * 0.125;
  const auto x =
      torch::where(torch::rand({3, 4, 2, 5}) < 0.5, steps, torch::randn({3, 4, 2, 5}, torch::kDouble) * 9.0);
  const auto special = torch::tensor({kNan, kInfinity, -kInfinity, 0.0, -0.0}, torch::kDouble);
  x.select(0, 1).select(0, 2).select(0, 1).copy_(special);
  const auto tensor = per_tensor(0.25, 3);
  const auto channel = per_channel({0.25, 0.1, 0.5, 0.07}, {0, 5, -3, 127}, 1);
  for (const auto type : kTypes) {
    for (const auto rounding : {Rounding::kHalfToEven, Rounding::kHalfAwayFromZero, Rounding::kHalfUp}) {
      for (const auto straight_through : {StraightThrough::kClipped, StraightThrough::kUnclipped}) {
        for (const auto activation : {qat::Activation{}, {0.0}, {0.0, 6.0}, {0.1}, {1.0, 2.0}}) {
          const FakeQuantizeOptions options{rounding, straight_through, activation};
          CAPTURE(type, qat::to_string(rounding), qat::to_string(straight_through), activation.negative_slope,
                  activation.upper);
          CHECK(fake_quantize_differs(x.to(type), tensor, options) == "");
          CHECK(fake_quantize_differs(x.to(type), channel, options) == "");
        }
      }
    }
  }
}

TEST_CASE("fake_quantize maps every channel layout") {
  torch::manual_seed(12);
  const std::vector<std::vector<std::int64_t>> shapes{{7},       {300, 3},  {64, 3, 2, 2},
                                                      {5, 6, 7}, {2, 1, 4}, {2, 300, 2, 1}};
  for (const auto& shape : shapes) {
    const auto x = torch::randn(shape) * 5.0;
    for (std::int64_t axis = -x.dim(); axis < x.dim(); ++axis) {
      const std::int64_t channels = x.size(axis);
      const AffineParams params{torch::rand({channels}) + 0.05,
                                torch::randint(-8, 8, {channels}, torch::kInt), kInt8, axis};
      CAPTURE(shape, axis);
      CHECK(fake_quantize_differs(x, params) == "");
      CHECK(fake_quantize_differs(x.to(torch::kHalf), params) == "");
    }
  }
}

TEST_CASE("fake_quantize gives equal bits for any number of threads") {
  torch::manual_seed(13);
  const auto x = torch::randn({300001}).requires_grad_();
  const auto params = per_tensor(0.013, 4);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto y = qat::fake_quantize(x, params);
  const auto dx = torch::autograd::grad({y}, {x}, {y.detach()})[0];
  for (const int count : {2, 3}) {
    at::set_num_threads(count);
    const auto again = qat::fake_quantize(x, params);
    CHECK(torch::equal(again, y));
    CHECK(torch::equal(torch::autograd::grad({again}, {x}, {y.detach()})[0], dx));
  }
  at::set_num_threads(threads);
}

TEST_CASE("golden linear_qdq: codes and values and gradients of nnabla") {
  int compared = 0;
  const auto file = qat::testing::golden_file("linear_qdq.json");
  for (const auto& example : file.at("cases")) {
    if (example.at("kind") != "plain") continue;
    CAPTURE(example.at("id").get<std::string>());
    const auto shape = example.at("shape").get<std::vector<std::int64_t>>();
    const auto x = qat::testing::golden_tensor(example.at("x"), shape);
    auto scale = qat::testing::golden_tensor(example.at("scale"));
    auto zero_point = qat::testing::golden_tensor(example.at("zero_point"));
    // Scales may vary along several axes: those become one, and so do the elements of each of them.
    auto input = x;
    std::optional<std::int64_t> axis;
    if (scale.numel() > 1) {
      std::int64_t varying = 0;
      for (std::int64_t d = 0; d < scale.dim(); ++d)
        varying += scale.size(d) > 1 ? 1 : 0;
      if (varying == 1) {
        for (std::int64_t d = 0; d < scale.dim(); ++d) {
          if (scale.size(d) > 1) axis = d;
        }
      } else {
        axis = 0;
        input = x.reshape({scale.numel(), -1});
      }
    }
    const bool is_signed = example.at("dtype") == "int8";
    const bool is_narrow = example.at("narrow_range").get<bool>();
    const IntegerRange range(8, is_signed ? Signedness::kSigned : Signedness::kUnsigned,
                             is_narrow ? qat::RangeWidth::kNarrow : qat::RangeWidth::kFull);
    const AffineParams params{axis ? scale.flatten() : scale.reshape({}),
                              (axis ? zero_point.flatten() : zero_point.reshape({})).to(torch::kInt), range,
                              axis};
    FakeQuantizeOptions options;
    options.straight_through = StraightThrough::kUnclipped;
    options.rounding =
        example.at("round_mode") == "HALF_TO_EVEN" ? Rounding::kHalfToEven : Rounding::kHalfAwayFromZero;

    const auto expected_codes = qat::testing::golden_tensor(example.at("codes"), shape);
    const auto leaf = input.clone().requires_grad_();
    const auto y = qat::fake_quantize(leaf, params, options);
    CHECK(mismatch(y.reshape(shape), qat::testing::golden_tensor(example.at("dequantized"), shape)) == "");
    if (torch::isnan(x).any().item<bool>()) {
      CHECK(torch::equal(torch::isnan(expected_codes), torch::isnan(x)));
      CHECK(error_lacks([&] { qat::affine_codes(input, params, options); }, {"NaN"}) == "");
    } else {
      const auto codes = qat::affine_codes(input, params, options);
      CHECK(mismatch(codes.reshape(shape).to(torch::kFloat), expected_codes) == "");
      CHECK(mismatch(qat::affine_dequantize(codes, params), y.detach()) == "");
    }
    const auto g = qat::testing::golden_tensor(example.at("g"), shape).reshape(input.sizes());
    const auto dx = torch::autograd::grad({y}, {leaf}, {g})[0];
    // nnabla multiplies by the scale and divides by it again, which costs it a rounding.
    CHECK(mismatch(dx.reshape(shape), qat::testing::golden_tensor(example.at("dx_both"), shape), {2e-7}) ==
          "");
    CHECK(fake_quantize_differs(input, params, options) == "");
    ++compared;
  }
  CHECK(compared > 0);
  if (std::getenv("QAT_GOLDEN_DIR") == nullptr) CHECK(compared == 72);  // the file of this repository
}

TEST_CASE("golden V26: both roundings and the gradient of one") {
  const auto x = values({-0.25, -0.75, -1.25, 0.25, 0.75, 1.25, 1.75, 100, -100});
  FakeQuantizeOptions even{Rounding::kHalfToEven, StraightThrough::kUnclipped, {}};
  FakeQuantizeOptions away{Rounding::kHalfAwayFromZero, StraightThrough::kUnclipped, {}};
  CHECK(mismatch(qat::affine_codes(x, per_tensor(0.5), even),
                 values({0, -2, -2, 0, 2, 2, 4, 127, -128}, torch::kInt)) == "");
  CHECK(mismatch(qat::affine_codes(x, per_tensor(0.5), away),
                 values({-1, -2, -3, 1, 2, 3, 4, 127, -128}, torch::kInt)) == "");
  CHECK(mismatch(mask(x, per_tensor(0.5), even), torch::ones({9})) == "");
  CHECK(mismatch(mask(x, per_tensor(0.5), away), torch::ones({9})) == "");
}

TEST_CASE("golden V27: unsigned codes with a zero point") {
  const auto x = values({-10, -1, 0, 1, 200});
  const auto params = per_tensor(0.5, 4, kUint8);
  CHECK(mismatch(qat::affine_codes(x, params), values({0, 2, 4, 6, 255}, torch::kInt)) == "");
  CHECK(mismatch(qat::fake_quantize(x, params), values({-2, -1, 0, 1, 125.5})) == "");
}

TEST_CASE("case 01: infinities saturate and NaN stays NaN") {
  for (const auto type : kTypes) {
    const auto x = values({3.1, kInfinity, -kInfinity, 40}, type);
    const auto params = per_tensor(0.25);
    CHECK(mismatch(qat::fake_quantize(x, params), values({3.0, 31.75, -32.0, 31.75}, type)) == "");
    CHECK(mismatch(mask(x, params), values({1, 0, 0, 0}, type)) == "");
    CHECK(fake_quantize_differs(x, params) == "");
    CHECK(mismatch(qat::fake_quantize(values({kNan}, type), params), values({kNan}, type)) == "");
    CHECK(mismatch(mask(values({kNan}, type), params), values({0}, type)) == "");
    CHECK(error_lacks([&] { qat::affine_codes(values({1, kNan}, type), params); }, {"NaN"}) == "");
  }
}

TEST_CASE("case 02: huge values give the same answer at every place of an array") {
  const auto params = per_tensor(1e-4, 1, kUint8);
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    const auto high = qat::fake_quantize(torch::full({11}, 1e20, type), params);
    const auto low = qat::fake_quantize(torch::full({11}, -1e20, type), params);
    CHECK(mismatch(high, torch::full({11}, 0.0254, type), {type == torch::kBFloat16 ? 4e-3 : 1e-6}) == "");
    CHECK(mismatch(low, torch::full({11}, -0.0001, type), {type == torch::kBFloat16 ? 4e-3 : 1e-6}) == "");
    CHECK((high == high[0]).all().item<bool>());
    CHECK((low == low[0]).all().item<bool>());
    CHECK(fake_quantize_differs(torch::full({11}, 1e20, type), params) == "");
  }
}

TEST_CASE("case 03: ties with an odd zero point are decided before it is added") {
  for (const auto type : kTypes) {
    const auto x = values({1, 3, -1, 5}, type);
    CHECK(mismatch(qat::fake_quantize(x, per_tensor(2, 1, kUint8)), values({0, 4, 0, 4}, type)) == "");
    CHECK(fake_quantize_differs(x, per_tensor(2, 1, kUint8)) == "");
  }
}

TEST_CASE("case 04: ties go to the even code") {
  for (const auto type : kTypes) {
    const auto x = values({0.125, 0.375, 0.625, -0.125, -0.375}, type);
    CHECK(mismatch(qat::fake_quantize(x, per_tensor(0.25)), values({0, 0.5, 0.5, 0, -0.5}, type)) == "");
    CHECK(fake_quantize_differs(x, per_tensor(0.25)) == "");
  }
}

TEST_CASE("case 21: a strided view is read in logical order") {
  const auto base = torch::arange(8, torch::kFloat).reshape({2, 4});
  const auto view = base.slice(1, 0, 4, 2);
  const auto expected = values({0, 2.25, 3.75, 6.0}).reshape({2, 2});
  CHECK(mismatch(qat::fake_quantize(view, per_tensor(0.75)), expected) == "");
  CHECK(mismatch(qat::fake_quantize(view.t(), per_tensor(0.75)), expected.t()) == "");
  CHECK(mismatch(base, torch::arange(8, torch::kFloat).reshape({2, 4})) == "");
  CHECK(fake_quantize_differs(view, per_tensor(0.75)) == "");
  CHECK(fake_quantize_differs(view, per_channel({0.75, 0.5}, {0, 1}, 1)) == "");
}

TEST_CASE("case 22: scales follow the channel in channels-last memory") {
  const auto x =
      values({1.4, 2.6, 1.44, 2.66}).reshape({1, 2, 1, 2}).contiguous(torch::MemoryFormat::ChannelsLast);
  const auto params = per_channel({1.0, 0.1}, {0, 0}, 1);
  const auto y = qat::fake_quantize(x, params);
  CHECK(mismatch(y, values({1, 3, 1.4, 2.7}).reshape({1, 2, 1, 2}), {1e-6}) == "");
  CHECK(y.is_contiguous(torch::MemoryFormat::ChannelsLast));
  CHECK(torch::equal(y, qat::fake_quantize(x.contiguous(), params)));
}

TEST_CASE("case 26: a negative axis counts from the end and a missing one is an error") {
  const auto x = torch::full({3, 3, 2}, 0.256);
  const auto y = qat::fake_quantize(x, per_channel({1, 0.1, 0.01}, {0, 0, 0}, -2));
  CHECK(mismatch(y.select(1, 0), torch::zeros({3, 2})) == "");
  CHECK(mismatch(y.select(1, 1), torch::full({3, 2}, 0.3), {1e-6}) == "");
  CHECK(mismatch(y.select(1, 2), torch::full({3, 2}, 0.26), {1e-6}) == "");
  for (const std::int64_t axis : {3, -4}) {
    const auto params = per_channel({1, 0.1, 0.01}, {0, 0, 0}, axis);
    CHECK(error_lacks([&] { qat::fake_quantize(x, params); },
                      {"axis " + std::to_string(axis), "[3, 3, 2]"}) == "");
    CHECK(error_lacks([&] { qat::affine_codes(x, params); }, {"axis " + std::to_string(axis)}) == "");
  }
}

TEST_CASE("case 30: scales and zero points of another length or type") {
  const auto x = torch::ones({4, 2});
  CHECK(error_lacks(
            [&] {
              qat::fake_quantize(x, per_channel({1, 2, 3}, {0, 0, 0}, 0));
            },
            {"3 scales", "4 channels"}) == "");
  CHECK(error_lacks(
            [&] {
              qat::fake_quantize(x, per_channel({1, 2, 3, 4}, {0, 0, 0}, 0));
            },
            {"3 zero points", "4 channels"}) == "");
  CHECK(error_lacks([&] { qat::fake_quantize(x, per_channel({1, 2}, {0, 0}, 0)); }, {"2 scales"}) == "");
  auto doubles = per_channel({1, 2, 3, 4}, {0, 0, 0, 0}, 0);
  doubles.scale = doubles.scale.to(torch::kDouble);
  doubles.zero_point = doubles.zero_point.to(torch::kLong);
  CHECK(mismatch(qat::fake_quantize(x, doubles),
                 qat::fake_quantize(x, per_channel({1, 2, 3, 4}, {0, 0, 0, 0}, 0))) == "");
}

TEST_CASE("a scale that is not positive and finite is refused with its value") {
  const auto x = torch::ones({2, 2});
  for (const double bad : {0.0, -0.1, kNan, kInfinity}) {
    CHECK(error_lacks(
              [&] {
                qat::fake_quantize(x, per_channel({1, bad}, {0, 0}, 0));
              },
              {"channel 1", "positive"}) == "");
  }
  CHECK(error_lacks([&] { qat::fake_quantize(x, per_tensor(1.0, -1, kUint8)); },
                    {"zero point", "-1", "uint8"}) == "");
  CHECK(error_lacks([&] { qat::fake_quantize(x, AffineParams{}); }, {"not set"}) == "");
  CHECK(error_lacks([&] { qat::fake_quantize(Tensor(), per_tensor(1.0)); }, {"undefined"}) == "");
}

TEST_CASE("case 83: the outermost codes pass the gradient and everything beyond them does not") {
  const IntegerRange int4(4, Signedness::kSigned);
  for (const auto type : kTypes) {
    const auto x = values({6.6, -7.7, 7.6, -8.7, 7.3}, type);
    CHECK(mismatch(mask(x, per_tensor(1, 0, int4)), values({1, 1, 0, 0, 1}, type)) == "");
    CHECK(fake_quantize_differs(x, per_tensor(1, 0, int4)) == "");
  }
}

TEST_CASE("case 95: a range of seven bits saturates at its own end") {
  const auto params =
      qat::affine_params_from_range({torch::tensor(-1.0F), torch::tensor(1.0F)},
                                    IntegerRange(7, Signedness::kUnsigned), qat::Symmetry::kAffine);
  CHECK(qat::fake_quantize(values({2.5}), params).item<float>() == Approx(0.9921260).epsilon(1e-6));
}

TEST_CASE("case 96: signed one-bit ranges are refused at set-up") {
  CHECK(error_lacks([] { IntegerRange(1, Signedness::kSigned); }, {"1"}) == "");
}

TEST_CASE("case 98 and case 99: the lower limit is that of the range") {
  const IntegerRange narrow(8, Signedness::kSigned, qat::RangeWidth::kNarrow);
  CHECK(mismatch(qat::fake_quantize(values({-1.28}), per_tensor(0.01, 0, narrow)), values({-1.27}), {1e-6}) ==
        "");
  const IntegerRange int4(4, Signedness::kSigned);
  CHECK(mismatch(qat::fake_quantize(values({10, -12}), per_tensor(1, 0, int4)), values({7, -8})) == "");
}

TEST_CASE("case 100: wide ranges stay on the grid") {
  const IntegerRange int12(12, Signedness::kSigned);
  const auto x = values({0.3, -0.7, 0.99});
  const auto y = qat::fake_quantize(x, per_tensor(0x1p-11, 0, int12));
  CHECK(mismatch(y, values({0.2998046875, -0.7001953125, 0.990234375})) == "");
  const auto steps = y * 2048.0;
  CHECK(torch::equal(steps, torch::round(steps)));
}

TEST_CASE("case 102: empty tensors and scalars") {
  const auto leaf = torch::empty({0, 3}).requires_grad_();
  for (const auto& params : {per_tensor(0.1), per_channel({1, 2, 3}, {0, 0, 0}, 1)}) {
    const auto y = qat::fake_quantize(leaf, params);
    CHECK(y.sizes() == leaf.sizes());
    CHECK(torch::autograd::grad({y.sum()}, {leaf})[0].sizes() == leaf.sizes());
    CHECK(qat::affine_codes(leaf, params).sizes() == leaf.sizes());
  }
  CHECK(fake_quantize_differs(torch::tensor(0.33), per_tensor(0.1)) == "");
  CHECK(error_lacks([] { qat::fake_quantize(torch::tensor(0.33), per_channel({1}, {0}, 0)); }, {"axis 0"}) ==
        "");
}

TEST_CASE("case 104: integer and boolean tensors pass unchanged") {
  const auto indices = torch::tensor({0, 5, 300}, torch::kLong);
  const auto flags = torch::tensor({true, false});
  CHECK(mismatch(qat::fake_quantize(indices, per_tensor(1)), indices) == "");
  CHECK(mismatch(qat::fake_quantize(flags, per_tensor(1)), flags) == "");
}

TEST_CASE("case 105: complex tensors are refused") {
  const auto x = torch::ones({1}, torch::kComplexFloat);
  CHECK(error_lacks([&] { qat::fake_quantize(x, per_tensor(1)); }, {"omplex"}) == "");
  CHECK(error_lacks([&] { qat::affine_codes(x, per_tensor(1)); }, {"omplex"}) == "");
}

TEST_CASE("gradients of gradients see a constant factor") {
  const auto x = values({0.3, 100, -0.2}).requires_grad_();
  const auto g = values({1, 2, 3}).requires_grad_();
  const auto y = qat::fake_quantize(x, per_tensor(0.1), {.activation = {0.5}});
  const auto dx = torch::autograd::grad({y}, {x}, {g}, true, true)[0];
  CHECK(mismatch(dx, values({1, 0, 1.5})) == "");
  const auto second = torch::autograd::grad({dx.square().sum()}, {g})[0];
  CHECK(mismatch(second, values({2, 0, 1.5})) == "");
}

TEST_CASE("the graph keeps nothing but x") {
  const auto x = torch::ones({8}).requires_grad_();
  auto scale = torch::tensor(0.1F);
  const auto y = qat::fake_quantize(x * 1.0, {scale, torch::tensor(0, torch::kInt), kInt8, {}});
  scale.fill_(100.0F);  // the next step's scale: the gradient still belongs to the one that was used
  CHECK(mismatch(torch::autograd::grad({y.sum()}, {x})[0], torch::ones({8})) == "");
  const torch::NoGradGuard no_grad;
  CHECK_FALSE(qat::fake_quantize(x, per_tensor(0.1)).requires_grad());
}

TEST_CASE("a gradient with other strides than x is put in order") {
  const auto x = torch::randn({3, 4}).t().requires_grad_();
  const auto y = qat::fake_quantize(x, per_tensor(0.1));
  const auto g = torch::arange(12, torch::kFloat).reshape({4, 3});
  CHECK(mismatch(torch::autograd::grad({y}, {x}, {g}, true)[0], g) == "");
  CHECK(mismatch(torch::autograd::grad({y}, {x}, {torch::ones({1}).expand({4, 3})})[0],
                 torch::ones({4, 3})) == "");
}
