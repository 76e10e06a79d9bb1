#pragma once

#include <qat/graph/graph.h>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

namespace qat::nn {

/// Weight and bias that compute conv/linear and the BatchNorm after it in one step:
/// f = gamma / sqrt(var + eps); weight' = weight * f along the output channels; bias' = beta + (bias - mean) * f.
struct FoldedParameters {
  torch::Tensor weight;
  torch::Tensor bias;
};

struct BatchNormStatistics {
  torch::Tensor mean;   ///< running mean [C]
  torch::Tensor variance;  ///< running variance [C]
  torch::Tensor gamma;  ///< undefined: 1
  torch::Tensor beta;   ///< undefined: 0
  double eps = 1e-5;
};

/// `bias` may be undefined (0). `channel_axis`: the weight's axis of output channels (0; 1 for transposed convolutions, whose `groups`
/// then matter). Computed in float64, returned in the weight's type. Pure: nothing is changed.
FoldedParameters fold_batch_norm(const torch::Tensor& weight, const torch::Tensor& bias, const BatchNormStatistics& bn,
                                 std::int64_t channel_axis = 0, std::int64_t groups = 1);

/// What happened to one BatchNorm.
struct FoldReport {
  std::string batch_norm;          ///< module path
  std::string into;                ///< path of the layer that absorbed it; "" if none
  std::string why_not;             ///< reason if it was not folded
  std::vector<std::string> removed_parameters;  ///< paths that are no parameters any more
  std::vector<std::string> added_parameters;    ///< paths of new parameters (a bias that did not exist)
};

/// Folds each BatchNorm into the convolution or linear layer before it, where that is exact: the layer's output has no other
/// consumer, both are qat::nn layers called once, running statistics exist, the channel axes agree (Linear only with (N, C) input).
/// Module surgery: the layer's weight is overwritten in place (same parameter), a missing bias is created; the BatchNorm
/// becomes the identity, keeps nothing trainable, prints so. Uses running statistics in any mode. A second call finds nothing to fold.
std::vector<FoldReport> fold_batch_norms(torch::nn::Module& model, const Graph& graph);

}  // namespace qat::nn
