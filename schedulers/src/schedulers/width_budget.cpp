#include "schedulers/width_budget.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

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

/// A quantizer that the user put into the slot keeps its width, unless that learns.
void fix_width_set_by_hand(WidthRequest& request, const std::shared_ptr<TensorModule>& content) {
  const auto quantizer = std::dynamic_pointer_cast<Quantizer>(content);
  if (quantizer && !std::dynamic_pointer_cast<ParametricQuantizer>(content))
    request.min_bits = request.max_bits = quantizer->bits();
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
  for (const PlacedSlot& slot : group) {
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

std::vector<BudgetedSlot> budgeted_weights(const Placement& placement, const LayerMap& layers,
                                           const std::vector<nn::FoldReport>& folds,
                                           const QATConfig& config) {
  std::vector<BudgetedSlot> result;
  for (const PlacedSlot& slot : placement.weights) {
    nn::QuantizableLayer& layer = *layers.at(slot.layer);
    const torch::Tensor& weight = *layer.weight_parameter();
    const bool per_channel = config.channel_wise && layer.input_count() != 0;
    const std::int64_t scales = per_channel ? weight.size(layer.weight_channel_axis()) : 1;
    const torch::Tensor* bias = layer.bias_parameter();
    std::int64_t biases = bias && bias->defined() ? bias->numel() : 0;
    for (const nn::FoldReport& fold : folds) {
      if (fold.into == slot.layer && !fold.added_parameters.empty())
        biases = layer.weight_channel_axis() == 0 ? weight.size(0) : weight.size(1);
    }
    WidthRequest request;
    request.count = weight.numel();
    request.fixed_bytes = 4 * (scales + biases);
    request.max_bits = most_bits(config.weight_quantizer,
                                 configured(config.layer_weight_bits, slot.layer, config.weight_bits));
    request.min_bits =
        std::min(request.max_bits, fewest_bits(config.weight_quantizer, true, false, request.max_bits));
    request.name = slot.layer;
    fix_width_set_by_hand(request, layer.slot(slot.id));
    result.push_back({slot, request});
  }
  return result;
}

std::vector<BudgetedSlot> budgeted_activations(const Placement& placement, const LayerMap& layers,
                                               const Graph& graph, const QATConfig& config) {
  std::vector<BudgetedSlot> result;
  for (const ScaleGroup& group : placement.activations) {
    WidthRequest request;
    for (const PlacedSlot& slot : group) {
      const std::int64_t count = elements(slot, graph);
      request.count = config.activation_budget == ActivationBudget::kSum ? request.count + count
                                                                         : std::max(request.count, count);
    }
    const PlacedSlot& owner = group.front();
    const bool is_input = owner.id.kind == nn::SlotId::Kind::kInput && config.input_bits != 0;
    request.max_bits = most_bits(config.activation_quantizer,
                                 configured(config.layer_activation_bits, owner.layer,
                                            is_input ? config.input_bits : config.activation_bits));
    request.min_bits = std::min(
        request.max_bits, fewest_bits(config.activation_quantizer, may_be_negative(group, layers, config),
                                      true, request.max_bits));
    request.name = slot_path(owner);
    fix_width_set_by_hand(request, layers.at(owner.layer)->slot(owner.id));
    result.push_back({owner, request});
  }
  return result;
}

void check_layer_bits(const LayerMap& layers, const QATConfig& config) {
  const auto check = [&](const char* field, const std::map<std::string, std::int64_t>& bits) {
    for (const auto& [path, width] : bits) {
      std::vector<std::string> paths;
      for (const auto& [known, layer] : layers)
        paths.push_back(known);
      TORCH_CHECK_VALUE(layers.contains(path), "QATConfig: ", field, " names the layer \"", path,
                        "\", but the model has ", fmt::format("{}", fmt::join(paths, ", ")));
    }
  };
  check("layer_weight_bits", config.layer_weight_bits);
  check("layer_activation_bits", config.layer_activation_bits);
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
