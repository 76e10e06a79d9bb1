#include "schedulers/optimizer_parameters.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>

namespace qat::detail {
namespace {

/// Calls f with the options as what they are, for the optimizers of torch that have a weight decay.
template <class Function>
void visit_decay(torch::optim::OptimizerOptions& options, const Function& f) {
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) f(*sgd);
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) f(*adam);
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) f(*adamw);
  if (auto* adagrad = dynamic_cast<torch::optim::AdagradOptions*>(&options)) f(*adagrad);
  if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropOptions*>(&options)) f(*rmsprop);
}

double decay_of(torch::optim::OptimizerOptions& options) {
  double decay = 0;
  visit_decay(options, [&](auto& known) { decay = known.weight_decay(); });
  return decay;
}

std::unique_ptr<torch::optim::OptimizerOptions> without_decay(const torch::optim::OptimizerOptions& options) {
  auto copy = options.clone();
  visit_decay(*copy, [](auto& known) { known.weight_decay(0); });
  return copy;
}

bool contains(const std::vector<torch::Tensor>& parameters, const torch::Tensor& parameter) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const torch::Tensor& each) { return each.is_same(parameter); });
}

/// Where an optimizer holds a parameter.
struct Place {
  std::size_t group;
  std::ptrdiff_t index;
};

std::optional<Place> place_of(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  const auto& groups = optimizer.param_groups();
  for (std::size_t g = 0; parameter.defined() && g < groups.size(); ++g) {
    const auto& params = groups[g].params();
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (params[i].is_same(parameter)) return Place{g, static_cast<std::ptrdiff_t>(i)};
    }
  }
  return std::nullopt;
}

}  // namespace

void remove_parameter(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    std::erase_if(group.params(), [&](const torch::Tensor& each) { return each.is_same(parameter); });
  }
  optimizer.state().erase(parameter.unsafeGetTensorImpl());
}

bool holds_parameter(const torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  const auto& groups = optimizer.param_groups();
  return std::any_of(groups.begin(), groups.end(),
                     [&](const auto& group) { return contains(group.params(), parameter); });
}

void add_parameters(torch::optim::Optimizer& optimizer, const std::vector<AddedParameter>& added) {
  std::map<std::size_t, std::vector<torch::Tensor>> apart;  // by the group of the first one's neighbour
  for (const AddedParameter& each : added) {
    const auto neighbour = place_of(optimizer, each.neighbour);
    const auto former = place_of(optimizer, each.former);
    auto& groups = optimizer.param_groups();
    std::optional<Place> place = former;
    if (neighbour &&
        (former ? former->group == neighbour->group : decay_of(groups[neighbour->group].options()) == 0))
      place = Place{neighbour->group, neighbour->index + 1};
    if (place) {
      auto& params = groups[place->group].params();
      params.insert(params.begin() + place->index, each.parameter);
    } else if (neighbour) {
      apart[neighbour->group].push_back(each.parameter);
    } else {
      // Its neighbour may be in none of the groups yet.
      for (auto& [group, parameters] : apart) {
        if (contains(parameters, each.neighbour)) {
          parameters.push_back(each.parameter);
          break;
        }
      }
    }
  }
  for (auto& [group, parameters] : apart) {
    auto options = without_decay(optimizer.param_groups()[group].options());
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(std::move(parameters), std::move(options)));
  }
}

void check_has_groups(const torch::optim::Optimizer& optimizer) {
  TORCH_CHECK_VALUE(
      !dynamic_cast<const torch::optim::LBFGS*>(&optimizer),
      "QATScheduler: LBFGS has one parameter group, learned quantizers need one of their own; use SGD, Adam "
      "or another optimizer with groups");
}

void group_quantizer_parameters(torch::optim::Optimizer& optimizer,
                                const std::vector<torch::Tensor>& parameters, double rate_scale) {
  std::vector<std::size_t> own;  // groups that hold nothing else
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& params = optimizer.param_groups()[g].params();
    const bool is_own = !params.empty() && std::all_of(params.begin(), params.end(), [&](const auto& each) {
      return contains(parameters, each);
    });
    if (is_own) own.push_back(g);
  }
  std::vector<torch::Tensor> moved;
  for (const torch::Tensor& parameter : parameters) {
    const auto place = place_of(optimizer, parameter);
    const bool stays = place && std::find(own.begin(), own.end(), place->group) != own.end();
    if (!stays && (place || parameter.requires_grad())) moved.push_back(parameter);
  }
  if (moved.empty()) return;
  check_has_groups(optimizer);
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups())
    std::erase_if(group.params(), [&](const torch::Tensor& each) { return contains(moved, each); });
  if (!own.empty()) {
    auto& params = optimizer.param_groups()[own.front()].params();
    params.insert(params.end(), moved.begin(), moved.end());
    return;
  }
  auto options = without_decay(optimizer.param_groups().front().options());
  options->set_lr(options->get_lr() * rate_scale);
  // torch takes a parameter that has a state for one that is in a group.
  std::vector<std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>> states;
  for (const torch::Tensor& parameter : moved) {
    const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (state == optimizer.state().end()) continue;
    states.emplace_back(state->first, std::move(state->second));
    optimizer.state().erase(state);
  }
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(std::move(moved), std::move(options)));
  for (auto& [parameter, state] : states)
    optimizer.state()[parameter] = std::move(state);
}

}  // namespace qat::detail
