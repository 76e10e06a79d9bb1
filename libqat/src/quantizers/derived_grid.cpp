#include "quantizers/derived_grid.h"

#include "kernels/derive_grid.h"
#ifdef QAT_CUDA
#include "kernels/derive_grid_cuda.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include <ATen/TracerMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>

namespace qat::detail {
namespace {

using torch::Tensor;

/// Where the grid of a parameter is computed: where the parameter is, if there is a kernel for that.
torch::Device place_of(const Tensor& parameter) {
#ifdef QAT_CUDA
  if (parameter.is_cuda()) return parameter.device();
#endif
  return parameter.device().is_cpu() ? parameter.device() : torch::Device(torch::kCPU);
}

/// A rule with the values of its parameters. Nothing waits for a GPU that has kernels.
template <class Rule>
class GridCall : public torch::CustomClassHolder {
 public:
  GridCall(const Rule& rule, const GridInputs& inputs)
      : rule_(rule),
        shape_(inputs.shape),
        place_(place_of(inputs.first)),
        first_(copied(inputs.first, torch::kDouble)),
        second_(copied(inputs.second, torch::kDouble)),
        limit_(copied(inputs.bits_limit, torch::kLong)),
        options_(inputs.first.options().requires_grad(false)) {
    job_.first = parameter(first_);
    job_.second = parameter(second_);
    if (limit_.defined()) job_.bits_limit = limit_.template const_data_ptr<std::int64_t>();
    for (const auto size : shape_)
      job_.channels *= size;
  }

  DerivedGrid values() const {
    DerivedGrid grid;
    const auto table = [&]<class T>(Tensor& tensor, torch::ScalarType type, T*& pointer) {
      tensor = torch::empty(shape_, torch::dtype(type).device(place_));
      pointer = tensor.template mutable_data_ptr<T>();
    };
    kernels::GridTables tables;
    table(grid.scale, torch::kFloat, tables.scale);
    table(grid.lower, torch::kFloat, tables.lower);
    table(grid.upper, torch::kFloat, tables.upper);
    table(grid.zero_point, torch::kInt, tables.zero_point);
    table(grid.low, torch::kInt, tables.low);
    table(grid.high, torch::kInt, tables.high);
    run([&] { return kernels::derive_grid(rule_, job_, tables); },
        [&](auto stream) { launch_derive_grid(rule_, job_, tables, stream); });
    if (place_ != options_.device()) {
      for (auto* tensor : {&grid.scale, &grid.lower, &grid.upper, &grid.zero_point, &grid.low, &grid.high})
        *tensor = tensor->to(options_.device());
    }
    return grid;
  }

  torch::autograd::variable_list gradients(const torch::autograd::variable_list& outputs) const {
    std::vector<Tensor> given;
    for (const auto& output : outputs)
      given.push_back(output.defined() ? output.to(place_, torch::kFloat).contiguous() : Tensor());
    const auto pointer = [](const Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; };
    const kernels::GridGradients from{pointer(given[0]), pointer(given[1]), pointer(given[2])};
    const auto first = torch::empty_like(first_);
    const auto second = second_.defined() ? torch::empty_like(second_) : Tensor();
    auto* const to_first = first.template mutable_data_ptr<double>();
    auto* const to_second = second.defined() ? second.template mutable_data_ptr<double>() : nullptr;
    run([&] { kernels::derive_gradients(rule_, job_, from, to_first, to_second); },
        [&](auto stream) { launch_derive_gradients(rule_, job_, from, to_first, to_second, stream); });
    return {first.to(options_), second.defined() ? second.to(options_) : Tensor()};
  }

 private:
  /// A copy, for training may change a parameter before the backward pass.
  Tensor copied(const Tensor& tensor, torch::ScalarType type) const {
    return tensor.defined()
               ? tensor.detach().to(place_, type, /*non_blocking=*/false, /*copy=*/true).contiguous()
               : Tensor();
  }
  static kernels::GridParameter parameter(const Tensor& values) {
    return values.defined() ? kernels::GridParameter{values.const_data_ptr<double>(), values.numel()}
                            : kernels::GridParameter{};
  }

  template <class OnCpu, class OnGpu>
  void run(const OnCpu& on_cpu, [[maybe_unused]] const OnGpu& on_gpu) const {
#ifdef QAT_CUDA
    if (place_.is_cuda()) {
      const c10::cuda::CUDAGuard guard(place_);
      on_gpu(c10::cuda::getCurrentCUDAStream().stream());
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      return;
    }
#endif
    on_cpu();
  }

  Rule rule_;
  std::vector<std::int64_t> shape_;
  torch::Device place_;
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
