#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <initializer_list>
#include <vector>

namespace qat {

/// Listens to the layers that run while a model is captured.
class CaptureListener {
 public:
  virtual ~CaptureListener() = default;
  /// A layer's forward begins with these data inputs.
  virtual void enter(const torch::nn::Module& layer, const std::vector<torch::Tensor>& inputs) = 0;
  /// It ends with this output. The layer returns what this returns: the output, or an alias of it where the
  /// layer passes an input on, so that the readers of the two can be told apart.
  virtual torch::Tensor leave(const torch::nn::Module& layer, const torch::Tensor& output) = 0;

  /// The listener of this thread; nullptr unless a capture runs.
  static CaptureListener*& current() {
    thread_local CaptureListener* listener = nullptr;
    return listener;
  }
};

/// Tells a running capture that a layer works: everything that happens between the constructor and `output`
/// belongs to the layer. Costs one thread-local read when no capture runs. Of nested scopes the outermost
/// counts. Example:
///   LayerScope scope(*this, {input});
///   return scope.output(compute(input));
class LayerScope {
 public:
  LayerScope(const torch::nn::Module& layer, std::initializer_list<torch::Tensor> inputs) : layer_(layer) {
    if (auto* listener = CaptureListener::current())
      listener->enter(layer, std::vector<torch::Tensor>(inputs));
  }
  LayerScope(const torch::nn::Module& layer, const std::vector<torch::Tensor>& inputs) : layer_(layer) {
    if (auto* listener = CaptureListener::current()) listener->enter(layer, inputs);
  }
  torch::Tensor output(torch::Tensor result) const {
    if (auto* listener = CaptureListener::current()) return listener->leave(layer_, result);
    return result;
  }

 private:
  const torch::nn::Module& layer_;
};

}  // namespace qat
