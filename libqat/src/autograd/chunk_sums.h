#pragma once

#include "autograd/dense_view.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace qat::detail {

/// The elements of a tensor that are summed together. The cut depends on the tensor's size alone, so that
/// sums over the chunks in their order do not depend on the number of threads.
inline std::int64_t chunk_length(std::int64_t size) {
  constexpr std::int64_t kChunks = 64;
  return std::max(kGrain / 2, (size + kChunks - 1) / kChunks + 1023) / 1024 * 1024;
}

/// Calls function(first, last, k) for chunks k of a tensor; returns their number.
template <class Function>
std::int64_t for_chunks(std::int64_t size, const Function& function) {
  const std::int64_t chunk = chunk_length(size);
  const std::int64_t chunks = (size + chunk - 1) / chunk;
  at::parallel_for(0, chunks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t k = first; k < last; ++k)
      function(k * chunk, std::min(size, (k + 1) * chunk), k);
  });
  return chunks;
}

/// Sums for each channel of a view, kept for each chunk of the tensor. Where the channels follow one another
/// in memory a chunk keeps only those that it meets: with many channels, a small part of all.
class ChunkSums {
 public:
  /// `count`: how many sums a channel has.
  ChunkSums(const kernels::ChannelView& view, std::int64_t size, std::int64_t count)
      : view_(view), size_(size), count_(count), parts_(static_cast<std::size_t>(chunk_count())) {}

  /// Calls add(first, last, sums) for each chunk; it adds to sums[k * channels + channel], which are 0
  /// before.
  template <class Add>
  void run(const Add& add) {
    const std::int64_t chunk = chunk_length(size_);
    at::parallel_for(0, chunk_count(), 1, [&](std::int64_t first, std::int64_t last) {
      std::vector<double> sums(static_cast<std::size_t>(count_ * view_.channels));
      for (std::int64_t i = first; i < last; ++i) {
        add(i * chunk, std::min(size_, (i + 1) * chunk), sums.data());
        const auto [begin, end] = channels_of(i);
        auto& part = parts_[static_cast<std::size_t>(i)];
        for (std::int64_t k = 0; k < count_; ++k) {
          const auto from = sums.begin() + k * view_.channels;
          part.insert(part.end(), from + begin, from + end);
          std::fill(from + begin, from + end, 0.0);
        }
      }
    });
  }

  /// Calls add(channel, value) for sum k of the channels of each chunk, in the order of the chunks.
  template <class Add>
  void for_each(std::int64_t k, const Add& add) const {
    for (std::int64_t i = 0; i < chunk_count(); ++i) {
      const auto [begin, end] = channels_of(i);
      const auto& part = parts_[static_cast<std::size_t>(i)];
      for (std::int64_t channel = begin; channel < end; ++channel)
        add(channel, part[static_cast<std::size_t>(k * (end - begin) + channel - begin)]);
    }
  }

  /// How many numbers are kept.
  std::size_t kept() const {
    std::size_t all = 0;
    for (const auto& part : parts_)
      all += part.size();
    return all;
  }

 private:
  struct Channels {
    std::int64_t begin;
    std::int64_t end;
  };

  std::int64_t chunk_count() const { return (size_ + chunk_length(size_) - 1) / chunk_length(size_); }

  /// The channels that a chunk meets; all where they come again and again.
  Channels channels_of(std::int64_t i) const {
    if (view_.channels * view_.inner < size_) return {0, view_.channels};
    const std::int64_t chunk = chunk_length(size_);
    return {i * chunk / view_.inner, (std::min(size_, (i + 1) * chunk) - 1) / view_.inner + 1};
  }

  kernels::ChannelView view_;
  std::int64_t size_;
  std::int64_t count_;
  std::vector<std::vector<double>> parts_;
};

}  // namespace qat::detail
