#include <qat/numerics/elementary.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.h"

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
using qat::ClipReceiver;

}  // namespace

TEST_CASE("golden V1: round goes half away from zero") {
  const std::vector<float> x{-2.5F, -1.5F, -0.5F, 0.5F, 1.5F, 2.5F, 0.49999997F};
  const std::vector<float> expected{-3, -2, -1, 1, 2, 3, 0};
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(qat::round_to_integer<qat::Rounding::kHalfAwayFromZero>(x[i]) == expected[i]);
  }
}

TEST_CASE("golden V2: clip with learnable bounds") {
  const std::vector<float> x{-2, -1, 0, 1, 2, kNan};
  const std::vector<float> y{-1, -1, 0, 1, 1, -1};
  const std::vector<ClipReceiver> receivers{ClipReceiver::kLower, ClipReceiver::kLower, ClipReceiver::kInput,
                                            ClipReceiver::kUpper, ClipReceiver::kUpper, ClipReceiver::kNone};
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(x[i]);
    CHECK(qat::clip(x[i], -1.0F, 1.0F) == y[i]);
    CHECK(qat::clip_receiver(x[i], -1.0F, 1.0F) == receivers[i]);
  }
  for (const float v : {-2.0F, 0.0F, 2.0F}) {
    CHECK(qat::clip(v, 1.0F, -1.0F) == -1.0F);
    CHECK(qat::clip_receiver(v, 1.0F, -1.0F) == ClipReceiver::kUpper);
    CHECK(qat::clip(v, 0.0F, 0.0F) == 0.0F);
    CHECK(qat::clip_receiver(v, 0.0F, 0.0F) == ClipReceiver::kUpper);
  }
}

TEST_CASE("golden V3: clip with constant bounds has slope zero on them") {
  const std::vector<float> x{-2, -1, 0, 1, 2};
  const std::vector<float> y{-1, -1, 0, 1, 1};
  const std::vector<float> slope{0, 0, 1, 0, 0};
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(qat::clip(x[i], -1.0F, 1.0F) == y[i]);
    CHECK(qat::clip_slope(x[i], -1.0F, 1.0F) == slope[i]);
  }
}

TEST_CASE("golden V4: sign and abs and relu and powers of two at their corners") {
  const std::vector<float> x{-1, 0, -0.0F, 1, kNan};
  const std::vector<float> sign{-1, 1, 1, 1, 1};
  const std::vector<float> abs_slope{-1, 1, 1, 1, 1};
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(qat::sign(x[i]) == sign[i]);
    CHECK(qat::abs_slope(x[i]) == abs_slope[i]);
  }
  CHECK(qat::sign(0.0F, 0.5F) == 0.5F);
  CHECK(qat::relu(-1.0F) == 0.0F);
  CHECK(qat::relu(kNan) == 0.0F);
  CHECK(qat::relu(1e-30F) == 1e-30F);
  CHECK(qat::relu_slope(-1.0F) == 0.0F);
  CHECK(qat::relu_slope(0.0F) == 0.0F);
  CHECK(qat::relu_slope(kNan) == 0.0F);
  CHECK(qat::relu_slope(1e-30F) == 1.0F);
  CHECK(qat::exp2_slope(0.0F) == Approx(0.6931472));
  CHECK(qat::exp2_slope(1.0F) == Approx(1.3862944));
  CHECK(qat::exp2_slope(3.0F) == Approx(5.5451775));
}

TEST_CASE("golden V5: the nearest power of two and its slope") {
  const std::vector<float> x{0.7F, 0.71F, 1.41F, 1.5F, 3.0F};
  const std::vector<float> y{0.5F, 1, 1, 2, 4};
  const std::vector<double> slope{0.714285731, 1.40845072, 0.709219873, 1.33333337, 1.33333337};
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(qat::nearest_power_of_two(x[i]) == y[i]);
    CHECK(qat::nearest_power_of_two(-x[i]) == y[i]);
    CHECK(qat::nearest_power_of_two_slope(x[i]) == Approx(slope[i]).epsilon(1e-6));
  }
}

TEST_CASE("the nearest power of two is exact around the square root of two") {
  CHECK(qat::nearest_power_of_two(0.70710677F) == 0.5F);
  CHECK(qat::nearest_power_of_two(0.70710683F) == 1.0F);
  CHECK(qat::nearest_power_of_two(1.4142135F) == 1.0F);
  CHECK(qat::nearest_power_of_two(1.4142137F) == 2.0F);
  CHECK(qat::nearest_power_of_two(1.4142135623730949) == 1.0);
  CHECK(qat::nearest_power_of_two(1.4142135623730951) == 2.0);
}

TEST_CASE("the nearest power of two agrees with frexp for every exponent") {
  for (int exponent = -149; exponent < 128; ++exponent) {
    for (const float factor : {1.0F, 1.25F, 1.4142135F, 1.4142137F, 1.75F, 1.9999999F}) {
      const float v = std::ldexp(factor, exponent);
      int e = 0;
      const double mantissa = std::frexp(static_cast<double>(v), &e);
      const auto expected = static_cast<float>(std::ldexp(1.0, mantissa * mantissa < 0.5 ? e - 1 : e));
      CAPTURE(v);
      CHECK(qat::nearest_power_of_two(v) == expected);
      if (std::isfinite(expected)) CHECK(qat::nearest_power_of_two(static_cast<double>(v)) == expected);
    }
  }
}

TEST_CASE("the nearest power of two of zero and of what is not finite") {
  CHECK(qat::nearest_power_of_two(0.0F) == 0.0F);
  CHECK(qat::nearest_power_of_two(-0.0F) == 0.0F);
  CHECK(qat::nearest_power_of_two(kInfinity) == kInfinity);
  CHECK(qat::nearest_power_of_two(-kInfinity) == kInfinity);
  CHECK(std::isnan(qat::nearest_power_of_two(kNan)));
  CHECK(qat::nearest_power_of_two_slope(0.0F) == 0.0F);
  CHECK(qat::nearest_power_of_two_slope(-0.0F) == 0.0F);
  CHECK(qat::nearest_power_of_two_slope(-3.0F) == Approx(-4.0 / 3.0));
}
