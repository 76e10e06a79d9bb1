// The width that a quantizer's parameters ask for, with its gradient.
#include "libqat/quantizers/quantizer_run.h"
#include <qat/quantizers/parametric_quantizer.h>

#include <cmath>

#include "support/catch.h"
#include "support/errors.h"

namespace {

using qat::Learnable;
using qat::ParametricKind;
using qat::ParametricOptions;
using qat::ParametricQuantizer;
using qat::testing::error_lacks;
using qat::testing::number;
using qat::testing::set;

/// The width of a quantizer, and its derivatives by its two parameters.
struct BitCount {
  double bits;
  double d_first;   ///< by d or xmin.
  double d_second;  ///< by xmax.
};

BitCount count_of(const ParametricQuantizer& quantizer) {
  const auto parameters = quantizer.named_parameters();
  const auto bits = quantizer.bit_count();
  const auto smaller = parameters[parameters.contains("d") ? "d" : "xmin"];
  const auto gradients = torch::autograd::grad({bits}, {smaller, parameters["xmax"]});
  return {bits.item<double>(), gradients[0].sum().item<double>(), gradients[1].sum().item<double>()};
}

ParametricOptions wide_bounds(ParametricKind kind, bool is_signed, bool with_zero) {
  return {.kind = kind,
          .is_signed = is_signed,
          .with_zero = with_zero,
          .d = Learnable{0.125, 0x1p-30, 0x1p30},
          .xmax = Learnable{1, 0x1p-30, 0x1p30},
          .xmin = Learnable{0.125, 0x1p-30, 0x1p30}};
}

BitCount uniform(double xmax, double d, bool is_signed = true) {
  const ParametricQuantizer quantizer(wide_bounds(ParametricKind::kFpDXmax, is_signed, true));
  set(quantizer, "d", d);
  set(quantizer, "xmax", xmax);
  return count_of(quantizer);
}

BitCount power_of_two(double xmax, double xmin, bool is_signed = true, bool with_zero = false) {
  const ParametricQuantizer quantizer(wide_bounds(ParametricKind::kPow2XminXmax, is_signed, with_zero));
  set(quantizer, "xmin", xmin);
  set(quantizer, "xmax", xmax);
  return count_of(quantizer);
}

}  // namespace

TEST_CASE("golden V39: widths of uniform quantizers and their gradients") {
  CHECK(uniform(0.875, 0.125).bits == 4);
  CHECK(uniform(1.0, 0.125).bits == 5);
  CHECK(uniform(0.9, 0.25).bits == 4);
  CHECK(uniform(0.25, 0.25).bits == 2);
  const auto exact = uniform(0.9, 0.125);
  CHECK(exact.bits == 4);
  CHECK(exact.d_second == Approx(1.442695).epsilon(1e-6));
  CHECK(exact.d_first == Approx(-10.387404).epsilon(1e-6));
  const auto rounded = uniform(1.7, 0.3);
  CHECK(rounded.bits == 4);
  CHECK(rounded.d_second == Approx(0.7213475).epsilon(1e-6));
  CHECK(rounded.d_first == Approx(-4.087636).epsilon(1e-6));
}

TEST_CASE("golden V39: widths of power-of-two quantizers") {
  CHECK(power_of_two(1.0, 1.0 / 8).bits == 3);
  CHECK(power_of_two(1.0, 1.0 / 16).bits == 4);
  CHECK(power_of_two(1.0, 1.0 / 128).bits == 4);
}

TEST_CASE("unsigned quantizers have no sign bit, a zero among powers of two takes a code") {
  CHECK(uniform(0.875, 0.125, false).bits == 3);
  CHECK(uniform(255.0, 1.0, false).bits == 8);
  CHECK(uniform(256.0, 1.0, false).bits == 9);
  CHECK(power_of_two(1.0, 1.0 / 8, false).bits == 2);
  CHECK(power_of_two(1.0, 1.0 / 8, false, true).bits == 3);
  CHECK(power_of_two(1.0, 1.0 / 4, false, true).bits == 2);
  CHECK(power_of_two(1.0, 1.0 / 4, true, true).bits == 3);
}

TEST_CASE("widths are exact where a logarithm of floats is not") {
  for (int n = 1; n <= 23; ++n) {
    const double codes = std::ldexp(1.0, n);
    CAPTURE(n);
    CHECK(uniform(codes - 1.0, 1.0, false).bits == n);
    CHECK(uniform(codes, 1.0, false).bits == n + 1);
  }
  CHECK(uniform(2.5, 1.0, false).bits == 2);   // 2.5 -> 3, half away from zero
  CHECK(uniform(0.49, 1.0, false).bits == 1);  // only the code 0, but a width is never below 1
}

TEST_CASE("the fewest bits take the gradient") {
  for (const auto& count : {uniform(0.25, 0.25), uniform(0.1, 0.25), power_of_two(1.0, 1.0),
                            power_of_two(0.5, 1.0), power_of_two(1.0, 1.0, true, true)}) {
    CHECK(count.d_first == 0.0);
    CHECK(count.d_second == 0.0);
  }
  CHECK(uniform(0.1, 0.25).bits == 2);
  CHECK(power_of_two(0.5, 1.0).bits == 1);
  CHECK(power_of_two(1.0, 1.0, true, true).bits == 2);
}

TEST_CASE("the gradients are those of the formulas without rounding") {
  // At parameters that are powers of two, and codes that are whole, rounding changes nothing.
  const double h = 1e-6;
  const auto smooth_uniform = [](double xmax, double d) { return std::log2(xmax / d + 1.0) + 1.0; };
  const auto fine = uniform(2.5, 0.125);
  CHECK(fine.d_second ==
        Approx((smooth_uniform(2.5 + h, 0.125) - smooth_uniform(2.5 - h, 0.125)) / (2 * h)).epsilon(1e-6));
  CHECK(fine.d_first ==
        Approx((smooth_uniform(2.5, 0.125 + h) - smooth_uniform(2.5, 0.125 - h)) / (2 * h)).epsilon(1e-6));
  for (const bool with_zero : {false, true}) {
    const auto smooth = [with_zero](double xmax, double xmin) {
      return std::log2(std::log2(xmax / xmin) + 1.0 + (with_zero ? 1 : 0)) + 1.0;
    };
    const auto doubled = power_of_two(2.0, 0.125, true, with_zero);
    CHECK(doubled.d_second ==
          Approx((smooth(2.0 + h, 0.125) - smooth(2.0 - h, 0.125)) / (2 * h)).epsilon(1e-6));
    CHECK(doubled.d_first ==
          Approx((smooth(2.0, 0.125 + h) - smooth(2.0, 0.125 - h)) / (2 * h)).epsilon(1e-6));
  }
}

TEST_CASE("the gradient of a power-of-two width is that of the raw parameters") {
  // 1.8 -> 2, 0.1 -> 1/8: k = 4.
  const auto count = power_of_two(1.8, 0.1);
  const double ln2 = std::log(2.0);
  CHECK(count.bits == 4);
  CHECK(count.d_second == Approx(1.0 / (ln2 * ln2 * 5.0 * 1.8)));
  CHECK(count.d_first == Approx(-1.0 / (ln2 * ln2 * 5.0 * 0.1)));
}

TEST_CASE("the width of channels is that of the widest, which alone has a gradient") {
  auto options = wide_bounds(ParametricKind::kFpDXmax, true, true);
  options.axis = 0;
  options.channels = 2;
  const ParametricQuantizer quantizer(options);
  set(quantizer, "d", torch::tensor({0.25F, 0.125F}));
  set(quantizer, "xmax", torch::tensor({0.9F, 1.7F}));
  const auto bits = quantizer.bit_count();
  CHECK(bits.item<double>() == 5);
  const auto gradient = torch::autograd::grad({bits}, {quantizer.named_parameters()["xmax"]})[0];
  CHECK(gradient[0].item<double>() == 0.0);
  CHECK(gradient[1].item<double>() > 0.0);
}

TEST_CASE("a learned width counts as it is rounded") {
  ParametricQuantizer quantizer({.kind = ParametricKind::kFpBXmax});
  for (const double n : {3.4, 3.5, 7.0}) {
    set(quantizer, "n", n);
    const auto bits = quantizer.bit_count();
    CHECK(bits.item<double>() == std::round(n));
    CHECK(torch::autograd::grad({bits}, {quantizer.named_parameters()["n"]})[0].item<double>() == 1.0);
  }
}

TEST_CASE("a width has a limit, unless the quantizer is compatible") {
  ParametricQuantizer quantizer;
  quantizer.limit_bits(3);
  CHECK(quantizer.bits() == 3);
  CHECK(quantizer.bit_count().item<double>() == 6);  // xmax 1, d 2^-4 ask for it still
  CHECK(error_lacks([&] { quantizer.limit_bits(1); }, {"fp_d_xmax", "limit of 1 bits", "2 to 16"}) == "");
  CHECK(error_lacks([&] { quantizer.limit_bits(17); }, {"limit of 17 bits"}) == "");
  ParametricQuantizer compatible({.compatible = true});
  CHECK(error_lacks([&] { compatible.limit_bits(3); },
                    {"fp_d_xmax", "limit of 3 bits", "compatible = false"}) == "");
}
