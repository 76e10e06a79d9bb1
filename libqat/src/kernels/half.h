#pragma once

#include <qat/numerics/host_device.h>

#include <cstdint>
#include <cstring>

namespace qat::kernels {

/// The bits of a half (IEEE binary16) and of a bfloat16. Conversions are plain integer and float32 code, so
/// that loops over them become vector code on every instruction set, with the same bits.
struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

template <class To, class From>
[[gnu::always_inline]] QAT_HOST_DEVICE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

[[gnu::always_inline]] QAT_HOST_DEVICE float to_compute(float v) {
  return v;
}
[[gnu::always_inline]] QAT_HOST_DEVICE double to_compute(double v) {
  return v;
}

[[gnu::always_inline]] QAT_HOST_DEVICE float to_compute(BFloat16 v) {
  return bit_cast<float>(static_cast<std::uint32_t>(v.bits) << 16);
}

[[gnu::always_inline]] QAT_HOST_DEVICE float to_compute(Half v) {
  const std::uint32_t sign = static_cast<std::uint32_t>(v.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(v.bits & 0x7FFFU) << 13;
  // Exponent bias 15 -> 127; infinities and NaN keep an exponent of ones.
  const std::uint32_t rebias = magnitude >= 0x0F800000U ? 0x70000000U : 0x38000000U;
  const std::uint32_t normal = magnitude + rebias;
  // Sub-normal halves: 2^-14 * 0.m = (2^-14 * 1.m) - 2^-14, exact.
  const std::uint32_t subnormal =
      bit_cast<std::uint32_t>(bit_cast<float>(magnitude + 0x38800000U) - 0x1p-14F);
  return bit_cast<float>(sign | (magnitude < 0x00800000U ? subnormal : normal));
}

template <class Element>
struct FromCompute;

template <>
struct FromCompute<float> {
  [[gnu::always_inline]] QAT_HOST_DEVICE static float convert(float v) { return v; }
};

template <>
struct FromCompute<double> {
  [[gnu::always_inline]] QAT_HOST_DEVICE static double convert(double v) { return v; }
};

/// Rounds to nearest, ties to even; NaN becomes the quiet NaN 0x7FC0.
template <>
struct FromCompute<BFloat16> {
  [[gnu::always_inline]] QAT_HOST_DEVICE static BFloat16 convert(float v) {
    const auto bits = bit_cast<std::uint32_t>(v);
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    const std::uint32_t result = (bits & 0x7FFFFFFFU) > 0x7F800000U ? 0x7FC0U : rounded;
    return {static_cast<std::uint16_t>(result)};
  }
};

/// Rounds to nearest, ties to even; too large becomes infinity; NaN becomes the quiet NaN 0x7E00.
template <>
struct FromCompute<Half> {
  [[gnu::always_inline]] QAT_HOST_DEVICE static Half convert(float v) {
    const auto bits = bit_cast<std::uint32_t>(v);
    const std::uint32_t sign = (bits >> 16) & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    // Normal: move the exponent's bias and round the 13 bits that fall off; a carry moves into the exponent
    // as it should.
    const std::uint32_t normal = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13;
    // Below 2^-14: adding 0.5 leaves the code, rounded by the addition itself, in the low bits.
    const std::uint32_t subnormal = bit_cast<std::uint32_t>(bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
    std::uint32_t result = magnitude < 0x38800000U ? subnormal : normal;
    result = magnitude >= 0x47800000U ? 0x7C00U : result;
    result = magnitude > 0x7F800000U ? 0x7E00U : result;
    return {static_cast<std::uint16_t>(sign | result)};
  }
};

}  // namespace qat::kernels
