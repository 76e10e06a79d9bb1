#include "quantizers/quantizer_config.h"
#include "recorders/recorder_config.h"
#include <qat/tensor_module.h>

#include <nlohmann/json.hpp>

namespace qat {
namespace {

/// Copies every tensor; the handles stay, so members that share them see the new values.
void copy_tensors(const torch::nn::Module& from, torch::nn::Module& to,
                  const std::optional<torch::Device>& device) {
  const torch::NoGradGuard no_grad;
  const auto copy = [&](const auto& sources, const auto& targets) {
    for (const auto& source : sources) {
      auto target = targets[source.key()];
      target.set_data(device ? source.value().detach().to(*device, source.value().scalar_type(), false, true)
                             : source.value().detach().clone());
    }
  };
  copy(from.named_parameters(), to.named_parameters());
  copy(from.named_buffers(), to.named_buffers());
}

}  // namespace

std::shared_ptr<torch::nn::Module> TensorModule::clone(const std::optional<torch::Device>& device) const {
  auto copy = make_tensor_module(config());
  copy_tensors(*this, *copy, device);
  copy->train(is_training());
  return copy;
}

void TensorModule::clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) {
  const auto* source = dynamic_cast<const TensorModule*>(&other);
  TORCH_CHECK(source != nullptr && source->config() == config(), "qat: cannot clone ", other.name(),
              " into a module with another configuration, ", config());
  copy_tensors(*source, *this, device);
  train(source->is_training());
}

void TensorModule::to(torch::Device device, torch::Dtype, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
}

void TensorModule::to(torch::Dtype, bool) {}

void TensorModule::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
}

std::shared_ptr<TensorModule> make_tensor_module(const std::string& config) {
  const auto json = nlohmann::json::parse(config, nullptr, /*allow_exceptions=*/false);
  const bool is_typed = json.is_object() && json.contains("type") && json["type"].is_string();
  TORCH_CHECK_VALUE(is_typed,
                    "qat::make_tensor_module: expected a JSON object with a key \"type\", got: ", config);
  const auto type = json["type"].get<std::string>();
  if (type == kAffineQuantizerType) return make_affine_quantizer(json);
  if (type == kBiasQuantizerType) return make_bias_quantizer(json);
  if (type == kParametricQuantizerType) return make_parametric_quantizer(json);
  if (type == kLearnedStepQuantizerType) return make_learned_step_quantizer(json);
  if (type == kLowBitWeightQuantizerType) return make_low_bit_weight_quantizer(json);
  if (type == kRecorderType) return make_recorder(json);
  TORCH_CHECK_VALUE(false, "qat::make_tensor_module: unknown type '", type, "'; expected ",
                    kAffineQuantizerType, ", ", kBiasQuantizerType, ", ", kParametricQuantizerType, ", ",
                    kLearnedStepQuantizerType, ", ", kLowBitWeightQuantizerType, " or ", kRecorderType);
}

}  // namespace qat
