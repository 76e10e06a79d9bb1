#include "kernels/learned_quantize_cuda.h"
#include "kernels/thread_gradient.h"
#include "kernels/with_element.h"

namespace qat::kernels {
namespace {

template <class E>
__global__ void __launch_bounds__(kThreads)
    power_of_two_kernel(const ThreadPlan plan, const DevicePass pass, const PowerOfTwoTables tables) {
  if (!plan.has_column(blockIdx.x, threadIdx.x)) return;
  run_thread<PowerOfTwoPass<E>>(plan, blockIdx.x, threadIdx.x, pass, tables);
}

/// Adds the numbers of a block's threads; see tree_step.
template <int sums>
__device__ void add_in_block(double (*numbers)[kThreads], int thread, int width) {
  for (int half = kThreads / 2; half >= width; half /= 2) {
    __syncthreads();
    for (int k = 0; k < sums; ++k)
      tree_step(numbers[k], thread, half);
  }
}

template <class Pass, int sums, class Tables>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(const ThreadPlan plan, const DevicePass pass, const Tables tables, double* partial_sums) {
  __shared__ double numbers[sums][kThreads];
  const std::int64_t block = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const bool has_column = plan.has_column(block, thread);
  if (has_column) {
    const auto done = run_thread<Pass>(plan, block, thread, pass, tables);
    for (int k = 0; k < sums; ++k)
      numbers[k][thread] = done.totals[k];
  } else {
    for (int k = 0; k < sums; ++k)
      numbers[k][thread] = 0.0;
  }
  add_in_block<sums>(numbers, thread, plan.width);
  if (thread >= plan.width || !has_column) return;
  const std::int64_t column = plan.column_of_thread(block, thread);
  for (int k = 0; k < sums; ++k)
    partial_sums[partial_sum_at(plan, k, plan.slice_of_block(block), column)] = numbers[k][thread];
}

/// A block for each channel.
template <int sums>
__global__ void __launch_bounds__(kThreads)
    total_kernel(const ThreadPlan plan, const double* partial_sums, float* totals) {
  __shared__ double numbers[sums][kThreads];
  const std::int64_t channel = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  for (int k = 0; k < sums; ++k)
    numbers[k][thread] = sum_partials(plan, partial_sums, k, channel, thread);
  add_in_block<sums>(numbers, thread, 1);
  if (thread != 0) return;
  for (int k = 0; k < sums; ++k)
    totals[k * plan.channels + channel] = static_cast<float>(numbers[k][0]);
}

template <template <class> class GridCell, class Tables>
void launch(const DevicePass& pass, const Tables& tables, double* workspace, float* sums,
            DeviceStream stream) {
  const auto plan = make_thread_plan(pass.view);
  if (plan.blocks() == 0) return;
  constexpr int count = GridCell<float>::sums;
  with_element(pass.element, [&](auto element) {
    gradient_kernel<GradientPass<decltype(element), GridCell>, count>
        <<<static_cast<unsigned int>(plan.blocks()), kThreads, 0, stream>>>(plan, pass, tables, workspace);
  });
  total_kernel<count>
      <<<static_cast<unsigned int>(plan.channels), kThreads, 0, stream>>>(plan, workspace, sums);
}

}  // namespace

void launch_power_of_two(const DevicePass& pass, const PowerOfTwoTables& tables, DeviceStream stream) {
  const auto plan = make_thread_plan(pass.view);
  if (plan.blocks() == 0) return;
  const auto blocks = static_cast<unsigned int>(plan.blocks());
  with_element(pass.element, [&](auto element) {
    power_of_two_kernel<decltype(element)><<<blocks, kThreads, 0, stream>>>(plan, pass, tables);
  });
}

std::int64_t gradient_workspace(const ChannelView& view) {
  return make_thread_plan(view).partial_sums(kDeviceSums);
}

void launch_gradient(const DevicePass& pass, const UniformTables& tables, double* workspace, float* sums,
                     DeviceStream stream) {
  launch<UniformGridCell>(pass, tables, workspace, sums, stream);
}

void launch_gradient(const DevicePass& pass, const PowerOfTwoTables& tables, double* workspace, float* sums,
                     DeviceStream stream) {
  launch<PowerOfTwoGridCell>(pass, tables, workspace, sums, stream);
}

}  // namespace qat::kernels
