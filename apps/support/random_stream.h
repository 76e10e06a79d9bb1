#pragma once

#include <cstdint>

namespace qat::apps {

/// What a stream of random numbers is for; streams for different ends are independent.
enum class RandomUse : uint64_t {
  kSampleOrder = 1,
  kImageVariation = 2,
  kSyntheticTrainImage = 11,
  kSyntheticTestImage = 12,
};

/// A small random generator (splitmix64) whose numbers depend on its keys alone: not on the platform, the
/// number of threads, or the version of a library. Give each sample a stream of its own and the order of work
/// does not matter.
///
/// Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
class RandomStream {
 public:
  /// Streams with different keys are independent; `epoch` and `index` are any numbers of the caller's.
  RandomStream(uint64_t seed, RandomUse use, uint64_t epoch, uint64_t index) {
    for (const uint64_t key : {seed, static_cast<uint64_t>(use), epoch, index})
      state_ = mixed(state_ + key + kGamma);
  }

  /// 64 random bits.
  uint64_t next() { return mixed(state_ += kGamma); }

  /// A whole number from 0 to `bound` - 1; `bound` must be positive and far below 2^64.
  uint64_t below(uint64_t bound) { return next() % bound; }

  /// A real number in `[low, high)`.
  double uniform(double low, double high) {
    return low + (high - low) * 0x1p-53 * static_cast<double>(next() >> 11);
  }

 private:
  static constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;

  static uint64_t mixed(uint64_t bits) {
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    return bits ^ (bits >> 31);
  }

  uint64_t state_ = 0;
};

}  // namespace qat::apps
