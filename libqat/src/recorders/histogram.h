#pragma once

#include <torch/types.h>

#include <cstdint>

namespace qat::detail {

/// How often values occur: `counts` (int64 [kHistogramBins]) over equally wide bins of [-limit, limit), of
/// which the upper half begins at 0, and exact zeros apart. The limit is a power of two: bins are exact, and
/// a wider histogram holds the sums of pairs of bins of a narrower one, in whatever order and parts values
/// came.
inline constexpr std::int64_t kHistogramBins = 4096;

struct Histogram {
  torch::Tensor counts;
  double limit = 0;  ///< 0: empty.
  std::int64_t zeros = 0;

  double bin_width() const { return 2 * limit / static_cast<double>(kHistogramBins); }
};

/// The smallest power of two above `largest` (> 0; a magnitude); 0 for 0.
double histogram_limit(double largest);

/// The counts of the finite elements of x, which lie in (-limit, limit), and behind them the number of zeros:
/// int64 [kHistogramBins + 1] on the CPU. The same for any number of threads.
torch::Tensor count_elements(const torch::Tensor& x, double limit);

/// `counts` over bins of limit `from`, as counts over bins of limit `to` >= from, a power of two times it.
torch::Tensor widened(const torch::Tensor& counts, double from, double to);

}  // namespace qat::detail
