#include "schedulers/budgeted_slots.h"

#include "schedulers/layer_settings.h"
#include <qat/nn/packed_weights.h>
#include <qat/quantizers/bias_quantizer.h>
#include <qat/quantizers/make_quantizer.h>

#include <algorithm>
#include <set>

namespace qat::detail {
namespace {

using nn::SlotId;

std::shared_ptr<Quantizer> quantizer_in(const PlacedSlot& slot, const LayerMap& layers) {
  return std::dynamic_pointer_cast<Quantizer>(layers.at(slot.layer)->slot(slot.id));
}

std::int64_t limit_of(const ParametricQuantizer& quantizer) {
  return quantizer.named_buffers()["bits_limit"].item<std::int64_t>();
}

/// The bounds of a family's width.
WidthRequest configured_width(const std::string& family, std::int64_t bits, bool is_signed, bool with_zero) {
  WidthRequest request;
  request.min_bits = request.max_bits = most_bits(family, bits);
  if (!has_learned_width(family)) return request;
  const ParametricQuantizer example(
      {.kind = parse_parametric_kind(family), .is_signed = is_signed, .with_zero = with_zero});
  request.min_bits = std::min(request.max_bits, example.fewest_bits());
  return request;
}

/// A width that has no limit cannot be part of a budget.
void check_can_be_limited(const PlacedSlot& slot, Quantizer& quantizer, const QATConfig& config) {
  const auto* parametric = dynamic_cast<const ParametricQuantizer*>(&quantizer);
  const bool is_weight = slot.id.kind == SlotId::Kind::kWeight;
  const double budget = is_weight ? config.weight_budget_kb : config.activation_budget_kb;
  TORCH_CHECK_VALUE(!parametric || !parametric->options().compatible || budget == 0,
                    "QATScheduler: ", slot_path(slot),
                    " holds a compatible qat::ParametricQuantizer, whose width has no limit, ",
                    "but there is a ", is_weight ? "weight_budget_kb" : "activation_budget_kb", " of ",
                    budget, "; expected a quantizer with compatible = false, or no such budget");
}

/// A quantizer that is in the slot already keeps its width; if that learns, up to its own limit where the
/// user set it.
void keep_own_width(WidthRequest& request, const PlacedSlot& slot, const LayerMap& layers,
                    const QATConfig& config, const OwnWidths& own) {
  const auto quantizer = quantizer_in(slot, layers);
  if (!quantizer) return;
  check_can_be_limited(slot, *quantizer, config);
  const auto parametric = limitable(slot, layers);
  if (!parametric) request.min_bits = request.max_bits = quantizer->bits();
  const auto found = own.find(slot_path(slot));
  if (!parametric || found == own.end()) return;
  request.max_bits = found->second;
  request.min_bits = std::min(request.max_bits, parametric->fewest_bits());
}

/// The bounds of a quantizer that is in a slot where the placement has none.
WidthRequest own_width(const PlacedSlot& slot, const LayerMap& layers, const QATConfig& config,
                       const OwnWidths& own) {
  WidthRequest request;
  if (const auto parametric = limitable(slot, layers)) {
    request.max_bits = limit_of(*parametric);
    request.min_bits = std::min(request.max_bits, parametric->fewest_bits());
  }
  keep_own_width(request, slot, layers, config, own);
  return request;
}

/// The bytes of scales and zero points of a weight.
std::int64_t constant_bytes(const PlacedSlot& slot, nn::QuantizableLayer& layer, const QATConfig& config) {
  const torch::Tensor& weight = *layer.weight_parameter();
  if (const auto quantizer = std::dynamic_pointer_cast<Quantizer>(layer.slot(slot.id)))
    return nn::packed_constant_bytes(*quantizer, weight);
  const bool per_channel =
      config.channel_wise && layer.input_count() != 0 && weight_family(config, slot.layer) != "dorefa";
  return 4 * (per_channel ? weight.size(layer.weight_channel_axis()) : 1);
}

/// The int32 biases of a layer. `gets_quantizer`: whether the scheduler quantizes the bias if the slot is
/// empty.
std::int64_t bias_count(const std::string& path, const LayerMap& layers,
                        const std::vector<nn::FoldReport>& folds, bool gets_quantizer) {
  nn::QuantizableLayer& layer = *layers.at(path);
  const auto content = layer.slot({SlotId::Kind::kBias});
  if (content ? !std::dynamic_pointer_cast<BiasQuantizer>(content) : !gets_quantizer) return 0;
  for (const nn::FoldReport& fold : folds) {
    if (fold.into != path || fold.added_parameters.empty()) continue;
    if (fold.into_next) return layer.weight_parameter()->size(0);
    return layers.at(fold.batch_norm)->module().named_buffers(/*recurse=*/false)["running_mean"].numel();
  }
  const torch::Tensor* bias = layer.bias_parameter();
  return bias && bias->defined() ? bias->numel() : 0;
}

/// Elements of one sample of the tensor at a slot.
std::int64_t elements(const PlacedSlot& slot, const Graph& graph) {
  const GraphNode* node = graph.find_layer(slot.layer);
  if (!node) return 0;
  const bool is_input = slot.id.kind == SlotId::Kind::kInput;
  const auto& ids = is_input ? node->inputs : node->outputs;
  const auto index = static_cast<std::size_t>(is_input ? slot.id.index : 0);
  if (index >= ids.size()) return 0;
  const auto& shape = graph.tensors[static_cast<std::size_t>(ids[index])].shape;
  std::int64_t count = 1;
  for (std::size_t d = 1; d < shape.size(); ++d)
    count *= shape[d];
  return count;
}

/// Whether the quantizer of these slots has, or may get, signed codes. Before anything is recorded the graph
/// alone can rule them out.
bool may_be_negative(const ScaleGroup& group, const LayerMap& layers, const QATConfig& config) {
  if (config.activation_range == ActivationRange::kSigned) return true;
  if (config.activation_range == ActivationRange::kUnsigned || has_given_scale(group, config)) return false;
  bool is_known = group.never_negative;
  for (const PlacedSlot& slot : group.slots) {
    const auto content = layers.at(slot.layer)->slot(slot.id);
    const auto recorder = std::dynamic_pointer_cast<Recorder>(content);
    const bool is_recorded = recorder && recorder->recorded() > 0;
    if (is_recorded && recorder->range().min.item<float>() < 0.0F) return true;
    const auto parametric = std::dynamic_pointer_cast<ParametricQuantizer>(content);
    if (parametric && parametric->options().is_signed) return true;
    is_known = is_known || is_recorded || parametric;
  }
  return !is_known;
}

/// A request for tensors of one width.
BudgetedSlot with_counts(const PlacedSlot& slot, WidthRequest request, std::vector<CountedTensor> tensors,
                         ActivationBudget kind) {
  request.name = slot_path(slot);
  for (const CountedTensor& tensor : tensors) {
    if (kind == ActivationBudget::kLargest) {
      request.count = std::max(request.count, tensor.count);
    } else {
      request.further_counts.push_back(tensor.count);
    }
  }
  return {slot, request, std::move(tensors)};
}

/// Input and output slots with a quantizer that the scheduler neither makes nor replaces.
std::vector<PlacedSlot> foreign_activations(const Placement& placement, const LayerMap& layers) {
  std::set<std::string> known;
  for (const ScaleGroup& group : placement.activations) {
    for (const PlacedSlot& slot : group.slots)
      known.insert(slot_path(slot));
  }
  for (const PlacedLink& link : placement.links)
    known.insert(slot_path(link.from));
  std::vector<PlacedSlot> result;
  for (const auto& [path, layer] : layers) {
    for (const SlotId id : layer->occupied_slots()) {
      const PlacedSlot slot{path, id};
      const bool is_activation = id.kind == SlotId::Kind::kInput || id.kind == SlotId::Kind::kOutput;
      if (is_activation && quantizer_in(slot, layers) && !known.contains(slot_path(slot)))
        result.push_back(slot);
    }
  }
  return result;
}

}  // namespace

std::shared_ptr<ParametricQuantizer> limitable(const PlacedSlot& slot, const LayerMap& layers) {
  auto quantizer = std::dynamic_pointer_cast<ParametricQuantizer>(layers.at(slot.layer)->slot(slot.id));
  return quantizer && !quantizer->options().compatible ? quantizer : nullptr;
}

OwnWidths own_widths(const LayerMap& layers) {
  OwnWidths result;
  for (const auto& [path, layer] : layers) {
    for (const SlotId id : layer->occupied_slots()) {
      if (const auto quantizer = limitable({path, id}, layers))
        result[slot_path({path, id})] = limit_of(*quantizer);
    }
  }
  return result;
}

std::vector<BudgetedSlot> budgeted_weights(const Placement& placement, const LayerMap& layers,
                                           const std::vector<nn::FoldReport>& folds, const QATConfig& config,
                                           const OwnWidths& own) {
  std::vector<BudgetedSlot> result;
  const auto add = [&](const PlacedSlot& slot, WidthRequest request, bool quantizes_bias) {
    nn::QuantizableLayer& layer = *layers.at(slot.layer);
    request.count = layer.weight_parameter()->numel();
    request.fixed_bytes =
        constant_bytes(slot, layer, config) + 4 * bias_count(slot.layer, layers, folds, quantizes_bias);
    request.name = slot.layer;
    result.push_back({slot, request, {{slot, request.count}}});
  };
  std::set<std::string> placed;
  for (const PlacedSlot& slot : placement.weights) {
    placed.insert(slot.layer);
    auto request = configured_width(weight_family(config, slot.layer), weight_bits(config, slot.layer),
                                    /*is_signed=*/true, /*with_zero=*/false);
    keep_own_width(request, slot, layers, config, own);
    add(slot, request, !config.skip_bias);
  }
  for (const auto& [path, layer] : layers) {
    const PlacedSlot slot{path, {SlotId::Kind::kWeight}};
    if (!placed.contains(path) && quantizer_in(slot, layers))
      add(slot, own_width(slot, layers, config, own), /*quantizes_bias=*/false);
  }
  return result;
}

std::vector<BudgetedSlot> budgeted_activations(const Placement& placement, const LayerMap& layers,
                                               const Graph& graph, const QATConfig& config,
                                               const OwnWidths& own) {
  const auto foreign = foreign_activations(placement, layers);
  std::vector<BudgetedSlot> result;
  for (const ScaleGroup& group : placement.activations) {
    std::vector<CountedTensor> tensors;
    for (const PlacedSlot& slot : group.slots)
      tensors.push_back({slot, elements(slot, graph)});
    for (const PlacedSlot& slot : group.joined) {
      if (std::find(foreign.begin(), foreign.end(), slot) == foreign.end())
        tensors.push_back({slot, elements(slot, graph)});
    }
    auto request = configured_width(group.family, group.bits, may_be_negative(group, layers, config),
                                    /*with_zero=*/true);
    keep_own_width(request, group.owner(), layers, config, own);
    result.push_back(with_counts(group.owner(), request, std::move(tensors), config.activation_budget));
  }
  for (const PlacedSlot& slot : foreign) {
    result.push_back(with_counts(slot, own_width(slot, layers, config, own), {{slot, elements(slot, graph)}},
                                 config.activation_budget));
  }
  return result;
}

void append_tensors(const std::vector<BudgetedSlot>& slots, const LayerMap& layers,
                    QuantizedTensor::Kind kind, std::vector<QuantizedTensor>& tensors) {
  for (const BudgetedSlot& each : slots) {
    const auto quantizer = quantizer_in(each.slot, layers);
    if (!quantizer) continue;
    const std::int64_t bits = quantizer->bits();
    for (const CountedTensor& tensor : each.tensors) {
      tensors.push_back({tensor.slot.layer, tensor.slot.id.name(), kind, bits, tensor.count,
                         packed_code_bytes(tensor.count, bits) + each.request.fixed_bytes});
    }
  }
}

}  // namespace qat::detail
