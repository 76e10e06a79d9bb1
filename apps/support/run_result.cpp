#include "support/run_result.h"

#include <qat/quantizers/make_quantizer.h>
#include <qat/version.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "support/quantization.h"

namespace qat::apps {

std::string metrics_csv(const std::vector<MetricsRow>& rows) {
  std::string text =
      "phase,epoch,loss,train_accuracy,test_accuracy,learning_rate,seconds,packed_bytes,weight_bits\n";
  for (const auto& row : rows) {
    text += fmt::format("{},{},{:.6f},{:.6f},{:.6f},{:.6g},{:.3f},{},{}\n", row.phase, row.epoch, row.loss,
                        row.train_accuracy, row.test_accuracy, row.learning_rate, row.seconds,
                        row.packed_bytes, row.weight_bits);
  }
  return text;
}

std::string layers_csv(const std::vector<LayerRow>& rows) {
  std::string text = "epoch,layer,slot,kind,bits,bytes,budget_bytes,qsnr_db,clipped,used_levels,levels\n";
  for (const auto& [epoch, tensor, budget, quality] : rows) {
    const bool is_weight = tensor.kind == QuantizedTensor::Kind::kWeight;
    text += fmt::format("{},{},{},{},{},{},{},{:.2f},{:.6f},{},{}\n", epoch, tensor.layer, tensor.slot,
                        is_weight ? "weight" : "activation", tensor.bits, tensor.bytes, budget,
                        quality.qsnr_db, quality.clipped, quality.used_levels, quality.levels);
  }
  return text;
}

std::int64_t budget_bytes(const RunConfig& config, QuantizedTensor::Kind kind) {
  const bool is_weight = kind == QuantizedTensor::Kind::kWeight;
  const double kilobytes = is_weight ? config.weight_budget_kb : config.activation_budget_kb;
  return static_cast<std::int64_t>(std::floor(kilobytes * 1024));
}

std::int64_t activation_bytes(const RunConfig& config, const std::vector<QuantizedTensor>& tensors) {
  std::int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    if (tensor.kind != QuantizedTensor::Kind::kActivation) continue;
    bytes = config.activation_budget == "sum" ? bytes + tensor.bytes : std::max(bytes, tensor.bytes);
  }
  return bytes;
}

double mean_activation_bits(const std::vector<QuantizedTensor>& tensors) {
  double bits = 0;
  double elements = 0;
  for (const auto& tensor : tensors) {
    if (tensor.kind != QuantizedTensor::Kind::kActivation) continue;
    bits += static_cast<double>(tensor.bits * tensor.elements);
    elements += static_cast<double>(tensor.elements);
  }
  return elements == 0 ? 0 : bits / elements;
}

std::string summary_json(const RunResult& result) {
  nlohmann::ordered_json summary = {
      {"float_accuracy", result.float_accuracy},
      {"qat_accuracy", result.qat_accuracy},
      {"deployed_accuracy", result.deployed_accuracy},
      {"phase", result.phase},
      {"weight_bits", most_bits(weight_family(result.config), result.config.weight_bits)},
      {"activation_bits", most_bits(activation_family(result.config), result.config.activation_bits)},
      {"size_bytes", result.size_bytes},
      {"packed_bytes", result.packed_bytes},
      {"weight_budget_bytes", result.config.weight_budget_kb * 1024},
      {"activation_bytes", result.activation_bytes},
      {"activation_budget_kb", result.config.activation_budget_kb},
      {"activation_budget", result.config.activation_budget},
      {"float_size_bytes", result.float_size_bytes},
      {"exported_file_bytes", result.exported_file_bytes},
      {"digest", result.digest},
      {"codes_compared", result.codes_compared},
      {"codes_different", result.codes_different},
      {"predictions_different", result.codes_different},
      {"largest_output_difference", result.largest_output_difference},
      {"model", result.config.model},
      {"data", result.config.data},
      {"preset", result.config.preset},
      {"seed", result.config.seed},
      {"threads", result.config.threads},
      {"seconds", result.seconds},
      {"version", version()},
  };
  for (const auto& [phase, seconds] : result.seconds_per_step)
    summary["seconds_per_step"][phase] = seconds;
  return summary.dump(2) + "\n";
}

std::string size_text(std::int64_t bytes) {
  constexpr std::int64_t kilobyte = 1024;
  constexpr std::int64_t megabyte = kilobyte * kilobyte;
  if (bytes < kilobyte) return fmt::format("{} B", bytes);
  if (bytes < megabyte)
    return fmt::format("{:.1f} kB", static_cast<double>(bytes) / static_cast<double>(kilobyte));
  return fmt::format("{:.2f} MB", static_cast<double>(bytes) / static_cast<double>(megabyte));
}

std::string kilobytes_text(double kilobytes) {
  return fmt::format("{:g} kB", kilobytes);
}

std::vector<std::pair<std::string, std::string>> size_columns(const RunResult& result) {
  const RunConfig& config = result.config;
  std::vector<std::pair<std::string, std::string>> columns = {
      {"packed weights", size_text(result.packed_bytes)}};
  if (config.weight_budget_kb > 0) columns.emplace_back("budget", kilobytes_text(config.weight_budget_kb));
  if (config.activation_budget_kb == 0) return columns;
  columns.emplace_back(config.activation_budget == "sum" ? "activations" : "largest activation",
                       size_text(result.activation_bytes));
  columns.emplace_back("budget", kilobytes_text(config.activation_budget_kb));
  return columns;
}

std::string result_table(const RunResult& result) {
  const auto quantized = fmt::format("quantized ({})", widths_text(result.config));
  const auto width = std::max<std::size_t>(46, quantized.size());
  std::string heads;
  std::string sizes;
  for (const auto& [head, size] : size_columns(result)) {
    const std::size_t column = std::max<std::size_t>(12, head.size() + 2);
    heads += fmt::format("{:>{}}", head, column);
    sizes += fmt::format("{:>{}}", size, column);
  }
  auto text = fmt::format("{:<{}}{:>10}{:>12}{}\n", "", width, "accuracy", "size", heads);
  const auto row = [&](const std::string& what, double accuracy, std::int64_t bytes,
                       const std::string& more = "") {
    text += fmt::format("{:<{}}{:>8.2f} %{:>12}{}\n", what, width, 100 * accuracy, size_text(bytes), more);
  };
  row("float", result.float_accuracy, result.float_size_bytes);
  row(quantized, result.qat_accuracy, result.size_bytes, sizes);
  row("exported (TorchScript file)", result.deployed_accuracy, result.exported_file_bytes);
  text += fmt::format("exported and quantized model differ in {} of {} predictions\n", result.codes_different,
                      result.codes_compared);
  return text;
}

}  // namespace qat::apps
