#include <qat/schedulers/qat_config.h>
#include <qat/suggestion.h>

#include <c10/util/Exception.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <initializer_list>
#include <type_traits>

namespace qat {
namespace {

using Json = nlohmann::ordered_json;

std::string to_string(BatchNormFolding folding) {
  return folding == BatchNormFolding::kOnce ? "once" : "off";
}
std::string to_string(ActivationRange range) {
  switch (range) {
    case ActivationRange::kSigned:
      return "signed";
    case ActivationRange::kUnsigned:
      return "unsigned";
    case ActivationRange::kAuto:
      break;
  }
  return "auto";
}
std::string to_string(RecorderPosition position) {
  return position == RecorderPosition::kBoth ? "BOTH" : "BEFORE";
}
std::string to_string(PrecisionMode mode) {
  switch (mode) {
    case PrecisionMode::kSimQnn:
      return "SIM_QNN";
    case PrecisionMode::kQnn:
      return "QNN";
    case PrecisionMode::kMixedQnn:
      break;
  }
  return "MIXED_QNN";
}

std::string to_string(ActivationBudget budget) {
  return budget == ActivationBudget::kLargest ? "largest" : "sum";
}

// Reads the name of one of these enumerators.
template <class Enum>
void parse_one_of(const std::string& text, std::initializer_list<Enum> all, Enum& value) {
  std::vector<std::string> names;
  for (const Enum each : all) {
    names.push_back(fmt::format("\"{}\"", to_string(each)));
    if (text != to_string(each)) continue;
    value = each;
    return;
  }
  TORCH_CHECK_VALUE(false, "expected ", fmt::format("{}", fmt::join(names, " or ")), ", got \"", text, "\"");
}

void parse(const std::string& text, BatchNormFolding& value) {
  parse_one_of(text, {BatchNormFolding::kOff, BatchNormFolding::kOnce}, value);
}
void parse(const std::string& text, ActivationRange& value) {
  parse_one_of(text, {ActivationRange::kSigned, ActivationRange::kUnsigned, ActivationRange::kAuto}, value);
}
void parse(const std::string& text, ActivationBudget& value) {
  parse_one_of(text, {ActivationBudget::kSum, ActivationBudget::kLargest}, value);
}
void parse(const std::string& text, StraightThrough& value) {
  parse_one_of(text, {StraightThrough::kClipped, StraightThrough::kUnclipped}, value);
}
void parse(const std::string& text, RecorderPosition& value) {
  parse_one_of(text, {RecorderPosition::kBefore, RecorderPosition::kBoth}, value);
}
void parse(const std::string& text, PrecisionMode& value) {
  parse_one_of(text, {PrecisionMode::kSimQnn, PrecisionMode::kQnn, PrecisionMode::kMixedQnn}, value);
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
  visit("layer_weight_quantizer", config.layer_weight_quantizer);
  visit("layer_activation_quantizer", config.layer_activation_quantizer);
  visit("weight_start", config.weight_start);
  visit("channel_wise", config.channel_wise);
  visit("narrow_range", config.narrow_range);
  visit("channel_last", config.channel_last);
  visit("activation_range", config.activation_range);
  visit("zero_point", config.zero_point);
  visit("precision_mode", config.precision_mode);
  visit("pow2", config.pow2);
  visit("round_mode", config.round_mode);
  visit("straight_through", config.straight_through);
  visit("recorder_weight", config.recorder_weight);
  visit("recorder_activation", config.recorder_activation);
  visit("recorder_decay", config.recorder_decay);
  visit("recorder_percentile", config.recorder_percentile);
  visit("recorder_position", config.recorder_position);
  visit("input_scale", config.input_scale);
  visit("weight_range_current", config.weight_range_current);
  visit("ext_name", config.ext_name);
  visit("hold_parameters", config.hold_parameters);
  visit("record_layers", config.record_layers);
  visit("skip_inputs_layers", config.skip_inputs_layers);
  visit("skip_outputs_layers", config.skip_outputs_layers);
  visit("skip_layers", config.skip_layers);
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
template <class Value>
void read_value(const Json& json, std::map<std::string, Value>& value) {
  TORCH_CHECK_VALUE(json.is_object(), "expected an object of layer paths and values, got ", json.dump());
  value.clear();
  for (const auto& [path, each] : json.items()) {
    const bool fits = std::is_integral_v<Value> ? each.is_number_integer() : each.is_string();
    TORCH_CHECK_VALUE(fits, "expected ", std::is_integral_v<Value> ? "an integer" : "a name", " for ", path,
                      ", got ", each.dump());
    value[path] = each.template get<Value>();
  }
}
void read_value(const Json& json, std::vector<std::string>& value) {
  value.clear();
  TORCH_CHECK_VALUE(json.is_array(), "expected a list of names, got ", json.dump());
  for (const Json& name : json) {
    TORCH_CHECK_VALUE(name.is_string(), "expected a list of names, got ", json.dump());
    value.push_back(name.get<std::string>());
  }
}
template <class Enum>
requires std::is_enum_v<Enum>
void read_value(const Json& json, Enum& value) {
  TORCH_CHECK_VALUE(json.is_string(), "expected a name, got ", json.dump());
  parse(json.get<std::string>(), value);
}

}  // namespace

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
  if (const auto dtype = json.find("dtype"); dtype != json.end()) {
    TORCH_CHECK_VALUE(dtype->is_string(), "QATConfig: dtype: expected a name, got ", dtype->dump());
    base.set_dtype(dtype->get<std::string>());
  }
  std::vector<std::string> known = {"dtype"};
  visit_fields(base, [&](const char* name, auto& value) {
    known.emplace_back(name);
    const auto found = json.find(name);
    if (found == json.end()) return;
    try {
      read_value(*found, value);
    } catch (const c10::Error& error) {
      TORCH_CHECK_VALUE(false, "QATConfig: ", name, ": ", error.what_without_backtrace());
    }
  });
  for (const auto& [name, value] : json.items()) {
    TORCH_CHECK_VALUE(std::find(known.begin(), known.end(), name) != known.end(),
                      "QATConfig: there is no field \"", name, "\"", suggestion(name, known));
  }
  base.validate();
  return base;
}

}  // namespace qat
