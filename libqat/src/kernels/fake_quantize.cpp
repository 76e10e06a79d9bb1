#include "kernels/fake_quantize.h"

#include "kernels/block.h"

#include <algorithm>

namespace qat::kernels {
namespace {

/// The elements [begin, end) of a tensor; the pointers point at element `begin`.
template <class T>
struct Part {
  std::int64_t begin;
  std::int64_t end;
  const T* x;
  const T* dy;
  T* out;
  std::uint8_t* mask;
};

// The loops; inlined into one function for each instruction set.

template <Rounding rounding, bool dequantize, int step, class T>
[[gnu::always_inline]] inline void quantize(const FakeQuantizeJob<T>& job, Part<T> part) {
  while (part.begin < part.end) {
    const Run run = run_at<step>(job.view, part.begin, part.end);
    const T* const scale = job.scale + run.channel;
    const T* const zero_point = job.zero_point + run.channel;
    const T* const low = job.low + run.channel;
    const T* const high = job.high + run.channel;
#pragma omp simd
    for (std::int64_t i = 0; i < run.length; ++i) {
      const std::int64_t c = i * step;
      const T code = affine_code<rounding>(part.x[i], scale[c], zero_point[c], low[c], high[c]);
      part.out[i] = dequantize ? affine_real(code, scale[c], zero_point[c]) : code;
    }
    part.begin += run.length;
    part.x += run.length;
    part.out += run.length;
  }
}

template <Rounding rounding, int step, class T>
[[gnu::always_inline]] inline void quantize_and_mask(const FakeQuantizeJob<T>& job, Part<T> part) {
  // A gradient that is not clipped passes whatever the code.
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const T qmin = job.clipped ? job.qmin : -infinity;
  const T qmax = job.clipped ? job.qmax : infinity;
  const T slope_from = job.slope_from;
  const T slope_to = job.slope_to;
  while (part.begin < part.end) {
    const Run run = run_at<step>(job.view, part.begin, part.end);
    const T* const scale = job.scale + run.channel;
    const T* const zero_point = job.zero_point + run.channel;
    const T* const low = job.low + run.channel;
    const T* const high = job.high + run.channel;
    const T* const from = part.x;
    T* const to = part.out;
    std::uint8_t* const mask = part.mask;  // bytes may alias anything: the pointers must not be read again
#pragma omp simd
    for (std::int64_t i = 0; i < run.length; ++i) {
      const std::int64_t c = i * step;
      const T x = from[i];
      const T code = affine_raw_code<rounding>(x, scale[c], zero_point[c]);
      to[i] = affine_real(clamp_code(code, low[c], high[c]), scale[c], zero_point[c]);
      const bool passes = affine_passes(code, qmin, qmax) & (x > slope_from) & (x <= slope_to);
      mask[i] = static_cast<std::uint8_t>(passes ? 1 : 0);
    }
    part.begin += run.length;
    part.x += run.length;
    part.out += run.length;
    part.mask += run.length;
  }
}

template <class T>
[[gnu::always_inline]] inline void pass_mask(const Part<T>& part) {
  const std::uint8_t* const mask = part.mask;
  const T* const dy = part.dy;
  T* const out = part.out;
#pragma omp simd
  for (std::int64_t i = 0; i < part.end - part.begin; ++i) {
    const T gradient = dy[i];
    out[i] = mask[i] != 0 ? gradient : T(0);
  }
}

template <Rounding rounding, int step, class T>
[[gnu::always_inline]] inline void pass_clipped(const FakeQuantizeJob<T>& job, Part<T> part) {
  const T qmin = job.qmin;
  const T qmax = job.qmax;
  const T slope_from = job.slope_from;
  const T slope_to = job.slope_to;
  while (part.begin < part.end) {
    const Run run = run_at<step>(job.view, part.begin, part.end);
    const T* const scale = job.scale + run.channel;
    const T* const zero_point = job.zero_point + run.channel;
#pragma omp simd
    for (std::int64_t i = 0; i < run.length; ++i) {
      const T x = part.x[i];
      const T code = affine_raw_code<rounding>(x, scale[i * step], zero_point[i * step]);
      const bool passes = affine_passes(code, qmin, qmax) & (x > slope_from) & (x <= slope_to);
      part.out[i] = passes ? part.dy[i] : T(0);
    }
    part.begin += run.length;
    part.x += run.length;
    part.dy += run.length;
    part.out += run.length;
  }
}

template <class T>
[[gnu::always_inline]] inline void pass_unclipped(const FakeQuantizeJob<T>& job, const Part<T>& part) {
  if (job.is_leaky) {  // the slope follows in run_blocks; -inf and NaN pass too
    std::copy(part.dy, part.dy + (part.end - part.begin), part.out);
    return;
  }
  const T slope_from = job.slope_from;
  const T slope_to = job.slope_to;
#pragma omp simd
  for (std::int64_t i = 0; i < part.end - part.begin; ++i) {
    const T x = part.x[i];
    part.out[i] = (x > slope_from) & (x <= slope_to) ? part.dy[i] : T(0);
  }
}

template <Rounding rounding, int step, class T>
[[gnu::always_inline]] inline void run_loop(const FakeQuantizeJob<T>& job, const Part<T>& part) {
  switch (job.task) {
    case FakeQuantizeTask::kForward:
      return quantize<rounding, true, step>(job, part);
    case FakeQuantizeTask::kCodes:
      return quantize<rounding, false, step>(job, part);
    case FakeQuantizeTask::kForwardMask:
      return quantize_and_mask<rounding, step>(job, part);
    case FakeQuantizeTask::kBackward:
      return pass_clipped<rounding, step>(job, part);
    case FakeQuantizeTask::kBackwardOfMask:
      return pass_mask(part);
  }
}

template <Rounding rounding, class T>
[[gnu::always_inline]] inline void run_loop(const FakeQuantizeJob<T>& job, const Part<T>& part) {
  job.view.channel_step() == 1 ? run_loop<rounding, 1>(job, part) : run_loop<rounding, 0>(job, part);
}

template <class T>
[[gnu::always_inline]] inline void run_loop(const FakeQuantizeJob<T>& job, const Part<T>& part) {
  if (job.task == FakeQuantizeTask::kBackward && !job.clipped) return pass_unclipped(job, part);
  switch (job.rounding) {
    case Rounding::kHalfToEven:
      return run_loop<Rounding::kHalfToEven>(job, part);
    case Rounding::kHalfAwayFromZero:
      return run_loop<Rounding::kHalfAwayFromZero>(job, part);
    case Rounding::kHalfUp:
      return run_loop<Rounding::kHalfUp>(job, part);
  }
}

// What does not work in the tensor's own memory (other element types, activations with arithmetic) goes
// through blocks that stay in the first-level cache.

template <class T>
[[gnu::always_inline]] inline bool store_codes(const T* block, std::int64_t first, std::int64_t length,
                                               void* tensor) {
  auto* const to = static_cast<std::int32_t*>(tensor) + first;
  std::int32_t nans = 0;
#pragma omp simd reduction(| : nans)
  for (std::int64_t i = 0; i < length; ++i) {
    const bool is_nan = block[i] != block[i];
    nans |= is_nan ? 1 : 0;
    to[i] = static_cast<std::int32_t>(is_nan ? T(0) : block[i]);
  }
  return nans != 0;
}

template <class T>
using Loop = void (*)(const FakeQuantizeJob<T>&, const Part<T>&);

template <class E, class T>
[[gnu::always_inline]] inline bool run_blocks(const FakeQuantizeJob<T>& job, std::int64_t begin,
                                              std::int64_t end, Loop<T> loop) {
  const bool of_mask = job.task == FakeQuantizeTask::kBackwardOfMask;
  const bool backward = job.task == FakeQuantizeTask::kBackward || of_mask;
  alignas(64) T x[kBlock];
  alignas(64) T activated[kBlock];
  alignas(64) T dy[kBlock];
  alignas(64) T out[kBlock];
  bool has_nan = false;
  for (; begin < end; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, end - begin);
    if (!of_mask) load<E>(job.x, begin, length, x);
    if (backward) load<E>(job.dy, begin, length, dy);
    if (job.is_leaky) {
#pragma omp simd
      for (std::int64_t i = 0; i < length; ++i)
        activated[i] = activate(x[i], job.negative_slope, job.upper);
    }
    loop(job, Part<T>{begin, begin + length, job.is_leaky ? activated : x, dy, out,
                      job.mask != nullptr ? job.mask + begin : nullptr});
    if (job.is_leaky && backward) {
#pragma omp simd
      for (std::int64_t i = 0; i < length; ++i) {
        const T slope = activation_slope(x[i], job.negative_slope, job.upper);
        out[i] = slope == T(0) ? T(0) : out[i] * slope;
      }
    }
    if (job.task == FakeQuantizeTask::kCodes) {
      has_nan |= store_codes(out, begin, length, job.out);
    } else {
      store<E>(out, begin, length, job.out);
    }
  }
  return has_nan;
}

template <class T>
[[gnu::always_inline]] inline bool run_native(const FakeQuantizeJob<T>& job, std::int64_t begin,
                                              std::int64_t end, Loop<T> loop) {
  if (job.is_leaky || job.task == FakeQuantizeTask::kCodes) return run_blocks<T>(job, begin, end, loop);
  const auto from = [&](const void* tensor) {
    return tensor != nullptr ? static_cast<const T*>(tensor) + begin : nullptr;
  };
  loop(job, Part<T>{begin, end, from(job.x), from(job.dy), static_cast<T*>(job.out) + begin,
                    job.mask != nullptr ? job.mask + begin : nullptr});
  return false;
}

[[gnu::always_inline]] inline bool run_any(const FakeQuantizeJob<float>& job, std::int64_t begin,
                                           std::int64_t end, Loop<float> loop) {
  switch (job.element) {
    case ElementType::kHalf:
      return run_blocks<Half>(job, begin, end, loop);
    case ElementType::kBFloat16:
      return run_blocks<BFloat16>(job, begin, end, loop);
    default:
      return run_native(job, begin, end, loop);
  }
}

[[gnu::always_inline]] inline bool run_any(const FakeQuantizeJob<double>& job, std::int64_t begin,
                                           std::int64_t end, Loop<double> loop) {
  return run_native(job, begin, end, loop);
}

template <class T>
[[gnu::noinline]] void loop_default(const FakeQuantizeJob<T>& job, const Part<T>& part) {
  run_loop(job, part);
}

template <class T>
bool run_default(const FakeQuantizeJob<T>& job, std::int64_t begin, std::int64_t end) {
  return run_any(job, begin, end, loop_default<T>);
}

#if defined(__x86_64__)
template <class T>
[[gnu::target("arch=x86-64-v3"), gnu::noinline]] void loop_avx2(const FakeQuantizeJob<T>& job,
                                                                const Part<T>& part) {
  run_loop(job, part);
}

template <class T>
[[gnu::target("arch=x86-64-v3")]] bool run_avx2(const FakeQuantizeJob<T>& job, std::int64_t begin,
                                                std::int64_t end) {
  return run_any(job, begin, end, loop_avx2<T>);
}

template <class T>
[[gnu::target("arch=x86-64-v4"), gnu::noinline]] void loop_avx512(const FakeQuantizeJob<T>& job,
                                                                  const Part<T>& part) {
  run_loop(job, part);
}

template <class T>
[[gnu::target("arch=x86-64-v4")]] bool run_avx512(const FakeQuantizeJob<T>& job, std::int64_t begin,
                                                  std::int64_t end) {
  return run_any(job, begin, end, loop_avx512<T>);
}
#endif

template <class T>
bool run(const FakeQuantizeJob<T>& job, std::int64_t begin, std::int64_t end, InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return run_avx512(job, begin, end);
  if (set == InstructionSet::kAvx2) return run_avx2(job, begin, end);
#else
  (void)set;
#endif
  return run_default(job, begin, end);
}

}  // namespace

bool run_fake_quantize(const FakeQuantizeJob<float>& job, std::int64_t begin, std::int64_t end,
                       InstructionSet set) {
  return run(job, begin, end, set);
}

bool run_fake_quantize(const FakeQuantizeJob<double>& job, std::int64_t begin, std::int64_t end,
                       InstructionSet set) {
  return run(job, begin, end, set);
}

}  // namespace qat::kernels
