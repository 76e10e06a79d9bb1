#pragma once

#include <torch/types.h>

namespace qat::apps {

/// Labelled images as they are stored: raw bytes, not normalised, on the CPU.
struct ImageSet {
  torch::Tensor images;  ///< uint8 `[N, channels, height, width]`, contiguous
  torch::Tensor labels;  ///< int64 `[N]`, class numbers from 0

  int64_t size() const { return images.size(0); }
};

}  // namespace qat::apps
