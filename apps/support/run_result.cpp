#include "support/run_result.h"

#include <qat/version.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

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

std::string summary_json(const RunResult& result) {
  nlohmann::ordered_json summary = {
      {"float_accuracy", result.float_accuracy},
      {"qat_accuracy", result.qat_accuracy},
      {"deployed_accuracy", result.deployed_accuracy},
      {"phase", result.phase},
      {"weight_bits", result.config.weight_bits},
      {"activation_bits", result.config.activation_bits},
      {"size_bytes", result.size_bytes},
      {"packed_bytes", result.packed_bytes},
      {"weight_budget_bytes", result.config.weight_budget_kb * 1024},
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

std::string result_table(const RunResult& result) {
  const auto quantized = fmt::format("quantized ({})", widths_text(result.config));
  const bool has_budget = result.config.weight_budget_kb > 0;
  const auto width = std::max<std::size_t>(46, quantized.size());
  auto text = fmt::format("{:<{}}{:>10}{:>12}{:>16}{}\n", "", width, "accuracy", "size", "packed weights",
                          has_budget ? fmt::format("{:>12}", "budget") : "");
  const auto row = [&](const std::string& what, double accuracy, std::int64_t bytes,
                       const std::string& packed = "") {
    text += fmt::format("{:<{}}{:>8.2f} %{:>12}{}\n", what, width, 100 * accuracy, size_text(bytes), packed);
  };
  row("float", result.float_accuracy, result.float_size_bytes);
  auto packed = fmt::format("{:>16}", size_text(result.packed_bytes));
  if (has_budget) packed += fmt::format("{:>12}", kilobytes_text(result.config.weight_budget_kb));
  row(quantized, result.qat_accuracy, result.size_bytes, packed);
  row("exported (TorchScript file)", result.deployed_accuracy, result.exported_file_bytes);
  text += fmt::format("exported and quantized model differ in {} of {} predictions\n", result.codes_different,
                      result.codes_compared);
  return text;
}

}  // namespace qat::apps
