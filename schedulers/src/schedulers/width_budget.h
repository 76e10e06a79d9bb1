#pragma once

#include "schedulers/budgeted_slots.h"
#include "schedulers/slot_contents.h"
#include <qat/schedulers/qat_config.h>

#include <torch/types.h>

#include <vector>

namespace qat::detail {

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
