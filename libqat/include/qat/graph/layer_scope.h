#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace qat {

/// Listens to the layers that run while a model is captured.
class CaptureListener {
 public:
  virtual ~CaptureListener() = default;
  /// A layer's forward begins with these data inputs.
  virtual void enter(const torch::nn::Module& layer, const std::vector<torch::Tensor>& inputs) = 0;
  /// It ends with this output.
  virtual void leave(const torch::nn::Module& layer, const torch::Tensor& output) = 0;

  /// The listener of this thread; nullptr unless a capture runs.
  static CaptureListener*& current() {
    thread_local CaptureListener* listener = nullptr;
    return listener;
  }
};

/// Tells a running capture that a layer works: everything that happens between the constructor and `output` belongs to
/// the layer. Costs one thread-local read when no capture runs. Layers do not nest.
/// Example:
///   LayerScope scope(*this, {input});
///   return scope.output(compute(input));
class LayerScope {
 public:
  LayerScope(const torch::nn::Module& layer, std::initializer_list<torch::Tensor> inputs)
      : LayerScope(layer, CaptureListener::current() ? std::vector<torch::Tensor>(inputs)
                                                     : std::vector<torch::Tensor>()) {}
  LayerScope(const torch::nn::Module& layer, const std::vector<torch::Tensor>& inputs) : layer_(layer) {
    if (auto* listener = CaptureListener::current()) listener->enter(layer, inputs);
  }
  torch::Tensor output(torch::Tensor result) const {
    if (auto* listener = CaptureListener::current()) listener->leave(layer_, result);
    return result;
  }

 private:
  const torch::nn::Module& layer_;
};

}  // namespace qat
