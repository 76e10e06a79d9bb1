// One training step (forward, loss, backward, SGD) of a model in each phase, as a ratio to the same step in
// float.
//
//   train_step_bench [--json FILE] [--model NAME] [--batch N] [--threads N] [--repeats N]
//
// All variants are built in one process and measured in turn; a row is the median of its ratios to the float
// step of the same round. A second float model shows the noise. The models keep large blocks in the heap.
// The peak memory of a step is that of a process of its own, less that of a process that only starts.

#include <qat/nn/activation.h>
#include <qat/nn/quantizable_layer.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/schedulers/qat_scheduler.h>

#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "support/models.h"
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace {

using torch::Tensor;

/// How the affine quantizer can be computed without libqat.
enum class Peer { kTorchFakeQuantize, kComposedOperators };

/// The affine quantizer of LibTorch, for comparison: the activation, then torch::fake_quantize_* or single
/// operators.
class PeerQuantizer : public qat::Quantizer {
 public:
  PeerQuantizer(std::shared_ptr<qat::AffineQuantizer> twin, Peer peer)
      : Quantizer("PeerQuantizer"), twin_(std::move(twin)), peer_(peer) {}

  using Quantizer::forward;
  Tensor forward(const Tensor& x, const qat::Activation& activation) override {
    const Tensor y = activated(x, activation);
    const auto params = affine_params(y);
    const auto qmin = params.range.qmin();
    const auto qmax = params.range.qmax();
    if (peer_ == Peer::kComposedOperators) return composed(y, params);
    if (params.axis) {
      return torch::fake_quantize_per_channel_affine(y, params.scale, params.zero_point, *params.axis, qmin,
                                                     qmax);
    }
    return torch::fake_quantize_per_tensor_affine(y, params.scale, params.zero_point, qmin, qmax);
  }
  Tensor codes(const Tensor& x) override { return twin_->codes(x); }
  qat::AffineParams affine_params(const Tensor& x) override { return twin_->affine_params(x); }
  std::int64_t bits() const override { return twin_->bits(); }
  qat::Rounding rounding() const override { return twin_->rounding(); }
  std::string config() const override { return twin_->config(); }

 private:
  /// One operation of torch for each of its activations: ReLU, ReLU6, LeakyReLU.
  static Tensor activated(const Tensor& x, const qat::Activation& activation) {
    if (activation.is_identity()) return x;
    const bool bounded = activation.upper < HUGE_VAL;
    if (activation.negative_slope == 0.0)
      return bounded ? torch::clamp(x, 0.0, activation.upper) : torch::relu(x);
    const Tensor y = activation.negative_slope == 1.0 ? x : torch::leaky_relu(x, activation.negative_slope);
    return bounded ? torch::clamp_max(y, activation.upper) : y;
  }

  /// Operators with the straight-through estimator, as a user writes them.
  static Tensor composed(const Tensor& y, const qat::AffineParams& params) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(y.dim()), 1);
    if (params.axis) shape[static_cast<std::size_t>(*params.axis)] = params.scale.numel();
    const auto scale = params.scale.view(shape);
    const auto zero_point = params.zero_point.view(shape);
    const auto code =
        torch::clamp(torch::round(y / scale) + zero_point, params.range.qmin(), params.range.qmax());
    const auto passes = torch::clamp(y, (params.range.qmin() - zero_point) * scale,
                                     (params.range.qmax() - zero_point) * scale);
    return passes + ((code - zero_point) * scale - passes).detach();
  }

  std::shared_ptr<qat::AffineQuantizer> twin_;
  Peer peer_;
};

/// A model with its optimizer, and the times of its steps.
struct Variant {
  std::string name;
  std::string leaf;  ///< in the JSON file; empty: not written.
  qat::apps::Model model;
  std::unique_ptr<torch::optim::SGD> optimizer;
  std::vector<double> ratios = {};
  double milliseconds = 0;

  double step(const Tensor& images, const Tensor& labels) {
    const auto start = std::chrono::steady_clock::now();
    optimizer->zero_grad();
    torch::nn::functional::cross_entropy(model(images), labels).backward();
    optimizer->step();
    milliseconds =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    return milliseconds;
  }
};

struct Options {
  std::string json;
  std::string model = "resnet20";
  std::int64_t batch = 64;
  int repeats = 15;
  int threads = 2;
};

enum class Stage {
  kFloat,
  kFloatInPlace,
  kRecording,
  kTraining,
  kTorchFakeQuantize,
  kComposedOperators,
  kLearnedStep,
  kLearnedRange
};

Variant make_variant(std::string name, std::string leaf, Stage stage, qat::BatchNormFolding folding,
                     const Options& options, const Tensor& images) {
  torch::manual_seed(1);
  Variant variant{std::move(name), std::move(leaf), qat::apps::make_model(options.model, {3, 32, 32}, 10),
                  nullptr};
  auto& module = *variant.model.module;
  variant.optimizer =
      std::make_unique<torch::optim::SGD>(module.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  if (stage == Stage::kFloatInPlace) {
    for (const auto& child : module.modules()) {
      if (auto* relu = child->as<qat::nn::ReLUImpl>()) relu->options.inplace(true);
      if (auto* relu = child->as<qat::nn::ReLU6Impl>()) relu->options.inplace(true);
    }
  }
  if (stage == Stage::kFloat || stage == Stage::kFloatInPlace) return variant;

  qat::QATConfig config = qat::integer_only_config();
  config.bn_folding = folding;
  if (stage == Stage::kLearnedStep) config.weight_quantizer = config.activation_quantizer = "lsq";
  if (stage == Stage::kLearnedRange) config.weight_quantizer = config.activation_quantizer = "fp_d_xmax";
  qat::QATScheduler scheduler(variant.model.module, variant.model.forward, {images.slice(0, 0, 2)}, config,
                              variant.optimizer.get());
  scheduler.start_recording();
  if (stage == Stage::kRecording) return variant;
  variant.model(images);
  scheduler.start_training();
  if (stage != Stage::kTorchFakeQuantize && stage != Stage::kComposedOperators) return variant;
  const auto peer = stage == Stage::kTorchFakeQuantize ? Peer::kTorchFakeQuantize : Peer::kComposedOperators;
  for (auto& [path, layer] : qat::nn::quantizable_layers(module)) {
    for (const auto id : layer->occupied_slots()) {
      if (auto affine = std::dynamic_pointer_cast<qat::AffineQuantizer>(layer->slot(id)))
        layer->set_slot(id, std::make_shared<PeerQuantizer>(affine, peer));
    }
  }
  qat::nn::relink(module);
  return variant;
}

/// A row of the tables.
struct Row {
  const char* name;
  const char* leaf;
  Stage stage;
  qat::BatchNormFolding folding;
};

constexpr auto kKept = qat::BatchNormFolding::kOff;
constexpr auto kFolded = qat::BatchNormFolding::kOnce;
constexpr Row kRows[] = {
    {"float", "", Stage::kFloat, kKept},
    {"float again (noise)", "float_again_vs_float", Stage::kFloat, kKept},
    {"float, ReLU in place", "float_in_place_vs_float", Stage::kFloatInPlace, kKept},
    {"RECORDING, BN kept", "recording_vs_float", Stage::kRecording, kKept},
    {"RECORDING, BN folded", "recording_folded_vs_float", Stage::kRecording, kFolded},
    {"TRAINING, BN kept", "training_vs_float", Stage::kTraining, kKept},
    {"TRAINING, BN folded", "training_folded_vs_float", Stage::kTraining, kFolded},
    {"TRAINING with lsq, BN kept", "lsq_training_vs_float", Stage::kLearnedStep, kKept},
    {"TRAINING with lsq, BN folded", "lsq_training_folded_vs_float", Stage::kLearnedStep, kFolded},
    {"TRAINING with fp_d_xmax, BN kept", "fp_d_xmax_training_vs_float", Stage::kLearnedRange, kKept},
    {"torch::fake_quantize_*, BN kept", "torch_fake_quantize_vs_float", Stage::kTorchFakeQuantize, kKept},
    {"torch::fake_quantize_*, BN folded", "torch_fake_quantize_folded_vs_float", Stage::kTorchFakeQuantize,
     kFolded},
    {"composed operators, BN kept", "composed_operators_vs_float", Stage::kComposedOperators, kKept},
};

struct Batch {
  Tensor images;
  Tensor labels;
};

Batch make_batch(const Options& options) {
  torch::manual_seed(0);
  return {torch::randn({options.batch, 3, 32, 32}), torch::randint(10, {options.batch})};
}

/// Kilobytes of memory that a process needs at most for three steps of a variant; of no variant: to start.
/// To be called before the first parallel work of this process, whose threads a child would not have.
double peak_memory(const Options& options, const Row* row) {
  const pid_t child = fork();
  if (child == 0) {
    const Batch batch = make_batch(options);
    if (row != nullptr) {
      auto variant = make_variant(row->name, row->leaf, row->stage, row->folding, options, batch.images);
      for (int i = 0; i < 3; ++i)
        variant.step(batch.images, batch.labels);
    }
    std::_Exit(0);
  }
  int status = 0;
  rusage usage{};
  if (child < 0 || wait4(child, &status, 0, &usage) != child || status != 0) {
    fmt::print(stderr, "error: the memory of {} could not be measured\n", row ? row->name : "nothing");
    std::exit(1);
  }
  return static_cast<double>(usage.ru_maxrss);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    if (key == "--json") options.json = argv[i + 1];
    if (key == "--model") options.model = argv[i + 1];
    if (key == "--batch") options.batch = std::atoll(argv[i + 1]);
    if (key == "--threads") options.threads = std::atoi(argv[i + 1]);
    if (key == "--repeats") options.repeats = std::atoi(argv[i + 1]);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::vector<double> memory;
  const double started = peak_memory(options, nullptr);
  for (const Row& row : kRows)
    memory.push_back(peak_memory(options, &row) - started);

#if defined(__GLIBC__)
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
  at::set_num_threads(options.threads);
  const Batch batch = make_batch(options);
  std::vector<Variant> variants;
  for (const Row& row : kRows)
    variants.push_back(make_variant(row.name, row.leaf, row.stage, row.folding, options, batch.images));

  std::vector<double> float_times;
  for (int round = -2; round < options.repeats; ++round) {  // two rounds to warm up
    const double reference = variants.front().step(batch.images, batch.labels);
    if (round >= 0) float_times.push_back(reference);
    for (std::size_t i = 1; i < variants.size(); ++i) {
      const double time = variants[i].step(batch.images, batch.labels);
      if (round >= 0) variants[i].ratios.push_back(time / reference);
    }
  }

  fmt::print("{}, batch {}, {} threads, float step {:.1f} ms and {:.0f} MB, {} rounds; ratios to float\n\n",
             options.model, options.batch, at::get_num_threads(), median(float_times), memory[0] / 1024,
             options.repeats);
  fmt::print("{:<36} {:>8} {:>12}\n", "step", "time", "peak memory");
  nlohmann::ordered_json leaves{{"float_ms", median(float_times)}, {"threads", at::get_num_threads()}};
  for (std::size_t i = 1; i < variants.size(); ++i) {
    fmt::print("{:<36} {:>8.3f} {:>12.3f}\n", variants[i].name, median(variants[i].ratios),
               memory[i] / memory[0]);
    leaves[variants[i].leaf] = median(variants[i].ratios);
    leaves["peak_memory"][variants[i].leaf] = memory[i] / memory[0];
  }
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << nlohmann::ordered_json{{options.model, leaves}}.dump(2) << '\n';
    if (!file.flush()) {
      fmt::print(stderr, "error: cannot write {}\n", options.json);
      return 1;
    }
  }
  return 0;
}
