#include "numerics/enum_names.h"
#include <qat/numerics/rounding.h>

namespace qat {
namespace {

constexpr detail::EnumNames<Rounding, 3> kRoundingNames{{{Rounding::kHalfToEven, "half_to_even"},
                                                         {Rounding::kHalfAwayFromZero, "half_away_from_zero"},
                                                         {Rounding::kHalfUp, "half_up"}}};

}  // namespace

std::string to_string(Rounding rounding) {
  return detail::enum_name(kRoundingNames, rounding);
}

Rounding parse_rounding(std::string_view text) {
  return detail::parse_enum(kRoundingNames, "rounding", text);
}

}  // namespace qat
