#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace qat {

/// A value that flows through a model.
struct GraphTensor {
  enum class Kind : std::int8_t { kInput, kActivation, kParameter, kConstant };

  std::int64_t id = 0;  ///< index in Graph::tensors.
  Kind kind = Kind::kActivation;
  std::string name;  ///< "input0", a parameter's path "features.0.weight", or "<producer>.out".
  std::vector<std::int64_t> shape;
  torch::Dtype dtype = torch::kFloat32;
  std::int64_t producer = -1;  ///< node id, -1 for inputs, parameters, constants.
  std::vector<std::int64_t>
      consumers;  ///< node ids in topological order; a node that reads it twice stands twice.
};

/// One step of a model: a layer (with its module path) or a functional operation between layers.
struct GraphNode {
  enum class Kind : std::int8_t { kLayer, kOperation };

  std::int64_t id = 0;  ///< index in Graph::nodes.
  Kind kind = Kind::kOperation;
  std::string type;  ///< layers: the module's class, "qat::nn::Conv2d"; operations: "aten::add".
  std::string path;  ///< layers: the module path, "features.0"; operations: the path of the layer that ran
                     ///< before it, "" if none.
  std::int64_t call = 0;  ///< 0 for a layer's first call in a forward pass, 1 for the second, ...
  bool in_place_on_view = false;
  std::vector<std::int64_t>
      inputs;  ///< tensor ids: data inputs of a layer; tensor arguments of an operation.
  std::vector<std::int64_t> outputs;  ///< tensor ids.
};

/// What feeds what in one forward pass of a model. Nodes are in topological order.
struct Graph {
  std::vector<GraphNode> nodes;
  std::vector<GraphTensor> tensors;
  std::vector<std::int64_t> inputs;   ///< tensor ids of the model's inputs.
  std::vector<std::int64_t> outputs;  ///< tensor ids of the model's outputs.

  /// The node of a layer's `call`-th call; nullptr if the layer did not run.
  const GraphNode* find_layer(const std::string& path, std::int64_t call = 0) const;
  /// A line per node: "3 features.3 qat::nn::Conv2d(%2[4, 8, 8, 8]) -> %5[4, 8, 8, 8]".
  std::string to_text() const;
  /// Graphviz, left to right; functional operations dashed.
  std::string to_dot() const;
};

/// A functional operation that has no slot: its neighbours see an unquantized tensor.
struct FunctionalOperation {
  std::int64_t node = 0;
  std::string type;                 ///< "aten::add".
  std::vector<std::string> after;   ///< paths of the layers (or names of the inputs) that feed it.
  std::vector<std::string> before;  ///< paths of the layers (or "output") that read its result.
  std::string use_instead;          ///< "qat::nn::Add", or "" if there is no layer for it.
};

/// The operations that compute on activations outside any layer. Those that only look at a tensor differently
/// (view, reshape, flatten, permute, slices, dropout in eval) keep codes and are not listed.
std::vector<FunctionalOperation> functional_operations(const Graph& graph);

/// The same as text, a line each: "aten::add between layer1.bn2, layer1.shortcut and layer1.relu: use
/// qat::nn::Add".
std::string functional_report(const Graph& graph);

/// True for operations and layers whose output holds the same values as their input: flatten, reshape, views,
/// permute, max pooling, dropout (in eval), identity. A quantized tensor stays quantized through them.
bool keeps_codes(const GraphNode& node);

}  // namespace qat
