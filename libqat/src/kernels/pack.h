#pragma once

#include <qat/numerics/rounding.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

// Packs never cross a call that is not inlined: how they would be passed does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace qat::kernels {

template <class T>
struct PackOf {
  typedef T Type __attribute__((vector_size(32)));  // NOLINT: `using` takes no attribute of a template
};

/// Numbers that are computed together: 8 floats or 4 doubles, whatever the instruction set, so that sums have
/// the same order on all of them. Comparisons give masks, `mask ? a : b` selects.
template <class T>
using Pack = typename PackOf<T>::Type;

template <class T>
inline constexpr std::int64_t kPack = 32 / static_cast<std::int64_t>(sizeof(T));

template <class T>
[[gnu::always_inline]] inline Pack<T> fill_pack(T value) {
  return value - Pack<T>{};  // keeps -0
}

template <class T>
[[gnu::always_inline]] inline Pack<T> load_pack(const T* from) {
  Pack<T> pack;
  std::memcpy(&pack, from, sizeof(pack));
  return pack;
}

/// The first `count` numbers; `rest` in the other places.
template <class T>
[[gnu::always_inline]] inline Pack<T> load_pack(const T* from, std::int64_t count, T rest) {
  if (count == kPack<T>) return load_pack(from);
  T values[kPack<T>];
  for (std::int64_t i = 0; i < kPack<T>; ++i)
    values[i] = i < count ? from[i] : rest;
  return load_pack(values);
}

/// Numbers that add nothing to any sum in place of those that a pack lacks.
template <class T>
inline constexpr T kNothing = std::numeric_limits<T>::quiet_NaN();

template <class T>
[[gnu::always_inline]] inline void store_pack(const Pack<T>& pack, T* to) {
  std::memcpy(to, &pack, sizeof(pack));
}

/// Stores the first `count` numbers.
template <class T>
[[gnu::always_inline]] inline void store_pack(const Pack<T>& pack, T* to, std::int64_t count) {
  if (count == kPack<T>) return store_pack(pack, to);
  for (std::int64_t i = 0; i < count; ++i)
    to[i] = pack[i];
}

/// round_to_integer<rounding> of each number.
template <Rounding rounding, class T>
struct RoundPack {
  [[gnu::always_inline]] Pack<T> operator()(const Pack<T>& v) const {
    Pack<T> whole;
    for (std::int64_t i = 0; i < kPack<T>; ++i) {
      whole[i] = rounding == Rounding::kHalfToEven         ? std::rint(v[i])
                 : rounding == Rounding::kHalfAwayFromZero ? std::trunc(v[i])
                                                           : std::floor(v[i]);
    }
    if constexpr (rounding == Rounding::kHalfToEven) return whole;
    const Pack<T> rest = v - whole;
    if constexpr (rounding == Rounding::kHalfUp) return rest >= T(0.5) ? whole + T(1) : whole;
    const Pack<T> magnitude = rest < T(0) ? -rest : rest;
    const Pack<T> further = v < T(0) ? whole - T(1) : whole + T(1);
    return magnitude >= T(0.5) ? further : whole;
  }
};

/// Sums in float64, one for each place of a pack.
template <class T>
struct PackSums {
  static constexpr int kParts = static_cast<int>(sizeof(double) / sizeof(T));
  Pack<double> parts[kParts];

  [[gnu::always_inline]] static Pack<double> widened(const Pack<T>& v, int part) {
    const std::int64_t at = part * kPack<double>;
    return Pack<double>{static_cast<double>(v[at]), static_cast<double>(v[at + 1]),
                        static_cast<double>(v[at + 2]), static_cast<double>(v[at + 3])};
  }
  [[gnu::always_inline]] void add(const Pack<T>& v) {
    for (int i = 0; i < kParts; ++i)
      parts[i] += widened(v, i);
  }
  [[gnu::always_inline]] double total() const {
    const Pack<double> all = kParts == 2 ? parts[0] + parts[kParts - 1] : parts[0];
    return (all[0] + all[1]) + (all[2] + all[3]);
  }
  /// Adds each number to a sum of its own in memory.
  [[gnu::always_inline]] static void add_to(double* sums, const Pack<T>& v, std::int64_t count) {
    if (count == kPack<T>) {
      for (int i = 0; i < kParts; ++i) {
        double* const to = sums + i * kPack<double>;
        store_pack<double>(load_pack<double>(to) + widened(v, i), to);
      }
      return;
    }
    for (std::int64_t i = 0; i < count; ++i)
      sums[i] += static_cast<double>(v[i]);
  }
};

/// Asks for memory that is needed soon: loops with much arithmetic leave the processor's own reading ahead
/// too late.
template <class T>
[[gnu::always_inline]] inline void read_ahead(const T* from) {
  constexpr std::uintptr_t kAhead = 2048;
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(from) + kAhead));
}

}  // namespace qat::kernels
