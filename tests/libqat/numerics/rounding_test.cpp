#include <qat/numerics/rounding.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"

namespace {

constexpr auto kEven = qat::Rounding::kHalfToEven;
constexpr auto kAway = qat::Rounding::kHalfAwayFromZero;
constexpr auto kUp = qat::Rounding::kHalfUp;

template <class T>
void check_rounding(qat::Rounding rounding, const std::vector<T>& x, const std::vector<T>& expected) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(qat::to_string(rounding), x[i]);
    CHECK(qat::round_to_integer(x[i], rounding) == expected[i]);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("round_to_integer decides ties by its rule", "", float, double) {
  const std::vector<TestType> x{-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.4, -2.6, 0.0};
  check_rounding<TestType>(kEven, x, {-2, -2, 0, 0, 2, 2, 2, -3, 0});
  check_rounding<TestType>(kAway, x, {-3, -2, -1, 1, 2, 3, 2, -3, 0});
  check_rounding<TestType>(kUp, x, {-2, -1, 0, 1, 2, 3, 2, -3, 0});
}

TEST_CASE("round_to_integer is exact where adding one half would not be") {
  const float below_half = 0.49999997F;
  for (const auto rounding : {kEven, kAway, kUp}) {
    CHECK(qat::round_to_integer(below_half, rounding) == 0.0F);
    CHECK(qat::round_to_integer(-below_half, rounding) == 0.0F);
    CHECK(qat::round_to_integer(8388609.0F, rounding) == 8388609.0F);
    CHECK(qat::round_to_integer(-8388609.0F, rounding) == -8388609.0F);
    CHECK(qat::round_to_integer(4503599627370497.0, rounding) == 4503599627370497.0);
  }
  CHECK(qat::round_to_integer(-0.50000006F, kUp) == -1.0F);
}

TEMPLATE_TEST_CASE("round_to_integer keeps NaN and infinities", "", float, double) {
  constexpr TestType infinity = std::numeric_limits<TestType>::infinity();
  for (const auto rounding : {kEven, kAway, kUp}) {
    CHECK(std::isnan(qat::round_to_integer(std::numeric_limits<TestType>::quiet_NaN(), rounding)));
    CHECK(qat::round_to_integer(infinity, rounding) == infinity);
    CHECK(qat::round_to_integer(-infinity, rounding) == -infinity);
  }
}

TEST_CASE("roundings have names that can be read back") {
  for (const auto rounding : {kEven, kAway, kUp})
    CHECK(qat::parse_rounding(qat::to_string(rounding)) == rounding);
  CHECK(qat::to_string(kAway) == "half_away_from_zero");
  CHECK(qat::testing::error_lacks([] { qat::parse_rounding("up"); }, {"half_to_even", "half_up", "'up'"}) ==
        "");
}
