#include "schedulers/layer_bits.h"

#include <c10/util/Exception.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

namespace qat::detail {

void check_layer_bits(const LayerMap& layers, const QATConfig& config) {
  std::set<std::string> all;
  std::set<std::string> weighted;
  for (const auto& [path, layer] : layers) {
    all.insert(path);
    if (layer->weight_parameter()) weighted.insert(path);
  }
  const auto check = [&](const char* field, const std::map<std::string, std::int64_t>& bits,
                         const std::set<std::string>& allowed) {
    for (const auto& [path, width] : bits) {
      TORCH_CHECK_VALUE(
          allowed.contains(path), "QATConfig: ", field, " names the layer \"", path,
          all.contains(path) ? "\", which has no weight; the model has " : "\", but the model has ",
          fmt::format("{}", fmt::join(allowed, ", ")));
    }
  };
  check("layer_weight_bits", config.layer_weight_bits, weighted);
  check("layer_activation_bits", config.layer_activation_bits, all);
}

void check_placed_bits(const Placement& placement, const QATConfig& config) {
  std::set<std::string> weights;
  for (const PlacedSlot& slot : placement.weights)
    weights.insert(slot.layer);
  for (const auto& [path, bits] : config.layer_weight_bits) {
    TORCH_CHECK_VALUE(weights.contains(path), "QATConfig: layer_weight_bits names the layer \"", path,
                      "\", whose weight is not quantized (record_layers, skip_inputs_layers and "
                      "skip_outputs_layers leave it out); it may name ",
                      fmt::format("{}", fmt::join(weights, ", ")));
  }
  std::set<std::string> owners;
  std::map<std::string, std::string> shared;  // layer -> the one that has the quantizer
  for (const ScaleGroup& group : placement.activations) {
    owners.insert(group.owner().layer);
    for (const PlacedSlot& member : group.slots)
      shared.emplace(member.layer, group.owner().layer);
  }
  for (const auto& [path, bits] : config.layer_activation_bits) {
    const auto found = shared.find(path);
    TORCH_CHECK_VALUE(owners.contains(path) || found == shared.end(),
                      "QATConfig: layer_activation_bits names the layer \"", path,
                      "\", whose activation shares the quantizer of the layer \"", found->second,
                      "\"; name that one");
    TORCH_CHECK_VALUE(owners.contains(path), "QATConfig: layer_activation_bits names the layer \"", path,
                      "\", which has no quantizer of an activation in its slots; it may name ",
                      fmt::format("{}", fmt::join(owners, ", ")));
  }
}

}  // namespace qat::detail
