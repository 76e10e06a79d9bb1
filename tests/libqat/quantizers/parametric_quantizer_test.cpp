#include "libqat/quantizers/quantizer_run.h"
#include <qat/quantizers/parametric_quantizer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace {

using qat::Learnable;
using qat::ParametricKind;
using qat::ParametricOptions;
using qat::ParametricQuantizer;
using qat::testing::counting;
using qat::testing::error_lacks;
using qat::testing::mismatch;
using qat::testing::number;
using qat::testing::run;
using qat::testing::set;
using qat::testing::values;
using torch::Tensor;
using Kind = ParametricKind;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Kind kKinds[] = {Kind::kFpNM,   Kind::kFpBXmax,   Kind::kFpDXmax,   Kind::kFpDB,
                           Kind::kPow2NM, Kind::kPow2BXmax, Kind::kPow2BXmin, Kind::kPow2XminXmax};

/// Options of a kind with 4 bits where the width is learned.
ParametricOptions four_bits(Kind kind) {
  return {.kind = kind, .n = Learnable{4, 2, 7}};
}

qat::ValueRange range(double min, double max) {
  return {torch::tensor(min, torch::kFloat), torch::tensor(max, torch::kFloat)};
}

void step(ParametricQuantizer& quantizer, const Tensor& loss, double rate) {
  quantizer.zero_grad();
  loss.backward();
  torch::optim::SGD(quantizer.parameters(), torch::optim::SGDOptions(rate)).step();
}

}  // namespace

TEST_CASE("every parametric kind is made with its defaults, signed or not, with zero or not") {
  for (const auto kind : kKinds) {
    for (const bool is_signed : {true, false}) {
      for (const bool with_zero : {true, false}) {
        CAPTURE(qat::to_string(kind), is_signed, with_zero);
        std::string error;
        try {
          ParametricQuantizer quantizer({.kind = kind, .is_signed = is_signed, .with_zero = with_zero});
          const auto y = quantizer.forward(values({-0.4, 0.4}));
          CHECK(y.isfinite().all().item<bool>());
          CHECK((y[0] < 0).item<bool>() == is_signed);
          CHECK(y[1].item<double>() > 0.2);
        } catch (const c10::Error& failure) {
          error = failure.what_without_backtrace();
        }
        CHECK(error == "");
      }
    }
  }
}

TEST_CASE("the names of the parametric kinds read back") {
  for (const auto kind : kKinds)
    CHECK(qat::parse_parametric_kind(qat::to_string(kind)) == kind);
  CHECK(qat::to_string(Kind::kPow2XminXmax) == "pow2_xmin_xmax");
  CHECK(error_lacks([] { qat::parse_parametric_kind("fp_x"); }, {"fp_x", "fp_d_xmax", "pow2_n_m"}) == "");
}

TEST_CASE("start values and bounds that make no sense are refused by name and value and range") {
  using Options = ParametricOptions;
  const auto refused = [](const Options& options, std::initializer_list<std::string> words) {
    return error_lacks([&] { ParametricQuantizer{options}; }, words);
  };
  CHECK(refused({.kind = Kind::kFpDXmax, .d = Learnable{2, 0.5, 1}},
                {"fp_d_xmax", "d starts at 2", "0.5 to 1"}) == "");
  CHECK(refused({.xmax = Learnable{0.25, 0.5, 1}}, {"xmax starts at 0.25", "0.5 to 1"}) == "");
  CHECK(refused({.xmax = Learnable{kNan, 0.5, 1}}, {"xmax starts at nan", "0.5 to 1"}) == "");
  CHECK(refused({.xmax = Learnable{1, 2, 0.5}}, {"xmax", "[2, 0.5]", "min <= max"}) == "");
  CHECK(refused({.xmax = Learnable{1, 0.5, kInfinity}}, {"xmax", "inf"}) == "");
  CHECK(refused({.d = Learnable{0, 0, 1}}, {"d", "0", "positive"}) == "");
  CHECK(refused({.d = Learnable{1, -0.5, 1}}, {"lower bound of d", "-0.5", "positive"}) == "");
  CHECK(refused({.kind = Kind::kPow2XminXmax, .xmin = Learnable{1, 0, 1}},
                {"pow2_xmin_xmax", "xmin", "positive"}) == "");
  CHECK(refused({.kind = Kind::kPow2NM, .m = Learnable{9, -8, 8}},
                {"pow2_n_m", "m starts at 9", "-8 to 8"}) == "");
  // Learnables of other kinds are ignored.
  CHECK_NOTHROW(ParametricQuantizer({.kind = Kind::kFpDXmax, .n = Learnable{-1, 3, 2}}));
}

TEST_CASE("case 88: widths that make no sense are refused, and held where they are learned") {
  for (const double bits : {0.0, -3.0, 64.0}) {
    std::ostringstream text;
    text << bits;
    CHECK(error_lacks(
              [&] {
                ParametricQuantizer({.kind = Kind::kFpDB, .n = Learnable{bits, 2, 16}});
              },
              {"fp_d_b", "n ", text.str(), " to 16"}) == "");
    CHECK(error_lacks(
              [&] {
                ParametricQuantizer({.kind = Kind::kFpDB, .n = Learnable{bits, bits, bits}});
              },
              {"fp_d_b", "n", text.str()}) == "");
    ParametricQuantizer started({.kind = Kind::kFpDB});
    CHECK(error_lacks([&] { started.start_from(range(-1, 1), static_cast<std::int64_t>(bits)); },
                      {text.str(), "2 to 16"}) == "");
  }
  CHECK(error_lacks(
            [] {
              ParametricQuantizer({.kind = Kind::kFpDB, .n = Learnable{1.5, 2, 16}});
            },
            {"n", "1.5"}) == "");

  for (const auto kind : kKinds) {
    if (kind == Kind::kFpDXmax || kind == Kind::kPow2XminXmax) continue;
    ParametricQuantizer quantizer(four_bits(kind));
    step(quantizer, quantizer.named_parameters()["n"] * 1.0, 10.0);
    CHECK(number(quantizer, "n") == -6.0);
    CHECK(quantizer.bits() == 2);
    const auto x = values({-9, -0.3, 0, 0.4, 9});
    CHECK(run(quantizer, x, counting(x)).y.isfinite().all().item<bool>());
    quantizer.hold_in_bounds();
    CHECK(number(quantizer, "n") == 2.0);
  }
}

TEST_CASE("case 87: a learned width moves, and the width in use is the rounded one") {
  ParametricQuantizer quantizer({.kind = Kind::kFpDB});
  const std::map<int, double> expected{{1, 7.9}, {5, 7.5}, {10, 7.0}};
  for (int i = 1; i <= 10; ++i) {
    step(quantizer, quantizer.named_parameters()["n"] * 1.0, 0.1);
    if (expected.contains(i)) CHECK(number(quantizer, "n") == Approx(expected.at(i)).epsilon(1e-6));
  }
  for (const auto& [n, bits] :
       std::map<double, std::int64_t>{{7.9, 8}, {7.5, 8}, {7.49, 7}, {7.0, 7}, {2.5, 3}}) {
    set(quantizer, "n", n);
    CHECK(quantizer.bits() == bits);
  }
  ParametricQuantizer saturated({.kind = Kind::kFpDB, .n = Learnable{4, 2, 16}, .d = Learnable{0.5, 0.1, 1}});
  const auto result = run(saturated, values({100}), values({1}));
  CHECK(mismatch(result.y, values({3.5})) == "");
  CHECK(result.gradient("n") == Approx(2.772589));
}

TEST_CASE("parameters outside their bounds are used at the bound and brought back after a step") {
  ParametricQuantizer quantizer;
  const auto x = values({-20, 0.3, 20});
  for (const auto& [xmax, used] :
       std::vector<std::pair<double, double>>{{50, 10}, {kInfinity, 10}, {10, 10}}) {
    set(quantizer, "xmax", xmax);
    CHECK(quantizer.forward(x)[2].item<double>() == used);
  }
  set(quantizer, "xmax", -3);
  CHECK(quantizer.uniform_grid().upper.item<float>() == 0.001F);
  CHECK(quantizer.uniform_grid().scale.item<float>() == 0x1p-10F);
  set(quantizer, "d", 1e9);
  quantizer.hold_in_bounds();
  CHECK(number(quantizer, "xmax") == 0.001F);
  CHECK(number(quantizer, "d") == 0x1p-8);
  CHECK(quantizer.uniform_grid().scale.item<float>() == 0x1p-10F);
}

TEST_CASE("hold_in_bounds repairs parameters that a bad step left as NaN or infinite") {
  for (const auto kind : kKinds) {
    for (const double bad : {kNan, kInfinity, -kInfinity, 1e30, -1e30}) {
      ParametricQuantizer quantizer(four_bits(kind));
      for (const auto& parameter : quantizer.named_parameters())
        set(quantizer, parameter.key(), bad);
      quantizer.hold_in_bounds();
      CAPTURE(qat::to_string(kind), bad);
      for (const auto& parameter : quantizer.named_parameters()) {
        const auto bounds = quantizer.learnable(parameter.key());
        const float min = static_cast<float>(bounds.min);
        const double v = parameter.value().item<double>();
        CHECK(v >= min);
        CHECK(v <= static_cast<float>(bounds.max));
        if (std::isnan(bad)) CHECK(v == min);
      }
      const auto result = run(quantizer, values({-5, 0, 0.1, 5}), torch::ones({4}));
      CHECK(result.y.isfinite().all().item<bool>());
      for (const auto& [name, gradient] : result.gradients)
        CHECK(gradient.isfinite().all().item<bool>());
    }
  }
}

TEST_CASE("one parameter set for each channel equals one quantizer for each channel") {
  torch::manual_seed(21);
  const auto x = torch::randn({4, 3, 5}) * 1.5;
  const auto dy = torch::randn({4, 3, 5});
  for (const auto kind : kKinds) {
    for (const std::int64_t axis : {1, -2, 0, 2, -1}) {
      const auto channels = x.size(axis);
      auto options = four_bits(kind);
      options.axis = axis;
      options.channels = channels;
      ParametricQuantizer whole(options);
      CAPTURE(qat::to_string(kind), axis);
      for (const auto& parameter : whole.named_parameters()) {
        if (parameter.key() == "n") {
          CHECK(parameter.value().dim() == 0);
          continue;
        }
        CHECK(parameter.value().sizes() == std::vector<std::int64_t>{channels});
        set(whole, parameter.key(), parameter.value().detach() * torch::linspace(0.6, 1.5, channels));
      }
      const auto result = run(whole, x, dy);
      double dn = 0;
      for (std::int64_t c = 0; c < channels; ++c) {
        ParametricQuantizer part(four_bits(kind));
        for (const auto& parameter : part.named_parameters()) {
          const auto all = whole.named_parameters()[parameter.key()].detach();
          set(part, parameter.key(), all.dim() == 0 ? all : all[c]);
        }
        const auto expected = run(part, x.select(axis, c), dy.select(axis, c));
        CHECK(mismatch(result.y.select(axis, c), expected.y) == "");
        CHECK(mismatch(result.dx.select(axis, c), expected.dx) == "");
        for (const auto& [name, gradient] : expected.gradients) {
          if (name == "n") {
            dn += gradient.item<double>();
          } else {
            CHECK(mismatch(result.gradients.at(name)[c], gradient, {1e-6, 1e-6}) == "");
          }
        }
      }
      if (result.gradients.contains("n"))
        CHECK(result.gradient("n") == Approx(dn).epsilon(1e-5).margin(1e-5));
    }
  }
  CHECK(error_lacks([] { ParametricQuantizer({.axis = 0}); }, {"axis 0", "0 channels"}) == "");
  CHECK(error_lacks([] { ParametricQuantizer({.channels = 3}); }, {"axis none", "3 channels"}) == "");
  ParametricQuantizer three({.axis = 0, .channels = 3});
  CHECK(error_lacks([&] { three.forward(torch::ones({4, 3})); }, {"3", "4"}) == "");
}

TEST_CASE("start_from covers a range with 4 and 8 bits") {
  const auto expect = [](Kind kind, std::int64_t bits, std::map<std::string, double> expected) {
    ParametricQuantizer quantizer({.kind = kind});
    quantizer.start_from(range(-1.5, 0.75), bits);
    for (const auto& [name, value] : expected) {
      CAPTURE(qat::to_string(kind), bits, name);
      CHECK(number(quantizer, name) == Approx(value).epsilon(1e-6));
    }
    CHECK(quantizer.named_parameters().size() == expected.size());
  };
  const double log2_xmax = std::log2(1.5);
  // 4 bits: 1.5 / 7 lies between 1/8 and 1/4, and goes down. 8 bits: 1.5 / 127 goes up to 1/64.
  expect(Kind::kFpDXmax, 4, {{"d", 0.125}, {"xmax", 1.5}});
  expect(Kind::kFpDXmax, 8, {{"d", 0x1p-6}, {"xmax", 1.5}});
  expect(Kind::kFpDB, 4, {{"n", 4}, {"d", 0.125}});
  expect(Kind::kFpDB, 8, {{"n", 8}, {"d", 0x1p-6}});
  expect(Kind::kFpBXmax, 4, {{"n", 4}, {"xmax", 1.5}});
  expect(Kind::kFpNM, 8, {{"n", 8}, {"m", log2_xmax}});
  expect(Kind::kPow2NM, 4, {{"n", 4}, {"m", log2_xmax}});
  expect(Kind::kPow2BXmax, 4, {{"n", 4}, {"xmax", 1.5}});
  // 4 bits with sign and zero leave K = 4 magnitudes, 3 doublings; 8 bits would need a smaller xmin than is
  // allowed.
  expect(Kind::kPow2BXmin, 4, {{"n", 4}, {"xmin", 1.5 / 8}});
  expect(Kind::kPow2XminXmax, 4, {{"xmin", 1.5 / 8}, {"xmax", 1.5}});
  expect(Kind::kPow2XminXmax, 8, {{"xmin", 0x1p-15}, {"xmax", 1.5}});
}

TEST_CASE("a quantizer that starts from a range has the width that was asked for") {
  for (const auto kind : kKinds) {
    for (const std::int64_t bits : {2, 3, 4}) {
      for (const double largest : {0.9, 1.0, 1.4, 1.6}) {
        ParametricQuantizer quantizer({.kind = kind});
        quantizer.start_from(range(-largest, 0.1), bits);
        CAPTURE(qat::to_string(kind), bits, largest);
        // Steps go down to a power of two, so that a step learned alone may leave up to one bit more.
        CHECK(quantizer.bits() <= bits + (kind == Kind::kFpDXmax ? 1 : 0));
        CHECK(quantizer.forward(values({largest})).item<double>() > largest / 2);
      }
    }
  }
}

TEST_CASE("start_from keeps the start values of what is all zero") {
  ParametricQuantizer quantizer({.d = Learnable{0.25, 0x1p-8, 1}, .xmax = Learnable{2, 0.1, 10}});
  quantizer.start_from(range(0, 0), 8);
  CHECK(number(quantizer, "d") == 0.25);
  CHECK(number(quantizer, "xmax") == 2.0);
  ParametricQuantizer channels({.axis = 0, .channels = 2});
  channels.start_from({values({0, -3}), values({0, 1})}, 4);
  CHECK(mismatch(channels.named_parameters()["xmax"], values({1, 3})) == "");
  CHECK(mismatch(channels.named_parameters()["d"], values({0x1p-4, 0.25})) == "");
  CHECK(error_lacks([&] { channels.start_from(range(-1, 1), 4); }, {"[2]", "[]"}) == "");
  ParametricQuantizer exponent({.kind = Kind::kFpNM});
  exponent.start_from(range(0, 0), 4);
  CHECK(number(exponent, "n") == 4.0);
  CHECK(number(exponent, "m") == 1.0);
  quantizer.start_from(range(-1000, 1), 4);
  CHECK(number(quantizer, "xmax") == 10.0);
}

TEST_CASE("fixed parameters keep their values and get no gradient") {
  for (const auto kind : kKinds) {
    auto options = four_bits(kind);
    ParametricQuantizer learning(options);
    options.fix_parameters = true;
    ParametricQuantizer quantizer(options);
    for (const auto& parameter : quantizer.parameters())
      CHECK_FALSE(parameter.requires_grad());
    const auto x = values({-3, -0.3, 0.1, 0.4, 3});
    const auto result = run(quantizer, x, counting(x));
    const auto expected = run(learning, x, counting(x));
    CHECK(result.gradients.empty());
    CHECK(mismatch(result.y, expected.y) == "");
    CHECK(mismatch(result.dx, expected.dx) == "");
    CHECK_FALSE(quantizer.forward(x).requires_grad());
  }
}

TEST_CASE("bits are the width of the codes in use") {
  ParametricQuantizer uniform;
  for (const auto& [xmax, d, bits] : std::vector<std::tuple<double, double, std::int64_t>>{
           {0.875, 0.125, 4}, {1, 0.125, 5}, {0.9, 0.25, 3}, {0.25, 0.25, 2}}) {
    set(uniform, "xmax", xmax);
    set(uniform, "d", d);
    CHECK(uniform.bits() == bits);
  }
  for (const auto& [with_zero, ratio, bits] :
       std::vector<std::tuple<bool, double, std::int64_t>>{{false, 8, 3},
                                                           {true, 8, 4},
                                                           {false, 16, 4},
                                                           {true, 4, 3},
                                                           {true, 128, 5},
                                                           {false, 128, 4},
                                                           {true, 1, 2}}) {
    ParametricQuantizer powers({.kind = Kind::kPow2XminXmax, .with_zero = with_zero});
    set(powers, "xmin", 1 / ratio);
    CAPTURE(with_zero, ratio);
    CHECK(powers.bits() == bits);
  }
  ParametricQuantizer channels({.axis = 0, .channels = 2});
  set(channels, "xmax", values({0.5, 1.9}));
  CHECK(channels.bits() == 6);  // the widest channel: 30 codes a side
}

TEST_CASE("the affine parameters describe the codes") {
  ParametricQuantizer uniform({.is_signed = false, .axis = 1, .channels = 2});
  set(uniform, "d", values({0.3, 0.5}));
  set(uniform, "xmax", values({1.6, 3.75}));
  const auto params = uniform.affine_params({});
  CHECK(mismatch(params.scale, values({0.25, 0.5})) == "");
  CHECK(mismatch(params.zero_point, torch::zeros({2}, torch::kInt)) == "");
  CHECK(params.range == qat::IntegerRange(3, qat::Signedness::kUnsigned));
  CHECK(params.axis == 1);
  CHECK(mismatch(uniform.codes(values({9, 9, -9, 1.1}).reshape({2, 2})),
                 torch::tensor({{6, 7}, {0, 2}}, torch::kInt)) == "");

  ParametricQuantizer powers({.kind = Kind::kPow2XminXmax});
  set(powers, "xmin", 0.125);
  const auto powers_params = powers.affine_params({});
  CHECK(mismatch(powers_params.scale, torch::tensor(0.125F)) == "");
  CHECK(powers_params.range == qat::IntegerRange(5, qat::Signedness::kSigned, qat::RangeWidth::kNarrow));
  CHECK(mismatch(powers.codes(values({-9, 0.05, 0.1, 0.3})), torch::tensor({-8, 0, 1, 2}, torch::kInt)) ==
        "");
}

TEST_CASE("the range of the affine parameters holds every code, or there is an error") {
  for (const int doublings : {13, 14, 15, 20}) {
    for (const bool is_signed : {true, false}) {
      ParametricQuantizer powers({.kind = Kind::kPow2XminXmax, .is_signed = is_signed});
      set(powers, "xmax", 64);
      set(powers, "xmin", std::ldexp(64.0, -doublings));
      powers.hold_in_bounds();
      CAPTURE(doublings, is_signed);
      std::optional<qat::AffineParams> params;
      try {
        params = powers.affine_params({});
      } catch (const c10::ValueError&) {
        CHECK(doublings >= 15);
      }
      if (params) CHECK(params->range.qmax() >= (std::int64_t{1} << doublings));
    }
  }
}
