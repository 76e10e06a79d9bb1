#include <qat/numerics/affine_scale.h>
#include <qat/quantizers/make_quantizer.h>
#include <qat/schedulers/qat_config.h>
#include <qat/suggestion.h>

#include <c10/util/Exception.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <regex>
#include <utility>

namespace qat {
namespace {

void check_family(const char* field, const std::string& family, const std::vector<std::string>& names) {
  const bool known = std::find(names.begin(), names.end(), family) != names.end();
  TORCH_CHECK_VALUE(known, "QATConfig: ", field, " is \"", family, "\"; expected ",
                    fmt::format("{}", fmt::join(names, ", ")));
}

using Families = std::map<std::string, std::string>;

void check_families(const std::string& field, const std::string& family, const Families& layers,
                    const std::vector<std::string>& names) {
  check_family(field.c_str(), family, names);
  for (const auto& [path, own] : layers)
    check_family(("layer_" + field + " of " + path).c_str(), own, names);
}

void check_budget(const char* field, double kilobytes, const char* quantizer_field, const std::string& family,
                  const Families& layers) {
  TORCH_CHECK_VALUE(std::isfinite(kilobytes) && kilobytes >= 0.0, "QATConfig: ", field,
                    " must be positive and finite, or 0 for no limit; got ", kilobytes);
  const bool learns = has_learned_width(family) ||
                      std::any_of(layers.begin(), layers.end(),
                                  [](const auto& layer) { return has_learned_width(layer.second); });
  TORCH_CHECK_VALUE(kilobytes == 0.0 || learns, "QATConfig: ", field, " ", kilobytes,
                    " needs quantizers whose width learns, but ", quantizer_field, " is \"", family,
                    "\"; use fp_d_xmax or another fp_ or pow2_ family");
}

/// A scale that is searched must be one that stays, or learns.
void check_weight_start(const QATConfig& config, const std::string& family) {
  if (config.weight_start == WeightStart::kStatistics) return;
  const std::string start = qat::to_string(config.weight_start);
  TORCH_CHECK_VALUE(
      family != "affine" || !config.weight_range_current, "QATConfig: weight_start ", start,
      " searches the scale that affine weights keep, but with weight_range_current their scales follow "
      "the weights; set it to false, or use another weight_quantizer such as lsq");
  TORCH_CHECK_VALUE(family == "affine" || has_learned_parameters(family), "QATConfig: weight_start ", start,
                    " searches a scale, but that of ", family,
                    " weights follows the weights; set it to statistics, or use another weight_quantizer");
}

void check_activation_codes(const QATConfig& config) {
  const bool needs_minimum = config.activation_range != ActivationRange::kSigned || config.zero_point;
  const char* const why = config.activation_range == ActivationRange::kSigned ? "zero_point"
                          : config.activation_range == ActivationRange::kAuto ? "activation_range auto"
                                                                              : "activation_range unsigned";
  TORCH_CHECK_VALUE(!needs_minimum || keeps_minimum(config.recorder_activation), "QATConfig: ", why,
                    " needs the minimum of an activation, which recorder_activation ",
                    qat::to_string(config.recorder_activation),
                    " does not keep; use MinMaxMinMax or MinMaxMva");
  TORCH_CHECK_VALUE(
      !config.zero_point || config.activation_range != ActivationRange::kAuto,
      "QATConfig: zero_point is true, but activation_range auto decides by itself where there is a "
      "zero point; set zero_point to false, or activation_range to signed or unsigned");
  const auto check = [&](const std::string& family) {
    TORCH_CHECK_VALUE(!config.zero_point || family == "affine" || family == "lsq_plus",
                      "QATConfig: zero_point is true, but ", family,
                      " activations have none; use affine or lsq_plus, or set it to false");
  };
  check(config.activation_quantizer);
  for (const auto& [path, family] : config.layer_activation_quantizer)
    check(family);
}

void check_device_name(const std::string& name) {
  static const std::regex known("|cpu|cudnn|cuda(:[0-9]{1,3})?");
  TORCH_CHECK_VALUE(std::regex_match(name, known), "QATConfig: ext_name is \"", name,
                    "\"; expected cpu, cuda, cuda:1 (or another number), cudnn, or nothing");
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

void QATConfig::set_dtype(std::string_view name) {
  const bool is_unsigned = name.starts_with("u");
  const auto digits = name.substr(std::min(name.size(), name.find_first_of("0123456789")));
  std::int64_t bits = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
  const bool is_name = name == fmt::format("{}int{}", is_unsigned ? "u" : "", bits);
  TORCH_CHECK_VALUE(error == std::errc() && is_name && bits >= 2 && bits <= 16, "QATConfig: dtype is \"",
                    name, "\"; expected int8, uint8, or such a name of 2 to 16 bits");
  weight_bits = activation_bits = bits;
  activation_range = is_unsigned ? ActivationRange::kUnsigned : ActivationRange::kSigned;
}

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
    // With families of single layers, the model's layers tell what is allowed: the scheduler checks them.
    const bool known = layer_weight_quantizer.empty();
    TORCH_CHECK_VALUE(known || (bits >= 1 && bits <= 16), "QATConfig: layer_weight_bits of ", path,
                      " must lie in [1, 16], got ", bits);
    TORCH_CHECK_VALUE(!known || (bits >= fewest && bits <= most), "QATConfig: layer_weight_bits of ", path,
                      " must lie in [", fewest, ", ", most, "], got ", bits,
                      most < 16 ? ", for " + weight_quantizer + " weights" : "");
  }
  for (const auto& [path, bits] : layer_activation_bits)
    check_bits(("layer_activation_bits of " + path).c_str(), bits);
  check_families("weight_quantizer", weight_quantizer, layer_weight_quantizer, weight_quantizer_names());
  check_families("activation_quantizer", activation_quantizer, layer_activation_quantizer,
                 activation_quantizer_names());
  check_weight_start(*this, weight_quantizer);
  for (const auto& [path, family] : layer_weight_quantizer)
    check_weight_start(*this, family);
  check_budget("weight_budget_kb", weight_budget_kb, "weight_quantizer", weight_quantizer,
               layer_weight_quantizer);
  check_budget("activation_budget_kb", activation_budget_kb, "activation_quantizer", activation_quantizer,
               layer_activation_quantizer);
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
  check_activation_codes(*this);
  TORCH_CHECK_VALUE(recorder_percentile > 50.0 && recorder_percentile <= 100.0,
                    "QATConfig: recorder_percentile must lie in (50, 100], got ", recorder_percentile);
  const bool per_tensor = recorder_weight == RecorderKind::kPercentile ||
                          recorder_weight == RecorderKind::kHistogram ||
                          recorder_weight == RecorderKind::kKlDivergence;
  TORCH_CHECK_VALUE(
      !channel_wise || !per_tensor, "QATConfig: recorder_weight ", qat::to_string(recorder_weight),
      " has one range for the whole weight, but channel_wise is true; use AbsMax or MinMaxMinMax, or "
      "weight_start mse");
  TORCH_CHECK_VALUE(
      input_scale == 0.0 || (input_scale >= kScaleFloor && std::isfinite(static_cast<float>(input_scale))),
      "QATConfig: input_scale must be 0 (the range is recorded) or positive and finite in float32 "
      "(images: 1.0 / 255), got ",
      input_scale);
  check_device_name(ext_name);
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

QATConfig onnxruntime_config() {
  QATConfig config = integer_only_config();
  config.recorder_position = RecorderPosition::kBoth;
  return config;
}

QATConfig preset_config(std::string_view name) {
  if (name == "default") return {};
  if (name == "tensorrt") return tensorrt_config();
  if (name == "integer_only") return integer_only_config();
  if (name == "onnxruntime") return onnxruntime_config();
  TORCH_CHECK_VALUE(false, "preset: expected default, tensorrt, integer_only or onnxruntime, got \"", name,
                    "\"", suggestion(name, {"default", "tensorrt", "integer_only", "onnxruntime"}));
}

}  // namespace qat
