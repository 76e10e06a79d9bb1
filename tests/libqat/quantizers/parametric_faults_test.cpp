// nnabla's faults in the parametric quantizers, by their names in its bug register: gone by default.
#include "libqat/quantizers/quantizer_run.h"
#include <qat/quantizers/parametric_quantizer.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace {

using qat::Learnable;
using qat::ParametricKind;
using qat::ParametricQuantizer;
using qat::testing::error_lacks;
using qat::testing::mismatch;
using qat::testing::number;
using qat::testing::run;
using qat::testing::set;
using qat::testing::values;
using Kind = ParametricKind;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kLn2 = std::log(2.0);

ParametricQuantizer powers(double xmin, double xmax, bool is_signed = true, bool with_zero = true) {
  ParametricQuantizer quantizer(
      {.kind = Kind::kPow2XminXmax, .is_signed = is_signed, .with_zero = with_zero});
  set(quantizer, "xmin", xmin);
  set(quantizer, "xmax", xmax);
  return quantizer;
}

}  // namespace

TEST_CASE("bug B1 is gone: a parameter on or beyond its bound moves inward again") {
  // Raising n from 2 raises the range N d: elements beyond it ask for that with a negative gradient.
  for (const double n : {2.0, 1.0, -30.0}) {
    ParametricQuantizer quantizer({.kind = Kind::kFpDB, .d = Learnable{0.25, 0x1p-8, 1}});
    set(quantizer, "n", n);
    CHECK(run(quantizer, values({9}), values({-1})).gradient("n") == Approx(-0.25 * 2 * kLn2));
    CHECK(run(quantizer, values({9}), values({1})).gradient("n") == 0.0);
  }
  for (const double xmax : {10.0, 77.0}) {
    ParametricQuantizer quantizer;
    set(quantizer, "xmax", xmax);
    CHECK(run(quantizer, values({100}), values({3})).gradient("xmax") == 3.0);
    CHECK(run(quantizer, values({100}), values({-3})).gradient("xmax") == 0.0);
  }
  ParametricQuantizer dead({.compatible = true});
  set(dead, "xmax", 10);
  CHECK(run(dead, values({100}), values({3})).gradient("xmax") == 0.0);
}

TEST_CASE("V11 and bug B1: the lower bound of n in fp_b_xmax") {
  ParametricQuantizer quantizer({.kind = Kind::kFpBXmax});
  set(quantizer, "n", 2);
  const auto x = values({0.3, 2});
  CHECK(run(quantizer, x, values({-1, -1})).gradient("n") == Approx(-0.3 * 2 * kLn2));
  const auto outward = run(quantizer, x, values({1, 1}));
  CHECK(outward.gradient("n") == 0.0);
  CHECK(outward.gradient("xmax") == Approx(0.7));
}

TEST_CASE("bug B2 is gone: no code of fp_b_xmax needs more bits than its width") {
  for (int bits = 2; bits <= 12; ++bits) {
    ParametricQuantizer quantizer({.kind = Kind::kFpBXmax});
    set(quantizer, "n", bits);
    for (const double xmax : {0.6, 0.7, 1.0, 1.3, 1.5, 2.0, 2.9}) {
      set(quantizer, "xmax", xmax);
      CAPTURE(bits, xmax);
      const auto codes = quantizer.codes(values({-100, 100}));
      const auto most = static_cast<std::int64_t>((1 << (bits - 1)) - 1);
      CHECK(codes[1].item<std::int64_t>() <= most);
      CHECK(codes[0].item<std::int64_t>() == -codes[1].item<std::int64_t>());
      CHECK(quantizer.bits() <= bits);
    }
  }
}

TEST_CASE("bug B3 is gone: no value is above xmax") {
  const auto x = torch::linspace(-3, 3, 601);
  for (const auto kind : {Kind::kFpBXmax, Kind::kFpDXmax}) {
    for (const double xmax : {0.85, 0.9, 1.0, 1.3, 1.49}) {
      ParametricQuantizer quantizer(
          {.kind = kind, .n = Learnable{3, 2, 16}, .d = Learnable{0.25, 0x1p-8, 1}});
      set(quantizer, "xmax", xmax);
      CAPTURE(qat::to_string(kind), xmax);
      CHECK(quantizer.forward(x).abs().max().item<double>() <= xmax);
    }
  }
}

TEST_CASE("bug B4 is gone: a step that grew above the range leaves values and a gradient") {
  ParametricQuantizer quantizer;
  set(quantizer, "d", 8);
  set(quantizer, "xmax", 0.9);
  CHECK(mismatch(quantizer.forward(values({-5, 0.2, 0.3})), values({-0.5, 0, 0.5})) == "");
  quantizer.hold_in_bounds();
  CHECK(number(quantizer, "d") <= 0.9F);
  CHECK(mismatch(quantizer.forward(values({-5, 0.2, 0.3})), values({-0.5, 0, 0.5})) == "");
}

TEST_CASE("bugs B1 and B4 are gone: a step that is held at the range can become smaller again") {
  // Rounding errors of -0.2 and 0.4 steps of 0.5, with gradients that ask for a smaller step.
  const auto x = values({0.1, 0.3});
  const auto dy = values({-1, 1});
  for (const double d : {0.8, 0.9, 8.0}) {
    ParametricQuantizer quantizer;
    set(quantizer, "xmax", 0.9);
    set(quantizer, "d", d);
    CAPTURE(d);
    CHECK(run(quantizer, x, dy).gradient("d") > 0.0);
    CHECK(run(quantizer, x, -dy).gradient("d") == 0.0);
    quantizer.hold_in_bounds();
    CHECK(run(quantizer, x, dy).gradient("d") > 0.0);
  }
  auto powers_of_two = powers(8, 1);
  CHECK(run(powers_of_two, values({0.9}), values({1})).gradient("xmin") > 0.0);
}

TEST_CASE("bug B5 is gone: a signed width of one bit is refused, or held at two bits where it is learned") {
  for (const auto kind : {Kind::kFpNM, Kind::kFpBXmax, Kind::kFpDB}) {
    CHECK(error_lacks(
              [&] {
                ParametricQuantizer({.kind = kind, .n = Learnable{1, 1, 8}});
              },
              {qat::to_string(kind), ": n ", " 1", "expected"}) == "");
    ParametricQuantizer quantizer({.kind = kind, .n = Learnable{4, 1, 8}});
    set(quantizer, "n", 1);
    const auto x = values({-9, 0, 0.01, 9});
    const auto result = run(quantizer, x, torch::ones_like(x));
    CHECK(mismatch(quantizer.codes(x), torch::tensor({-1, 0, 0, 1}, torch::kInt)) == "");
    CHECK(quantizer.bits() == 2);
    CHECK(result.dx.isfinite().all().item<bool>());
    for (const auto& [name, gradient] : result.gradients)
      CHECK(gradient.isfinite().all().item<bool>());
  }
}

TEST_CASE(
    "bugs B6 and B7 are gone: zeros have a gradient of 0 and infinities saturate in every power-of-two "
    "kind") {
  for (const auto kind : {Kind::kPow2NM, Kind::kPow2BXmax, Kind::kPow2BXmin, Kind::kPow2XminXmax}) {
    for (const bool with_zero : {true, false}) {
      ParametricQuantizer quantizer({.kind = kind, .with_zero = with_zero, .n = Learnable{4, 2, 8}});
      const double xmax = quantizer.power_of_two_grid().xmax.item<double>();
      const auto result = run(quantizer, values({0, -0.0, kInfinity, -kInfinity, 3.4e38}), torch::ones({5}));
      CHECK(mismatch(result.y.slice(0, 2), values({xmax, -xmax, xmax})) == "");
      CHECK(mismatch(result.dx, torch::zeros({5})) == "");
    }
  }
}

TEST_CASE(
    "bug B8 stays as specified: without zero, 0 and unsigned negative numbers become the smallest "
    "magnitude") {
  auto quantizer = powers(0.25, 1, false, false);
  CHECK(mismatch(quantizer.forward(values({-7, -0.0, 0, 0.1})), torch::full({4}, 0.25)) == "");
  auto both = powers(0.25, 1, true, false);
  CHECK(mismatch(both.forward(values({-7, -0.0, 0, -0.1})), values({-1, 0.25, 0.25, -0.25})) == "");
}

TEST_CASE("bugs B9 and B10 are gone: xmin never exceeds xmax and masks do not add") {
  ParametricQuantizer narrow({.kind = Kind::kPow2BXmax, .n = Learnable{2, 1, 8}});
  set(narrow, "n", 1);
  const auto x = torch::linspace(-2, 2, 401);
  CHECK(narrow.forward(x).abs().max().item<double>() == 1.0);
  CHECK(error_lacks(
            [] {
              ParametricQuantizer({.kind = Kind::kPow2BXmax, .n = Learnable{1, 1, 8}});
            },
            {"pow2_b_xmax: n ", " 1", "expected"}) == "");
  auto crossed = powers(16, 0.5);
  CHECK(crossed.forward(x * 20).abs().max().item<double>() == 0.5);
  crossed.hold_in_bounds();
  CHECK(number(crossed, "xmin") == 0.5);
}

TEST_CASE("bug B11 is gone: the magnitudes of wide power-of-two quantizers stay normal numbers") {
  ParametricQuantizer quantizer({.kind = Kind::kPow2NM});
  for (const double n : {8.0, 12.0, 16.0}) {
    for (const double m : {-8.0, 0.0, 8.0}) {
      set(quantizer, "n", n);
      set(quantizer, "m", m);
      const auto x = values({0, 1e-30, 1e-38, 0.001, -1e-30, 1000});
      const auto result = run(quantizer, x, torch::ones_like(x));
      CHECK(std::isnormal(quantizer.power_of_two_grid().xmin.item<float>()));
      CHECK(mismatch(result.y[0], torch::tensor(0.0F)) == "");
      CHECK(mismatch(result.y[2], torch::tensor(0.0F)) == "");
      CHECK(result.dx.isfinite().all().item<bool>());
      CHECK(std::isfinite(result.gradient("n")));
    }
  }
}
