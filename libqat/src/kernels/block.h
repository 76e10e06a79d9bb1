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

/// The sum of `length` numbers in float64, always in the same order: 32 interleaved partial sums, then those
/// in order. The order depends on `length` alone, not on the instruction set.
template <class T>
[[gnu::always_inline]] inline double fixed_order_sum(const T* values, std::int64_t length) {
  using Wide [[gnu::vector_size(4 * sizeof(double))]] = double;
  using Narrow [[gnu::vector_size(4 * sizeof(T))]] = T;
  Wide lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 32 <= length; i += 32) {
    for (int j = 0; j < 8; ++j) {
      Narrow part;
      std::memcpy(&part, values + i + 4 * j, sizeof(part));
      lanes[j] += __builtin_convertvector(part, Wide);
    }
  }
  const Wide all =
      ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  double sum = (all[0] + all[1]) + (all[2] + all[3]);
  for (; i < length; ++i)
    sum += static_cast<double>(values[i]);
  return sum;
}

}  // namespace qat::kernels
