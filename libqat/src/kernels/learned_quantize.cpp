#include "kernels/learned_quantize.h"

#include "kernels/block.h"
#include "kernels/pack.h"
#include <qat/numerics/affine.h>
#include <qat/numerics/power_of_two.h>
#include <qat/numerics/uniform.h>

#include <algorithm>

namespace qat::kernels {
namespace {

/// Elements [begin, end) of the tensor.
struct Range {
  std::int64_t begin;
  std::int64_t end;
};

/// Entries of a table from channel c on: that of one channel (step 0), or those of consecutive ones (step 1).
template <int step, class T>
[[gnu::always_inline]] inline Pack<T> entries(const T* table, std::int64_t c, std::int64_t count) {
  return step == 0 ? fill_pack(table[c]) : load_pack(table + c, count, T(0));
}

// The rules, pack by pack.

template <Rounding rounding, class T>
struct UniformLoop {
  UniformRule<T> rule;

  static constexpr int sums = 3;
  template <int step>
  [[gnu::always_inline]] UniformCell<Pack<T>> cell(std::int64_t c, std::int64_t count) const {
    const auto zero_point = entries<step>(rule.zero_point, c, count);
    return {entries<step>(rule.scale, c, count), entries<step>(rule.low, c, count) - zero_point,
            entries<step>(rule.high, c, count) - zero_point, entries<step>(rule.lower, c, count),
            entries<step>(rule.upper, c, count)};
  }
  [[gnu::always_inline]] Pack<T> gradient(const Pack<T>& x, const Pack<T>& dy,
                                          const UniformCell<Pack<T>>& cell, Pack<T>* added) const {
    const auto g = uniform_gradient(x, dy, cell, RoundPack<rounding, T>{});
    added[0] = g.scale;
    added[1] = g.lower;
    added[2] = g.upper;
    return g.dx;
  }
};

template <class T>
struct PowerOfTwoLoop {
  PowerOfTwoRule<T> rule;

  static constexpr int sums = 2;
  template <int step>
  [[gnu::always_inline]] PowerOfTwoCell<Pack<T>> cell(std::int64_t c, std::int64_t count) const {
    return power_of_two_cell(entries<step>(rule.xmin, c, count), entries<step>(rule.xmax, c, count),
                             rule.is_signed, rule.with_zero);
  }
  [[gnu::always_inline]] Pack<T> gradient(const Pack<T>& x, const Pack<T>& dy,
                                          const PowerOfTwoCell<Pack<T>>& cell, Pack<T>* added) const {
    const auto g = power_of_two_gradient(x, dy, cell);
    added[0] = g.xmin;
    added[1] = g.xmax;
    return g.dx;
  }
};

/// Calls body(i, n) for packs of n elements from i on, full ones with a constant n.
template <class T, class Body>
[[gnu::always_inline]] inline void for_packs(std::int64_t length, const Body& body) {
  std::int64_t i = 0;
  for (; i + kPack<T> <= length; i += kPack<T>)
    body(i, kPack<T>);
  if (i < length) body(i, length - i);
}

/// A run of one channel.
template <class Loop, class T>
[[gnu::always_inline]] inline void gradient_of_channel(const Loop& loop, const ChannelView& view, Run run,
                                                       const T* x, const T* dy, T* dx, double* sums) {
  const auto cell = loop.template cell<0>(run.channel, kPack<T>);
  PackSums<T> totals[Loop::sums] = {};
  // What is left over is worked on in a place of its own, so that there is one loop.
  const std::int64_t left = run.length % kPack<T>;
  T last[3][kPack<T>];
  if (left > 0) {
    store_pack(load_pack(x + run.length - left, left, kNothing<T>), last[0]);
    store_pack(load_pack(dy + run.length - left, left, T(0)), last[1]);
  }
  for (std::int64_t i = 0; i < run.length; i += kPack<T>) {
    read_ahead(x + i);
    read_ahead(dy + i);
    const bool whole = i + kPack<T> <= run.length;
    Pack<T> added[Loop::sums];
    const auto passed =
        loop.gradient(load_pack(whole ? x + i : last[0]), load_pack(whole ? dy + i : last[1]), cell, added);
    store_pack(passed, whole ? dx + i : last[2]);
    for (int k = 0; k < Loop::sums; ++k)
      totals[k].add(added[k]);
  }
  std::memcpy(dx + run.length - left, last[2], static_cast<std::size_t>(left) * sizeof(T));
  for (int k = 0; k < Loop::sums; ++k)
    sums[k * view.channels + run.channel] += totals[k].total();
}

/// A run of one element of each of several channels.
template <class Loop, class T>
[[gnu::always_inline]] inline void gradient_across_channels(const Loop& loop, const ChannelView& view,
                                                            Run run, const T* x, const T* dy, T* dx,
                                                            double* sums) {
  for_packs<T>(
      run.length, [&](std::int64_t i, std::int64_t n) __attribute__((always_inline)) {
        read_ahead(x + i);
        read_ahead(dy + i);
        const auto cell = loop.template cell<1>(run.channel + i, n);
        Pack<T> added[Loop::sums];
        store_pack(loop.gradient(load_pack(x + i, n, kNothing<T>), load_pack(dy + i, n, T(0)), cell, added),
                   dx + i, n);
        for (int k = 0; k < Loop::sums; ++k)
          PackSums<T>::add_to(sums + k * view.channels + run.channel + i, added[k], n);
      });
}

template <int step, class Loop, class T>
[[gnu::always_inline]] inline void gradient_runs(const Loop& loop, const ChannelView& view, Range range,
                                                 const T* x, const T* dy, T* dx, double* sums) {
  while (range.begin < range.end) {
    const Run run = run_at<step>(view, range.begin, range.end);
    step == 0 ? gradient_of_channel(loop, view, run, x, dy, dx, sums)
              : gradient_across_channels(loop, view, run, x, dy, dx, sums);
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
  while (range.begin < range.end) {
    const Run run = run_at<step>(view, range.begin, range.end);
    const auto one = loop.template cell<0>(run.channel, kPack<T>);
    for_packs<T>(
        run.length, [&](std::int64_t i, std::int64_t n) __attribute__((always_inline)) {
          read_ahead(x + i);
          const auto cell = step == 0 ? one : loop.template cell<step>(run.channel + i, n);
          store_pack(power_of_two_real(load_pack(x + i, n, T(0)), cell), out + i, n);
        });
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

// With the activation before the quantizer, in a block that stays in the cache.

template <class T, class Rule>
[[gnu::always_inline]] inline void activate_block(const LearnedJob<T, Rule>& job, const T* x,
                                                  std::int64_t length, T* activated) {
  const T slope = job.negative_slope;
  const T upper = job.activation_upper;
#pragma omp simd
  for (std::int64_t i = 0; i < length; ++i)
    activated[i] = activate(x[i], slope, upper);
}

template <class T, class Rule>
[[gnu::always_inline]] inline void slope_block(const LearnedJob<T, Rule>& job, const T* x,
                                               std::int64_t length, T* dx) {
  const T negative_slope = job.negative_slope;
  const T upper = job.activation_upper;
#pragma omp simd
  for (std::int64_t i = 0; i < length; ++i) {
    const T slope = activation_slope(x[i], negative_slope, upper);
    dx[i] = slope == T(0) ? T(0) : dx[i] * slope;
  }
}

/// Elements of one block: x, dy -> dx; adds to the sums. `activated`: room for a block.
template <class T, class Rule>
[[gnu::always_inline]] inline void gradient_in_block(const LearnedJob<T, Rule>& job, Range range, const T* x,
                                                     const T* dy, T* activated, T* dx, double* sums) {
  const std::int64_t length = range.end - range.begin;
  if (!job.has_activation) return gradient_of_block(job.rule, job.view, range, x, dy, dx, sums);
  activate_block(job, x, length, activated);
  gradient_of_block(job.rule, job.view, range, activated, dy, dx, sums);
  slope_block(job, x, length, dx);
}

/// Elements of one block: x -> y.
template <class T>
[[gnu::always_inline]] inline void quantize_in_block(const LearnedJob<T, PowerOfTwoRule<T>>& job, Range range,
                                                     const T* x, T* activated, T* y) {
  if (job.has_activation) activate_block(job, x, range.end - range.begin, activated);
  quantize_block(PowerOfTwoLoop<T>{job.rule}, job.view, range, job.has_activation ? activated : x, y);
}

template <class T, class Rule>
using GradientInBlock = void (*)(const LearnedJob<T, Rule>&, Range, const T*, const T*, T*, T*, double*);
template <class T>
using QuantizeInBlock = void (*)(const LearnedJob<T, PowerOfTwoRule<T>>&, Range, const T*, T*, T*);

// One function for each instruction set; float64 tensors, which are rare, have the portable one.

template <class T, class Rule>
void gradient_default(const LearnedJob<T, Rule>& job, Range range, const T* x, const T* dy, T* activated,
                      T* dx, double* sums) {
  gradient_in_block(job, range, x, dy, activated, dx, sums);
}
template <class T>
void quantize_default(const LearnedJob<T, PowerOfTwoRule<T>>& job, Range range, const T* x, T* activated,
                      T* y) {
  quantize_in_block(job, range, x, activated, y);
}

#if defined(__x86_64__)
template <class Rule>
[[gnu::target("arch=x86-64-v3")]] void gradient_avx2(const LearnedJob<float, Rule>& job, Range range,
                                                     const float* x, const float* dy, float* activated,
                                                     float* dx, double* sums) {
  gradient_in_block(job, range, x, dy, activated, dx, sums);
}
[[gnu::target("arch=x86-64-v3")]] void quantize_avx2(const LearnedJob<float, PowerOfTwoRule<float>>& job,
                                                     Range range, const float* x, float* activated,
                                                     float* y) {
  quantize_in_block(job, range, x, activated, y);
}
template <class Rule>
[[gnu::target("arch=x86-64-v4")]] void gradient_avx512(const LearnedJob<float, Rule>& job, Range range,
                                                       const float* x, const float* dy, float* activated,
                                                       float* dx, double* sums) {
  gradient_in_block(job, range, x, dy, activated, dx, sums);
}
[[gnu::target("arch=x86-64-v4")]] void quantize_avx512(const LearnedJob<float, PowerOfTwoRule<float>>& job,
                                                       Range range, const float* x, float* activated,
                                                       float* y) {
  quantize_in_block(job, range, x, activated, y);
}
#endif

template <class T, class Rule>
GradientInBlock<T, Rule> gradient_for([[maybe_unused]] InstructionSet set) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float>) {
    if (set == InstructionSet::kAvx512) return gradient_avx512<Rule>;
    if (set == InstructionSet::kAvx2) return gradient_avx2<Rule>;
  }
#endif
  return gradient_default<T, Rule>;
}

template <class T>
QuantizeInBlock<T> quantize_for([[maybe_unused]] InstructionSet set) {
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
    gradient(job, range, x, dy, blocks.activated, dx, sums);
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
    quantize(job, range, x, blocks.activated, y);
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
