#pragma once

#include <cstdint>
#include <string>

namespace qat {

enum class Signedness : std::int8_t { kSigned, kUnsigned };

/// Full: every code of the width. Narrow: the lowest code is left out, so that a signed range is symmetric.
enum class RangeWidth : std::int8_t { kFull, kNarrow };

/// The codes [qmin, qmax] that a number of bits can hold.
///
/// | | full | narrow |
/// |---|---|---|
/// | signed, b bits | [-2^(b-1), 2^(b-1) - 1] | [-(2^(b-1) - 1), 2^(b-1) - 1] |
/// | unsigned, b bits | [0, 2^b - 1] | [1, 2^b - 1] |
///
/// One object describes a quantizer's range everywhere: scale computation and clamping cannot disagree.
class IntegerRange {
 public:
  /// Signed 8 bits, full.
  IntegerRange() = default;
  /// `bits`: 1 to 16. Throws: c10::ValueError for other widths, for signed 1 bit (its only non-negative code
  /// is 0: no scale exists; binary weights are a quantizer family of their own) and for narrow unsigned 1 bit
  /// (one code).
  IntegerRange(std::int64_t bits, Signedness signedness, RangeWidth width = RangeWidth::kFull);

  std::int64_t bits() const { return bits_; }
  bool is_signed() const { return signedness_ == Signedness::kSigned; }
  bool is_narrow() const { return width_ == RangeWidth::kNarrow; }
  Signedness signedness() const { return signedness_; }
  RangeWidth width() const { return width_; }
  std::int64_t qmin() const;
  std::int64_t qmax() const;
  /// "int8", "int4 narrow", "uint8".
  std::string to_string() const;

  bool operator==(const IntegerRange&) const = default;

 private:
  std::int64_t bits_ = 8;
  Signedness signedness_ = Signedness::kSigned;
  RangeWidth width_ = RangeWidth::kFull;
};

}  // namespace qat
