#pragma once

#include <qat/graph/graph.h>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <vector>

namespace qat {

/// Runs a model on its inputs and gives its outputs. `forward_function` makes one of most models; for others
/// write a lambda:
///   [&](const std::vector<torch::Tensor>& x) { return std::vector<torch::Tensor>{net->forward(x[0])}; }
using ForwardFunction = std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>;

/// Makes a ForwardFunction of a module holder or shared pointer whose forward takes tensors and returns a
/// tensor, a tuple or a vector of tensors.
template <class ModulePointer>
ForwardFunction forward_function(ModulePointer model);

/// Captures one forward pass as a graph. Runs in eval mode, without gradient, with the random state saved;
/// the model is as before afterwards (modes, buffers, gradients), also when it throws. Functional code
/// between layers becomes kOperation nodes. Operations inside a layer belong to the layer's node. Throws:
/// c10::Error for in-place writes into views (the layer before it is named), for models without a layer that
/// reports itself, for inputs of the wrong type; what the model throws passes through.
Graph capture(torch::nn::Module& model, const ForwardFunction& forward,
              const std::vector<torch::Tensor>& example_inputs);

/// The same for a module holder or shared pointer: `capture(net, {torch::randn({2, 1, 28, 28})})`.
template <class ModulePointer>
Graph capture(ModulePointer model, const std::vector<torch::Tensor>& example_inputs) {
  return capture(*model, forward_function(model), example_inputs);
}

}  // namespace qat

#include <qat/graph/forward_function-inl.h>
