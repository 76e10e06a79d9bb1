#include "graph/model_state_guard.h"

#include <ATen/Context.h>

#include <algorithm>
#include <mutex>

namespace qat::detail {

ModelStateGuard::ModelStateGuard(torch::nn::Module& model, const std::vector<torch::Tensor>& inputs) {
  training_.emplace_back(&model, model.is_training());
  for (const auto& module : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    training_.emplace_back(module.value().get(), module.value()->is_training());
  }

  std::vector<torch::Device> devices = {torch::Device(torch::kCPU)};
  const auto note_device = [&](const torch::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return;
    if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end())
      devices.push_back(tensor.device());
  };
  for (const auto& input : inputs)
    note_device(input);
  for (const auto& parameter : model.parameters())
    note_device(parameter);
  for (const auto& buffer : model.buffers()) {
    note_device(buffer);
    if (!buffer.is_inference()) buffers_.push_back({buffer, buffer.clone(), buffer._version()});
  }
  for (const auto& device : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    random_states_.emplace_back(generator, generator.get_state());
  }
  model.eval();
}

ModelStateGuard::~ModelStateGuard() {
  for (const auto& [module, training] : training_) {
    if (module->is_training() != training) module->train(training);
  }
  for (auto& saved : buffers_) {
    if (saved.buffer._version() == saved.version) continue;
    if (saved.buffer.sizes() == saved.value.sizes()) {
      saved.buffer.copy_(saved.value);
    } else {
      saved.buffer.set_data(saved.value);
    }
  }
  for (auto& [generator, state] : random_states_) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace qat::detail
