#pragma once

#include <torch/types.h>

#include <cmath>
#include <sstream>
#include <string>

namespace qat::testing {

/// How much two values may differ: |actual - expected| <= absolute + relative * |expected|. The default is
/// equality.
struct Tolerance {
  double relative = 0.0;
  double absolute = 0.0;
};

/// "" if two tensors have the same type, shape and values within the tolerance (NaN equals NaN, infinities
/// must agree), else a sentence about the worst element. Used as CHECK(mismatch(actual, expected) == "").
inline std::string mismatch(const torch::Tensor& actual, const torch::Tensor& expected,
                            Tolerance tolerance = {}) {
  std::ostringstream text;
  if (actual.scalar_type() != expected.scalar_type()) {
    text << "type " << actual.scalar_type() << " instead of " << expected.scalar_type();
  } else if (actual.sizes() != expected.sizes()) {
    text << "shape " << actual.sizes() << " instead of " << expected.sizes();
  } else {
    const auto a = actual.detach().to(torch::kCPU, torch::kDouble).flatten().contiguous();
    const auto b = expected.detach().to(torch::kCPU, torch::kDouble).flatten().contiguous();
    double worst = 0.0;
    std::int64_t worst_at = -1;
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < a.numel(); ++i) {
      const double x = a.const_data_ptr<double>()[i];
      const double y = b.const_data_ptr<double>()[i];
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      const double error = std::fabs(x - y);
      if (std::isfinite(error) && error <= tolerance.absolute + tolerance.relative * std::fabs(y)) continue;
      ++count;
      if (worst_at < 0 || !(error <= worst)) {
        worst = error;
        worst_at = i;
      }
    }
    if (count > 0) {
      text.precision(9);
      text << count << " of " << a.numel() << " elements differ; element " << worst_at << " is "
           << a.const_data_ptr<double>()[worst_at] << " instead of " << b.const_data_ptr<double>()[worst_at];
    }
  }
  return text.str();
}

}  // namespace qat::testing
