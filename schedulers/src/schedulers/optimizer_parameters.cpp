#include "schedulers/optimizer_parameters.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>

namespace qat::detail {
namespace {

/// Sets the decay to 0 if the options are of that type.
template <class Options>
void without_decay(torch::optim::OptimizerOptions& options) {
  if (auto* known = dynamic_cast<Options*>(&options)) known->weight_decay(0);
}

bool holds(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& each : group.params()) {
      if (each.is_same(parameter)) return true;
    }
  }
  return false;
}

}  // namespace

void remove_parameter(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    std::erase_if(group.params(), [&](const torch::Tensor& each) { return each.is_same(parameter); });
  }
  optimizer.state().erase(parameter.unsafeGetTensorImpl());
}

void add_parameter_like(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter,
                        const torch::Tensor& like) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    auto& params = group.params();
    const auto found = std::find_if(params.begin(), params.end(),
                                    [&](const torch::Tensor& each) { return each.is_same(like); });
    if (found == params.end()) continue;
    params.insert(found + 1, parameter);
    return;
  }
}

void check_has_groups(const torch::optim::Optimizer& optimizer) {
  TORCH_CHECK_VALUE(
      !dynamic_cast<const torch::optim::LBFGS*>(&optimizer),
      "QATScheduler: LBFGS has one parameter group, learned quantizers need one of their own; use SGD, Adam "
      "or another optimizer with groups");
}

void add_quantizer_group(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& parameters,
                         double rate_scale) {
  std::vector<torch::Tensor> added;
  for (const torch::Tensor& parameter : parameters) {
    if (parameter.requires_grad() && !holds(optimizer, parameter)) added.push_back(parameter);
  }
  if (added.empty()) return;
  check_has_groups(optimizer);
  auto options = optimizer.param_groups().front().options().clone();
  options->set_lr(options->get_lr() * rate_scale);
  without_decay<torch::optim::SGDOptions>(*options);
  without_decay<torch::optim::AdamOptions>(*options);
  without_decay<torch::optim::AdamWOptions>(*options);
  without_decay<torch::optim::AdagradOptions>(*options);
  without_decay<torch::optim::RMSpropOptions>(*options);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(std::move(added), std::move(options)));
}

}  // namespace qat::detail
