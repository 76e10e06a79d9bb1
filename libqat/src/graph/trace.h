#pragma once

#include <qat/graph/capture.h>

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace qat::detail {

/// A tensor that appears in a trace.
struct TraceValue {
  enum class Source : std::int8_t { kInput, kAttribute, kConstant, kNode };

  Source source = Source::kNode;
  std::string name = {};   ///< kAttribute: the path of the parameter or buffer.
  std::int64_t node = -1;  ///< kNode: index in Trace::nodes.
  std::vector<std::int64_t> shape = {};
  torch::Dtype dtype = torch::kFloat32;
};

/// An operator call.
struct TraceNode {
  /// An argument that the trace holds as a constant.
  struct Constant {
    std::string argument;  ///< "shape"
    std::string value;     ///< "[2, -1]"
    bool operator==(const Constant&) const = default;
  };
  struct Alias {
    std::int64_t output = 0;  ///< value id
    std::int64_t input = 0;   ///< value id
  };

  std::string op = {};           ///< "aten::add_"
  std::int64_t layer = -1;       ///< the layer that called it, index in Trace::layers; -1 between layers.
  std::int64_t last_layer = -1;  ///< the layer that began last before it; -1 if none.
  std::vector<std::int64_t> inputs = {};   ///< value ids of the tensor arguments, lists of tensors flattened.
  std::vector<std::int64_t> outputs = {};  ///< value ids
  std::vector<std::int64_t> writes = {};   ///< the inputs that it writes in place.
  std::vector<Alias> aliases = {};         ///< outputs that may share memory with an input.
  std::vector<Constant> constants = {};
};

/// A layer's call, from LayerScope's constructor to `output`.
struct TraceLayer {
  std::string path = {};
  std::string type = {};  ///< "qat::nn::Conv2d"
  std::int64_t call = 0;
  std::int64_t first_node = 0;  ///< number of nodes before it.
  std::vector<std::int64_t> inputs = {};
  std::int64_t output = 0;
};

/// One forward pass as plain data, in the order of execution.
struct Trace {
  std::vector<TraceValue> values = {};
  std::vector<TraceNode> nodes = {};
  std::vector<TraceLayer> layers = {};
  std::vector<std::int64_t> inputs = {};
  std::vector<std::int64_t> outputs = {};
  /// The mirror of the model with the traced `forward`; dead code and shapes removed.
  torch::jit::Module module;

  /// For each node, whether an output of the model or a layer depends on it.
  std::vector<bool> live_nodes() const;
  /// The path of the layer that began last before the node, "" if none.
  std::string last_layer_path(const TraceNode& node) const;
};

struct TraceOptions {
  /// What to do with a layer that returns one of its inputs.
  enum class ReturnedInputs : std::int8_t {
    kKeep,
    kAlias,  ///< give it an output of its own (`aten::alias`), so that the readers of the two can be told
             ///< apart.
  };

  std::string who = {};  ///< begins the texts of errors: "capture".
  ReturnedInputs returned_inputs = ReturnedInputs::kKeep;
};

/// Throws: c10::Error if a capture or a trace runs on this thread.
void refuse_nested(const std::string& who);

/// Runs the model once and writes down what it does. No other function knows the JIT tracer. The model must
/// be in the mode that is wanted (ModelStateGuard); the inputs are copied first. Throws: c10::Error as
/// refuse_nested, if an input is undefined, if a layer that reports itself is not registered in the model.
Trace trace_model(torch::nn::Module& model, const ForwardFunction& forward,
                  const std::vector<torch::Tensor>& inputs, const TraceOptions& options);

/// Throws: c10::Error if a tensor is written in place through a view (or a view's base) and another tensor
/// that shares its memory is read afterwards: the reader would seem to depend on the old value.
void refuse_hidden_writes(const Trace& trace, const std::string& who);

}  // namespace qat::detail
