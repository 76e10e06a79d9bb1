#include "autograd/quantize_cuda.h"

#include "autograd/dense_view.h"
#include "kernels/fake_quantize_cuda.h"
#include "kernels/learned_quantize_cuda.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace qat::detail {
namespace {

using torch::Tensor;

/// A pass over x on the current stream of its GPU, with the tensors that must live until it is started. The
/// memory of a tensor that is freed afterwards is reused on the same stream only, so after the pass.
class CudaPass {
 public:
  CudaPass(const Tensor& x, std::optional<std::int64_t> axis, const Activation& activation)
      : guard_(x.device()), device_(x.device()) {
    job.element = *element_type(x.scalar_type());
    job.view = *dense_view(x, resolve_axis(x, axis));
    job.negative_slope = activation.negative_slope;
    job.upper = activation.upper;
    job.x = x.const_data_ptr();
  }

  kernels::DeviceStream stream() const { return c10::cuda::getCurrentCUDAStream().stream(); }

  const float* floats(const Tensor& values) { return keep(values, torch::kFloat).const_data_ptr<float>(); }
  const std::int32_t* integers(const Tensor& values) {
    return keep(values, torch::kInt).const_data_ptr<std::int32_t>();
  }
  /// The gradient of the result, in the order of x.
  void set_gradient(const Tensor& x, const Tensor& dy) {
    const auto typed = dy.to(x.scalar_type());
    kept_.push_back(same_order(typed, x) ? typed : torch::empty_like(x).copy_(typed));
    job.dy = kept_.back().const_data_ptr();
  }
  void set_result(const Tensor& out) { job.out = out.mutable_data_ptr(); }

  kernels::DevicePass job;

 private:
  const Tensor& keep(const Tensor& values, torch::ScalarType type) {
    kept_.push_back(values.detach().to(device_, type).contiguous());
    return kept_.back();
  }

  c10::cuda::CUDAGuard guard_;
  torch::Device device_;
  std::vector<Tensor> kept_;
};

kernels::AffineTables tables(CudaPass& pass, const AffineParams& params, Rounding rounding) {
  return {.scale = pass.floats(params.scale),
          .zero_point = pass.integers(params.zero_point),
          .qmin = static_cast<std::int32_t>(params.range.qmin()),
          .qmax = static_cast<std::int32_t>(params.range.qmax()),
          .rounding = rounding};
}

kernels::AffineTables code_tables(CudaPass& pass, const UniformGrid& grid, Rounding rounding) {
  return {.scale = pass.floats(grid.scale),
          .zero_point = pass.integers(grid.zero_point),
          .low = pass.integers(grid.low),
          .high = pass.integers(grid.high),
          .rounding = rounding};
}

kernels::PowerOfTwoTables tables(CudaPass& pass, const PowerOfTwoGrid& grid) {
  return {pass.floats(grid.xmin), pass.floats(grid.xmax), grid.is_signed, grid.with_zero};
}

Tensor find_codes(const char* who, const Tensor& x, CudaPass& pass, const kernels::AffineTables& tables) {
  auto codes = torch::empty_like(x, x.options().dtype(torch::kInt));
  const auto has_nan = torch::zeros({}, codes.options());
  pass.set_result(codes);
  kernels::launch_codes(pass.job, tables, has_nan.mutable_data_ptr<std::int32_t>(), pass.stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  TORCH_CHECK_VALUE(has_nan.item<std::int32_t>() == 0, who, ": the tensor holds a NaN, which has no code");
  return codes;
}

/// The gradients of x and of the grid's tensors, whose shape is that of `like`.
template <class Tables>
LearnedGradients find_gradients(const Tensor& x, const Tensor& dy, CudaPass& pass, const Tables& tables,
                                const Tensor& like) {
  auto dx = torch::empty_like(x);
  pass.set_gradient(x, dy);
  pass.set_result(dx);
  const auto workspace =
      torch::empty({kernels::gradient_workspace(pass.job.view)}, x.options().dtype(torch::kDouble));
  const auto sums = torch::empty({3, pass.job.view.channels}, x.options().dtype(torch::kFloat));
  kernels::launch_gradient(pass.job, tables, workspace.mutable_data_ptr<double>(),
                           sums.mutable_data_ptr<float>(), pass.stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  const auto sum = [&](std::int64_t k) { return sums[k].reshape(like.sizes()).to(like.device()); };
  return {dx, sum(0), sum(1), sum(2)};
}

}  // namespace

bool has_cuda_kernel(const Tensor& x) {
  return x.is_cuda() && x.numel() > 0 && x.is_non_overlapping_and_dense() && !x.is_neg() &&
         element_type(x.scalar_type()) && !torch::jit::tracer::isTracing();
}

Tensor cuda_fake_quantize(const Tensor& x, const AffineParams& params, const FakeQuantizeOptions& options) {
  CudaPass pass(x, params.axis, options.activation);
  auto y = torch::empty_like(x);
  pass.set_result(y);
  kernels::launch_forward(pass.job, tables(pass, params, options.rounding), pass.stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

Tensor cuda_fake_quantize_gradient(const Tensor& x, const Tensor& dy, const AffineParams& params,
                                   const FakeQuantizeOptions& options) {
  CudaPass pass(x, params.axis, options.activation);
  auto dx = torch::empty_like(x);
  pass.set_gradient(x, dy);
  pass.set_result(dx);
  kernels::launch_backward(pass.job, tables(pass, params, options.rounding),
                           options.straight_through == StraightThrough::kClipped, pass.stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return dx;
}

Tensor cuda_codes(const Tensor& x, const AffineParams& params, const FakeQuantizeOptions& options) {
  CudaPass pass(x, params.axis, options.activation);
  return find_codes("qat::affine_codes", x, pass, tables(pass, params, options.rounding));
}

Tensor cuda_values(const Tensor& x, const UniformGrid& grid, Rounding rounding,
                   const Activation& activation) {
  CudaPass pass(x, grid.axis, activation);
  auto y = torch::empty_like(x);
  pass.set_result(y);
  kernels::launch_forward(pass.job, code_tables(pass, grid, rounding), pass.stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

Tensor cuda_values(const Tensor& x, const PowerOfTwoGrid& grid, const Activation& activation) {
  CudaPass pass(x, grid.axis, activation);
  auto y = torch::empty_like(x);
  pass.set_result(y);
  kernels::launch_power_of_two(pass.job, tables(pass, grid), pass.stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

LearnedGradients cuda_gradients(const Tensor& x, const Tensor& dy, const UniformGrid& grid, Rounding rounding,
                                const Activation& activation) {
  CudaPass pass(x, grid.axis, activation);
  const kernels::UniformTables tables{.codes = code_tables(pass, grid, rounding),
                                      .lower = pass.floats(grid.lower),
                                      .upper = pass.floats(grid.upper)};
  return find_gradients(x, dy, pass, tables, grid.scale);
}

LearnedGradients cuda_gradients(const Tensor& x, const Tensor& dy, const PowerOfTwoGrid& grid,
                                const Activation& activation) {
  CudaPass pass(x, grid.axis, activation);
  auto result = find_gradients(x, dy, pass, tables(pass, grid), grid.xmin);
  result.third = Tensor();
  return result;
}

Tensor cuda_codes(const Tensor& x, const UniformGrid& grid, Rounding rounding) {
  CudaPass pass(x, grid.axis, {});
  return find_codes("qat::uniform_codes", x, pass, code_tables(pass, grid, rounding));
}

}  // namespace qat::detail
