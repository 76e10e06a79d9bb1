// Settings of single layers, by path and by pattern.
#include "schedulers/layer_settings.h"

#include "graph_builder.h"
#include "learned_net.h"

#include <functional>
#include <initializer_list>

#include "support/catch.h"
#include "support/errors.h"

using namespace qat;
using namespace qat::testing;

namespace {

/// What the refusal of a configuration for small_net() lacks of `words`; "" if nothing.
std::string refusal_lacks(const std::function<void(QATConfig&)>& change,
                          std::initializer_list<std::string> words) {
  QATConfig config = everything();
  change(config);
  return error_lacks(
      [&] {
        const auto net = small_net();
        QATScheduler(net, {images()}, config).check();
      },
      words);
}

}  // namespace

TEST_CASE("A pattern's star stands for any text, dots too", "[schedulers]") {
  using qat::detail::fits_pattern;
  for (const char* pattern :
       {"*", "features*", "*conv1", "features.*.conv1", "f*s.3*1", "**", "features.3.conv1"}) {
    INFO(pattern);
    CHECK(fits_pattern(pattern, "features.3.conv1"));
  }
  for (const char* pattern : {"", "features", "*conv2", "features.*.conv1.*", "conv1", "eatures.3.conv1"}) {
    INFO(pattern);
    CHECK_FALSE(fits_pattern(pattern, "features.3.conv1"));
  }
  CHECK(fits_pattern("*", ""));
  CHECK(fits_pattern("a*b*c", "abbc"));
  CHECK(fits_pattern("a*bc", "abcbc"));
}

TEST_CASE("A layer's own path comes before patterns, long patterns before short ones", "[schedulers]") {
  QATConfig config;
  config.weight_bits = 8;
  config.layer_weight_bits = {{"*", 7}, {"block.*", 6}, {"block.0.*", 5}, {"block.0.conv", 4}, {"*.conv", 3}};
  CHECK(qat::detail::weight_bits(config, "stem") == 7);
  CHECK(qat::detail::weight_bits(config, "block.1.fc") == 6);
  CHECK(qat::detail::weight_bits(config, "block.0.fc") == 5);
  CHECK(qat::detail::weight_bits(config, "block.0.conv") == 4);
  CHECK(qat::detail::weight_bits(config, "head.conv") == 3);
  // "*.conv" and "block.*" are 6 and 7 letters long.
  CHECK(qat::detail::weight_bits(config, "block.1.conv") == 6);
  config.layer_weight_quantizer = {{"head.*", "binary"}, {"stem", "ternary"}};
  CHECK(qat::detail::weight_bits(config, "head.conv") == 1);
  CHECK(qat::detail::weight_bits(config, "stem") == 2);
  config.layer_weight_bits.clear();
  CHECK(qat::detail::weight_bits(config, "block.0.conv") == 8);
}

TEST_CASE("Families and widths of single layers take effect", "[schedulers]") {
  QATConfig config = everything();
  config.layer_weight_quantizer = {{"4", "lsq"}};
  config.layer_weight_bits = {{"*", 4}};
  config.layer_activation_quantizer = {{"2", "fp_d_xmax"}};
  Run run(config);
  run.start();
  const auto all = quantizers(run.net);
  CHECK(widths(run.net, true) ==
        std::map<std::string, std::int64_t>{{"0.weight_slot", 4}, {"4.weight_slot", 4}});
  CHECK(all.at("0.weight_slot")->name() == "qat::AffineQuantizer");
  CHECK(all.at("4.weight_slot")->name() == "qat::LearnedStepQuantizer");
  CHECK(all.at("2.output_slot")->name() == "qat::ParametricQuantizer");
  CHECK(all.at("0.input_slot")->name() == "qat::AffineQuantizer");
  CHECK_NOTHROW(run.step());
}

TEST_CASE("A layer that is skipped computes in float and reads what others quantize", "[schedulers]") {
  GraphBuilder g;
  const auto relu = g.layer("ReLU", "a.relu", {g.layer("Conv2d", "a.conv", {g.input()})});
  const auto middle = g.layer("Conv2d", "b.conv", {relu});
  g.output(g.layer("Linear", "c.fc", {g.layer("ReLU", "b.relu", {middle})}));
  QATConfig config = everything();
  config.skip_layers = {"b.*"};
  const auto placement = g.place(config);
  CHECK(layers(placement.weights) == std::set<std::string>{"a.conv", "c.fc"});
  // Nothing quantized reads a.relu; c.fc reads b.relu.
  CHECK(activations(placement) == std::set<std::string>{"a.conv.input_slot", "b.relu.output_slot"});
  config.skip_layers = {"*"};
  CHECK(error_lacks([&] { g.place(config); }, {"quantizes no layer"}) == "");
}

TEST_CASE("Settings of layers that do not exist are refused with those that do", "[schedulers]") {
  CHECK(refusal_lacks(
            [](QATConfig& config) {
              config.layer_weight_bits = {{"conv", 4}};
            },
            {"layer_weight_bits", "\"conv\"", "0, 4"}) == "");
  CHECK(refusal_lacks(
            [](QATConfig& config) {
              config.layer_weight_bits = {{"features.*", 4}};
            },
            {"layer_weight_bits", "pattern \"features.*\"", "0, 4"}) == "");
  CHECK(refusal_lacks(
            [](QATConfig& config) {
              config.layer_weight_quantizer = {{"2", "lsq"}};
            },
            {"layer_weight_quantizer", "\"2\"", "no weight"}) == "");
  CHECK(refusal_lacks(
            [](QATConfig& config) {
              config.layer_activation_quantizer = {{"4", "lsq"}};
            },
            {"layer_activation_quantizer", "\"4\"", "no quantizer", "0, 2"}) == "");
  CHECK(refusal_lacks([](QATConfig& config) { config.skip_layers = {"9"}; }, {"skip_layers", "\"9\""}) == "");
  CHECK(refusal_lacks(
            [](QATConfig& config) {
              config.layer_weight_quantizer = {{"4", "pact"}};
            },
            {"layer_weight_quantizer of 4", "\"pact\"", "lsq"}) == "");
  CHECK(refusal_lacks(
            [](QATConfig& config) {
              config.weight_bits = 16;
              config.layer_weight_quantizer = {{"4", "dorefa"}};
            },
            {"weight of 4", "16 bits", "2 to 8", "layer_weight_bits"}) == "");
  CHECK(refusal_lacks(
            [](QATConfig& config) {
              config.layer_weight_quantizer = {{"4", "binary"}};
              config.layer_weight_bits = {{"4", 8}};
            },
            {"layer_weight_bits of 4 is 8", "binary", "have 1"}) == "");
  CHECK(refusal_lacks(
            [](QATConfig& config) {
              config.layer_weight_bits = {{"*", 4}};
              config.skip_layers = {"0"};
            },
            {}) == "no exception");
  CHECK(refusal_lacks(
            [](QATConfig& config) {
              config.layer_weight_bits = {{"0", 4}};
              config.skip_layers = {"0"};
            },
            {"layer_weight_bits", "\"0\"", "not quantized", "skip_layers", "4"}) == "");
}
