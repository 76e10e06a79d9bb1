#pragma once

#include <qat/autograd/learned_quantize.h>

#include <torch/types.h>

namespace qat::detail {

/// The gradient of x, and those of the grid's tensors in their order: scale, lower, upper; xmin, xmax,
/// nothing.
struct LearnedGradients {
  torch::Tensor dx;
  torch::Tensor first;
  torch::Tensor second;
  torch::Tensor third;
};

/// The functions of numerics/uniform.h and numerics/power_of_two.h, composed of ATen operators with the same
/// values: for traces, which must not see a kernel, and for devices without one. Compiled with QAT_CUDA, they
/// run the CUDA kernels where has_cuda_kernel(x) and the grid is not `compatible`.

torch::Tensor learned_values(const torch::Tensor& x, const UniformGrid& grid, Rounding rounding,
                             const Activation& activation);
torch::Tensor learned_values(const torch::Tensor& x, const PowerOfTwoGrid& grid, Rounding,
                             const Activation& activation);
LearnedGradients learned_gradients(const torch::Tensor& x, const torch::Tensor& dy, const UniformGrid& grid,
                                   Rounding rounding, const Activation& activation);
LearnedGradients learned_gradients(const torch::Tensor& x, const torch::Tensor& dy,
                                   const PowerOfTwoGrid& grid, Rounding, const Activation& activation);
torch::Tensor learned_codes(const torch::Tensor& x, const UniformGrid& grid, Rounding rounding);
torch::Tensor learned_codes(const torch::Tensor& x, const PowerOfTwoGrid& grid, Rounding);

}  // namespace qat::detail
