#pragma once

#include <torch/nn/module.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace qat {

struct EmaOptions {
  /// new average = decay * old + (1 - decay) * parameter, at each update. In [0, 1).
  double decay = 0.999;
  /// Update n (from 1) of a parameter uses min(decay, n / (n + 9)), so that early values do not linger.
  bool warm_up = true;
};

/// An exponential moving average of a model's parameters, which often tests better than the last ones (Polyak
/// and Juditsky 1992; Tarvainen and Valpola 2017, "Mean teachers").
///
/// Latent weights and biases are averaged as they are; learned scales and ranges of quantizers (`scale`,
/// `alpha`, `d`, `xmax`, `xmin`), whose ratios matter, by their logarithms; what is a logarithm or a width
/// already (`log2_t`, `m`, `n`) and offsets as they are. Averages are float64. Buffers are not averaged:
/// BatchNorm's running statistics are averages themselves, ranges and integer state stay those of the model.
///
/// A parameter that appears (a quantizer at the transition to TRAINING, a bias that folding makes) starts
/// with its value at the next update, one that vanished is forgotten.
///
/// Example:
/// ```
/// qat::EmaWeights ema(model);
/// for (...) { optimizer.step(); scheduler.after_optimizer_step(); ema.update(); }
/// ema.apply();     // evaluate, save or export the averaged model
/// ema.restore();   // go on training, to the bit
/// ```
class EmaWeights {
 public:
  /// `model`: shared. Throws: c10::ValueError if it is nullptr or the decay is out of range.
  explicit EmaWeights(std::shared_ptr<torch::nn::Module> model, EmaOptions options = {});

  /// To be called after each optimizer step. Throws: c10::Error while the averages are applied, or naming a
  /// parameter that is not finite; no average is changed then.
  void update();
  /// Gives the model the averages, holds learned quantizer parameters in their bounds, and keeps the model's
  /// own values. Where a budget limits widths, call QATScheduler::after_optimizer_step() next. Throws:
  /// c10::Error if they are applied already, nothing was averaged, or the model has other parameters than at
  /// the last update, naming them.
  void apply();
  /// Gives the model its own values back, bit for bit. Throws: c10::Error if nothing is applied.
  void restore();
  bool is_applied() const { return !own_.empty(); }
  /// The average of a parameter, by its dotted name, in its type. Throws: c10::ValueError if there is none.
  torch::Tensor average(const std::string& name) const;

  /// For checkpoints: all averages with their counts. Loading replaces those that there are.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  struct Average {
    torch::Tensor value;  ///< float64, in the domain that is averaged.
    std::int64_t updates = 0;
  };

  std::shared_ptr<torch::nn::Module> model_;
  EmaOptions options_;
  std::map<std::string, Average> averages_;
  std::map<std::string, torch::Tensor> own_;  ///< the model's values while the averages are applied.
};

}  // namespace qat
