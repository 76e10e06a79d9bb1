#include "support/trainer.h"

#include <qat/nn/quantizable_layer.h>

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

BatchLoaderOptions loader_options(const RunConfig& config) {
  BatchLoaderOptions options;
  options.batch_size = config.batch_size;
  options.seed = static_cast<std::uint64_t>(config.seed);
  options.max_shift = config.augment ? 2 : 0;
  options.flip = config.augment && config.data != "synthetic";  // a mirrored 2 is a 5
  return options;
}

std::set<const c10::TensorImpl*> quantizer_parameters(torch::nn::Module& model) {
  std::set<const c10::TensorImpl*> result;
  for (const auto& [path, layer] : nn::quantizable_layers(model)) {
    for (const nn::SlotId id : layer->occupied_slots()) {
      for (const auto& parameter : layer->slot(id)->parameters())
        result.insert(parameter.unsafeGetTensorImpl());
    }
  }
  return result;
}

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

double Trainer::Sums::seconds() const {
  return seconds_before + seconds_since(start);
}

Trainer::Sums Trainer::sums_of(const EpochProgress& progress) const {
  return {.loss = torch::full({}, progress.loss_sum, torch::TensorOptions(device_).dtype(torch::kFloat)),
          .correct = torch::full({}, progress.correct, torch::TensorOptions(device_).dtype(torch::kInt64)),
          .samples = progress.samples,
          .steps = progress.steps,
          .learning_rate = progress.learning_rate,
          .seconds_before = progress.seconds};
}

EpochProgress Trainer::progress() const {
  if (!sums_.loss.defined()) return {};
  return {.steps = sums_.steps,
          .samples = sums_.samples,
          .correct = sums_.correct.item<std::int64_t>(),
          .loss_sum = sums_.loss.item<double>(),
          .learning_rate = sums_.learning_rate,
          .seconds = sums_.seconds()};
}

void Trainer::go_on(std::int64_t passes, const EpochProgress& progress) {
  passes_ = passes;
  goes_on_ = progress.steps > 0;
  sums_ = sums_of(progress);
}

void Trainer::train_step(const Batch& batch, double rate) {
  for (auto& group : optimizer_->param_groups()) {
    const bool of_quantizers =
        !group.params().empty() && learned_.contains(group.params().front().unsafeGetTensorImpl());
    group.options().set_lr(of_quantizers ? rate * config_.quantizer_rate : rate);
  }
  const auto labels = batch.labels.to(device_);
  optimizer_->zero_grad();
  const auto logits = model_(batch.images.to(device_));
  const auto loss = torch::nn::functional::cross_entropy(logits, labels);
  (hooks_.penalty ? loss + hooks_.penalty().to(loss) : loss).backward();
  optimizer_->step();
  if (hooks_.after_step) hooks_.after_step();

  const torch::NoGradGuard no_grad;
  sums_.loss += loss;
  sums_.correct += (logits.argmax(1) == labels).sum();
  sums_.samples += labels.size(0);
  if (sums_.steps++ == 0) sums_.learning_rate = rate;
}

EpochStatistics Trainer::train_epoch(const std::string& phase, std::int64_t epoch, std::int64_t epochs,
                                     double start_rate) {
  model_.module->train();
  if (goes_on_) {
    loader_.start_epoch(passes_ - 1, sums_.steps);
    goes_on_ = false;
  } else {
    start_pass();
    sums_ = sums_of({});
  }
  learned_ = quantizer_parameters(*model_.module);
  sums_.start = Clock::now();
  const auto before = sums_;
  const auto steps = loader_.batches_per_epoch();
  while (const auto batch = loader_.next()) {
    const auto done = static_cast<double>(epoch * steps + sums_.steps) / static_cast<double>(epochs * steps);
    train_step(*batch, scheduled_rate(config_.schedule, start_rate, done));
    if (observer_) observer_();
    if (progress_.due()) {
      const auto so_far = progress();
      const auto counted = static_cast<double>(so_far.steps);
      const auto here = seconds_since(sums_.start);
      const auto steps_here = static_cast<double>(sums_.steps - before.steps);
      progress_.show({phase, epoch + 1, epochs, so_far.steps, steps, so_far.loss_sum / counted,
                      static_cast<double>(so_far.correct) / static_cast<double>(so_far.samples),
                      static_cast<double>(sums_.samples - before.samples) / here,
                      here / steps_here * static_cast<double>((epochs - epoch) * steps - so_far.steps)});
    }
  }
  const auto all = progress();
  sums_ = {};
  const EpochStatistics result{
      .loss = all.loss_sum / static_cast<double>(all.steps),
      .accuracy = static_cast<double>(all.correct) / static_cast<double>(all.samples),
      .learning_rate = all.learning_rate,
      .seconds = all.seconds,
      .steps = all.steps};
  TORCH_CHECK(std::isfinite(result.loss), "training diverged: the loss is ", result.loss, " in ", phase,
              " epoch ", epoch + 1, "; lower --learning-rate");
  return result;
}

EpochStatistics Trainer::record(const std::function<void()>& observer) {
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
    observer();
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
