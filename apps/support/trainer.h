#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "support/batch_loader.h"
#include "support/dataset.h"
#include "support/models.h"
#include "support/progress.h"
#include "support/run_config.h"

namespace qat::apps {

/// Samples in a batch of a test.
inline constexpr std::int64_t kTestBatch = 500;

/// What an epoch of training came to.
struct EpochStatistics {
  double loss = 0;           ///< mean over the samples, each as it was when its step ran.
  double accuracy = 0;       ///< fraction of 1, likewise.
  double learning_rate = 0;  ///< of the first step.
  double seconds = 0;
  std::int64_t steps = 0;
};

/// How far an epoch has come; enough to go on from there to the bit.
struct EpochProgress {
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  std::int64_t correct = 0;
  double loss_sum = 0;       ///< over the steps; a float32 number.
  double learning_rate = 0;  ///< of the first step.
  double seconds = 0;
};

/// What a model says about a test set.
struct Evaluation {
  torch::Tensor outputs;      ///< float32 `[N, classes]`, on the CPU.
  torch::Tensor predictions;  ///< int64 `[N]`.
  std::int64_t correct = 0;
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(predictions.size(0)); }
};

/// "cpu" or "cuda". Throws: c10::Error if there is no such device.
torch::Device configured_device(const std::string& name);

/// Runs all batches of a loader through `forward`, without gradient, and shows how far it has come.
Evaluation evaluate(const std::function<torch::Tensor(const torch::Tensor&)>& forward, BatchLoader loader,
                    torch::Device device, Progress& progress);

/// The learning rate after `done` (0 to 1) of a phase that begins with rate `start`.
/// cosine: start / 2 * (1 + cos(pi * done)). step: start, a tenth of it from 1/2, a hundredth from 3/4.
double scheduled_rate(const std::string& schedule, double start, double done);

/// Trains a model on a data set as a configuration says.
class Trainer {
 public:
  /// Moves the model to the configured device. `dataset` and `progress` must outlive the trainer.
  Trainer(Model model, const Dataset& dataset, const RunConfig& config, Progress& progress);

  /// One epoch of `epochs` of a phase; the learning rate starts at `start_rate` with the phase's first epoch.
  /// After `go_on`, the rest of that epoch.
  /// Throws: c10::Error if the loss is not finite, naming phase and epoch.
  EpochStatistics train_epoch(const std::string& phase, std::int64_t epoch, std::int64_t epochs,
                              double start_rate);
  /// Runs the configured number of batches forward in train mode, without gradient; statistics hold seconds
  /// and steps.
  /// `observer` runs after each batch.
  EpochStatistics record(const std::function<void()>& observer);
  /// Tests the model in eval mode.
  Evaluation test();

  /// What quantized training adds to a step.
  struct StepHooks {
    std::function<torch::Tensor()> penalty = {};  ///< added to the loss.
    std::function<void()> after_step = {};        ///< runs after the optimizer's step.
  };
  void set_hooks(StepHooks hooks) { hooks_ = std::move(hooks); }
  /// Runs after every step, when `progress` counts it.
  void set_observer(std::function<void()> observer) { observer_ = std::move(observer); }

  /// Of the epoch that is running; of none, zeros. Waits for a GPU.
  EpochProgress progress() const;
  /// Passes over the data that were started.
  std::int64_t passes() const { return passes_; }
  /// The state of a trainer that was stopped: the next epoch goes on after `progress`, if that has steps.
  void go_on(std::int64_t passes, const EpochProgress& progress);

  /// Forgets momenta: the next phase has a schedule of its own.
  void reset_optimizer_state() { optimizer_->state().clear(); }

  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  torch::Device device() const { return device_; }

 private:
  /// Sums that stay on the device until somebody wants to see them: reading one stalls a GPU.
  struct Sums {
    torch::Tensor loss;
    torch::Tensor correct;
    std::int64_t samples = 0;
    std::int64_t steps = 0;
    double learning_rate = 0;
    double seconds_before = 0;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

    double seconds() const;
  };

  /// Starts the next pass over the data; each has an order of its own.
  void start_pass() { loader_.start_epoch(passes_++); }
  Sums sums_of(const EpochProgress& progress) const;
  /// One step at learning rate `rate`.
  void train_step(const Batch& batch, double rate);

  Model model_;
  const Dataset& dataset_;
  RunConfig config_;
  Progress& progress_;
  torch::Device device_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  StepHooks hooks_;
  std::function<void()> observer_;
  BatchLoader loader_;
  std::int64_t passes_ = 0;
  Sums sums_;
  std::set<const c10::TensorImpl*> learned_;  // parameters of quantizers, in this epoch
  bool goes_on_ = false;                      // the next epoch starts where the sums end
};

}  // namespace qat::apps
