// The bounds that parameters of ParametricQuantizer may have, and parameters at and beyond them.
#include "libqat/quantizers/quantizer_run.h"
#include <qat/quantizers/parametric_quantizer.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace {

using qat::Learnable;
using qat::ParametricOptions;
using qat::ParametricQuantizer;
using qat::testing::error_lacks;
using qat::testing::mismatch;
using qat::testing::number;
using qat::testing::run;
using qat::testing::set;
using qat::testing::values;
using Kind = qat::ParametricKind;

constexpr Kind kKinds[] = {Kind::kFpNM,   Kind::kFpBXmax,   Kind::kFpDXmax,   Kind::kFpDB,
                           Kind::kPow2NM, Kind::kPow2BXmax, Kind::kPow2BXmin, Kind::kPow2XminXmax};

std::string refused(const ParametricOptions& options, std::initializer_list<std::string> words) {
  return error_lacks([&] { ParametricQuantizer{options}; }, words);
}

}  // namespace

TEST_CASE("bounds that lead to steps beyond float32 are refused by name, value and range") {
  CHECK(refused({.d = Learnable{1e-60, 1e-60, 1}},
                {"fp_d_xmax", "lower bound of d is 1e-60", "1.0842e-19 to 9.22337e+18"}) == "");
  CHECK(refused({.xmax = Learnable{1, 1, 1e300}},
                {"fp_d_xmax", "upper bound of xmax is 1e+300", "to 9.22337e+18"}) == "");
  CHECK(refused({.kind = Kind::kPow2XminXmax, .xmin = Learnable{1, 1e-30, 1}},
                {"pow2_xmin_xmax", "lower bound of xmin is 1e-30", "1.0842e-19"}) == "");
  CHECK(refused({.kind = Kind::kFpBXmax, .xmax = Learnable{1, 0x1p-48, 1}},
                {"fp_b_xmax", "lower bound of xmax is 3.55271e-15", "7.10543e-15"}) == "");
  CHECK(refused({.kind = Kind::kFpNM, .m = Learnable{-200, -200, 8}},
                {"fp_n_m", "lower bound of m is -200", "-47 to 63"}) == "");
  CHECK(refused({.kind = Kind::kFpNM, .m = Learnable{0, 0, 64}},
                {"fp_n_m", "upper bound of m is 64", "-47 to 63"}) == "");
  CHECK(refused({.kind = Kind::kPow2NM, .m = Learnable{-100, -120, 8}},
                {"pow2_n_m", "lower bound of m is -120", "-63 to 63"}) == "");
}

TEST_CASE("quantizers at the ends of the allowed bounds compute finite numbers") {
  const auto x = values({-3, 0, 1e-30, 2});
  for (const auto kind : kKinds) {
    const bool is_pow2 = qat::is_power_of_two(kind);
    for (const bool is_high : {false, true}) {
      const double end = is_high ? 0x1p63 : (kind == Kind::kFpBXmax ? 0x1p-47 : 0x1p-63);
      const double m = is_high ? 63 : (kind == Kind::kFpNM ? -47 : -63);
      for (const double bits : {2.0, is_pow2 ? 8.0 : 16.0}) {
        ParametricQuantizer quantizer({.kind = kind,
                                       .n = Learnable{bits, bits, bits},
                                       .m = Learnable{m, m, m},
                                       .d = Learnable{end, end, end},
                                       .xmax = Learnable{end, end, end},
                                       .xmin = Learnable{end, end, end}});
        CAPTURE(qat::to_string(kind), end, bits);
        const auto result = run(quantizer, x, torch::ones_like(x));
        CHECK(result.y.isfinite().all().item<bool>());
        CHECK(result.dx.isfinite().all().item<bool>());
        const auto scale = quantizer.scale({}).item<float>();
        CHECK(std::isnormal(scale));
        if (!is_pow2) CHECK(scale >= 0x1p-63F);
      }
    }
  }
}

TEST_CASE("hold_in_bounds keeps both of two parameters in their bounds where these cross") {
  const auto x = values({-3, -0.0007, 0.0004, 0.002});
  for (const auto& [kind, name, least, xmax] : std::vector<std::tuple<Kind, std::string, double, double>>{
           {Kind::kFpDXmax, "d", 0x1p-8, 0.001}, {Kind::kPow2XminXmax, "xmin", 0x1p-8, 0x1p-10}}) {
    ParametricQuantizer quantizer({.kind = kind,
                                   .d = Learnable{0x1p-4, 0x1p-8, 1},
                                   .xmax = Learnable{1, xmax, 10},
                                   .xmin = Learnable{0x1p-4, 0x1p-8, 1}});
    set(quantizer, "xmax", -1);
    const auto before = quantizer.forward(x);
    quantizer.hold_in_bounds();
    CAPTURE(qat::to_string(kind));
    CHECK(number(quantizer, name) == least);
    CHECK(number(quantizer, "xmax") == static_cast<double>(static_cast<float>(xmax)));
    CHECK(mismatch(quantizer.forward(x), before) == "");
    CHECK(quantizer.forward(x).abs().max().item<double>() <= xmax);
    CHECK(quantizer.forward(x).abs().max().item<double>() > xmax / 2);
  }
}
