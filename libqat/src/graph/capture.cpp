#include "graph/model_state_guard.h"
#include "graph/trace.h"
#include <qat/graph/capture.h>

#include <fmt/format.h>

#include <string>
#include <utility>

namespace qat {
namespace {

constexpr const char* kCapture = "capture";

/// Builds the graph of a trace: a node for each layer and for each operation between layers.
class GraphBuilder {
 public:
  explicit GraphBuilder(const detail::Trace& trace) : trace_(trace), tensor_of_(trace.values.size(), -1) {}

  Graph build() {
    for (const auto value : trace_.inputs) {
      add_tensor(value, GraphTensor::Kind::kInput, fmt::format("input{}", graph_.inputs.size()));
      graph_.inputs.push_back(tensor_of_[value]);
    }
    const auto live = trace_.live_nodes();
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(trace_.nodes.size()); ++i) {
      add_layers_before(i);
      const auto& node = trace_.nodes[i];
      if (node.layer < 0 && live[i] && !node.inputs.empty()) add_operation(node);
    }
    add_layers_before(static_cast<std::int64_t>(trace_.nodes.size()));
    for (const auto value : trace_.outputs)
      graph_.outputs.push_back(tensor(value));
    for (const auto& node : graph_.nodes) {
      for (const auto input : node.inputs)
        graph_.tensors[input].consumers.push_back(node.id);
    }
    return std::move(graph_);
  }

 private:
  void add_layers_before(std::int64_t node) {
    while (next_layer_ < trace_.layers.size() && trace_.layers[next_layer_].first_node <= node) {
      const auto& layer = trace_.layers[next_layer_++];
      auto& added = add_node(GraphNode::Kind::kLayer, layer.type, layer.path, layer.inputs);
      added.call = layer.call;
      node_of_layer_.push_back(added.id);
      add_output(added.id, layer.output);
    }
  }

  void add_operation(const detail::TraceNode& node) {
    std::string type = node.op;
    if (type.ends_with('_') && !type.ends_with("__")) type.pop_back();
    auto& added = add_node(GraphNode::Kind::kOperation, type, trace_.last_layer_path(node), node.inputs);
    const auto id = added.id;
    for (const auto written : node.writes) {
      const auto producer = trace_.values[written].node;
      const bool view =
          producer >= 0 && trace_.nodes[producer].writes.empty() && !trace_.nodes[producer].aliases.empty();
      graph_.nodes[id].in_place_on_view = graph_.nodes[id].in_place_on_view || view;
    }
    for (const auto output : node.outputs)
      add_output(id, output);
  }

  GraphNode& add_node(GraphNode::Kind kind, std::string type, std::string path,
                      const std::vector<std::int64_t>& inputs) {
    std::vector<std::int64_t> tensors;
    for (const auto value : inputs)
      tensors.push_back(tensor(value));
    GraphNode node;
    node.id = static_cast<std::int64_t>(graph_.nodes.size());
    node.kind = kind;
    node.type = std::move(type);
    node.path = std::move(path);
    node.inputs = std::move(tensors);
    return graph_.nodes.emplace_back(std::move(node));
  }

  void add_output(std::int64_t node, std::int64_t value) {
    auto& producer = graph_.nodes[node];
    std::string name =
        producer.kind == GraphNode::Kind::kLayer ? producer.path : fmt::format("{}#{}", producer.type, node);
    if (producer.call > 0) name += fmt::format("#{}", producer.call);
    name += producer.outputs.empty() ? ".out" : fmt::format(".out{}", producer.outputs.size());
    add_tensor(value, GraphTensor::Kind::kActivation, std::move(name));
    graph_.tensors.back().producer = node;
    producer.outputs.push_back(graph_.tensors.back().id);
  }

  void add_tensor(std::int64_t value, GraphTensor::Kind kind, std::string name) {
    GraphTensor tensor;
    tensor.id = static_cast<std::int64_t>(graph_.tensors.size());
    tensor.kind = kind;
    tensor.name = std::move(name);
    tensor.shape = trace_.values[value].shape;
    tensor.dtype = trace_.values[value].dtype;
    tensor_of_[value] = tensor.id;
    graph_.tensors.push_back(std::move(tensor));
  }

  /// The tensor of a value; one that is met for the first time is a parameter, a constant, or a by-product of
  /// a layer.
  std::int64_t tensor(std::int64_t value) {
    if (tensor_of_[value] >= 0) return tensor_of_[value];
    const auto& description = trace_.values[value];
    if (description.source == detail::TraceValue::Source::kAttribute) {
      add_tensor(value, GraphTensor::Kind::kParameter, description.name);
    } else if (description.node >= 0 && trace_.nodes[description.node].layer >= 0) {
      add_output(node_of_layer_[trace_.nodes[description.node].layer], value);
    } else {
      add_tensor(value, GraphTensor::Kind::kConstant, fmt::format("constant{}", constants_++));
    }
    return tensor_of_[value];
  }

  const detail::Trace& trace_;
  Graph graph_;
  std::vector<std::int64_t> tensor_of_;      // by value
  std::vector<std::int64_t> node_of_layer_;  // by layer
  std::size_t next_layer_ = 0;
  std::int64_t constants_ = 0;
};

}  // namespace

Graph capture(torch::nn::Module& model, const ForwardFunction& forward,
              const std::vector<torch::Tensor>& example_inputs) {
  detail::refuse_nested(kCapture);
  const detail::ModelStateGuard guard(model, example_inputs);
  const auto trace =
      detail::trace_model(model, forward, example_inputs,
                          {.who = kCapture, .returned_inputs = detail::TraceOptions::ReturnedInputs::kAlias});
  TORCH_CHECK(!trace.layers.empty(), kCapture,
              ": no layer of the model reports itself; use qat::nn layers (namespace nn = qat::nn;), or a "
              "qat::LayerScope "
              "in the forward of your own");
  detail::refuse_hidden_writes(trace, kCapture);
  return GraphBuilder(trace).build();
}

}  // namespace qat
