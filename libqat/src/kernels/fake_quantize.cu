#include "kernels/fake_quantize_cuda.h"
#include "kernels/thread_body.h"
#include "kernels/with_element.h"

namespace qat::kernels {
namespace {

template <class E>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const ThreadPlan plan, const DevicePass pass, const AffineTables tables) {
  if (!plan.has_column(blockIdx.x, threadIdx.x)) return;
  run_thread<ForwardPass<E>>(plan, blockIdx.x, threadIdx.x, pass, tables);
}

template <class E>
__global__ void __launch_bounds__(kThreads) codes_kernel(const ThreadPlan plan, const DevicePass pass,
                                                         const AffineTables tables, std::int32_t* has_nan) {
  if (!plan.has_column(blockIdx.x, threadIdx.x)) return;
  if (run_thread<CodesPass<E>>(plan, blockIdx.x, threadIdx.x, pass, tables).has_nan) *has_nan = 1;
}

template <class E>
__global__ void __launch_bounds__(kThreads) backward_kernel(const ThreadPlan plan, const DevicePass pass,
                                                            const AffineTables tables, const bool clipped) {
  if (!plan.has_column(blockIdx.x, threadIdx.x)) return;
  run_thread<BackwardPass<E>>(plan, blockIdx.x, threadIdx.x, pass, tables, clipped);
}

}  // namespace

void launch_forward(const DevicePass& pass, const AffineTables& tables, DeviceStream stream) {
  const auto plan = make_thread_plan(pass.view);
  if (plan.blocks() == 0) return;
  const auto blocks = static_cast<unsigned int>(plan.blocks());
  with_element(pass.element, [&](auto element) {
    forward_kernel<decltype(element)><<<blocks, kThreads, 0, stream>>>(plan, pass, tables);
  });
}

void launch_codes(const DevicePass& pass, const AffineTables& tables, std::int32_t* has_nan,
                  DeviceStream stream) {
  const auto plan = make_thread_plan(pass.view);
  if (plan.blocks() == 0) return;
  const auto blocks = static_cast<unsigned int>(plan.blocks());
  with_element(pass.element, [&](auto element) {
    codes_kernel<decltype(element)><<<blocks, kThreads, 0, stream>>>(plan, pass, tables, has_nan);
  });
}

void launch_backward(const DevicePass& pass, const AffineTables& tables, bool clipped, DeviceStream stream) {
  const auto plan = make_thread_plan(pass.view);
  if (plan.blocks() == 0) return;
  const auto blocks = static_cast<unsigned int>(plan.blocks());
  with_element(pass.element, [&](auto element) {
    backward_kernel<decltype(element)><<<blocks, kThreads, 0, stream>>>(plan, pass, tables, clipped);
  });
}

}  // namespace qat::kernels
