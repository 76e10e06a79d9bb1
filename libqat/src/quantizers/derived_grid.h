#pragma once

#include "numerics/grid_rules.h"

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace qat::detail {

/// The parameters that a rule of numerics/grid_rules.h computes a grid from: [] or [channels].
struct GridInputs {
  torch::Tensor first;
  torch::Tensor second;             ///< undefined: the quantizer has one parameter.
  torch::Tensor bits_limit;         ///< int64, []; undefined: none.
  std::vector<std::int64_t> shape;  ///< of the grid: {} or {channels}.
};

/// float32; zero_point, low, high int32. The first three have the gradients of the parameters.
struct DerivedGrid {
  torch::Tensor scale;
  torch::Tensor lower;
  torch::Tensor upper;
  torch::Tensor zero_point;
  torch::Tensor low;
  torch::Tensor high;
};

/// Computes the grid of every channel, as one operation of autograd. In a trace it is a constant.
DerivedGrid derive_grid(const ParametricRule& rule, const GridInputs& inputs);
DerivedGrid derive_grid(const LearnedStepRule& rule, const GridInputs& inputs);

/// The bits of every channel, float32, differentiable.
torch::Tensor derive_bits(const BitCountRule& rule, const GridInputs& inputs);

}  // namespace qat::detail
