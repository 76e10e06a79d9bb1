// One training step (forward, loss, backward, SGD) of a model in each phase, as a ratio to the same step in
// float.
//
//   train_step_bench [--json FILE] [--model NAME] [--batch N] [--threads N] [--repeats N]
//
// All variants are built in one process and measured in turn; a row is the median of its ratios to the float
// step of the same round. A second float model shows the noise. The models keep large blocks in the heap.

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
#include <vector>

#include "support/models.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace {

using torch::Tensor;

/// The affine quantizer of LibTorch, for comparison: the activation, then torch::fake_quantize_*.
class TorchFakeQuantizer : public qat::Quantizer {
 public:
  explicit TorchFakeQuantizer(std::shared_ptr<qat::AffineQuantizer> twin)
      : Quantizer("TorchFakeQuantizer"), twin_(std::move(twin)) {}

  using Quantizer::forward;
  Tensor forward(const Tensor& x, const qat::Activation& activation) override {
    const Tensor y = activated(x, activation);
    const auto params = affine_params(y);
    const auto qmin = params.range.qmin();
    const auto qmax = params.range.qmax();
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

  std::shared_ptr<qat::AffineQuantizer> twin_;
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
};

enum class Stage { kFloat, kRecording, kTraining, kTorchFakeQuantize, kLearnedStep, kLearnedRange };

Variant make_variant(std::string name, std::string leaf, Stage stage, qat::BatchNormFolding folding,
                     const Options& options, const Tensor& images) {
  torch::manual_seed(1);
  Variant variant{std::move(name), std::move(leaf), qat::apps::make_model(options.model, {3, 32, 32}, 10),
                  nullptr};
  auto& module = *variant.model.module;
  variant.optimizer =
      std::make_unique<torch::optim::SGD>(module.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  if (stage == Stage::kFloat) return variant;

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
  if (stage != Stage::kTorchFakeQuantize) return variant;
  for (auto& [path, layer] : qat::nn::quantizable_layers(module)) {
    for (const auto id : layer->occupied_slots()) {
      if (auto affine = std::dynamic_pointer_cast<qat::AffineQuantizer>(layer->slot(id)))
        layer->set_slot(id, std::make_shared<TorchFakeQuantizer>(affine));
    }
  }
  qat::nn::relink(module);
  return variant;
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
    if (key == "--threads") at::set_num_threads(std::atoi(argv[i + 1]));
    if (key == "--repeats") options.repeats = std::atoi(argv[i + 1]);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
#if defined(__GLIBC__)
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
  const Options options = parse(argc, argv);
  torch::manual_seed(0);
  const auto images = torch::randn({options.batch, 3, 32, 32});
  const auto labels = torch::randint(10, {options.batch});

  using qat::BatchNormFolding;
  std::vector<Variant> variants;
  const auto add = [&](const char* name, const char* leaf, Stage stage, BatchNormFolding folding) {
    variants.push_back(make_variant(name, leaf, stage, folding, options, images));
  };
  add("float", "", Stage::kFloat, BatchNormFolding::kOff);
  add("float again (noise)", "float_again_vs_float", Stage::kFloat, BatchNormFolding::kOff);
  add("RECORDING, BN kept", "recording_vs_float", Stage::kRecording, BatchNormFolding::kOff);
  add("RECORDING, BN folded", "recording_folded_vs_float", Stage::kRecording, BatchNormFolding::kOnce);
  add("TRAINING, BN kept", "training_vs_float", Stage::kTraining, BatchNormFolding::kOff);
  add("TRAINING, BN folded", "training_folded_vs_float", Stage::kTraining, BatchNormFolding::kOnce);
  add("TRAINING with lsq, BN kept", "lsq_training_vs_float", Stage::kLearnedStep, BatchNormFolding::kOff);
  add("TRAINING with lsq, BN folded", "lsq_training_folded_vs_float", Stage::kLearnedStep,
      BatchNormFolding::kOnce);
  add("TRAINING with fp_d_xmax, BN kept", "fp_d_xmax_training_vs_float", Stage::kLearnedRange,
      BatchNormFolding::kOff);
  add("torch::fake_quantize_*, BN kept", "torch_fake_quantize_vs_float", Stage::kTorchFakeQuantize,
      BatchNormFolding::kOff);
  add("torch::fake_quantize_*, BN folded", "torch_fake_quantize_folded_vs_float", Stage::kTorchFakeQuantize,
      BatchNormFolding::kOnce);

  std::vector<double> float_times;
  for (int round = -2; round < options.repeats; ++round) {  // two rounds to warm up
    const double reference = variants.front().step(images, labels);
    if (round >= 0) float_times.push_back(reference);
    for (std::size_t i = 1; i < variants.size(); ++i) {
      const double time = variants[i].step(images, labels);
      if (round >= 0) variants[i].ratios.push_back(time / reference);
    }
  }

  fmt::print("{}, batch {}, {} threads, float step {:.1f} ms, {} rounds\n\n", options.model, options.batch,
             at::get_num_threads(), median(float_times), options.repeats);
  fmt::print("{:<36} {:>14}\n", "step", "ratio to float");
  nlohmann::ordered_json leaves{{"float_ms", median(float_times)}, {"threads", at::get_num_threads()}};
  for (std::size_t i = 1; i < variants.size(); ++i) {
    fmt::print("{:<36} {:>14.3f}\n", variants[i].name, median(variants[i].ratios));
    leaves[variants[i].leaf] = median(variants[i].ratios);
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
