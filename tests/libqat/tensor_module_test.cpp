#include <qat/quantizers/affine_quantizer.h>
#include <qat/quantizers/bias_quantizer.h>
#include <qat/recorders/recorder.h>
#include <qat/tensor_module.h>

#include <memory>
#include <sstream>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace {

using qat::AffineQuantizer;
using qat::AffineQuantizerOptions;
using qat::TensorModule;
using qat::testing::error_lacks;
using qat::testing::mismatch;

AffineQuantizerOptions unusual_options() {
  return {.range = {5, qat::Signedness::kUnsigned, qat::RangeWidth::kNarrow},
          .symmetry = qat::Symmetry::kAffineEvenZero,
          .power_of_two = qat::PowerOfTwo::kCeil,
          .rounding = qat::Rounding::kHalfUp,
          .straight_through = qat::StraightThrough::kUnclipped,
          .scale_source = qat::ScaleSource::kFixed,
          .axis = -2};
}

/// One module of each class, fresh and with a state.
std::vector<std::shared_ptr<TensorModule>> modules() {
  auto fresh = std::make_shared<AffineQuantizer>(unusual_options());
  auto ranged = std::make_shared<AffineQuantizer>(AffineQuantizerOptions{.axis = 0});
  ranged->set_range({torch::tensor({-1.0F, -2.0F, -3.0F}), torch::tensor({1.0F, 2.0F, 5.0F})});
  auto whole = std::make_shared<AffineQuantizer>();
  whole->set_range({torch::tensor(-1.0F), torch::tensor(2.0F)});
  auto current =
      std::make_shared<AffineQuantizer>(AffineQuantizerOptions{.scale_source = qat::ScaleSource::kCurrent});
  auto recorder = std::make_shared<qat::Recorder>(qat::RecorderOptions{.axis = 1});
  auto seen = std::make_shared<qat::Recorder>(qat::RecorderOptions{.axis = 1});
  seen->record(torch::tensor({{-1.0F, 2.0F}, {3.0F, 4.0F}}));
  return {fresh,
          ranged,
          whole,
          current,
          recorder,
          seen,
          std::make_shared<qat::BiasQuantizer>(qat::Rounding::kHalfUp)};
}

std::string text_of(const torch::nn::Module& module) {
  std::ostringstream text;
  module.pretty_print(text);
  return text.str();
}

/// Whether two modules hold equal tensors under equal names.
std::string state_differs(const torch::nn::Module& actual, const torch::nn::Module& expected) {
  const auto buffers = actual.named_buffers();
  const auto others = expected.named_buffers();
  if (buffers.keys() != others.keys()) return "other buffers";
  for (const auto& item : buffers) {
    const auto text = mismatch(item.value(), others[item.key()]);
    if (!text.empty()) return item.key() + ": " + text;
  }
  return "";
}

}  // namespace

TEST_CASE("make_tensor_module rebuilds a module from its configuration") {
  for (const auto& module : modules()) {
    const auto again = qat::make_tensor_module(module->config());
    CHECK(again->config() == module->config());
    CHECK(again->is_training());
  }
  const auto quantizer = std::dynamic_pointer_cast<AffineQuantizer>(
      qat::make_tensor_module(AffineQuantizer(unusual_options()).config()));
  REQUIRE(quantizer);
  const auto& options = quantizer->options();
  CHECK(options.range == unusual_options().range);
  CHECK(options.symmetry == qat::Symmetry::kAffineEvenZero);
  CHECK(options.power_of_two == qat::PowerOfTwo::kCeil);
  CHECK(options.rounding == qat::Rounding::kHalfUp);
  CHECK(options.straight_through == qat::StraightThrough::kUnclipped);
  CHECK(options.scale_source == qat::ScaleSource::kFixed);
  CHECK(options.axis == -2);
}

TEST_CASE("make_tensor_module refuses texts that are no configuration") {
  for (const std::string text : {"", "{", "[]", "3", "{}", R"({"type": 3})"}) {
    CHECK(error_lacks([&] { qat::make_tensor_module(text); }, {"JSON", "type"}) == "");
  }
  CHECK(error_lacks([] { qat::make_tensor_module(R"({"type": "Quantum"})"); },
                    {"'Quantum'", "AffineQuantizer"}) == "");
  CHECK(
      error_lacks(
          [] { qat::make_tensor_module(R"({"type": "AffineQuantizer", "signed": true, "narrow": false})"); },
          {"AffineQuantizer", "bits"}) == "");
  CHECK(error_lacks([] { qat::make_tensor_module(R"({"type": "BiasQuantizer", "rounding": "up"})"); },
                    {"'up'"}) == "");
}

TEST_CASE("case 61: quantizer state is in the registered buffers") {
  AffineQuantizer quantizer;
  quantizer.set_range({torch::tensor(-1.27F), torch::tensor(1.0F)});
  CHECK(mismatch(quantizer.named_buffers()["scale"], torch::tensor(0.01F), {1e-6}) == "");
  CHECK(mismatch(quantizer.named_buffers()["zero_point"], torch::tensor(0, torch::kInt)) == "");
  quantizer.set_range({torch::tensor(-2.54F), torch::tensor(1.0F)});
  CHECK(mismatch(quantizer.named_buffers()["scale"], torch::tensor(0.02F), {1e-6}) == "");
}

TEST_CASE("case 63: every buffer of a fresh module is defined") {
  for (const auto& module : modules()) {
    for (const auto& buffer : module->named_buffers())
      CHECK(buffer.value().defined());
    CHECK(module->parameters().empty());
  }
}

TEST_CASE("tensor modules clone in any state") {
  for (const auto& module : modules()) {
    module->eval();
    const auto copy = std::dynamic_pointer_cast<TensorModule>(module->clone());
    REQUIRE(copy);
    CHECK(copy->config() == module->config());
    CHECK(state_differs(*copy, *module) == "");
    CHECK_FALSE(copy->is_training());
    CHECK(text_of(*copy) == text_of(*module));
    const auto buffers = copy->buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].numel() > 0) CHECK(buffers[i].data_ptr() != module->buffers()[i].data_ptr());
    }
  }
}

TEST_CASE("a cloned quantizer uses its own scale") {
  AffineQuantizer quantizer;
  quantizer.set_params(torch::tensor(0.5F), torch::tensor(0, torch::kInt));
  const auto copy = std::dynamic_pointer_cast<AffineQuantizer>(quantizer.clone());
  quantizer.set_params(torch::tensor(2.0F), torch::tensor(0, torch::kInt));
  CHECK(copy->forward(torch::tensor({0.6F})).item<float>() == 0.5F);
  CHECK(quantizer.forward(torch::tensor({1.4F})).item<float>() == 2.0F);
}

TEST_CASE("tensor modules inside a cloneable module clone with it") {
  struct LayerImpl : torch::nn::Cloneable<LayerImpl> {
    LayerImpl() { LayerImpl::reset(); }
    void reset() override {
      slot = register_module("slot", std::make_shared<AffineQuantizer>(AffineQuantizerOptions{.axis = 0}));
    }
    std::shared_ptr<AffineQuantizer> slot;
  };
  LayerImpl layer;
  layer.slot->set_range({torch::tensor({-1.0F, -2.0F}), torch::tensor({1.0F, 2.0F})});
  const auto copy = std::dynamic_pointer_cast<LayerImpl>(layer.clone());
  CHECK(state_differs(*copy, layer) == "");
  CHECK(copy->slot->has_range());
  CHECK(copy->slot != layer.slot);
}

TEST_CASE("tensor modules save and load in any state") {
  for (const auto& module : modules()) {
    std::stringstream file;
    torch::serialize::OutputArchive out;
    module->save(out);
    out.save_to(file);
    const auto again = qat::make_tensor_module(module->config());
    torch::serialize::InputArchive in;
    in.load_from(file);
    again->load(in);
    CHECK(state_differs(*again, *module) == "");
    CHECK(text_of(*again) == text_of(*module));
  }
}

TEST_CASE("buffers keep their type when the model changes its own") {
  for (const auto& module : modules()) {
    const auto before = std::dynamic_pointer_cast<TensorModule>(module->clone());
    torch::nn::Linear owner(2, 2);
    owner->register_module("slot", module);
    owner->to(torch::kHalf);
    CHECK(owner->weight.scalar_type() == torch::kHalf);
    CHECK(state_differs(*module, *before) == "");
    owner->to(torch::kDouble);
    CHECK(state_differs(*module, *before) == "");
    owner->to(torch::Device(torch::kCPU), torch::kFloat);
    CHECK(state_differs(*module, *before) == "");
    owner->to(torch::Device(torch::kCPU));
    CHECK(state_differs(*module, *before) == "");
  }
}
