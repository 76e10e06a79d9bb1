#pragma once

#include <qat/graph/graph.h>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace qat::nn {

/// A trained BatchNorm in eval mode; all tensors [C].
struct BatchNormStatistics {
  torch::Tensor mean;      ///< running mean.
  torch::Tensor variance;  ///< running variance.
  torch::Tensor gamma;     ///< undefined: 1.
  torch::Tensor beta;      ///< undefined: 0.
  double eps = 1e-5;
};

/// What such a BatchNorm computes: y = scale * x + shift per channel, scale = gamma / sqrt(variance + eps),
/// shift = beta - mean * scale. float64 [C].
struct ChannelAffine {
  torch::Tensor scale;
  torch::Tensor shift;
};

/// Throws: c10::ValueError if mean or variance is undefined.
ChannelAffine channel_affine(const BatchNormStatistics& bn);

/// Weight and bias that compute a convolution or linear layer and a BatchNorm in one step.
struct FoldedParameters {
  torch::Tensor weight;
  torch::Tensor bias;
};

/// The layer, then the BatchNorm: weight' = weight * scale along the output channels,
/// bias' = shift + bias * scale = beta + (bias - mean) * scale.
/// `bias` may be undefined (0). `channel_axis`: the weight's axis of output channels (0; 1 for transposed
/// convolutions, whose `groups` then matter: weight [in, C / groups, ...]). Computed in float64, returned in
/// the weight's type and on its device. Pure: nothing is changed. Throws: c10::ValueError if the number of
/// channels differs.
FoldedParameters fold_batch_norm(const torch::Tensor& weight, const torch::Tensor& bias,
                                 const BatchNormStatistics& bn, std::int64_t channel_axis = 0,
                                 std::int64_t groups = 1);

/// The BatchNorm, then the layer: weight' = weight * scale along the input channels (axis 1, [out, C /
/// groups, ...]), bias' = bias + sum over inputs of weight * shift. Exact only where the layer pads nothing:
/// a padded 0 is no scale * 0 + shift. Otherwise as fold_batch_norm.
FoldedParameters fold_batch_norm_before(const torch::Tensor& weight, const torch::Tensor& bias,
                                        const BatchNormStatistics& bn, std::int64_t groups = 1);

/// Which folds are tried, in this order.
struct FoldOptions {
  bool into_layers = true;       ///< into the convolution or linear layer before or after it.
  bool into_themselves = false;  ///< what remains becomes a scale and a shift of its own.
};

/// What happened to one BatchNorm.
struct FoldReport {
  std::string batch_norm;    ///< module path
  std::string into;          ///< path of the layer that absorbed it; "" if none
  bool into_next = false;    ///< that layer reads the BatchNorm's output; false: it makes its input
  bool into_itself = false;  ///< it became a trainable scale and shift
  std::string why_not;       ///< reason if no layer absorbed it
  std::vector<std::string> removed_parameters;  ///< paths that are no parameters any more
  std::vector<std::string> added_parameters;    ///< paths of new parameters (a bias that did not exist)
};

/// What fold_batch_norms would do; changes nothing.
std::vector<FoldReport> plan_batch_norm_folds(torch::nn::Module& model, const Graph& graph,
                                              FoldOptions options = {});

/// Folds each BatchNorm into the convolution or linear layer before it (Jacob et al. 2018, arXiv 1712.05877,
/// section 3.2), or else into the one after it, where that is exact: the tensor between them has no other
/// reader, both are qat::nn layers that are called once and share no parameter with another, their slots are
/// empty, running statistics exist, the channel axes agree (Linear only with (N, C) input). The layer after a
/// BatchNorm must not be a transposed convolution, nor pad with zeros unless the BatchNorm shifts no channel:
/// it would shift the padding too. Module surgery: the layer's weight is overwritten in place (same
/// parameter), a missing bias is created (it requires a gradient if the weight does); the BatchNorm becomes
/// the identity, keeps nothing trainable, prints so. Uses running statistics in any mode. A second call finds
/// nothing to fold. `options.into_themselves`: each BatchNorm that is left with running statistics, and
/// shares no parameter, becomes a per-channel scale and shift (BatchNormLayer::become_scale_and_shift); exact
/// wherever it stands. Everything is checked before anything changes. One report for each BatchNorm of
/// `graph`, those that were folded before aside.
std::vector<FoldReport> fold_batch_norms(torch::nn::Module& model, const Graph& graph,
                                         FoldOptions options = {});

}  // namespace qat::nn
