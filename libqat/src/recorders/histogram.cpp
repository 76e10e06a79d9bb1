#include "recorders/histogram.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

namespace qat::detail {
namespace {

/// The bin of a value, exactly: the scale is a power of two.
std::int64_t bin_of(double value, double bins_per_unit) {
  return static_cast<std::int64_t>(std::floor(value * bins_per_unit)) + kHistogramBins / 2;
}

void count_on_cpu(const float* x, std::int64_t n, double bins_per_unit, std::int64_t* counts) {
  constexpr std::int64_t kLeastWork = 1 << 16;
  std::mutex mutex;
  // Whole numbers: their sums do not depend on who adds what first.
  at::parallel_for(0, n, kLeastWork, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> own(kHistogramBins + 1);
    for (std::int64_t i = begin; i < end; ++i) {
      if (!std::isfinite(x[i])) continue;
      ++own[static_cast<std::size_t>(x[i] == 0.0F ? kHistogramBins : bin_of(x[i], bins_per_unit))];
    }
    const std::lock_guard lock(mutex);
    for (std::size_t b = 0; b < own.size(); ++b)
      counts[b] += own[b];
  });
}

}  // namespace

double histogram_limit(double largest) {
  if (largest == 0.0) return 0.0;
  int exponent = 0;
  std::frexp(largest, &exponent);
  return std::ldexp(1.0, exponent);
}

torch::Tensor count_elements(const torch::Tensor& x, double limit) {
  const auto counts = torch::zeros({kHistogramBins + 1}, torch::kLong);
  const double bins_per_unit = limit > 0 ? static_cast<double>(kHistogramBins) / (2 * limit) : 0.0;
  const auto values = x.detach().to(torch::kFloat);
  if (values.is_cpu()) {
    const auto dense = values.contiguous();
    count_on_cpu(dense.const_data_ptr<float>(), dense.numel(), bins_per_unit,
                 counts.mutable_data_ptr<std::int64_t>());
    return counts;
  }
  const auto finite = values.masked_select(torch::isfinite(values)).to(torch::kDouble);
  const auto bin = torch::floor(finite * bins_per_unit).to(torch::kLong) + kHistogramBins / 2;
  const auto place = torch::where(finite == 0, torch::full_like(bin, kHistogramBins), bin);
  return torch::bincount(place, {}, kHistogramBins + 1).to(torch::kCPU);
}

torch::Tensor widened(const torch::Tensor& counts, double from, double to) {
  auto result = counts;
  for (; from > 0 && from < to; from *= 2) {
    const auto pairs = result.reshape({kHistogramBins / 2, 2}).sum(1);
    result = torch::zeros({kHistogramBins}, torch::kLong);
    result.narrow(0, kHistogramBins / 4, kHistogramBins / 2).copy_(pairs);
    // Whatever is in [-from, from) lies in the middle half; further doublings only move it together.
    if (to / from > static_cast<double>(kHistogramBins)) {
      const auto negative = result.narrow(0, 0, kHistogramBins / 2).sum();
      const auto positive = result.narrow(0, kHistogramBins / 2, kHistogramBins / 2).sum();
      result = torch::zeros({kHistogramBins}, torch::kLong);
      result[kHistogramBins / 2 - 1] = negative;
      result[kHistogramBins / 2] = positive;
      break;
    }
  }
  return result;
}

}  // namespace qat::detail
