#include "schedulers/model_place.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>

#include <string>

namespace qat::detail {
namespace {

torch::Device device_named(const std::string& name) {
  const torch::Device device(name == "cudnn" ? "cuda" : name);
  if (device.is_cpu()) return device;
  const auto count = at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
  TORCH_CHECK_VALUE(
      count > 0 && device.index() < count, "QATScheduler: ext_name is \"", name, "\", but there ",
      count == 1 ? "is " : "are ", static_cast<int>(count),
      " CUDA devices (counted from 0); set it to cpu, or to nothing to leave the model where it is");
  return device;
}

}  // namespace

void put_in_place(torch::nn::Module& model, std::vector<torch::Tensor>& inputs, const QATConfig& config) {
  if (!config.ext_name.empty()) {
    const auto device = device_named(config.ext_name);
    model.to(device);
    for (torch::Tensor& input : inputs)
      input = input.to(device);
  }
  if (!config.channel_last) return;
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : model.parameters()) {
    const auto order =
        parameter.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
    if (parameter.dim() == 4 || parameter.dim() == 5) parameter.set_data(parameter.contiguous(order));
  }
}

}  // namespace qat::detail
