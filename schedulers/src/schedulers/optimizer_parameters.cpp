#include "schedulers/optimizer_parameters.h"

#include <algorithm>

namespace qat::detail {

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
    const auto is_like = [&](const torch::Tensor& each) { return each.is_same(like); };
    if (std::none_of(params.begin(), params.end(), is_like)) continue;
    params.push_back(parameter);
    return;
  }
}

}  // namespace qat::detail
