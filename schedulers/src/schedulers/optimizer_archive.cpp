#include "schedulers/optimizer_archive.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/serialize/archive.h>

#include <map>
#include <set>
#include <sstream>
#include <typeinfo>
#include <utility>

namespace qat::detail {
namespace {

std::string type_name(const torch::optim::Optimizer& optimizer) {
  return c10::demangle(typeid(optimizer).name());
}

}  // namespace

SavedOptimizer save_optimizer(const torch::optim::Optimizer& optimizer, const torch::nn::Module& model) {
  std::map<const c10::TensorImpl*, std::string> names;
  for (const auto& parameter : model.named_parameters())
    names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
  SavedOptimizer saved;
  saved.type = type_name(optimizer);
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    auto& of_group = saved.groups.emplace_back();
    for (const torch::Tensor& parameter : group.params()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      TORCH_CHECK_VALUE(found != names.end(), "save_checkpoint: the optimizer trains a tensor of shape ",
                        parameter.sizes(), " that is no parameter of the model ", model.name(),
                        "; expected an optimizer of this model's parameters only");
      of_group.push_back(found->second);
    }
  }
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  saved.archive = std::move(stream).str();
  return saved;
}

void load_optimizer(const SavedOptimizer& saved, const torch::nn::Module& model,
                    torch::optim::Optimizer& optimizer) {
  TORCH_CHECK_VALUE(type_name(optimizer) == saved.type, "load_optimizer: the file holds a ", saved.type,
                    ", got a ", type_name(optimizer));
  const auto parameters = model.named_parameters();
  torch::Device device = torch::kCPU;  // momenta live where their parameters do
  std::set<std::string> known;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& names : saved.groups) {
    std::vector<torch::Tensor> of_group;
    for (const std::string& name : names) {
      const torch::Tensor* found = parameters.find(name);
      TORCH_CHECK_VALUE(found, "load_optimizer: the file's optimizer trains ", name, ", which the model ",
                        model.name(), " does not have; load the model from the same file first");
      TORCH_CHECK_VALUE(known.insert(name).second, "load_optimizer: the file's optimizer trains ", name,
                        " twice");
      of_group.push_back(*found);
      device = found->device();
    }
    groups.emplace_back(std::move(of_group), optimizer.defaults().clone());
  }
  std::swap(optimizer.param_groups(), groups);
  auto state = std::exchange(optimizer.state(), {});
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(saved.archive.data(), saved.archive.size(), device);
    optimizer.load(archive);
  } catch (...) {
    std::swap(optimizer.param_groups(), groups);
    optimizer.state() = std::move(state);
    throw;
  }
}

}  // namespace qat::detail
