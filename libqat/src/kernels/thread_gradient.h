#pragma once

#include "kernels/thread_body.h"

#include <cstdint>

namespace qat::kernels {

// Gradients of learned grids on a GPU: what a thread does with its elements, and how the sums of threads and
// blocks become one for each channel, always in the same order.

/// Sums of a uniform grid: scale, lower, upper; of a power-of-two grid: xmin, xmax, nothing.
inline constexpr int kDeviceSums = 3;

/// An entry of UniformTables.
template <class T>
struct UniformGridCell {
  static constexpr int sums = 3;
  struct Round {
    Rounding rounding;
    QAT_HOST_DEVICE T operator()(T v) const { return round_to_integer(v, rounding); }
  };
  UniformCell<T> cell;
  Rounding rounding;

  QAT_HOST_DEVICE UniformGridCell(const UniformTables& tables, std::int64_t channel)
      : rounding(tables.codes.rounding) {
    const AffineCell<T> codes(tables.codes, channel);
    cell = {codes.scale, codes.low - codes.zero_point, codes.high - codes.zero_point,
            static_cast<T>(tables.lower[channel]), static_cast<T>(tables.upper[channel])};
  }
  QAT_HOST_DEVICE UniformGradient<T> gradient(T x, T dy) const {
    return uniform_gradient(x, dy, cell, Round{rounding});
  }
  /// Adds what an element gives to the sums; returns what it gives to x.
  QAT_HOST_DEVICE T add(T x, T dy, double* totals) const {
    const UniformGradient<T> given = gradient(x, dy);
    totals[0] += static_cast<double>(given.scale);
    totals[1] += static_cast<double>(given.lower);
    totals[2] += static_cast<double>(given.upper);
    return given.dx;
  }
};

/// An entry of PowerOfTwoTables.
template <class T>
struct PowerOfTwoGridCell {
  static constexpr int sums = 2;
  PowerOfTwoCell<T> cell;

  QAT_HOST_DEVICE PowerOfTwoGridCell(const PowerOfTwoTables& tables, std::int64_t channel)
      : cell(device_cell<T>(tables, channel)) {}
  QAT_HOST_DEVICE T add(T x, T dy, double* totals) const {
    const PowerOfTwoGradient<T> given = power_of_two_gradient(x, dy, cell);
    totals[0] += static_cast<double>(given.xmin);
    totals[1] += static_cast<double>(given.xmax);
    return given.dx;
  }
};

/// x, dy -> out: the gradient of x, of its type; and the thread's sums in float64.
template <class E, template <class> class GridCell>
struct GradientPass : ElementsInFlight<E> {
  using typename ElementsInFlight<E>::T;
  GridCell<T> cell;
  E* __restrict__ out;
  double totals[kDeviceSums] = {};

  template <class Tables>
  QAT_HOST_DEVICE GradientPass(const DevicePass& pass, const Tables& tables, std::int64_t channel)
      : ElementsInFlight<E>(pass), cell(tables, channel), out(static_cast<E*>(pass.out)) {}
  QAT_HOST_DEVICE void read(int slot, std::int64_t i) {
    this->read_x(slot, i);
    this->read_dy(slot, i);
  }
  QAT_HOST_DEVICE void write(int slot, std::int64_t i) {
    const T of_activated = cell.add(this->activated(slot), this->gradient(slot), totals);
    out[i] = FromCompute<E>::convert(this->through_activation(slot, of_activated));
  }
};

/// A step of the tree that adds a block's numbers, one for each thread: for half = kThreads / 2, kThreads /
/// 4, ..., width, each after all threads have done the last one. Then numbers[i] is the sum of those of
/// threads i, i + width, ...
QAT_HOST_DEVICE void tree_step(double* numbers, int thread, int half) {
  if (thread < half) numbers[thread] += numbers[thread + half];
}

/// Where the sum k of a block's column lies among the partial sums of all blocks.
QAT_HOST_DEVICE std::int64_t partial_sum_at(const ThreadPlan& plan, int k, std::int64_t slice,
                                            std::int64_t column) {
  return (k * plan.slices + slice) * plan.columns + column;
}

/// What a thread adds of the partial sums k of a channel; the tree with width 1 gives the channel's sum.
QAT_HOST_DEVICE double sum_partials(const ThreadPlan& plan, const double* partial_sums, int k,
                                    std::int64_t channel, int thread) {
  const std::int64_t columns = plan.columns_of_channel();
  double sum = 0.0;
  for (std::int64_t i = thread; i < plan.slices * columns; i += kThreads)
    sum += partial_sums[partial_sum_at(plan, k, i / columns, plan.column(channel, i % columns))];
  return sum;
}

}  // namespace qat::kernels
