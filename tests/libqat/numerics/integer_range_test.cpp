#include <qat/numerics/integer_range.h>

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

#include "support/catch.h"

using qat::IntegerRange;
using qat::RangeWidth;
using qat::Signedness;

TEST_CASE("An IntegerRange holds the codes of its width", "[numerics]") {
  struct Row {
    std::int64_t bits;
    Signedness signedness;
    RangeWidth width;
    std::int64_t qmin;
    std::int64_t qmax;
    std::string text;
  };
  const Row rows[] = {
      {8, Signedness::kSigned, RangeWidth::kFull, -128, 127, "int8"},
      {8, Signedness::kSigned, RangeWidth::kNarrow, -127, 127, "int8 narrow"},
      {8, Signedness::kUnsigned, RangeWidth::kFull, 0, 255, "uint8"},
      {8, Signedness::kUnsigned, RangeWidth::kNarrow, 1, 255, "uint8 narrow"},
      {2, Signedness::kSigned, RangeWidth::kFull, -2, 1, "int2"},
      {2, Signedness::kSigned, RangeWidth::kNarrow, -1, 1, "int2 narrow"},
      {1, Signedness::kUnsigned, RangeWidth::kFull, 0, 1, "uint1"},
      {4, Signedness::kSigned, RangeWidth::kFull, -8, 7, "int4"},
      {16, Signedness::kSigned, RangeWidth::kFull, -32768, 32767, "int16"},
      {16, Signedness::kUnsigned, RangeWidth::kFull, 0, 65535, "uint16"},
  };
  for (const Row& row : rows) {
    const IntegerRange range(row.bits, row.signedness, row.width);
    CAPTURE(row.text);
    CHECK(range.qmin() == row.qmin);
    CHECK(range.qmax() == row.qmax);
    CHECK(range.bits() == row.bits);
    CHECK(range.is_signed() == (row.signedness == Signedness::kSigned));
    CHECK(range.is_narrow() == (row.width == RangeWidth::kNarrow));
    CHECK(range.to_string() == row.text);
  }
}

TEST_CASE("The default IntegerRange is int8", "[numerics]") {
  CHECK(IntegerRange() == IntegerRange(8, Signedness::kSigned, RangeWidth::kFull));
  CHECK_FALSE(IntegerRange() == IntegerRange(8, Signedness::kSigned, RangeWidth::kNarrow));
}

TEST_CASE("An IntegerRange refuses widths that have no meaning", "[numerics]") {
  for (const std::int64_t bits : {0, -3, 17, 64}) {
    CAPTURE(bits);
    CHECK_THROWS_AS(IntegerRange(bits, Signedness::kSigned), c10::ValueError);
    CHECK_THROWS_AS(IntegerRange(bits, Signedness::kUnsigned), c10::ValueError);
  }
  CHECK_THROWS_AS(IntegerRange(1, Signedness::kUnsigned, RangeWidth::kNarrow), c10::ValueError);
}

TEST_CASE("case 96: signed 1 bit is refused at set-up", "[numerics]") {
  CHECK_THROWS_AS(IntegerRange(1, Signedness::kSigned), c10::ValueError);
  CHECK_THROWS_AS(IntegerRange(1, Signedness::kSigned, RangeWidth::kNarrow), c10::ValueError);
  try {
    IntegerRange(1, Signedness::kSigned);
  } catch (const c10::ValueError& error) {
    CHECK(std::string(error.what_without_backtrace()).find("1 bit") != std::string::npos);
  }
}
