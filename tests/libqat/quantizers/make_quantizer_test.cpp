#include <qat/quantizers/make_quantizer.h>

#include <torch/types.h>

#include <cmath>
#include <string>

#include "support/catch.h"

namespace {

using namespace qat;
using Catch::Matchers::Contains;
using torch::Tensor;

/// Weights whose few outliers make the whole range a bad choice.
Tensor heavy_tailed(std::vector<std::int64_t> shape) {
  torch::manual_seed(3);
  const auto normal = torch::randn(shape);
  return normal * normal.square();
}

Tensor mean_squared_error(Quantizer& quantizer, const Tensor& w) {
  return (quantizer.forward(w) - w).detach().to(torch::kDouble).square().flatten(1).mean(1);
}

TEST_CASE("A start by squared error has the smallest error of 40 parts of the range, for each channel") {
  const auto w = heavy_tailed({3, 2, 5, 5});
  const auto range = finite_range(w, 0);
  AffineQuantizerOptions options{.range = IntegerRange(4, Signedness::kSigned), .axis = 0};
  for (const std::string family : {"affine", "lsq", "tqt", "fp_d_xmax", "fp_b_xmax", "pow2_xmin_xmax"}) {
    CAPTURE(family);
    const auto found = make_quantizer(family, options, range, w, WeightStart::kMse);
    auto least = torch::full({3}, 1e9, torch::kDouble);
    for (int k = 1; k <= 40; ++k) {
      // What a range alone gives: affine and the parametric families start there; lsq and tqt by start_from.
      const ValueRange part{range.min * (k / 40.0), range.max * (k / 40.0)};
      const auto tried = family == "lsq" || family == "tqt" ? make_quantizer(family, options, part)
                                                            : make_quantizer(family, options, part, w);
      least = torch::minimum(least, mean_squared_error(*tried, w));
    }
    CHECK(torch::equal(mean_squared_error(*found, w), least));
  }
}

TEST_CASE("A start by squared error clips outliers that the range keeps") {
  const auto w = heavy_tailed({1, 400});
  const AffineQuantizerOptions options{.range = IntegerRange(3, Signedness::kSigned)};
  const auto whole = make_quantizer("affine", options, finite_range(w), w);
  const auto searched = make_quantizer("affine", options, finite_range(w), w, WeightStart::kMse);
  CHECK(searched->scale(w).item<float>() < whole->scale(w).item<float>());
  CHECK(mean_squared_error(*searched, w).item<double>() < mean_squared_error(*whole, w).item<double>());
}

TEST_CASE("Weights of zeros start by squared error as by statistics") {
  const auto w = torch::zeros({2, 4});
  const AffineQuantizerOptions options{.range = IntegerRange(4, Signedness::kSigned), .axis = 0};
  const auto quantizer = make_quantizer("lsq", options, finite_range(w, 0), w, WeightStart::kMse);
  CHECK(torch::equal(quantizer->forward(w), w));
  CHECK(torch::equal(quantizer->scale(w), torch::ones({2})));
}

TEST_CASE("Names of starts are read and written; others are refused with the list") {
  CHECK(parse_weight_start("mse") == WeightStart::kMse);
  CHECK(to_string(WeightStart::kStatistics) == "statistics");
  CHECK_THROWS_WITH(parse_weight_start("best"), Contains("statistics") && Contains("mse"));
}

TEST_CASE("Learned activations start within 2 mean|x| sqrt(qmax)") {
  const ValueRange recorded{torch::tensor(-3.0F), torch::tensor(100.0F)};
  const IntegerRange codes(2, Signedness::kUnsigned);  // qmax 3
  const auto part = start_range(recorded, torch::tensor(1.0F), codes);
  CHECK(part.min.item<float>() == -3.0F);
  CHECK(part.max.item<float>() == 2.0F * std::sqrt(3.0F));
  // LSQ's own start: the scale 2 mean|x| / sqrt(qmax).
  const auto lsq = make_quantizer("lsq", {.range = codes}, {torch::tensor(0.0F), part.max});
  CHECK(lsq->scale({}).item<float>() == 2.0F / std::sqrt(3.0F));
  const auto wide = start_range(recorded, torch::tensor(60.0F), codes);
  CHECK(wide.max.item<float>() == 100.0F);
  const auto unknown = start_range(recorded, torch::tensor(0.0F), codes);
  CHECK(torch::equal(unknown.min, recorded.min));
  CHECK(torch::equal(unknown.max, recorded.max));
}

}  // namespace
