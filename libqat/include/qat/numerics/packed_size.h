#pragma once

#include <cstdint>

namespace qat {

/// Sizes in kB are bytes / 1024, as in the literature on size limits for networks.
inline constexpr double kBytesPerKilobyte = 1024.0;

/// The most codes of one layer, and the most bytes, that sizes are computed for: sums of them cannot
/// overflow.
inline constexpr std::int64_t kMaxPackedCount = std::int64_t{1} << 48;

/// The bytes that `count` codes of `bits` bits each take when they are packed without gaps and the end is
/// padded to a whole byte: ceil(count * bits / 8). The only place where it is computed: size limits and files
/// agree. `count`: 0 to kMaxPackedCount. `bits`: 1 to 16. Throws: c10::ValueError outside of these ranges.
std::int64_t packed_code_bytes(std::int64_t count, std::int64_t bits);

}  // namespace qat
