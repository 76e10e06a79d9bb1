#include "autograd/affine_operators.h"
#include "autograd/dense_view.h"
#include "numerics/enum_names.h"
#include "quantizers/low_bit_pass.h"
#include "quantizers/quantizer_config.h"
#include <qat/numerics/low_bit_weight.h>
#include <qat/quantizers/low_bit_weight_quantizer.h>

#include <ATen/TracerMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>

#include <ostream>

namespace qat {
namespace {

using torch::Tensor;

constexpr detail::EnumNames<LowBitWeightKind, 3> kLowBitWeightKindNames{
    {{LowBitWeightKind::kDorefa, "dorefa"},
     {LowBitWeightKind::kBinary, "binary"},
     {LowBitWeightKind::kTernary, "ternary"}}};

/// A given value in place of x; the gradient where a mask, if there is one, says so.
struct Replace : torch::autograd::Function<Replace> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor&, const Tensor& value,
                        const std::optional<Tensor>& mask) {
    if (mask) context->save_for_backward({*mask});
    return value;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto masks = context->get_saved_variables();
    const auto& dy = gradients[0];
    return {masks.empty() ? dy : torch::where(masks[0], dy, torch::zeros_like(dy)), Tensor(), Tensor()};
  }
};

/// The mean over all axes but `axis`, kept as axes of size 1, in float64 as the fused passes have it.
Tensor channel_mean(const Tensor& x, std::optional<std::int64_t> axis) {
  const auto wide = x.to(torch::kDouble);
  const auto resolved = detail::resolve_axis(x, axis);
  if (!resolved) return wide.mean();
  std::vector<std::int64_t> others;
  for (std::int64_t d = 0; d < x.dim(); ++d) {
    if (d != *resolved) others.push_back(d);
  }
  return others.empty() ? wide : wide.mean(others, /*keepdim=*/true);
}

/// Codes and scale, float32 or float64, broadcasting against each other.
struct Coded {
  Tensor codes;
  Tensor scale;
};

Coded encode_binary(const Tensor& w, std::optional<std::int64_t> axis) {
  return {torch::where(w < 0, -torch::ones_like(w), torch::ones_like(w)),
          channel_mean(w.abs(), axis).to(w.scalar_type())};
}

Coded encode_ternary(const Tensor& w, std::optional<std::int64_t> axis) {
  const auto magnitude = w.abs();
  const auto kept =
      (magnitude > kTernaryThreshold * channel_mean(magnitude, axis).to(w.scalar_type())).to(w.scalar_type());
  const auto share = channel_mean(kept, axis);
  const auto alpha =
      channel_mean(magnitude * kept, axis) / torch::where(share > 0, share, torch::ones_like(share));
  return {torch::sign(w) * kept, alpha.to(w.scalar_type())};
}

Coded encode_dorefa(const Tensor& t, std::int64_t bits) {
  const auto levels = static_cast<double>((std::int64_t{1} << bits) - 1);
  const auto q = detail::round_to_integer((t * 0.5 + 0.5) * levels, Rounding::kHalfToEven);
  return {2 * q - levels, torch::full({}, 1.0 / levels, t.options())};
}

/// tanh(w) / max|tanh(w)|, the maximum a constant.
Tensor squashed(const Tensor& w) {
  return torch::tanh(w) / detail::largest_tanh(w);
}

Coded encode(const Tensor& w, const LowBitWeightOptions& options) {
  if (options.kind == LowBitWeightKind::kDorefa) return encode_dorefa(squashed(w), options.bits);
  return options.kind == LowBitWeightKind::kBinary ? encode_binary(w, options.axis)
                                                   : encode_ternary(w, options.axis);
}

Tensor arithmetic(const Tensor& x) {
  TORCH_CHECK_VALUE(x.defined(),
                    "qat::LowBitWeightQuantizer: the scale follows the tensor, which is undefined");
  TORCH_CHECK(!x.is_complex(), "qat::LowBitWeightQuantizer: complex tensors cannot be quantized, got ",
              x.scalar_type());
  return x.to(x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
}

}  // namespace

std::string to_string(LowBitWeightKind kind) {
  return detail::enum_name(kLowBitWeightKindNames, kind);
}

LowBitWeightKind parse_low_bit_weight_kind(std::string_view text) {
  return detail::parse_enum(kLowBitWeightKindNames, "low-bit weight quantizer", text);
}

LowBitWeightQuantizer::LowBitWeightQuantizer(LowBitWeightOptions options) : options_(options) {
  if (options_.kind == LowBitWeightKind::kBinary) options_.bits = 1;
  if (options_.kind == LowBitWeightKind::kTernary) options_.bits = 2;
  TORCH_CHECK_VALUE(options_.bits >= 1 && options_.bits <= 8, "qat::LowBitWeightQuantizer: dorefa with ",
                    options_.bits, " bits; expected 1 to 8");
  TORCH_CHECK_VALUE(options_.kind != LowBitWeightKind::kDorefa || !options_.axis,
                    "qat::LowBitWeightQuantizer: dorefa has one scale a tensor; expected no axis, got ",
                    options_.axis.value_or(0));
}

Tensor LowBitWeightQuantizer::forward(const Tensor& input, const Activation& activation) {
  if (input.defined() && ((!input.is_floating_point() && !input.is_complex()) || input.numel() == 0))
    return input;
  const auto x = detail::activate(arithmetic(input), activation);
  if (detail::has_low_bit_pass(x)) return detail::low_bit_quantize(x, options_).to(input.scalar_type());
  const bool is_dorefa = options_.kind == LowBitWeightKind::kDorefa;
  const bool learns = torch::GradMode::is_enabled() && x.requires_grad();
  const auto given = learns ? torch::where(torch::isnan(x), x.detach(), x) : x;  // a NaN gets no gradient
  const auto smooth = is_dorefa ? squashed(given) : given;
  Tensor value;
  std::optional<Tensor> mask;
  {
    const torch::NoGradGuard no_grad;
    const auto at = smooth.detach();
    const auto coded = is_dorefa ? encode_dorefa(at, options_.bits) : encode(at, options_);
    value = coded.codes * coded.scale;
    if (options_.kind == LowBitWeightKind::kBinary) mask = at.abs() <= 1;
  }
  return (learns ? Replace::apply(smooth, value, mask) : value).to(input.scalar_type());
}

Tensor LowBitWeightQuantizer::codes(const Tensor& x) {
  const torch::NoGradGuard no_grad;
  const auto w = arithmetic(x).detach();
  TORCH_CHECK_VALUE(!torch::isnan(w).any().item<bool>(),
                    "qat::LowBitWeightQuantizer: the weight holds a NaN, which has no code");
  const auto codes = detail::has_low_bit_pass(w)
                         ? detail::low_bit_pass(w, options_, detail::LowBitOutput::kCodes).values
                         : encode(w, options_).codes;
  return codes.to(torch::kInt);
}

AffineParams LowBitWeightQuantizer::affine_params(const Tensor& x) {
  const torch::NoGradGuard no_grad;
  const at::tracer::impl::NoTracerDispatchMode no_tracer;
  const auto w = arithmetic(x).detach();
  auto scale =
      (detail::has_low_bit_pass(w) ? detail::low_bit_pass(w, options_, detail::LowBitOutput::kScale).scale
                                   : encode(w, options_).scale)
          .to(torch::kFloat);
  TORCH_CHECK_VALUE(!scale.is_cpu() || torch::isfinite(scale).all().item<bool>(),
                    "qat::LowBitWeightQuantizer: the mean magnitude of the weight, its scale, is not finite; "
                    "expected weights without NaN and infinities");
  scale = torch::where(scale == 0, torch::full_like(scale, kScaleFloor), scale);
  scale = options_.axis ? scale.reshape({-1}) : scale.reshape({});
  const bool is_dorefa = options_.kind == LowBitWeightKind::kDorefa;
  const IntegerRange range(is_dorefa ? options_.bits + 1 : 2, Signedness::kSigned, RangeWidth::kNarrow);
  return {scale, torch::zeros_like(scale, torch::kInt), range, options_.axis};
}

std::string LowBitWeightQuantizer::config() const {
  nlohmann::ordered_json json{
      {"type", kLowBitWeightQuantizerType}, {"kind", to_string(options_.kind)}, {"bits", options_.bits}};
  json["axis"] = options_.axis ? nlohmann::ordered_json(*options_.axis) : nlohmann::ordered_json(nullptr);
  return json.dump();
}

std::shared_ptr<TensorModule> make_low_bit_weight_quantizer(const nlohmann::json& config) {
  LowBitWeightOptions options;
  try {
    options.kind = parse_low_bit_weight_kind(config.at("kind").get<std::string>());
    options.bits = config.at("bits").get<std::int64_t>();
    if (const auto& axis = config.at("axis"); !axis.is_null()) options.axis = axis.get<std::int64_t>();
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, "qat::LowBitWeightQuantizer: bad configuration ", config.dump(), ": ",
                      error.what());
  }
  return std::make_shared<LowBitWeightQuantizer>(options);
}

void LowBitWeightQuantizer::pretty_print(std::ostream& stream) const {
  stream << "qat::LowBitWeightQuantizer(" << to_string(options_.kind) << ", " << options_.bits << " bits";
  if (options_.axis) stream << ", axis=" << *options_.axis;
  stream << ")";
}

}  // namespace qat
