#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

namespace qat::detail {

/// An optimizer as a checkpoint holds it. Parameters go by their names in the model: their order in a group
/// and their addresses are those of the process that saved.
struct SavedOptimizer {
  std::string type;                              ///< "torch::optim::SGD"
  std::vector<std::vector<std::string>> groups;  ///< names of the parameters of each group
  std::string archive;                           ///< options and state, as torch writes them
};

/// Throws: c10::ValueError if the optimizer holds a tensor that is no parameter of the model.
SavedOptimizer save_optimizer(const torch::optim::Optimizer& optimizer, const torch::nn::Module& model);

/// Gives the optimizer the groups, options and state that were saved. All or nothing.
/// Throws: c10::ValueError if it is of another type or the model lacks a parameter; c10::Error if the archive
/// cannot be read.
void load_optimizer(const SavedOptimizer& saved, const torch::nn::Module& model,
                    torch::optim::Optimizer& optimizer);

}  // namespace qat::detail
