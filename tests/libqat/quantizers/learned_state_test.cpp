// What the quantizers with learned parameters, and the weight quantizers of few bits, keep in files and
// copies.
#include "libqat/quantizers/quantizer_run.h"
#include <qat/quantizers/learned_step_quantizer.h>
#include <qat/quantizers/low_bit_weight_quantizer.h>
#include <qat/quantizers/parametric_quantizer.h>
#include <qat/tensor_module.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace {

using qat::IntegerRange;
using qat::Learnable;
using qat::LearnedStepKind;
using qat::LearnedStepQuantizer;
using qat::LowBitWeightKind;
using qat::LowBitWeightQuantizer;
using qat::ParametricKind;
using qat::ParametricQuantizer;
using qat::Quantizer;
using qat::Signedness;
using qat::testing::error_lacks;
using qat::testing::mismatch;
using qat::testing::set;
using qat::testing::values;

const IntegerRange kUint4(4, Signedness::kUnsigned);

/// One quantizer of each kind with unusual options; the values of the parameters are not their start values.
std::vector<std::shared_ptr<Quantizer>> quantizers() {
  std::vector<std::shared_ptr<Quantizer>> all;
  for (int i = 0; i < 8; ++i) {
    const qat::ParametricOptions options{.kind = static_cast<ParametricKind>(i),
                                         .is_signed = i % 2 == 0,
                                         .with_zero = i % 3 == 0,
                                         .n = Learnable{3.7, 2, 6.25},
                                         .m = Learnable{-0.5, -3, 3},
                                         .d = Learnable{0.1, 0.01, 1},
                                         .xmax = Learnable{1.1, 0.3, 4},
                                         .xmin = Learnable{0.07, 0.01, 0.25},
                                         .rounding = qat::Rounding::kHalfToEven,
                                         .fix_parameters = i % 4 == 1};
    all.push_back(std::make_shared<ParametricQuantizer>(options));
    auto channels = options;
    channels.axis = -1;
    channels.channels = 3;
    all.push_back(std::make_shared<ParametricQuantizer>(channels));
  }
  for (int i = 0; i < 4; ++i) {
    const qat::LearnedStepOptions options{.kind = static_cast<LearnedStepKind>(i),
                                          .range = kUint4,
                                          .rounding = qat::Rounding::kHalfUp,
                                          .scale_gradient = false};
    all.push_back(std::make_shared<LearnedStepQuantizer>(options));
    auto channels = options;
    channels.axis = 1;
    channels.channels = 3;
    all.push_back(std::make_shared<LearnedStepQuantizer>(channels));
  }
  for (const auto& quantizer : all) {
    for (const auto& parameter : quantizer->named_parameters())
      set(*quantizer, parameter.key(), parameter.value().detach() * 0.9 + 0.013);
  }
  for (int i = 0; i < 3; ++i) {
    const auto kind = static_cast<LowBitWeightKind>(i);
    all.push_back(std::make_shared<LowBitWeightQuantizer>(qat::LowBitWeightOptions{.kind = kind, .bits = 3}));
  }
  all.push_back(std::make_shared<LowBitWeightQuantizer>(
      qat::LowBitWeightOptions{.kind = LowBitWeightKind::kBinary, .axis = -2}));
  return all;
}

std::string text_of(const torch::nn::Module& module) {
  std::ostringstream text;
  module.pretty_print(text);
  return text.str();
}

/// "" if two quantizers have the same configuration and equal parameters and quantize alike.
std::string difference(Quantizer& actual, Quantizer& expected) {
  if (actual.config() != expected.config()) return "configuration " + actual.config();
  if (text_of(actual) != text_of(expected)) return "text " + text_of(actual);
  const auto parameters = actual.named_parameters();
  const auto others = expected.named_parameters();
  if (parameters.keys() != others.keys()) return "other parameters";
  for (const auto& item : parameters) {
    if (auto text = mismatch(item.value(), others[item.key()]); !text.empty())
      return item.key() + ": " + text;
    if (item.value().requires_grad() != others[item.key()].requires_grad()) return item.key() + " learns";
  }
  const auto x = torch::linspace(-3, 3, 18).reshape({2, 3, 3});
  return mismatch(actual.forward(x), expected.forward(x));
}

std::shared_ptr<Quantizer> rebuilt(const Quantizer& quantizer) {
  auto module = std::dynamic_pointer_cast<Quantizer>(qat::make_tensor_module(quantizer.config()));
  REQUIRE(module);
  return module;
}

}  // namespace

TEST_CASE("learned quantizers are rebuilt from their configuration with fresh parameters") {
  for (const auto& quantizer : quantizers()) {
    INFO(quantizer->config());
    const auto again = rebuilt(*quantizer);
    CHECK(again->config() == quantizer->config());
    CHECK(again->bits() > 0);
    for (const auto& parameter : quantizer->named_parameters())
      set(*again, parameter.key(), parameter.value());
    CHECK(difference(*again, *quantizer) == "");
  }
  const ParametricQuantizer original(
      {.kind = ParametricKind::kPow2XminXmax, .xmin = Learnable{0.1, 0.01, 0.3}});
  const auto copy = std::dynamic_pointer_cast<ParametricQuantizer>(rebuilt(original));
  REQUIRE(copy);
  CHECK(copy->learnable("xmin") == Learnable{0.1, 0.01, 0.3});
  CHECK(mismatch(copy->named_parameters()["xmin"], torch::tensor(0.1F)) == "");
}

TEST_CASE("learned quantizers clone with their parameters and share none of them") {
  for (const auto& quantizer : quantizers()) {
    INFO(quantizer->config());
    quantizer->eval();
    const auto copy = std::dynamic_pointer_cast<Quantizer>(quantizer->clone());
    REQUIRE(copy);
    CHECK_FALSE(copy->is_training());
    CHECK(difference(*copy, *quantizer) == "");
    for (const auto& parameter : quantizer->named_parameters()) {
      CHECK(copy->named_parameters()[parameter.key()].is_leaf());
      CHECK(copy->named_parameters()[parameter.key()].data_ptr() != parameter.value().data_ptr());
    }
  }
}

TEST_CASE("learned quantizers save and load") {
  for (const auto& quantizer : quantizers()) {
    INFO(quantizer->config());
    std::stringstream file;
    torch::serialize::OutputArchive out;
    quantizer->save(out);
    out.save_to(file);
    const auto again = rebuilt(*quantizer);
    torch::serialize::InputArchive in;
    in.load_from(file);
    again->load(in);
    CHECK(difference(*again, *quantizer) == "");
  }
}

TEST_CASE("learned parameters stay float32 when the model changes its type") {
  for (const auto& quantizer : quantizers()) {
    INFO(quantizer->config());
    const auto before = std::dynamic_pointer_cast<Quantizer>(quantizer->clone());
    torch::nn::Linear owner(2, 2);
    owner->register_module("slot", quantizer);
    owner->to(torch::kHalf);
    owner->to(torch::kDouble);
    owner->to(torch::Device(torch::kCPU), torch::kHalf);
    CHECK(owner->weight.scalar_type() == torch::kHalf);
    for (const auto& parameter : quantizer->parameters())
      CHECK(parameter.scalar_type() == torch::kFloat);
    CHECK(difference(*quantizer, *before) == "");
    const auto half = torch::linspace(-2, 2, 18).reshape({2, 3, 3}).to(torch::kHalf);
    CHECK(quantizer->forward(half).scalar_type() == torch::kHalf);
  }
}

TEST_CASE("learned quantizers pass integers and empty tensors and refuse complex numbers") {
  for (const auto& quantizer : quantizers()) {
    INFO(quantizer->config());
    const auto indices = torch::tensor({0, 5, 300}, torch::kLong);
    CHECK(mismatch(quantizer->forward(indices), indices) == "");
    const auto empty = torch::empty({0, 3, 3}).requires_grad_();
    const auto y = quantizer->forward(empty);
    CHECK(y.sizes() == empty.sizes());
    CHECK(torch::autograd::grad({y.sum()}, {empty})[0].sizes() == empty.sizes());
    CHECK(error_lacks(
              [&] {
                quantizer->forward(torch::ones({1, 3, 3}, torch::kComplexFloat));
              },
              {"omplex"}) == "");
    CHECK(error_lacks([&] { quantizer->forward(torch::Tensor()); }, {"undefined"}) == "");
  }
}

TEST_CASE("configurations of learned quantizers that lack something are refused") {
  for (const std::string type : {"ParametricQuantizer", "LearnedStepQuantizer", "LowBitWeightQuantizer"}) {
    CHECK(error_lacks([&] { qat::make_tensor_module(R"({"type": ")" + type + R"("})"); }, {type, "kind"}) ==
          "");
    CHECK(error_lacks([&] { qat::make_tensor_module(R"({"type": ")" + type + R"(", "kind": "best"})"); },
                      {"'best'"}) == "");
  }
}
