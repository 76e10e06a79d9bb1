#include "support/quantization.h"

#include <qat/nn/quantizable_layer.h>
#include <qat/quantizers/make_quantizer.h>
#include <qat/schedulers/qat_config.h>
#include <qat/suggestion.h>

#include <c10/util/Exception.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <regex>
#include <sstream>
#include <utility>

namespace qat::apps {
namespace {

bool is_family(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

struct Widths {
  std::int64_t fewest;
  std::int64_t most;
};

Widths weight_widths(const std::string& family) {
  if (family == "binary") return {1, 1};
  if (family == "ternary") return {2, 2};
  if (family == "dorefa") return {2, 8};
  return {2, 16};
}

/// `option`: as it was given, with its value.
void check_weight_width(const std::string& option, std::int64_t bits, const std::string& family) {
  const auto [fewest, most] = weight_widths(family);
  if (bits >= fewest && bits <= most) return;
  throw UsageError(
      fmt::format("{} contradicts the weight quantizer {}: expected {}", option, family,
                  fewest == most ? fmt::format("{}", most) : fmt::format("{} to {}", fewest, most)));
}

void check_budget(const char* option, double kilobytes, const char* side, const std::string& family) {
  if (kilobytes == 0 || has_learned_width(family)) return;
  throw UsageError(
      fmt::format("--{} {} needs quantizers whose width learns, the {} quantizer {} has a fixed one; "
                  "expected fp_d_xmax or another fp_ or pow2_ family",
                  option, kilobytes, side, family));
}

/// Options that would change nothing.
void check_effect(const RunConfig& config, const std::string& weights, const std::string& activations) {
  if (config.activation_budget == "largest" && config.activation_budget_kb == 0)
    throw UsageError("--activation-budget largest limits nothing; expected --activation-budget-kb with it");
  if (config.quantizer_rate != 1 && !has_learned_parameters(weights) && !has_learned_parameters(activations))
    throw UsageError(fmt::format(
        "--quantizer-rate {} changes nothing: {} has no learned parameters; expected 1, or another quantizer",
        config.quantizer_rate, weights == activations ? weights : weights + " and " + activations));
}

std::string width_text(const std::string& family, std::int64_t bits) {
  return fmt::format("{}{}", has_learned_width(family) ? "up to " : "", most_bits(family, bits));
}

/// The fields of the table `scheduler` as a JSON object. Throws: UsageError for those that the run itself
/// sets.
std::string scheduler_json(const RunConfig& config) {
  const toml::table table = toml::parse(config.scheduler);
  const std::vector<std::string> own = {"niter_to_recording",
                                        "niter_to_training",
                                        "learning_rate_scale",
                                        "ext_name",
                                        "quantizer_learning_rate_scale",
                                        "hold_parameters"};
  for (const auto& [key, value] : table) {
    const std::string name(key.str());
    if (const auto* setting = find_setting(name))
      throw UsageError(fmt::format("--scheduler sets {0}, which is an option of its own; use --{1}", name,
                                   setting->option()));
    if (std::find(own.begin(), own.end(), name) != own.end())
      throw UsageError(
          fmt::format("--scheduler sets {}, which the run decides itself (--float-epochs, --record-batches, "
                      "--learning-rate, "
                      "--quantizer-rate, --device); leave it out",
                      name));
  }
  std::ostringstream json;
  json << toml::json_formatter{table};
  return json.str();
}

/// Keys in a text become options: "weight_budget_kb 3" becomes "--weight-budget-kb 3".
std::string with_options(const std::string& text) {
  static const std::regex key("[a-z]+(_[a-z]+)+");
  std::string result;
  auto rest = text.begin();
  for (std::sregex_iterator found(text.begin(), text.end(), key); found != std::sregex_iterator(); ++found) {
    const auto* setting = find_setting(found->str());
    result.append(rest, (*found)[0].first);
    result += setting ? "--" + setting->option() : found->str();
    rest = (*found)[0].second;
  }
  return result.append(rest, text.end());
}

}  // namespace

std::vector<std::string> families_of_both() {
  std::vector<std::string> both;
  for (const auto& name : activation_quantizer_names()) {
    if (is_family(weight_quantizer_names(), name)) both.push_back(name);
  }
  return both;
}

std::string family_advice(std::string_view key, std::string_view family) {
  const bool of_weights = is_family(weight_quantizer_names(), family);
  const bool of_activations = is_family(activation_quantizer_names(), family);
  if (of_weights == of_activations || !key.ends_with("quantizer")) return "";
  if (of_activations)
    return fmt::format("{0} quantizes activations only; use --activation-quantizer {0}", family);
  const auto [fewest, most] = weight_widths(std::string(family));
  return fmt::format("{0} quantizes weights only; use --weight-quantizer {0}{1}", family,
                     fewest == most ? fmt::format(" --weight-bits {}", most) : "");
}

const std::string& weight_family(const RunConfig& config) {
  return config.weight_quantizer.empty() ? config.quantizer : config.weight_quantizer;
}

const std::string& activation_family(const RunConfig& config) {
  return config.activation_quantizer.empty() ? config.quantizer : config.activation_quantizer;
}

std::string widths_text(const RunConfig& config) {
  return fmt::format("weights {}, activations {} bits", width_text(weight_family(config), config.weight_bits),
                     width_text(activation_family(config), config.activation_bits));
}

std::string quantizers_text(const RunConfig& config) {
  const auto& weights = weight_family(config);
  const auto& activations = activation_family(config);
  return fmt::format("weights {} {}, activations {} {} bits", weights,
                     width_text(weights, config.weight_bits), activations,
                     width_text(activations, config.activation_bits));
}

void check_quantization(const RunConfig& config) {
  const auto& weights = weight_family(config);
  check_weight_width(fmt::format("--weight-bits {}", config.weight_bits), config.weight_bits, weights);
  for (const auto& [path, bits] : config.weight_bits_by_layer())
    check_weight_width(fmt::format("--layer-weight-bits {}={}", path, bits), bits, weights);
  check_budget("weight-budget-kb", config.weight_budget_kb, "weight", weights);
  check_budget("activation-budget-kb", config.activation_budget_kb, "activation", activation_family(config));
  check_effect(config, weights, activation_family(config));
  scheduler_config(config);  // what is left: combinations that QATConfig refuses
}

void check_layer_paths(const RunConfig& config, torch::nn::Module& model) {
  std::vector<std::string> paths;
  for (const auto& [path, layer] : nn::quantizable_layers(model)) {
    if (layer->weight_parameter()) paths.push_back(path);
  }
  for (const auto& [path, bits] : config.weight_bits_by_layer()) {
    const bool is_pattern = path.find('*') != std::string::npos;  // the scheduler resolves it
    if (is_pattern || std::find(paths.begin(), paths.end(), path) != paths.end()) continue;
    throw UsageError(
        fmt::format("--layer-weight-bits {}={}: {} has no layer '{}' with a weight{}; expected "
                    "{}",
                    path, bits, config.model, path, suggestion(path, paths), fmt::join(paths, ", ")));
  }
}

QATConfig scheduler_config(const RunConfig& config) {
  auto result = preset_config(config.preset);
  if (!config.bn_folding.empty())
    result.bn_folding = config.bn_folding == "off" ? BatchNormFolding::kOff : BatchNormFolding::kOnce;
  result.weight_bits = config.weight_bits;
  result.activation_bits = config.activation_bits;
  result.input_bits = config.input_bits;
  result.residual_bits = config.residual_bits;
  result.layer_weight_bits = config.weight_bits_by_layer();
  result.weight_quantizer = weight_family(config);
  result.activation_quantizer = activation_family(config);
  result.weight_start = parse_weight_start(config.weight_start);
  // A searched scale of affine weights stays.
  if (result.weight_start == WeightStart::kMse) result.weight_range_current = false;
  result.weight_budget_kb = config.weight_budget_kb;
  result.activation_budget_kb = config.activation_budget_kb;
  result.activation_budget =
      config.activation_budget == "sum" ? ActivationBudget::kSum : ActivationBudget::kLargest;
  result.budget_penalty = config.budget_penalty;
  result.quantizer_learning_rate_scale = std::max(config.quantizer_rate, 1e-12);
  result.learning_rate_scale = 1.0;  // the run has a schedule of its own
  naming_options([&] { result = parse_config(scheduler_json(config), std::move(result)); });
  return result;
}

void naming_options(const std::function<void()>& work) {
  try {
    work();
  } catch (const c10::ValueError& error) {
    const std::string text = error.what_without_backtrace();
    const std::string start = "QATConfig: ";
    if (!text.starts_with(start)) throw;
    throw UsageError(with_options(text.substr(start.size())));
  }
}

}  // namespace qat::apps
