#pragma once

#include <qat/graph/capture.h>
#include <qat/graph/layer_scope.h>

#include <torch/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Small layers that report themselves, and models made of them.
namespace reporting {

/// A torch layer that reports itself: Reporting<torch::nn::Linear>.
template <class Holder>
class Reporting : public torch::nn::Module {
 public:
  template <class... Arguments>
  explicit Reporting(const std::string& name, Arguments&&... arguments)
      : torch::nn::Module(name), inner_(std::forward<Arguments>(arguments)...) {
    // The torch layer's tensors become this layer's own, under the same names.
    for (const auto& parameter : inner_->named_parameters(false)) {
      register_parameter(parameter.key(), parameter.value());
    }
    for (const auto& buffer : inner_->named_buffers(false))
      register_buffer(buffer.key(), buffer.value());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    qat::LayerScope scope(*this, {x});
    inner_->train(is_training());
    return scope.output(inner_->forward(x));
  }

 private:
  Holder inner_;
};

using Linear = Reporting<torch::nn::Linear>;
using Conv2d = Reporting<torch::nn::Conv2d>;
using BatchNorm2d = Reporting<torch::nn::BatchNorm2d>;
using ReLU = Reporting<torch::nn::ReLU>;
using Dropout = Reporting<torch::nn::Dropout>;
using Identity = Reporting<torch::nn::Identity>;
using Flatten = Reporting<torch::nn::Flatten>;

inline std::shared_ptr<Conv2d> conv3x3(std::int64_t in, std::int64_t out) {
  return std::make_shared<Conv2d>("Conv2d", torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
}
inline std::shared_ptr<Linear> linear(std::int64_t in, std::int64_t out) {
  return std::make_shared<Linear>("Linear", in, out);
}
template <class Layer, class... Arguments>
std::shared_ptr<Layer> layer(const std::string& name, Arguments&&... arguments) {
  return std::make_shared<Layer>(name, std::forward<Arguments>(arguments)...);
}

/// conv -> bn -> + -> relu -> flatten -> linear, with the sum and the flatten as functional code.
struct Residual : torch::nn::Module {
  Residual() : torch::nn::Module("Residual") {
    register_module("stem", stem);
    block = register_module("block", std::make_shared<torch::nn::Module>("Block"));
    block->register_module("conv", conv);
    block->register_module("bn", bn);
    register_module("relu", relu);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = stem->forward(x);
    const auto z = relu->forward(bn->forward(conv->forward(y)) + y);
    return head->forward(z.flatten(1));
  }

  std::shared_ptr<Conv2d> stem = conv3x3(1, 2);
  std::shared_ptr<torch::nn::Module> block;
  std::shared_ptr<Conv2d> conv = conv3x3(2, 2);
  std::shared_ptr<BatchNorm2d> bn = layer<BatchNorm2d>("BatchNorm2d", 2);
  std::shared_ptr<ReLU> relu = layer<ReLU>("ReLU");
  std::shared_ptr<Linear> head = linear(32, 3);
};

/// A model from a function; its layers are registered under the names given.
struct FromFunction : torch::nn::Module {
  using Layers = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;
  explicit FromFunction(const Layers& layers) : torch::nn::Module("FromFunction") {
    for (const auto& [name, module] : layers)
      register_module(name, module);
  }
};

}  // namespace reporting
