#include "support/trainer.h"

#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cmath>
#include <numbers>

namespace qat::apps {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Weights (of more than one dimension) decay; biases and BatchNorm's parameters, in the second group, do
/// not.
template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> grouped_optimizer(const std::vector<torch::Tensor>& parameters,
                                                           Options options) {
  std::vector<torch::Tensor> weights;
  std::vector<torch::Tensor> others;
  for (const auto& parameter : parameters)
    (parameter.dim() > 1 ? weights : others).push_back(parameter);
  Options without_decay = options;
  without_decay.weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(weights), std::make_unique<Options>(options));
  groups.emplace_back(std::move(others), std::make_unique<Options>(without_decay));
  return std::make_unique<Optimizer>(groups, options);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const RunConfig& config,
                                                        const std::vector<torch::Tensor>& parameters) {
  if (config.optimizer == "adam") {
    return grouped_optimizer<torch::optim::Adam>(parameters, torch::optim::AdamOptions(config.learning_rate)
                                                                 .betas({config.momentum, 0.999})
                                                                 .weight_decay(config.weight_decay));
  }
  return grouped_optimizer<torch::optim::SGD>(parameters, torch::optim::SGDOptions(config.learning_rate)
                                                              .momentum(config.momentum)
                                                              .weight_decay(config.weight_decay));
}

/// The groups of the model's own parameters; a later one holds those of learned quantizers.
constexpr std::size_t kModelGroups = 2;

BatchLoaderOptions loader_options(const RunConfig& config) {
  BatchLoaderOptions options;
  options.batch_size = config.batch_size;
  options.seed = static_cast<std::uint64_t>(config.seed);
  options.max_shift = config.augment ? 2 : 0;
  options.flip = config.augment && config.data != "synthetic";  // a mirrored 2 is a 5
  return options;
}

/// Sums that stay on the device until somebody wants to see them: reading one stalls a GPU.
class RunningMean {
 public:
  explicit RunningMean(torch::Device device)
      : loss_(torch::zeros({}, device)),
        correct_(torch::zeros({}, torch::TensorOptions(device).dtype(torch::kInt64))) {}

  void add(const torch::Tensor& loss, const torch::Tensor& logits, const torch::Tensor& labels) {
    torch::NoGradGuard no_grad;
    loss_ += loss;
    correct_ += (logits.argmax(1) == labels).sum();
    samples_ += labels.size(0);
    ++steps_;
  }
  double loss() const { return loss_.item<double>() / static_cast<double>(steps_); }
  double accuracy() const { return correct_.item<double>() / static_cast<double>(samples_); }
  std::int64_t samples() const { return samples_; }

 private:
  torch::Tensor loss_;
  torch::Tensor correct_;
  std::int64_t samples_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace

torch::Device configured_device(const std::string& name) {
  TORCH_CHECK(name != "cuda" || torch::cuda::is_available(),
              "--device cuda: this LibTorch finds no CUDA device; expected one, or --device cpu");
  return torch::Device(name);
}

Evaluation evaluate(const std::function<torch::Tensor(const torch::Tensor&)>& forward, BatchLoader loader,
                    torch::Device device, Progress& progress) {
  torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> outputs;
  Evaluation result;
  std::int64_t images = 0;
  const auto start = Clock::now();
  loader.start_epoch(0);
  while (const auto batch = loader.next()) {
    outputs.push_back(forward(batch->images.to(device)).to(torch::kCPU));
    result.correct += (outputs.back().argmax(1) == batch->labels).sum().item<std::int64_t>();
    images += batch->labels.size(0);
    progress.show_if_due("test", loader.position(), loader.batches_per_epoch(),
                         static_cast<double>(result.correct) / static_cast<double>(images), images,
                         seconds_since(start));
  }
  progress.clear();
  result.outputs = torch::cat(outputs);
  result.predictions = result.outputs.argmax(1);
  return result;
}

double scheduled_rate(const std::string& schedule, double start, double done) {
  if (schedule == "step") return done < 0.5 ? start : (done < 0.75 ? start / 10 : start / 100);
  return start / 2 * (1 + std::cos(std::numbers::pi * done));
}

Trainer::Trainer(Model model, const Dataset& dataset, const RunConfig& config, Progress& progress)
    : model_(std::move(model)),
      dataset_(dataset),
      config_(config),
      progress_(progress),
      device_(configured_device(config.device)),
      loader_(training_loader(dataset, loader_options(config))) {
  model_.module->to(device_);
  optimizer_ = make_optimizer(config, model_.module->parameters());
}

EpochStatistics Trainer::train_epoch(const std::string& phase, std::int64_t epoch, std::int64_t epochs,
                                     double start_rate) {
  model_.module->train();
  start_pass();
  const auto steps = loader_.batches_per_epoch();
  EpochStatistics result;
  RunningMean mean(device_);
  const auto start = Clock::now();
  while (const auto batch = loader_.next()) {
    const auto done = static_cast<double>(epoch * steps + result.steps) / static_cast<double>(epochs * steps);
    const auto rate = scheduled_rate(config_.schedule, start_rate, done);
    if (result.steps == 0) result.learning_rate = rate;
    auto& groups = optimizer_->param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i)
      groups[i].options().set_lr(i < kModelGroups ? rate : rate * config_.quantizer_rate);

    const auto labels = batch->labels.to(device_);
    optimizer_->zero_grad();
    const auto logits = model_(batch->images.to(device_));
    const auto loss = torch::nn::functional::cross_entropy(logits, labels);
    (hooks_.penalty ? loss + hooks_.penalty().to(loss) : loss).backward();
    optimizer_->step();
    if (hooks_.after_step) hooks_.after_step();
    mean.add(loss, logits, labels);
    ++result.steps;

    if (progress_.due()) {
      const auto seconds = seconds_since(start);
      const auto steps_left = (epochs - epoch) * steps - result.steps;
      progress_.show({phase, epoch + 1, epochs, result.steps, steps, mean.loss(), mean.accuracy(),
                      static_cast<double>(mean.samples()) / seconds,
                      seconds / static_cast<double>(result.steps) * static_cast<double>(steps_left)});
    }
  }
  result.loss = mean.loss();
  result.accuracy = mean.accuracy();
  result.seconds = seconds_since(start);
  TORCH_CHECK(std::isfinite(result.loss), "training diverged: the loss is ", result.loss, " in ", phase,
              " epoch ", epoch + 1, "; lower --learning-rate");
  return result;
}

EpochStatistics Trainer::record() {
  torch::NoGradGuard no_grad;
  model_.module->train();
  EpochStatistics result;
  const auto start = Clock::now();
  for (start_pass(); result.steps < config_.record_batches; ++result.steps) {
    auto batch = loader_.next();
    if (!batch) {
      start_pass();
      batch = loader_.next();
    }
    model_(batch->images.to(device_));
    progress_.show_if_due("recording", result.steps + 1, config_.record_batches, {},
                          (result.steps + 1) * config_.batch_size, seconds_since(start));
  }
  result.seconds = seconds_since(start);
  return result;
}

Evaluation Trainer::test() {
  model_.module->eval();
  return evaluate(model_, test_loader(dataset_, kTestBatch), device_, progress_);
}

}  // namespace qat::apps
