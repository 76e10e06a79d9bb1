#pragma once

#include <qat/nn/quantization_quality.h>
#include <qat/schedulers/quantized_tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/run_config.h"
#include "support/slot_table.h"

namespace qat::apps {

/// One epoch: a row of metrics.csv.
struct MetricsRow {
  std::string phase;       ///< "float" or "qat".
  std::int64_t epoch = 0;  ///< from 1 in each phase.
  double loss = 0;
  double train_accuracy = 0;  ///< fractions of 1.
  double test_accuracy = 0;
  double learning_rate = 0;       ///< of the first step.
  double seconds = 0;             ///< of training, without the test.
  std::int64_t packed_bytes = 0;  ///< quantized epochs: of the packed weights.
  std::string weight_bits;        ///< quantized epochs: the width of each layer's weights, "conv:4 fc:3".
  /// Quantized epochs, not in metrics.csv:
  double mean_bits = 0;               ///< width of a weight.
  std::int64_t activation_bytes = 0;  ///< as the activation budget counts.
  double mean_activation_bits = 0;    ///< width of an element.
};

/// One quantized tensor after a quantized epoch: a row of layers.csv.
struct LayerRow {
  std::int64_t epoch = 0;  ///< from 1.
  QuantizedTensor tensor;
  std::int64_t budget_bytes = 0;  ///< of all tensors of its kind (largest: of each one); 0: no budget.
  nn::SlotQuality quality = {};   ///< of its quantizer, on images of the test set.
};

/// Everything that a training run found out. Accuracies are fractions of 1, on the test set.
struct RunResult {
  RunConfig config;
  std::string phase;  ///< of the final checkpoint: "TRAINING".
  std::vector<MetricsRow> rows;
  std::vector<LayerRow> layers;
  double float_accuracy = 0;
  double qat_accuracy = 0;            ///< of the quantized model in eval mode.
  double deployed_accuracy = 0;       ///< of the exported file, read back.
  std::int64_t float_size_bytes = 0;  ///< parameters at 4 bytes each.
  std::int64_t size_bytes = 0;    ///< quantized weights at their bit width, all other parameters at 4 bytes.
  std::int64_t packed_bytes = 0;  ///< packed weights: codes at their width, scales, int32 biases.
  std::int64_t activation_bytes = 0;     ///< of a sample, as the activation budget counts.
  std::int64_t exported_file_bytes = 0;  ///< the TorchScript file.
  std::string digest;                    ///< SHA-256 over all tensors of the final checkpoint.
  std::int64_t codes_compared = 0;  ///< predictions on the test set, of the model and of the exported file.
  std::int64_t codes_different = 0;
  double largest_output_difference = 0;                          ///< between them.
  std::vector<std::pair<std::string, double>> seconds_per_step;  ///< by phase: float, recording, training.
  double seconds = 0;                                            ///< of the whole run.
  std::vector<SlotRow> slots;
  std::vector<WeightRow> weights;
  std::string notes;  ///< what the scheduler reports: folds, operations without a slot.
};

/// The text of metrics.csv, with a head line.
std::string metrics_csv(const std::vector<MetricsRow>& rows);
/// The text of layers.csv, with a head line.
std::string layers_csv(const std::vector<LayerRow>& rows);
/// The budget in force for tensors of that kind, in bytes; 0 if there is none.
std::int64_t budget_bytes(const RunConfig& config, QuantizedTensor::Kind kind);
/// The bytes of the activations among the tensors, as the activation budget counts them: their sum, or the
/// largest.
std::int64_t activation_bytes(const RunConfig& config, const std::vector<QuantizedTensor>& tensors);
/// Bits of an element of the activations among the tensors, in the mean; 0 without any.
double mean_activation_bits(const std::vector<QuantizedTensor>& tensors);
/// The text of summary.json.
std::string summary_json(const RunResult& result);
/// The table for standard output: accuracy and size in float, quantized, exported; size of the packed
/// weights and, under a budget, of the activations, with the budgets.
std::string result_table(const RunResult& result);
/// What it says of the quantized model's sizes, by column: packed weights, activations, budgets.
std::vector<std::pair<std::string, std::string>> size_columns(const RunResult& result);
/// "12.3 kB", of 1024 bytes; "1.23 MB".
std::string size_text(std::int64_t bytes);
/// A budget as it was given: "32 kB".
std::string kilobytes_text(double kilobytes);

}  // namespace qat::apps
