#pragma once

#include "small_net.h"
#include <qat/quantizers/make_quantizer.h>
#include <qat/quantizers/quantizer.h>
#include <qat/schedulers/qat_scheduler.h>

#include <torch/optim/sgd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <stdlib.h>
#include <string>
#include <vector>

namespace qat::testing {

/// A folder of its own, removed at the end.
struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "qat_learned_XXXXXX").string();
    path = mkdtemp(pattern.data());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const char* name) const { return (path / name).string(); }
};

/// Everything quantized by these families, BatchNorm folded, at a width that the weights can have.
inline QATConfig learned_config(const std::string& weights, const std::string& activations,
                                std::int64_t bits = 4) {
  QATConfig config = integer_only_config();
  config.weight_quantizer = weights;
  config.activation_quantizer = activations;
  config.weight_bits = weights == "binary" ? 1 : (weights == "ternary" ? 2 : bits);
  config.activation_bits = bits;
  // A step of xmin moves the range by 2^7 steps.
  if (weights == "pow2_b_xmin") config.quantizer_learning_rate_scale = 1e-4;
  return config;
}

/// Weight and activation family.
struct Families {
  std::string weights;
  std::string activations;
};

/// Each family on each side once; what only one side can have goes with lsq.
inline std::vector<Families> all_families() {
  std::vector<Families> result;
  for (const auto& name : weight_quantizer_names()) {
    const auto& others = activation_quantizer_names();
    const bool both = std::find(others.begin(), others.end(), name) != others.end();
    result.push_back({name, both ? name : "lsq"});
  }
  result.push_back({"lsq", "pact"});
  return result;
}

/// The small net with its optimizer and scheduler.
struct Run {
  explicit Run(QATConfig config, double rate = 1e-3)
      : net(small_net()),
        optimizer(net->parameters(), torch::optim::SGDOptions(rate).momentum(0.9).weight_decay(1e-3)),
        scheduler(net, {images()}, std::move(config), &optimizer) {}

  /// One step with the penalty of the budgets; the loss.
  double step() {
    optimizer.zero_grad();
    const auto loss = net->forward(images()).square().mean() + scheduler.penalty().to(torch::kFloat);
    loss.backward();
    optimizer.step();
    scheduler.after_optimizer_step();
    return loss.item<double>();
  }
  /// Through RECORDING, with one batch, to TRAINING.
  void start() {
    scheduler.start_recording();
    net->forward(images());
    scheduler.start_training();
  }
  torch::Tensor evaluate() { return evaluated(net); }

  static torch::Tensor evaluated(nn::Sequential& model) {
    const torch::NoGradGuard no_grad;
    const bool training = model->is_training();
    model->eval();
    const auto y = model->forward(images(7));
    model->train(training);
    return y;
  }

  nn::Sequential net;
  torch::optim::SGD optimizer;
  QATScheduler scheduler;
};

/// All quantizers of a net by layer and slot ("4.weight_slot").
inline std::map<std::string, std::shared_ptr<Quantizer>> quantizers(nn::Sequential& net) {
  std::map<std::string, std::shared_ptr<Quantizer>> result;
  for (const auto& [path, each] : nn::quantizable_layers(*net)) {
    for (const auto id : each->occupied_slots()) {
      if (auto quantizer = std::dynamic_pointer_cast<Quantizer>(each->slot(id)))
        result[path + "." + id.name()] = std::move(quantizer);
    }
  }
  return result;
}

/// The parameters of all quantizers, by path.
inline std::map<std::string, torch::Tensor> learnables(nn::Sequential& net) {
  std::map<std::string, torch::Tensor> result;
  for (const auto& [path, quantizer] : quantizers(net)) {
    for (const auto& parameter : quantizer->named_parameters())
      result[path + "." + parameter.key()] = parameter.value();
  }
  return result;
}

/// The widths of all quantizers that are weights (or all that are not).
inline std::map<std::string, std::int64_t> widths(nn::Sequential& net, bool of_weights) {
  std::map<std::string, std::int64_t> result;
  for (const auto& [path, quantizer] : quantizers(net)) {
    if (path.ends_with("weight_slot") == of_weights) result[path] = quantizer->bits();
  }
  return result;
}

}  // namespace qat::testing
