#pragma once

#include "recorders/histogram.h"

#include <cstdint>

namespace qat::detail {

/// What a search among the bins of a histogram found; 0 lies in it, and it lies in [low, high] of the data.
struct Interval {
  double low = 0;
  double high = 0;
};

/// The narrowest interval of bin edges above which, and below which, lies at most the share 1 - percentile /
/// 100 of the elements.
Interval percentile_interval(const Histogram& histogram, const Interval& data, double percentile);

/// The interval of bin edges with the least squared error of a uniform grid of 2^bits codes: step^2 / 12 for
/// each element in it but zeros (Widrow and Kollar, "Quantization Noise", 2008), the squared distance for
/// those outside. Elements stand in the middle of their bins. `symmetric`: [-T, T], a code less. Of equals
/// the widest.
Interval least_squares_interval(const Histogram& histogram, const Interval& data, std::int64_t bits,
                                bool symmetric);

/// [-T, T], or [0, T] if nothing is negative, with the threshold T whose distribution, what lies beyond
/// counted in the last bin, differs least from its quantized form in the sense of Kullback and Leibler; the
/// quantized form has the codes of one sign (2^(bits - 1), or 2^bits). Zeros are left out: every grid has
/// them. After Migacz, "8-bit Inference with TensorRT", 2017.
Interval kl_divergence_interval(const Histogram& histogram, const Interval& data, std::int64_t bits,
                                bool symmetric);

}  // namespace qat::detail
