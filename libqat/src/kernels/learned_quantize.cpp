#include "kernels/learned_quantize.h"

#include "kernels/block.h"

#include <algorithm>

namespace qat::kernels {
namespace {

/// Elements [begin, end) of the tensor.
struct Range {
  std::int64_t begin;
  std::int64_t end;
};

/// What a block of elements adds to the sums.
template <class T>
struct Contributions {
  alignas(64) T values[kLearnedSums][kBlock];
};

// The rules, element by element.

template <Rounding rounding, class T>
struct UniformLoop {
  UniformRule<T> rule;

  static constexpr int sums = 3;
  [[gnu::always_inline]] UniformCell<T> cell(std::int64_t c) const {
    return {rule.scale[c], rule.zero_point[c], rule.low[c], rule.high[c], rule.lower[c], rule.upper[c]};
  }
  [[gnu::always_inline]] UniformGradient<T> gradient(T x, T dy, const UniformCell<T>& cell) const {
    return uniform_gradient<rounding>(x, dy, cell);
  }
  [[gnu::always_inline]] static void spread(const UniformGradient<T>& g, T& a, T& b, T& c) {
    a = g.scale;
    b = g.lower;
    c = g.upper;
  }
};

template <class T>
struct PowerOfTwoLoop {
  PowerOfTwoRule<T> rule;

  static constexpr int sums = 2;
  [[gnu::always_inline]] PowerOfTwoCell<T> cell(std::int64_t c) const { return {rule.xmin[c], rule.xmax[c]}; }
  [[gnu::always_inline]] PowerOfTwoGradient<T> gradient(T x, T dy, const PowerOfTwoCell<T>& cell) const {
    return power_of_two_gradient(x, dy, cell, rule.is_signed, rule.with_zero);
  }
  [[gnu::always_inline]] static void spread(const PowerOfTwoGradient<T>& g, T& a, T& b, T&) {
    a = g.xmin;
    b = g.xmax;
  }
};

template <int step, class Loop, class T>
[[gnu::always_inline]] inline void gradient_run(const Loop& loop, std::int64_t channel, std::int64_t length,
                                                const T* x, const T* dy, T* dx, T* a, T* b, T* c) {
#pragma GCC ivdep  // omp simd would keep the structs in memory
  for (std::int64_t i = 0; i < length; ++i) {
    const auto g = loop.gradient(x[i], dy[i], loop.cell(channel + i * step));
    dx[i] = g.dx;
    Loop::spread(g, a[i], b[i], c[i]);
  }
}

template <int step, class Loop, class T>
[[gnu::always_inline]] inline void gradient_runs(const Loop& loop, const ChannelView& view, Range range,
                                                 const T* x, const T* dy, T* dx, double* sums) {
  Contributions<T> buffer;
  while (range.begin < range.end) {
    const Run run = run_at<step>(view, range.begin, range.end);
    T* const a = buffer.values[0];
    T* const b = buffer.values[1];
    T* const c = buffer.values[2];
    gradient_run<step>(loop, run.channel, run.length, x, dy, dx, a, b, c);
    for (int k = 0; k < Loop::sums; ++k) {
      double* const sum = sums + k * view.channels + run.channel;
      const T* const values = buffer.values[k];
      if (step == 0) {
        *sum += fixed_order_sum(values, run.length);
      } else {
        for (std::int64_t i = 0; i < run.length; ++i)
          sum[i] += static_cast<double>(values[i]);
      }
    }
    range.begin += run.length;
    x += run.length;
    dy += run.length;
    dx += run.length;
  }
}

template <class Loop, class T>
[[gnu::always_inline]] inline void gradient_block(const Loop& loop, const ChannelView& view, Range range,
                                                  const T* x, const T* dy, T* dx, double* sums) {
  view.channel_step() == 1 ? gradient_runs<1>(loop, view, range, x, dy, dx, sums)
                           : gradient_runs<0>(loop, view, range, x, dy, dx, sums);
}

template <int step, class T>
[[gnu::always_inline]] inline void quantize_runs(const PowerOfTwoLoop<T>& loop, const ChannelView& view,
                                                 Range range, const T* x, T* out) {
  const bool is_signed = loop.rule.is_signed;
  const bool with_zero = loop.rule.with_zero;
  while (range.begin < range.end) {
    const Run run = run_at<step>(view, range.begin, range.end);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < run.length; ++i) {
      const auto cell = loop.cell(run.channel + i * step);
      out[i] = power_of_two_real(x[i], cell, is_signed, with_zero);
    }
    range.begin += run.length;
    x += run.length;
    out += run.length;
  }
}

template <class T>
[[gnu::always_inline]] inline void quantize_block(const PowerOfTwoLoop<T>& loop, const ChannelView& view,
                                                  Range range, const T* x, T* out) {
  view.channel_step() == 1 ? quantize_runs<1>(loop, view, range, x, out)
                           : quantize_runs<0>(loop, view, range, x, out);
}

// Which rule.

/// Elements [begin, end) that lie in one block: x, dy -> dx; adds to the sums.
template <class T>
[[gnu::always_inline]] inline void gradient_of_block(const UniformRule<T>& rule, const ChannelView& view,
                                                     Range range, const T* x, const T* dy, T* dx,
                                                     double* sums) {
  switch (rule.rounding) {
    case Rounding::kHalfToEven:
      return gradient_block(UniformLoop<Rounding::kHalfToEven, T>{rule}, view, range, x, dy, dx, sums);
    case Rounding::kHalfAwayFromZero:
      return gradient_block(UniformLoop<Rounding::kHalfAwayFromZero, T>{rule}, view, range, x, dy, dx, sums);
    case Rounding::kHalfUp:
      return gradient_block(UniformLoop<Rounding::kHalfUp, T>{rule}, view, range, x, dy, dx, sums);
  }
}

template <class T>
[[gnu::always_inline]] inline void gradient_of_block(const PowerOfTwoRule<T>& rule, const ChannelView& view,
                                                     Range range, const T* x, const T* dy, T* dx,
                                                     double* sums) {
  gradient_block(PowerOfTwoLoop<T>{rule}, view, range, x, dy, dx, sums);
}

template <class T, class Rule>
using GradientOfBlock = void (*)(const Rule&, const ChannelView&, Range, const T*, const T*, T*, double*);
template <class T>
using QuantizedBlock = void (*)(const PowerOfTwoRule<T>&, const ChannelView&, Range, const T*, T*);

// One function for each instruction set; float64 tensors, which are rare, have the portable one.

template <class T, class Rule>
void gradient_default(const Rule& rule, const ChannelView& view, Range range, const T* x, const T* dy, T* dx,
                      double* sums) {
  gradient_of_block(rule, view, range, x, dy, dx, sums);
}
template <class T>
void quantize_default(const PowerOfTwoRule<T>& rule, const ChannelView& view, Range range, const T* x, T* y) {
  quantize_block(PowerOfTwoLoop<T>{rule}, view, range, x, y);
}

#if defined(__x86_64__)
template <class Rule>
[[gnu::target("arch=x86-64-v3")]] void gradient_avx2(const Rule& rule, const ChannelView& view, Range range,
                                                     const float* x, const float* dy, float* dx,
                                                     double* sums) {
  gradient_of_block(rule, view, range, x, dy, dx, sums);
}
[[gnu::target("arch=x86-64-v3")]] void quantize_avx2(const PowerOfTwoRule<float>& rule,
                                                     const ChannelView& view, Range range, const float* x,
                                                     float* y) {
  quantize_block(PowerOfTwoLoop<float>{rule}, view, range, x, y);
}
template <class Rule>
[[gnu::target("arch=x86-64-v4")]] void gradient_avx512(const Rule& rule, const ChannelView& view, Range range,
                                                       const float* x, const float* dy, float* dx,
                                                       double* sums) {
  gradient_of_block(rule, view, range, x, dy, dx, sums);
}
[[gnu::target("arch=x86-64-v4")]] void quantize_avx512(const PowerOfTwoRule<float>& rule,
                                                       const ChannelView& view, Range range, const float* x,
                                                       float* y) {
  quantize_block(PowerOfTwoLoop<float>{rule}, view, range, x, y);
}
#endif

template <class T, class Rule>
GradientOfBlock<T, Rule> gradient_for([[maybe_unused]] InstructionSet set) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float>) {
    if (set == InstructionSet::kAvx512) return gradient_avx512<Rule>;
    if (set == InstructionSet::kAvx2) return gradient_avx2<Rule>;
  }
#endif
  return gradient_default<T, Rule>;
}

template <class T>
QuantizedBlock<T> quantize_for([[maybe_unused]] InstructionSet set) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float>) {
    if (set == InstructionSet::kAvx512) return quantize_avx512;
    if (set == InstructionSet::kAvx2) return quantize_avx2;
  }
#endif
  return quantize_default<T>;
}

// Blocks: other element types and activations are converted on the way.

template <class T>
struct Blocks {
  alignas(64) T x[kBlock];
  alignas(64) T activated[kBlock];
  alignas(64) T dy[kBlock];
  alignas(64) T out[kBlock];
};

/// A block of the tensor in the type of the arithmetic: the tensor's own memory where it has that type.
template <class T>
const T* read_block(ElementType element, const void* tensor, std::int64_t first, std::int64_t length,
                    T* block) {
  if (element == ElementType::kHalf) {
    load<Half>(tensor, first, length, block);
  } else if (element == ElementType::kBFloat16) {
    load<BFloat16>(tensor, first, length, block);
  } else {
    return static_cast<const T*>(tensor) + first;
  }
  return block;
}

template <class T>
T* out_block(ElementType element, void* tensor, std::int64_t first, T* block) {
  const bool converts = element == ElementType::kHalf || element == ElementType::kBFloat16;
  return converts ? block : static_cast<T*>(tensor) + first;
}

template <class T>
void write_block(ElementType element, const T* block, std::int64_t first, std::int64_t length, void* tensor) {
  if (element == ElementType::kHalf) store<Half>(block, first, length, tensor);
  if (element == ElementType::kBFloat16) store<BFloat16>(block, first, length, tensor);
}

template <class T, class Rule>
void activate_block(const LearnedJob<T, Rule>& job, const T* x, std::int64_t length, T* activated) {
  const T slope = job.negative_slope;
  const T upper = job.activation_upper;
#pragma omp simd
  for (std::int64_t i = 0; i < length; ++i)
    activated[i] = activate(x[i], slope, upper);
}

template <class T, class Rule>
void slope_block(const LearnedJob<T, Rule>& job, const T* x, std::int64_t length, T* dx) {
  const T negative_slope = job.negative_slope;
  const T upper = job.activation_upper;
#pragma omp simd
  for (std::int64_t i = 0; i < length; ++i) {
    const T slope = activation_slope(x[i], negative_slope, upper);
    dx[i] = slope == T(0) ? T(0) : dx[i] * slope;
  }
}

}  // namespace

template <class T, class Rule>
void run_learned_gradient(const LearnedJob<T, Rule>& job, std::int64_t begin, std::int64_t end,
                          InstructionSet set, double* sums) {
  const auto gradient = gradient_for<T, Rule>(set);
  Blocks<T> blocks;
  for (; begin < end; begin += kBlock) {
    const Range range{begin, std::min(begin + kBlock, end)};
    const std::int64_t length = range.end - range.begin;
    const T* const x = read_block(job.element, job.x, begin, length, blocks.x);
    const T* const dy = read_block(job.element, job.dy, begin, length, blocks.dy);
    T* const dx = out_block(job.element, job.out, begin, blocks.out);
    if (job.has_activation) activate_block(job, x, length, blocks.activated);
    gradient(job.rule, job.view, range, job.has_activation ? blocks.activated : x, dy, dx, sums);
    if (job.has_activation) slope_block(job, x, length, dx);
    write_block(job.element, dx, begin, length, job.out);
  }
}

template <class T>
void run_power_of_two(const LearnedJob<T, PowerOfTwoRule<T>>& job, std::int64_t begin, std::int64_t end,
                      InstructionSet set) {
  const auto quantize = quantize_for<T>(set);
  Blocks<T> blocks;
  for (; begin < end; begin += kBlock) {
    const Range range{begin, std::min(begin + kBlock, end)};
    const std::int64_t length = range.end - range.begin;
    const T* const x = read_block(job.element, job.x, begin, length, blocks.x);
    T* const y = out_block(job.element, job.out, begin, blocks.out);
    if (job.has_activation) activate_block(job, x, length, blocks.activated);
    quantize(job.rule, job.view, range, job.has_activation ? blocks.activated : x, y);
    write_block(job.element, y, begin, length, job.out);
  }
}

template void run_learned_gradient(const LearnedJob<float, UniformRule<float>>&, std::int64_t, std::int64_t,
                                   InstructionSet, double*);
template void run_learned_gradient(const LearnedJob<double, UniformRule<double>>&, std::int64_t, std::int64_t,
                                   InstructionSet, double*);
template void run_learned_gradient(const LearnedJob<float, PowerOfTwoRule<float>>&, std::int64_t,
                                   std::int64_t, InstructionSet, double*);
template void run_learned_gradient(const LearnedJob<double, PowerOfTwoRule<double>>&, std::int64_t,
                                   std::int64_t, InstructionSet, double*);
template void run_power_of_two(const LearnedJob<float, PowerOfTwoRule<float>>&, std::int64_t, std::int64_t,
                               InstructionSet);
template void run_power_of_two(const LearnedJob<double, PowerOfTwoRule<double>>&, std::int64_t, std::int64_t,
                               InstructionSet);

}  // namespace qat::kernels
