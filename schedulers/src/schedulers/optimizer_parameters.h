#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

namespace qat::detail {

/// Takes a parameter out of its group and erases its state, which is keyed by the tensor's address: a later
/// tensor there would inherit it.
void remove_parameter(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter);

/// Adds a parameter to the group that holds `like`; does nothing if no group does.
void add_parameter_like(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter,
                        const torch::Tensor& like);

}  // namespace qat::detail
