#pragma once

#include <torch/cuda.h>

#include "support/catch.h"

namespace qat::testing {

/// Whether there is a GPU to test on. If not, it says that the test case is skipped, and the case must
/// return.
inline bool has_cuda_device() {
  if (torch::cuda::is_available()) return true;
#ifdef SKIP
  SKIP("skipped: no CUDA device");
#else
  WARN("skipped: no CUDA device");
#endif
  return false;
}

}  // namespace qat::testing
