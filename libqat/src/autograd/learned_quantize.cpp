#include "kernels/learned_quantize.h"

#include "autograd/chunk_sums.h"
#include "autograd/dense_view.h"
#include "autograd/learned_operators.h"
#include "kernels/fake_quantize.h"
#include <qat/autograd/learned_quantize.h>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace qat {
namespace {

using detail::LearnedGradients;
using torch::Tensor;

/// Computes a quantizer's values and gradients for tensors like the one that it was made for.
struct LearnedPass : torch::CustomClassHolder {
  virtual Tensor values(const Tensor& x) const = 0;
  virtual LearnedGradients gradients(const Tensor& x, const Tensor& dy) const = 0;
};

// ---------------------------------------------------------------------------------------------------------------------
// CPU: one fused pass.

/// Tables of one value for each channel of a view, in one block of memory.
template <class T>
class ChannelTables {
 public:
  ChannelTables(const kernels::ChannelView& view, std::size_t count)
      : channels_(view.channels), inner_(view.inner), unrolled_(detail::unrolled(view)) {
    values_.reserve(count * static_cast<std::size_t>(unrolled_.channels));
  }

  const kernels::ChannelView& view() const { return unrolled_; }

  /// Adds a table from a tensor [] or [C].
  const T* add(const Tensor& tensor) {
    const auto source = tensor.to(torch::kCPU, sizeof(T) == 4 ? torch::kFloat : torch::kDouble).contiguous();
    const auto* from = source.template const_data_ptr<T>();
    return add([&](std::int64_t channel) { return from[channel]; });
  }

  /// Adds a table of function(channel).
  template <class Function>
  const T* add(const Function& function) {
    const auto start = values_.size();
    for (std::int64_t i = 0; i < unrolled_.channels; ++i)
      values_.push_back(function(channel_of(i)));
    return values_.data() + start;
  }

  /// The channel that entry i of a table belongs to.
  std::int64_t channel_of(std::int64_t i) const {
    return unrolled_.channels == channels_ ? i : i / inner_ % channels_;
  }
  std::int64_t channels() const { return channels_; }

 private:
  std::int64_t channels_;
  std::int64_t inner_;
  kernels::ChannelView unrolled_;
  std::vector<T> values_;  // reserved: pointers into it stay
};

template <class T>
kernels::UniformRule<T> fill(ChannelTables<T>& tables, const UniformGrid& grid, Rounding rounding) {
  kernels::UniformRule<T> rule{.rounding = rounding,
                               .scale = tables.add(grid.scale),
                               .zero_point = tables.add(grid.zero_point),
                               .low = tables.add(grid.low),
                               .high = tables.add(grid.high),
                               .lower = tables.add(grid.lower),
                               .upper = tables.add(grid.upper)};
  for (std::int64_t i = 0; i < tables.view().channels; ++i) {
    TORCH_CHECK_VALUE(rule.scale[i] > T(0) && std::isfinite(rule.scale[i]),
                      "qat::uniform_quantize: the scale of channel ", tables.channel_of(i), " is ",
                      rule.scale[i], "; expected a positive finite number");
    TORCH_CHECK_VALUE(rule.lower[i] <= rule.upper[i], "qat::uniform_quantize: the bounds of channel ",
                      tables.channel_of(i), " are ", rule.lower[i], " and ", rule.upper[i],
                      "; expected lower <= upper");
  }
  return rule;
}

template <class T>
kernels::PowerOfTwoRule<T> fill(ChannelTables<T>& tables, const PowerOfTwoGrid& grid, Rounding) {
  kernels::PowerOfTwoRule<T> rule{grid.is_signed, grid.with_zero, tables.add(grid.xmin),
                                  tables.add(grid.xmax)};
  for (std::int64_t i = 0; i < tables.view().channels; ++i) {
    const bool valid = std::isnormal(rule.xmin[i]) && rule.xmin[i] > T(0) && rule.xmin[i] <= rule.xmax[i] &&
                       std::isfinite(rule.xmax[i]);
    TORCH_CHECK_VALUE(valid, "qat::power_of_two_quantize: xmin and xmax of channel ", tables.channel_of(i),
                      " are ", rule.xmin[i], " and ", rule.xmax[i], "; expected 0 < xmin <= xmax");
  }
  return rule;
}

constexpr std::size_t table_count(const UniformGrid&) {
  return 8;
}
constexpr std::size_t table_count(const PowerOfTwoGrid&) {
  return 2;
}

std::vector<std::int64_t> table_shape(const UniformGrid& grid) {
  return grid.scale.sizes().vec();
}
std::vector<std::int64_t> table_shape(const PowerOfTwoGrid& grid) {
  return grid.xmin.sizes().vec();
}

template <class T, class Grid, class Rule>
class CpuPass final : public LearnedPass {
 public:
  CpuPass(const Tensor& x, const Grid& grid, Rounding rounding, const Activation& activation)
      : tables_(*detail::dense_view(x, detail::resolve_axis(x, grid.axis)), table_count(grid)),
        shape_(table_shape(grid)) {
    job_.element = *detail::element_type(x.scalar_type());
    job_.view = tables_.view();
    job_.rule = fill(tables_, grid, rounding);
    job_.has_activation = !activation.is_identity() && !is_done_by_grid(activation);
    job_.negative_slope = static_cast<T>(activation.negative_slope);
    job_.activation_upper = static_cast<T>(activation.upper);
    if constexpr (std::is_same_v<Grid, UniformGrid>) prepare_values(activation);
  }

  Tensor values(const Tensor& x) const override {
    auto y = torch::empty_like(x);
    const auto set = kernels::best_instruction_set();
    const auto run = [&](const auto& kernel, auto job) {
      job.x = x.const_data_ptr();
      job.out = y.mutable_data_ptr();
      at::parallel_for(0, x.numel(), detail::kGrain,
                       [&](std::int64_t begin, std::int64_t end) { kernel(job, begin, end, set); });
    };
    if constexpr (std::is_same_v<Grid, UniformGrid>) {
      run([](const auto&... each) { kernels::run_fake_quantize(each...); }, values_job_);
    } else {
      run([](const auto&... each) { kernels::run_power_of_two(each...); }, job_);
    }
    return y;
  }

  /// Codes of a uniform grid.
  Tensor codes(const Tensor& x) const {
    auto codes = torch::empty_like(x, x.options().dtype(torch::kInt));
    auto job = values_job_;
    job.task = kernels::FakeQuantizeTask::kCodes;
    job.x = x.const_data_ptr();
    job.out = codes.mutable_data_ptr();
    const bool has_nan = kernels::run_fake_quantize(job, 0, x.numel(), kernels::best_instruction_set());
    TORCH_CHECK_VALUE(!has_nan, "qat::uniform_codes: the tensor holds a NaN, which has no code");
    return codes;
  }

  LearnedGradients gradients(const Tensor& x, const Tensor& dy) const override {
    auto dx = torch::empty_like(x);
    const auto ordered = detail::same_order(dy, x) ? dy : torch::empty_like(x).copy_(dy);
    auto job = job_;
    job.x = x.const_data_ptr();
    job.dy = ordered.const_data_ptr();
    job.out = dx.mutable_data_ptr();
    const auto set = kernels::best_instruction_set();
    detail::ChunkSums sums(job.view, x.numel(), kernels::kLearnedSums);
    sums.run([&](std::int64_t begin, std::int64_t end, double* to) {
      kernels::run_learned_gradient(job, begin, end, set, to);
    });
    LearnedGradients result{dx, {}, {}, {}};
    result.first = total(sums, 0);
    result.second = total(sums, 1);
    if constexpr (std::is_same_v<Grid, UniformGrid>) result.third = total(sums, 2);
    return result;
  }

 private:
  /// An unsigned grid without offset is a ReLU: what the activation would raise to 0 counts as 0 already.
  bool is_done_by_grid(const Activation& activation) const {
    if (activation != Activation{.negative_slope = 0.0}) return false;
    if constexpr (std::is_same_v<Grid, UniformGrid>) {
      const auto* const lower = job_.rule.lower;
      return std::all_of(lower, lower + job_.view.channels, [](T bound) { return bound == T(0); });
    } else {
      return !job_.rule.is_signed;
    }
  }

  /// Activations with slope 0 only narrow the codes; others need arithmetic.
  void prepare_values(const Activation& activation) {
    const auto& rule = job_.rule;
    auto& job = values_job_;
    job.element = job_.element;
    job.rounding = rule.rounding;
    job.view = job_.view;
    job.scale = rule.scale;
    job.zero_point = rule.zero_point;
    const bool is_relu = activation.negative_slope == 0.0;
    job.is_leaky = !is_relu && !activation.is_identity();
    job.negative_slope = job_.negative_slope;
    job.upper = job_.activation_upper;
    const auto narrowed = [&](std::int64_t i, T end) {
      return affine_code(activate(end, T(0), job.upper), rule.scale[i], rule.zero_point[i], rule.low[i],
                         rule.high[i], rule.rounding);
    };
    constexpr T infinity = std::numeric_limits<T>::infinity();
    std::int64_t i = 0;
    job.low = !is_relu ? rule.low : tables_.add([&](std::int64_t) { return narrowed(i++, -infinity); });
    i = 0;
    job.high = !is_relu ? rule.high : tables_.add([&](std::int64_t) { return narrowed(i++, infinity); });
  }

  /// Sum k of all chunks, for each channel, in the order of the chunks.
  Tensor total(const detail::ChunkSums& sums, std::int64_t k) const {
    std::vector<double> totals(static_cast<std::size_t>(tables_.channels()));
    sums.for_each(k, [&](std::int64_t entry, double value) {
      totals[static_cast<std::size_t>(tables_.channel_of(entry))] += value;
    });
    auto result = torch::empty(shape_, torch::kFloat);
    std::copy(totals.begin(), totals.end(), result.mutable_data_ptr<float>());
    return result;
  }

  ChannelTables<T> tables_;
  std::vector<std::int64_t> shape_;
  kernels::LearnedJob<T, Rule> job_;
  kernels::FakeQuantizeJob<T> values_job_;
};

template <class T>
using UniformPass = CpuPass<T, UniformGrid, kernels::UniformRule<T>>;
template <class T>
using PowerOfTwoPass = CpuPass<T, PowerOfTwoGrid, kernels::PowerOfTwoRule<T>>;

// ---------------------------------------------------------------------------------------------------------------------
// Other devices and traces: ATen operators.

template <class Grid>
struct ComposedPass final : LearnedPass {
  ComposedPass(Grid own, Rounding with, const Activation& after)
      : grid(std::move(own)), rounding(with), activation(after) {}

  Tensor values(const Tensor& x) const override {
    return detail::learned_values(x, grid, rounding, activation);
  }
  LearnedGradients gradients(const Tensor& x, const Tensor& dy) const override {
    return detail::learned_gradients(x, dy, grid, rounding, activation);
  }

  Grid grid;
  Rounding rounding;
  Activation activation;
};

c10::intrusive_ptr<LearnedPass> make_pass(const Tensor& x, const UniformGrid& grid, Rounding rounding,
                                          const Activation& activation) {
  if (!x.device().is_cpu() || torch::jit::tracer::isTracing() || grid.compatible)
    return c10::make_intrusive<ComposedPass<UniformGrid>>(grid, rounding, activation);
  if (x.scalar_type() == torch::kDouble)
    return c10::make_intrusive<UniformPass<double>>(x, grid, rounding, activation);
  return c10::make_intrusive<UniformPass<float>>(x, grid, rounding, activation);
}

c10::intrusive_ptr<LearnedPass> make_pass(const Tensor& x, const PowerOfTwoGrid& grid, Rounding rounding,
                                          const Activation& activation) {
  if (!x.device().is_cpu() || torch::jit::tracer::isTracing() || grid.compatible)
    return c10::make_intrusive<ComposedPass<PowerOfTwoGrid>>(grid, rounding, activation);
  if (x.scalar_type() == torch::kDouble)
    return c10::make_intrusive<PowerOfTwoPass<double>>(x, grid, rounding, activation);
  return c10::make_intrusive<PowerOfTwoPass<float>>(x, grid, rounding, activation);
}

// ---------------------------------------------------------------------------------------------------------------------

struct LearnedFunction : torch::autograd::Function<LearnedFunction> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor&,
                        const Tensor&, const Tensor&, const c10::intrusive_ptr<LearnedPass>& pass) {
    context->save_for_backward({x});
    context->saved_data["pass"] = torch::IValue::make_capsule(pass);
    return pass->values(x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto& dy = gradients[0];
    TORCH_CHECK(
        !torch::GradMode::is_enabled(),
        "qat: a gradient of the gradient (create_graph) is not supported through learned quantizers; use the "
        "affine quantizer");
    const auto capsule = context->saved_data["pass"].toCapsule();
    const auto result =
        static_cast<const LearnedPass&>(*capsule).gradients(context->get_saved_variables()[0], dy);
    return {result.dx, result.first, result.second, result.third, {}};
  }
};

void check(const char* who, const Tensor& x, std::optional<std::int64_t> axis,
           std::initializer_list<std::pair<const char*, Tensor>> tensors) {
  TORCH_CHECK_VALUE(x.defined(), who, ": the tensor is undefined");
  TORCH_CHECK(detail::element_type(x.scalar_type()), who,
              ": expected float32, float64, half or bfloat16, got ", x.scalar_type());
  TORCH_CHECK(x.layout() == torch::kStrided, who, ": expected a dense tensor, got layout ", x.layout());
  const auto resolved = detail::resolve_axis(x, axis);
  const std::int64_t channels = resolved ? x.size(*resolved) : 1;
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(tensor.defined() && tensor.numel() == channels, who, ": got ",
                      tensor.defined() ? tensor.numel() : 0, " values of ", name, " for ", channels,
                      " channels (tensor of shape ", x.sizes(), ", axis ",
                      axis ? std::to_string(*axis) : "none", ")");
  }
}

Tensor dense(const Tensor& x) {
  return x.is_non_overlapping_and_dense() ? x.resolve_neg() : x.contiguous();
}

template <class Grid>
Tensor quantize(const Tensor& input, const Grid& grid, Rounding rounding, const Activation& activation,
                const Tensor& first, const Tensor& second, const Tensor& third) {
  if (input.numel() == 0) return input.clone();
  const auto x = dense(input);
  const auto pass = [&] {
    const torch::NoGradGuard no_grad;  // only values are read
    return make_pass(x, grid, rounding, activation);
  }();
  const bool learns =
      x.requires_grad() || first.requires_grad() || second.requires_grad() || third.requires_grad();
  if (torch::jit::tracer::isTracing() || !torch::GradMode::is_enabled() || !learns) return pass->values(x);
  return LearnedFunction::apply(x, first, second, third, pass);
}

}  // namespace

Tensor uniform_quantize(const Tensor& x, const UniformGrid& grid, Rounding rounding,
                        const Activation& activation) {
  if (x.defined() && !x.is_floating_point() && !x.is_complex()) return x;
  check("qat::uniform_quantize", x, grid.axis,
        {{"scale", grid.scale},
         {"lower", grid.lower},
         {"upper", grid.upper},
         {"zero_point", grid.zero_point},
         {"low", grid.low},
         {"high", grid.high}});
  return quantize(x, grid, rounding, activation, grid.scale, grid.lower, grid.upper);
}

Tensor uniform_codes(const Tensor& input, const UniformGrid& grid, Rounding rounding) {
  check("qat::uniform_codes", input, grid.axis,
        {{"scale", grid.scale},
         {"lower", grid.lower},
         {"upper", grid.upper},
         {"zero_point", grid.zero_point},
         {"low", grid.low},
         {"high", grid.high}});
  const torch::NoGradGuard no_grad;
  if (input.numel() == 0) return torch::empty_like(input, input.options().dtype(torch::kInt));
  const auto x = dense(input.detach());
  if (torch::jit::tracer::isTracing() || !x.device().is_cpu() || grid.compatible)
    return detail::learned_codes(x, grid, rounding);
  if (x.scalar_type() == torch::kDouble) return UniformPass<double>(x, grid, rounding, {}).codes(x);
  return UniformPass<float>(x, grid, rounding, {}).codes(x);
}

Tensor power_of_two_quantize(const Tensor& x, const PowerOfTwoGrid& grid, const Activation& activation) {
  if (x.defined() && !x.is_floating_point() && !x.is_complex()) return x;
  check("qat::power_of_two_quantize", x, grid.axis, {{"xmin", grid.xmin}, {"xmax", grid.xmax}});
  return quantize(x, grid, Rounding::kHalfToEven, activation, grid.xmin, grid.xmax,
                  grid.xmax.detach());  // undefined inputs are not allowed
}

Tensor power_of_two_codes(const Tensor& x, const PowerOfTwoGrid& grid) {
  check("qat::power_of_two_codes", x, grid.axis, {{"xmin", grid.xmin}, {"xmax", grid.xmax}});
  const torch::NoGradGuard no_grad;
  return detail::learned_codes(x.detach(), grid, Rounding::kHalfToEven);
}

}  // namespace qat
