#pragma once

#include <qat/graph/graph.h>
#include <qat/nn/fold_batch_norm.h>
#include <qat/schedulers/qat_config.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <set>
#include <string>
#include <vector>

namespace qat::detail {

/// The folds that a configuration asks for; changes nothing. Empty if it asks for none.
std::vector<nn::FoldReport> plan_folds(torch::nn::Module& model, const Graph& graph, const QATConfig& config);

/// The BatchNorms that such folds make the identity.
std::set<std::string> identity_paths(const std::vector<nn::FoldReport>& folds);
/// The BatchNorms that they make a scale and shift.
std::set<std::string> scale_and_shift_paths(const std::vector<nn::FoldReport>& folds);

/// Folds and tells the optimizer (may be nullptr): parameters that are gone leave it, new ones join, all
/// others keep their state. Throws: c10::ValueError before anything changes; what was done.
std::vector<nn::FoldReport> perform_folds(torch::nn::Module& model, const Graph& graph,
                                          const QATConfig& config, torch::optim::Optimizer* optimizer);

}  // namespace qat::detail
