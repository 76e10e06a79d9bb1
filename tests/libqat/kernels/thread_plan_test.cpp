#include "kernels/thread_plan.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/catch.h"

namespace {

using namespace qat::kernels;

/// Notes what it is asked to do.
struct NotingPass {
  std::vector<int>& reads;
  std::vector<int>& writes;
  std::vector<std::int64_t>& channels;
  std::int64_t channel;
  std::int64_t in_flight[kSlots] = {};

  void read(int slot, std::int64_t i) {
    ++reads.at(static_cast<std::size_t>(i));
    in_flight[slot] = i + 1;
  }
  void write(int slot, std::int64_t i) {
    if (in_flight[slot] == i + 1) ++writes.at(static_cast<std::size_t>(i));
    channels.at(static_cast<std::size_t>(i)) = channel;
  }
};

}  // namespace

TEST_CASE("each element is done once, by a thread of its channel") {
  const ChannelView views[] = {{1, 1, 1},    {1, 1, 1023}, {1, 1, 300001}, {5, 7, 1},     {5, 7, 3},
                               {1, 64, 9},   {1, 3, 1000}, {1000, 3, 1},   {3, 300, 1},   {4097, 40, 2},
                               {70, 2, 33},  {1, 5, 2049}, {300, 2, 49},   {2, 5000, 31}, {9, 257, 1},
                               {1000, 1, 1}, {64, 16, 64}};
  for (const auto& view : views) {
    CAPTURE(view.outer, view.channels, view.inner);
    const auto size = static_cast<std::size_t>(view.size());
    std::vector<int> reads(size);
    std::vector<int> writes(size);
    std::vector<std::int64_t> channels(size);
    const auto plan = make_thread_plan(view);
    int idle_slices = 0;
    for (std::int64_t block = 0; block < plan.blocks(); ++block) {
      if (plan.slice_of_block(block) * plan.slice_length >= plan.length) ++idle_slices;
      for (int thread = 0; thread < kThreads; ++thread) {
        if (!plan.has_column(block, thread)) continue;
        NotingPass pass{reads, writes, channels, plan.channel(plan.column_of_thread(block, thread))};
        for_each_element(plan, block, thread, pass);
      }
    }
    CHECK(idle_slices == 0);
    CHECK(std::count(reads.begin(), reads.end(), 1) == view.size());
    CHECK(std::count(writes.begin(), writes.end(), 1) == view.size());
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < view.size(); ++i) {
      if (channels[static_cast<std::size_t>(i)] != i / view.inner % view.channels) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("the columns of the channels are all columns") {
  for (const ChannelView& view :
       {ChannelView{1, 1, 100}, {1000, 3, 5}, {5, 7, 3}, {2, 9, 100}, {9, 257, 1}}) {
    const auto plan = make_thread_plan(view);
    std::vector<int> counts(static_cast<std::size_t>(plan.columns));
    for (std::int64_t channel = 0; channel < plan.channels; ++channel) {
      for (std::int64_t i = 0; i < plan.columns_of_channel(); ++i) {
        const auto column = plan.column(channel, i);
        CHECK(plan.channel(column) == channel);
        ++counts.at(static_cast<std::size_t>(column));
      }
    }
    CHECK(std::count(counts.begin(), counts.end(), 1) == plan.columns);
  }
}

TEST_CASE("plans fill a GPU without too many blocks, and do nothing for empty tensors") {
  CHECK(make_thread_plan({1, 1, 0}).blocks() == 0);
  CHECK(make_thread_plan({0, 4, 7}).blocks() == 0);
  CHECK(make_thread_plan({1, 1, 1}).blocks() == 1);
  for (const ChannelView& view :
       {ChannelView{1, 1, 1 << 24}, {1, 64, 1 << 18}, {1 << 18, 64, 1}, {1 << 22, 3, 1}, {256, 64, 1024}}) {
    const auto plan = make_thread_plan(view);
    CHECK(plan.blocks() >= 1024);
    CHECK(plan.blocks() <= 4096);
    CHECK(plan.partial_sums(3) <= view.size() / 16);
  }
}
