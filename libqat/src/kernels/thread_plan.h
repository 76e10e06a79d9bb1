#pragma once

#include "kernels/channel_view.h"
#include <qat/numerics/host_device.h>

#include <algorithm>
#include <cstdint>

namespace qat::kernels {

/// Threads of a block on a GPU.
inline constexpr int kThreads = 256;

/// Elements that a thread reads before it computes the first: so many reads are under way at a time.
inline constexpr int kSlots = 4;

/// Which elements of a dense tensor each thread of a GPU does, in which order. It depends on the tensor's
/// size and layout alone, and so do the bits of sums.
///
/// The memory is seen as [rows][columns] of runs of elements. A column belongs to one channel, and a thread
/// does elements of one column. Long rows of a channel: the column is the channel, its threads read
/// neighbouring elements of it. Short ones: runs of one element, `width` neighbouring columns to a block, so
/// that neighbouring threads read neighbouring memory; several periods of few channels make one row.
struct ThreadPlan {
  std::int64_t size = 0;      ///< elements of the tensor.
  std::int64_t channels = 1;  ///< of the tensor.
  std::int64_t columns = 1;
  std::int64_t run = 1;     ///< elements of a column that are neighbours in memory.
  std::int64_t length = 0;  ///< elements of a column; the last ones may lie beyond the end of the tensor.
  std::int64_t side = 1;    ///< neighbouring columns of the same channel.
  std::int64_t groups = 1;  ///< of `width` columns; a block does a slice of a group.
  std::int64_t slices = 0;
  std::int64_t slice_length = 0;  ///< elements of a column in a slice.
  int width = 1;                  ///< a power of two, at most kThreads.

  std::int64_t blocks() const { return groups * slices; }
  /// Columns of each channel.
  QAT_HOST_DEVICE std::int64_t columns_of_channel() const { return columns / channels; }
  /// Column i of a channel, i in [0, columns_of_channel()).
  QAT_HOST_DEVICE std::int64_t column(std::int64_t channel, std::int64_t i) const {
    return (i / side * channels + channel) * side + i % side;
  }
  QAT_HOST_DEVICE std::int64_t channel(std::int64_t column) const { return column / side % channels; }
  QAT_HOST_DEVICE std::int64_t column_of_thread(std::int64_t block, int thread) const {
    return block % groups * width + thread % width;
  }
  QAT_HOST_DEVICE bool has_column(std::int64_t block, int thread) const {
    return column_of_thread(block, thread) < columns;
  }
  QAT_HOST_DEVICE std::int64_t slice_of_block(std::int64_t block) const { return block / groups; }
  /// Numbers that the blocks leave for the sum of each of `sums` quantities.
  std::int64_t partial_sums(int sums) const { return sums * slices * columns; }
};

inline ThreadPlan make_thread_plan(const ChannelView& view) {
  constexpr std::int64_t kShortRun = 32;      // shorter ones would leave a GPU's reads partly unused
  constexpr std::int64_t kRowLength = 256;    // of few channels with short runs
  constexpr std::int64_t kPerThread = 8;      // elements that are worth a thread
  constexpr std::int64_t kMostBlocks = 4096;  // more fill no GPU better
  ThreadPlan plan;
  plan.size = view.size();
  if (plan.size == 0) return plan;
  plan.channels = view.channels;
  if (view.channels > 1 && view.inner < kShortRun) {
    const std::int64_t period = view.channels * view.inner;
    const std::int64_t periods = std::clamp<std::int64_t>(kRowLength / period, 1, view.outer);
    plan.columns = period * periods;
    plan.run = 1;
    plan.length = (view.outer + periods - 1) / periods;
    plan.side = view.inner;
    plan.width = 32;
  } else {
    plan.columns = view.channels;
    plan.run = view.inner;
    plan.length = view.outer * view.inner;
  }
  const auto ceil_divide = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  plan.groups = ceil_divide(plan.columns, plan.width);
  const std::int64_t worth = ceil_divide(plan.length, kPerThread * kThreads / plan.width);
  const std::int64_t slices = std::clamp<std::int64_t>(kMostBlocks / plan.groups, 1, worth);
  plan.slice_length = ceil_divide(plan.length, slices);
  plan.slices = ceil_divide(plan.length, plan.slice_length);
  return plan;
}

/// Calls pass.read(slot, element) and pass.write(slot, element) for the elements of a thread: up to kSlots
/// reads with different slots, then the same elements' writes, in order. The thread must have a column.
template <class Pass>
QAT_HOST_DEVICE void for_each_element(const ThreadPlan& plan, std::int64_t block, int thread, Pass& pass) {
  const std::int64_t column = plan.column_of_thread(block, thread);
  const std::int64_t begin = plan.slice_of_block(block) * plan.slice_length;
  const std::int64_t end = begin + plan.slice_length < plan.length ? begin + plan.slice_length : plan.length;
  const std::int64_t step = kThreads / plan.width;
  const std::int64_t row_step = step / plan.run;
  const std::int64_t run_step = step % plan.run;
  std::int64_t at = begin + thread / plan.width;
  std::int64_t row = at / plan.run;
  std::int64_t in_run = at % plan.run;
  while (at < end) {
    std::int64_t elements[kSlots];
    for (int slot = 0; slot < kSlots; ++slot) {
      elements[slot] = at < end ? (row * plan.columns + column) * plan.run + in_run : plan.size;
      at += step;
      row += row_step;
      in_run += run_step;
      if (in_run >= plan.run) {
        in_run -= plan.run;
        ++row;
      }
    }
    for (int slot = 0; slot < kSlots; ++slot) {
      if (elements[slot] < plan.size) pass.read(slot, elements[slot]);
    }
    for (int slot = 0; slot < kSlots; ++slot) {
      if (elements[slot] < plan.size) pass.write(slot, elements[slot]);
    }
  }
}

}  // namespace qat::kernels
