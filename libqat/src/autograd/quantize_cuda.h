#pragma once

#include "autograd/learned_operators.h"
#include <qat/autograd/fake_quantize.h>
#include <qat/autograd/learned_quantize.h>

#include <torch/types.h>

namespace qat::detail {

// Compiled only with QAT_CUDA. Each function starts kernels on the current stream of x's GPU; none but the
// codes waits for it, and the numbers of scales and grids are not checked.

/// Whether the functions below do this tensor: dense, not empty, on a GPU, not in a trace.
bool has_cuda_kernel(const torch::Tensor& x);

/// See fake_quantize; `params` are checked against x.
torch::Tensor cuda_fake_quantize(const torch::Tensor& x, const AffineParams& params,
                                 const FakeQuantizeOptions& options);
/// The gradient of x from that of the result.
torch::Tensor cuda_fake_quantize_gradient(const torch::Tensor& x, const torch::Tensor& dy,
                                          const AffineParams& params, const FakeQuantizeOptions& options);
/// See affine_codes. Waits for the GPU. Throws: c10::ValueError for NaN in x.
torch::Tensor cuda_codes(const torch::Tensor& x, const AffineParams& params,
                         const FakeQuantizeOptions& options);

/// See learned_operators.h; the grids are not `compatible`.
torch::Tensor cuda_values(const torch::Tensor& x, const UniformGrid& grid, Rounding rounding,
                          const Activation& activation);
torch::Tensor cuda_values(const torch::Tensor& x, const PowerOfTwoGrid& grid, const Activation& activation);
LearnedGradients cuda_gradients(const torch::Tensor& x, const torch::Tensor& dy, const UniformGrid& grid,
                                Rounding rounding, const Activation& activation);
LearnedGradients cuda_gradients(const torch::Tensor& x, const torch::Tensor& dy, const PowerOfTwoGrid& grid,
                                const Activation& activation);
/// Waits for the GPU. Throws: c10::ValueError for NaN in x.
torch::Tensor cuda_codes(const torch::Tensor& x, const UniformGrid& grid, Rounding rounding);

}  // namespace qat::detail
