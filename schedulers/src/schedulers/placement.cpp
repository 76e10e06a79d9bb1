#include "schedulers/placement.h"

#include "schedulers/layer_settings.h"
#include <qat/quantizers/make_quantizer.h>

#include <c10/util/Exception.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace qat::detail {
namespace {

using nn::SlotId;

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// One pass over a graph: what each node is, where each tensor comes from, which tensors need a quantizer.
class Placer {
 public:
  Placer(const Graph& graph, const std::map<std::string, LayerTraits>& traits, const QATConfig& config,
         const std::set<std::string>& folded)
      : graph_(graph), traits_(traits), config_(config), folded_(folded) {
    group_.resize(graph.tensors.size());
    std::iota(group_.begin(), group_.end(), 0);
    needed_.resize(graph.tensors.size(), false);
  }

  Placement place() {
    find_skipped();
    find_quantized();
    find_origins();
    find_never_negative();
    for (const GraphNode& node : graph_.nodes) {
      if (!quantized_[node.id]) continue;
      need_inputs_of(node);
      if (config_.recorder_position == RecorderPosition::kBoth) need_outputs_of(node);
    }
    find_readers();
    fill_activations();
    fill_parameters();
    check_calls();
    return std::move(placement_);
  }

 private:
  const LayerTraits* traits_of(const GraphNode& node) const {
    if (node.kind != GraphNode::Kind::kLayer) return nullptr;
    const auto found = traits_.find(node.path);
    return found == traits_.end() ? nullptr : &found->second;
  }
  const GraphNode* producer(std::int64_t tensor) const {
    const std::int64_t node = graph_.tensors[tensor].producer;
    return node < 0 ? nullptr : &graph_.nodes[node];
  }
  // The layer whose output slot quantizes a tensor.
  const GraphNode* layer_that_made(std::int64_t tensor) const {
    const GraphNode* maker = producer(tensor);
    return maker && traits_of(*maker) && maker->outputs[0] == tensor ? maker : nullptr;
  }
  bool is_real(std::int64_t tensor) const { return c10::isFloatingType(graph_.tensors[tensor].dtype); }

  // The output is one of the inputs, looked at differently.
  bool passes(const GraphNode& node) const {
    if (node.inputs.empty()) return false;
    // An operation carries the path of the layer before it.
    if (node.kind == GraphNode::Kind::kLayer && folded_.contains(node.path)) return true;
    const LayerTraits* traits = traits_of(node);
    return traits ? traits->keeps_codes : keeps_codes(node);
  }
  // The output holds the codes of several inputs: Cat, where it is quantized.
  bool joins(const GraphNode& node) const {
    const LayerTraits* traits = traits_of(node);
    return traits && traits->joins && quantized_[node.id];
  }

  // Marks the nodes of a listed class that no other one precedes (reversed: follows). A memoised walk:
  // linear.
  std::vector<bool> outermost(const std::vector<std::string>& names, bool reversed) const {
    std::vector<bool> reached(graph_.tensors.size(), false);
    std::vector<bool> result(graph_.nodes.size(), false);
    const auto visit = [&](const GraphNode& node) {
      const auto& sources = reversed ? node.outputs : node.inputs;
      const bool listed = node.kind == GraphNode::Kind::kLayer && contains(names, class_name(node.type));
      const bool other =
          std::any_of(sources.begin(), sources.end(), [&](std::int64_t t) { return reached[t]; });
      result[node.id] = listed && !other;
      if (!listed && !other) return;
      for (const std::int64_t tensor : reversed ? node.inputs : node.outputs)
        reached[tensor] = true;
    };
    if (reversed) {
      std::for_each(graph_.nodes.rbegin(), graph_.nodes.rend(), visit);
    } else {
      std::for_each(graph_.nodes.begin(), graph_.nodes.end(), visit);
    }
    return result;
  }

  void find_skipped() {
    const std::vector<bool> first = outermost(config_.skip_inputs_layers, false);
    const std::vector<bool> last = outermost(config_.skip_outputs_layers, true);
    skipped_.resize(graph_.nodes.size());
    for (std::size_t i = 0; i < skipped_.size(); ++i)
      skipped_[i] = first[i] || last[i];
  }

  void find_quantized() {
    quantized_.resize(graph_.nodes.size(), false);
    for (const GraphNode& node : graph_.nodes) {
      const LayerTraits* traits = traits_of(node);
      const std::string name = class_name(node.type);
      const bool listed = config_.record_layers.empty() || contains(config_.record_layers, name);
      const bool normalizes = name.starts_with("BatchNorm") && !(traits && traits->scales_and_shifts);
      quantized_[node.id] = traits && listed && !skipped_[node.id] && !passes(node) && !normalizes &&
                            !is_skipped(config_, node.path);
    }
    if (std::find(quantized_.begin(), quantized_.end(), true) != quantized_.end()) return;
    std::set<std::string> classes;
    for (const GraphNode& node : graph_.nodes) {
      if (traits_of(node)) classes.insert(class_name(node.type));
    }
    TORCH_CHECK(false, "place_quantizers: the configuration quantizes no layer: the model runs ",
                fmt::format("{}", fmt::join(classes, ", ")), "; record_layers is [",
                fmt::format("{}", fmt::join(config_.record_layers, ", ")), "], ",
                std::count(skipped_.begin(), skipped_.end(), true),
                " layers are skipped as the first or the last (skip_inputs_layers, skip_outputs_layers)");
  }

  void find_origins() {
    origin_.resize(graph_.tensors.size());
    std::iota(origin_.begin(), origin_.end(), 0);
    for (const GraphNode& node : graph_.nodes) {
      if (!passes(node)) continue;
      for (const std::int64_t output : node.outputs)
        origin_[output] = origin_[node.inputs[0]];
    }
  }

  // By the nodes that made them; in topological order, so what a node reads is known before.
  void find_never_negative() {
    static const std::set<std::string> kinds = {"ReLU", "ReLU6", "Sigmoid", "relu", "sigmoid"};
    never_negative_.resize(graph_.tensors.size(), false);
    for (const GraphNode& node : graph_.nodes) {
      const auto is_known = [&](std::int64_t tensor) { return never_negative_[tensor]; };
      const LayerTraits* traits = traits_of(node);
      bool never = kinds.contains(class_name(node.type));
      if (passes(node)) never = is_known(node.inputs[0]);
      if (traits && traits->joins) never = std::all_of(node.inputs.begin(), node.inputs.end(), is_known);
      for (const std::int64_t output : node.outputs)
        never_negative_[output] = never;
    }
  }

  std::int64_t find_group(std::int64_t tensor) {
    while (group_[tensor] != tensor)
      tensor = group_[tensor] = group_[group_[tensor]];
    return tensor;
  }

  // A layer's result that goes nowhere but into this activation stays an accumulator.
  bool fuses(const GraphNode& activation) const {
    if (!traits_of(activation)->is_activation || activation.inputs.empty()) return false;
    for (std::int64_t tensor = activation.inputs[0];;) {
      const auto& outputs = graph_.outputs;
      const bool is_output = std::find(outputs.begin(), outputs.end(), tensor) != outputs.end();
      const GraphNode* maker = producer(tensor);
      if (!maker || is_output || graph_.tensors[tensor].consumers.size() != 1) return false;
      if (!passes(*maker)) return traits_of(*maker) && !joins(*maker);
      if (class_name(maker->type).find("Pool") != std::string::npos) return false;
      tensor = maker->inputs[0];
    }
  }

  void need_inputs_of(const GraphNode& node) {
    if (fuses(node)) return;
    std::optional<std::int64_t> first;
    for (const std::int64_t input : node.inputs) {
      if (!is_real(input)) continue;
      const std::int64_t origin = origin_[input];
      needed_[origin] = true;
      if (!traits_of(node)->inputs_share_scale) continue;
      if (!traits_of(node)->joins) added_.insert(origin);
      if (first) group_[find_group(origin)] = find_group(*first);
      first = first.value_or(origin);
    }
    if (joins(node) && first) group_[find_group(node.outputs[0])] = find_group(*first);
  }

  // What other nodes read; through an activation that a quantizer computes.
  void need_outputs_of(const GraphNode& node) {
    for (const std::int64_t output : node.outputs) {
      const auto& consumers = graph_.tensors[output].consumers;
      if (consumers.empty() || !is_real(output)) continue;
      const GraphNode& reader = graph_.nodes[consumers.front()];
      const bool fused = traits_of(reader) && fuses(reader);
      const std::int64_t last = fused ? reader.outputs[0] : output;
      if (!graph_.tensors[last].consumers.empty()) needed_[origin_[last]] = true;
    }
  }

  // Every layer that reads a quantized tensor; quantized layers first, for the first one may own the
  // quantizer.
  void find_readers() {
    readers_.resize(graph_.tensors.size());
    for (const bool quantized : {true, false}) {
      for (const GraphNode& node : graph_.nodes) {
        if (!traits_of(node) || passes(node) || quantized_[node.id] != quantized) continue;
        for (std::size_t i = 0; i < node.inputs.size(); ++i) {
          const std::int64_t origin = origin_[node.inputs[i]];
          const PlacedSlot slot{node.path, {SlotId::Kind::kInput, static_cast<std::int64_t>(i)}};
          const bool multiplies = quantized && traits_of(node)->has_weight;
          if (needed_[origin]) readers_[origin].push_back({slot, node.inputs[i], quantized, multiplies});
        }
      }
    }
  }

  void fill_activations() {
    for (const GraphTensor& tensor : graph_.tensors) {
      if (!needed_[tensor.id]) continue;
      const GraphNode* maker = layer_that_made(tensor.id);
      if (maker && joins(*maker)) continue;  // its operands carry the scale
      if (maker) {
        slots_of(tensor.id).push_back({maker->path, {SlotId::Kind::kOutput, 0}});
        continue;
      }
      // No layer made it: the first reader of each view of it does the quantizing.
      std::set<std::int64_t> views;
      for (const Reader& reader : readers_[tensor.id]) {
        if (views.insert(reader.tensor).second) slots_of(tensor.id).push_back(reader.slot);
      }
    }
    for (const GraphNode& node : graph_.nodes) {
      if (joins(node) && group_index_.contains(find_group(node.outputs[0])))
        members_of(node.outputs[0]).joined.push_back({node.path, {SlotId::Kind::kOutput, 0}});
    }
    set_widths();
    for (const GraphTensor& tensor : graph_.tensors) {
      if (needed_[tensor.id]) link_readers(tensor.id);
    }
  }

  void set_widths() {
    for (const std::int64_t tensor : added_)
      added_groups_.insert(find_group(tensor));
    std::set<std::int64_t> negative_groups;
    std::set<std::int64_t> made_groups;
    for (const GraphTensor& tensor : graph_.tensors) {
      if (!needed_[tensor.id]) continue;
      if (!never_negative_[tensor.id]) negative_groups.insert(find_group(tensor.id));
      if (tensor.kind != GraphTensor::Kind::kInput) made_groups.insert(find_group(tensor.id));
    }
    for (const auto& [representative, index] : group_index_) {
      ScaleGroup& group = placement_.activations[index];
      const bool is_input = group.owner().id.kind == SlotId::Kind::kInput;
      std::int64_t bits = is_input && config_.input_bits != 0 ? config_.input_bits : config_.activation_bits;
      if (added_groups_.contains(representative) && config_.residual_bits > bits) {
        bits = config_.residual_bits;
        widened_groups_.insert(representative);
      }
      group.bits = activation_bits(config_, group.owner().layer, bits);
      group.never_negative = !negative_groups.contains(representative);
      group.is_model_input = !made_groups.contains(representative);
      group.family = activation_family(config_, group.owner().layer);
    }
  }

  void link_readers(std::int64_t tensor) {
    const bool arrives_quantized = layer_that_made(tensor) != nullptr;
    const ScaleGroup group = members_of(tensor);
    const bool is_wide = arrives_quantized && widened_groups_.contains(find_group(tensor));
    std::optional<PlacedSlot> narrow;
    for (const Reader& reader : readers_[tensor]) {
      const bool is_member =
          std::find(group.slots.begin(), group.slots.end(), reader.slot) != group.slots.end();
      if (is_member || (arrives_quantized && !reader.quantized)) continue;
      const std::int64_t wanted = activation_bits(config_, reader.slot.layer, config_.activation_bits);
      const std::string& family = activation_family(config_, reader.slot.layer);
      const bool narrows =
          is_wide && reader.multiplies && most_bits(family, wanted) < most_bits(group.family, group.bits);
      if (narrows && narrow) {
        placement_.links.push_back({reader.slot, *narrow, true});
      } else if (narrows) {
        narrow = reader.slot;
        placement_.activations.push_back(
            {{reader.slot}, wanted, {}, never_negative_[tensor], /*is_model_input=*/false, family});
      } else {
        placement_.links.push_back({reader.slot, group.owner(), !arrives_quantized});
      }
    }
  }

  std::vector<PlacedSlot>& slots_of(std::int64_t tensor) { return members_of(tensor).slots; }

  ScaleGroup& members_of(std::int64_t tensor) {
    const auto [found, is_new] = group_index_.try_emplace(find_group(tensor), placement_.activations.size());
    if (is_new) placement_.activations.emplace_back();
    return placement_.activations[found->second];
  }

  void fill_parameters() {
    std::set<std::string> done;
    for (const GraphNode& node : graph_.nodes) {
      if (!quantized_[node.id] || !done.insert(node.path).second) continue;
      const LayerTraits& traits = *traits_of(node);
      if (traits.has_weight) placement_.weights.push_back({node.path, {SlotId::Kind::kWeight, 0}});
      const bool wants_bias = traits.has_weight && traits.has_bias && !config_.skip_bias;
      if (wants_bias) placement_.biases.push_back({node.path, {SlotId::Kind::kBias, 0}});
    }
  }

  // A slot stands for one tensor of one call.
  void check_calls() const {
    std::set<std::string> occupied;
    for (const ScaleGroup& group : placement_.activations) {
      for (const PlacedSlot& slot : group.slots)
        occupied.insert(slot.layer);
    }
    for (const PlacedSlot& slot : placement_.weights)
      occupied.insert(slot.layer);
    for (const PlacedLink& link : placement_.links)
      occupied.insert(link.from.layer);
    for (const GraphNode& node : graph_.nodes) {
      TORCH_CHECK(
          node.kind != GraphNode::Kind::kLayer || node.call == 0 || !occupied.contains(node.path),
          "place_quantizers: layer ", node.path, " (", node.type,
          ") is called more than once in a forward pass, but has one slot for each of its tensors; use a "
          "layer of its own for each call");
    }
  }

  struct Reader {
    PlacedSlot slot;
    std::int64_t tensor;  // what it reads: the origin or a view of it
    bool quantized;
    bool multiplies;  // quantized, with a weight
  };

  const Graph& graph_;
  const std::map<std::string, LayerTraits>& traits_;
  const QATConfig& config_;
  const std::set<std::string>& folded_;

  std::vector<bool> skipped_;                 // by node
  std::vector<bool> quantized_;               // by node: its inputs and its weight are
  std::vector<std::int64_t> origin_;          // by tensor: the tensor whose quantizer it carries
  std::vector<std::int64_t> group_;           // by tensor: union-find over shared scales
  std::vector<bool> never_negative_;          // by tensor: the graph shows it
  std::vector<bool> needed_;                  // by tensor: gets a quantizer
  std::vector<std::vector<Reader>> readers_;  // by origin
  std::set<std::int64_t> added_;              // operands of Add or Sub
  std::set<std::int64_t> added_groups_;       // representatives of their groups
  std::set<std::int64_t> widened_groups_;     // those that residual_bits made wider
  std::map<std::int64_t, std::size_t>
      group_index_;  // representative of a group -> its index in the placement
  Placement placement_;
};

}  // namespace

std::string class_name(const std::string& type) {
  const std::size_t colons = type.rfind("::");
  std::string name = colons == std::string::npos ? type : type.substr(colons + 2);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

std::map<std::string, LayerTraits> layer_traits(torch::nn::Module& model) {
  std::map<std::string, LayerTraits> traits;
  for (const auto& [path, layer] : nn::quantizable_layers(model)) {
    const torch::Tensor* bias = layer->bias_parameter();
    traits[path] = {.keeps_codes = layer->keeps_codes(),
                    .inputs_share_scale = layer->inputs_share_scale(),
                    .joins = layer->inputs_share_scale() && !layer->input_count(),
                    .is_activation = layer->fusable_activation().has_value(),
                    .scales_and_shifts = layer->form().scale_and_shift,
                    .has_weight = layer->weight_parameter() != nullptr,
                    .has_bias = bias && bias->defined()};
  }
  return traits;
}

Placement place_quantizers(const Graph& graph, const std::map<std::string, LayerTraits>& traits,
                           const QATConfig& config, const std::set<std::string>& folded) {
  return Placer(graph, traits, config, folded).place();
}

}  // namespace qat::detail
