#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <string>

namespace qat {

/// What a layer's slot can hold: a Recorder or a Quantizer. It maps a tensor to a tensor of the same shape
/// and type.
///
/// Statistics and scales are registered buffers (float32, whatever type the model is converted to:
/// `to(kHalf)` moves them between devices and leaves their type), learnables are parameters: their names are
/// the checkpoint format. `clone()`, `save()` and `load()` work in any state: `config()` holds everything
/// that is not a tensor.
class TensorModule : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  virtual torch::Tensor forward(const torch::Tensor& x) = 0;

  /// A JSON object from which `make_tensor_module` builds an equal module with fresh tensors. Key "type"
  /// names the class.
  virtual std::string config() const = 0;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

 private:
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override;
};

/// Builds a recorder or quantizer from the text of `TensorModule::config()`.
/// Throws: c10::ValueError if the text is not such an object or its type is unknown.
std::shared_ptr<TensorModule> make_tensor_module(const std::string& config);

}  // namespace qat
