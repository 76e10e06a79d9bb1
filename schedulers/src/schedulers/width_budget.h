#pragma once

#include "schedulers/placement.h"
#include "schedulers/slot_contents.h"
#include <qat/graph/graph.h>
#include <qat/nn/fold_batch_norm.h>
#include <qat/numerics/bit_budget.h>
#include <qat/quantizers/make_quantizer.h>
#include <qat/quantizers/parametric_quantizer.h>
#include <qat/schedulers/qat_config.h>

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace qat::detail {

/// A quantizer whose width counts, and what it counts for.
struct BudgetedSlot {
  PlacedSlot slot;
  WidthRequest request;  ///< `count`: weights, or elements of a sample; `wanted` is set at each projection.
};

/// The widths that quantizers set by hand may have at most, by the path of the slot: those whose width
/// learns.
using OwnWidths = std::map<std::string, std::int64_t>;
/// What the slots hold before the scheduler fills them.
OwnWidths own_widths(const Placement& placement, const LayerMap& layers);

/// The quantized weights of a model with their sizes, those of the packed form: from the quantizers where
/// there are some, else from the configuration. `folds`: foldings that are still to come, whose new biases
/// count.
std::vector<BudgetedSlot> budgeted_weights(const Placement& placement, const LayerMap& layers,
                                           const std::vector<nn::FoldReport>& folds, const QATConfig& config,
                                           const OwnWidths& own);
/// The quantized activations of one sample. Tensors that share a scale count together (for the largest: the
/// largest).
std::vector<BudgetedSlot> budgeted_activations(const Placement& placement, const LayerMap& layers,
                                               const Graph& graph, const QATConfig& config,
                                               const OwnWidths& own);

/// Throws: c10::ValueError if the configuration gives a width to a layer that the model does not have, or to
/// the weight of a layer without one, naming the layers that it may name.
void check_layer_bits(const LayerMap& layers, const QATConfig& config);
/// Throws: c10::ValueError if the configuration gives a width to a weight that is not quantized, or to an
/// activation that has no quantizer in a slot of that layer: the message names the layer that has it, or all
/// that may be named.
void check_placed_bits(const Placement& placement, const QATConfig& config);

/// Throws: c10::ValueError if a budget cannot be met with any widths, naming the smallest size in kB.
void check_budgets(const std::vector<BudgetedSlot>& weights, const std::vector<BudgetedSlot>& activations,
                   const QATConfig& config);

/// Sets the limits of the widths, from what the parameters ask for now: within the budgets and the configured
/// bits. Slots that hold other quantizers keep theirs.
void project_widths(std::vector<BudgetedSlot> weights, std::vector<BudgetedSlot> activations,
                    const LayerMap& layers, const QATConfig& config);

/// Sizes in kB from the differentiable widths, and the sum of lambda * max(0, size - budget)^2. float64, [].
torch::Tensor size_penalty(const std::vector<BudgetedSlot>& weights,
                           const std::vector<BudgetedSlot>& activations, const LayerMap& layers,
                           const QATConfig& config);

}  // namespace qat::detail
