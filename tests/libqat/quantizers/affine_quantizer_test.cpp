#include <qat/quantizers/affine_quantizer.h>

#include <limits>
#include <memory>
#include <sstream>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace {

using qat::AffineQuantizer;
using qat::AffineQuantizerOptions;
using qat::IntegerRange;
using qat::RangeWidth;
using qat::ScaleSource;
using qat::Signedness;
using qat::testing::error_lacks;
using qat::testing::mismatch;
using torch::Tensor;

const IntegerRange kNarrowInt8(8, Signedness::kSigned, RangeWidth::kNarrow);

qat::ValueRange range(double min, double max) {
  return {torch::tensor(min, torch::kFloat), torch::tensor(max, torch::kFloat)};
}

/// A quantizer of weights: the scale follows the tensor.
std::shared_ptr<AffineQuantizer> weight_quantizer(std::optional<std::int64_t> axis = {}) {
  return std::make_shared<AffineQuantizer>(
      AffineQuantizerOptions{.range = kNarrowInt8, .scale_source = ScaleSource::kCurrent, .axis = axis});
}

std::string text_of(const torch::nn::Module& module) {
  std::ostringstream text;
  module.pretty_print(text);
  return text.str();
}

}  // namespace

TEST_CASE("an affine quantizer with a fixed range quantizes by it") {
  AffineQuantizer quantizer(
      {.range = IntegerRange(8, Signedness::kUnsigned), .symmetry = qat::Symmetry::kAffine});
  CHECK_FALSE(quantizer.has_range());
  CHECK(error_lacks([&] { quantizer.forward(torch::ones({2})); }, {"range"}) == "");
  quantizer.set_range(range(0.0, 5.1));
  CHECK(quantizer.has_range());
  const auto x = torch::tensor({-1.0F, 0.0F, 0.049F, 2.0F, 9.0F});
  CHECK(mismatch(quantizer.forward(x), torch::tensor({0.0F, 0.0F, 0.04F, 2.0F, 5.1F}), {1e-6, 1e-7}) == "");
  CHECK(mismatch(quantizer.codes(x), torch::tensor({0, 0, 2, 100, 255}, torch::kInt)) == "");
  CHECK(quantizer.bits() == 8);
}

TEST_CASE("an affine quantizer computes an activation in its own pass") {
  AffineQuantizer quantizer;
  quantizer.set_params(torch::tensor(0.5F), torch::tensor(0, torch::kInt));
  const auto x = torch::tensor({-1.0F, 0.3F, 7.0F}).requires_grad_();
  const auto y = quantizer.forward(x, {0.0, 6.0});
  CHECK(mismatch(y, torch::tensor({0.0F, 0.5F, 6.0F})) == "");
  CHECK(mismatch(torch::autograd::grad({y.sum()}, {x})[0], torch::tensor({0.0F, 1.0F, 0.0F})) == "");
}

TEST_CASE("a current scale follows the tensor") {
  auto quantizer = weight_quantizer(0);
  auto w = torch::tensor({{1.27F, 0.013F}, {-0.254F, 0.1F}});
  CHECK(mismatch(quantizer->affine_params(w).scale, torch::tensor({0.01F, 0.002F}), {1e-6}) == "");
  CHECK(mismatch(quantizer->forward(w), torch::tensor({{1.27F, 0.01F}, {-0.254F, 0.1F}}), {1e-6}) == "");
  w *= 2.0;
  CHECK(mismatch(quantizer->affine_params(w).scale, torch::tensor({0.02F, 0.004F}), {1e-6}) == "");
  CHECK(quantizer->affine_params(w).zero_point.scalar_type() == torch::kInt);
  CHECK(error_lacks([&] { quantizer->set_range(range(0, 1)); }, {"follows the tensor"}) == "");
  // The extreme elements keep their gradient: they define the scale and are inside the range.
  const auto leaf = w.clone().requires_grad_();
  CHECK(mismatch(torch::autograd::grad({quantizer->forward(leaf).sum()}, {leaf})[0], torch::ones({2, 2})) ==
        "");
}

TEST_CASE("a current scale does not depend on the layout of the tensor") {
  torch::manual_seed(5);
  const auto w = torch::randn({6, 5, 3, 3});
  for (const std::int64_t axis : {0, 1, -1}) {
    auto quantizer = weight_quantizer(axis);
    const auto expected = quantizer->forward(w);
    CHECK(torch::equal(quantizer->forward(w.contiguous(torch::MemoryFormat::ChannelsLast)), expected));
    CHECK(torch::equal(quantizer->forward(w.transpose(0, 1).contiguous().transpose(0, 1)), expected));
    CHECK(torch::equal(quantizer->forward(torch::stack({w, w}, -1).select(-1, 0)), expected));
  }
}

TEST_CASE("NaN in a weight stays a NaN and does not spoil the others") {
  auto quantizer = weight_quantizer(0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto w = torch::tensor({{nan, 1.27F}, {nan, nan}, {0.5F, 0.25F}});
  const auto y = quantizer->forward(w);
  CHECK(mismatch(y, torch::tensor({{nan, 1.27F}, {nan, nan}, {0.5F, 0.25F}}), {1e-2}) == "");
}

TEST_CASE("all-zero weights and channels stay zero with a gradient") {
  for (const auto& quantizer : {weight_quantizer(), weight_quantizer(0)}) {
    const auto w = torch::zeros({3, 2}).requires_grad_();
    const auto y = quantizer->forward(w);
    CHECK(mismatch(y, torch::zeros({3, 2})) == "");
    CHECK(mismatch(torch::autograd::grad({y.sum()}, {w})[0], torch::ones({3, 2})) == "");
    CHECK(quantizer->affine_params(w).scale.gt(0).all().item<bool>());
  }
}

TEST_CASE("case 16: half weights get a float32 scale") {
  auto quantizer = weight_quantizer();
  const auto w = torch::tensor({1e-6, 5e-7, -1e-6}, torch::kDouble).to(torch::kHalf);
  const auto params = quantizer->affine_params(w);
  CHECK(params.scale.scalar_type() == torch::kFloat);
  CHECK(params.scale.item<float>() == Approx(7.97857e-9).epsilon(1e-5));
  CHECK(mismatch(quantizer->codes(w), torch::tensor({127, 60, -127}, torch::kInt)) == "");
  CHECK(mismatch(quantizer->forward(w), w, {0.0, 6e-8}) == "");
}

TEST_CASE("case 28: one output channel has one scale") {
  auto quantizer = weight_quantizer(0);
  const auto w = torch::tensor({{0.5F, -1.27F, 0.0F, 0.01F}});
  const auto params = quantizer->affine_params(w);
  CHECK(mismatch(params.scale, torch::tensor({0.01F}), {1e-6}) == "");
  CHECK(mismatch(quantizer->forward(w), w, {1e-6}) == "");
}

TEST_CASE("case 67: the bit width sets scale and limits together") {
  AffineQuantizer quantizer({.range = IntegerRange(4, Signedness::kSigned, RangeWidth::kNarrow)});
  quantizer.set_range(range(-1.0, 1.0));
  CHECK(mismatch(quantizer.forward(torch::tensor({0.3F, 1.0F})), torch::tensor({0.2857143F, 1.0F}), {1e-6}) ==
        "");
}

TEST_CASE("case 102: empty tensors pass every affine quantizer") {
  AffineQuantizer fixed;
  fixed.set_range(range(0.0, 1.0));
  const auto current = weight_quantizer(1);
  const auto whole = weight_quantizer();
  for (qat::Quantizer* quantizer :
       {static_cast<qat::Quantizer*>(&fixed), static_cast<qat::Quantizer*>(current.get()),
        static_cast<qat::Quantizer*>(whole.get())}) {
    const auto x = torch::empty({0, 3}).requires_grad_();
    const auto y = quantizer->forward(x);
    CHECK(y.sizes() == x.sizes());
    CHECK(torch::autograd::grad({y.sum()}, {x})[0].sizes() == x.sizes());
  }
  CHECK(mismatch(fixed.named_buffers()["scale"], torch::tensor(1.0F / 127.0F), {1e-6}) == "");
}

TEST_CASE("case 104 and case 105: integers pass every affine quantizer and complex numbers none") {
  AffineQuantizer fresh;
  const auto current = weight_quantizer(0);
  const auto indices = torch::tensor({0, 5, 300}, torch::kLong);
  CHECK(mismatch(fresh.forward(indices), indices) == "");
  CHECK(mismatch(current->forward(indices), indices) == "");
  const auto complex = torch::ones({1}, torch::kComplexFloat);
  CHECK(error_lacks([&] { fresh.forward(complex); }, {"omplex"}) == "");
  CHECK(error_lacks([&] { current->forward(complex); }, {"omplex"}) == "");
}

TEST_CASE("set_params names what it refuses and changes nothing") {
  AffineQuantizer quantizer({.range = IntegerRange(8, Signedness::kUnsigned), .axis = 0});
  const auto scale = [](double v) { return torch::tensor({1.0, v}, torch::kDouble); };
  const auto zeros = torch::tensor({0, 0}, torch::kInt);
  for (const double bad :
       {0.0, -0.1, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    CHECK(error_lacks([&] { quantizer.set_params(scale(bad), zeros); }, {"channel 1", "positive"}) == "");
  }
  CHECK(error_lacks(
            [&] {
              quantizer.set_params(scale(1), torch::tensor({0, 256}, torch::kInt));
            },
            {"256", "uint8"}) == "");
  CHECK(error_lacks([&] { quantizer.set_params(torch::tensor(1.0F), torch::tensor(0, torch::kInt)); },
                    {"[channels]"}) == "");
  CHECK(error_lacks([&] { quantizer.set_params(scale(1), torch::tensor({0}, torch::kInt)); },
                    {"[channels]", "[2]", "[1]"}) == "");
  CHECK_FALSE(quantizer.has_range());
  quantizer.set_params(scale(2), zeros);
  CHECK(mismatch(quantizer.forward(torch::tensor({3.2F, 3.2F})), torch::tensor({3.0F, 4.0F})) == "");
}

TEST_CASE("an affine quantizer prints what it does") {
  AffineQuantizer quantizer(
      {.range = IntegerRange(8, Signedness::kUnsigned), .symmetry = qat::Symmetry::kAffine});
  CHECK(text_of(quantizer) == "qat::AffineQuantizer(uint8, affine, no range)");
  quantizer.set_params(torch::tensor(0.25F), torch::tensor(3, torch::kInt));
  CHECK(text_of(quantizer) == "qat::AffineQuantizer(uint8, affine, scale=0.25, zero_point=3)");
  CHECK(text_of(*weight_quantizer(0)) ==
        "qat::AffineQuantizer(int8 narrow, symmetric, axis=0, current range)");
}

TEST_CASE("Values with their scale are those of forward and affine_params", "[quantizers]") {
  torch::manual_seed(3);
  const auto x = torch::randn({3, 5});
  for (const auto& quantizer : {weight_quantizer(), weight_quantizer(0)}) {
    const auto [values, scale] = quantizer->forward_with_scale(x);
    CHECK(mismatch(values, quantizer->forward(x)) == "");
    CHECK(mismatch(scale, quantizer->affine_params(x).scale) == "");
  }
}
