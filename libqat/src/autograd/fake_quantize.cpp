#include "kernels/fake_quantize.h"

#include "autograd/affine_operators.h"
#include "autograd/dense_view.h"
#ifdef QAT_CUDA
#include "autograd/quantize_cuda.h"
#endif
#include "numerics/enum_names.h"
#include <qat/autograd/fake_quantize.h>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/types.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

namespace qat {
namespace {

using torch::Tensor;

constexpr detail::EnumNames<StraightThrough, 2> kStraightThroughNames{
    {{StraightThrough::kClipped, "clipped"}, {StraightThrough::kUnclipped, "unclipped"}}};

/// Axis, scale and zero point of a call, checked against x.
struct Setting {
  std::optional<std::int64_t> axis;  ///< counted from the front.
  Tensor scale;                      ///< float32, contiguous.
  Tensor zero_point;
  IntegerRange range;
  FakeQuantizeOptions options;

  AffineParams params() const { return {scale, zero_point, range, axis}; }
};

Setting check(const char* who, const Tensor& x, const AffineParams& params,
              const FakeQuantizeOptions& options) {
  TORCH_CHECK(x.layout() == torch::kStrided, who, ": expected a dense tensor, got layout ", x.layout());
  TORCH_CHECK_VALUE(params.scale.defined() && params.zero_point.defined(), who,
                    ": scale and zero point are not set; record or set a range first");
  Setting setting{detail::resolve_axis(x, params.axis), params.scale.detach(), params.zero_point.detach(),
                  params.range, options};
  const std::int64_t channels = setting.axis ? x.size(*setting.axis) : 1;
  TORCH_CHECK_VALUE(setting.scale.numel() == channels, who, ": got ", setting.scale.numel(), " scales for ",
                    channels, " channels (tensor of shape ", x.sizes(), ", axis ",
                    params.axis ? std::to_string(*params.axis) : "none", ")");
  TORCH_CHECK_VALUE(setting.zero_point.numel() == channels, who, ": got ", setting.zero_point.numel(),
                    " zero points for ", channels, " channels");
  setting.scale = setting.scale.to(x.device(), torch::kFloat);
  setting.zero_point = setting.zero_point.to(x.device());
  return setting;
}

// ---------------------------------------------------------------------------------------------------------------------
// CPU: one fused pass.

/// A kernel's job for one tensor layout, with the tables that it points into.
template <class T>
struct Prepared {
  kernels::FakeQuantizeJob<T> job;
  std::vector<T> table;
};

template <class T>
Prepared<T> prepare(const Setting& setting, const kernels::ChannelView& view, kernels::ElementType element) {
  Prepared<T> prepared;
  auto& job = prepared.job;
  const auto& options = setting.options;
  const auto& activation = options.activation;
  job.element = element;
  job.rounding = options.rounding;
  job.clipped = options.straight_through == StraightThrough::kClipped;
  job.qmin = static_cast<T>(setting.range.qmin());
  job.qmax = static_cast<T>(setting.range.qmax());
  job.negative_slope = static_cast<T>(activation.negative_slope);
  job.upper = static_cast<T>(activation.upper);
  const bool is_relu = activation.negative_slope == 0.0;
  job.is_leaky = !is_relu && !activation.is_identity();
  constexpr T infinity = std::numeric_limits<T>::infinity();
  job.slope_from = is_relu ? T(0) : -infinity;
  job.slope_to = job.upper < infinity && is_relu ? std::nextafter(job.upper, -infinity) : infinity;

  job.view = detail::unrolled(view);
  const auto size = static_cast<std::size_t>(job.view.channels);
  prepared.table.resize(4 * size);
  T* const table = prepared.table.data();
  const auto scales = setting.scale.contiguous();
  const auto zero_points = setting.zero_point.to(torch::kInt).contiguous();
  const auto* scale = scales.const_data_ptr<float>();
  const auto* zero_point = zero_points.const_data_ptr<std::int32_t>();
  for (std::int64_t c = 0; c < view.channels; ++c) {
    TORCH_CHECK_VALUE(scale[c] > 0.0F && std::isfinite(scale[c]), "qat::fake_quantize: the scale of channel ",
                      c, " is ", scale[c], "; expected a positive finite number");
    TORCH_CHECK_VALUE(zero_point[c] >= setting.range.qmin() && zero_point[c] <= setting.range.qmax(),
                      "qat::fake_quantize: the zero point of channel ", c, " is ", zero_point[c],
                      "; expected ", setting.range.qmin(), " to ", setting.range.qmax(), " (",
                      setting.range.to_string(), ")");
  }
  const bool is_unrolled = job.view.channels != view.channels;
  for (std::size_t i = 0; i < size; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const std::int64_t c = is_unrolled ? at / view.inner % view.channels : at;
    const T s = scale[c];
    const T z = static_cast<T>(zero_point[c]);
    const auto code = [&](T x) { return affine_code(x, s, z, job.qmin, job.qmax, options.rounding); };
    table[i] = s;
    table[size + i] = z;
    table[2 * size + i] = is_relu ? code(activate(-infinity, T(0), job.upper)) : job.qmin;
    table[3 * size + i] = is_relu ? code(activate(infinity, T(0), job.upper)) : job.qmax;
  }
  job.scale = table;
  job.zero_point = table + size;
  job.low = table + 2 * size;
  job.high = table + 3 * size;
  return prepared;
}

/// Tensors of one layout; undefined: the task does not have it.
struct PassTensors {
  Tensor x = {};
  Tensor dy = {};
  Tensor out = {};
  Tensor mask = {};  ///< uint8.
};

template <class T>
bool run(const Prepared<T>& prepared, kernels::FakeQuantizeTask task, const PassTensors& tensors) {
  auto job = prepared.job;
  job.task = task;
  job.x = tensors.x.defined() ? tensors.x.const_data_ptr() : nullptr;
  job.dy = tensors.dy.defined() ? tensors.dy.const_data_ptr() : nullptr;
  job.out = tensors.out.mutable_data_ptr();
  job.mask = tensors.mask.defined() ? tensors.mask.mutable_data_ptr<std::uint8_t>() : nullptr;
  const auto set = kernels::best_instruction_set();
  std::atomic<bool> has_nan = false;
  at::parallel_for(0, tensors.out.numel(), detail::kGrain, [&](std::int64_t begin, std::int64_t end) {
    if (kernels::run_fake_quantize(job, begin, end, set)) has_nan = true;
  });
  return has_nan;
}

/// What backward needs besides x.
struct Call : torch::CustomClassHolder {
  Setting setting;
  std::variant<std::monostate, Prepared<float>, Prepared<double>> prepared;  ///< monostate: no kernel.

  Call(Setting checked, const Tensor& x) : setting(std::move(checked)) {
    if (!x.device().is_cpu()) return;
    const auto view = detail::dense_view(x, setting.axis);
    const auto element = detail::element_type(x.scalar_type());
    TORCH_INTERNAL_ASSERT(view && element);
    if (*element == kernels::ElementType::kDouble) {
      prepared = prepare<double>(setting, *view, *element);
    } else {
      prepared = prepare<float>(setting, *view, *element);
    }
  }

  bool has_kernel() const { return prepared.index() != 0; }

  /// Whether a mask of bytes tells the gradient: it passes or does not.
  bool has_mask() const {
    const auto& activation = setting.options.activation;
    return has_kernel() && (activation.is_identity() || activation.negative_slope == 0.0);
  }

  bool run(kernels::FakeQuantizeTask task, const PassTensors& tensors) const {
    if (const auto* floats = std::get_if<Prepared<float>>(&prepared)) return qat::run(*floats, task, tensors);
    return qat::run(std::get<Prepared<double>>(prepared), task, tensors);
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Other devices and traces: ATen operators.

/// The type of the arithmetic.
torch::ScalarType compute_type(const Tensor& x) {
  return x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

struct Operands {
  Tensor x;  ///< in the type of the arithmetic, before the activation.
  Tensor scale;
  Tensor zero_point;
};

Operands operands(const Setting& setting, const Tensor& x) {
  const auto type = compute_type(x);
  return {x.to(type), detail::along_axis(setting.scale, x.dim(), setting.axis).to(type),
          detail::along_axis(setting.zero_point, x.dim(), setting.axis).to(type)};
}

Tensor composed_raw_code(const Setting& setting, const Operands& at) {
  return detail::affine_raw_code(detail::activate(at.x, setting.options.activation), at.scale, at.zero_point,
                                 setting.options.rounding);
}

Tensor composed_forward(const Setting& setting, const Tensor& x) {
  const auto at = operands(setting, x);
  const auto code = torch::clamp(composed_raw_code(setting, at), setting.range.qmin(), setting.range.qmax());
  return detail::affine_real(code, at.scale, at.zero_point).to(x.scalar_type());
}

Tensor composed_backward(const Setting& setting, const Tensor& x, const Tensor& dy) {
  const auto at = operands(setting, x);
  auto slope = detail::activation_slope(at.x, setting.options.activation);
  if (setting.options.straight_through == StraightThrough::kClipped) {
    const auto code = composed_raw_code(setting, at);
    slope = slope * ((code >= setting.range.qmin()) & (code <= setting.range.qmax()));
  }
  return torch::where(slope == 0, torch::zeros_like(at.x), dy.to(at.x.scalar_type()) * slope)
      .to(x.scalar_type());
}

// ---------------------------------------------------------------------------------------------------------------------

Tensor forward_values(const Call& call, const Tensor& x) {
#ifdef QAT_CUDA
  if (detail::has_cuda_kernel(x))
    return detail::cuda_fake_quantize(x, call.setting.params(), call.setting.options);
#endif
  if (!call.has_kernel()) return composed_forward(call.setting, x);
  auto y = torch::empty_like(x);
  call.run(kernels::FakeQuantizeTask::kForward, {.x = x, .out = y});
  return y;
}

Tensor backward_values(const Call& call, const Tensor& x, const Tensor& dy) {
#ifdef QAT_CUDA
  if (detail::has_cuda_kernel(x))
    return detail::cuda_fake_quantize_gradient(x, dy, call.setting.params(), call.setting.options);
#endif
  if (!call.has_kernel()) return composed_backward(call.setting, x, dy);
  auto dx = torch::empty_like(x);
  const auto ordered = detail::same_order(dy, x) ? dy : torch::empty_like(x).copy_(dy);
  call.run(kernels::FakeQuantizeTask::kBackward, {.x = x, .dy = ordered, .out = dx});
  return dx;
}

struct FakeQuantizeFunction : torch::autograd::Function<FakeQuantizeFunction> {
  /// What the backward pass needs of x: nothing, a mask of bytes, or x itself.
  enum class Saved : std::int8_t { kNothing, kMask, kInput };

  static Saved saved_of(const Call& call) {
    const auto& options = call.setting.options;
    if (options.straight_through == StraightThrough::kUnclipped && options.activation.is_identity())
      return Saved::kNothing;
    return call.has_mask() ? Saved::kMask : Saved::kInput;
  }

  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const c10::intrusive_ptr<Call>& call) {
    context->saved_data["call"] = torch::IValue::make_capsule(call);
    if (saved_of(*call) == Saved::kMask) {
      auto y = torch::empty_like(x);
      const auto mask = torch::empty_like(x, x.options().dtype(torch::kByte));
      call->run(kernels::FakeQuantizeTask::kForwardMask, {.x = x, .out = y, .mask = mask});
      context->save_for_backward({mask});
      return y;
    }
    if (saved_of(*call) == Saved::kInput) context->save_for_backward({x});
    return forward_values(*call, x);
  }

  /// The gradient of x from `dy`, which has no gradient itself.
  static Tensor gradient(const Call& call, const Tensor& saved, const Tensor& dy) {
    if (saved_of(call) == Saved::kInput) return backward_values(call, saved.detach(), dy);
    const auto like = torch::empty_like(saved, dy.options());
    const auto ordered = detail::same_order(dy, like) ? dy : like.copy_(dy);
    auto dx = torch::empty_like(ordered);
    call.run(kernels::FakeQuantizeTask::kBackwardOfMask, {.dy = ordered, .out = dx, .mask = saved});
    return dx;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto& dy = gradients[0];
    const auto capsule = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const Call&>(*capsule);
    if (saved_of(call) == Saved::kNothing) return {dy, {}};
    const auto saved = context->get_saved_variables()[0];
    if (!torch::GradMode::is_enabled() || !dy.requires_grad()) return {gradient(call, saved, dy), {}};
    // A gradient of the gradient is asked for: the pass is linear in dy, its factor is constant almost
    // everywhere.
    const torch::NoGradGuard no_grad;
    const auto slope = gradient(call, saved, torch::ones_like(dy));
    const torch::AutoGradMode with_grad(true);
    return {torch::where(slope == 0, torch::zeros_like(dy), dy * slope), {}};
  }
};

}  // namespace

std::string to_string(StraightThrough straight_through) {
  return detail::enum_name(kStraightThroughNames, straight_through);
}

StraightThrough parse_straight_through(std::string_view text) {
  return detail::parse_enum(kStraightThroughNames, "straight-through estimator", text);
}

Tensor fake_quantize(const Tensor& input, const AffineParams& params, const FakeQuantizeOptions& options) {
  TORCH_CHECK_VALUE(input.defined(), "qat::fake_quantize: the tensor is undefined");
  TORCH_CHECK(!input.is_complex(), "qat::fake_quantize: complex tensors cannot be quantized, got ",
              input.scalar_type());
  if (!input.is_floating_point()) return input;
  TORCH_CHECK(detail::element_type(input.scalar_type()),
              "qat::fake_quantize: expected float32, float64, half or bfloat16, got ", input.scalar_type());
  if (input.numel() == 0) return input.clone();
  auto setting = check("qat::fake_quantize", input, params, options);
  if (torch::jit::tracer::isTracing()) return composed_forward(setting, input);
  const auto x = input.is_non_overlapping_and_dense() ? input.resolve_neg() : input.contiguous();
  const auto call = c10::make_intrusive<Call>(std::move(setting), x);
  if (torch::GradMode::is_enabled() && x.requires_grad()) return FakeQuantizeFunction::apply(x, call);
  return forward_values(*call, x);
}

Tensor affine_codes(const Tensor& input, const AffineParams& params, const FakeQuantizeOptions& options) {
  TORCH_CHECK_VALUE(input.defined(), "qat::affine_codes: the tensor is undefined");
  TORCH_CHECK(detail::element_type(input.scalar_type()),
              "qat::affine_codes: expected float32, float64, half or bfloat16, got ", input.scalar_type());
  const torch::NoGradGuard no_grad;
  if (input.numel() == 0) return torch::empty_like(input, input.options().dtype(torch::kInt));
  auto setting = check("qat::affine_codes", input, params, options);
#ifdef QAT_CUDA
  if (detail::has_cuda_kernel(input))
    return detail::cuda_codes(input.detach(), setting.params(), setting.options);
#endif
  if (torch::jit::tracer::isTracing() || !input.device().is_cpu()) {
    const auto raw = composed_raw_code(setting, operands(setting, input.detach()));
    TORCH_CHECK_VALUE(torch::jit::tracer::isTracing() || !torch::isnan(raw).any().item<bool>(),
                      "qat::affine_codes: the tensor holds a NaN, which has no code");
    return torch::clamp(raw, setting.range.qmin(), setting.range.qmax()).to(torch::kInt);
  }
  const auto x =
      input.is_non_overlapping_and_dense() ? input.detach().resolve_neg() : input.detach().contiguous();
  auto codes = torch::empty_like(x, x.options().dtype(torch::kInt));
  const bool has_nan =
      Call(std::move(setting), x).run(kernels::FakeQuantizeTask::kCodes, {.x = x, .out = codes});
  TORCH_CHECK_VALUE(!has_nan, "qat::affine_codes: the tensor holds a NaN, which has no code");
  return codes;
}

Tensor affine_dequantize(const Tensor& codes, const AffineParams& params) {
  const torch::NoGradGuard no_grad;
  const auto setting = check("qat::affine_dequantize", codes, params, {});
  const auto at = operands(setting, codes.to(torch::kFloat));
  return detail::affine_real(at.x, at.scale, at.zero_point);
}

}  // namespace qat
