#include <qat/numerics/rounding.h>

#include <c10/util/Exception.h>

namespace qat {

std::string to_string(Rounding rounding) {
  switch (rounding) {
    case Rounding::kHalfToEven: return "half_to_even";
    case Rounding::kHalfAwayFromZero: return "half_away_from_zero";
    case Rounding::kHalfUp: return "half_up";
  }
  TORCH_CHECK_VALUE(false, "qat::Rounding: no such value: ", static_cast<int>(rounding));
}

Rounding parse_rounding(std::string_view text) {
  for (const auto rounding : {Rounding::kHalfToEven, Rounding::kHalfAwayFromZero, Rounding::kHalfUp}) {
    if (text == to_string(rounding)) return rounding;
  }
  TORCH_CHECK_VALUE(false, "qat::parse_rounding: expected half_to_even, half_away_from_zero or half_up, got '",
                    text, "'");
}

}  // namespace qat
