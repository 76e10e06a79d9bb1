#include "kernels/derive_grid_cuda.h"

namespace qat::kernels {
namespace {

constexpr int kChannelThreads = 64;

template <class Rule>
__global__ void grid_kernel(const Rule rule, const GridJob job, const GridTables out) {
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * kChannelThreads + threadIdx.x;
  if (channel < job.channels) derive_channel(rule, job, channel, out);
}

/// Each parameter has a value of its own for each channel, or there is one channel.
template <class Rule>
__global__ void gradient_kernel(const Rule rule, const GridJob job, const GridGradients gradients,
                                double* first, double* second) {
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * kChannelThreads + threadIdx.x;
  if (channel >= job.channels) return;
  const auto own = channel_gradients(rule, job, channel, gradients);
  first[channel] = own.first;
  if (second != nullptr) second[channel] = own.second;
}

/// Channels share a parameter: one thread adds them in order.
template <class Rule>
__global__ void shared_gradient_kernel(const Rule rule, const GridJob job, const GridGradients gradients,
                                       double* first, double* second) {
  derive_gradients(rule, job, gradients, first, second);
}

unsigned int blocks(const GridJob& job) {
  return static_cast<unsigned int>((job.channels + kChannelThreads - 1) / kChannelThreads);
}

}  // namespace

template <class Rule>
void launch_derive_grid(const Rule& rule, const GridJob& job, const GridTables& out, DeviceStream stream) {
  if (job.channels == 0) return;
  grid_kernel<<<blocks(job), kChannelThreads, 0, stream>>>(rule, job, out);
}

template <class Rule>
void launch_derive_gradients(const Rule& rule, const GridJob& job, const GridGradients& gradients,
                             double* first, double* second, DeviceStream stream) {
  if (job.channels == 0) return;
  const auto is_own = [&](const GridParameter& p) { return p.count == 0 || p.count == job.channels; };
  if (is_own(job.first) && is_own(job.second)) {
    gradient_kernel<<<blocks(job), kChannelThreads, 0, stream>>>(rule, job, gradients, first, second);
  } else {
    shared_gradient_kernel<<<1, 1, 0, stream>>>(rule, job, gradients, first, second);
  }
}

template void launch_derive_grid(const detail::ParametricRule&, const GridJob&, const GridTables&,
                                 DeviceStream);
template void launch_derive_grid(const detail::LearnedStepRule&, const GridJob&, const GridTables&,
                                 DeviceStream);
template void launch_derive_grid(const detail::BitCountRule&, const GridJob&, const GridTables&,
                                 DeviceStream);
template void launch_derive_gradients(const detail::ParametricRule&, const GridJob&, const GridGradients&,
                                      double*, double*, DeviceStream);
template void launch_derive_gradients(const detail::LearnedStepRule&, const GridJob&, const GridGradients&,
                                      double*, double*, DeviceStream);
template void launch_derive_gradients(const detail::BitCountRule&, const GridJob&, const GridGradients&,
                                      double*, double*, DeviceStream);

}  // namespace qat::kernels
