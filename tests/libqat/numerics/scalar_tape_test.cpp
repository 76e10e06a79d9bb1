#include "numerics/scalar_tape.h"

#include <cmath>
#include <functional>
#include <limits>

#include "support/catch.h"

namespace {

using namespace qat::detail;
using Formula = std::function<Scalar(const Scalar&, const Scalar&)>;

struct Gradients {
  double first;
  double second;
};

Gradients gradients(const Formula& formula, double a, double b, double seed = 1) {
  ScalarTape tape;
  const auto first = tape.parameter(a);
  const auto second = tape.parameter(b);
  tape.seed(formula(first, second), seed);
  tape.run_backward();
  return {tape.gradient(first), tape.gradient(second)};
}

double slope(const std::function<Scalar(const Scalar&)>& function, double at, double seed = 1) {
  return gradients([&](const Scalar& v, const Scalar&) { return function(v); }, at, 0, seed).first;
}

TEST_CASE("Formulas on the tape have the gradients of central differences") {
  const Formula formulas[] = {
      [](const Scalar& a, const Scalar& b) { return a * b + a / b - b; },
      [](const Scalar& a, const Scalar& b) { return exp2(a - 1) / (exp2(b) - 1) * a; },
      [](const Scalar& a, const Scalar& b) { return log2(a * a + b) * -b; },
      [](const Scalar& a, const Scalar& b) { return 3 - (2 * a) / (b + 0.5); },
  };
  const double a = 1.7;
  const double b = 2.3;
  const double h = 1e-6;
  for (const auto& formula : formulas) {
    const auto value = [&](double x, double y) { return formula(Scalar(x), Scalar(y)).value(); };
    const auto found = gradients(formula, a, b);
    CHECK(found.first == Approx((value(a + h, b) - value(a - h, b)) / (2 * h)).epsilon(1e-7));
    CHECK(found.second == Approx((value(a, b + h) - value(a, b - h)) / (2 * h)).epsilon(1e-7));
  }
}

TEST_CASE("Several results of one tape add up in the gradient of a parameter") {
  ScalarTape tape;
  const auto v = tape.parameter(3);
  const auto square = v * v;
  const auto half = 0.5 * square;
  tape.seed(square, 10);
  tape.seed(half, 100);
  tape.seed(Scalar(7), 1000);  // a constant: nobody gets it
  tape.run_backward();
  CHECK(tape.gradient(v) == 2 * 3 * (10 + 0.5 * 100));
}

TEST_CASE("Steps pass their gradient straight through") {
  CHECK(rounded(2.5).value() == 3);
  CHECK(rounded(-2.5).value() == -3);
  CHECK(rounded_up(2.01).value() == 3);
  CHECK(slope([](const Scalar& v) { return rounded(v); }, 2.5) == 1);
  CHECK(slope([](const Scalar& v) { return rounded_up(v); }, 2.01) == 1);
  CHECK(slope([](const Scalar& v) { return replaced(v, 100); }, 2) == 1);
  CHECK(slope([](const Scalar& v) { return with_gradient_scale(v, 0.25); }, 2) == 0.25);
  CHECK(nearest_power_of_two(Scalar(3)).value() == 4);
  CHECK(slope([](const Scalar& v) { return nearest_power_of_two(v); }, 3) == 4.0 / 3);
  CHECK(slope([](const Scalar& v) { return nearest_power_of_two(v); }, 0) == 0);
}

TEST_CASE("A bounded parameter beyond its bound gets only the gradient that leads back") {
  const auto held = [](const Scalar& v) { return bounded(v, 1, 4); };
  CHECK(held(2).value() == 2);
  CHECK(held(0).value() == 1);
  CHECK(held(9).value() == 4);
  CHECK(std::isnan(held(std::numeric_limits<double>::quiet_NaN()).value()));
  CHECK(slope(held, 2, 5) == 5);
  CHECK(slope(held, 2, -5) == -5);
  for (const double low : {0.0, 1.0}) {
    CHECK(slope(held, low, 5) == 0);    // descent would lower it further
    CHECK(slope(held, low, -5) == -5);  // descent raises it
  }
  for (const double high : {4.0, 9.0}) {
    CHECK(slope(held, high, 5) == 5);
    CHECK(slope(held, high, -5) == 0);
  }
  const auto point = [](const Scalar& v) { return bounded(v, 2, 2); };
  CHECK(slope(point, 2, 5) == 0);
  CHECK(slope(point, 2, -5) == 0);
}

TEST_CASE("A strictly bounded parameter gets no gradient at its bounds") {
  const auto held = [](const Scalar& v) { return bounded(v, 1, 4, /*strict=*/true); };
  CHECK(slope(held, 2, -5) == -5);
  for (const double v : {0.0, 1.0, 4.0, 9.0}) {
    CHECK(slope(held, v, 5) == 0);
    CHECK(slope(held, v, -5) == 0);
  }
}

TEST_CASE("A number held below another gets only the gradient that lowers it") {
  const auto held = [](const Scalar& v) { return held_below(v, 3); };
  CHECK(held(2).value() == 2);
  CHECK(held(5).value() == 3);
  CHECK(slope(held, 3, -5) == -5);
  CHECK(slope(held, 5, 5) == 5);
  CHECK(slope(held, 5, -5) == 0);
}

TEST_CASE("The power of two below is exact, also at a power of two") {
  CHECK(power_of_two_below(4) == 4);
  CHECK(power_of_two_below(std::nextafter(4, 0)) == 2);
  CHECK(power_of_two_below(0.3) == 0.25);
}

}  // namespace
