#include <qat/numerics/value_range.h>

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <mutex>
#include <vector>

namespace qat {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The comparisons are written so that NaN changes nothing and compilers find their minimum and maximum
// instructions.
float lesser(float x, float least) {
  return x < least ? x : least;
}
float greater(float x, float greatest) {
  return x > greatest ? x : greatest;
}

struct Extremes {
  float min = kInfinity;
  float max = -kInfinity;

  void include(float x) { include(Extremes{x, x}); }
  void include(const Extremes& other) {
    min = lesser(other.min, min);
    max = greater(other.max, max);
  }
  bool met_infinity() const { return min == -kInfinity || max == kInfinity; }
};

Extremes row_extremes(const float* x, std::int64_t n) {
  constexpr std::int64_t kLanes = 16;  // independent chains: a comparison need not wait for the one before it
  Extremes all;
  std::int64_t i = 0;
  if (n >= kLanes) {
    float min[kLanes];
    float max[kLanes];
    std::fill_n(min, kLanes, kInfinity);
    std::fill_n(max, kLanes, -kInfinity);
    for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        min[lane] = lesser(x[i + lane], min[lane]);
        max[lane] = greater(x[i + lane], max[lane]);
      }
    }
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      all.include(Extremes{min[lane], max[lane]});
  }
  for (; i < n; ++i)
    all.include(x[i]);
  if (!all.met_infinity()) return all;
  Extremes finite;
  for (std::int64_t k = 0; k < n; ++k) {
    if (std::isfinite(x[k])) finite.include(x[k]);
  }
  return finite;
}

/// Memory that holds the channels side by side: element i belongs to channel i % channels.
void include_interleaved(const float* x, std::int64_t rows, std::vector<Extremes>& channels) {
  const std::size_t width = channels.size();
  std::vector<float> min(width, kInfinity);
  std::vector<float> max(width, -kInfinity);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * static_cast<std::int64_t>(width);
#pragma omp simd
    for (std::size_t c = 0; c < width; ++c) {
      min[c] = lesser(row[c], min[c]);
      max[c] = greater(row[c], max[c]);
    }
  }
  for (std::size_t c = 0; c < width; ++c) {
    Extremes channel{min[c], max[c]};
    if (channel.met_infinity()) {
      channel = {};
      for (std::int64_t r = 0; r < rows; ++r) {
        const float v = x[r * static_cast<std::int64_t>(width) + static_cast<std::int64_t>(c)];
        if (std::isfinite(v)) channel.include(v);
      }
    }
    channels[c].include(channel);
  }
}

/// Element i of the memory belongs to channel (i / inner) % channels.
std::vector<Extremes> memory_extremes(const float* x, std::int64_t elements, std::int64_t inner,
                                      std::int64_t channels) {
  constexpr std::int64_t kChunk = 32768;  // elements worth a thread
  std::vector<Extremes> result(static_cast<std::size_t>(channels));
  if (elements == 0) return result;
  std::mutex merging;
  const bool interleaved = inner == 1 && channels > 1;
  const std::int64_t length = channels == 1 ? kChunk : (interleaved ? channels : inner);
  const std::int64_t rows = (elements + length - 1) / length;
  at::parallel_for(0, rows, std::max<std::int64_t>(1, kChunk / length),
                   [&](std::int64_t begin, std::int64_t end) {
                     std::vector<Extremes> part(result.size());
                     if (interleaved) {
                       include_interleaved(x + begin * length, end - begin, part);
                     } else {
                       for (std::int64_t r = begin; r < end; ++r) {
                         part[static_cast<std::size_t>(r % channels)].include(
                             row_extremes(x + r * length, std::min(length, elements - r * length)));
                       }
                     }
                     const std::lock_guard lock(merging);
                     for (std::size_t c = 0; c < part.size(); ++c)
                       result[c].include(part[c]);
                   });
  return result;
}

ValueRange range_on_host(const torch::Tensor& x, std::optional<std::int64_t> axis) {
  // In dense memory the stride of an axis is the number of elements that lie together in one of its channels.
  const auto dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  const std::int64_t channels = axis ? dense.size(*axis) : 1;
  const auto extremes = memory_extremes(dense.const_data_ptr<float>(), dense.numel(),
                                        channels > 1 ? dense.stride(*axis) : dense.numel(), channels);
  const auto shape = axis ? std::vector<std::int64_t>{channels} : std::vector<std::int64_t>{};
  ValueRange range{torch::empty(shape, torch::kFloat), torch::empty(shape, torch::kFloat)};
  for (std::size_t c = 0; c < extremes.size(); ++c) {
    range.min.mutable_data_ptr<float>()[c] =
        extremes[c].min + 0.0F;  // -0 becomes +0: equal bits for any thread count
    range.max.mutable_data_ptr<float>()[c] = extremes[c].max + 0.0F;
  }
  return range;
}

ValueRange range_by_tensor_operations(const torch::Tensor& x, std::optional<std::int64_t> axis) {
  const auto rows = axis ? x.movedim(*axis, 0).unsqueeze(-1).flatten(1) : x.flatten().unsqueeze(0);
  const auto shape = axis ? std::vector<std::int64_t>{rows.size(0)} : std::vector<std::int64_t>{};
  if (rows.size(1) == 0)
    return {torch::full(shape, kInfinity, x.options()), torch::full(shape, -kInfinity, x.options())};
  const double infinity = kInfinity;
  return {torch::nan_to_num(rows, infinity, infinity, infinity).amin(1).add(0.0).reshape(shape),
          torch::nan_to_num(rows, -infinity, -infinity, -infinity).amax(1).add(0.0).reshape(shape)};
}

struct MagnitudeSum {
  double sum = 0;
  std::int64_t count = 0;
};

/// Of at most kSumChunk elements. Lanes of float32 hold few enough numbers each for their error to stay far
/// below that of the mean as float32.
constexpr std::int64_t kSumChunk = 4096;
MagnitudeSum magnitude_sum(const float* x, std::int64_t n) {
  constexpr std::int64_t kLanes = 16;
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] += std::fabs(x[i + lane]);
  }
  MagnitudeSum all{0, n};
  for (const float lane : lanes)
    all.sum += static_cast<double>(lane);
  for (; i < n; ++i)
    all.sum += static_cast<double>(std::fabs(x[i]));
  if (std::isfinite(all.sum)) return all;
  all = {};
  for (std::int64_t k = 0; k < n; ++k) {
    if (!std::isfinite(x[k])) continue;
    all.sum += static_cast<double>(std::fabs(x[k]));
    ++all.count;
  }
  return all;
}

torch::Tensor mean_on_host(const torch::Tensor& x) {
  const auto dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  const float* data = dense.const_data_ptr<float>();
  const std::int64_t n = dense.numel();
  std::vector<MagnitudeSum> sums(static_cast<std::size_t>((n + kSumChunk - 1) / kSumChunk));
  at::parallel_for(0, static_cast<std::int64_t>(sums.size()), 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k)
      sums[static_cast<std::size_t>(k)] =
          magnitude_sum(data + k * kSumChunk, std::min(kSumChunk, n - k * kSumChunk));
  });
  MagnitudeSum all;
  for (const MagnitudeSum& part : sums)
    all = {all.sum + part.sum, all.count + part.count};
  const double mean = all.count == 0 ? 0.0 : all.sum / static_cast<double>(all.count);
  return torch::full({}, static_cast<float>(mean), torch::kFloat);
}

torch::Tensor mean_by_tensor_operations(const torch::Tensor& x, std::optional<std::int64_t> axis) {
  const auto rows = axis ? x.movedim(*axis, 0).unsqueeze(-1).flatten(1) : x.flatten().unsqueeze(0);
  const auto shape = axis ? std::vector<std::int64_t>{rows.size(0)} : std::vector<std::int64_t>{};
  const auto sums = torch::nan_to_num(rows, 0.0, 0.0, 0.0).abs().sum(1, false, torch::kDouble);
  const auto counts = torch::isfinite(rows).sum(1).clamp_min(1);
  return (sums / counts).to(torch::kFloat).reshape(shape);
}

torch::Tensor real_values(const char* who, const torch::Tensor& x, std::optional<std::int64_t>& axis) {
  TORCH_CHECK_TYPE(x.is_floating_point(), who, ": expected a real floating point tensor, got ", x.dtype());
  if (axis) {
    TORCH_CHECK_INDEX(*axis >= -x.dim() && *axis < x.dim(), who, ": no channel axis ", *axis,
                      " in a tensor of shape ", x.sizes());
    if (*axis < 0) *axis += x.dim();
  }
  return x.detach().to(torch::kFloat);
}

}  // namespace

ValueRange finite_range(const torch::Tensor& x, std::optional<std::int64_t> axis) {
  const auto values = real_values("qat::finite_range", x, axis);
  return x.is_cpu() ? range_on_host(values, axis) : range_by_tensor_operations(values, axis);
}

torch::Tensor mean_magnitude(const torch::Tensor& x, std::optional<std::int64_t> axis) {
  const auto values = real_values("qat::mean_magnitude", x, axis);
  if (!x.is_cpu()) return mean_by_tensor_operations(values, axis);
  if (!axis) return mean_on_host(values);
  // One channel is the whole tensor: a single sum of torch's depends on the number of threads.
  return x.size(*axis) == 1 ? mean_on_host(values).reshape({1}) : mean_by_tensor_operations(values, axis);
}

}  // namespace qat
