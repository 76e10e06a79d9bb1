#include <qat/quantizers/quantizer.h>
#include <qat/schedulers/ema_weights.h>

#include <c10/util/Exception.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace qat {
namespace {

/// Whether a parameter, by its dotted name, is a positive scale or range of a quantizer.
bool is_scale(const std::string& name) {
  static const std::set<std::string> scales = {"scale", "alpha", "d", "xmax", "xmin"};
  const auto dot = name.rfind('.');
  if (dot == std::string::npos || name.find("_slot") == std::string::npos) return false;
  return scales.contains(name.substr(dot + 1));
}

torch::Tensor to_averaged(const std::string& name, const torch::Tensor& parameter) {
  const auto wide = parameter.detach().to(torch::kDouble);
  return is_scale(name) ? torch::log2(wide) : wide.clone();
}

torch::Tensor from_averaged(const std::string& name, const torch::Tensor& value) {
  return is_scale(name) ? torch::exp2(value) : value;
}

}  // namespace

EmaWeights::EmaWeights(std::shared_ptr<torch::nn::Module> model, EmaOptions options)
    : model_(std::move(model)), options_(options) {
  TORCH_CHECK_VALUE(model_, "EmaWeights: expected a model");
  TORCH_CHECK_VALUE(options_.decay >= 0.0 && options_.decay < 1.0,
                    "EmaWeights: expected a decay in [0, 1), got ", options_.decay);
}

void EmaWeights::update() {
  TORCH_CHECK(!is_applied(),
              "EmaWeights: the model holds the averages; restore() its own weights before it trains on");
  const torch::NoGradGuard no_grad;
  std::map<std::string, Average> updated;
  for (const auto& parameter : model_->named_parameters()) {
    const std::string& name = parameter.key();
    const auto value = to_averaged(name, parameter.value());
    TORCH_CHECK(torch::isfinite(value).all().item<bool>(), "EmaWeights: ", name,
                " holds a value that is not finite; averages would not recover from it");
    const auto found = averages_.find(name);
    if (found == averages_.end() || found->second.value.sizes() != value.sizes()) {
      updated[name] = {value, 1};
      continue;
    }
    const auto& [old, count] = found->second;
    const auto n = static_cast<double>(count + 1);
    const double decay = options_.warm_up ? std::min(options_.decay, n / (n + 9)) : options_.decay;
    updated[name] = {old.to(value.device()) * decay + value * (1 - decay), count + 1};
  }
  averages_ = std::move(updated);
}

void EmaWeights::apply() {
  TORCH_CHECK(!is_applied(), "EmaWeights: the averages are applied already; restore() comes first");
  TORCH_CHECK(!averages_.empty(), "EmaWeights: nothing was averaged; call update() after optimizer steps");
  const torch::NoGradGuard no_grad;
  std::vector<std::string> differences;
  auto parameters = model_->named_parameters();
  for (const auto& parameter : parameters) {
    if (!averages_.contains(parameter.key())) differences.push_back(parameter.key());
  }
  for (const auto& [name, average] : averages_) {
    if (!parameters.contains(name)) differences.push_back(name);
  }
  TORCH_CHECK(differences.empty(), "EmaWeights: the model has other parameters than at the last update(): ",
              fmt::format("{}", fmt::join(differences, ", ")), "; call update() first");
  std::map<std::string, torch::Tensor> own;
  for (auto& parameter : parameters)
    own[parameter.key()] = parameter.value().detach().clone();
  for (auto& parameter : parameters)
    parameter.value().copy_(from_averaged(parameter.key(), averages_.at(parameter.key()).value));
  for (const auto& module : model_->modules()) {
    if (auto* const quantizer = dynamic_cast<Quantizer*>(module.get())) quantizer->hold_in_bounds();
  }
  own_ = std::move(own);
}

void EmaWeights::restore() {
  TORCH_CHECK(is_applied(), "EmaWeights: the averages are not applied; there is nothing to restore");
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model_->named_parameters()) {
    if (const auto found = own_.find(parameter.key()); found != own_.end())
      parameter.value().copy_(found->second);
  }
  own_.clear();
}

torch::Tensor EmaWeights::average(const std::string& name) const {
  const auto found = averages_.find(name);
  TORCH_CHECK_VALUE(found != averages_.end(), "EmaWeights: there is no average of ", name);
  return from_averaged(name, found->second.value).to(torch::kFloat);
}

void EmaWeights::save(torch::serialize::OutputArchive& archive) const {
  c10::List<std::string> names;
  for (const auto& [name, average] : averages_) {
    archive.write("average" + std::to_string(names.size()), average.value, /*is_buffer=*/true);
    archive.write("updates" + std::to_string(names.size()), c10::IValue(average.updates));
    names.push_back(name);
  }
  archive.write("names", c10::IValue(names));
}

void EmaWeights::load(torch::serialize::InputArchive& archive) {
  TORCH_CHECK(!is_applied(), "EmaWeights: the model holds the averages; restore() its own weights first");
  c10::IValue names;
  archive.read("names", names);
  std::map<std::string, Average> read;
  std::size_t index = 0;
  for (const c10::IValue& name : names.toListRef()) {
    Average average;
    c10::IValue updates;
    archive.read("average" + std::to_string(index), average.value, /*is_buffer=*/true);
    archive.read("updates" + std::to_string(index++), updates);
    average.updates = updates.toInt();
    read[name.toStringRef()] = average;
  }
  averages_ = std::move(read);
}

}  // namespace qat
