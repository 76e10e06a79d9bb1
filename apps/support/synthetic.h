#pragma once

#include <cstdint>

#include "support/image_set.h"

namespace qat::apps {

/// How many synthetic images to make, and of which shape.
struct SyntheticOptions {
  int64_t train_count = 4096;  ///< images for training, at least 1
  int64_t test_count = 1024;   ///< images for testing, at least 1
  int64_t channels = 1;        ///< at least 1; each has its own brightness
  int64_t height = 28;         ///< pixels, at least 12
  int64_t width = 28;          ///< pixels, at least 12
};

/// Which half of the data; the halves share no image.
enum class Split { kTrain, kTest };

/// Makes images of the ten digits of a seven-segment display, each with a place, size, slant, stroke width
/// and brightness of its own, a stray stroke on every other image, and noise on every pixel. No single pixel
/// tells the class; a small convolutional network reaches more than 90 % within a few epochs.
///
/// Image i shows digit i % 10, so every part of the set has all classes. Its bytes depend on the seed, the
/// split, i and the shape only, not on the counts or the number of threads.
///
/// Shape: images uint8 `[count, channels, height, width]`, labels int64 `[count]`. Range: labels 0 to 9.
/// Throws: `c10::Error` when an option is out of range.
ImageSet make_synthetic(const SyntheticOptions& options, uint64_t seed, Split split);

}  // namespace qat::apps
