#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <vector>

namespace qat::detail {

/// Takes a parameter out of its group and erases its state, which is keyed by the tensor's address: a later
/// tensor there would inherit it.
void remove_parameter(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter);

/// Adds a parameter behind `like`, in its group; does nothing if no group holds that. Saved optimizers know
/// their parameters by position: a bias follows its weight, as in an optimizer that is built for the folded
/// model.
void add_parameter_like(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter,
                        const torch::Tensor& like);

/// Throws: c10::ValueError for an optimizer that has one group only (LBFGS).
void check_has_groups(const torch::optim::Optimizer& optimizer);

/// Adds a group of parameters with the options of the first group, its rate times `rate_scale`, without
/// weight decay. Parameters that are in a group already are left there; no parameter, no group. Groups that
/// exist keep their state. Throws: c10::ValueError for optimizers that have one group only (LBFGS), naming
/// them.
void add_quantizer_group(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& parameters,
                         double rate_scale);

}  // namespace qat::detail
