#include "schedulers/batch_norm_surgery.h"

#include "schedulers/optimizer_parameters.h"
#include "schedulers/slot_contents.h"

namespace qat::detail {
namespace {

nn::FoldOptions fold_options(const QATConfig& config) {
  return {.into_layers = config.bn_folding == BatchNormFolding::kOnce,
          .into_themselves = config.bn_self_folding};
}

bool asks_for_folds(const QATConfig& config) {
  const nn::FoldOptions options = fold_options(config);
  return options.into_layers || options.into_themselves;
}

/// The biases that layers got.
std::vector<AddedParameter> added_biases(const std::vector<nn::FoldReport>& folds, const LayerMap& layers,
                                         const torch::OrderedDict<std::string, torch::Tensor>& before) {
  std::vector<AddedParameter> result;
  for (const nn::FoldReport& fold : folds) {
    if (fold.into.empty() || fold.added_parameters.empty()) continue;
    nn::QuantizableLayer& layer = *layers.at(fold.into);
    const torch::Tensor* former = before.find(fold.batch_norm + ".bias");
    result.push_back(
        {*layer.bias_parameter(), *layer.weight_parameter(), former ? *former : torch::Tensor()});
  }
  return result;
}

/// Scales and shifts of BatchNorms that had no parameters, each with the parameter that stands before it in
/// the model; the first in the model with the optimizer's first one.
std::vector<AddedParameter> added_scales_and_shifts(const std::vector<nn::FoldReport>& folds,
                                                    torch::nn::Module& model,
                                                    const torch::optim::Optimizer& optimizer) {
  std::set<std::string> added;
  for (const nn::FoldReport& fold : folds) {
    if (fold.into_itself) added.insert(fold.added_parameters.begin(), fold.added_parameters.end());
  }
  std::vector<AddedParameter> result;
  torch::Tensor former;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    if (!former.defined() && !group.params().empty()) former = group.params().front();
  }
  for (const auto& parameter : model.named_parameters()) {
    const bool is_added = added.contains(parameter.key());
    if (is_added) result.push_back({parameter.value(), former, {}});
    if (is_added || holds_parameter(optimizer, parameter.value())) former = parameter.value();
  }
  return result;
}

}  // namespace

std::vector<nn::FoldReport> plan_folds(torch::nn::Module& model, const Graph& graph,
                                       const QATConfig& config) {
  if (!asks_for_folds(config)) return {};
  return nn::plan_batch_norm_folds(model, graph, fold_options(config));
}

std::set<std::string> identity_paths(const std::vector<nn::FoldReport>& folds) {
  std::set<std::string> paths;
  for (const nn::FoldReport& fold : folds) {
    if (!fold.into.empty()) paths.insert(fold.batch_norm);
  }
  return paths;
}

std::set<std::string> scale_and_shift_paths(const std::vector<nn::FoldReport>& folds) {
  std::set<std::string> paths;
  for (const nn::FoldReport& fold : folds) {
    if (fold.into_itself) paths.insert(fold.batch_norm);
  }
  return paths;
}

std::vector<nn::FoldReport> perform_folds(torch::nn::Module& model, const Graph& graph,
                                          const QATConfig& config, torch::optim::Optimizer* optimizer) {
  if (!asks_for_folds(config)) return {};
  const auto before = model.named_parameters();
  auto folds = nn::fold_batch_norms(model, graph, fold_options(config));
  if (!optimizer) return folds;
  add_parameters(*optimizer, added_biases(folds, layer_map(model), before));
  add_parameters(*optimizer, added_scales_and_shifts(folds, model, *optimizer));
  for (const nn::FoldReport& fold : folds) {
    for (const std::string& path : fold.removed_parameters)
      remove_parameter(*optimizer, before[path]);
  }
  return folds;
}

}  // namespace qat::detail
