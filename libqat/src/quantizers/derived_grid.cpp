#include "quantizers/derived_grid.h"

#include "kernels/derive_grid.h"

#include <ATen/TracerMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>

namespace qat::detail {
namespace {

using torch::Tensor;

/// A copy of a parameter in the type of the arithmetic, on the CPU: training may change it before the
/// backward pass.
Tensor grid_values(const Tensor& parameter) {
  return parameter.defined() ? parameter.detach()
                                   .to(torch::kCPU, torch::kDouble, /*non_blocking=*/false, /*copy=*/true)
                                   .contiguous()
                             : Tensor();
}

/// A rule with the values of its parameters.
template <class Rule>
class GridCall : public torch::CustomClassHolder {
 public:
  GridCall(const Rule& rule, const GridInputs& inputs)
      : rule_(rule),
        shape_(inputs.shape),
        first_(grid_values(inputs.first)),
        second_(grid_values(inputs.second)),
        limit_(inputs.bits_limit.defined() ? inputs.bits_limit.cpu().clone() : Tensor()),
        options_(inputs.first.options().requires_grad(false)) {
    job_.first = parameter(first_);
    job_.second = parameter(second_);
    if (limit_.defined()) job_.bits_limit = limit_.template const_data_ptr<std::int64_t>();
    for (const auto size : shape_)
      job_.channels *= size;
  }

  DerivedGrid values() const {
    DerivedGrid grid;
    const auto table = [&](torch::ScalarType type) { return torch::empty(shape_, type); };
    kernels::GridTables tables;
    const auto real = [&](Tensor& tensor) {
      tensor = table(torch::kFloat);
      return tensor.mutable_data_ptr<float>();
    };
    tables.scale = real(grid.scale);
    tables.lower = real(grid.lower);
    tables.upper = real(grid.upper);
    const auto integer = [&](Tensor& tensor) {
      tensor = table(torch::kInt);
      return tensor.mutable_data_ptr<std::int32_t>();
    };
    tables.zero_point = integer(grid.zero_point);
    tables.low = integer(grid.low);
    tables.high = integer(grid.high);
    for (std::int64_t channel = 0; channel < job_.channels; ++channel)
      kernels::derive_channel(rule_, job_, channel, tables);
    if (!options_.device().is_cpu()) {
      for (auto* tensor : {&grid.scale, &grid.lower, &grid.upper, &grid.zero_point, &grid.low, &grid.high})
        *tensor = tensor->to(options_.device());
    }
    return grid;
  }

  torch::autograd::variable_list gradients(const torch::autograd::variable_list& outputs) const {
    std::vector<Tensor> given;
    for (const auto& output : outputs)
      given.push_back(output.defined() ? output.to(torch::kCPU, torch::kFloat).contiguous() : Tensor());
    const auto pointer = [](const Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; };
    const kernels::GridGradients from{pointer(given[0]), pointer(given[1]), pointer(given[2])};
    auto first = torch::empty_like(first_);
    auto second = second_.defined() ? torch::empty_like(second_) : Tensor();
    kernels::derive_gradients(rule_, job_, from, first.template mutable_data_ptr<double>(),
                              second.defined() ? second.template mutable_data_ptr<double>() : nullptr);
    return {first.to(options_), second.defined() ? second.to(options_) : Tensor()};
  }

 private:
  static kernels::GridParameter parameter(const Tensor& values) {
    return values.defined() ? kernels::GridParameter{values.const_data_ptr<double>(), values.numel()}
                            : kernels::GridParameter{};
  }

  Rule rule_;
  std::vector<std::int64_t> shape_;
  Tensor first_;  ///< held: the job points at the values.
  Tensor second_;
  Tensor limit_;
  torch::TensorOptions options_;
  kernels::GridJob job_;
};

template <class Rule>
struct GridFunction : torch::autograd::Function<GridFunction<Rule>> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const Tensor&,
                                                const Tensor&, const c10::intrusive_ptr<GridCall<Rule>>& call,
                                                const DerivedGrid& grid) {
    context->saved_data["call"] = torch::IValue::make_capsule(call);
    context->set_materialize_grads(false);
    return {grid.scale, grid.lower, grid.upper};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto capsule = context->saved_data["call"].toCapsule();
    auto result = static_cast<const GridCall<Rule>&>(*capsule).gradients(gradients);
    result.resize(4);  // the call and the grid have none
    return result;
  }
};

template <class Rule>
DerivedGrid derive(const Rule& rule, const GridInputs& inputs) {
  const at::tracer::impl::NoTracerDispatchMode no_tracer;
  c10::intrusive_ptr<GridCall<Rule>> call;
  DerivedGrid grid;
  {
    const torch::NoGradGuard no_grad;
    call = c10::make_intrusive<GridCall<Rule>>(rule, inputs);
    grid = call->values();
  }
  const auto learns = [](const Tensor& t) { return t.defined() && t.requires_grad(); };
  if (!torch::GradMode::is_enabled() || !(learns(inputs.first) || learns(inputs.second))) return grid;
  const auto second = inputs.second.defined() ? inputs.second : inputs.first.detach();
  const auto outputs = GridFunction<Rule>::apply(inputs.first, second, call, grid);
  grid.scale = outputs[0];
  grid.lower = outputs[1];
  grid.upper = outputs[2];
  return grid;
}

}  // namespace

DerivedGrid derive_grid(const ParametricRule& rule, const GridInputs& inputs) {
  return derive(rule, inputs);
}

DerivedGrid derive_grid(const LearnedStepRule& rule, const GridInputs& inputs) {
  return derive(rule, inputs);
}

Tensor derive_bits(const BitCountRule& rule, const GridInputs& inputs) {
  return derive(rule, inputs).scale;
}

}  // namespace qat::detail
