#include <qat/numerics/affine.h>
#include <qat/numerics/affine_params.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.h"

using qat::AffineParams;
using qat::IntegerRange;
using qat::PowerOfTwo;
using qat::RangeWidth;
using qat::Rounding;
using qat::Signedness;
using qat::Symmetry;

namespace {

const IntegerRange kInt8;
const IntegerRange kInt8Narrow(8, Signedness::kSigned, RangeWidth::kNarrow);
const IntegerRange kUint8(8, Signedness::kUnsigned);

qat::ValueRange range_of(float min, float max) {
  return {torch::tensor(min), torch::tensor(max)};
}

AffineParams params_of(float min, float max, const IntegerRange& range, Symmetry symmetry,
                       PowerOfTwo power_of_two = PowerOfTwo::kNotRound) {
  return qat::affine_params_from_range(range_of(min, max), range, symmetry, power_of_two);
}

float scale_of(const AffineParams& params) {
  return params.scale.item<float>();
}
int zero_point_of(const AffineParams& params) {
  return params.zero_point.item<int>();
}

/// real = scale * (code - zero_point) of the code of x.
float quantized(float x, const AffineParams& params) {
  const auto zero_point = static_cast<float>(zero_point_of(params));
  const float code = qat::affine_code<Rounding::kHalfToEven>(x, scale_of(params), zero_point,
                                                             static_cast<float>(params.range.qmin()),
                                                             static_cast<float>(params.range.qmax()));
  return qat::affine_real(code, scale_of(params), zero_point);
}

bool is_close(float value, float expected) {
  return std::fabs(value - expected) <= 1e-6F * std::fabs(expected);
}

}  // namespace

TEST_CASE("Symmetric scales divide the absolute maximum by qmax", "[numerics]") {
  CHECK(scale_of(params_of(-2.0F, 1.0F, kInt8, Symmetry::kSymmetric)) == 2.0F / 127.0F);
  CHECK(scale_of(params_of(-2.0F, 5.0F, kInt8Narrow, Symmetry::kSymmetric)) == 5.0F / 127.0F);
  CHECK(scale_of(params_of(1.0F, 3.0F, IntegerRange(4, Signedness::kSigned), Symmetry::kSymmetric)) ==
        3.0F / 7.0F);
  CHECK(zero_point_of(params_of(-2.0F, 1.0F, kInt8, Symmetry::kSymmetric)) == 0);
}

TEST_CASE("Symmetric scales of unsigned codes divide the maximum and let negative data saturate",
          "[numerics]") {
  const auto params = params_of(-7.0F, 2.0F, kUint8, Symmetry::kSymmetric);
  CHECK(scale_of(params) == 2.0F / 255.0F);
  CHECK(zero_point_of(params) == 0);
  CHECK(quantized(-7.0F, params) == 0.0F);
  CHECK(scale_of(params_of(-7.0F, -1.0F, kUint8, Symmetry::kSymmetric)) == qat::kZeroRangeScale);
}

TEST_CASE("Symmetric codes without a 0 are refused", "[numerics]") {
  const IntegerRange narrow_unsigned(8, Signedness::kUnsigned, RangeWidth::kNarrow);
  CHECK_THROWS_AS(params_of(0.0F, 1.0F, narrow_unsigned, Symmetry::kSymmetric), c10::ValueError);
  CHECK(zero_point_of(params_of(0.0F, 1.0F, narrow_unsigned, Symmetry::kAffine)) == 1);
}

TEST_CASE("Affine params are set by proportion for ranges of any size", "[numerics]") {
  const auto params = params_of(-1.0F, 3.0F, kUint8, Symmetry::kAffine);
  CHECK(scale_of(params) == 4.0F / 255.0F);
  CHECK(zero_point_of(params) == 64);  // 63.75
  CHECK(zero_point_of(params_of(-1e30F, 3e30F, kUint8, Symmetry::kAffine)) == 64);
  CHECK(zero_point_of(params_of(-1e-15F, 3e-15F, kUint8, Symmetry::kAffine)) == 64);
  CHECK(zero_point_of(params_of(-1.0F, 3.0F, kInt8, Symmetry::kAffine)) == -64);  // -64.25
}

TEST_CASE("The widest float32 range still has a finite scale", "[numerics]") {
  const float largest = std::numeric_limits<float>::max();
  const auto affine = params_of(-largest, largest, kUint8, Symmetry::kAffine);
  CHECK(is_close(scale_of(affine), largest / 127.5F));
  CHECK(zero_point_of(affine) == 128);
  const IntegerRange one_bit(1, Signedness::kUnsigned);
  CHECK(scale_of(params_of(-largest, largest, one_bit, Symmetry::kAffine)) == largest);
  CHECK(scale_of(params_of(-largest, largest, one_bit, Symmetry::kAffine, PowerOfTwo::kCeil)) == 0x1p127F);
}

TEST_CASE("Tiny ranges use the scale floor", "[numerics]") {
  CHECK(scale_of(params_of(-1e-30F, 0.0F, kInt8, Symmetry::kSymmetric)) == qat::kScaleFloor);
  CHECK(scale_of(params_of(-1e-44F, 1e-44F, kInt8, Symmetry::kAffine)) == qat::kScaleFloor);
  CHECK(qat::kScaleFloor * qat::kScaleFloor >= std::numeric_limits<float>::min());
}

TEST_CASE("Half weights below the half type's range keep a float32 scale", "[numerics]") {
  const auto weights = torch::tensor({1e-6F, 5e-7F, -1e-6F}).to(torch::kHalf);
  const auto params =
      qat::affine_params_from_range({weights.min(), weights.max()}, kInt8Narrow, Symmetry::kSymmetric);
  CHECK(params.scale.scalar_type() == torch::kFloat);
  CHECK(is_close(scale_of(params), 7.97857e-9F));
}

TEST_CASE("The even zero point is the nearest even code inside the range", "[numerics]") {
  const IntegerRange signed_narrow(8, Signedness::kSigned, RangeWidth::kNarrow);
  const IntegerRange unsigned_narrow(8, Signedness::kUnsigned, RangeWidth::kNarrow);
  const auto even = Symmetry::kAffineEvenZero;
  CHECK(zero_point_of(params_of(-1.0F, 1.0F, kUint8, even)) == 128);    // 127.5
  CHECK(zero_point_of(params_of(-63.2F, 191.8F, kUint8, even)) == 64);  // 63.2
  CHECK(zero_point_of(params_of(-62.9F, 192.1F, kUint8, even)) == 62);  // 62.9
  CHECK(zero_point_of(params_of(0.0F, 5.0F, kUint8, even)) == 0);
  CHECK(zero_point_of(params_of(-5.0F, 0.0F, kUint8, even)) == 254);         // 255 is odd
  CHECK(zero_point_of(params_of(0.0F, 5.0F, signed_narrow, even)) == -126);  // -127 is odd
  CHECK(zero_point_of(params_of(-5.0F, 0.0F, signed_narrow, even)) == 126);  // 127 is odd
  CHECK(zero_point_of(params_of(0.0F, 5.0F, unsigned_narrow, even)) == 2);   // 1 is odd
  CHECK(zero_point_of(params_of(-5.0F, 0.0F, IntegerRange(1, Signedness::kUnsigned), even)) == 0);
}

TEST_CASE("The zero point follows from the rounded scale", "[numerics]") {
  // 4 / 255 = 0.0157 becomes 2^-6 = 0.015625: 1 / 2^-6 = 64.
  const auto down = params_of(-1.0F, 3.0F, kUint8, Symmetry::kAffine, PowerOfTwo::kFloor);
  CHECK(scale_of(down) == 0x1p-6F);
  CHECK(zero_point_of(down) == 64);
  // 2^-5: 1 / 2^-5 = 32.
  const auto up = params_of(-1.0F, 3.0F, kUint8, Symmetry::kAffine, PowerOfTwo::kCeil);
  CHECK(scale_of(up) == 0x1p-5F);
  CHECK(zero_point_of(up) == 32);
  // A scale rounded down can push the zero point out of the range: 3 / 2^-7 = 384.
  const auto clamped = params_of(-3.0F, 0.0F, kUint8, Symmetry::kAffine, PowerOfTwo::kFloor);
  CHECK(scale_of(clamped) == 0x1p-7F);
  CHECK(zero_point_of(clamped) == 255);
}

TEST_CASE("Zero has an exact code in every affine range", "[numerics]") {
  torch::manual_seed(1);
  const auto ends = (torch::randn({200, 2}) * torch::exp2(torch::randint(-20, 20, {200, 1}))).contiguous();
  for (const Symmetry symmetry : {Symmetry::kSymmetric, Symmetry::kAffine, Symmetry::kAffineEvenZero}) {
    for (const PowerOfTwo rounding :
         {PowerOfTwo::kNotRound, PowerOfTwo::kRound, PowerOfTwo::kCeil, PowerOfTwo::kFloor}) {
      for (const IntegerRange& range : {kInt8, kInt8Narrow, kUint8, IntegerRange(3, Signedness::kSigned)}) {
        for (std::int64_t i = 0; i < ends.size(0); ++i) {
          const float a = ends[i][0].item<float>();
          const float b = ends[i][1].item<float>();
          const auto params = params_of(std::min(a, b), std::max(a, b), range, symmetry, rounding);
          const auto zero_point = zero_point_of(params);
          REQUIRE(scale_of(params) > 0.0F);
          REQUIRE(zero_point >= range.qmin());
          REQUIRE(zero_point <= range.qmax());
          REQUIRE(quantized(0.0F, params) == 0.0F);
          if (symmetry == Symmetry::kAffineEvenZero) REQUIRE(zero_point % 2 == 0);
        }
      }
    }
  }
}

TEST_CASE("Ranges per channel give the params of each channel", "[numerics]") {
  const qat::ValueRange ranges{torch::tensor({-1.0F, 0.0F, 2.0F}), torch::tensor({1.0F, 0.0F, 5.0F})};
  const auto params =
      qat::affine_params_from_range(ranges, kUint8, Symmetry::kAffine, PowerOfTwo::kNotRound, -2);
  CHECK(params.axis == -2);
  CHECK(params.range == kUint8);
  CHECK(torch::equal(params.scale, torch::tensor({2.0F / 255.0F, qat::kZeroRangeScale, 5.0F / 255.0F})));
  CHECK(torch::equal(params.zero_point, torch::tensor({128, 0, 0}, torch::kInt)));
}

TEST_CASE("Affine params of no channel are empty", "[numerics]") {
  const auto none = torch::empty({0});
  const auto params =
      qat::affine_params_from_range({none, none}, kInt8, Symmetry::kAffine, PowerOfTwo::kNotRound, 0);
  CHECK(params.scale.sizes() == torch::IntArrayRef{0});
  CHECK(params.zero_point.scalar_type() == torch::kInt);
}

TEST_CASE("Affine params carry no gradient and read strided ranges of any type", "[numerics]") {
  const auto both =
      torch::tensor({-1.0, 1.0, -2.0, 3.0}, torch::kDouble).reshape({2, 2}).set_requires_grad(true);
  const auto params = qat::affine_params_from_range({both.select(1, 0), both.select(1, 1)}, kInt8,
                                                    Symmetry::kSymmetric, PowerOfTwo::kNotRound, 0);
  CHECK_FALSE(params.scale.requires_grad());
  CHECK(torch::equal(params.scale, torch::tensor({1.0F / 127.0F, 3.0F / 127.0F})));
}

TEST_CASE("Bad ranges are refused", "[numerics]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto& [min, max] :
       {std::pair{nan, 1.0F}, {0.0F, nan}, {-infinity, 1.0F}, {0.0F, infinity}, {2.0F, 1.0F}}) {
    CAPTURE(min, max);
    CHECK_THROWS_AS(params_of(min, max, kInt8, Symmetry::kSymmetric), c10::ValueError);
  }
  const auto one = torch::ones({});
  const auto two = torch::ones({2});
  const auto check = [](const torch::Tensor& min, const torch::Tensor& max,
                        std::optional<std::int64_t> axis) {
    for (const auto& compute : {qat::affine_params_from_range, qat::affine_params_from_range_unchecked}) {
      CHECK_THROWS_AS(compute({min, max}, kInt8, Symmetry::kAffine, PowerOfTwo::kNotRound, axis),
                      c10::ValueError);
    }
  };
  check(one, two, 0);
  check(torch::ones({2, 1}), torch::ones({2, 1}), 0);
  check(two, two, std::nullopt);
  check(one, one, 0);
  check(torch::ones({}, torch::kInt), torch::ones({}, torch::kInt), std::nullopt);
  check({}, one, std::nullopt);
}

TEST_CASE("Unchecked params stay finite and in range whatever the values are", "[numerics]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const qat::ValueRange ranges{torch::tensor({nan, 0.0F, -infinity, -infinity, nan, -1.0F}),
                               torch::tensor({1.0F, infinity, infinity, 0.0F, nan, 1.0F})};
  for (const Symmetry symmetry : {Symmetry::kSymmetric, Symmetry::kAffine, Symmetry::kAffineEvenZero}) {
    const auto params =
        qat::affine_params_from_range_unchecked(ranges, kInt8, symmetry, PowerOfTwo::kNotRound, 0);
    CHECK(params.scale.isfinite().all().item<bool>());
    CHECK((params.scale > 0).all().item<bool>());
    CHECK((params.zero_point >= -128).all().item<bool>());
    CHECK((params.zero_point <= 127).all().item<bool>());
    CHECK(params.scale[5].item<float>() == scale_of(params_of(-1.0F, 1.0F, kInt8, symmetry)));
  }
}

TEST_CASE("Tensor operations give the bits of the scalar formula", "[numerics]") {
  torch::manual_seed(2);
  const float infinity = std::numeric_limits<float>::infinity();
  const auto magnitude = torch::exp2(torch::randint(-140, 127, {2000}).to(torch::kDouble));
  const auto a = (torch::randn({2000}, torch::kDouble) * magnitude).to(torch::kFloat);
  const auto b = torch::where(torch::rand({2000}) < 0.2, -a, a * torch::randn({2000}));
  const auto special = torch::tensor({0.0F, -1.0F, 1.0F, infinity, -infinity, std::nanf(""), 127.0F,
                                      0x1.6a09e6p3F * 127, 0x1.6a09e8p3F * 127});
  const auto ends = torch::stack({torch::cat({a, special}), torch::cat({b, special.flip(0)})});
  const qat::ValueRange ranges{ends.amin(0), ends.amax(0)};
  for (const Symmetry symmetry : {Symmetry::kSymmetric, Symmetry::kAffine, Symmetry::kAffineEvenZero}) {
    for (const PowerOfTwo rounding :
         {PowerOfTwo::kNotRound, PowerOfTwo::kRound, PowerOfTwo::kCeil, PowerOfTwo::kFloor}) {
      for (const IntegerRange& range :
           {kInt8, kInt8Narrow, kUint8, IntegerRange(16, Signedness::kUnsigned)}) {
        CAPTURE(qat::to_string(symmetry), qat::to_string(rounding), range.to_string());
        const auto scalar = qat::affine_params_from_range_unchecked(ranges, range, symmetry, rounding, 0);
        const auto tensor =
            qat::detail::affine_params_by_tensor_operations(ranges, range, symmetry, rounding);
        CHECK(torch::equal(scalar.scale, tensor.scale));
        CHECK(torch::equal(scalar.zero_point, tensor.zero_point));
        CHECK(tensor.scale.scalar_type() == torch::kFloat);
        CHECK(tensor.zero_point.scalar_type() == torch::kInt);
      }
    }
  }
}

TEST_CASE("B27: every power of two is its own power of two", "[numerics]") {
  for (int exponent = -149; exponent <= 127; ++exponent) {
    const float value = std::ldexp(1.0F, exponent);
    for (const PowerOfTwo rounding :
         {PowerOfTwo::kNotRound, PowerOfTwo::kRound, PowerOfTwo::kCeil, PowerOfTwo::kFloor}) {
      CAPTURE(exponent, qat::to_string(rounding));
      REQUIRE(qat::round_to_power_of_two(value, rounding) == value);
    }
  }
}

TEST_CASE("B27: the neighbours of a power of two round to it or past it", "[numerics]") {
  for (int exponent = -125; exponent <= 126; ++exponent) {
    const float value = std::ldexp(1.0F, exponent);
    const float above = std::nextafter(value, INFINITY);
    const float below = std::nextafter(value, 0.0F);
    CAPTURE(exponent);
    REQUIRE(qat::round_to_power_of_two(above, PowerOfTwo::kCeil) == 2.0F * value);
    REQUIRE(qat::round_to_power_of_two(above, PowerOfTwo::kFloor) == value);
    REQUIRE(qat::round_to_power_of_two(above, PowerOfTwo::kRound) == value);
    REQUIRE(qat::round_to_power_of_two(below, PowerOfTwo::kCeil) == value);
    REQUIRE(qat::round_to_power_of_two(below, PowerOfTwo::kFloor) == value / 2.0F);
    REQUIRE(qat::round_to_power_of_two(below, PowerOfTwo::kRound) == value);
    // The floats on both sides of the geometric mean of value and 2 value: v^2 against 2 value^2, exact in
    // double.
    float mean = std::ldexp(1.41421356F, exponent);
    while (static_cast<double>(mean) * mean > 2.0 * static_cast<double>(value) * value)
      mean = std::nextafter(mean, 0.0F);
    REQUIRE(qat::round_to_power_of_two(mean, PowerOfTwo::kRound) == value);
    REQUIRE(qat::round_to_power_of_two(std::nextafter(mean, INFINITY), PowerOfTwo::kRound) == 2.0F * value);
  }
}

TEST_CASE("Powers of two of sub-normal and special numbers", "[numerics]") {
  CHECK(qat::round_to_power_of_two(3e-45F, PowerOfTwo::kCeil) == 0x1p-148F);    // 2 * 2^-149
  CHECK(qat::round_to_power_of_two(4.2e-45F, PowerOfTwo::kCeil) == 0x1p-147F);  // 3 * 2^-149
  CHECK(qat::round_to_power_of_two(4.2e-45F, PowerOfTwo::kFloor) == 0x1p-148F);
  CHECK(qat::round_to_power_of_two(4.2e-45F, PowerOfTwo::kRound) == 0x1p-147F);
  CHECK(qat::round_to_power_of_two(0.0F, PowerOfTwo::kCeil) == 0.0F);
  CHECK(std::isnan(qat::round_to_power_of_two(-1.0F, PowerOfTwo::kRound)));
  CHECK(std::isnan(qat::round_to_power_of_two(std::nanf(""), PowerOfTwo::kFloor)));
  CHECK(qat::round_to_power_of_two(std::numeric_limits<float>::infinity(), PowerOfTwo::kRound) ==
        std::numeric_limits<float>::infinity());
  CHECK(qat::round_to_power_of_two(0.3F, PowerOfTwo::kNotRound) == 0.3F);
}

TEST_CASE("Names of symmetries and roundings are read back in any case", "[numerics]") {
  for (const Symmetry symmetry : {Symmetry::kSymmetric, Symmetry::kAffine, Symmetry::kAffineEvenZero}) {
    CHECK(qat::parse_symmetry(qat::to_string(symmetry)) == symmetry);
  }
  for (const PowerOfTwo rounding :
       {PowerOfTwo::kNotRound, PowerOfTwo::kRound, PowerOfTwo::kCeil, PowerOfTwo::kFloor}) {
    CHECK(qat::parse_power_of_two(qat::to_string(rounding)) == rounding);
  }
  CHECK(qat::parse_power_of_two("CEIL") == PowerOfTwo::kCeil);
  CHECK(qat::parse_symmetry("Affine_Even_Zero") == Symmetry::kAffineEvenZero);
  try {
    qat::parse_power_of_two("ceiling");
    FAIL("accepted");
  } catch (const c10::ValueError& error) {
    const std::string text = error.what_without_backtrace();
    CHECK(text.find("'ceiling'") != std::string::npos);
    CHECK(text.find("notround, round, ceil, floor") != std::string::npos);
  }
}

TEST_CASE("case 24: a transposed convolution has its output channels on axis 1", "[numerics]") {
  const auto weight = torch::tensor({1.0F, 10.0F, 100.0F, 2.0F, 20.0F, 200.0F}).reshape({2, 3, 1, 1});
  const auto params = qat::affine_params_from_range(qat::finite_range(weight, 1), kInt8Narrow,
                                                    Symmetry::kSymmetric, PowerOfTwo::kNotRound, 1);
  CHECK(torch::equal(params.scale, torch::tensor({2.0F / 127.0F, 20.0F / 127.0F, 200.0F / 127.0F})));
}

TEST_CASE("case 49: a folded range keeps min below max", "[numerics]") {
  const auto params = params_of(-6.0F, 2.0F, kUint8, Symmetry::kAffine);
  CHECK(scale_of(params) == 8.0F / 255.0F);
  CHECK(zero_point_of(params) == 191);  // 191.25
  CHECK_THROWS_AS(params_of(2.0F, -6.0F, kUint8, Symmetry::kAffine), c10::ValueError);
}

TEST_CASE("case 67: scale and clamp come from one range object", "[numerics]") {
  const auto params =
      params_of(-1.0F, 1.0F, IntegerRange(4, Signedness::kSigned, RangeWidth::kNarrow), Symmetry::kSymmetric);
  CHECK(scale_of(params) == 1.0F / 7.0F);
  CHECK(is_close(quantized(0.3F, params), 0.2857143F));
  CHECK(is_close(quantized(1.0F, params), 1.0F));
}

TEST_CASE("case 93: zero points on a tie are the same for every size of a symmetric range", "[numerics]") {
  for (const float bound : {1.0F, 3.0F, 0.1F, 0.7F, 1e-10F, 3e20F}) {
    const auto params = params_of(-bound, bound, kUint8, Symmetry::kAffine);
    CAPTURE(bound);
    CHECK(zero_point_of(params) == 128);  // 127.5 to even
    CHECK(quantized(0.0F, params) == 0.0F);
    const float scale = scale_of(params);
    for (const float part : {-0.99F, -0.5F, -0.123F, 0.31F, 0.77F, 0.99F}) {
      CHECK(std::fabs(quantized(part * bound, params) - part * bound) <= 0.5001F * scale);
    }
    CHECK(std::fabs(quantized(-bound, params) + bound) <= scale);
    CHECK(std::fabs(quantized(bound, params) - bound) <= scale);
  }
}

TEST_CASE("case 95: a range of 7 bits saturates at 7 bits", "[numerics]") {
  const auto params = params_of(-1.0F, 1.0F, IntegerRange(7, Signedness::kUnsigned), Symmetry::kAffine);
  CHECK(scale_of(params) == 2.0F / 127.0F);
  CHECK(zero_point_of(params) == 64);
  CHECK(is_close(quantized(2.5F, params), 0.9921260F));
}

TEST_CASE("golden V34: fixed scales cover what nnabla's scale clips", "[numerics]") {
  const auto symmetric = params_of(0.0F, 4.0F, kInt8, Symmetry::kSymmetric);
  CHECK(is_close(scale_of(symmetric), 4.0F / 127.0F));
  const auto affine = params_of(0.0F, 4.0F, kInt8, Symmetry::kAffine);
  CHECK(is_close(scale_of(affine), 4.0F / 255.0F));
  CHECK(zero_point_of(affine) == -128);
  const std::vector<float> x{0.0F, 1.0F, 2.0F, 4.0F};
  const std::vector<float> symmetric_values{0.0F, 1.0078740F, 2.0157480F, 4.0F};
  // 2 is half-way between two codes for the exact scale; for the float32 scale 2 / (4 / 255) is 127.49999.
  const std::vector<float> affine_values{0.0F, 1.0039216F, 1.992157F, 4.0F};
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(x[i]);
    CHECK(is_close(quantized(x[i], symmetric), symmetric_values[i]));
    CHECK(is_close(quantized(x[i], affine), affine_values[i]));
  }
}
