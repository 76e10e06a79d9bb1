#include <qat/numerics/value_range.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "support/catch.h"

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

/// The same by a plain loop over indices.
qat::ValueRange expected_range(const torch::Tensor& x, std::optional<std::int64_t> axis) {
  const auto rows = axis ? x.movedim(*axis, 0).reshape({x.size(*axis), -1}) : x.reshape({1, -1});
  auto min = torch::full({rows.size(0)}, kInfinity);
  auto max = torch::full({rows.size(0)}, -kInfinity);
  for (std::int64_t c = 0; c < rows.size(0); ++c) {
    for (std::int64_t i = 0; i < rows.size(1); ++i) {
      const auto v = rows[c][i].item<float>();
      if (!std::isfinite(v)) continue;
      min[c] = std::min(v, min[c].item<float>());
      max[c] = std::max(v, max[c].item<float>());
    }
  }
  return axis ? qat::ValueRange{min, max} : qat::ValueRange{min[0], max[0]};
}

void check_range(const torch::Tensor& x, std::optional<std::int64_t> axis) {
  const auto range = qat::finite_range(x, axis);
  const auto expected = expected_range(x, axis);
  CAPTURE(x.sizes(), x.strides(), axis.value_or(-99));
  CHECK(torch::equal(range.min, expected.min));
  CHECK(torch::equal(range.max, expected.max));
  CHECK(range.min.scalar_type() == torch::kFloat);
}

}  // namespace

TEST_CASE("The finite range equals a plain loop for every axis and layout", "[numerics]") {
  torch::manual_seed(3);
  const auto x = torch::randn({2, 3, 4, 5});
  for (const auto& view :
       {x, x.contiguous(torch::MemoryFormat::ChannelsLast), x.transpose(1, 3), x.slice(3, 0, 5, 2),
        x.select(2, 1), x.select(1, 0).unsqueeze(1), x.slice(1, 0, 1).expand({2, 6, 4, 5})}) {
    check_range(view, std::nullopt);
    for (std::int64_t axis = -view.dim(); axis < view.dim(); ++axis)
      check_range(view, axis);
  }
}

TEST_CASE("The finite range of long tensors is found on several threads", "[numerics]") {
  torch::manual_seed(4);
  auto x = torch::randn({3, 70001});
  x[1][70000] = 50.0F;
  x[2][0] = -60.0F;
  const auto all = qat::finite_range(x);
  CHECK(all.min.item<float>() == -60.0F);
  CHECK(all.max.item<float>() == 50.0F);
  CHECK(torch::equal(qat::finite_range(x, 0).max, x.amax(1)));
  const auto tall = x.t().contiguous();
  CHECK(torch::equal(qat::finite_range(tall, 1).min, x.amin(1)));
  CHECK(torch::equal(qat::finite_range(tall, 0).max, x.amax(0)));
}

TEST_CASE("Elements that are not finite are left out", "[numerics]") {
  for (const std::int64_t length : {3, 40}) {
    auto x = torch::linspace(-1.0, 2.0, length).repeat({2, 1});
    x[0][1] = kNan;
    x[1][1] = kInfinity;
    x[1][0] = -kInfinity;
    check_range(x, std::nullopt);
    check_range(x, 0);
    check_range(x, 1);
    check_range(x.t(), 0);
  }
}

TEST_CASE("Nothing finite gives the empty range", "[numerics]") {
  for (const auto& x : {torch::empty({0}), torch::full({5}, kNan), torch::tensor({kInfinity, -kInfinity}),
                        torch::full({17}, kInfinity)}) {
    const auto range = qat::finite_range(x);
    CHECK(range.min.item<float>() == kInfinity);
    CHECK(range.max.item<float>() == -kInfinity);
  }
  const auto channels = qat::finite_range(torch::empty({0, 3}), 1);
  CHECK(torch::equal(channels.min, torch::full({3}, kInfinity)));
  CHECK(torch::equal(channels.max, torch::full({3}, -kInfinity)));
  CHECK(qat::finite_range(torch::empty({0, 3}), 0).min.sizes() == torch::IntArrayRef{0});
  const auto one_nan_channel = torch::tensor({1.0F, kNan, 2.0F, kNan}).reshape({2, 2});
  check_range(one_nan_channel, 1);
}

TEST_CASE("A scalar has a range of zero width", "[numerics]") {
  const auto range = qat::finite_range(torch::tensor(-3.5F));
  CHECK(range.min.item<float>() == -3.5F);
  CHECK(range.max.item<float>() == -3.5F);
}

TEST_CASE("Negative zeros come out as positive zeros", "[numerics]") {
  const auto range = qat::finite_range(torch::tensor({-0.0F, -0.0F}));
  CHECK_FALSE(std::signbit(range.min.item<float>()));
  CHECK_FALSE(std::signbit(range.max.item<float>()));
}

TEST_CASE("Other floating types are read as float32", "[numerics]") {
  const auto x = torch::tensor({-1.5, 0.1, 3.25, 1e300}, torch::kDouble);
  for (const auto type : {torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    const auto range = qat::finite_range(x.to(type));
    CHECK(range.min.item<float>() == -1.5F);
    CHECK(range.max.item<float>() == 3.25F);
    CHECK(range.max.scalar_type() == torch::kFloat);
  }
}

TEST_CASE("The finite range needs real floating point and an existing axis", "[numerics]") {
  CHECK_THROWS_AS(qat::finite_range(torch::ones({2}, torch::kLong)), c10::TypeError);
  CHECK_THROWS_AS(qat::finite_range(torch::ones({2}, torch::kComplexFloat)), c10::TypeError);
  CHECK_THROWS_AS(qat::finite_range(torch::ones({2, 2}), 2), c10::IndexError);
  CHECK_THROWS_AS(qat::finite_range(torch::ones({2, 2}), -3), c10::IndexError);
  CHECK_THROWS_AS(qat::finite_range(torch::ones({}), 0), c10::IndexError);
}

TEST_CASE("The finite range carries no gradient", "[numerics]") {
  const auto x = torch::randn({4}, torch::requires_grad());
  CHECK_FALSE(qat::finite_range(x).min.requires_grad());
}

TEST_CASE("The mean magnitude is that of a plain loop over the finite elements", "[numerics]") {
  torch::manual_seed(5);
  const auto x = torch::randn({7, 3, 33, 41});
  const auto expected = x.to(torch::kDouble).abs().mean().to(torch::kFloat);
  const auto mean = qat::mean_magnitude(x);
  CHECK(mean.item<float>() == Approx(expected.item<float>()).epsilon(1e-6));
  CHECK(mean.sizes().empty());
  CHECK(mean.scalar_type() == torch::kFloat);
  const auto of_channels = qat::mean_magnitude(x, -3);
  CHECK(torch::allclose(of_channels, x.to(torch::kDouble).abs().mean({0, 2, 3}).to(torch::kFloat), 1e-6));
  CHECK(qat::mean_magnitude(x.slice(3, 0, 40, 3)).item<float>() ==
        Approx(x.slice(3, 0, 40, 3).abs().mean().item<float>()).epsilon(1e-6));

  const auto odd = torch::tensor({3.0F, kNan, -1.0F, kInfinity, -kInfinity});
  CHECK(qat::mean_magnitude(odd).item<float>() == 2.0F);
  CHECK(qat::mean_magnitude(odd.view({5, 1}), 1)[0].item<float>() == 2.0F);
  CHECK(qat::mean_magnitude(odd.to(torch::kHalf)).item<float>() == 2.0F);
  CHECK(qat::mean_magnitude(torch::empty({0, 2})).item<float>() == 0.0F);
  CHECK(torch::equal(qat::mean_magnitude(torch::empty({0, 2}), 1), torch::zeros({2})));
  CHECK(qat::mean_magnitude(torch::full({3}, kNan)).item<float>() == 0.0F);
  CHECK_THROWS_AS(qat::mean_magnitude(torch::zeros({2}, torch::kInt)), c10::TypeError);
  CHECK_THROWS_AS(qat::mean_magnitude(torch::zeros({2}), 1), c10::IndexError);
}

TEST_CASE("The mean magnitude has the same bits for any number of threads", "[numerics]") {
  torch::manual_seed(6);
  const auto x = torch::randn({300001});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = qat::mean_magnitude(x);
  const auto two_channels = x.slice(0, 1).view({2, -1});
  const auto two = qat::mean_magnitude(two_channels, 0);
  for (const int threads : {2, 3, 4}) {
    at::set_num_threads(threads);
    CHECK(torch::equal(qat::mean_magnitude(x), one));
    CHECK(torch::equal(qat::mean_magnitude(x.unsqueeze(0), 0), one.reshape({1})));
    CHECK(torch::equal(qat::mean_magnitude(two_channels, 0), two));
  }
  at::set_num_threads(before);
}
