#include "support/training_run.h"

#include <qat/export/torchscript.h>
#include <qat/nn/quantizable_layer.h>
#include <qat/schedulers/checkpoint.h>
#include <qat/schedulers/qat_scheduler.h>

#include <torch/script.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>
#include <vector>

#include "support/digest_file.h"
#include "support/model_description.h"
#include "support/models.h"
#include "support/output_folder.h"
#include "support/program.h"
#include "support/quantization.h"
#include "support/report.h"
#include "support/run_state.h"
#include "support/trainer.h"

namespace qat::apps {
namespace {

constexpr const char* kResume = "checkpoints/resume.qat";

/// What a stopped run left.
struct Stopped {
  std::string file;
  RunState state;
};

/// Throws: UsageError naming the keys that differ if the run had another configuration.
void check_same_run(const RunConfig& config, const RunConfig& stopped, const std::filesystem::path& out) {
  std::vector<std::string> differences;
  for (const auto& setting : settings()) {
    if (setting.text(config) == setting.text(stopped)) continue;
    differences.push_back(
        fmt::format("--{} was {}, is {}", setting.option(), setting.text(stopped), setting.text(config)));
  }
  if (differences.empty()) return;
  throw UsageError(
      fmt::format("--resume: the run in {} has another configuration: {}; expected the same, or no "
                  "options but --resume and --out",
                  out.string(), fmt::join(differences, ", ")));
}

std::optional<Stopped> stopped_run(const RunConfig& config, const std::filesystem::path& out, bool resume) {
  const auto path = out / kResume;
  if (!resume || !std::filesystem::exists(path)) return std::nullopt;
  const auto entries = read_checkpoint_info(path.string()).entries;
  check_same_run(config, ModelDescription::from_entries(entries, path.string()).config, out);
  const auto found = entries.find("run_state");
  TORCH_CHECK(found != entries.end(), path.string(), ": this is no checkpoint of a stopped run");
  return Stopped{path.string(), parse_run_state(found->second, path.string())};
}

/// One run from the first epoch to the last file.
class TrainingRun {
 public:
  TrainingRun(const RunConfig& config, const Dataset& dataset, const std::filesystem::path& out,
              Progress& progress, const RunOptions& options)
      : config_(config),
        dataset_(dataset),
        progress_(progress),
        options_(options),
        stopped_(stopped_run(config, out, options.resume)),
        model_(initial_model(config, dataset, stopped_)),
        trainer_(model_, dataset, config, progress),
        scheduler_(model_.module, model_.forward, {example()}, scheduler_config(config),
                   &trainer_.optimizer()),
        folder_(made_ready(out)) {
    result_.config = config;
    trainer_.set_observer([this] { after_step(); });
  }

  /// Model and budgets, checked before anything is removed or trained.
  static Model initial_model(const RunConfig& config, const Dataset& dataset,
                             const std::optional<Stopped>& stopped) {
    auto model = make_model(config.model, dataset.sample_shape(), dataset.classes);
    check_layer_paths(config, *model.module);
    if (stopped) {
      load_checkpoint(stopped->file, *model.module);
      return model;
    }
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
    folder_.write("config.toml", config_.to_toml());
    using Stage = RunState::Stage;
    if (state_.stage == Stage::kFloat) train_float();
    if (state_.stage == Stage::kRecording) record();
    train_quantized();
    export_and_compare();
    result_.slots = slot_table(*model_.module);
    result_.notes = scheduler_.summary();
    result_.seconds = seconds();
    folder_.write("report.html", report_html(result_));
    folder_.write("summary.json", summary_json(result_));
    std::filesystem::remove(folder_.file(kResume));
    return result_;
  }

 private:
  torch::Tensor example(std::int64_t images = 2) const {
    const auto first = dataset_.test.images.slice(0, 0, images);
    return normalize(first, dataset_.mean, dataset_.std).to(trainer_.device());
  }

  /// Without sizes: weights that are just being trained need not have a packed form.
  ModelDescription description_of_run() const {
    return {.config = config_,
            .input_shape = dataset_.sample_shape(),
            .classes = dataset_.classes,
            .input_mean = dataset_.mean,
            .input_std = dataset_.std,
            .phase = to_string(scheduler_.phase()),
            .layer_bits = ""};
  }

  ModelDescription description() const {
    const auto weights = weight_table(*model_.module);
    auto result = description_of_run();
    result.layer_bits = layer_bits(weights);
    result.packed_bytes = packed_bytes(weights);
    return result;
  }

  /// The output folder, if the run is possible, and everything as a stopped run left it.
  OutputFolder made_ready(const std::filesystem::path& out) {
    if (!stopped_) {
      naming_options([&] { scheduler_.check(); });
      return OutputFolder(out);
    }
    state_ = stopped_->state;
    scheduler_.restore(state_.scheduler);
    load_optimizer(stopped_->file, *model_.module, trainer_.optimizer());
    trainer_.go_on(state_.passes, state_.progress);
    set_random_state(state_.random);
    result_ = state_.found;
    progress_.message(fmt::format("resumed from {}: {} complete epochs of {}, {} steps", stopped_->file,
                                  state_.epoch, to_string(scheduler_.phase()), state_.progress.steps));
    return OutputFolder(out, OutputFolder::Earlier::kKeep);
  }

  double seconds() const {
    return state_.seconds + std::chrono::duration<double>(Clock::now() - start_).count();
  }

  /// Saves all that the run needs to go on from here.
  void keep_state() {
    RunState state = state_;
    state.progress = trainer_.progress();
    TORCH_CHECK(std::isfinite(state.progress.loss_sum), "training diverged: the loss of epoch ",
                state_.epoch + 1, " is ", state.progress.loss_sum, "; lower --learning-rate");
    state.passes = trainer_.passes();
    state.seconds = seconds();
    state.scheduler = scheduler_.state();
    state.random = random_state();
    state.found = result_;
    auto entries = description_of_run().to_entries();
    entries["run_state"] = to_json(state);
    save_checkpoint(folder_.file(kResume).string(), *model_.module, entries, &trainer_.optimizer());
    kept_ = Clock::now();
  }

  void begin(RunState::Stage stage) {
    state_.stage = stage;
    state_.epoch = 0;
    state_.stage_seconds = 0;
    state_.stage_steps = 0;
    keep_state();
  }

  void after_step() {
    const bool stops = stop_requested();
    const double since = std::chrono::duration<double>(Clock::now() - kept_).count();
    if (stops || since >= options_.checkpoint_seconds) keep_state();
    if (stops) throw_stopped();
  }

  [[noreturn]] void throw_stopped() const {
    TORCH_CHECK(false, "stopped by a signal; continue with: qat-train --resume --out ",
                folder_.path().string());
  }

  /// Trains the epochs of a phase, with a row of metrics each; returns the accuracy at its end.
  double train(const std::string& phase, std::int64_t epochs, double start_rate,
               const std::string& step_name) {
    while (state_.epoch < epochs) {
      const auto statistics = trainer_.train_epoch(phase, state_.epoch, epochs, start_rate);
      last_test_ = trainer_.test();
      const std::int64_t epoch = ++state_.epoch;
      state_.stage_seconds += statistics.seconds;
      state_.stage_steps += statistics.steps;
      result_.rows.push_back({.phase = phase,
                              .epoch = epoch,
                              .loss = statistics.loss,
                              .train_accuracy = statistics.accuracy,
                              .test_accuracy = last_test_.accuracy(),
                              .learning_rate = statistics.learning_rate,
                              .seconds = statistics.seconds,
                              .weight_bits = ""});
      if (phase == "qat") keep_epoch(epoch);
      folder_.write("metrics.csv", metrics_csv(result_.rows));
      progress_.message(fmt::format(
          "{} epoch {}/{}: loss {:.4f}, train accuracy {:.2f} %, test accuracy {:.2f} %, {:.1f} s", phase,
          epoch, epochs, statistics.loss, 100 * statistics.accuracy, 100 * last_test_.accuracy(),
          statistics.seconds));
      keep_state();
      if (stop_requested()) throw_stopped();
    }
    if (!last_test_.predictions.defined()) last_test_ = trainer_.test();
    if (state_.stage_steps > 0)
      result_.seconds_per_step.emplace_back(step_name,
                                            state_.stage_seconds / static_cast<double>(state_.stage_steps));
    return last_test_.accuracy();
  }

  /// Sizes and quality after a quantized epoch and, under a budget, its checkpoint.
  void keep_epoch(std::int64_t epoch) {
    auto& row = result_.rows.back();
    const auto weights = weight_table(*model_.module);
    row.packed_bytes = packed_bytes(weights);
    row.weight_bits = layer_bits(weights);
    row.mean_bits = mean_bits(weights);
    const auto tensors = scheduler_.quantized_tensors();
    row.activation_bytes = activation_bytes(config_, tensors);
    row.mean_activation_bits = mean_activation_bits(tensors);
    const auto quality = nn::measure_quantization(*model_.module, [this] { model_(example(128)); });
    for (const auto& tensor : tensors) {
      result_.layers.push_back(
          {epoch, tensor, budget_bytes(config_, tensor.kind), quality_of(*model_.module, tensor, quality)});
    }
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
    begin(RunState::Stage::kRecording);
  }

  void record() {
    scheduler_.start_recording();
    const auto statistics = trainer_.record([this] {
      if (stop_requested()) throw_stopped();  // the state of its beginning is kept
    });
    result_.seconds_per_step.emplace_back("recording",
                                          statistics.seconds / static_cast<double>(statistics.steps));
    progress_.message(
        fmt::format("recorded the ranges of {} batches, {:.1f} s", statistics.steps, statistics.seconds));
  }

  void train_quantized() {
    if (state_.stage == RunState::Stage::kRecording) {
      naming_options([&] { scheduler_.start_training(); });
      trainer_.reset_optimizer_state();
      begin(RunState::Stage::kQuantized);
    }
    last_test_ = {};
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

  using Clock = std::chrono::steady_clock;

  RunConfig config_;
  const Dataset& dataset_;
  Progress& progress_;
  RunOptions options_;
  std::optional<Stopped> stopped_;
  RunState state_;
  RunResult result_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point kept_ = start_;
  Model model_;
  Trainer trainer_;
  QATScheduler scheduler_;
  OutputFolder folder_;  // removes earlier results: made after all that can refuse the run
  Evaluation last_test_;
};

}  // namespace

Dataset load_configured_dataset(const RunConfig& config) {
  return load_dataset({.name = config.data,
                       .path = config.data_path,
                       .limit = config.limit,
                       .seed = static_cast<std::uint64_t>(config.seed),
                       .synthetic = {}});
}

bool is_finished(const std::filesystem::path& out) {
  return std::filesystem::exists(out / "summary.json") && !std::filesystem::exists(out / kResume);
}

RunResult run_training(RunConfig config, const Dataset& dataset, const std::filesystem::path& out,
                       Progress& progress, const RunOptions& options) {
  config.threads = set_threads(config.threads);
  torch::manual_seed(static_cast<std::uint64_t>(config.seed));
  return TrainingRun(config, dataset, out, progress, options).run();
}

}  // namespace qat::apps
