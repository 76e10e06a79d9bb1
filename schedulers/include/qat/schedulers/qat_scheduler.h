#pragma once

#include <qat/graph/capture.h>
#include <qat/nn/fold_batch_norm.h>
#include <qat/schedulers/phase.h>
#include <qat/schedulers/qat_config.h>
#include <qat/schedulers/quantized_tensor.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace qat {

namespace detail {
struct Budgets;
}

/// Leads a model through FLOAT -> RECORDING -> TRAINING while the user's training loop runs.
///
/// Call `step()` once before each training iteration. With (niter_to_recording, niter_to_training) = (r, t)
/// exactly r iterations run in float, t - r record, the rest train with quantizers. To plan in epochs, call
/// it once before each epoch, and after_optimizer_step() after each step of the optimizer. Or call
/// start_recording() and start_training() yourself.
///
/// Example:
/// ```
/// qat::QATScheduler scheduler(net, {torch::randn({2, 1, 28, 28})}, config, &optimizer);
/// for (auto& batch : batches) {
///   scheduler.step();
///   // forward, backward, optimizer.step()
/// }
/// ```
class QATScheduler {
 public:
  /// `model`: holder or shared_ptr of a module; ownership is shared. `example_inputs`: a batch as forward
  /// takes it; kept for captures. `optimizer`: may be nullptr; else it must outlive the scheduler. Parameters
  /// that vanish by folding leave it; new biases join the group of the BatchNorm's bias, or one without
  /// weight decay. Learned parameters of quantizers have a group of their own, without weight decay; if the
  /// slots hold quantizers already, theirs are put there now. The state of all others is untouched. Throws:
  /// c10::ValueError if the configuration is invalid, names a class that neither the model nor a preset has,
  /// or gives a width or a family to a layer that has no such tensor; if the model has no qat::nn layer; if
  /// there is no device as ext_name says; if quantizers learn and the optimizer has but one group (LBFGS).
  template <class ModulePointer>
  QATScheduler(ModulePointer model, std::vector<torch::Tensor> example_inputs,
               QATConfig config = tensorrt_config(), torch::optim::Optimizer* optimizer = nullptr)
      : QATScheduler(std::shared_ptr<torch::nn::Module>(shared_module(model)), forward_function(model),
                     std::move(example_inputs), std::move(config), optimizer) {}
  QATScheduler(std::shared_ptr<torch::nn::Module> model, ForwardFunction forward,
               std::vector<torch::Tensor> example_inputs, QATConfig config,
               torch::optim::Optimizer* optimizer);

  /// Counts an iteration and makes the transition that is due. Validation forwards do not count. If a
  /// transition throws, the iteration does not count.
  void step();
  /// FLOAT -> RECORDING now: captures the graph, folds BatchNorm, places recorders, holds the parameters:
  /// until TRAINING backward() and the optimizer's step() run and change none. (Parameters of modules that
  /// are no qat::nn layers are held by requires_grad(false). A loss that reads parameters directly still
  /// moves them.) BatchNorm that is not folded goes on updating its running statistics, once for each forward
  /// in train mode. Throws: c10::Error if the phase is another; if a slot is occupied; as capture and
  /// place_quantizers. The model is unchanged then.
  void start_recording();
  /// RECORDING -> TRAINING now: replaces recorders by quantizers, scales the learning rate of all groups
  /// once. A slot that holds a quantizer already (set by hand) keeps it, with its width; where that learns,
  /// its own limit of bits is the most that it gets under a budget. Throws: c10::Error if the phase is
  /// another, or naming the slots that recorded nothing; c10::ValueError if a budget cannot be met, or naming
  /// a `compatible` quantizer, whose width cannot be limited, under a budget. The model is unchanged then.
  void start_training();

  /// To be called after each optimizer step in TRAINING (step() does it too, before the next iteration):
  /// brings learned quantizer parameters back into their bounds and sets the widths, from the parameters and
  /// the budgets. The same parameters always give the same widths.
  void after_optimizer_step();
  /// The sum of budget_penalty * max(0, size - budget)^2 over the budgets, sizes in kB from the
  /// differentiable widths: to be added to the loss. float64 []; 0 without budgets and outside of TRAINING.
  torch::Tensor penalty() const;
  /// The quantized weights, then the quantized activations, with their widths of now: what the budgets count
  /// (the largest of the activations, where activation_budget says so). Tensors that share a scale stand one
  /// by one, results of Cat too. Empty outside of TRAINING. Waits for a GPU.
  std::vector<QuantizedTensor> quantized_tensors() const;
  /// Plans the whole run on the float model and changes nothing. Throws: in FLOAT, what start_recording()
  /// would, and c10::ValueError if a budget cannot be met, naming the smallest possible size, or if
  /// a setting of a single layer names one that holds no such quantizer, naming those that do.
  void check() const;

  Phase phase() const { return phase_; }
  std::int64_t iteration() const { return iteration_; }
  const QATConfig& config() const { return config_; }
  /// The graph as captured at the last transition (after folding). Empty in FLOAT.
  const Graph& graph() const { return graph_; }
  /// What became of each BatchNorm; empty after restore().
  const std::vector<nn::FoldReport>& folds() const { return folds_; }
  /// A table: layer, slot, quantizer or recorder, range; what became of each BatchNorm; the functional
  /// operations without a slot.
  std::string summary() const;

  /// Phase, iteration, held foreign parameters and the limits of quantizers set by hand as a JSON object, for
  /// checkpoints.
  std::string state() const;
  /// Takes such a state over. The model must hold what the phase needs (load_checkpoint first); the learning
  /// rate is not scaled again. Links are rebuilt. Parameters of quantizers get their group in the optimizer,
  /// as in the constructor. Throws: c10::ValueError if the text is no such object,
  /// c10::Error if the model is in another phase; nothing is changed then.
  void restore(const std::string& state);

 private:
  template <class Module>
  static std::shared_ptr<torch::nn::Module> shared_module(const torch::nn::ModuleHolder<Module>& holder) {
    return holder.ptr();
  }
  template <class Module>
  static std::shared_ptr<torch::nn::Module> shared_module(const std::shared_ptr<Module>& pointer) {
    return pointer;
  }
  void hold_parameters();
  void release_parameters();
  void group_quantizer_parameters();
  void clip_quantizer_gradients();
  void check_optimizer() const;

  std::shared_ptr<torch::nn::Module> model_;
  ForwardFunction forward_;
  std::vector<torch::Tensor> example_inputs_;
  QATConfig config_;
  torch::optim::Optimizer* optimizer_ = nullptr;
  Phase phase_ = Phase::kFloat;
  std::int64_t iteration_ = 0;
  Graph graph_;
  std::vector<nn::FoldReport> folds_;
  std::shared_ptr<const detail::Budgets> budgets_;  // in TRAINING
  std::vector<std::string> frozen_;                 // foreign parameters that are held
  std::map<std::string, std::int64_t> own_widths_;  // limits of quantizers set by hand, by slot
};

}  // namespace qat
