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
    const auto found = std::find_if(params.begin(), params.end(),
                                    [&](const torch::Tensor& each) { return each.is_same(like); });
    if (found == params.end()) continue;
    params.insert(found + 1, parameter);
    return;
  }
}

}  // namespace qat::detail
