#include <qat/nn/batch_norm.h>
#include <qat/nn/batch_norm_statistics.h>

#include <ATen/Context.h>

#include <algorithm>
#include <mutex>
#include <optional>

namespace qat::nn {
namespace {

constexpr const char* kReestimate = "reestimate_batch_norm";

// The BatchNorms that can still use statistics.
std::vector<BatchNormLayer*> normalizing_layers(torch::nn::Module& model) {
  std::vector<BatchNormLayer*> result;
  for (const auto& [path, layer] : quantizable_layers(model)) {
    auto* bn = dynamic_cast<BatchNormLayer*>(layer);
    if (bn && bn->normalizes()) result.push_back(bn);
  }
  return result;
}

// Lets BatchNorms learn statistics while everything else is in eval mode, and puts back what is not
// statistics. Statistics too, but for those that `keep()` keeps.
class ReestimationScope {
 public:
  ReestimationScope(torch::nn::Module& model, const std::vector<BatchNormLayer*>& layers) {
    modes_.emplace_back(&model, model.is_training());
    for (const auto& module : model.modules(/*include_self=*/false))
      modes_.emplace_back(module.get(), module->is_training());
    for (const torch::Tensor& buffer : model.buffers())
      buffers_.push_back({buffer, buffer.clone(), buffer._version()});
    save_random_state(torch::kCPU);
    for (const torch::Tensor& parameter : model.parameters()) {
      if (parameter.is_cuda()) save_random_state(parameter.device());
    }
    model.eval();
    for (BatchNormLayer* bn : layers) {
      torch::nn::Module& module = dynamic_cast<QuantizableLayer&>(*bn).module();
      module.train();
      for (const auto& slot : module.children())
        slot->eval();
      layers_.push_back({bn, bn->has_frozen_statistics(), bn->exchange_momentum(std::nullopt)});
      bn->freeze_statistics(false);
      bn->reset_statistics();
    }
  }
  ~ReestimationScope() {
    for (const auto& [bn, frozen, momentum] : layers_) {
      bn->exchange_momentum(momentum);
      bn->freeze_statistics(frozen);
    }
    for (const auto& [module, training] : modes_) {
      if (module->is_training() != training) module->train(training);
    }
    for (SavedBuffer& saved : buffers_) {
      const auto is_it = [&](const torch::Tensor& each) { return each.is_same(saved.buffer); };
      // A graph that is still to be differentiated may hold a buffer that nobody wrote.
      const bool is_written = saved.buffer._version() != saved.version;
      if (is_written && std::none_of(kept_.begin(), kept_.end(), is_it)) saved.buffer.copy_(saved.value);
    }
    for (auto& [generator, state] : random_states_) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    }
  }
  ReestimationScope(const ReestimationScope&) = delete;
  ReestimationScope& operator=(const ReestimationScope&) = delete;

  /// Keeps the statistics of the layers that ran; their number.
  std::int64_t keep() {
    std::int64_t count = 0;
    for (const Layer& layer : layers_) {
      const auto buffers =
          dynamic_cast<QuantizableLayer&>(*layer.bn).module().named_buffers(/*recurse=*/false);
      if (buffers["num_batches_tracked"].item<std::int64_t>() == 0) continue;
      for (const auto& buffer : buffers)
        kept_.push_back(buffer.value());
      ++count;
    }
    return count;
  }

 private:
  struct SavedBuffer {
    torch::Tensor buffer;
    torch::Tensor value;
    std::int64_t version;
  };
  struct Layer {
    BatchNormLayer* bn;
    bool frozen;
    std::optional<double> momentum;
  };

  void save_random_state(torch::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    for (const auto& [known, state] : random_states_) {
      if (known == generator) return;
    }
    const std::lock_guard<std::mutex> lock(generator.mutex());
    random_states_.emplace_back(generator, generator.get_state());
  }

  torch::NoGradGuard no_grad_;
  std::vector<std::pair<torch::nn::Module*, bool>> modes_;  // parents before children
  std::vector<SavedBuffer> buffers_;
  std::vector<std::pair<at::Generator, torch::Tensor>> random_states_;
  std::vector<Layer> layers_;
  std::vector<torch::Tensor> kept_;
};

}  // namespace

void freeze_batch_norm_statistics(torch::nn::Module& model, bool frozen) {
  const auto layers = normalizing_layers(model);
  for (const BatchNormLayer* bn : layers) {
    TORCH_CHECK_VALUE(!frozen || bn->has_running_statistics(),
                      "freeze_batch_norm_statistics: ", dynamic_cast<const QuantizableLayer&>(*bn).describe(),
                      " has no running statistics to freeze; build it with track_running_stats(true)");
  }
  for (BatchNormLayer* bn : layers)
    bn->freeze_statistics(frozen);
}

std::int64_t reestimate_batch_norm(torch::nn::Module& model, const ForwardFunction& forward,
                                   const std::vector<std::vector<torch::Tensor>>& batches) {
  TORCH_CHECK_VALUE(!batches.empty(), kReestimate, ": expected at least one batch, got none; the statistics ",
                    "are those of the batches");
  auto layers = normalizing_layers(model);
  std::erase_if(layers, [](const BatchNormLayer* bn) { return !bn->has_running_statistics(); });
  if (layers.empty()) return 0;
  ReestimationScope scope(model, layers);
  for (const auto& batch : batches)
    forward(batch);
  return scope.keep();
}

}  // namespace qat::nn
