#pragma once

#include <qat/quantizers/low_bit_weight_quantizer.h>

#include <torch/types.h>

namespace qat::detail {

/// What the fused passes over a weight tensor give.
struct LowBitResult {
  torch::Tensor scale;   ///< [] or, with an axis, [C]; type of the weights.
  torch::Tensor values;  ///< undefined if not asked for.
  double largest = 1;    ///< DoReFa, with values: largest_tanh.
  torch::Tensor tanh;    ///< DoReFa, kLearning: tanh(w).
};

/// Whether the fused passes know this tensor: on the CPU, float32 or float64, not in a trace, not empty.
bool has_low_bit_pass(const torch::Tensor& w);

/// kLearning: the values, and what the gradient needs.
enum class LowBitOutput : std::int8_t { kScale, kValues, kCodes, kLearning };

/// The scale and, as numbers of the weights' type, the values or the codes. Its statistics are float64 sums
/// in a fixed order: the bits do not depend on the number of threads. No gradient.
LowBitResult low_bit_pass(const torch::Tensor& w, const LowBitWeightOptions& options, LowBitOutput output);

/// The values, with the gradient of LowBitWeightKind.
torch::Tensor low_bit_quantize(const torch::Tensor& w, const LowBitWeightOptions& options);

/// The largest |tanh(w)|, 1 if that is 0 or NaN; [].
torch::Tensor largest_tanh(const torch::Tensor& w);

}  // namespace qat::detail
