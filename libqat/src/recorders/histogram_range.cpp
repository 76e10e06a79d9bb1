#include "recorders/histogram_range.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace qat::detail {
namespace {

constexpr std::int64_t kSide = kHistogramBins / 2;  // bins of one sign
constexpr double kLittle = 1e-4;                    // of a distribution

/// The elements of one sign, bin by bin from 0 outwards.
struct Side {
  std::vector<double> counts = std::vector<double>(static_cast<std::size_t>(kSide));

  double operator[](std::int64_t bin) const { return counts[static_cast<std::size_t>(bin)]; }
};

Side positive_side(const Histogram& histogram) {
  Side side;
  const auto* const counts = histogram.counts.const_data_ptr<std::int64_t>();
  for (std::int64_t b = 0; b < kSide; ++b)
    side.counts[static_cast<std::size_t>(b)] = static_cast<double>(counts[kSide + b]);
  return side;
}

Side negative_side(const Histogram& histogram) {
  Side side;
  const auto* const counts = histogram.counts.const_data_ptr<std::int64_t>();
  for (std::int64_t b = 0; b < kSide; ++b)
    side.counts[static_cast<std::size_t>(b)] = static_cast<double>(counts[kSide - 1 - b]);
  return side;
}

Side magnitudes(const Histogram& histogram) {
  Side side = positive_side(histogram);
  const Side negative = negative_side(histogram);
  for (std::size_t b = 0; b < side.counts.size(); ++b)
    side.counts[b] += negative.counts[b];
  return side;
}

/// Bins up to the last one that holds something.
std::int64_t used_bins(const Side& side) {
  std::int64_t bins = kSide;
  while (bins > 0 && side[bins - 1] == 0)
    --bins;
  return bins;
}

/// Sums over the bins from b on, for squared distances from the edge b.
class Tails {
 public:
  Tails(const Side& side, double width) {
    double count = 0;
    double first = 0;
    double second = 0;
    inside_.assign(static_cast<std::size_t>(kSide) + 1, 0.0);
    squares_.assign(static_cast<std::size_t>(kSide) + 1, 0.0);
    for (std::int64_t b = kSide - 1; b >= 0; --b) {
      // Middles of bins, seen from the edge b: everything moves outwards by a width, then bin b comes.
      second += 2 * width * first + width * width * count;
      first += width * count;
      count += side[b];
      first += width / 2 * side[b];
      second += width * width / 4 * side[b];
      squares_[static_cast<std::size_t>(b)] = second;
      inside_[static_cast<std::size_t>(b)] = count;
    }
    const double all = count;
    for (double& tail : inside_)
      tail = all - tail;
  }
  double squares_beyond(std::int64_t edge) const { return squares_[static_cast<std::size_t>(edge)]; }
  double count_within(std::int64_t edge) const { return inside_[static_cast<std::size_t>(edge)]; }

 private:
  std::vector<double> squares_;
  std::vector<double> inside_;
};

Interval within(const Interval& found, const Interval& data) {
  return {std::max(found.low, std::min(data.low, 0.0)), std::min(found.high, std::max(data.high, 0.0))};
}

/// How many edges from 0 the smallest edge is beyond which at most `most` elements lie.
std::int64_t edge_leaving(const Side& side, double most) {
  double beyond = 0;
  std::int64_t edge = kSide;
  while (edge > 0 && beyond + side[edge - 1] <= most)
    beyond += side[--edge];
  return edge;
}

double divergence(const Side& side, double outside, std::int64_t bins, std::int64_t codes) {
  // The quantized form: each code stands for a group of bins and gives its count to those that hold
  // something.
  double total = outside;
  double kept = 0;
  for (std::int64_t b = 0; b < bins; ++b)
    kept += side[b];
  total += kept;
  if (kept == 0) return std::numeric_limits<double>::infinity();
  double result = 0;
  for (std::int64_t code = 0; code < codes; ++code) {
    const std::int64_t begin = code * bins / codes;
    const std::int64_t end = (code + 1) * bins / codes;
    double count = 0;
    std::int64_t used = 0;
    for (std::int64_t b = begin; b < end; ++b) {
      count += side[b];
      used += side[b] > 0 ? 1 : 0;
    }
    for (std::int64_t b = begin; b < end; ++b) {
      const double p = (side[b] + (b == bins - 1 ? outside : 0.0)) / total;
      if (p == 0) continue;
      // The last bin may be empty but for what lies outside: as if a little were there.
      const double q = side[b] > 0 ? count / static_cast<double>(used) / kept : std::min(p, kLittle);
      result += p * std::log(p / q);
    }
  }
  return result;
}

}  // namespace

Interval percentile_interval(const Histogram& histogram, const Interval& data, double percentile) {
  const Side up = positive_side(histogram);
  const Side down = negative_side(histogram);
  double elements = static_cast<double>(histogram.zeros);
  for (std::int64_t b = 0; b < kSide; ++b)
    elements += up[b] + down[b];
  const double most = elements * (1 - percentile / 100);
  const double width = histogram.bin_width();
  return within({-width * static_cast<double>(edge_leaving(down, most)),
                 width * static_cast<double>(edge_leaving(up, most))},
                data);
}

Interval least_squares_interval(const Histogram& histogram, const Interval& data, std::int64_t bits,
                                bool symmetric) {
  const double width = histogram.bin_width();
  const double steps = std::ldexp(1.0, static_cast<int>(bits)) - (symmetric ? 2 : 1);
  const Side up = symmetric ? magnitudes(histogram) : positive_side(histogram);
  const Side down = symmetric ? Side() : negative_side(histogram);
  const Tails above(up, width);
  const Tails below(down, width);
  std::int64_t best_high = used_bins(up);
  std::int64_t best_low = used_bins(down);
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t low = used_bins(down); low >= 0; --low) {
    for (std::int64_t high = used_bins(up); high >= 0; --high) {
      if (low + high == 0) continue;
      const double span = width * static_cast<double>(symmetric ? 2 * high : low + high);
      const double step = span / steps;
      const double error = step * step / 12 * (above.count_within(high) + below.count_within(low)) +
                           above.squares_beyond(high) + below.squares_beyond(low);
      if (error >= least) continue;
      least = error;
      best_high = high;
      best_low = low;
    }
  }
  const double high = width * static_cast<double>(best_high);
  if (symmetric) {
    const double largest = std::min(high, std::max(-data.low, data.high));
    return {-largest, largest};
  }
  return within({-width * static_cast<double>(best_low), high}, data);
}

Interval kl_divergence_interval(const Histogram& histogram, const Interval& data, std::int64_t bits,
                                bool symmetric) {
  const bool has_negative = data.low < 0;
  const Side side = magnitudes(histogram);
  const std::int64_t codes = std::int64_t{1} << (has_negative || symmetric ? bits - 1 : bits);
  const std::int64_t last = used_bins(side);
  double elements = 0;
  for (std::int64_t b = 0; b < last; ++b)
    elements += side[b];
  std::int64_t best = last;
  double least = std::numeric_limits<double>::infinity();
  double within_bins = elements;
  // From the widest threshold inwards, down to one bin a code: fewer bins could represent anything.
  for (std::int64_t bins = last; bins >= std::min(codes, last) && bins > 0; --bins) {
    const double found = divergence(side, elements - within_bins, bins, std::min(codes, bins));
    if (found < least) {
      least = found;
      best = bins;
    }
    within_bins -= side[bins - 1];
  }
  const double threshold =
      std::min(histogram.bin_width() * static_cast<double>(best), std::max(-data.low, data.high));
  if (!has_negative && !symmetric) return {0, threshold};
  return {-threshold, threshold};
}

}  // namespace qat::detail
