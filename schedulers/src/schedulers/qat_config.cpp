#include <qat/quantizers/make_quantizer.h>
#include <qat/schedulers/qat_config.h>

#include <c10/util/Exception.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <type_traits>
#include <utility>

namespace qat {
namespace {

using Json = nlohmann::ordered_json;

std::string to_string(BatchNormFolding folding) {
  return folding == BatchNormFolding::kOnce ? "once" : "off";
}
std::string to_string(ActivationRange range) {
  return range == ActivationRange::kAuto ? "auto" : "signed";
}

std::string to_string(ActivationBudget budget) {
  return budget == ActivationBudget::kLargest ? "largest" : "sum";
}

// Reads the name of one of two enumerators.
template <class Enum>
void parse_either(const std::string& text, Enum first, Enum second, Enum& value) {
  for (const Enum each : {first, second}) {
    if (text == to_string(each)) {
      value = each;
      return;
    }
  }
  TORCH_CHECK_VALUE(false, "expected \"", to_string(first), "\" or \"", to_string(second), "\", got \"", text,
                    "\"");
}

void parse(const std::string& text, BatchNormFolding& value) {
  parse_either(text, BatchNormFolding::kOff, BatchNormFolding::kOnce, value);
}
void parse(const std::string& text, ActivationRange& value) {
  parse_either(text, ActivationRange::kSigned, ActivationRange::kAuto, value);
}
void parse(const std::string& text, ActivationBudget& value) {
  parse_either(text, ActivationBudget::kSum, ActivationBudget::kLargest, value);
}
void parse(const std::string& text, StraightThrough& value) {
  parse_either(text, StraightThrough::kClipped, StraightThrough::kUnclipped, value);
}
void parse(const std::string& text, PowerOfTwo& value) {
  value = parse_power_of_two(text);
}
void parse(const std::string& text, Rounding& value) {
  value = parse_rounding(text);
}
void parse(const std::string& text, WeightStart& value) {
  value = parse_weight_start(text);
}
void parse(const std::string& text, RecorderKind& value) {
  value = parse_recorder_kind(text);
}

// The one list of the fields, for writing and reading.
template <class Config, class Visitor>
void visit_fields(Config& config, Visitor&& visit) {
  visit("niter_to_recording", config.niter_to_recording);
  visit("niter_to_training", config.niter_to_training);
  visit("weight_bits", config.weight_bits);
  visit("activation_bits", config.activation_bits);
  visit("input_bits", config.input_bits);
  visit("residual_bits", config.residual_bits);
  visit("layer_weight_bits", config.layer_weight_bits);
  visit("layer_activation_bits", config.layer_activation_bits);
  visit("weight_quantizer", config.weight_quantizer);
  visit("activation_quantizer", config.activation_quantizer);
  visit("weight_start", config.weight_start);
  visit("channel_wise", config.channel_wise);
  visit("narrow_range", config.narrow_range);
  visit("activation_range", config.activation_range);
  visit("pow2", config.pow2);
  visit("round_mode", config.round_mode);
  visit("straight_through", config.straight_through);
  visit("recorder_weight", config.recorder_weight);
  visit("recorder_activation", config.recorder_activation);
  visit("recorder_decay", config.recorder_decay);
  visit("weight_range_current", config.weight_range_current);
  visit("hold_parameters", config.hold_parameters);
  visit("record_layers", config.record_layers);
  visit("skip_inputs_layers", config.skip_inputs_layers);
  visit("skip_outputs_layers", config.skip_outputs_layers);
  visit("skip_bias", config.skip_bias);
  visit("learning_rate_scale", config.learning_rate_scale);
  visit("bn_folding", config.bn_folding);
  visit("bn_self_folding", config.bn_self_folding);
  visit("quantizer_learning_rate_scale", config.quantizer_learning_rate_scale);
  visit("weight_budget_kb", config.weight_budget_kb);
  visit("activation_budget_kb", config.activation_budget_kb);
  visit("activation_budget", config.activation_budget);
  visit("budget_penalty", config.budget_penalty);
}

void read_value(const Json& json, bool& value) {
  TORCH_CHECK_VALUE(json.is_boolean(), "expected true or false, got ", json.dump());
  value = json.get<bool>();
}
void read_value(const Json& json, std::int64_t& value) {
  TORCH_CHECK_VALUE(json.is_number_integer(), "expected an integer, got ", json.dump());
  value = json.get<std::int64_t>();
}
void read_value(const Json& json, double& value) {
  TORCH_CHECK_VALUE(json.is_number(), "expected a number, got ", json.dump());
  value = json.get<double>();
}
void read_value(const Json& json, std::string& value) {
  TORCH_CHECK_VALUE(json.is_string(), "expected a name, got ", json.dump());
  value = json.get<std::string>();
}
void read_value(const Json& json, std::map<std::string, std::int64_t>& value) {
  TORCH_CHECK_VALUE(json.is_object(), "expected an object of layer paths and bits, got ", json.dump());
  value.clear();
  for (const auto& [path, bits] : json.items()) {
    TORCH_CHECK_VALUE(bits.is_number_integer(), "expected an integer for ", path, ", got ", bits.dump());
    value[path] = bits.get<std::int64_t>();
  }
}
void read_value(const Json& json, std::vector<std::string>& value) {
  value.clear();
  TORCH_CHECK_VALUE(json.is_array(), "expected a list of class names, got ", json.dump());
  for (const Json& name : json) {
    TORCH_CHECK_VALUE(name.is_string(), "expected a list of class names, got ", json.dump());
    value.push_back(name.get<std::string>());
  }
}
template <class Enum>
requires std::is_enum_v<Enum>
void read_value(const Json& json, Enum& value) {
  TORCH_CHECK_VALUE(json.is_string(), "expected a name, got ", json.dump());
  parse(json.get<std::string>(), value);
}

bool keeps_minimum(RecorderKind kind) {
  return kind == RecorderKind::kMinMaxMinMax || kind == RecorderKind::kMinMaxMva;
}

void check_family(const char* field, const std::string& family, const std::vector<std::string>& names) {
  const bool known = std::find(names.begin(), names.end(), family) != names.end();
  TORCH_CHECK_VALUE(known, "QATConfig: ", field, " is \"", family, "\"; expected ",
                    fmt::format("{}", fmt::join(names, ", ")));
}

void check_budget(const char* field, double kilobytes, const char* quantizer_field,
                  const std::string& family) {
  TORCH_CHECK_VALUE(std::isfinite(kilobytes) && kilobytes >= 0.0, "QATConfig: ", field,
                    " must be positive and finite, or 0 for no limit; got ", kilobytes);
  TORCH_CHECK_VALUE(kilobytes == 0.0 || has_learned_width(family), "QATConfig: ", field, " ", kilobytes,
                    " needs quantizers whose width learns, but ", quantizer_field, " is \"", family,
                    "\"; use fp_d_xmax or another fp_ or pow2_ family");
}

void check_names(const char* field, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    TORCH_CHECK_VALUE(!name.empty() && name.find(':') == std::string::npos, "QATConfig: ", field,
                      " takes class names without namespace, such as \"Conv2d\"; got \"", name, "\"");
  }
}

/// The fewest and the most bits that weights of a family can have.
std::pair<std::int64_t, std::int64_t> weight_widths(const std::string& family) {
  if (family == "binary") return {1, 1};
  if (family == "ternary") return {2, 2};
  return {2, family == "dorefa" ? 8 : 16};
}

}  // namespace

void QATConfig::validate() const {
  const bool by_call = niter_to_training == -1 && (niter_to_recording == 0 || niter_to_recording == -1);
  TORCH_CHECK_VALUE(
      by_call || (niter_to_recording >= 0 && niter_to_training > niter_to_recording),
      "QATConfig: expected 0 <= niter_to_recording < niter_to_training, so that at least one iteration "
      "records (or niter_to_training -1: by an explicit call, with niter_to_recording 0 or -1); got "
      "niter_to_recording ",
      niter_to_recording, " and niter_to_training ", niter_to_training);
  const auto check_bits = [](const char* field, std::int64_t bits) {
    TORCH_CHECK_VALUE(bits >= 2 && bits <= 16, "QATConfig: ", field, " must lie in [2, 16], got ", bits);
  };
  const auto [fewest, most] = weight_widths(weight_quantizer);
  const std::int64_t fixed = fewest == most ? most : weight_bits;
  TORCH_CHECK_VALUE(weight_bits == fixed, "QATConfig: weight_bits is ", weight_bits, ", but ",
                    weight_quantizer, " weights have ", fixed, "; set weight_bits to ", fixed);
  if (weight_quantizer != "binary") check_bits("weight_bits", weight_bits);
  TORCH_CHECK_VALUE(weight_quantizer != "dorefa" || weight_bits <= 8, "QATConfig: weight_bits is ",
                    weight_bits, "; dorefa weights have 2 to 8");
  check_bits("activation_bits", activation_bits);
  if (input_bits != 0) check_bits("input_bits", input_bits);
  if (residual_bits != 0) check_bits("residual_bits", residual_bits);
  for (const auto& [path, bits] : layer_weight_bits) {
    TORCH_CHECK_VALUE(bits >= fewest && bits <= most, "QATConfig: layer_weight_bits of ", path,
                      " must lie in [", fewest, ", ", most, "], got ", bits,
                      most < 16 ? ", for " + weight_quantizer + " weights" : "");
  }
  for (const auto& [path, bits] : layer_activation_bits)
    check_bits(("layer_activation_bits of " + path).c_str(), bits);
  check_family("weight_quantizer", weight_quantizer, weight_quantizer_names());
  check_family("activation_quantizer", activation_quantizer, activation_quantizer_names());
  const bool follows = weight_quantizer == "affine" && weight_range_current;
  TORCH_CHECK_VALUE(
      weight_start == WeightStart::kStatistics || !follows, "QATConfig: weight_start ",
      qat::to_string(weight_start),
      " searches the scale that affine weights keep, but with weight_range_current their scales follow "
      "the weights; set it to false, or use another weight_quantizer such as lsq");
  const bool has_start = weight_quantizer == "affine" || has_learned_parameters(weight_quantizer);
  TORCH_CHECK_VALUE(weight_start == WeightStart::kStatistics || has_start, "QATConfig: weight_start ",
                    qat::to_string(weight_start), " searches a scale, but that of ", weight_quantizer,
                    " weights follows the weights; set it to statistics, or use another weight_quantizer");
  check_budget("weight_budget_kb", weight_budget_kb, "weight_quantizer", weight_quantizer);
  check_budget("activation_budget_kb", activation_budget_kb, "activation_quantizer", activation_quantizer);
  TORCH_CHECK_VALUE(std::isfinite(budget_penalty) && budget_penalty >= 0.0,
                    "QATConfig: budget_penalty must be 0 or more and finite, got ", budget_penalty);
  TORCH_CHECK_VALUE(
      std::isfinite(quantizer_learning_rate_scale) && quantizer_learning_rate_scale > 0.0,
      "QATConfig: quantizer_learning_rate_scale must be positive and finite (1: the rate of the first "
      "group), got ",
      quantizer_learning_rate_scale);
  TORCH_CHECK_VALUE(recorder_decay >= 0.0 && recorder_decay < 1.0,
                    "QATConfig: recorder_decay must lie in [0, 1), got ", recorder_decay);
  TORCH_CHECK_VALUE(std::isfinite(learning_rate_scale) && learning_rate_scale > 0.0,
                    "QATConfig: learning_rate_scale must be positive and finite (1 leaves the rate), got ",
                    learning_rate_scale);
  TORCH_CHECK_VALUE(
      activation_range != ActivationRange::kAuto || keeps_minimum(recorder_activation),
      "QATConfig: activation_range auto needs the minimum of an activation, which recorder_activation ",
      qat::to_string(recorder_activation), " does not keep; use MinMaxMinMax or MinMaxMva");
  check_names("record_layers", record_layers);
  check_names("skip_inputs_layers", skip_inputs_layers);
  check_names("skip_outputs_layers", skip_outputs_layers);
  for (const std::string& name : record_layers) {
    TORCH_CHECK_VALUE(!name.starts_with("BatchNorm"), "QATConfig: record_layers lists ", name,
                      ", which has no quantized form; leave it out and set bn_folding");
  }
}

QATConfig tensorrt_config() {
  QATConfig config;
  config.record_layers = {"Conv1d",          "Conv2d",          "Conv3d",
                          "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
                          "Linear",          "MatMul",          "ReLU"};
  config.bn_folding = BatchNormFolding::kOnce;
  config.bn_self_folding = true;
  return config;
}

QATConfig integer_only_config() {
  QATConfig config;
  config.niter_to_recording = -1;
  config.niter_to_training = -1;
  config.residual_bits = 8;
  config.channel_wise = true;
  config.narrow_range = true;
  config.activation_range = ActivationRange::kAuto;
  config.pow2 = PowerOfTwo::kNotRound;
  config.straight_through = StraightThrough::kClipped;
  config.recorder_weight = RecorderKind::kAbsMax;
  config.recorder_activation = RecorderKind::kMinMaxMva;
  config.weight_range_current = true;
  config.skip_inputs_layers = {};
  config.skip_outputs_layers = {};
  config.learning_rate_scale = 1.0;
  config.bn_folding = BatchNormFolding::kOnce;
  return config;
}

QATConfig preset_config(std::string_view name) {
  if (name == "default") return {};
  if (name == "tensorrt") return tensorrt_config();
  if (name == "integer_only") return integer_only_config();
  TORCH_CHECK_VALUE(false, "preset: expected default, tensorrt or integer_only, got \"", name, "\"");
}

std::string to_json(const QATConfig& config) {
  Json json;
  visit_fields(config, [&](const char* name, const auto& value) {
    if constexpr (std::is_enum_v<std::decay_t<decltype(value)>>) {
      json[name] = to_string(value);
    } else {
      json[name] = value;
    }
  });
  return json.dump();
}

QATConfig parse_config(std::string_view text, QATConfig base) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  TORCH_CHECK_VALUE(json.is_object(), "QATConfig: expected a JSON object, got \"", text.substr(0, 80), "\"");
  std::set<std::string> known;
  visit_fields(base, [&](const char* name, auto& value) {
    known.insert(name);
    const auto found = json.find(name);
    if (found == json.end()) return;
    try {
      read_value(*found, value);
    } catch (const c10::Error& error) {
      TORCH_CHECK_VALUE(false, "QATConfig: ", name, ": ", error.what_without_backtrace());
    }
  });
  for (const auto& [name, value] : json.items()) {
    TORCH_CHECK_VALUE(known.contains(name), "QATConfig: there is no field \"", name, "\"");
  }
  base.validate();
  return base;
}

}  // namespace qat
