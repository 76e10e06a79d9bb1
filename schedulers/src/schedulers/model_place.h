#pragma once

#include <qat/schedulers/qat_config.h>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <vector>

namespace qat::detail {

/// Moves model and inputs to the device that ext_name says, and the weights of 2d and 3d layers into the
/// memory order that channel_last says; parameters stay the same tensors. Throws: c10::ValueError if there is
/// no such device; nothing is changed then.
void put_in_place(torch::nn::Module& model, std::vector<torch::Tensor>& inputs, const QATConfig& config);

}  // namespace qat::detail
