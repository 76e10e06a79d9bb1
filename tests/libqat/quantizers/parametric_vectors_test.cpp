// The eight parametrisations against numbers that were worked out by hand or printed by nnabla.
#include "libqat/quantizers/quantizer_run.h"
#include <qat/quantizers/parametric_quantizer.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/tensor_matchers.h"

namespace {

using qat::Learnable;
using qat::ParametricKind;
using qat::ParametricOptions;
using qat::ParametricQuantizer;
using qat::testing::counting;
using qat::testing::mismatch;
using qat::testing::run;
using qat::testing::set;
using qat::testing::values;
using Kind = ParametricKind;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kLn2 = std::log(2.0);

/// What one set of parameters gives for a tensor whose gradient is 1, 2, 3, ...
struct Vector {
  std::string id;
  Kind kind;
  bool is_signed;
  bool with_zero;
  std::map<std::string, double> parameters;
  std::vector<double> x;
  std::vector<double> y;
  std::vector<double> dx;
  std::map<std::string, double> gradients;
};

ParametricOptions options_of(const Vector& vector) {
  ParametricOptions options{
      .kind = vector.kind, .is_signed = vector.is_signed, .with_zero = vector.with_zero};
  options.n =
      qat::is_power_of_two(vector.kind) ? Learnable{4, 1, 7} : Learnable{4, vector.is_signed ? 2.0 : 1.0, 16};
  return options;
}

const std::vector<Vector> kVectors{
    // N = 7, d = 1/8, xmax = 7/8.
    {"V6",
     Kind::kFpNM,
     true,
     true,
     {{"n", 4}, {"m", 0}},
     {-3, -0.3, 0, 0.125, 0.4, 2.5},
     {-0.875, -0.25, 0, 0.125, 0.375, 0.875},
     {0, 2, 3, 4, 5, 0},
     {{"n", 0.2 * 0.125 * 8 * kLn2 / 7}, {"m", (-0.2 + 5 * 7) * 0.125 * kLn2}}},
    // N = 7, d = 1/4, xmax = 7/4.
    {"V7",
     Kind::kFpNM,
     false,
     true,
     {{"n", 2.6}, {"m", 1}},
     {-1, 0.3, 0.6, 4},
     {0, 0.25, 0.5, 1.75},
     {0, 2, 3, 0},
     {{"n", 0.3168673}, {"m", 4.5747714}}},
    // N = 3, d = 1/4: clipped at N d = 3/4, not at 1, which would be the code 4 of a width of 3 bits.
    {"V8",
     Kind::kFpBXmax,
     true,
     true,
     {{"n", 3}, {"xmax", 1}},
     {-2, -0.3, 0.125, 0.6, 1},
     {-0.75, -0.25, 0.25, 0.5, 0.75},
     {0, 2, 3, 4, 0},
     {{"n", 4 * kLn2*(0.25 * 4 - (0.3 + 3 * 4) * 0.25 / 3)}, {"xmax", (0.3 + 3 * 4) * 0.25}}},
    // N = 7, d = 1/8: code 6 would be above xmax, so 5 is the highest.
    {"V9",
     Kind::kFpBXmax,
     true,
     true,
     {{"n", 4}, {"xmax", 0.7}},
     {-2, 0.33, 0.9},
     {-0.625, 0.375, 0.625},
     {0, 2, 0},
     {{"n", 0.48 * 0.125 * 8 * kLn2 / 7}, {"xmax", 2 - 0.48 * 0.125 / 0.7}}},
    // N = 3, d = 1/2.
    {"V10",
     Kind::kFpBXmax,
     false,
     true,
     {{"n", 2}, {"xmax", 1.5}},
     {-1, 0.2, 0.7, 3},
     {0, 0, 0.5, 1.5},
     {0, 2, 3, 0},
     {{"n", 0.9241962}, {"xmax", 3.3333333}}},
    {"V11 just above the lower bound of n",
     Kind::kFpBXmax,
     true,
     true,
     {{"n", 2.00001}, {"xmax", 1}},
     {0.3, 2},
     {0, 1},
     {1, 0},
     {{"n", 0.3 * 2 * kLn2}, {"xmax", 2 - 0.3}}},
    // Code 4 would be above xmax: 3 is the highest.
    {"V12",
     Kind::kFpDXmax,
     true,
     true,
     {{"d", 0.25}, {"xmax", 0.9}},
     {-1, -0.6, -0.125, 0.3, 0.375, 0.9, 1.5},
     {-0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 0.75},
     {0, 2, 3, 4, 5, 0, 0},
     {{"d", 0.6 + 0.8 - 1.5 - 0.8 + 2.5 - 3.6 - 4.2}, {"xmax", 12}}},
    {"V13",
     Kind::kFpDXmax,
     true,
     true,
     {{"d", 0.3}, {"xmax", 1}},
     {-0.7, 0.2, 0.55, 2},
     {-0.75, 0.25, 0.5, 1},
     {1, 2, 3, 0},
     {{"d", -0.3333333}, {"xmax", 4}}},
    {"V14",
     Kind::kFpDXmax,
     false,
     true,
     {{"d", 0.25}, {"xmax", 1}},
     {-0.4, 0, 0.1, 0.7, 1.2},
     {0, 0, 0, 0.75, 1},
     {0, 0, 3, 4, 0},
     {{"d", -0.4}, {"xmax", 5}}},
    {"V15",
     Kind::kFpDB,
     true,
     true,
     {{"n", 3}, {"d", 0.25}},
     {-2, -0.3, 0.4, 0.75, 1},
     {-0.75, -0.25, 0.5, 0.75, 0.75},
     {0, 2, 3, 0, 0},
     {{"n", 8 * kLn2}, {"d", 25.6}}},
    {"V16",
     Kind::kFpDB,
     false,
     true,
     {{"n", 2}, {"d", 0.2}},
     {-2, 0.3, 1},
     {0, 0.25, 0.75},
     {0, 2, 0},
     {{"n", 3 * kLn2}, {"d", 10.75}}},
    // K = 4, xmax = 2, xmin = 1/4.
    {"V18",
     Kind::kPow2NM,
     true,
     true,
     {{"n", 4}, {"m", 1}},
     {-3, -0.3, 0.1, 0.2, 0.7, 1.5, 2},
     {-2, -0.25, 0, 0.25, 0.5, 2, 2},
     {0, 2 * 0.25 / 0.3, 0, 0, 5 * 0.5 / 0.7, 8, 0},
     {{"n", -4 * kLn2* kLn2}, {"m", (6 * 2 + 4 * 0.25) * kLn2}}},
    // K = 4, xmax = 1, xmin = 1/8.
    {"V19",
     Kind::kPow2BXmax,
     true,
     false,
     {{"n", 3}, {"xmax", 1.2}},
     {-2, -0.3, 0.05, 0.7, 1},
     {-1, -0.25, 0.125, 0.5, 1},
     {0, 2 * 0.25 / 0.3, 0, 4 * 0.5 / 0.7, 0},
     {{"n", -3 * 0.125 * 4 * kLn2* kLn2}, {"xmax", (4 + 3 * 0.125) / 1.2}}},
    // K = 4, xmax = 2.
    {"V20",
     Kind::kPow2BXmin,
     false,
     true,
     {{"n", 3}, {"xmin", 0.25}},
     {-1, 0.1, 0.2, 0.3, 1.7, 5},
     {0, 0, 0.25, 0.25, 2, 2},
     {0, 0, 0, 4 * 0.25 / 0.3, 5 * 2 / 1.7, 0},
     {{"n", 6 * 2 * 4 * kLn2* kLn2}, {"xmin", 3 + 6 * 8}}},
    {"V21",
     Kind::kPow2XminXmax,
     true,
     true,
     {{"xmin", 0.06}, {"xmax", 1.1}},
     {-2, -0.3, -0.05, 0.04, 0.06, 0.72, 0.7},
     {-1, -0.25, -0.0625, 0, 0.0625, 1, 0.5},
     {0, 2 * 0.25 / 0.3, 0, 0, 0, 6 / 0.72, 5},
     {{"xmin", 2 * 0.0625 / 0.06}, {"xmax", -1 / 1.1}}},
    {"V22",
     Kind::kPow2XminXmax,
     true,
     false,
     {{"xmin", 0x1p-4}, {"xmax", 1}},
     {-2, -0.01, 0.3},
     {-1, -0.0625, 0.25},
     {0, 0, 2.5},
     {{"xmin", -2}, {"xmax", -1}}},
};

ParametricQuantizer powers(double xmin, double xmax, bool is_signed = true, bool with_zero = true) {
  ParametricQuantizer quantizer(
      {.kind = Kind::kPow2XminXmax, .is_signed = is_signed, .with_zero = with_zero});
  set(quantizer, "xmin", xmin);
  set(quantizer, "xmax", xmax);
  return quantizer;
}

}  // namespace

TEST_CASE("V6 to V22: values and gradients of every parametrisation") {
  for (const auto& vector : kVectors) {
    INFO(vector.id);
    ParametricQuantizer quantizer(options_of(vector));
    for (const auto& [name, value] : vector.parameters)
      set(quantizer, name, value);
    const auto x = values(vector.x);
    const auto result = run(quantizer, x, counting(x));
    CHECK(mismatch(result.y, values(vector.y)) == "");
    CHECK(mismatch(result.dx, values(vector.dx), {1e-6}) == "");
    CHECK(result.gradients.size() == vector.gradients.size());
    for (const auto& [name, expected] : vector.gradients) {
      INFO(name);
      CHECK(result.gradient(name) == Approx(expected).epsilon(1e-5).margin(1e-6));
    }
  }
}

TEST_CASE("V6 to V22: the values are codes times the scale") {
  for (const auto& vector : kVectors) {
    INFO(vector.id);
    ParametricQuantizer quantizer(options_of(vector));
    for (const auto& [name, value] : vector.parameters)
      set(quantizer, name, value);
    const auto codes = quantizer.codes(values(vector.x));
    const auto params = quantizer.affine_params({});
    CHECK(codes.scalar_type() == torch::kInt);
    CHECK(mismatch(codes * params.scale, values(vector.y)) == "");
    CHECK(codes.max().item<std::int64_t>() <= params.range.qmax());
    CHECK(codes.min().item<std::int64_t>() >= params.range.qmin());
  }
}

TEST_CASE("V17: a step above the range is held at the range") {
  ParametricQuantizer quantizer({.kind = Kind::kFpDXmax});
  set(quantizer, "d", 8);
  const auto x = values({0.3, 0.6, 2});
  const auto result = run(quantizer, x, torch::ones_like(x));
  CHECK(mismatch(result.y, values({0, 1, 1})) == "");
  CHECK(mismatch(result.dx, values({1, 1, 0})) == "");
  CHECK(result.gradient("xmax") == 1.0);
}

TEST_CASE("V23: zeros and tiny and infinite numbers of the power-of-two kinds") {
  const auto x = values({0, -0.0, -0.3, 1e-9, -5, kInfinity, -kInfinity, 3e38});
  const auto ones = torch::ones_like(x);
  auto plain = powers(0x1p-4, 1);
  const auto signed_zero = run(plain, x, ones);
  CHECK(mismatch(signed_zero.y, values({0, 0, -0.25, 0, -1, 1, -1, 1})) == "");
  CHECK(mismatch(signed_zero.dx, values({0, 0, 0.25 / 0.3, 0, 0, 0, 0, 0}), {1e-6}) == "");
  auto without = powers(0x1p-4, 1, true, false);
  const auto no_zero = run(without, x, ones);
  CHECK(mismatch(no_zero.y, values({0.0625, 0.0625, -0.25, 0.0625, -1, 1, -1, 1})) == "");
  CHECK(mismatch(no_zero.dx, values({0, 0, 0.25 / 0.3, 0, 0, 0, 0, 0}), {1e-6}) == "");
  CHECK(no_zero.gradient("xmin") == 3.0);
  CHECK(no_zero.gradient("xmax") == 0.0);
  auto positive = powers(0x1p-4, 1, false);
  CHECK(mismatch(run(positive, x, ones).y, values({0, 0, 0, 0, 0, 1, 0, 1})) == "");
  auto raised = powers(0x1p-4, 1, false, false);
  const auto unsigned_no_zero = run(raised, x, ones);
  CHECK(mismatch(unsigned_no_zero.y, values({0.0625, 0.0625, 0.0625, 0.0625, 0.0625, 1, 0.0625, 1})) == "");
  CHECK(mismatch(unsigned_no_zero.dx, torch::zeros({8})) == "");
}

TEST_CASE("V24: overlapping bounds and widths without a magnitude leave one magnitude") {
  auto overlapping = powers(4, 1);
  CHECK(mismatch(overlapping.forward(values({0.5, 1, 2, 3, 4, 5})), values({0, 1, 1, 1, 1, 1})) == "");
  CHECK(mismatch(overlapping.power_of_two_grid().xmin, torch::tensor(1.0F)) == "");
  ParametricQuantizer narrow({.kind = Kind::kPow2BXmax});
  set(narrow, "n", 1.2);
  CHECK(mismatch(narrow.forward(values({0.3, 0.99, 1, 1.2, 1.5})), values({0, 1, 1, 1, 1})) == "");
}
