#include "autograd/chunk_sums.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/catch.h"

namespace {

using qat::detail::chunk_length;
using qat::detail::ChunkSums;
using qat::kernels::ChannelView;

double element(std::int64_t at) {
  return 1.0 / static_cast<double>(at + 3);
}

std::size_t channel_of(const ChannelView& view, std::int64_t at) {
  return static_cast<std::size_t>(at / view.inner % view.channels);
}

/// Adds the elements and their squares, as the kernels do.
ChunkSums summed(const ChannelView& view, std::int64_t size) {
  ChunkSums sums(view, size, 2);
  sums.run([&](std::int64_t begin, std::int64_t end, double* to) {
    for (std::int64_t at = begin; at < end; ++at) {
      to[channel_of(view, at)] += element(at);
      to[static_cast<std::size_t>(view.channels) + channel_of(view, at)] += element(at) * element(at);
    }
  });
  return sums;
}

}  // namespace

TEST_CASE("sums of chunks are those of each chunk's channels in the order of the chunks") {
  // Channels outermost, in the middle, innermost, longer and shorter than a chunk; one channel.
  for (const ChannelView view :
       {ChannelView{1, 5000, 64}, ChannelView{1, 3, 70001}, ChannelView{7, 11, 900}, ChannelView{600, 130, 1},
        ChannelView{1, 1, 50000}, ChannelView{1, 40000, 1}, ChannelView{1, 2, 3}}) {
    for (const std::int64_t size : {view.size(), 3 * view.size()}) {  // three times: an unrolled table
      const auto sums = summed(view, size);
      for (const std::int64_t k : {0, 1}) {
        std::vector<double> found(static_cast<std::size_t>(view.channels));
        sums.for_each(k, [&](std::int64_t c, double value) { found[static_cast<std::size_t>(c)] += value; });
        std::vector<double> expected(found.size());
        for (std::int64_t begin = 0; begin < size; begin += chunk_length(size)) {
          std::vector<double> part(found.size());
          for (std::int64_t at = begin; at < std::min(size, begin + chunk_length(size)); ++at)
            part[channel_of(view, at)] += k == 0 ? element(at) : element(at) * element(at);
          for (std::size_t c = 0; c < part.size(); ++c)
            expected[c] += part[c];
        }
        CAPTURE(view.outer, view.channels, view.inner, size, k);
        CHECK(found == expected);
      }
    }
  }
}

TEST_CASE("a chunk keeps the channels that it meets") {
  const ChannelView view{1, 50000, 64};
  const std::int64_t chunks = (view.size() + chunk_length(view.size()) - 1) / chunk_length(view.size());
  CHECK(chunks > 32);
  // Two sums for each channel; a channel that a cut divides counts twice.
  CHECK(summed(view, view.size()).kept() <= static_cast<std::size_t>(2 * (view.channels + chunks)));
}
