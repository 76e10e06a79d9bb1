#include "quantizers/derived_grid.h"
#include "quantizers/parametric_kind.h"
#include "quantizers/print_parameters.h"
#include "quantizers/quantizer_config.h"
#include <qat/quantizers/parametric_quantizer.h>

#include <torch/types.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <vector>

namespace qat {
namespace {

using torch::Tensor;

constexpr std::int64_t kMostBits = 16;

std::vector<std::int64_t> shape_of(const ParametricOptions& options, std::string_view name) {
  if (!options.axis || name == "n") return {};
  return {options.channels};
}

/// ceil(log2(v)) for v >= 1.
std::int64_t bits_for(double v) {
  std::int64_t bits = 0;
  while (std::ldexp(1.0, static_cast<int>(bits)) < v)
    ++bits;
  return bits;
}

}  // namespace

ParametricQuantizer::ParametricQuantizer(ParametricOptions options) : options_(options) {
  TORCH_CHECK_VALUE(
      !options_.axis == (options_.channels == 0) && options_.channels >= 0,
      "qat::ParametricQuantizer: an axis needs the number of channels and no axis none; got axis ",
      options_.axis ? std::to_string(*options_.axis) : "none", " and ", options_.channels, " channels");
  for (const char* name : detail::learned_names(options_.kind)) {
    const auto bounds = learnable(name);
    if (const auto& given = options_.*detail::member(name)) detail::check_learnable(options_, name, *given);
    register_parameter(name, torch::full(shape_of(options_, name), bounds.start, torch::kFloat),
                       /*requires_grad=*/!options_.fix_parameters);
  }
  bits_limit_ = register_buffer("bits_limit", torch::tensor(kMostBits, torch::kInt64));
}

Learnable ParametricQuantizer::learnable(std::string_view name) const {
  const auto& given = options_.*detail::member(name);
  auto result = given.value_or(default_learnable(options_.kind, name));
  if (name != "n" || options_.compatible) return result;
  // The widths that round to a usable one.
  const double fewest = detail::fewest_bits_of(options_);
  result.min = std::max(result.min, fewest > 0 ? fewest - 0.5 : 0.0);
  if (is_power_of_two(options_.kind))
    result.max = std::min(result.max, fewest + detail::kMostMagnitudeBits + 0.499);
  if (!given) result.start = std::min(result.start, std::floor(result.max));
  return result;
}

detail::ParametricRule ParametricQuantizer::rule() const {
  const auto bounds = [&](const char* name) {
    const auto given = learnable(name);
    return detail::Bounds{static_cast<float>(given.min), static_cast<float>(given.max)};
  };
  const auto names = detail::learned_names(options_.kind);
  return {.kind = options_.kind,
          .is_signed = options_.is_signed,
          .with_zero = options_.with_zero,
          .compatible = options_.compatible,
          .most_magnitudes = std::exp2(detail::kMostMagnitudeBits),
          .first = bounds(names[0]),
          .second = bounds(names[1])};
}

detail::GridInputs ParametricQuantizer::inputs() const {
  const auto all = named_parameters();
  const auto names = detail::learned_names(options_.kind);
  const auto used = [&](const char* name) {
    return options_.fix_parameters ? all[name].detach() : all[name];
  };
  return {used(names[0]), used(names[1]), bits_limit_, shape_of(options_, "")};
}

UniformGrid ParametricQuantizer::uniform_grid() const {
  TORCH_CHECK(!is_power_of_two(options_.kind), "qat::ParametricQuantizer: ", to_string(options_.kind),
              " has a power-of-two grid, not a uniform one");
  const auto grid = detail::derive_grid(rule(), inputs());
  return {.scale = grid.scale,
          .lower = grid.lower,
          .upper = grid.upper,
          .zero_point = grid.zero_point,
          .low = grid.low,
          .high = grid.high,
          .axis = options_.axis,
          .compatible = options_.compatible};
}

PowerOfTwoGrid ParametricQuantizer::power_of_two_grid() const {
  TORCH_CHECK(is_power_of_two(options_.kind), "qat::ParametricQuantizer: ", to_string(options_.kind),
              " has a uniform grid, not a power-of-two one");
  const auto grid = detail::derive_grid(rule(), inputs());
  return {.xmin = grid.scale,
          .xmax = grid.upper,
          .is_signed = options_.is_signed,
          .with_zero = options_.with_zero,
          .compatible = options_.compatible,
          .axis = options_.axis};
}

Tensor ParametricQuantizer::forward(const Tensor& x, const Activation& activation) {
  return is_power_of_two(options_.kind) ? power_of_two_quantize(x, power_of_two_grid(), activation)
                                        : uniform_quantize(x, uniform_grid(), options_.rounding, activation);
}

Quantizer::Scaled ParametricQuantizer::forward_with_scale(const Tensor& x) {
  if (is_power_of_two(options_.kind)) {
    const auto grid = power_of_two_grid();
    return {power_of_two_quantize(x, grid), grid.xmin.detach()};
  }
  const auto grid = uniform_grid();
  return {uniform_quantize(x, grid, options_.rounding), grid.scale.detach()};
}

Tensor ParametricQuantizer::codes(const Tensor& x) {
  return is_power_of_two(options_.kind) ? power_of_two_codes(x, power_of_two_grid())
                                        : uniform_codes(x, uniform_grid(), options_.rounding);
}

Tensor ParametricQuantizer::scale(const Tensor&) {
  const torch::NoGradGuard no_grad;
  return (is_power_of_two(options_.kind) ? power_of_two_grid().xmin : uniform_grid().scale).contiguous();
}

AffineParams ParametricQuantizer::affine_params(const Tensor& x) {
  const torch::NoGradGuard no_grad;
  const auto step = scale(x);
  std::int64_t width = bits();
  if (is_power_of_two(options_.kind)) {
    const auto grid = power_of_two_grid();
    const double largest = (grid.xmax / grid.xmin).max().item<double>();
    width = bits_for(largest + 1) + (options_.is_signed ? 1 : 0);
    TORCH_CHECK_VALUE(width <= kMostBits, "qat::ParametricQuantizer ", to_string(options_.kind), ": xmax is ",
                      largest, " times xmin, so codes in units of xmin need ", width,
                      " bits; expected at most ", kMostBits, "; use fewer bits");
  }
  const auto signedness = options_.is_signed ? Signedness::kSigned : Signedness::kUnsigned;
  const auto range_width = options_.is_signed ? RangeWidth::kNarrow : RangeWidth::kFull;
  return {step, torch::zeros_like(step, torch::kInt),
          IntegerRange(std::max<std::int64_t>(width, options_.is_signed ? 2 : 1), signedness, range_width),
          options_.axis};
}

std::int64_t ParametricQuantizer::bits() const {
  const torch::NoGradGuard no_grad;
  const int sign = options_.is_signed ? 1 : 0;
  if (!is_power_of_two(options_.kind))
    return std::min<std::int64_t>(bits_for(uniform_grid().high.max().item<double>() + 1) + sign, 16);
  const auto grid = power_of_two_grid();
  const double magnitudes = std::log2((grid.xmax / grid.xmin).max().item<double>()) + 1;
  return bits_for(magnitudes + (options_.with_zero ? 1 : 0)) + sign;
}

std::int64_t ParametricQuantizer::fewest_bits() const {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(detail::fewest_bits_of(options_)));
}

void ParametricQuantizer::limit_bits(std::int64_t bits) {
  TORCH_CHECK_VALUE(!options_.compatible, "qat::ParametricQuantizer ", to_string(options_.kind),
                    ": a limit of ", bits,
                    " bits, but the quantizer is compatible, which has none; expected compatible = false");
  TORCH_CHECK_VALUE(bits >= fewest_bits() && bits <= kMostBits, "qat::ParametricQuantizer ",
                    to_string(options_.kind), ": a limit of ", bits, " bits; expected ", fewest_bits(),
                    " to ", kMostBits);
  const torch::NoGradGuard no_grad;
  bits_limit_.fill_(bits);
}

double ParametricQuantizer::wanted_bits() const {
  const torch::NoGradGuard no_grad;
  const auto used = rule();
  const auto given = inputs();
  const auto channel_value = [](const Tensor& parameter, detail::Bounds bounds, std::int64_t channel) {
    const auto values = parameter.to(torch::kCPU, torch::kDouble).contiguous();
    const auto* v = values.const_data_ptr<double>();
    return std::clamp(v[values.numel() == 1 ? 0 : channel], bounds.min, bounds.max);
  };
  if (named_parameters().contains("n")) return std::round(channel_value(given.first, used.first, 0));
  double most = 0;
  for (std::int64_t c = 0; c < given.first.numel(); ++c) {
    const double first = channel_value(given.first, used.first, c);
    const double second = channel_value(given.second, used.second, c);
    const double codes = is_power_of_two(options_.kind)
                             ? std::max(0.0, std::log2(second / first)) + used.zero_codes()
                             : std::floor(second / nearest_power_of_two(first));
    most = std::max(most, std::log2(codes + 1));
  }
  return most + used.sign_bits();
}

Tensor ParametricQuantizer::bit_count() const {
  return detail::derive_bits({rule(), static_cast<double>(fewest_bits())}, inputs()).max().to(torch::kDouble);
}

void ParametricQuantizer::clip_gradients() {
  const auto parameters = named_parameters();
  const bool pow2 = options_.kind == ParametricKind::kPow2XminXmax;
  if (clips_gradients_ || (!pow2 && options_.kind != ParametricKind::kFpDXmax)) return;
  clips_gradients_ = true;
  const auto smaller = parameters[pow2 ? "xmin" : "d"];
  // Weak: a hook that held the parameter would keep it alive for ever.
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(smaller.getIntrusivePtr());
  for (const auto& parameter : parameters) {
    if (!parameter.value().requires_grad()) continue;
    parameter.value().register_hook([weak](const Tensor& gradient) {
      const auto pointer = weak.lock();
      if (!pointer) return gradient;
      const auto limit = Tensor(pointer).detach().abs();
      return torch::minimum(torch::maximum(gradient, -limit), limit);
    });
  }
}

void ParametricQuantizer::hold_in_bounds() {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : named_parameters()) {
    const auto bounds = learnable(parameter.key());
    parameter.value().nan_to_num_(bounds.min, bounds.max, bounds.min).clamp_(bounds.min, bounds.max);
  }
  if (options_.compatible) return;
  auto parameters = named_parameters();
  // The smaller one of two goes down with the larger one, no further than its own bound.
  const auto hold_below_xmax = [&](const char* name) {
    parameters[name].copy_(
        torch::minimum(parameters[name], parameters["xmax"]).clamp_min(learnable(name).min));
  };
  if (options_.kind == ParametricKind::kFpDXmax) hold_below_xmax("d");
  if (options_.kind == ParametricKind::kPow2XminXmax) hold_below_xmax("xmin");
}

void ParametricQuantizer::start_from(const ValueRange& values, std::int64_t bits) {
  const double fewest = detail::fewest_bits_of(options_);
  TORCH_CHECK_VALUE(bits >= fewest && bits <= 16, "qat::ParametricQuantizer ", to_string(options_.kind), ": ",
                    bits, " bits; expected ", fewest, " to 16");
  const torch::NoGradGuard no_grad;
  auto parameters = named_parameters();
  const auto largest = torch::maximum(values.min.abs(), values.max.abs()).to(torch::kDouble);
  for (auto& parameter : parameters) {
    TORCH_CHECK_VALUE(parameter.key() == "n" || largest.sizes() == parameter.value().sizes(),
                      "qat::ParametricQuantizer: expected a range of shape ", parameter.value().sizes(),
                      ", got ", largest.sizes());
  }
  const auto side = static_cast<double>(bits) - (options_.is_signed ? 1 : 0);
  const auto levels = std::exp2(side) - 1;
  const auto magnitudes =
      std::exp2(std::min(detail::kMostMagnitudeBits, side - (options_.with_zero ? 1 : 0)));
  const auto exponent = torch::log2(largest / levels);
  const auto set = [&](const char* name, const Tensor& wanted) {
    if (!parameters.contains(name)) return;
    const auto bounds = learnable(name);
    const auto usable = torch::where(largest > 0, wanted, torch::full_like(wanted, bounds.start));
    parameters[name].copy_(usable.clamp(bounds.min, bounds.max));
  };
  set("xmax", largest);
  set("d", torch::exp2(bits > 4 ? torch::ceil(exponent) : torch::floor(exponent)));
  set("m", torch::log2(largest));
  set("xmin", largest * std::exp2(1 - magnitudes));
  if (parameters.contains("n")) {
    const auto bounds = learnable("n");
    parameters["n"].fill_(std::clamp(static_cast<double>(bits), bounds.min, bounds.max));
  }
}

std::string ParametricQuantizer::config() const {
  nlohmann::ordered_json json{{"type", kParametricQuantizerType},
                              {"kind", to_string(options_.kind)},
                              {"signed", options_.is_signed},
                              {"with_zero", options_.with_zero},
                              {"rounding", to_string(options_.rounding)},
                              {"channels", options_.channels},
                              {"fix_parameters", options_.fix_parameters},
                              {"compatible", options_.compatible}};
  json["axis"] = options_.axis ? nlohmann::ordered_json(*options_.axis) : nlohmann::ordered_json(nullptr);
  for (const char* name : detail::learned_names(options_.kind)) {
    const auto [start, min, max] = learnable(name);
    json[name] = {start, min, max};
  }
  return json.dump();
}

std::shared_ptr<TensorModule> make_parametric_quantizer(const nlohmann::json& config) {
  ParametricOptions options;
  try {
    options.kind = parse_parametric_kind(config.at("kind").get<std::string>());
    options.is_signed = config.at("signed").get<bool>();
    options.with_zero = config.at("with_zero").get<bool>();
    options.rounding = parse_rounding(config.at("rounding").get<std::string>());
    options.channels = config.at("channels").get<std::int64_t>();
    options.fix_parameters = config.at("fix_parameters").get<bool>();
    options.compatible = config.at("compatible").get<bool>();
    if (const auto& axis = config.at("axis"); !axis.is_null()) options.axis = axis.get<std::int64_t>();
    for (const char* name : detail::learned_names(options.kind)) {
      const auto numbers = config.at(name).get<std::array<double, 3>>();
      options.*detail::member(name) = Learnable{numbers[0], numbers[1], numbers[2]};
    }
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, "qat::ParametricQuantizer: bad configuration ", config.dump(), ": ",
                      error.what());
  }
  return std::make_shared<ParametricQuantizer>(options);
}

void ParametricQuantizer::pretty_print(std::ostream& stream) const {
  stream << "qat::ParametricQuantizer(" << to_string(options_.kind) << ", "
         << (options_.is_signed ? "int" : "uint") << bits();
  if (options_.axis) stream << ", axis=" << *options_.axis;
  detail::print_parameters(stream, *this);
  stream << ")";
}

}  // namespace qat
