#pragma once

#include "kernels/half.h"

#include <cstdint>

namespace qat::kernels {

/// Elements of other types than that of the arithmetic, and passes with several steps, go through blocks of
/// this many elements, which stay in the first-level cache.
inline constexpr std::int64_t kBlock = 1024;

template <class E, class T>
[[gnu::always_inline]] inline void load(const void* tensor, std::int64_t first, std::int64_t length,
                                        T* block) {
  const E* const from = static_cast<const E*>(tensor) + first;
#pragma omp simd
  for (std::int64_t i = 0; i < length; ++i)
    block[i] = to_compute(from[i]);
}

template <class E, class T>
[[gnu::always_inline]] inline void store(const T* block, std::int64_t first, std::int64_t length,
                                         void* tensor) {
  E* const to = static_cast<E*>(tensor) + first;
#pragma omp simd
  for (std::int64_t i = 0; i < length; ++i)
    to[i] = FromCompute<E>::convert(block[i]);
}

}  // namespace qat::kernels
