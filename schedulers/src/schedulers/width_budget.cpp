#include "schedulers/width_budget.h"

#include <qat/nn/packed_weights.h>
#include <qat/quantizers/bias_quantizer.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace qat::detail {
namespace {

std::int64_t configured(const std::map<std::string, std::int64_t>& layers, const std::string& path,
                        std::int64_t otherwise) {
  const auto found = layers.find(path);
  return found == layers.end() ? otherwise : found->second;
}

/// The fewest bits of a family: what ParametricQuantizer::fewest_bits says of it; else the width is fixed.
std::int64_t fewest_bits(const std::string& family, bool is_signed, bool with_zero, std::int64_t bits) {
  if (!has_learned_width(family)) return bits;
  const std::int64_t sign = is_signed ? 1 : 0;
  return family.starts_with("pow2") ? std::max<std::int64_t>(1, sign + (with_zero ? 1 : 0)) : 1 + sign;
}

std::int64_t budget_bytes(double kilobytes) {
  return static_cast<std::int64_t>(std::floor(kilobytes * static_cast<double>(kBytesPerKilobyte)));
}

std::shared_ptr<ParametricQuantizer> learned(const BudgetedSlot& each, const LayerMap& layers) {
  return std::dynamic_pointer_cast<ParametricQuantizer>(layers.at(each.slot.layer)->slot(each.slot.id));
}

std::vector<WidthRequest> requests_of(const std::vector<BudgetedSlot>& slots) {
  std::vector<WidthRequest> requests;
  for (const auto& each : slots)
    requests.push_back(each.request);
  return requests;
}

/// A quantizer that is in the slot already keeps its width; if that learns, up to its own limit where the
/// user set it.
void keep_own_width(WidthRequest& request, const PlacedSlot& slot, const LayerMap& layers,
                    const OwnWidths& own) {
  const auto content = layers.at(slot.layer)->slot(slot.id);
  const auto quantizer = std::dynamic_pointer_cast<Quantizer>(content);
  if (!quantizer) return;
  const auto parametric = std::dynamic_pointer_cast<ParametricQuantizer>(content);
  if (!parametric) request.min_bits = request.max_bits = quantizer->bits();
  const auto found = own.find(slot_path(slot));
  if (!parametric || found == own.end()) return;
  request.max_bits = found->second;
  request.min_bits = std::min(request.max_bits, parametric->fewest_bits());
}

/// The bytes of scales and zero points of a weight.
std::int64_t constant_bytes(const PlacedSlot& slot, nn::QuantizableLayer& layer, const QATConfig& config) {
  const torch::Tensor& weight = *layer.weight_parameter();
  if (const auto quantizer = std::dynamic_pointer_cast<Quantizer>(layer.slot(slot.id)))
    return nn::packed_constant_bytes(*quantizer, weight);
  const bool per_channel =
      config.channel_wise && layer.input_count() != 0 && config.weight_quantizer != "dorefa";
  return 4 * (per_channel ? weight.size(layer.weight_channel_axis()) : 1);
}

/// The int32 biases of a quantized layer.
std::int64_t bias_count(const std::string& path, const LayerMap& layers,
                        const std::vector<nn::FoldReport>& folds, const QATConfig& config) {
  nn::QuantizableLayer& layer = *layers.at(path);
  const auto content = layer.slot({nn::SlotId::Kind::kBias});
  if (content ? !std::dynamic_pointer_cast<BiasQuantizer>(content) : config.skip_bias) return 0;
  for (const nn::FoldReport& fold : folds) {
    if (fold.into != path || fold.added_parameters.empty()) continue;
    return layers.at(fold.batch_norm)->module().named_buffers(/*recurse=*/false)["running_mean"].numel();
  }
  const torch::Tensor* bias = layer.bias_parameter();
  return bias && bias->defined() ? bias->numel() : 0;
}

/// Elements of one sample of the tensor that a slot sees.
std::int64_t elements(const PlacedSlot& slot, const Graph& graph) {
  const GraphNode* node = graph.find_layer(slot.layer);
  if (!node) return 0;
  const bool is_input = slot.id.kind == nn::SlotId::Kind::kInput;
  const auto& ids = is_input ? node->inputs : node->outputs;
  const auto index = static_cast<std::size_t>(is_input ? slot.id.index : 0);
  if (index >= ids.size()) return 0;
  const auto& shape = graph.tensors[static_cast<std::size_t>(ids[index])].shape;
  std::int64_t count = 1;
  for (std::size_t d = 1; d < shape.size(); ++d)
    count *= shape[d];
  return count;
}

/// Whether the quantizer of these slots has, or will get, signed codes; before anything is recorded: whether
/// it must.
bool may_be_negative(const ScaleGroup& group, const LayerMap& layers, const QATConfig& config) {
  if (config.activation_range == ActivationRange::kSigned) return true;
  for (const PlacedSlot& slot : group.slots) {
    const auto content = layers.at(slot.layer)->slot(slot.id);
    const auto recorder = std::dynamic_pointer_cast<Recorder>(content);
    if (recorder && recorder->recorded() > 0 && recorder->range().min.item<float>() < 0.0F) return true;
    const auto parametric = std::dynamic_pointer_cast<ParametricQuantizer>(content);
    if (parametric && parametric->options().is_signed) return true;
  }
  return false;
}

void set_limit(const BudgetedSlot& each, const LayerMap& layers, std::int64_t bits) {
  if (const auto quantizer = learned(each, layers))
    quantizer->limit_bits(std::max(bits, quantizer->fewest_bits()));
}

void read_wishes(std::vector<BudgetedSlot>& slots, const LayerMap& layers) {
  for (auto& each : slots) {
    const auto quantizer = learned(each, layers);
    each.request.wanted = static_cast<double>(each.request.max_bits);
    if (!quantizer) continue;
    each.request.wanted = quantizer->wanted_bits();
    each.request.min_bits =
        std::min(std::max(each.request.min_bits, quantizer->fewest_bits()), each.request.max_bits);
  }
}

/// Without a budget the configured width is the limit; with one, the widths closest to the wanted ones.
void limit_widths(std::vector<BudgetedSlot>& slots, const LayerMap& layers, double budget_kb) {
  std::vector<std::int64_t> widths;
  if (budget_kb > 0) {
    read_wishes(slots, layers);
    for (auto& each : slots)  // what is asked for in full, the rounding of codes included
      each.request.wanted = std::ceil(each.request.wanted);
    widths = widths_within_budget(requests_of(slots), budget_bytes(budget_kb));
  }
  for (std::size_t i = 0; i < slots.size(); ++i)
    set_limit(slots[i], layers, widths.empty() ? slots[i].request.max_bits : widths[i]);
}

/// The most bits of a tensor within a limit for each tensor.
std::int64_t widest_within(const WidthRequest& request, std::int64_t bytes) {
  std::int64_t bits = request.max_bits;
  while (bits > 0 && packed_code_bytes(request.count, bits) > bytes)
    --bits;
  return bits;
}

torch::Tensor kilobytes(const BudgetedSlot& each, const LayerMap& layers) {
  const auto quantizer = learned(each, layers);
  const auto most = static_cast<double>(each.request.max_bits);
  auto bits = quantizer ? quantizer->bit_count() : torch::tensor(most, torch::kDouble);
  bits = bits - (bits.detach() - most).clamp_min(0);  // the limit hides bits, not their gradient
  return (bits * (static_cast<double>(each.request.count) / 8.0) +
          static_cast<double>(each.request.fixed_bytes)) /
         static_cast<double>(kBytesPerKilobyte);
}

torch::Tensor excess(const torch::Tensor& size, double budget_kb, double lambda) {
  return lambda * torch::relu(size - budget_kb).square();
}

}  // namespace

OwnWidths own_widths(const Placement& placement, const LayerMap& layers) {
  OwnWidths result;
  const auto note = [&](const PlacedSlot& slot) {
    const auto content = layers.at(slot.layer)->slot(slot.id);
    if (const auto quantizer = std::dynamic_pointer_cast<ParametricQuantizer>(content))
      result[slot_path(slot)] = quantizer->named_buffers()["bits_limit"].item<std::int64_t>();
  };
  for (const PlacedSlot& slot : placement.weights)
    note(slot);
  for (const ScaleGroup& group : placement.activations)
    note(group.owner());
  return result;
}

std::vector<BudgetedSlot> budgeted_weights(const Placement& placement, const LayerMap& layers,
                                           const std::vector<nn::FoldReport>& folds, const QATConfig& config,
                                           const OwnWidths& own) {
  std::vector<BudgetedSlot> result;
  for (const PlacedSlot& slot : placement.weights) {
    nn::QuantizableLayer& layer = *layers.at(slot.layer);
    WidthRequest request;
    request.count = layer.weight_parameter()->numel();
    request.fixed_bytes =
        constant_bytes(slot, layer, config) + 4 * bias_count(slot.layer, layers, folds, config);
    request.max_bits = most_bits(config.weight_quantizer,
                                 configured(config.layer_weight_bits, slot.layer, config.weight_bits));
    request.min_bits =
        std::min(request.max_bits, fewest_bits(config.weight_quantizer, true, false, request.max_bits));
    request.name = slot.layer;
    keep_own_width(request, slot, layers, own);
    result.push_back({slot, request});
  }
  return result;
}

std::vector<BudgetedSlot> budgeted_activations(const Placement& placement, const LayerMap& layers,
                                               const Graph& graph, const QATConfig& config,
                                               const OwnWidths& own) {
  std::vector<BudgetedSlot> result;
  for (const ScaleGroup& group : placement.activations) {
    WidthRequest request;
    for (const PlacedSlot& slot : group.slots) {
      const std::int64_t count = elements(slot, graph);
      request.count = config.activation_budget == ActivationBudget::kSum ? request.count + count
                                                                         : std::max(request.count, count);
    }
    const PlacedSlot& owner = group.owner();
    request.max_bits = most_bits(config.activation_quantizer, group.bits);
    request.min_bits = std::min(
        request.max_bits, fewest_bits(config.activation_quantizer, may_be_negative(group, layers, config),
                                      true, request.max_bits));
    request.name = slot_path(owner);
    keep_own_width(request, owner, layers, own);
    result.push_back({owner, request});
  }
  return result;
}

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

void check_budgets(const std::vector<BudgetedSlot>& weights, const std::vector<BudgetedSlot>& activations,
                   const QATConfig& config) {
  const auto check = [](const char* field, double budget_kb, std::int64_t smallest) {
    TORCH_CHECK_VALUE(smallest <= budget_bytes(budget_kb), "QATConfig: ", field, " ", budget_kb,
                      " kB cannot be met: with the fewest bits everywhere it takes ", smallest,
                      " bytes; expected at least ",
                      fmt::format("{:.4f}", std::ceil(static_cast<double>(smallest) / 1024.0 * 1e4) / 1e4),
                      " kB");
  };
  if (config.weight_budget_kb > 0)
    check("weight_budget_kb", config.weight_budget_kb, smallest_packed_bytes(requests_of(weights)));
  if (config.activation_budget_kb <= 0) return;
  if (config.activation_budget == ActivationBudget::kSum)
    return check("activation_budget_kb", config.activation_budget_kb,
                 smallest_packed_bytes(requests_of(activations)));
  for (const auto& each : activations)
    check("activation_budget_kb", config.activation_budget_kb,
          packed_code_bytes(each.request.count, each.request.min_bits));
}

void project_widths(std::vector<BudgetedSlot> weights, std::vector<BudgetedSlot> activations,
                    const LayerMap& layers, const QATConfig& config) {
  limit_widths(weights, layers, config.weight_budget_kb);
  const bool is_sum = config.activation_budget == ActivationBudget::kSum;
  if (config.activation_budget_kb > 0 && !is_sum) {
    for (auto& each : activations)
      each.request.max_bits = widest_within(each.request, budget_bytes(config.activation_budget_kb));
  }
  limit_widths(activations, layers, is_sum ? config.activation_budget_kb : 0.0);
}

torch::Tensor size_penalty(const std::vector<BudgetedSlot>& weights,
                           const std::vector<BudgetedSlot>& activations, const LayerMap& layers,
                           const QATConfig& config) {
  auto penalty = torch::zeros({}, torch::kDouble);
  if (config.weight_budget_kb > 0) {
    auto size = torch::zeros({}, torch::kDouble);
    for (const auto& each : weights)
      size = size + kilobytes(each, layers);
    penalty = penalty + excess(size, config.weight_budget_kb, config.budget_penalty);
  }
  if (config.activation_budget_kb > 0) {
    auto size = torch::zeros({}, torch::kDouble);
    for (const auto& each : activations) {
      const auto part = kilobytes(each, layers);
      size = config.activation_budget == ActivationBudget::kSum ? size + part
                                                                : torch::where(part > size, part, size);
    }
    penalty = penalty + excess(size, config.activation_budget_kb, config.budget_penalty);
  }
  return penalty;
}

}  // namespace qat::detail
