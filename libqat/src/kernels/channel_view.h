#pragma once

#include <algorithm>
#include <cstdint>

namespace qat::kernels {

/// A dense tensor in memory order, seen as [outer][channels][inner]. Per tensor: channels 1, inner the whole
/// tensor.
struct ChannelView {
  std::int64_t outer = 1;
  std::int64_t channels = 1;
  std::int64_t inner = 1;

  std::int64_t size() const { return outer * channels * inner; }
  /// 1: the channel moves with each element; 0: rows of `inner` elements of one channel.
  int channel_step() const { return inner == 1 && channels > 1 ? 1 : 0; }
};

/// Consecutive elements: of one channel (step 0), or of consecutive channels (step 1).
struct Run {
  std::int64_t channel;  ///< of the first element.
  std::int64_t length;
};

/// The longest run that starts at element `at` and ends before `end`.
template <int step>
[[gnu::always_inline]] inline Run run_at(const ChannelView& view, std::int64_t at, std::int64_t end) {
  if constexpr (step == 1) {
    const std::int64_t channel = at % view.channels;
    return {channel, std::min(view.channels - channel, end - at)};
  } else {
    const std::int64_t row = at / view.inner;
    return {row % view.channels, std::min((row + 1) * view.inner, end) - at};
  }
}

}  // namespace qat::kernels
