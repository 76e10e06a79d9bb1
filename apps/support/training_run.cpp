#include "support/training_run.h"

#include <qat/export/torchscript.h>
#include <qat/nn/quantizable_layer.h>
#include <qat/schedulers/checkpoint.h>
#include <qat/schedulers/qat_scheduler.h>

#include <torch/script.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "support/digest_file.h"
#include "support/model_description.h"
#include "support/models.h"
#include "support/output_folder.h"
#include "support/program.h"
#include "support/quantization.h"
#include "support/report.h"
#include "support/trainer.h"

namespace qat::apps {
namespace {

/// The output folder, if the scheduler finds that the run is possible.
const std::filesystem::path& once_possible(const QATScheduler& scheduler, const std::filesystem::path& out) {
  naming_options([&] { scheduler.check(); });
  return out;
}

/// One run from the first epoch to the last file.
class TrainingRun {
 public:
  TrainingRun(const RunConfig& config, const Dataset& dataset, const std::filesystem::path& out,
              Progress& progress)
      : config_(config),
        dataset_(dataset),
        progress_(progress),
        model_(initial_model(config, dataset)),
        trainer_(model_, dataset, config, progress),
        scheduler_(model_.module, model_.forward, {example()}, scheduler_config(config),
                   &trainer_.optimizer()),
        folder_(once_possible(scheduler_, out)) {
    result_.config = config;
  }

  /// Model and budgets, checked before anything is removed or trained.
  static Model initial_model(const RunConfig& config, const Dataset& dataset) {
    auto model = make_model(config.model, dataset.sample_shape(), dataset.classes);
    check_layer_paths(config, *model.module);
    if (config.init.empty()) return model;
    load_checkpoint(config.init, *model.module);
    for (const auto& [path, layer] : nn::quantizable_layers(*model.module)) {
      TORCH_CHECK(
          layer->occupied_slots().empty(), "--init ", config.init, ": ", layer->describe(),
          " is quantized already; expected a checkpoint of a float model, such as checkpoints/float.qat");
    }
    return model;
  }

  RunResult run() {
    const auto start = std::chrono::steady_clock::now();
    folder_.write("config.toml", config_.to_toml());
    train_float();
    record();
    train_quantized();
    export_and_compare();
    result_.slots = slot_table(*model_.module);
    result_.notes = scheduler_.summary();
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    folder_.write("report.html", report_html(result_));
    folder_.write("summary.json", summary_json(result_));
    return result_;
  }

 private:
  torch::Tensor example() const {
    return normalize(dataset_.test.images.slice(0, 0, 2), dataset_.mean, dataset_.std).to(trainer_.device());
  }

  ModelDescription description() const {
    const auto weights = weight_table(*model_.module);
    return {config_,      dataset_.sample_shape(),       dataset_.classes,    dataset_.mean,
            dataset_.std, to_string(scheduler_.phase()), layer_bits(weights), packed_bytes(weights)};
  }

  /// Trains the epochs of a phase, with a row of metrics each; returns the accuracy at its end.
  double train(const std::string& phase, std::int64_t epochs, double start_rate,
               const std::string& step_name) {
    double seconds = 0;
    std::int64_t steps = 0;
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
      const auto statistics = trainer_.train_epoch(phase, epoch, epochs, start_rate);
      last_test_ = trainer_.test();
      seconds += statistics.seconds;
      steps += statistics.steps;
      result_.rows.push_back({phase, epoch + 1, statistics.loss, statistics.accuracy, last_test_.accuracy(),
                              statistics.learning_rate, statistics.seconds, 0, ""});
      if (phase == "qat") keep_epoch(epoch + 1);
      folder_.write("metrics.csv", metrics_csv(result_.rows));
      progress_.message(fmt::format(
          "{} epoch {}/{}: loss {:.4f}, train accuracy {:.2f} %, test accuracy {:.2f} %, {:.1f} s", phase,
          epoch + 1, epochs, statistics.loss, 100 * statistics.accuracy, 100 * last_test_.accuracy(),
          statistics.seconds));
    }
    if (epochs == 0) last_test_ = trainer_.test();
    if (steps > 0) result_.seconds_per_step.emplace_back(step_name, seconds / static_cast<double>(steps));
    return last_test_.accuracy();
  }

  /// The sizes after a quantized epoch and, under a budget, its checkpoint.
  void keep_epoch(std::int64_t epoch) {
    auto& row = result_.rows.back();
    const auto weights = weight_table(*model_.module);
    row.packed_bytes = packed_bytes(weights);
    row.weight_bits = layer_bits(weights);
    row.mean_bits = mean_bits(weights);
    const auto tensors = scheduler_.quantized_tensors();
    row.activation_bytes = activation_bytes(config_, tensors);
    row.mean_activation_bits = mean_activation_bits(tensors);
    for (const auto& tensor : tensors)
      result_.layers.push_back({epoch, tensor, budget_bytes(config_, tensor.kind)});
    folder_.write("layers.csv", layers_csv(result_.layers));
    if (config_.weight_budget_kb == 0 && config_.activation_budget_kb == 0) return;
    save_checkpoint(folder_.file(OutputFolder::quantized_checkpoint(epoch)).string(), *model_.module,
                    description().to_entries());
  }

  void train_float() {
    result_.float_accuracy = train("float", config_.float_epochs, config_.learning_rate, "float");
    result_.float_size_bytes = parameter_bytes(*model_.module);
    save_checkpoint(folder_.file("checkpoints/float.qat").string(), *model_.module,
                    description().to_entries());
  }

  void record() {
    scheduler_.start_recording();
    const auto statistics = trainer_.record();
    result_.seconds_per_step.emplace_back("recording",
                                          statistics.seconds / static_cast<double>(statistics.steps));
    progress_.message(
        fmt::format("recorded the ranges of {} batches, {:.1f} s", statistics.steps, statistics.seconds));
  }

  void train_quantized() {
    naming_options([&] { scheduler_.start_training(); });
    trainer_.reset_optimizer_state();
    trainer_.set_hooks({.penalty = [this] { return scheduler_.penalty(); },
                        .after_step = [this] { scheduler_.after_optimizer_step(); }});
    const double rate =
        config_.qat_learning_rate > 0 ? config_.qat_learning_rate : 0.1 * config_.learning_rate;
    result_.qat_accuracy = train("qat", config_.qat_epochs, rate, "training");
    result_.weights = weight_table(*model_.module);
    result_.packed_bytes = packed_bytes(result_.weights);
    result_.activation_bytes = activation_bytes(config_, scheduler_.quantized_tensors());
    if (result_.layers.empty()) folder_.write("layers.csv", layers_csv({}));
    if (result_.rows.empty()) folder_.write("metrics.csv", metrics_csv({}));
    result_.phase = to_string(scheduler_.phase());
    result_.size_bytes = parameter_bytes(*model_.module);
    result_.digest =
        save_checkpoint(folder_.file("model.qat").string(), *model_.module, description().to_entries())
            .digest;
  }

  void export_and_compare() {
    const std::string name = "model.torchscript.pt";
    const auto path = folder_.file(name);
    export_torchscript(*model_.module, model_.forward, {example()}, path.string(),
                       {description().to_entries()});
    auto exported = torch::jit::load(path.string(), trainer_.device());
    exported.eval();
    const auto test = evaluate([&](const torch::Tensor& x) { return exported.forward({x}).toTensor(); },
                               test_loader(dataset_, kTestBatch), trainer_.device(), progress_);
    result_.deployed_accuracy = test.accuracy();
    result_.exported_file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path));
    result_.codes_compared = test.predictions.size(0);
    result_.codes_different = (test.predictions != last_test_.predictions).sum().item<std::int64_t>();
    result_.largest_output_difference = (test.outputs - last_test_.outputs).abs().max().item<double>();
    if (result_.codes_different == 0) {
      write_digest(folder_, name);
      return;
    }
    std::filesystem::remove(path);
    TORCH_CHECK(false, path.string(), ": the exported model predicts another class for ",
                result_.codes_different, " of ", result_.codes_compared,
                " test images; the file was removed");
  }

  RunConfig config_;
  const Dataset& dataset_;
  Progress& progress_;
  Model model_;
  Trainer trainer_;
  QATScheduler scheduler_;
  OutputFolder folder_;  // removes earlier results: made after all that can refuse the run
  Evaluation last_test_;
  RunResult result_;
};

}  // namespace

Dataset load_configured_dataset(const RunConfig& config) {
  return load_dataset({.name = config.data,
                       .path = config.data_path,
                       .limit = config.limit,
                       .seed = static_cast<std::uint64_t>(config.seed),
                       .synthetic = {}});
}

RunResult run_training(RunConfig config, const Dataset& dataset, const std::filesystem::path& out,
                       Progress& progress) {
  config.threads = set_threads(config.threads);
  torch::manual_seed(static_cast<std::uint64_t>(config.seed));
  return TrainingRun(config, dataset, out, progress).run();
}

}  // namespace qat::apps
