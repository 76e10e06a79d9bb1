#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iostream>

#include "support/command_line.h"
#include "support/digest_file.h"
#include "support/program.h"
#include "support/quantization.h"
#include "support/saved_model.h"
#include "support/trainer.h"
#include "support/training_run.h"

namespace qat::apps {
namespace {

Dataset test_data(const EvalCommand& command, const ModelDescription& description) {
  auto config = description.config;
  if (command.data && *command.data != config.data) {
    config.data = *command.data;
    config.data_path = "";
  }
  if (command.data_path) config.data_path = *command.data_path;
  config.validate();
  auto dataset = load_configured_dataset(config);
  TORCH_CHECK(dataset.sample_shape() == description.input_shape, command.file.string(),
              ": expects images of shape ", torch::IntArrayRef(description.input_shape), ", --data ",
              config.data, " has ", torch::IntArrayRef(dataset.sample_shape()));
  dataset.mean = description.input_mean;
  dataset.std = description.input_std;
  return dataset;
}

/// What is tested, line by line: kind, model and phase; quantizers; digest.
std::string description_text(const EvalCommand& command, const SavedModel& model) {
  const auto& about = model.description;
  auto text = fmt::format("{}: {} of {}, phase {}\n", command.file.string(),
                          model.kind == "checkpoint" ? "checkpoint" : "exported TorchScript",
                          about.config.model, about.phase);
  if (about.phase == "TRAINING") text += "quantizers: " + quantizers_text(about.config) + "\n";
  if (!about.layer_bits.empty())
    text += fmt::format("packed weights: {}, bits {}\n", size_text(about.packed_bytes), about.layer_bits);
  if (model.kind == "checkpoint") return text + fmt::format("digest: {}\n", model.digest);
  const auto beside = digest_path(command.file).filename().string();
  return text + (model.digest.empty() ? fmt::format("SHA-256: not compared, there is no {}\n", beside)
                                      : fmt::format("SHA-256: {}, as in {}\n", model.digest, beside));
}

int evaluate_file(const EvalCommand& command) {
  const auto device = configured_device(command.device);
  set_threads(command.threads);
  const auto model = load_saved_model(command.file, device);
  const auto dataset = test_data(command, model.description);
  auto progress = Progress::standard_error();
  const auto result = evaluate(model.forward, test_loader(dataset, command.batch_size), device, progress);
  const auto total = result.predictions.size(0);
  if (command.json) {
    const nlohmann::ordered_json text = {
        {"file", command.file.string()},
        {"kind", model.kind},
        {"phase", model.description.phase},
        {"model", model.description.config.model},
        {"weight_quantizer", weight_family(model.description.config)},
        {"activation_quantizer", activation_family(model.description.config)},
        {"layer_bits", model.description.layer_bits},
        {"packed_bytes", model.description.packed_bytes},
        {"data", dataset.name},
        {"accuracy", result.accuracy()},
        {"correct", result.correct},
        {"total", total},
        {"digest", model.digest}};
    std::cout << text.dump(2) << "\n";
  } else {
    std::cout << description_text(command, model)
              << fmt::format("on {}: accuracy {:.2f} %, {} of {}\n", dataset.name, 100 * result.accuracy(),
                             result.correct, total);
  }
  return 0;
}

}  // namespace
}  // namespace qat::apps

int main(int argc, char** argv) {
  using namespace qat::apps;
  keep_freed_memory();
  return run_program(argc, argv, [](const std::vector<std::string>& arguments) {
    const auto parsed = parse_eval_command(arguments);
    if (parsed.command) return evaluate_file(*parsed.command);
    std::cout << parsed.text;
    return 0;
  });
}
