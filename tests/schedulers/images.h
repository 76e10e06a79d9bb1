#pragma once

#include <torch/types.h>

#include <cstdint>

namespace qat::testing {

/// A batch of 4 small images, [4, 1, 4, 4]; the same for the same seed.
inline torch::Tensor images(std::uint64_t seed = 1) {
  torch::manual_seed(seed);
  return torch::randn({4, 1, 4, 4});
}

}  // namespace qat::testing
