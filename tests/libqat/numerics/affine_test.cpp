#include <qat/numerics/affine.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.h"

namespace {

constexpr auto kEven = qat::Rounding::kHalfToEven;
constexpr auto kAway = qat::Rounding::kHalfAwayFromZero;

template <qat::Rounding rounding, class T>
T quantize(T x, T scale, T zero_point, T qmin, T qmax) {
  return qat::affine_real(qat::affine_code<rounding>(x, scale, zero_point, qmin, qmax), scale, zero_point);
}

}  // namespace

TEST_CASE("golden V26: codes of int8 with scale one half") {
  const std::vector<float> x{-0.25F, -0.75F, -1.25F, 0.25F, 0.75F, 1.25F, 1.75F, 100, -100};
  const std::vector<float> even{0, -2, -2, 0, 2, 2, 4, 127, -128};
  const std::vector<float> away{-1, -2, -3, 1, 2, 3, 4, 127, -128};
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(x[i]);
    CHECK(qat::affine_code<kEven>(x[i], 0.5F, 0.0F, -128.0F, 127.0F) == even[i]);
    CHECK(qat::affine_code<kAway>(x[i], 0.5F, 0.0F, -128.0F, 127.0F) == away[i]);
  }
  CHECK(qat::affine_code<kEven>(100.0F, 0.5F, 0.0F, -127.0F, 127.0F) == 127.0F);
  CHECK(qat::affine_code<kEven>(-100.0F, 0.5F, 0.0F, -127.0F, 127.0F) == -127.0F);
}

TEST_CASE("golden V27: codes of uint8 with a zero point") {
  const std::vector<float> x{-10, -1, 0, 1, 200};
  const float zero_point = qat::round_to_integer(3.5F, kEven);
  const std::vector<float> codes{0, 2, 4, 6, 255};
  const std::vector<float> reals{-2, -1, 0, 1, 125.5F};
  const float saturated = qat::clamp_code(qat::round_to_integer(300.0F, kEven), 1.0F, 255.0F);
  const std::vector<float> narrow{235, 253, 255, 255, 255};
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float code = qat::affine_code<kEven>(x[i], 0.5F, zero_point, 0.0F, 255.0F);
    CHECK(code == codes[i]);
    CHECK(qat::affine_real(code, 0.5F, zero_point) == reals[i]);
    CHECK(qat::affine_code<kEven>(x[i], 0.5F, saturated, 1.0F, 255.0F) == narrow[i]);
  }
}

TEMPLATE_TEST_CASE("affine numbers keep NaN and saturate infinities", "", float, double) {
  constexpr TestType infinity = std::numeric_limits<TestType>::infinity();
  constexpr TestType nan = std::numeric_limits<TestType>::quiet_NaN();
  CHECK(quantize<kEven, TestType>(infinity, 0.25, 0, -128, 127) == 31.75);
  CHECK(quantize<kEven, TestType>(-infinity, 0.25, 0, -128, 127) == -32);
  CHECK(std::isnan(quantize<kEven, TestType>(nan, 0.25, 0, -128, 127)));
  CHECK_FALSE(qat::affine_passes<TestType>(nan, -128, 127));
  CHECK(qat::affine_passes<TestType>(127, -128, 127));
  CHECK_FALSE(qat::affine_passes<TestType>(128, -128, 127));
  CHECK_FALSE(std::signbit(quantize<kEven, TestType>(TestType(-0.0), 0.25, 0, -128, 127)));
}

TEST_CASE("an element is divided by the scale and not multiplied by its reciprocal") {
  // Multiples of half a step lie near ties, where the two differ for some.
  int different = 0;
  for (int i = 1; i < 4000; ++i) {
    const float x = static_cast<float>(i) * 0.15F;
    const float expected = std::nearbyint(x / 0.3F);
    CHECK(qat::affine_code<kEven>(x, 0.3F, 0.0F, -32768.0F, 32767.0F) == expected);
    if (std::nearbyint(x * (1.0F / 0.3F)) != expected) ++different;
  }
  CHECK(different > 0);
}

TEST_CASE("activations are those of torch") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double v : {-infinity, -3.0, -0.0, 0.0, 1e-300, 2.0, 6.0, 7.0, infinity}) {
    const auto x = torch::tensor(v, torch::kDouble).requires_grad_();
    CAPTURE(v);
    const auto check = [&](const torch::Tensor& y, qat::Activation f) {
      const auto gradient = torch::autograd::grad({y}, {x})[0].item<double>();
      CHECK(qat::activate(v, f.negative_slope, f.upper) == y.item<double>());
      CHECK(qat::activation_slope(v, f.negative_slope, f.upper) == gradient);
    };
    check(x.clone(), {});
    check(torch::relu(x), {0.0});
    check(torch::relu6(x), {0.0, 6.0});
    check(torch::leaky_relu(x, 0.1), {0.1});
  }
  CHECK(std::isnan(qat::activate(std::nan(""), 0.0, 6.0)));
  CHECK(qat::Activation{}.is_identity());
  CHECK_FALSE(qat::Activation{0.0}.is_identity());
}
