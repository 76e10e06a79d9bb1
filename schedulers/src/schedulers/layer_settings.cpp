#include "schedulers/layer_settings.h"

#include <qat/quantizers/make_quantizer.h>
#include <qat/suggestion.h>

#include <c10/util/Exception.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

namespace qat::detail {
namespace {

/// The value for a path: its own, else that of the longest pattern that fits; nullptr if there is none.
template <class Value>
const Value* setting_of(const std::map<std::string, Value>& settings, const std::string& path) {
  if (const auto own = settings.find(path); own != settings.end()) return &own->second;
  const Value* found = nullptr;
  std::size_t longest = 0;
  for (const auto& [pattern, value] : settings) {
    if (pattern.size() <= longest || !fits_pattern(pattern, path)) continue;
    found = &value;
    longest = pattern.size();
  }
  return found;
}

bool is_pattern(const std::string& text) {
  return text.find('*') != std::string::npos;
}

/// The layers that settings may name.
struct Nameable {
  std::vector<std::string> all;
  std::vector<std::string> weighted;

  explicit Nameable(const LayerMap& layers) {
    for (const auto& [path, layer] : layers) {
      all.push_back(path);
      if (layer->weight_parameter()) weighted.push_back(path);
    }
  }

  void check(const char* field, const std::string& name, const std::vector<std::string>& allowed) const {
    const auto fits = [&](const std::string& path) { return fits_pattern(name, path); };
    if (std::any_of(allowed.begin(), allowed.end(), fits)) return;
    const bool exists = std::any_of(all.begin(), all.end(), fits);
    const char* const fault = exists ? "\", which has no weight; the model has " : "\", but the model has ";
    TORCH_CHECK_VALUE(false, "QATConfig: ", field,
                      is_pattern(name) ? " has the pattern \"" : " names the layer \"", name, fault,
                      fmt::format("{}", fmt::join(allowed, ", ")), exists ? "" : suggestion(name, allowed));
  }
};

void check_weight_width(const QATConfig& config, const std::string& path) {
  const std::string& family = weight_family(config, path);
  const std::int64_t bits = weight_bits(config, path);
  const bool fixed = family == "binary" || family == "ternary";
  const std::int64_t most = family == "dorefa" ? 8 : 16;
  TORCH_CHECK_VALUE(fixed || (bits >= 2 && bits <= most), "QATConfig: the weight of ", path, " would have ",
                    bits, " bits; ", family, " weights have 2 to ", most, "; set layer_weight_bits of ",
                    path);
  const std::int64_t* const own = setting_of(config.layer_weight_bits, path);
  TORCH_CHECK_VALUE(!fixed || !own || *own == bits, "QATConfig: layer_weight_bits of ", path, " is ",
                    own ? *own : 0, ", but ", family, " weights have ", bits);
}

}  // namespace

bool fits_pattern(std::string_view pattern, std::string_view path) {
  const auto star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == path;
  if (path.substr(0, star) != pattern.substr(0, star)) return false;
  const auto rest = pattern.substr(star + 1);
  for (std::size_t from = star; from <= path.size(); ++from) {
    if (fits_pattern(rest, path.substr(from))) return true;
  }
  return false;
}

const std::string& weight_family(const QATConfig& config, const std::string& path) {
  const auto* const own = setting_of(config.layer_weight_quantizer, path);
  return own ? *own : config.weight_quantizer;
}

const std::string& activation_family(const QATConfig& config, const std::string& path) {
  const auto* const own = setting_of(config.layer_activation_quantizer, path);
  return own ? *own : config.activation_quantizer;
}

std::int64_t weight_bits(const QATConfig& config, const std::string& path) {
  const std::string& family = weight_family(config, path);
  if (family == "binary") return 1;
  if (family == "ternary") return 2;
  const auto* const own = setting_of(config.layer_weight_bits, path);
  return own ? *own : config.weight_bits;
}

std::int64_t activation_bits(const QATConfig& config, const std::string& path, std::int64_t otherwise) {
  const auto* const own = setting_of(config.layer_activation_bits, path);
  return own ? *own : otherwise;
}

bool is_skipped(const QATConfig& config, const std::string& path) {
  return std::any_of(config.skip_layers.begin(), config.skip_layers.end(),
                     [&](const std::string& pattern) { return fits_pattern(pattern, path); });
}

bool has_learned_parameters(const QATConfig& config) {
  const auto learns = [](const auto& setting) { return qat::has_learned_parameters(setting.second); };
  const auto& weights = config.layer_weight_quantizer;
  const auto& activations = config.layer_activation_quantizer;
  return qat::has_learned_parameters(config.weight_quantizer) ||
         qat::has_learned_parameters(config.activation_quantizer) ||
         std::any_of(weights.begin(), weights.end(), learns) ||
         std::any_of(activations.begin(), activations.end(), learns);
}

void check_layer_settings(const LayerMap& layers, const QATConfig& config) {
  const Nameable nameable(layers);
  for (const auto& [name, bits] : config.layer_weight_bits)
    nameable.check("layer_weight_bits", name, nameable.weighted);
  for (const auto& [name, family] : config.layer_weight_quantizer)
    nameable.check("layer_weight_quantizer", name, nameable.weighted);
  for (const auto& [name, bits] : config.layer_activation_bits)
    nameable.check("layer_activation_bits", name, nameable.all);
  for (const auto& [name, family] : config.layer_activation_quantizer)
    nameable.check("layer_activation_quantizer", name, nameable.all);
  for (const std::string& name : config.skip_layers)
    nameable.check("skip_layers", name, nameable.all);
  for (const std::string& path : nameable.weighted)
    check_weight_width(config, path);
}

void check_placed_settings(const Placement& placement, const QATConfig& config) {
  std::set<std::string> weights;
  for (const PlacedSlot& slot : placement.weights)
    weights.insert(slot.layer);
  const auto check_weight = [&](const char* field, const std::string& path) {
    TORCH_CHECK_VALUE(is_pattern(path) || weights.contains(path), "QATConfig: ", field, " names the layer \"",
                      path,
                      "\", whose weight is not quantized (record_layers, skip_inputs_layers, "
                      "skip_outputs_layers and skip_layers leave it out); it may name ",
                      fmt::format("{}", fmt::join(weights, ", ")));
  };
  for (const auto& [path, bits] : config.layer_weight_bits)
    check_weight("layer_weight_bits", path);
  for (const auto& [path, family] : config.layer_weight_quantizer)
    check_weight("layer_weight_quantizer", path);

  std::set<std::string> owners;
  std::map<std::string, std::string> shared;  // layer -> the one that has the quantizer
  bool has_inputs = false;
  for (const ScaleGroup& group : placement.activations) {
    owners.insert(group.owner().layer);
    has_inputs = has_inputs || group.is_model_input;
    for (const PlacedSlot& member : group.slots)
      shared.emplace(member.layer, group.owner().layer);
  }
  const auto check_activation = [&](const char* field, const std::string& path) {
    if (is_pattern(path)) return;
    const auto found = shared.find(path);
    TORCH_CHECK_VALUE(
        owners.contains(path) || found == shared.end(), "QATConfig: ", field, " names the layer \"", path,
        "\", whose activation shares the quantizer of the layer \"", found->second, "\"; name that one");
    TORCH_CHECK_VALUE(owners.contains(path), "QATConfig: ", field, " names the layer \"", path,
                      "\", which has no quantizer of an activation in its slots; it may name ",
                      fmt::format("{}", fmt::join(owners, ", ")));
  };
  for (const auto& [path, bits] : config.layer_activation_bits)
    check_activation("layer_activation_bits", path);
  for (const auto& [path, family] : config.layer_activation_quantizer)
    check_activation("layer_activation_quantizer", path);
  TORCH_CHECK_VALUE(
      config.input_scale == 0.0 || has_inputs, "QATConfig: input_scale is ", config.input_scale,
      ", but no input of the model has a quantizer of its own: no quantized layer reads it "
      "(record_layers, skip_inputs_layers, skip_layers), or it shares a scale with another tensor "
      "(Add, Cat); set input_scale to 0");
}

}  // namespace qat::detail
