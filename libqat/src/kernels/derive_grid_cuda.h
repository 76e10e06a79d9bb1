#pragma once

#include "kernels/derive_grid.h"
#include "kernels/device_pass.h"

namespace qat::kernels {

// Grids of quantizers whose parameters are in a GPU's memory, as are the tables and gradients. Each call
// starts one kernel on the stream of the current GPU and returns at once. `Rule`: ParametricRule,
// LearnedStepRule, BitCountRule.

template <class Rule>
void launch_derive_grid(const Rule& rule, const GridJob& job, const GridTables& out, DeviceStream stream);

/// See derive_gradients: the same order of sums.
template <class Rule>
void launch_derive_gradients(const Rule& rule, const GridJob& job, const GridGradients& gradients,
                             double* first, double* second, DeviceStream stream);

}  // namespace qat::kernels
