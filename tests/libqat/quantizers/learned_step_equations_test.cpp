// Learned-step quantizers against the equations of their papers, written as plain loops over float64 numbers.
#include "libqat/quantizers/quantizer_run.h"
#include <qat/quantizers/learned_step_quantizer.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/tensor_matchers.h"

namespace {

using qat::IntegerRange;
using qat::LearnedStepKind;
using qat::LearnedStepQuantizer;
using qat::RangeWidth;
using qat::Signedness;
using qat::testing::mismatch;
using qat::testing::run;
using qat::testing::set;
using qat::testing::values;
using torch::Tensor;
using Kind = LearnedStepKind;

/// The parameters of one channel: scale, alpha or log2_t, and LSQ+'s offset.
struct Parameters {
  double first = 1;
  double offset = 0;
};

/// What one element contributes: its value, and the factors of its gradient for x and for the parameters.
struct Element {
  double y;
  double dx;
  double dfirst;
  double doffset = 0;
};

/// Whether x lies at or below (above) an end of the range, which is a float32 number.
bool is_below(double x, double end) {
  return x <= static_cast<float>(end);
}
bool is_above(double x, double end) {
  return x >= static_cast<float>(end);
}

/// Esser et al., eq. 1 to 3. n and p: the lowest and the highest code.
Element lsq(double x, double n, double p, Parameters at) {
  if (is_below(x, n * at.first)) return {n * at.first, 0, n};
  if (is_above(x, p * at.first)) return {p * at.first, 0, p};
  const double v = x / at.first;
  return {std::nearbyint(v) * at.first, 1, std::nearbyint(v) - v};
}

/// Bhalgat et al., eq. 1 to 5, with the offset a whole number of steps that is added after rounding; rounding
/// it passes the gradient.
Element lsq_plus(double x, double n, double p, Parameters at) {
  const double steps = at.offset / at.first;
  const double whole = std::nearbyint(steps);
  const double lower = (n + whole) * at.first;
  const double upper = (p + whole) * at.first;
  if (is_below(x, lower)) return {lower, 0, n + whole - steps, 1};
  if (is_above(x, upper)) return {upper, 0, p + whole - steps, 1};
  const double rounded = std::nearbyint(x / at.first);
  return {rounded * at.first, 1, rounded - x / at.first, 0};
}

/// Choi et al., eq. 1 to 3.
Element pact(double x, double, double p, Parameters at) {
  const double clipped = 0.5 * (std::fabs(x) - std::fabs(x - at.first) + at.first);
  const double y = std::nearbyint(clipped * p / at.first) * at.first / p;
  return {y, x > 0 && x < at.first ? 1.0 : 0.0, x >= at.first ? 1.0 : 0.0};
}

/// Jain et al., eq. 5 to 8.
Element tqt(double x, double n, double p, Parameters at) {
  const double bits = std::log2(p + 1);  // without the sign
  const double s = std::exp2(std::ceil(at.first)) / std::exp2(bits);
  const double v = std::nearbyint(x / s);
  if (v < n) return {n * s, 0, s * std::log(2.0) * n};
  if (v > p) return {p * s, 0, s * std::log(2.0) * p};
  return {v * s, 1, s * std::log(2.0) * (v - x / s)};
}

using Rule = Element (*)(double, double, double, Parameters);

struct Example {
  Kind kind;
  Rule rule;
  std::string first;
  std::vector<Parameters> channels;
};

const std::vector<Example> kExamples{
    {Kind::kLsq, lsq, "scale", {{0.25}, {0.1}, {0.37}}},
    {Kind::kLsqPlus, lsq_plus, "scale", {{0.25, -0.75}, {0.1, -0.27}, {0.37, -0.6}}},
    {Kind::kPact, pact, "alpha", {{2.5}, {1.0}, {0.7}}},
    {Kind::kTqt, tqt, "log2_t", {{0.3}, {-1.0}, {1.0}}},
};

double tolerance_of(torch::ScalarType type) {
  if (type == torch::kHalf) return 1e-3;
  return type == torch::kBFloat16 ? 8e-3 : 1e-6;
}

/// Compares with the loop: `x` of [outer][channels][inner] after moving the axis. "" or a sentence.
std::string difference(const Example& example, const IntegerRange& codes, const Tensor& x, std::int64_t axis,
                       bool is_per_channel, bool scale_gradient) {
  const std::int64_t channels = is_per_channel ? x.size(axis) : 1;
  qat::LearnedStepOptions options{.kind = example.kind, .range = codes, .scale_gradient = scale_gradient};
  if (is_per_channel) {
    options.axis = axis;
    options.channels = channels;
  }
  LearnedStepQuantizer quantizer(options);
  std::vector<double> firsts;
  std::vector<double> offsets;
  for (std::int64_t c = 0; c < channels; ++c) {
    firsts.push_back(example.channels[static_cast<std::size_t>(c)].first);
    offsets.push_back(example.channels[static_cast<std::size_t>(c)].offset);
  }
  const bool has_offset = example.kind == Kind::kLsqPlus;
  const auto shaped = [&](const std::vector<double>& numbers) {
    return is_per_channel ? values(numbers) : values(numbers)[0];
  };
  set(quantizer, example.first, shaped(firsts));
  if (has_offset) set(quantizer, "offset", shaped(offsets));

  const auto dy = torch::randn(x.sizes(), torch::kDouble).to(x.scalar_type());
  const auto result = run(quantizer, x, dy);

  const auto n = static_cast<double>(codes.qmin());
  const auto p = static_cast<double>(codes.qmax());
  const auto numbers = x.to(torch::kDouble).contiguous();
  const auto gradients = dy.to(torch::kDouble).contiguous();
  auto y = torch::empty_like(numbers);
  auto dx = torch::empty_like(numbers);
  std::vector<double> dfirst(firsts.size());
  std::vector<double> doffset(firsts.size());
  const std::int64_t resolved = axis < 0 ? axis + x.dim() : axis;
  std::int64_t inner = 1;
  for (std::int64_t d = resolved + 1; d < x.dim(); ++d)
    inner *= x.size(d);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const auto c = static_cast<std::size_t>(is_per_channel ? i / inner % channels : 0);
    // The parameters are float32.
    const Parameters at{static_cast<float>(firsts[c]), static_cast<float>(offsets[c])};
    const double g = gradients.const_data_ptr<double>()[i];
    const auto element = example.rule(numbers.const_data_ptr<double>()[i], n, p, at);
    y.mutable_data_ptr<double>()[i] = element.y;
    dx.mutable_data_ptr<double>()[i] = g * element.dx;
    dfirst[c] += g * element.dfirst;
    doffset[c] += g * element.doffset;
  }
  const bool is_scaled = scale_gradient && (example.kind == Kind::kLsq || has_offset);
  const double factor = is_scaled ? 1 / std::sqrt(static_cast<double>(x.numel() / channels) * p) : 1;
  const double tolerance = tolerance_of(x.scalar_type());
  std::string text = mismatch(result.y, y.to(x.scalar_type()), {tolerance});
  if (!text.empty()) return "y: " + text;
  text = mismatch(result.dx, dx.to(x.scalar_type()));
  if (!text.empty()) return "dx: " + text;
  text = mismatch(result.gradients.at(example.first), shaped(dfirst) * factor, {1e-5, 1e-5});
  if (!text.empty()) return example.first + ": " + text;
  if (has_offset) text = mismatch(result.gradients.at("offset"), shaped(doffset) * factor, {1e-5, 1e-5});
  return text.empty() ? "" : "offset: " + text;
}

}  // namespace

TEST_CASE("every learned-step quantizer computes the equations of its paper") {
  torch::manual_seed(31);
  const IntegerRange signed_full(4, Signedness::kSigned);
  const IntegerRange signed_narrow(4, Signedness::kSigned, RangeWidth::kNarrow);
  const IntegerRange unsigned_full(4, Signedness::kUnsigned);
  int compared = 0;
  for (const auto& example : kExamples) {
    for (const auto& codes : {signed_full, signed_narrow, unsigned_full}) {
      if (example.kind == Kind::kPact && codes.is_signed()) continue;
      for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
        const auto x = (torch::randn({4, 3, 3, 5}, torch::kDouble) * 1.7).to(type);
        for (const bool scale_gradient : {true, false}) {
          CAPTURE(qat::to_string(example.kind), codes.to_string(), type, scale_gradient);
          CHECK(difference(example, codes, x, 0, false, scale_gradient) == "");
          for (const std::int64_t axis : {1, 2, -2, -3})
            CHECK(difference(example, codes, x, axis, true, scale_gradient) == "");
          const auto last = x.transpose(1, 3).contiguous();
          CHECK(difference(example, codes, last, -1, true, scale_gradient) == "");
          CHECK(difference(example, codes, last.transpose(0, -1), 0, true, scale_gradient) == "");
          ++compared;
        }
      }
    }
  }
  CHECK(compared == (3 * 3 + 1) * 4 * 2);
}

TEST_CASE("LSQ by hand: eq. 3 with and without the gradient scale") {
  LearnedStepQuantizer quantizer({.range = IntegerRange(3, Signedness::kSigned)});
  set(quantizer, "scale", 0.5);
  const auto result = run(quantizer, values({-3, -0.6, 0.2, 2}), values({1, 2, 3, 4}));
  CHECK(mismatch(result.y, values({-2, -0.5, 0, 1.5})) == "");
  CHECK(mismatch(result.dx, values({0, 2, 3, 0})) == "");
  // -4 * 1 + 2 * (-1 + 1.2) + 3 * (0 - 0.4) + 4 * 3, by sqrt(4 elements * 3)
  CHECK(result.gradient("scale") == Approx(7.2 / std::sqrt(12.0)));
}

TEST_CASE("LSQ+ by hand: the offset gets the gradient of the saturated elements") {
  LearnedStepQuantizer quantizer(
      {.kind = Kind::kLsqPlus, .range = IntegerRange(3, Signedness::kUnsigned), .scale_gradient = false});
  set(quantizer, "scale", 0.5);
  set(quantizer, "offset", -1);  // two steps: zero point 2, range [-1, 2.5]
  const auto x = values({-1.5, -0.4, 0, 1.1, 9});
  const auto result = run(quantizer, x, values({1, 2, 3, 4, 5}));
  CHECK(mismatch(result.y, values({-1, -0.5, 0, 1, 2.5})) == "");
  CHECK(mismatch(result.dx, values({0, 2, 3, 4, 0})) == "");
  CHECK(result.gradient("offset") == Approx(6));
  // 0 * 1 + 2 * (-1 + 0.8) + 4 * (2 - 2.2) + 5 * 7
  CHECK(result.gradient("scale") == Approx(33.8));
  CHECK(mismatch(quantizer.codes(x), torch::tensor({0, 1, 2, 4, 7}, torch::kInt)) == "");
}

TEST_CASE("an offset beyond the codes is held at the end and comes back") {
  LearnedStepQuantizer quantizer(
      {.kind = Kind::kLsqPlus, .range = IntegerRange(3, Signedness::kUnsigned), .scale_gradient = false});
  set(quantizer, "scale", 0.5);
  set(quantizer, "offset", 40);  // would be a zero point of -80: the range is [0, 3.5]
  CHECK(mismatch(quantizer.affine_params({}).zero_point, torch::tensor(0, torch::kInt)) == "");
  const auto x = values({-1, 0, 0.6, 9});
  CHECK(mismatch(quantizer.forward(x), values({0, 0, 0.5, 3.5})) == "");
  CHECK(run(quantizer, x, values({1, 0, 0, 0})).gradient("offset") == Approx(1));
  CHECK(run(quantizer, x, values({-1, 0, 0, 0})).gradient("offset") == 0.0);
}

TEST_CASE("PACT by hand: alpha gets the gradient of what it clips and nothing else") {
  LearnedStepQuantizer quantizer({.kind = Kind::kPact, .range = IntegerRange(2, Signedness::kUnsigned)});
  set(quantizer, "alpha", 3);
  const auto result = run(quantizer, values({-1, 0, 0.4, 1.7, 3, 8}), values({1, 2, 3, 4, 5, 6}));
  CHECK(mismatch(result.y, values({0, 0, 0, 2, 3, 3})) == "");
  CHECK(mismatch(result.dx, values({0, 0, 3, 4, 0, 0})) == "");
  CHECK(result.gradient("alpha") == 11.0);
}

TEST_CASE("TQT by hand: the logarithm of the range is rounded up") {
  LearnedStepQuantizer quantizer({.kind = Kind::kTqt, .range = IntegerRange(4, Signedness::kSigned)});
  set(quantizer, "log2_t", 0.2);  // 2^1 / 2^3
  const auto result = run(quantizer, values({-3, -0.3, 0.2, 1.8, 5}), values({1, 2, 3, 4, 5}));
  CHECK(mismatch(result.y, values({-2, -0.25, 0.25, 1.75, 1.75})) == "");
  CHECK(mismatch(result.dx, values({0, 2, 3, 4, 0})) == "");
  const double expected =
      0.25 * std::log(2.0) * (-8 + 2 * (-1 + 1.2) + 3 * (1 - 0.8) + 4 * (7 - 7.2) + 5 * 7);
  CHECK(result.gradient("log2_t") == Approx(expected));
  for (const auto& [log2_t, scale] :
       std::map<double, double>{{-31, 0x1p-34}, {-77, 0x1p-34}, {0, 0.125}, {40, 0x1p28}}) {
    set(quantizer, "log2_t", log2_t);
    CHECK(quantizer.affine_params({}).scale.item<double>() == scale);
  }
}
