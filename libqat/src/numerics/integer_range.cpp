#include <qat/numerics/integer_range.h>

#include <c10/util/Exception.h>

namespace qat {

IntegerRange::IntegerRange(std::int64_t bits, Signedness signedness, RangeWidth width)
    : bits_(bits), signedness_(signedness), width_(width) {
  TORCH_CHECK_VALUE(bits >= 1 && bits <= 16, "qat::IntegerRange: expected 1 to 16 bits, got ", bits);
  TORCH_CHECK_VALUE(
      bits > 1 || !is_signed(),
      "qat::IntegerRange: a signed range of 1 bit has no positive code, so no scale; use 2 bits or more");
  TORCH_CHECK_VALUE(
      bits > 1 || !is_narrow(),
      "qat::IntegerRange: a narrow range of 1 bit has a single code; use the full range or more bits");
}

std::int64_t IntegerRange::qmin() const {
  const std::int64_t lowest = is_signed() ? -(std::int64_t{1} << (bits_ - 1)) : 0;
  return is_narrow() ? lowest + 1 : lowest;
}

std::int64_t IntegerRange::qmax() const {
  return (std::int64_t{1} << (is_signed() ? bits_ - 1 : bits_)) - 1;
}

std::string IntegerRange::to_string() const {
  return (is_signed() ? "int" : "uint") + std::to_string(bits_) + (is_narrow() ? " narrow" : "");
}

}  // namespace qat
