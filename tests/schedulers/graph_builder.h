#pragma once

#include "schedulers/placement.h"

#include <map>
#include <set>
#include <string>
#include <vector>

namespace qat::testing {

/// Writes graphs by hand, with the traits of their layers.
class GraphBuilder {
 public:
  std::int64_t input(torch::Dtype dtype = torch::kFloat32) {
    const std::int64_t id = tensor(GraphTensor::Kind::kInput, dtype);
    graph.inputs.push_back(id);
    return id;
  }
  std::int64_t parameter() { return tensor(GraphTensor::Kind::kParameter, torch::kFloat32); }

  /// A layer; its path is its name. Classes are those of qat::nn, and "BatchNorm2d", which stays float.
  std::int64_t layer(const std::string& type, const std::string& path,
                     const std::vector<std::int64_t>& inputs) {
    traits[path] = traits_of_class(type);
    return node(GraphNode::Kind::kLayer, "qat::nn::" + type, path, inputs);
  }
  /// A functional operation.
  std::int64_t operation(const std::string& type, const std::vector<std::int64_t>& inputs) {
    return node(GraphNode::Kind::kOperation, type, "", inputs);
  }
  void output(std::int64_t id) { graph.outputs.push_back(id); }

  detail::Placement place(const QATConfig& config, const std::set<std::string>& folded = {}) const {
    return detail::place_quantizers(graph, traits, config, folded);
  }

  Graph graph;
  std::map<std::string, detail::LayerTraits> traits;

 private:
  static detail::LayerTraits traits_of_class(const std::string& type) {
    detail::LayerTraits result;
    result.keeps_codes = type == "MaxPool2d" || type == "Flatten" || type == "Dropout";
    result.inputs_share_scale = type == "Add" || type == "Sub" || type == "Cat";
    result.joins = type == "Cat";
    result.is_activation = type == "ReLU";
    result.has_weight = type == "Conv2d" || type == "Linear" || type == "Embedding";
    result.has_bias = type == "Conv2d" || type == "Linear";
    return result;
  }
  std::int64_t tensor(GraphTensor::Kind kind, torch::Dtype dtype) {
    GraphTensor result;
    result.id = static_cast<std::int64_t>(graph.tensors.size());
    result.kind = kind;
    result.dtype = dtype;
    graph.tensors.push_back(result);
    return result.id;
  }
  std::int64_t node(GraphNode::Kind kind, const std::string& type, const std::string& path,
                    const std::vector<std::int64_t>& inputs) {
    GraphNode result;
    result.id = static_cast<std::int64_t>(graph.nodes.size());
    result.kind = kind;
    result.type = type;
    result.path = path;
    if (kind == GraphNode::Kind::kLayer) result.call = calls_[path]++;
    result.inputs = inputs;
    for (const std::int64_t each : inputs)
      graph.tensors[each].consumers.push_back(result.id);
    const std::int64_t made = tensor(GraphTensor::Kind::kActivation, torch::kFloat32);
    graph.tensors[made].producer = result.id;
    result.outputs = {made};
    graph.nodes.push_back(result);
    return made;
  }

  std::map<std::string, std::int64_t> calls_;
};

/// "conv.input_slot" and the like, one text for each scale group ("a.output_slot = b.output_slot").
inline std::set<std::string> activations(const detail::Placement& placement) {
  std::set<std::string> texts;
  for (const auto& group : placement.activations) {
    std::string text;
    for (const auto& slot : group.slots)
      text += (text.empty() ? "" : " = ") + slot.layer + "." + slot.id.name();
    texts.insert(text);
  }
  return texts;
}

/// "conv2.input_slot -> relu1.output_slot", with "=>" where the link applies.
inline std::set<std::string> links(const detail::Placement& placement) {
  std::set<std::string> texts;
  for (const auto& link : placement.links) {
    texts.insert(link.from.layer + "." + link.from.id.name() + (link.applies ? " => " : " -> ") +
                 link.to.layer + "." + link.to.id.name());
  }
  return texts;
}

inline std::set<std::string> layers(const std::vector<detail::PlacedSlot>& slots) {
  std::set<std::string> paths;
  for (const auto& slot : slots)
    paths.insert(slot.layer);
  return paths;
}

}  // namespace qat::testing
