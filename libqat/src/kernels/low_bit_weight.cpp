#include "kernels/low_bit_weight.h"

#include "kernels/pack.h"
#include <qat/numerics/low_bit_weight.h>

#include <type_traits>

namespace qat::kernels {
namespace {

// The loops; inlined into one function for each instruction set.

template <LowBitTask task, class T>
[[gnu::always_inline]] inline T result(T x, T dy, T scale, T threshold, T levels, T largest) {
  switch (task) {
    case LowBitTask::kBinary:
      return binary_code(x) * scale;
    case LowBitTask::kTernary:
      return ternary_code(x, threshold) * scale;
    case LowBitTask::kDorefa:
      return dorefa_code(x, largest, levels) * scale;
    case LowBitTask::kBinaryGradient:
      return binary_gradient(x, dy);
    case LowBitTask::kTernaryGradient:
      return ternary_gradient(x, dy);
    case LowBitTask::kDorefaGradient:
      return dorefa_gradient(x, dy, largest);
  }
}

template <LowBitTask task, int step, class T>
[[gnu::always_inline]] inline void run_elements(const LowBitJob<T>& job, std::int64_t begin,
                                                std::int64_t end) {
  constexpr bool has_dy = task == LowBitTask::kBinaryGradient || task == LowBitTask::kTernaryGradient ||
                          task == LowBitTask::kDorefaGradient;
  const T levels = job.levels;
  const T largest = job.largest;
  while (begin < end) {
    const Run run = run_at<step>(job.view, begin, end);
    const T* const x = job.x + begin;
    const T* const dy = job.dy + (has_dy ? begin : 0);
    T* const out = job.out + begin;
    const T* const scale = job.scale + (has_dy ? 0 : run.channel);
    const T* const threshold = job.threshold + (task == LowBitTask::kTernary ? run.channel : 0);
#pragma omp simd
    for (std::int64_t i = 0; i < run.length; ++i) {
      out[i] = result<task>(x[i], has_dy ? dy[i] : T(0), has_dy ? T(1) : scale[i * step],
                            task == LowBitTask::kTernary ? threshold[i * step] : T(0), levels, largest);
    }
    begin += run.length;
  }
}

template <class T>
[[gnu::always_inline]] inline void elements(const LowBitJob<T>& job, std::int64_t begin, std::int64_t end) {
  const bool across = job.view.channel_step() == 1;
  switch (job.task) {
    case LowBitTask::kBinary:
      return across ? run_elements<LowBitTask::kBinary, 1>(job, begin, end)
                    : run_elements<LowBitTask::kBinary, 0>(job, begin, end);
    case LowBitTask::kTernary:
      return across ? run_elements<LowBitTask::kTernary, 1>(job, begin, end)
                    : run_elements<LowBitTask::kTernary, 0>(job, begin, end);
    case LowBitTask::kDorefa:
      return run_elements<LowBitTask::kDorefa, 0>(job, begin, end);
    case LowBitTask::kBinaryGradient:
      return run_elements<LowBitTask::kBinaryGradient, 0>(job, begin, end);
    case LowBitTask::kTernaryGradient:
      return run_elements<LowBitTask::kTernaryGradient, 0>(job, begin, end);
    case LowBitTask::kDorefaGradient:
      return run_elements<LowBitTask::kDorefaGradient, 0>(job, begin, end);
  }
}

/// The magnitudes of a run that are above a threshold, if there is one, and their number.
template <int step, class T>
[[gnu::always_inline]] inline void sum_run(const LowBitJob<T>& job, Run run, const T* x, double* sums) {
  const bool counts = job.threshold != nullptr;
  const Pack<T> none = fill_pack(T(-1));
  const Pack<T> one = counts ? fill_pack(job.threshold[run.channel]) : none;
  PackSums<T> magnitudes = {};
  PackSums<T> kept = {};
  for (std::int64_t i = 0; i < run.length; i += kPack<T>) {
    const std::int64_t n = run.length - i < kPack<T> ? run.length - i : kPack<T>;
    read_ahead(x + i);
    const auto w = load_pack(x + i, n, T(0));
    const auto magnitude = low_bit_magnitude(w);
    double* const sum = sums + run.channel + i;
    if (!counts) {
      if (step == 0) magnitudes.add(magnitude);
      if (step == 1) PackSums<T>::add_to(sum, magnitude, n);
      continue;
    }
    const auto threshold = step == 0 ? one : load_pack(job.threshold + run.channel + i, n, T(0));
    const auto above = ternary_kept(w, threshold, magnitude);
    const auto count = ternary_kept(w, threshold, fill_pack(T(1)));
    if (step == 0) {
      magnitudes.add(above);
      kept.add(count);
    } else {
      PackSums<T>::add_to(sum, above, n);
      PackSums<T>::add_to(sum + job.view.channels, count, n);
    }
  }
  if (step == 1) return;
  sums[run.channel] += magnitudes.total();
  sums[job.view.channels + run.channel] += kept.total();
}

template <int step, class T>
[[gnu::always_inline]] inline void sum_runs(const LowBitJob<T>& job, std::int64_t begin, std::int64_t end,
                                            double* sums) {
  while (begin < end) {
    const Run run = run_at<step>(job.view, begin, end);
    sum_run<step>(job, run, job.x + begin, sums);
    begin += run.length;
  }
}

template <class T>
[[gnu::always_inline]] inline void all_sums(const LowBitJob<T>& job, std::int64_t begin, std::int64_t end,
                                            double* sums) {
  job.view.channel_step() == 1 ? sum_runs<1>(job, begin, end, sums) : sum_runs<0>(job, begin, end, sums);
}

template <class T>
[[gnu::always_inline]] inline T largest(const T* x, std::int64_t begin, std::int64_t end) {
  Pack<T> most[2] = {};
  Pack<T> zero[2] = {};  // x - x where finite: NaN stays
  for (std::int64_t i = begin; i < end; i += 2 * kPack<T>) {
    read_ahead(x + i);
    for (int j = 0; j < 2; ++j) {
      const std::int64_t at = i + j * kPack<T>;
      if (at >= end) break;
      const auto w = load_pack(x + at, end - at < kPack<T> ? end - at : kPack<T>, T(0));
      const auto magnitude = low_bit_magnitude(w);
      most[j] = magnitude > most[j] ? magnitude : most[j];
      zero[j] = w == w ? zero[j] : w;
    }
  }
  T result = 0;
  for (int j = 0; j < 2; ++j) {
    for (std::int64_t k = 0; k < kPack<T>; ++k) {
      if (zero[j][k] != zero[j][k]) return zero[j][k];
      result = most[j][k] > result ? most[j][k] : result;
    }
  }
  return result;
}

/// The three loops of one instruction set.
template <class T>
struct Loops {
  void (*elements)(const LowBitJob<T>&, std::int64_t, std::int64_t);
  void (*sums)(const LowBitJob<T>&, std::int64_t, std::int64_t, double*);
  T (*largest)(const T*, std::int64_t, std::int64_t);
};

template <class T>
void elements_default(const LowBitJob<T>& job, std::int64_t begin, std::int64_t end) {
  elements(job, begin, end);
}
template <class T>
void sums_default(const LowBitJob<T>& job, std::int64_t begin, std::int64_t end, double* sums) {
  all_sums(job, begin, end, sums);
}
template <class T>
T largest_default(const T* x, std::int64_t begin, std::int64_t end) {
  return largest(x, begin, end);
}

#if defined(__x86_64__)
[[gnu::target("arch=x86-64-v3")]] void elements_avx2(const LowBitJob<float>& job, std::int64_t begin,
                                                     std::int64_t end) {
  elements(job, begin, end);
}
[[gnu::target("arch=x86-64-v3")]] void sums_avx2(const LowBitJob<float>& job, std::int64_t begin,
                                                 std::int64_t end, double* sums) {
  all_sums(job, begin, end, sums);
}
[[gnu::target("arch=x86-64-v3")]] float largest_avx2(const float* x, std::int64_t begin, std::int64_t end) {
  return largest(x, begin, end);
}
[[gnu::target("arch=x86-64-v4")]] void elements_avx512(const LowBitJob<float>& job, std::int64_t begin,
                                                       std::int64_t end) {
  elements(job, begin, end);
}
#endif

/// float64 tensors, which are rare, have the portable loops.
template <class T>
Loops<T> loops_for([[maybe_unused]] InstructionSet set) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float>) {
    if (set == InstructionSet::kAvx512) return {elements_avx512, sums_avx2, largest_avx2};
    if (set == InstructionSet::kAvx2) return {elements_avx2, sums_avx2, largest_avx2};
  }
#endif
  return {elements_default<T>, sums_default<T>, largest_default<T>};
}

}  // namespace

void run_low_bit(const LowBitJob<float>& job, std::int64_t begin, std::int64_t end, InstructionSet set) {
  loops_for<float>(set).elements(job, begin, end);
}
void run_low_bit(const LowBitJob<double>& job, std::int64_t begin, std::int64_t end, InstructionSet set) {
  loops_for<double>(set).elements(job, begin, end);
}

void run_low_bit_sums(const LowBitJob<float>& job, std::int64_t begin, std::int64_t end, InstructionSet set,
                      double* sums) {
  loops_for<float>(set).sums(job, begin, end, sums);
}
void run_low_bit_sums(const LowBitJob<double>& job, std::int64_t begin, std::int64_t end, InstructionSet set,
                      double* sums) {
  loops_for<double>(set).sums(job, begin, end, sums);
}

float run_largest_magnitude(const float* x, std::int64_t begin, std::int64_t end, InstructionSet set) {
  return loops_for<float>(set).largest(x, begin, end);
}
double run_largest_magnitude(const double* x, std::int64_t begin, std::int64_t end, InstructionSet set) {
  return loops_for<double>(set).largest(x, begin, end);
}

}  // namespace qat::kernels
