#pragma once

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

/// Bytes that the model's parameters take: quantized weights at their bit width, all others (int32 biases
/// too) at 4 bytes.
std::int64_t parameter_bytes(torch::nn::Module& model);

}  // namespace qat::apps
