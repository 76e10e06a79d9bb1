#pragma once

#include "schedulers/placement.h"
#include "schedulers/slot_contents.h"
#include <qat/graph/graph.h>
#include <qat/nn/fold_batch_norm.h>
#include <qat/numerics/bit_budget.h>
#include <qat/quantizers/parametric_quantizer.h>
#include <qat/schedulers/qat_config.h>
#include <qat/schedulers/quantized_tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace qat::detail {

/// A tensor of codes.
struct CountedTensor {
  PlacedSlot slot;         ///< where it is: its layer and the side of it.
  std::int64_t count = 0;  ///< weights, or elements of a sample.
};

/// A quantizer whose width counts, and what it counts for.
struct BudgetedSlot {
  PlacedSlot slot;
  WidthRequest request;  ///< `wanted` is set at each projection.
  std::vector<CountedTensor> tensors;
};

/// The quantizer of a slot if its width can be limited; else nullptr.
std::shared_ptr<ParametricQuantizer> limitable(const PlacedSlot& slot, const LayerMap& layers);

/// The widths that quantizers set by hand may have at most, by the path of the slot: those whose width
/// learns.
using OwnWidths = std::map<std::string, std::int64_t>;
/// What the slots hold before the scheduler fills them.
OwnWidths own_widths(const LayerMap& layers);

/// The quantized weights of a model with their sizes, those of the packed form: from the quantizers where
/// there are some, else from the configuration. Weights that the placement leaves real count if a quantizer
/// was set by hand. `folds`: foldings that are still to come, whose new biases count. Throws: c10::ValueError
/// naming a slot whose quantizer cannot be limited, if there is a budget.
std::vector<BudgetedSlot> budgeted_weights(const Placement& placement, const LayerMap& layers,
                                           const std::vector<nn::FoldReport>& folds, const QATConfig& config,
                                           const OwnWidths& own);
/// The quantized activations of one sample, those behind quantizers set by hand too. Tensors that share a
/// scale count together (for the largest: the largest). Throws: as budgeted_weights.
std::vector<BudgetedSlot> budgeted_activations(const Placement& placement, const LayerMap& layers,
                                               const Graph& graph, const QATConfig& config,
                                               const OwnWidths& own);

/// Adds the tensors with the widths that their quantizers have now.
void append_tensors(const std::vector<BudgetedSlot>& slots, const LayerMap& layers,
                    QuantizedTensor::Kind kind, std::vector<QuantizedTensor>& tensors);

}  // namespace qat::detail
