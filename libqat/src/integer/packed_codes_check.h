#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>

namespace qat::detail {

/// The number of elements of a shape. `who` names the caller in messages.
/// Throws: c10::ValueError for a negative size and above kMaxPackedCount elements, sizes of 0 counted as 1.
std::int64_t element_count(torch::IntArrayRef shape, const std::string& who);

/// Throws: c10::ValueError unless `bytes` has exactly the length that shape and width need, and zeros after
/// the last code.
void check_packed_codes(std::span<const std::uint8_t> bytes, torch::IntArrayRef shape, std::int64_t bits,
                        const std::string& who);

}  // namespace qat::detail
