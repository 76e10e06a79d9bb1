#pragma once

#include <qat/integer/packed_weights.h>
#include <qat/quantizers/quantizer.h>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace qat::nn {

/// The quantized weights of a model in TRAINING as they are stored: for each layer whose weight has a
/// quantizer, by path, numbers at their width, scales, zero points if the quantizer can have others than 0,
/// and int32 biases.
///
/// What is stored is complete: `unpack_weight` gives the values of the quantizer's forward, which is checked
/// for float32 weights. Uniform weights store the quantizer's codes; binary and DoReFa weights
/// PackedCoding::kOdd; power-of-two weights kPowerOfTwo. Throws: c10::ValueError naming the layer whose codes
/// do not fit, whose bias leaves int32, whose weight holds a NaN, or whose values no coding has (a quantizer
/// of your own).
std::vector<std::pair<std::string, PackedLayer>> pack_weights(torch::nn::Module& model);

/// The bytes that a weight's quantizer stores beside the codes: 4 for each scale and zero point. `weight`:
/// for quantizers whose scale follows it.
std::int64_t packed_constant_bytes(Quantizer& quantizer, const torch::Tensor& weight);

}  // namespace qat::nn
