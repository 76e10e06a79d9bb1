#pragma once

#include <qat/numerics/integer_range.h>

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <vector>

/// Codes of 1 to 16 bits as a string of bits without gaps.
namespace qat {

/// Packs codes without gaps, in the order of a contiguous tensor (last dimension fastest).
///
/// Code i takes the bits i * bits ... (i + 1) * bits - 1 of the string, its lowest bit first; bit k of the
/// string is bit k % 8 of byte k / 8, counted from the lowest. Signed codes are in two's complement. The last
/// byte is filled up with zeros. `codes`: int32, any shape and device. `bits`: 1 to 16, 2 to 16 if signed.
/// Returns packed_code_bytes(codes.numel(), bits) bytes. Throws: c10::ValueError for another type or width,
/// and for a code outside of the width, naming the code, its position and the range.
std::vector<std::uint8_t> pack_codes(const torch::Tensor& codes, std::int64_t bits, Signedness signedness);

/// The codes that pack_codes packed: int32 on the CPU, of `shape`. Throws: c10::ValueError unless `bytes` has
/// exactly the length that shape and width need and its padding is zero, and for a negative size, more than
/// kMaxPackedCount elements (sizes of 0 counted as 1) or a width out of range.
torch::Tensor unpack_codes(std::span<const std::uint8_t> bytes, torch::IntArrayRef shape, std::int64_t bits,
                           Signedness signedness);

}  // namespace qat
