#pragma once

#include "kernels/channel_view.h"
#include "kernels/instruction_set.h"

#include <cstdint>

namespace qat::kernels {

enum class LowBitTask : std::int8_t {
  kBinary,           ///< x -> out: values.
  kTernary,          ///< x -> out: values.
  kDorefa,           ///< tanh(x) -> out: values.
  kBinaryGradient,   ///< x, dy -> out: the gradient of x.
  kTernaryGradient,  ///< x, dy -> out: the gradient of x.
  kDorefaGradient,   ///< tanh(x), dy -> out: the gradient of x.
};

/// One pass over a dense tensor of float or double. Values are codes where the scales are 1.
template <class T>
struct LowBitJob {
  LowBitTask task = LowBitTask::kBinary;
  ChannelView view;
  const T* scale = nullptr;      ///< one for each channel of the view.
  const T* threshold = nullptr;  ///< ternary: one for each channel.
  T levels = 1;                  ///< DoReFa.
  T largest = 1;                 ///< DoReFa: the largest |tanh(x)|, not 0.
  const T* x = nullptr;
  const T* dy = nullptr;
  T* out = nullptr;
};

/// Does the elements [begin, end), which are independent of each other.
void run_low_bit(const LowBitJob<float>& job, std::int64_t begin, std::int64_t end, InstructionSet set);
void run_low_bit(const LowBitJob<double>& job, std::int64_t begin, std::int64_t end, InstructionSet set);

/// Sums of a ternary tensor: what is kept and how many; without thresholds: |x| and nothing.
inline constexpr int kLowBitSums = 2;

/// Adds those of the elements [begin, end) to sums[k * channels + channel] in float64, in an order that
/// depends on `begin` and `end` alone.
void run_low_bit_sums(const LowBitJob<float>& job, std::int64_t begin, std::int64_t end, InstructionSet set,
                      double* sums);
void run_low_bit_sums(const LowBitJob<double>& job, std::int64_t begin, std::int64_t end, InstructionSet set,
                      double* sums);

/// The largest |x| of the elements [begin, end); NaN if one of them is.
float run_largest_magnitude(const float* x, std::int64_t begin, std::int64_t end, InstructionSet set);
double run_largest_magnitude(const double* x, std::int64_t begin, std::int64_t end, InstructionSet set);

}  // namespace qat::kernels
