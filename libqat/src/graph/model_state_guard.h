#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace qat::detail {

/// Puts a model into eval mode without gradient and, at the end of its life, everything back as it was: each
/// module's own train flag, the buffers' values, the random state of the CPU and of the devices that the
/// model lives on.
class ModelStateGuard {
 public:
  ModelStateGuard(torch::nn::Module& model, const std::vector<torch::Tensor>& inputs);
  ~ModelStateGuard();
  ModelStateGuard(const ModelStateGuard&) = delete;
  ModelStateGuard& operator=(const ModelStateGuard&) = delete;

 private:
  struct SavedBuffer {
    torch::Tensor buffer;
    torch::Tensor value;
    std::int64_t version = 0;
  };

  torch::NoGradGuard no_grad_;
  std::vector<std::pair<torch::nn::Module*, bool>> training_;  // parents before children
  std::vector<SavedBuffer> buffers_;
  std::vector<std::pair<at::Generator, torch::Tensor>> random_states_;
};

}  // namespace qat::detail
