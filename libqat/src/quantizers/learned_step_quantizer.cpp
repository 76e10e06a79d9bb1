#include "autograd/dense_view.h"
#include "numerics/enum_names.h"
#include "quantizers/derived_grid.h"
#include "quantizers/print_parameters.h"
#include "quantizers/quantizer_config.h"
#include <qat/quantizers/learned_step_quantizer.h>

#include <torch/types.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <ostream>

namespace qat {
namespace {

using torch::Tensor;

constexpr detail::EnumNames<LearnedStepKind, 4> kLearnedStepKindNames{
    {{LearnedStepKind::kLsq, "lsq"},
     {LearnedStepKind::kLsqPlus, "lsq_plus"},
     {LearnedStepKind::kPact, "pact"},
     {LearnedStepKind::kTqt, "tqt"}}};

constexpr double kLargestScale = 0x1p63;
constexpr double kLargestLog2 = 31;
constexpr double kLeastPartLog2 = -10;  // of a start value

const char* parameter_name(LearnedStepKind kind) {
  return kind == LearnedStepKind::kPact ? "alpha" : (kind == LearnedStepKind::kTqt ? "log2_t" : "scale");
}

}  // namespace

std::string to_string(LearnedStepKind kind) {
  return detail::enum_name(kLearnedStepKindNames, kind);
}

LearnedStepKind parse_learned_step_kind(std::string_view text) {
  return detail::parse_enum(kLearnedStepKindNames, "learned-step quantizer", text);
}

Tensor lsq_start_scale(const Tensor& mean_magnitude, const IntegerRange& range) {
  return 2 * mean_magnitude.to(torch::kDouble) / std::sqrt(static_cast<double>(range.qmax()));
}

LearnedStepQuantizer::LearnedStepQuantizer(LearnedStepOptions options) : options_(options) {
  TORCH_CHECK_VALUE(
      !options_.axis == (options_.channels == 0) && options_.channels >= 0,
      "qat::LearnedStepQuantizer: an axis needs the number of channels and no axis none; got axis ",
      options_.axis ? std::to_string(*options_.axis) : "none", " and ", options_.channels, " channels");
  TORCH_CHECK_VALUE(options_.kind != LearnedStepKind::kPact || !options_.range.is_signed(),
                    "qat::LearnedStepQuantizer: pact clips at 0 and needs unsigned codes; got ",
                    options_.range.to_string());
  const std::vector<std::int64_t> shape =
      options_.axis ? std::vector<std::int64_t>{options_.channels} : std::vector<std::int64_t>{};
  register_parameter(parameter_name(options_.kind), torch::ones(shape, torch::kFloat));
  if (options_.kind == LearnedStepKind::kLsqPlus)
    register_parameter("offset", torch::zeros(shape, torch::kFloat));
  const double least = options_.kind == LearnedStepKind::kTqt ? -kLargestLog2 : kScaleFloor;
  least_ = register_buffer("least", torch::full(shape, least, torch::kFloat));
}

UniformGrid LearnedStepQuantizer::grid(std::int64_t elements) const {
  const auto qmax = static_cast<double>(options_.range.qmax());
  const bool is_log = options_.kind == LearnedStepKind::kTqt;
  const bool scales = options_.scale_gradient && elements > 0;
  const detail::LearnedStepRule rule{
      .kind = options_.kind,
      .qmin = static_cast<double>(options_.range.qmin()),
      .qmax = qmax,
      .step_bits = static_cast<double>(options_.range.bits() - (options_.range.is_signed() ? 1 : 0)),
      .bounds =
          is_log ? detail::Bounds{-kLargestLog2, kLargestLog2} : detail::Bounds{kScaleFloor, kLargestScale},
      .gradient_factor = scales ? 1.0 / std::sqrt(static_cast<double>(elements) * qmax) : 1.0};
  const auto all = named_parameters();
  const auto& first = all[parameter_name(options_.kind)];
  const bool has_offset = options_.kind == LearnedStepKind::kLsqPlus;
  const auto grid = detail::derive_grid(
      rule, {first, has_offset ? all["offset"] : Tensor(), Tensor(), first.sizes().vec()});
  return {.scale = grid.scale,
          .lower = grid.lower,
          .upper = grid.upper,
          .zero_point = grid.zero_point,
          .low = grid.low,
          .high = grid.high,
          .axis = options_.axis};
}

std::int64_t LearnedStepQuantizer::channel_elements(const Tensor& x) const {
  return x.defined() ? x.numel() / std::max<std::int64_t>(1, options_.channels) : 0;
}

Tensor LearnedStepQuantizer::forward(const Tensor& x, const Activation& activation) {
  return uniform_quantize(x, grid(channel_elements(x)), options_.rounding, activation);
}

Quantizer::Scaled LearnedStepQuantizer::forward_with_scale(const Tensor& x) {
  const auto used = grid(channel_elements(x));
  return {uniform_quantize(x, used, options_.rounding), used.scale.detach()};
}

Tensor LearnedStepQuantizer::codes(const Tensor& x) {
  return uniform_codes(x, grid(), options_.rounding);
}

AffineParams LearnedStepQuantizer::affine_params(const Tensor&) {
  const torch::NoGradGuard no_grad;
  const auto used = grid();
  return {used.scale, used.zero_point, options_.range, options_.axis};
}

void LearnedStepQuantizer::hold_in_bounds() {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : named_parameters()) {
    const bool is_log = parameter.key() == "log2_t";
    const bool is_offset = parameter.key() == "offset";
    const double max = is_log ? kLargestLog2 : kLargestScale;
    const double min = is_log ? -kLargestLog2 : (is_offset ? -kLargestScale : kScaleFloor);
    parameter.value().nan_to_num_(is_offset ? 0.0 : min, max, min).clamp_(min, max);
    if (!is_offset) parameter.value().clamp_min_(least_);
  }
}

void LearnedStepQuantizer::set_start(const Tensor& value, const Tensor& has_data) {
  const bool is_log = options_.kind == LearnedStepKind::kTqt;
  named_parameters()[parameter_name(options_.kind)].copy_(value);
  const auto part = is_log ? value + kLeastPartLog2 : value * std::exp2(kLeastPartLog2);
  const double floor = is_log ? -kLargestLog2 : kScaleFloor;
  least_.copy_(torch::where(has_data, part, torch::full_like(part, floor)).clamp_min(floor));
}

void LearnedStepQuantizer::start_from(const ValueRange& values) {
  const torch::NoGradGuard no_grad;
  auto parameters = named_parameters();
  auto parameter = parameters[parameter_name(options_.kind)];
  TORCH_CHECK_VALUE(values.min.sizes() == parameter.sizes(),
                    "qat::LearnedStepQuantizer: expected a range of shape ", parameter.sizes(), ", got ",
                    values.min.sizes());
  const bool affine = options_.kind == LearnedStepKind::kLsqPlus;
  const auto params =
      affine_params_from_range(values, options_.range, affine ? Symmetry::kAffine : Symmetry::kSymmetric,
                               PowerOfTwo::kNotRound, options_.axis);
  const auto scale = params.scale.to(torch::kDouble);
  const bool has_negative = affine || options_.range.is_signed();
  const auto has_data = (values.max > 0).logical_or(has_negative ? values.min < 0 : values.max > 0);
  switch (options_.kind) {
    case LearnedStepKind::kLsqPlus:
      parameters["offset"].copy_(-params.zero_point.to(torch::kDouble) * scale);
      [[fallthrough]];
    case LearnedStepKind::kLsq:
      set_start(scale, has_data);
      return;
    case LearnedStepKind::kPact:
      set_start(scale * options_.range.qmax(), has_data);
      return;
    case LearnedStepKind::kTqt: {
      const auto steps = options_.range.bits() - (options_.range.is_signed() ? 1 : 0);
      const auto threshold = torch::log2(scale * std::exp2(static_cast<double>(steps)));
      set_start(threshold.clamp(-kLargestLog2, kLargestLog2), has_data);
      return;
    }
  }
}

void LearnedStepQuantizer::start_from_tensor(const Tensor& x) {
  const torch::NoGradGuard no_grad;
  if (options_.kind != LearnedStepKind::kLsq) return start_from(finite_range(x.detach(), options_.axis));
  const auto start =
      lsq_start_scale(mean_magnitude(x, detail::resolve_axis(x, options_.axis)), options_.range);
  auto scale = named_parameters()["scale"];
  TORCH_CHECK_VALUE(start.sizes() == scale.sizes(), "qat::LearnedStepQuantizer: expected a tensor of ",
                    scale.numel(), " channels, got shape ", x.sizes());
  set_start(torch::where(start > 0, start, torch::full_like(start, kZeroRangeScale)), start > 0);
}

std::string LearnedStepQuantizer::config() const {
  nlohmann::ordered_json json{
      {"type", kLearnedStepQuantizerType},    {"kind", to_string(options_.kind)},
      {"bits", options_.range.bits()},        {"signed", options_.range.is_signed()},
      {"narrow", options_.range.is_narrow()}, {"rounding", to_string(options_.rounding)},
      {"channels", options_.channels},        {"scale_gradient", options_.scale_gradient}};
  json["axis"] = options_.axis ? nlohmann::ordered_json(*options_.axis) : nlohmann::ordered_json(nullptr);
  return json.dump();
}

std::shared_ptr<TensorModule> make_learned_step_quantizer(const nlohmann::json& config) {
  LearnedStepOptions options;
  try {
    options.kind = parse_learned_step_kind(config.at("kind").get<std::string>());
    options.range = integer_range_of(config);
    options.rounding = parse_rounding(config.at("rounding").get<std::string>());
    options.channels = config.at("channels").get<std::int64_t>();
    options.scale_gradient = config.at("scale_gradient").get<bool>();
    if (const auto& axis = config.at("axis"); !axis.is_null()) options.axis = axis.get<std::int64_t>();
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, "qat::LearnedStepQuantizer: bad configuration ", config.dump(), ": ",
                      error.what());
  }
  return std::make_shared<LearnedStepQuantizer>(options);
}

void LearnedStepQuantizer::pretty_print(std::ostream& stream) const {
  stream << "qat::LearnedStepQuantizer(" << to_string(options_.kind) << ", " << options_.range.to_string();
  if (options_.axis) stream << ", axis=" << *options_.axis;
  detail::print_parameters(stream, *this);
  stream << ")";
}

}  // namespace qat
