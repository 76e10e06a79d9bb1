#include <qat/schedulers/phase.h>
#include <qat/schedulers/qat_config.h>

#include <functional>
#include <initializer_list>
#include <limits>
#include <string>

#include "support/catch.h"
#include "support/errors.h"

using namespace qat;
using qat::testing::error_lacks;

namespace {

/// What the text of validate()'s exception after a change lacks of `words`; "" if nothing.
std::string refusal_lacks(const std::function<void(QATConfig&)>& change,
                          std::initializer_list<std::string> words) {
  QATConfig config;
  change(config);
  return error_lacks([&] { config.validate(); }, words);
}

bool is_valid(const std::function<void(QATConfig&)>& change) {
  return refusal_lacks(change, {}) == "no exception";
}

std::string parse_error_lacks(const char* json, std::initializer_list<std::string> words) {
  return error_lacks([&] { parse_config(json); }, words);
}

}  // namespace

TEST_CASE("golden V38: impossible iterations are refused", "[schedulers]") {
  const auto plan = [](std::int64_t recording, std::int64_t training) {
    return [=](QATConfig& config) {
      config.niter_to_recording = recording;
      config.niter_to_training = training;
    };
  };
  CHECK(refusal_lacks(plan(0, 0), {"niter_to_recording 0 and niter_to_training 0"}) == "");
  CHECK(refusal_lacks(plan(-1, 5), {"niter_to_recording -1 and niter_to_training 5"}) == "");
  CHECK(refusal_lacks(plan(5, 5), {"niter_to_recording 5 and niter_to_training 5"}) == "");
  CHECK(refusal_lacks(plan(6, 5), {"niter_to_recording 6 and niter_to_training 5"}) == "");
  CHECK(is_valid(plan(0, 1)));
  CHECK(is_valid(plan(3, 4)));
}

TEST_CASE("The default configuration is valid as B33 asks", "[schedulers]") {
  CHECK_NOTHROW(QATConfig().validate());
  CHECK(QATConfig().niter_to_recording == 0);
  CHECK(QATConfig().niter_to_training == -1);
  CHECK(is_valid([](QATConfig& config) { config.niter_to_recording = -1; }));
  CHECK_FALSE(is_valid([](QATConfig& config) { config.niter_to_recording = 3; }));
}

TEST_CASE("QATConfig refuses bit widths outside 2 to 16", "[schedulers]") {
  for (const std::int64_t bits : {-3, 0, 1, 17, 99}) {
    const std::string got = " must lie in [2, 16], got " + std::to_string(bits);
    CHECK(refusal_lacks([&](QATConfig& config) { config.weight_bits = bits; }, {"weight_bits" + got}) == "");
    CHECK(refusal_lacks([&](QATConfig& config) { config.activation_bits = bits; },
                        {"activation_bits" + got}) == "");
  }
  for (const std::int64_t bits : {2, 8, 16}) {
    CHECK(is_valid([&](QATConfig& config) { config.weight_bits = config.activation_bits = bits; }));
  }
}

TEST_CASE("QATConfig refuses values and combinations that mean nothing", "[schedulers]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double decay : {-0.1, 1.0, nan}) {
    CHECK(refusal_lacks([&](QATConfig& config) { config.recorder_decay = decay; }, {"recorder_decay"}) == "");
  }
  for (const double scale : {0.0, -0.1, nan, infinity}) {
    CHECK(refusal_lacks([&](QATConfig& config) { config.learning_rate_scale = scale; },
                        {"learning_rate_scale"}) == "");
  }
  for (const auto kind : {RecorderKind::kAbsMax, RecorderKind::kMaxMax, RecorderKind::kMaxMva}) {
    const auto change = [&](QATConfig& config) {
      config.activation_range = ActivationRange::kAuto;
      config.recorder_activation = kind;
    };
    CHECK(refusal_lacks(change, {to_string(kind), "MinMaxMva"}) == "");
  }
  const auto searched = [](QATConfig& config) {
    config.weight_start = WeightStart::kMse;
    config.weight_range_current = true;
  };
  CHECK(refusal_lacks(searched, {"weight_start mse", "weight_range_current", "lsq"}) == "");
  const auto searched_ternary = [](QATConfig& config) {
    config.weight_start = WeightStart::kMse;
    config.weight_quantizer = "ternary";
    config.weight_bits = 2;
  };
  CHECK(refusal_lacks(searched_ternary, {"weight_start mse", "ternary", "statistics"}) == "");
  CHECK(refusal_lacks([](QATConfig& config) { config.residual_bits = 1; }, {"residual_bits", "got 1"}) == "");
  CHECK(refusal_lacks([](QATConfig& config) { config.record_layers = {"BatchNorm2d"}; }, {"bn_folding"}) ==
        "");
  CHECK(refusal_lacks([](QATConfig& config) { config.record_layers = {"qat::nn::Conv2d"}; },
                      {"qat::nn::Conv2d"}) == "");
  CHECK(refusal_lacks([](QATConfig& config) { config.skip_inputs_layers = {""}; }, {"skip_inputs_layers"}) ==
        "");
}

TEST_CASE("The presets are valid and differ where they should", "[schedulers]") {
  for (const char* name : {"default", "tensorrt", "integer_only", "onnxruntime"})
    CHECK_NOTHROW(preset_config(name).validate());
  CHECK(preset_config("default") == QATConfig());
  CHECK(preset_config("tensorrt") == tensorrt_config());
  CHECK(preset_config("integer_only") == integer_only_config());

  const QATConfig tensorrt = tensorrt_config();
  CHECK(tensorrt.bn_folding == BatchNormFolding::kOnce);
  CHECK(tensorrt.bn_self_folding);
  CHECK(tensorrt.record_layers == std::vector<std::string>{"Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d",
                                                           "ConvTranspose2d", "ConvTranspose3d", "Linear",
                                                           "MatMul", "ReLU"});
  CHECK(tensorrt.skip_inputs_layers == QATConfig().skip_inputs_layers);

  const QATConfig integers = integer_only_config();
  CHECK(integers.skip_inputs_layers.empty());
  CHECK(integers.skip_outputs_layers.empty());
  CHECK(integers.channel_wise);
  CHECK(integers.narrow_range);
  CHECK(integers.weight_range_current);
  CHECK(integers.activation_range == ActivationRange::kAuto);
  CHECK(integers.pow2 == PowerOfTwo::kNotRound);
  CHECK(integers.straight_through == StraightThrough::kClipped);
  CHECK(integers.recorder_activation == RecorderKind::kMinMaxMva);
  CHECK(integers.learning_rate_scale == 1.0);

  QATConfig onnxruntime = integer_only_config();
  onnxruntime.recorder_position = RecorderPosition::kBoth;
  CHECK(preset_config("onnxruntime") == onnxruntime);

  CHECK(error_lacks([] { preset_config("tensor_rt"); }, {"integer_only", "did you mean 'tensorrt'"}) == "");
  CHECK(error_lacks([] { preset_config("tensor_rt"); }, {"tensor_rt"}) == "");
}

TEST_CASE("A configuration survives its JSON text", "[schedulers]") {
  QATConfig config;
  config.niter_to_recording = 7;
  config.niter_to_training = 11;
  config.weight_bits = 4;
  config.activation_bits = 6;
  config.residual_bits = 9;
  config.channel_wise = true;
  config.narrow_range = true;
  config.activation_range = ActivationRange::kAuto;
  config.pow2 = PowerOfTwo::kCeil;
  config.round_mode = Rounding::kHalfAwayFromZero;
  config.straight_through = StraightThrough::kClipped;
  config.recorder_weight = RecorderKind::kAbsMax;
  config.recorder_activation = RecorderKind::kMinMaxMva;
  config.recorder_decay = 0.1;
  config.weight_start = WeightStart::kMse;
  config.weight_quantizer = "lsq";
  config.weight_range_current = true;
  config.record_layers = {"Conv2d", "Add"};
  config.skip_inputs_layers = {};
  config.skip_outputs_layers = {"Conv2d"};
  config.skip_bias = true;
  config.learning_rate_scale = 0.3;
  config.bn_folding = BatchNormFolding::kOnce;
  config.layer_weight_bits = {{"conv*", 3}};
  config.layer_weight_quantizer = {{"fc", "lsq_plus"}};
  config.layer_activation_quantizer = {{"block.*", "pact"}};
  config.channel_last = true;
  config.precision_mode = PrecisionMode::kMixedQnn;
  config.recorder_position = RecorderPosition::kBoth;
  config.input_scale = 1.0 / 255;
  config.recorder_percentile = 99.5;
  config.skip_layers = {"head.*"};
  config.ext_name = "cuda:1";
  config.bn_self_folding = true;
  CHECK(parse_config(to_json(config)) == config);
  config.activation_range = ActivationRange::kUnsigned;
  config.activation_quantizer = "lsq_plus";
  config.layer_activation_quantizer = {};
  config.zero_point = true;
  config.precision_mode = PrecisionMode::kQnn;
  CHECK(parse_config(to_json(config)) == config);
  for (const char* name : {"default", "tensorrt", "integer_only", "onnxruntime"}) {
    CHECK(parse_config(to_json(preset_config(name))) == preset_config(name));
  }
}

TEST_CASE("parse_config keeps the base where the text is silent", "[schedulers]") {
  QATConfig expected = integer_only_config();
  expected.weight_bits = 4;
  CHECK(parse_config(R"({"weight_bits": 4})", integer_only_config()) == expected);
  CHECK(parse_config("{}") == QATConfig());
}

TEST_CASE("parse_config names what it cannot read", "[schedulers]") {
  CHECK(parse_error_lacks("weights", {"JSON object"}) == "");
  CHECK(parse_error_lacks(R"({"weight_bit": 4})", {"\"weight_bit\"", "did you mean 'weight_bits'"}) == "");
  CHECK(parse_error_lacks(R"({"dtype": 8})", {"dtype", "8"}) == "");
  CHECK(parse_error_lacks(R"({"layer_weight_bits": {"conv": "8"}})",
                          {"layer_weight_bits", "conv", "integer"}) == "");
  CHECK(parse_error_lacks(R"({"layer_weight_quantizer": {"conv": 8}})", {"layer_weight_quantizer", "name"}) ==
        "");
  CHECK(parse_error_lacks(R"({"precision_mode": "qnn"})", {"precision_mode", "SIM_QNN", "MIXED_QNN"}) == "");
  CHECK(parse_error_lacks(R"({"recorder_position": "AFTER"})", {"recorder_position", "BEFORE", "BOTH"}) ==
        "");
  CHECK(parse_error_lacks(R"({"weight_bits": 1.5})", {"weight_bits"}) == "");
  CHECK(parse_error_lacks(R"({"weight_bits": 1.5})", {"1.5"}) == "");
  CHECK(parse_error_lacks(R"({"weight_bits": 99})", {"99"}) == "");
  CHECK(parse_error_lacks(R"({"channel_wise": 1})", {"channel_wise"}) == "");
  CHECK(parse_error_lacks(R"({"pow2": "up"})", {"pow2"}) == "");
  CHECK(parse_error_lacks(R"({"pow2": "up"})", {"up"}) == "");
  CHECK(parse_error_lacks(R"({"bn_folding": "twice"})", {"once"}) == "");
  CHECK(parse_error_lacks(R"({"bn_folding": "twice"})", {"twice"}) == "");
  CHECK(parse_error_lacks(R"({"record_layers": "Conv2d"})", {"record_layers"}) == "");
  CHECK(parse_error_lacks(R"({"record_layers": [1]})", {"record_layers"}) == "");
}

TEST_CASE("Phases have names", "[schedulers]") {
  for (const Phase phase : {Phase::kFloat, Phase::kRecording, Phase::kTraining, Phase::kDeployment}) {
    CHECK(parse_phase(to_string(phase)) == phase);
  }
  CHECK(to_string(Phase::kRecording) == "RECORDING");
  CHECK(error_lacks([] { parse_phase("QUANTIZED"); }, {"QUANTIZED"}) == "");
  CHECK(error_lacks([] { parse_phase("QUANTIZED"); }, {"RECORDING"}) == "");
}
