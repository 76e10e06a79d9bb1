#include "numerics/enum_names.h"
#include "quantizers/quantizer_config.h"
#include <qat/numerics/value_range.h>
#include <qat/quantizers/affine_quantizer.h>

#include <ATen/TracerMode.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <ostream>

namespace qat {
namespace {

constexpr detail::EnumNames<ScaleSource, 2> kScaleSourceNames{
    {{ScaleSource::kFixed, "fixed"}, {ScaleSource::kCurrent, "current"}}};

}  // namespace

AffineQuantizer::AffineQuantizer(AffineQuantizerOptions options) : options_(options) {
  scale_ = register_buffer("scale", torch::empty({0}, torch::kFloat));
  zero_point_ = register_buffer("zero_point", torch::empty({0}, torch::kInt));
}

torch::Tensor AffineQuantizer::forward(const torch::Tensor& x, const Activation& activation) {
  const FakeQuantizeOptions options{options_.rounding, options_.straight_through, activation};
  const bool passes = x.defined() && !x.is_floating_point() && !x.is_complex();
  if (passes) return x;
  return fake_quantize(x, x.defined() && x.is_floating_point() ? affine_params(x) : AffineParams{}, options);
}

Quantizer::Scaled AffineQuantizer::forward_with_scale(const torch::Tensor& x) {
  const auto params = affine_params(x);
  return {fake_quantize(x, params, {options_.rounding, options_.straight_through, {}}), params.scale};
}

torch::Tensor AffineQuantizer::codes(const torch::Tensor& x) {
  return affine_codes(x, affine_params(x), {options_.rounding, options_.straight_through, {}});
}

AffineParams AffineQuantizer::affine_params(const torch::Tensor& x) {
  if (options_.scale_source == ScaleSource::kFixed) {
    TORCH_CHECK(has_range(),
                "qat::AffineQuantizer: no range is set; record a range first (set_range, set_params)");
    return {scale_, zero_point_, options_.range, options_.axis};
  }
  const torch::NoGradGuard no_grad;
  const at::tracer::impl::NoTracerDispatchMode no_tracer;
  return affine_params_from_range_unchecked(finite_range(x.detach(), options_.axis), options_.range,
                                            options_.symmetry, options_.power_of_two, options_.axis);
}

void AffineQuantizer::set_range(const ValueRange& values) {
  TORCH_CHECK(
      options_.scale_source == ScaleSource::kFixed,
      "qat::AffineQuantizer: the scale follows the tensor (ScaleSource::kCurrent); no range can be set");
  const torch::NoGradGuard no_grad;
  const auto params = affine_params_from_range(values, options_.range, options_.symmetry,
                                               options_.power_of_two, options_.axis);
  scale_.set_data(params.scale);
  zero_point_.set_data(params.zero_point);
}

void AffineQuantizer::set_params(const torch::Tensor& scale, const torch::Tensor& zero_point) {
  TORCH_CHECK(
      options_.scale_source == ScaleSource::kFixed,
      "qat::AffineQuantizer: the scale follows the tensor (ScaleSource::kCurrent); no scale can be set");
  TORCH_CHECK_VALUE(scale.defined() && zero_point.defined(),
                    "qat::AffineQuantizer: scale or zero point is undefined");
  TORCH_CHECK_VALUE(scale.sizes() == zero_point.sizes() && scale.dim() == (options_.axis ? 1 : 0),
                    "qat::AffineQuantizer: expected scale and zero point of shape ",
                    options_.axis ? "[channels]" : "[]", ", got ", scale.sizes(), " and ",
                    zero_point.sizes());
  const torch::NoGradGuard no_grad;
  const auto scales = scale.detach().to(torch::kCPU, torch::kFloat).contiguous();
  const auto zero_points = zero_point.detach().to(torch::kCPU, torch::kInt).contiguous();
  for (std::int64_t c = 0; c < scales.numel(); ++c) {
    const float s = scales.const_data_ptr<float>()[c];
    const std::int32_t z = zero_points.const_data_ptr<std::int32_t>()[c];
    TORCH_CHECK_VALUE(s > 0.0F && std::isfinite(s), "qat::AffineQuantizer: scale ", s, " of channel ", c,
                      " is not a positive finite number");
    TORCH_CHECK_VALUE(z >= options_.range.qmin() && z <= options_.range.qmax(),
                      "qat::AffineQuantizer: zero point ", z, " of channel ", c, " lies outside ",
                      options_.range.to_string(), " (", options_.range.qmin(), " to ", options_.range.qmax(),
                      ")");
  }
  scale_.set_data(scale.detach().to(torch::kFloat).clone());
  zero_point_.set_data(zero_point.detach().to(torch::kInt).clone());
}

bool AffineQuantizer::has_range() const {
  return scale_.numel() > 0;
}

std::string AffineQuantizer::config() const {
  nlohmann::ordered_json json{{"type", kAffineQuantizerType},
                              {"bits", options_.range.bits()},
                              {"signed", options_.range.is_signed()},
                              {"narrow", options_.range.is_narrow()},
                              {"symmetry", to_string(options_.symmetry)},
                              {"power_of_two", to_string(options_.power_of_two)},
                              {"rounding", to_string(options_.rounding)},
                              {"straight_through", to_string(options_.straight_through)},
                              {"scale_source", detail::enum_name(kScaleSourceNames, options_.scale_source)}};
  json["axis"] = options_.axis ? nlohmann::ordered_json(*options_.axis) : nlohmann::ordered_json(nullptr);
  return json.dump();
}

IntegerRange integer_range_of(const nlohmann::json& config) {
  return IntegerRange(config.at("bits").get<std::int64_t>(),
                      config.at("signed").get<bool>() ? Signedness::kSigned : Signedness::kUnsigned,
                      config.at("narrow").get<bool>() ? RangeWidth::kNarrow : RangeWidth::kFull);
}

std::shared_ptr<TensorModule> make_affine_quantizer(const nlohmann::json& config) {
  AffineQuantizerOptions options;
  const auto text = [&](const char* key) { return config.at(key).get<std::string>(); };
  try {
    options.range = integer_range_of(config);
    options.symmetry = parse_symmetry(text("symmetry"));
    options.power_of_two = parse_power_of_two(text("power_of_two"));
    options.rounding = parse_rounding(text("rounding"));
    options.straight_through = parse_straight_through(text("straight_through"));
    options.scale_source = detail::parse_enum(kScaleSourceNames, "scale source", text("scale_source"));
    if (const auto& axis = config.at("axis"); !axis.is_null()) options.axis = axis.get<std::int64_t>();
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, "qat::AffineQuantizer: bad configuration ", config.dump(), ": ", error.what());
  }
  return std::make_shared<AffineQuantizer>(options);
}

void AffineQuantizer::pretty_print(std::ostream& stream) const {
  stream << "qat::AffineQuantizer(" << options_.range.to_string() << ", " << to_string(options_.symmetry);
  if (options_.power_of_two != PowerOfTwo::kNotRound) stream << ", scale=2^n";
  if (options_.axis) stream << ", axis=" << *options_.axis;
  if (options_.scale_source == ScaleSource::kCurrent) {
    stream << ", current range)";
  } else if (!has_range()) {
    stream << ", no range)";
  } else if (options_.axis) {
    stream << ", scale=[" << scale_.min().item<float>() << " to " << scale_.max().item<float>() << "])";
  } else {
    stream << ", scale=" << scale_.item<float>() << ", zero_point=" << zero_point_.item<std::int32_t>()
           << ")";
  }
}

}  // namespace qat
