#pragma once

#include "kernels/channel_view.h"
#include "kernels/element_type.h"
#include "kernels/instruction_set.h"
#include <qat/numerics/rounding.h>

#include <cstdint>

namespace qat::kernels {

/// Tables of a uniform grid, one entry for each channel of the view; see UniformCell; low and high are codes,
/// zero points included.
template <class T>
struct UniformRule {
  Rounding rounding = Rounding::kHalfToEven;
  const T* scale = nullptr;
  const T* zero_point = nullptr;
  const T* low = nullptr;
  const T* high = nullptr;
  const T* lower = nullptr;
  const T* upper = nullptr;
};

/// Tables of a power-of-two grid; see PowerOfTwoCell.
template <class T>
struct PowerOfTwoRule {
  bool is_signed = true;
  bool with_zero = true;
  const T* xmin = nullptr;
  const T* xmax = nullptr;
};

/// One fused pass over a dense tensor. `T` is the type of the arithmetic: double for kDouble, else float.
template <class T, class Rule>
struct LearnedJob {
  ElementType element = ElementType::kFloat;
  ChannelView view;
  Rule rule;
  bool has_activation = false;  ///< whether the two numbers below are used; see qat::Activation.
  T negative_slope = 1;
  T activation_upper = 0;
  const void* x = nullptr;
  const void* dy = nullptr;
  void* out = nullptr;
};

/// Sums of a uniform gradient: scale, lower, upper; of a power-of-two gradient: xmin, xmax, nothing.
inline constexpr int kLearnedSums = 3;

/// Elements [begin, end) of the gradient of x -> out (type of x); adds to sums[k * channels + channel] in
/// float64, in an order that depends on `begin` and `end` alone.
template <class T, class Rule>
void run_learned_gradient(const LearnedJob<T, Rule>& job, std::int64_t begin, std::int64_t end,
                          InstructionSet set, double* sums);

/// Elements [begin, end) of the quantized values -> out (type of x). (A uniform grid's are those of
/// FakeQuantizeJob.)
template <class T>
void run_power_of_two(const LearnedJob<T, PowerOfTwoRule<T>>& job, std::int64_t begin, std::int64_t end,
                      InstructionSet set);

}  // namespace qat::kernels
