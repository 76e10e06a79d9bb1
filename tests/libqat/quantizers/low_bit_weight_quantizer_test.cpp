#include "libqat/autograd/fake_quantize_check.h"
#include "libqat/quantizers/quantizer_run.h"
#include <qat/quantizers/low_bit_weight_quantizer.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace {

using qat::IntegerRange;
using qat::LowBitWeightKind;
using qat::LowBitWeightOptions;
using qat::LowBitWeightQuantizer;
using qat::RangeWidth;
using qat::Signedness;
using qat::testing::counting;
using qat::testing::error_lacks;
using qat::testing::layouts_of;
using qat::testing::mismatch;
using qat::testing::run;
using qat::testing::run_traced;
using qat::testing::values;
using torch::Tensor;
using Kind = LowBitWeightKind;

constexpr Kind kKinds[] = {Kind::kDorefa, Kind::kBinary, Kind::kTernary};

using Numbers = std::vector<double>;

/// Values, and the factor from the gradient of each value to that of its weight.
struct Loop {
  Numbers y;
  Numbers slope;
};

double mean_magnitude(const Numbers& w) {
  double sum = 0;
  for (const double v : w)
    sum += std::fabs(v);
  return sum / static_cast<double>(w.size());
}

/// Zhou et al., eq. 9; the rounding passes the gradient, the maximum is a constant.
Loop dorefa(const Numbers& w, std::int64_t bits) {
  const double n = std::exp2(static_cast<double>(bits)) - 1;
  double largest = 0;
  for (const double v : w)
    largest = std::max(largest, std::fabs(std::tanh(v)));
  Loop result;
  for (const double v : w) {
    const double t = std::tanh(v);
    result.y.push_back(2 * std::nearbyint(n * (t / (2 * largest) + 0.5)) / n - 1);
    result.slope.push_back((1 - t * t) / largest);
  }
  return result;
}

/// Rastegari et al., eq. 4.
Loop binary(const Numbers& w) {
  const double alpha = mean_magnitude(w);
  Loop result;
  for (const double v : w) {
    result.y.push_back(v < 0 ? -alpha : alpha);
    result.slope.push_back(std::fabs(v) <= 1 ? 1 : 0);
  }
  return result;
}

/// Li et al., eq. 5 and 6.
Loop ternary(const Numbers& w) {
  const double delta = 0.7 * mean_magnitude(w);
  double sum = 0;
  double kept = 0;
  for (const double v : w) {
    if (std::fabs(v) <= delta) continue;
    sum += std::fabs(v);
    kept += 1;
  }
  Loop result;
  for (const double v : w) {
    const double alpha = kept > 0 ? sum / kept : 0;
    result.y.push_back(v > delta ? alpha : (v < -delta ? -alpha : 0));
    result.slope.push_back(1);
  }
  return result;
}

Loop loop(Kind kind, const Numbers& w, std::int64_t bits) {
  if (kind == Kind::kDorefa) return dorefa(w, bits);
  return kind == Kind::kBinary ? binary(w) : ternary(w);
}

Numbers numbers_of(const Tensor& x) {
  const auto wide = x.to(torch::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

/// Compares a tensor, or each channel of it, with the loop. "" or a sentence.
std::string difference(const LowBitWeightOptions& options, const Tensor& w, double tolerance) {
  LowBitWeightQuantizer quantizer(options);
  const auto dy = torch::randn(w.sizes(), torch::kDouble).to(w.scalar_type());
  const auto result = run(quantizer, w, dy);
  const std::int64_t channels = options.axis ? w.size(*options.axis) : 1;
  for (std::int64_t c = 0; c < channels; ++c) {
    const auto part = [&](const Tensor& x) { return options.axis ? x.select(*options.axis, c) : x; };
    const auto expected = loop(options.kind, numbers_of(part(w)), quantizer.bits());
    const auto shaped = [&](const Numbers& v) { return values(v, torch::kDouble).reshape(part(w).sizes()); };
    const auto type = w.scalar_type();
    auto text = mismatch(part(result.y), shaped(expected.y).to(type), {tolerance, tolerance * 1e-2});
    if (!text.empty()) return "y: " + text;
    const auto dx = (shaped(expected.slope) * part(dy)).to(type);
    text = mismatch(part(result.dx), dx, {tolerance * 2, tolerance * 1e-2});
    if (!text.empty()) return "dx: " + text;
  }
  return "";
}

}  // namespace

TEST_CASE("weight quantizers of few bits compute the equations of their papers") {
  torch::manual_seed(41);
  const auto w = torch::randn({6, 5, 3, 2}, torch::kDouble) * 0.8;
  for (const auto kind : kKinds) {
    for (const auto& [type, tolerance] :
         std::vector<std::pair<torch::ScalarType, double>>{{torch::kFloat, 1e-6},
                                                           {torch::kDouble, 1e-12},
                                                           {torch::kHalf, 1e-3},
                                                           {torch::kBFloat16, 8e-3}}) {
      CAPTURE(qat::to_string(kind), type);
      for (const auto& [layout, view] : layouts_of(w.to(type))) {
        CAPTURE(layout);
        CHECK(difference({.kind = kind}, view, tolerance) == "");
        if (kind == Kind::kDorefa) continue;
        for (const std::int64_t axis : {0, 1, -1, -2})
          CHECK(difference({.kind = kind, .axis = axis}, view, tolerance) == "");
      }
    }
  }
  for (std::int64_t bits = 1; bits <= 8; ++bits) {
    CAPTURE(bits);
    CHECK(difference({.kind = Kind::kDorefa, .bits = bits}, w.to(torch::kFloat), 1e-6) == "");
  }
}

TEST_CASE("ternary weights by hand") {
  LowBitWeightQuantizer quantizer;
  // The mean magnitude is 0.5, the threshold 0.35.
  const auto w = values({1.0, -0.6, 0.3, 0.1});
  const auto result = run(quantizer, w, counting(w));
  CHECK(mismatch(result.y, values({0.8, -0.8, 0, 0}), {1e-6}) == "");
  CHECK(mismatch(result.dx, counting(w)) == "");
  CHECK(mismatch(quantizer.codes(w), torch::tensor({1, -1, 0, 0}, torch::kInt)) == "");
  CHECK(quantizer.bits() == 2);
  CHECK(quantizer.parameters().empty());
}

TEST_CASE("binary weights by hand: zeros count as positive, gradients stop beyond 1") {
  LowBitWeightQuantizer quantizer({.kind = Kind::kBinary});
  const auto w = values({1.5, -0.5, 0, -0.0, 1, -1.25});
  const double alpha = 4.25 / 6;
  const auto result = run(quantizer, w, counting(w));
  CHECK(mismatch(result.y, values({alpha, -alpha, alpha, alpha, alpha, -alpha}), {1e-6}) == "");
  CHECK(mismatch(result.dx, values({0, 2, 3, 4, 5, 0})) == "");
  CHECK(mismatch(quantizer.codes(w), torch::tensor({1, -1, 1, 1, 1, -1}, torch::kInt)) == "");
  CHECK(quantizer.bits() == 1);
}

TEST_CASE("DoReFa with one bit has the values -1 and 1") {
  LowBitWeightQuantizer quantizer({.kind = Kind::kDorefa, .bits = 1});
  const auto w = values({-2, -0.01, 0.01, 0.5});
  const auto result = run(quantizer, w, torch::ones_like(w));
  CHECK(mismatch(result.y, values({-1, -1, 1, 1})) == "");
  CHECK(mismatch(quantizer.codes(w), torch::tensor({-1, -1, 1, 1}, torch::kInt)) == "");
  const auto params = quantizer.affine_params(w);
  CHECK(mismatch(params.scale, torch::tensor(1.0F)) == "");
  CHECK(params.range == IntegerRange(2, Signedness::kSigned, RangeWidth::kNarrow));
  CHECK(quantizer.bits() == 1);
}

TEST_CASE("DoReFa with two bits by hand") {
  LowBitWeightQuantizer quantizer({.kind = Kind::kDorefa});
  // tanh gives 0.8, 0.4, -0.2 and -0.8; by the largest: 1, 0.5, -0.25, -1.
  const auto w = torch::atanh(values({0.8, 0.4, -0.2, -0.8}, torch::kDouble)).to(torch::kFloat);
  const auto result = run(quantizer, w, torch::ones_like(w));
  CHECK(mismatch(result.y, values({1, 1.0 / 3, -1.0 / 3, -1}), {1e-6}) == "");
  CHECK(mismatch(quantizer.codes(w), torch::tensor({3, 1, -1, -3}, torch::kInt)) == "");
  CHECK(mismatch(result.dx, values({0.36 / 0.8, 0.84 / 0.8, 0.96 / 0.8, 0.36 / 0.8}), {1e-6}) == "");
}

TEST_CASE("weights of zero stay zero with a gradient, except DoReFa's, which have no zero") {
  const auto w = torch::zeros({3, 2});
  for (const auto kind : {Kind::kBinary, Kind::kTernary}) {
    for (const std::optional<std::int64_t> axis :
         {std::optional<std::int64_t>{}, std::optional<std::int64_t>{0}}) {
      LowBitWeightQuantizer quantizer({.kind = kind, .axis = axis});
      const auto result = run(quantizer, w, torch::ones_like(w));
      CHECK(mismatch(result.y, w) == "");
      CHECK(mismatch(result.dx, torch::ones_like(w)) == "");
      CHECK((quantizer.affine_params(w).scale > 0).all().item<bool>());
    }
  }
  LowBitWeightQuantizer rows({.axis = 0});
  CHECK(mismatch(rows.forward(values({0, 0, 0.5, -0.5}).reshape({2, 2})),
                 values({0, 0, 0.5, -0.5}).reshape({2, 2})) == "");
  LowBitWeightQuantizer dorefa_quantizer({.kind = Kind::kDorefa});
  const auto result = run(dorefa_quantizer, w, torch::ones_like(w));
  CHECK(mismatch(result.y.abs(), torch::full({3, 2}, 1.0 / 3), {1e-6}) == "");
  CHECK(result.dx.isfinite().all().item<bool>());
}

TEST_CASE("values are codes times the scale, for zeros too") {
  torch::manual_seed(42);
  const auto random = torch::randn({4, 3});
  for (const auto& w : {random, torch::zeros({4, 3}), random * values({1, 0, 2}).reshape({1, 3})}) {
    for (const auto kind : kKinds) {
      for (const std::optional<std::int64_t> axis :
           {std::optional<std::int64_t>{}, std::optional<std::int64_t>{1}, std::optional<std::int64_t>{-1}}) {
        if (axis && kind == Kind::kDorefa) continue;
        LowBitWeightQuantizer quantizer({.kind = kind, .bits = 3, .axis = axis});
        const auto params = quantizer.affine_params(w);
        const auto codes = quantizer.codes(w);
        CAPTURE(qat::to_string(kind), axis.value_or(77));
        CHECK(mismatch(codes * params.scale, quantizer.forward(w), {1e-6, 1e-15}) == "");
        CHECK(codes.max().item<std::int64_t>() <= params.range.qmax());
        CHECK(codes.min().item<std::int64_t>() >= params.range.qmin());
        CHECK(mismatch(params.zero_point, torch::zeros_like(params.scale, torch::kInt)) == "");
        CHECK(params.axis == axis);
        CHECK(params.scale.dim() == (axis ? 1 : 0));
      }
    }
  }
}

TEST_CASE("an activation given to a weight quantizer is applied first") {
  LowBitWeightQuantizer quantizer;
  const auto w = values({-3, 0.8, 0.2, 1.2});
  const auto result = run(quantizer, w, counting(w), {0.0});
  CHECK(mismatch(result.y, values({0, 1, 0, 1}), {1e-6}) == "");
  CHECK(mismatch(result.dx, values({0, 2, 3, 4})) == "");
}

TEST_CASE("traces of weight quantizers follow the weights") {
  torch::manual_seed(43);
  const auto w = torch::randn({4, 3});
  for (const auto kind : kKinds) {
    LowBitWeightQuantizer quantizer({.kind = kind});
    quantizer.eval();
    CHECK(mismatch(run_traced([&](const Tensor& x) { return quantizer.forward(x); }, w),
                   quantizer.forward(w)) == "");
  }
}

TEST_CASE("a NaN among weights has no code and no gradient") {
  const double nan = std::nan("");
  const auto w = values({0.5, nan, -0.25, 0.75});
  for (const auto kind : kKinds) {
    CAPTURE(qat::to_string(kind));
    LowBitWeightQuantizer quantizer({.kind = kind});
    CHECK(error_lacks([&] { quantizer.codes(w); }, {"LowBitWeightQuantizer", "NaN", "no code"}) == "");
    if (kind != Kind::kDorefa) {
      CHECK(error_lacks([&] { quantizer.affine_params(w); }, {"LowBitWeightQuantizer", "not finite"}) == "");
    }
    const auto result = run(quantizer, w, torch::ones_like(w));
    CHECK(std::isnan(result.y[1].item<double>()));
    CHECK(result.dx[1].item<double>() == 0);
    CHECK((result.dx != 0).sum().item<std::int64_t>() == 3);
    // Twice differentiable, and still nothing for the NaN.
    const auto x = w.clone().requires_grad_();
    const auto dx = torch::autograd::grad({quantizer.forward(x).sum()}, {x}, {}, true, true)[0];
    CHECK(mismatch(dx, result.dx, {1e-6}) == "");
  }
  LowBitWeightQuantizer rows({.axis = 0});
  CHECK(error_lacks([&] { rows.affine_params(w.reshape({2, 2})); }, {"not finite"}) == "");
  const auto result = run(rows, w.reshape({2, 2}), torch::ones({2, 2}));
  CHECK(torch::isnan(result.y[0]).all().item<bool>());
  CHECK(mismatch(result.y[1], values({0, 0.75})) == "");
}

TEST_CASE("weight quantizers refuse what they cannot do") {
  for (const std::int64_t bits : {0, -3, 9, 64}) {
    CHECK(error_lacks([&] { LowBitWeightQuantizer({.kind = Kind::kDorefa, .bits = bits}); },
                      {std::to_string(bits), "1 to 8"}) == "");
  }
  CHECK(error_lacks([] { LowBitWeightQuantizer({.kind = Kind::kDorefa, .axis = 2}); },
                    {"dorefa", "axis", "2"}) == "");
  LowBitWeightQuantizer quantizer({.axis = 4});
  CHECK(error_lacks([&] { quantizer.forward(torch::ones({2, 2})); }, {"axis 4"}) == "");
  CHECK(error_lacks([&] { quantizer.affine_params({}); }, {"undefined"}) == "");
  CHECK(error_lacks([] { qat::parse_low_bit_weight_kind("quaternary"); },
                    {"quaternary", "binary", "ternary"}) == "");
  for (const auto kind : kKinds)
    CHECK(qat::parse_low_bit_weight_kind(qat::to_string(kind)) == kind);
}
