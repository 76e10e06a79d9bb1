#pragma once

#include <qat/graph/capture.h>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace qat::nn {

/// Freezes the running statistics of every qat::nn BatchNorm of a model (Krishnamoorthi 2018, arXiv
/// 1806.08342, section 3.2): in train mode too they stay as they are and are what the layers normalize by;
/// gamma and beta train on. train() and eval() do not undo it, `freeze_batch_norm_statistics(model, false)`
/// does. clone(), save() and load() keep it. BatchNorms that were folded have no use for statistics and are
/// left alone. Throws: c10::ValueError naming a layer that has no running statistics; nothing is changed
/// then.
void freeze_batch_norm_statistics(torch::nn::Module& model, bool frozen = true);

/// Computes the running statistics of every qat::nn BatchNorm anew, of the given batches (Wu and Johnson
/// 2021, arXiv 2105.07576, section 3): mean and (unbiased) variance are the plain averages of those of the
/// batches, whatever the momentum is. They replace the former ones, frozen ones too, and num_batches_tracked
/// is the number of batches.
///
/// Everything but the BatchNorms runs in eval mode: nothing is dropped, nothing recorded; quantizers
/// quantize. The BatchNorms normalize each batch by its own statistics, as in training. Modes, parameters,
/// other buffers and the random state are as before afterwards. Works in every phase.
///
/// `batches`: each as `forward` takes it. Returns the number of layers that got new statistics: those that
/// ran and normalize by running statistics; 0 if all are folded. Throws: c10::ValueError if there is no
/// batch; what the model throws passes through, and the statistics are the former ones then.
std::int64_t reestimate_batch_norm(torch::nn::Module& model, const ForwardFunction& forward,
                                   const std::vector<std::vector<torch::Tensor>>& batches);

/// The same for a module holder or shared pointer with one input: `reestimate_batch_norm(net, batches)`.
template <class ModulePointer>
std::int64_t reestimate_batch_norm(ModulePointer model, const std::vector<torch::Tensor>& batches) {
  std::vector<std::vector<torch::Tensor>> inputs;
  for (const torch::Tensor& batch : batches)
    inputs.push_back({batch});
  return reestimate_batch_norm(*model, forward_function(model), inputs);
}

}  // namespace qat::nn
