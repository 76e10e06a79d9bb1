#include "schedulers/batch_norm_surgery.h"
#include "schedulers/budgeted_slots.h"
#include "schedulers/layer_settings.h"
#include "schedulers/model_place.h"
#include "schedulers/optimizer_parameters.h"
#include "schedulers/slot_contents.h"
#include "schedulers/width_budget.h"
#include <qat/quantizers/make_quantizer.h>
#include <qat/quantizers/quantizer.h>
#include <qat/schedulers/qat_scheduler.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>

namespace qat {

/// What the budgets count.
struct detail::Budgets {
  std::vector<BudgetedSlot> weights;
  std::vector<BudgetedSlot> activations;
};

namespace {

using detail::LayerMap;

std::vector<torch::Tensor> quantizer_parameters(const LayerMap& layers) {
  std::vector<torch::Tensor> result;
  for (const auto& [path, layer] : layers) {
    for (const nn::SlotId id : layer->occupied_slots()) {
      for (const torch::Tensor& parameter : layer->slot(id)->parameters())
        result.push_back(parameter);
    }
  }
  return result;
}

void check_class_names(const QATConfig& config, const LayerMap& layers) {
  std::set<std::string> known;
  for (const auto& [path, layer] : layers)
    known.insert(detail::class_name(layer->module().name()));
  const std::string in_model = fmt::format("{}", fmt::join(known, ", "));
  const QATConfig defaults;
  for (const auto& names :
       {defaults.skip_inputs_layers, defaults.skip_outputs_layers, tensorrt_config().record_layers}) {
    known.insert(names.begin(), names.end());
  }
  const auto check = [&](const char* field, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      TORCH_CHECK_VALUE(known.contains(name), "QATScheduler: ", field, " lists \"", name,
                        "\", but the model has no layer of such a class; it has ", in_model);
    }
  };
  check("record_layers", config.record_layers);
  check("skip_inputs_layers", config.skip_inputs_layers);
  check("skip_outputs_layers", config.skip_outputs_layers);
}

// The placement for a model in which these folds are done.
detail::Placement place_after(const std::vector<nn::FoldReport>& folds, torch::nn::Module& model,
                              const Graph& graph, const QATConfig& config) {
  auto traits = detail::layer_traits(model);
  for (const std::string& path : detail::scale_and_shift_paths(folds))
    traits.at(path).scales_and_shifts = true;
  return detail::place_quantizers(graph, traits, config, detail::identity_paths(folds));
}

// Which phase the slots of a model speak of.
Phase phase_of_slots(const LayerMap& layers) {
  Phase phase = Phase::kFloat;
  for (const auto& [path, layer] : layers) {
    for (const nn::SlotId id : layer->occupied_slots()) {
      const auto content = layer->slot(id);
      if (std::dynamic_pointer_cast<Recorder>(content)) return Phase::kRecording;
      phase = Phase::kTraining;
    }
  }
  return phase;
}

// Parameters of modules that are neither qat::nn layers nor slots.
std::vector<std::pair<std::string, torch::Tensor>> foreign_parameters(torch::nn::Module& model) {
  std::vector<std::pair<std::string, torch::Tensor>> result;
  std::set<const torch::nn::Module*> contents;
  for (const auto& [path, layer] : nn::quantizable_layers(model)) {
    for (const nn::SlotId id : layer->occupied_slots())
      contents.insert(layer->slot(id).get());
  }
  for (const auto& module : model.named_modules()) {
    const torch::nn::Module* pointer = module.value().get();
    if (dynamic_cast<const nn::QuantizableLayer*>(pointer) || contents.contains(pointer)) continue;
    for (const auto& parameter : module.value()->named_parameters(/*recurse=*/false)) {
      const std::string prefix = module.key().empty() ? "" : module.key() + ".";
      result.emplace_back(prefix + parameter.key(), parameter.value());
    }
  }
  return result;
}

}  // namespace

QATScheduler::QATScheduler(std::shared_ptr<torch::nn::Module> model, ForwardFunction forward,
                           std::vector<torch::Tensor> example_inputs, QATConfig config,
                           torch::optim::Optimizer* optimizer)
    : model_(std::move(model)),
      forward_(std::move(forward)),
      example_inputs_(std::move(example_inputs)),
      config_(std::move(config)),
      optimizer_(optimizer) {
  TORCH_CHECK_VALUE(model_ && forward_, "QATScheduler: expected a model and its forward function");
  config_.validate();
  const LayerMap layers = detail::layer_map(*model_);
  TORCH_CHECK_VALUE(!layers.empty(), "QATScheduler: ", model_->name(),
                    " has no qat::nn layer; build it with `namespace nn = qat::nn;`");
  check_class_names(config_, layers);
  detail::check_layer_settings(layers, config_);
  detail::put_in_place(*model_, example_inputs_, config_);
  group_quantizer_parameters();
}

void QATScheduler::step() {
  if (phase_ == Phase::kTraining) after_optimizer_step();
  if (iteration_ == config_.niter_to_recording && phase_ == Phase::kFloat) {
    start_recording();
  } else if (iteration_ == config_.niter_to_training && phase_ == Phase::kRecording) {
    start_training();
  }
  ++iteration_;
}

void QATScheduler::start_recording() {
  TORCH_CHECK(phase_ == Phase::kFloat, "QATScheduler: recording starts from FLOAT, the phase is ",
              to_string(phase_));
  const LayerMap layers = detail::layer_map(*model_);
  for (const auto& [path, layer] : layers) {
    TORCH_CHECK(
        layer->occupied_slots().empty(), "QATScheduler: ", layer->describe(),
        " holds slots already; restore() continues with a loaded model, clear_slots() makes it float again");
  }
  Graph graph = capture(*model_, forward_, example_inputs_);
  auto folds = detail::plan_folds(*model_, graph, config_);
  const detail::Placement placement = place_after(folds, *model_, graph, config_);
  detail::check_placed_settings(placement, config_);

  // Everything is checked; from here on the model changes.
  if (!folds.empty()) {
    folds = detail::perform_folds(*model_, graph, config_, optimizer_);
    graph = capture(*model_, forward_, example_inputs_);
  }
  detail::fill_with_recorders(placement, layers, config_);
  if (config_.hold_parameters) hold_parameters();
  graph_ = std::move(graph);
  folds_ = std::move(folds);
  phase_ = Phase::kRecording;
}

void QATScheduler::group_quantizer_parameters() {
  if (!optimizer_) return;
  detail::group_quantizer_parameters(*optimizer_, quantizer_parameters(detail::layer_map(*model_)),
                                     config_.quantizer_learning_rate_scale);
}

void QATScheduler::start_training() {
  TORCH_CHECK(phase_ == Phase::kRecording,
              "QATScheduler: training with quantizers starts from RECORDING, the phase is ",
              to_string(phase_));
  Graph graph = capture(*model_, forward_, example_inputs_);
  detail::Placement placement = detail::place_quantizers(graph, detail::layer_traits(*model_), config_);
  const LayerMap layers = detail::layer_map(*model_);
  detail::let_set_quantizers_own(placement, layers);
  const auto own = detail::own_widths(layers);
  const auto budgets = std::make_shared<detail::Budgets>(
      detail::Budgets{detail::budgeted_weights(placement, layers, {}, config_, own),
                      detail::budgeted_activations(placement, layers, graph, config_, own)});
  detail::check_budgets(budgets->weights, budgets->activations, config_);
  check_optimizer();
  // Quantizers set by hand may learn too.
  if (optimizer_ && !quantizer_parameters(layers).empty()) detail::check_has_groups(*optimizer_);
  detail::fill_with_quantizers(placement, layers, config_);
  release_parameters();
  if (optimizer_) {
    for (torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) {
      group.options().set_lr(group.options().get_lr() * config_.learning_rate_scale);
    }
    group_quantizer_parameters();
  }
  budgets_ = budgets;
  own_widths_ = own;
  clip_quantizer_gradients();
  graph_ = std::move(graph);
  phase_ = Phase::kTraining;
  after_optimizer_step();
}

void QATScheduler::clip_quantizer_gradients() {
  if (config_.weight_budget_kb == 0 && config_.activation_budget_kb == 0) return;
  for (const auto& [path, layer] : detail::layer_map(*model_)) {
    for (const nn::SlotId id : layer->occupied_slots()) {
      if (const auto quantizer = std::dynamic_pointer_cast<ParametricQuantizer>(layer->slot(id)))
        quantizer->clip_gradients();
    }
  }
}

void QATScheduler::after_optimizer_step() {
  if (phase_ != Phase::kTraining) return;
  const LayerMap layers = detail::layer_map(*model_);
  for (const auto& [path, layer] : layers) {
    for (const nn::SlotId id : layer->occupied_slots()) {
      if (const auto quantizer = std::dynamic_pointer_cast<Quantizer>(layer->slot(id)))
        quantizer->hold_in_bounds();
    }
  }
  if (budgets_) detail::project_widths(budgets_->weights, budgets_->activations, layers, config_);
}

torch::Tensor QATScheduler::penalty() const {
  if (phase_ != Phase::kTraining || !budgets_) return torch::zeros({}, torch::kDouble);
  return detail::size_penalty(budgets_->weights, budgets_->activations, detail::layer_map(*model_), config_);
}

std::vector<QuantizedTensor> QATScheduler::quantized_tensors() const {
  std::vector<QuantizedTensor> tensors;
  if (phase_ != Phase::kTraining || !budgets_) return tensors;
  const LayerMap layers = detail::layer_map(*model_);
  detail::append_tensors(budgets_->weights, layers, QuantizedTensor::Kind::kWeight, tensors);
  detail::append_tensors(budgets_->activations, layers, QuantizedTensor::Kind::kActivation, tensors);
  return tensors;
}

void QATScheduler::check_optimizer() const {
  if (optimizer_ && detail::has_learned_parameters(config_)) detail::check_has_groups(*optimizer_);
}

void QATScheduler::check() const {
  if (phase_ != Phase::kFloat) return;
  check_optimizer();
  const LayerMap layers = detail::layer_map(*model_);
  TORCH_CHECK(phase_of_slots(layers) == Phase::kFloat, "QATScheduler: the model holds slots already; ",
              "restore() continues with a loaded model, clear_slots() makes it float again");
  const Graph graph = capture(*model_, forward_, example_inputs_);
  const auto folds = detail::plan_folds(*model_, graph, config_);
  const auto placement = place_after(folds, *model_, graph, config_);
  detail::check_placed_settings(placement, config_);
  detail::check_budgets(detail::budgeted_weights(placement, layers, folds, config_, {}),
                        detail::budgeted_activations(placement, layers, graph, config_, {}), config_);
}

void QATScheduler::hold_parameters() {
  bool can_differentiate = false;
  for (const auto& [path, layer] : detail::layer_map(*model_)) {
    layer->hold_parameters(true);
    for (torch::Tensor& parameter : layer->module().parameters(/*recurse=*/false)) {
      can_differentiate = can_differentiate || parameter.requires_grad();
      parameter.mutable_grad() = torch::Tensor();
    }
  }
  // If no layer of ours has a parameter, these are all that a loss can be differentiated by: they go on
  // training.
  if (!can_differentiate) return;
  for (auto& [path, parameter] : foreign_parameters(*model_)) {
    if (!parameter.requires_grad()) continue;
    parameter.set_requires_grad(false);
    parameter.mutable_grad() = torch::Tensor();
    frozen_.push_back(path);
  }
}

void QATScheduler::release_parameters() {
  for (const auto& [path, layer] : detail::layer_map(*model_))
    layer->hold_parameters(false);
  for (auto& [path, parameter] : foreign_parameters(*model_)) {
    const bool was_frozen = std::find(frozen_.begin(), frozen_.end(), path) != frozen_.end();
    if (was_frozen) parameter.set_requires_grad(true);
  }
  frozen_.clear();
}

std::string QATScheduler::state() const {
  nlohmann::ordered_json json = {
      {"phase", to_string(phase_)}, {"iteration", iteration_}, {"frozen", frozen_}};
  if (!own_widths_.empty()) json["own_widths"] = own_widths_;
  return json.dump();
}

void QATScheduler::restore(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto are_widths = [](const auto& object) {
    return object.is_object() && std::all_of(object.begin(), object.end(), [](const auto& bits) {
             return bits.is_number_integer() && bits >= 1 && bits <= 16;
           });
  };
  const bool valid = json.is_object() && json.contains("phase") && json["phase"].is_string() &&
                     json.contains("iteration") && json["iteration"].is_number_integer() &&
                     json.contains("frozen") && json["frozen"].is_array() &&
                     std::all_of(json["frozen"].begin(), json["frozen"].end(),
                                 [](const auto& path) { return path.is_string(); }) &&
                     (!json.contains("own_widths") || are_widths(json["own_widths"]));
  TORCH_CHECK_VALUE(valid, "QATScheduler: expected the text of state(), got \"", text.substr(0, 80), "\"");
  const Phase phase = parse_phase(json["phase"].get<std::string>());
  const LayerMap layers = detail::layer_map(*model_);
  const Phase found = phase_of_slots(layers);
  TORCH_CHECK(found == phase, "QATScheduler: the state is of phase ", to_string(phase),
              ", the slots of the model are of ", to_string(found),
              "; load the checkpoint that was saved with this state first");
  nn::relink(*model_);
  detail::put_in_place(*model_, example_inputs_, config_);
  Graph graph;
  if (phase != Phase::kFloat) graph = capture(*model_, forward_, example_inputs_);

  const auto own = json.value("own_widths", detail::OwnWidths());
  std::shared_ptr<detail::Budgets> budgets;
  if (phase == Phase::kTraining) {
    auto placement = detail::place_quantizers(graph, detail::layer_traits(*model_), config_);
    detail::check_placed_settings(placement, config_);
    detail::let_set_quantizers_own(placement, layers);
    budgets = std::make_shared<detail::Budgets>(
        detail::Budgets{detail::budgeted_weights(placement, layers, {}, config_, own),
                        detail::budgeted_activations(placement, layers, graph, config_, own)});
    detail::check_budgets(budgets->weights, budgets->activations, config_);
  }

  group_quantizer_parameters();
  release_parameters();
  if (phase == Phase::kRecording && config_.hold_parameters) {
    hold_parameters();
    frozen_ = json["frozen"].get<std::vector<std::string>>();
  }
  budgets_ = budgets;
  own_widths_ = own;
  if (budgets) clip_quantizer_gradients();
  phase_ = phase;
  iteration_ = json["iteration"].get<std::int64_t>();
  graph_ = std::move(graph);
  folds_.clear();
}

}  // namespace qat
