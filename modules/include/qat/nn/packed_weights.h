#pragma once

#include <qat/integer/packed_weights.h>

#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

namespace qat::nn {

/// The quantized weights of a model in TRAINING as they are stored: for each layer whose weight has a
/// quantizer, by path, codes at their width, scales, and int32 biases.
///
/// Codes are those of the quantizer, real = scale * code, with two exceptions: binary and DoReFa weights
/// store q (unsigned) for the code 2 q - (2^bits - 1); power-of-two weights store the index of the magnitude,
/// 0 for xmin, 1 for 2 xmin, ..., plus the number of magnitudes for negative values (with a zero: index + 1,
/// and 0 for it). Throws: c10::ValueError naming the layer whose codes do not fit.
std::vector<std::pair<std::string, PackedLayer>> pack_weights(torch::nn::Module& model);

}  // namespace qat::nn
