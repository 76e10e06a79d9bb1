#pragma once

#include <qat/nn/quantization_quality.h>
#include <qat/schedulers/quantized_tensor.h>

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace qat::apps {

/// One occupied slot of a quantized model.
struct SlotRow {
  std::string path;       ///< of the layer: "stage1_block1.conv1".
  std::string type;       ///< of the layer: "Conv2d".
  std::string slot;       ///< "weight", "bias", "input", "output".
  std::string quantizer;  ///< as it prints itself.
  /// Of real = scale * (code - zero_point); over the channels. 0 where the slot has no scale of its own
  /// (bias).
  double smallest_scale = 0;
  double largest_scale = 0;
  /// The real values of the lowest and highest code, over the channels.
  double low = 0;
  double high = 0;
  /// Weights only: how many codes fall into each of 32 equal parts of [qmin, qmax].
  std::vector<std::int64_t> histogram;
};

/// The occupied slots of a model, layer by layer.
std::vector<SlotRow> slot_table(torch::nn::Module& model);

/// The quality of the quantizer that a tensor passes; where the slot is a link, of the one that it refers to.
/// Without numbers for outputs of Cat, which pass none.
nn::SlotQuality quality_of(torch::nn::Module& model, const QuantizedTensor& tensor,
                           const std::vector<nn::SlotQuality>& all);

/// The packed weight of one layer of a quantized model.
struct WeightRow {
  std::string path;               ///< of the layer.
  std::int64_t bits = 0;          ///< of a weight.
  std::int64_t count = 0;         ///< of weights.
  std::int64_t packed_bytes = 0;  ///< codes at their width, scales, int32 biases.
};

/// The packed weights of a model, layer by layer; none in float.
std::vector<WeightRow> weight_table(torch::nn::Module& model);
/// Their bytes in all: the size that a weight budget limits.
std::int64_t packed_bytes(const std::vector<WeightRow>& rows);
/// Bits of a weight, in the mean over all weights; 0 without rows.
double mean_bits(const std::vector<WeightRow>& rows);
/// "conv:4 fc:3".
std::string layer_bits(const std::vector<WeightRow>& rows);

/// Bytes that the model's parameters take: quantized weights at their bit width, all others (int32 biases
/// too) at 4 bytes.
std::int64_t parameter_bytes(torch::nn::Module& model);

}  // namespace qat::apps
