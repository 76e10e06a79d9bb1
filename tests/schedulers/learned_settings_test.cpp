// Settings of learned quantizers: widths of layers, packed weights of each family, what is refused.
#include "learned_net.h"
#include <qat/integer/packed_weights.h>
#include <qat/nn/packed_weights.h>
#include <qat/quantizers/parametric_quantizer.h>

#include <functional>
#include <initializer_list>
#include <limits>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

using namespace qat;
using namespace qat::testing;

namespace {

/// What the refusal of a configuration lacks of `words`; "" if nothing.
std::string refusal_lacks(const std::function<void(QATConfig&)>& change,
                          std::initializer_list<std::string> words) {
  QATConfig config = integer_only_config();
  change(config);
  return error_lacks([&] { QATScheduler(small_net(), {images()}, config); }, words);
}

}  // namespace

TEST_CASE("Packed weights of every family are those that training uses", "[schedulers]") {
  for (const auto& family : all_families()) {
    INFO(family.weights);
    Run run(learned_config(family.weights, family.activations));
    run.start();
    run.step();
    const auto packed = nn::pack_weights(*run.net);
    REQUIRE(packed.size() == 2);
    const torch::NoGradGuard no_grad;
    for (const auto& [path, stored] : packed) {
      INFO(path);
      auto& weighted = path == "0" ? layer<nn::Conv2d>(run.net, 0) : layer<nn::Linear>(run.net, 4);
      const auto quantizer = quantizers(run.net).at(path + ".weight_slot");
      CHECK(stored.bits == quantizer->bits());
      CHECK(stored.biases.size() == static_cast<std::size_t>(weighted.weight_parameter()->size(0)));
      CHECK(mismatch(unpack_weight(stored), quantizer->forward(*weighted.weight_parameter())) == "");
    }
  }
}

TEST_CASE("Widths of single layers and of the input take effect", "[schedulers]") {
  for (const std::string family : {"affine", "lsq", "fp_d_xmax"}) {
    INFO(family);
    auto config = learned_config(family, family, 8);
    config.input_bits = 5;
    config.layer_weight_bits = {{"4", 3}};
    config.layer_activation_bits = {{"2", 6}};
    Run run(config);
    run.start();
    const auto check = [&] {
      CHECK(widths(run.net, true) ==
            std::map<std::string, std::int64_t>{{"0.weight_slot", 8}, {"4.weight_slot", 3}});
      CHECK(widths(run.net, false) ==
            std::map<std::string, std::int64_t>{{"0.input_slot", 5},
                                                {"2.output_slot", family == "fp_d_xmax" ? 5 : 6}});
    };
    check();  // a power of two as step leaves a bit unused where the range is not one
    run.step();
    check();
  }
  const auto config = learned_config("lsq", "lsq", 6);  // input_bits 0: as the other activations
  Run run(config);
  run.start();
  CHECK(widths(run.net, false).at("0.input_slot") == 6);
}

TEST_CASE("Power-of-two codes stay within what biases at their scale can hold", "[schedulers]") {
  for (const std::string family : {"pow2_n_m", "pow2_b_xmax", "pow2_b_xmin", "pow2_xmin_xmax"}) {
    INFO(family);
    Run run(learned_config(family, family, 8));
    run.start();
    for (auto& [path, parameter] : learnables(run.net)) {
      const torch::NoGradGuard no_grad;
      if (path.ends_with("xmin")) parameter.mul_(0x1p-30);
      if (path.ends_with(".n")) parameter.fill_(8);
    }
    run.scheduler.after_optimizer_step();
    for (const auto& [path, quantizer] : quantizers(run.net)) {
      INFO(path);
      CHECK(quantizer->bits() <= 4);
    }
  }
}

TEST_CASE("case 88: families and widths that do not exist are refused with what is allowed", "[schedulers]") {
  const auto weights = [](const char* family, std::int64_t bits) {
    return [=](QATConfig& config) {
      config.weight_quantizer = family;
      config.weight_bits = bits;
    };
  };
  const auto activations = [](const char* family) {
    return [=](QATConfig& config) { config.activation_quantizer = family; };
  };
  CHECK(refusal_lacks(weights("lsqq", 8), {"weight_quantizer", "\"lsqq\"", "lsq_plus", "ternary"}) == "");
  CHECK(refusal_lacks(weights("", 8), {"weight_quantizer", "\"\"", "affine"}) == "");
  CHECK(refusal_lacks(weights("pact", 8), {"weight_quantizer", "\"pact\"", "dorefa"}) == "");
  CHECK(refusal_lacks(activations("LSQ"), {"activation_quantizer", "\"LSQ\"", "pact"}) == "");
  for (const char* family : {"dorefa", "binary", "ternary"})
    CHECK(refusal_lacks(activations(family), {"activation_quantizer", family, "fp_d_xmax"}) == "");
  CHECK(refusal_lacks(weights("binary", 8), {"weight_bits is 8", "binary", "set weight_bits to 1"}) == "");
  CHECK(refusal_lacks(weights("ternary", 3), {"weight_bits is 3", "ternary", "set weight_bits to 2"}) == "");
  CHECK(refusal_lacks(weights("dorefa", 9), {"weight_bits", "dorefa", "9", "8"}) == "");

  for (const char* family : {"affine", "lsq", "fp_d_xmax", "pow2_xmin_xmax", "dorefa"}) {
    for (const std::int64_t bits : {0, -3, 64}) {
      const auto got = " must lie in [2, 16], got " + std::to_string(bits);
      CHECK(refusal_lacks(weights(family, bits), {"weight_bits" + got}) == "");
    }
  }
  for (const std::int64_t bits : {0, -3, 64}) {
    const auto got = " must lie in [2, 16], got " + std::to_string(bits);
    CHECK(refusal_lacks([&](QATConfig& config) { config.activation_bits = bits; },
                        {"activation_bits" + got}) == "");
    CHECK(refusal_lacks([&](QATConfig& config) { config.layer_weight_bits["4"] = bits; },
                        {"layer_weight_bits of 4" + got}) == "");
    CHECK(refusal_lacks([&](QATConfig& config) { config.layer_activation_bits["2"] = bits; },
                        {"layer_activation_bits of 2" + got}) == "");
    if (bits == 0) continue;  // activation_bits
    CHECK(refusal_lacks([&](QATConfig& config) { config.input_bits = bits; }, {"input_bits" + got}) == "");
  }
}

TEST_CASE("case 88: widths of layers that the model does not have are refused", "[schedulers]") {
  CHECK(refusal_lacks([](QATConfig& config) { config.layer_weight_bits["conv9"] = 4; },
                      {"layer_weight_bits", "conv9"}) == "");
  CHECK(refusal_lacks([](QATConfig& config) { config.layer_activation_bits["conv9"] = 4; },
                      {"layer_activation_bits", "conv9"}) == "");
}

TEST_CASE("case 88: budgets need a family whose width learns", "[schedulers]") {
  for (const char* family : {"affine", "lsq", "dorefa"}) {
    const auto change = [&](QATConfig& config) {
      config.weight_quantizer = family;
      config.weight_budget_kb = 1;
    };
    CHECK(refusal_lacks(change, {"weight_budget_kb", family, "fp_d_xmax"}) == "");
  }
  CHECK(refusal_lacks([](QATConfig& config) { config.activation_budget_kb = 1; },
                      {"activation_budget_kb", "activation_quantizer", "affine", "fp_d_xmax"}) == "");
  for (const double kilobytes :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const auto change = [&](QATConfig& config) {
      config.weight_quantizer = "fp_d_xmax";
      config.weight_budget_kb = kilobytes;
    };
    CHECK(refusal_lacks(change, {"weight_budget_kb"}) == "");
  }
}
