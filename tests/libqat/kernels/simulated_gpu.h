#pragma once

#include "autograd/dense_view.h"
#include "kernels/thread_gradient.h"
#include "kernels/with_element.h"

#include <torch/types.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace qat::testing {

// Runs the bodies of the CUDA kernels on the CPU, one thread after the other, and the same tree of sums.

/// Calls function(pass) with each thread's pass as it is at the end.
template <class Pass, class Function, class... Arguments>
void simulate(const kernels::ThreadPlan& plan, const Function& function, const Arguments&... arguments) {
  for (std::int64_t block = 0; block < plan.blocks(); ++block) {
    for (int thread = 0; thread < kernels::kThreads; ++thread) {
      if (plan.has_column(block, thread))
        function(kernels::run_thread<Pass>(plan, block, thread, arguments...));
    }
  }
}

inline void simulate_tree(double* numbers, int width) {
  for (int half = kernels::kThreads / 2; half >= width; half /= 2) {
    for (int thread = 0; thread < kernels::kThreads; ++thread)
      kernels::tree_step(numbers, thread, half);
  }
}

/// The sums of each channel, in float64; gradients of x go to the pass's memory.
template <class E, template <class> class GridCell, class Tables>
std::vector<std::vector<double>> simulate_gradient(const kernels::DevicePass& pass, const Tables& tables) {
  using kernels::kThreads;
  const auto plan = kernels::make_thread_plan(pass.view);
  constexpr int count = GridCell<float>::sums;
  std::vector<double> partial_sums(static_cast<std::size_t>(plan.partial_sums(count)),
                                   std::numeric_limits<double>::quiet_NaN());
  for (std::int64_t block = 0; block < plan.blocks(); ++block) {
    double numbers[count][kThreads] = {};
    for (int thread = 0; thread < kThreads; ++thread) {
      if (!plan.has_column(block, thread)) continue;
      const auto done =
          kernels::run_thread<kernels::GradientPass<E, GridCell>>(plan, block, thread, pass, tables);
      for (int k = 0; k < count; ++k)
        numbers[k][thread] = done.totals[k];
    }
    for (int k = 0; k < count; ++k) {
      simulate_tree(numbers[k], plan.width);
      for (int thread = 0; thread < plan.width && plan.has_column(block, thread); ++thread) {
        const auto at = kernels::partial_sum_at(plan, k, plan.slice_of_block(block),
                                                plan.column_of_thread(block, thread));
        partial_sums[static_cast<std::size_t>(at)] = numbers[k][thread];
      }
    }
  }
  std::vector<std::vector<double>> sums(count);
  for (int k = 0; k < count; ++k) {
    for (std::int64_t channel = 0; channel < plan.channels; ++channel) {
      double numbers[kThreads];
      for (int thread = 0; thread < kThreads; ++thread)
        numbers[thread] = kernels::sum_partials(plan, partial_sums.data(), k, channel, thread);
      simulate_tree(numbers, 1);
      sums[static_cast<std::size_t>(k)].push_back(numbers[0]);
    }
  }
  return sums;
}

/// A pass over a dense tensor in the CPU's memory.
inline kernels::DevicePass device_pass(const torch::Tensor& x, std::optional<std::int64_t> axis,
                                       const Activation& activation) {
  kernels::DevicePass pass;
  pass.element = detail::element_type(x.scalar_type()).value();
  pass.view = detail::dense_view(x, detail::resolve_axis(x, axis)).value();
  pass.negative_slope = activation.negative_slope;
  pass.upper = activation.upper;
  pass.x = x.const_data_ptr();
  return pass;
}

}  // namespace qat::testing
