#include "numerics/enum_names.h"
#include <qat/numerics/affine_params.h>

#include <torch/types.h>

namespace qat {
namespace {

constexpr detail::EnumNames<Symmetry, 3> kSymmetryNames{{{Symmetry::kSymmetric, "symmetric"},
                                                         {Symmetry::kAffine, "affine"},
                                                         {Symmetry::kAffineEvenZero, "affine_even_zero"}}};
constexpr detail::EnumNames<PowerOfTwo, 4> kPowerOfTwoNames{{{PowerOfTwo::kNotRound, "notround"},
                                                             {PowerOfTwo::kRound, "round"},
                                                             {PowerOfTwo::kCeil, "ceil"},
                                                             {PowerOfTwo::kFloor, "floor"}}};

void check_shapes(const ValueRange& values, const IntegerRange& range, Symmetry symmetry,
                  std::optional<std::int64_t> axis) {
  TORCH_CHECK_VALUE(values.min.defined() && values.max.defined(),
                    "affine_params_from_range: expected the tensors min and max, got an undefined tensor");
  TORCH_CHECK_VALUE(values.min.sizes() == values.max.sizes() && values.min.dim() <= 1,
                    "affine_params_from_range: expected min and max of one shape, [] or [channels], got ",
                    values.min.sizes(), " and ", values.max.sizes());
  TORCH_CHECK_VALUE(values.min.is_floating_point() && values.max.is_floating_point(),
                    "affine_params_from_range: expected floating point min and max, got ", values.min.dtype(),
                    " and ", values.max.dtype());
  TORCH_CHECK_VALUE(
      axis.has_value() == (values.min.dim() == 1),
      "affine_params_from_range: a range per channel needs the channel axis, a range per tensor has none; "
      "got shape ",
      values.min.sizes(), axis ? " and axis " + std::to_string(*axis) : " and no axis");
  TORCH_CHECK_VALUE(symmetry != Symmetry::kSymmetric || range.qmin() <= 0,
                    "affine_params_from_range: ", range.to_string(),
                    " has no code 0, which a symmetric quantizer needs; use the full range or affine");
}

void check_values(const ValueRange& values) {
  const auto min = values.min.detach().to(torch::kCPU, torch::kDouble).contiguous();
  const auto max = values.max.detach().to(torch::kCPU, torch::kDouble).contiguous();
  for (std::int64_t c = 0; c < min.numel(); ++c) {
    const double lo = min.const_data_ptr<double>()[c];
    const double hi = max.const_data_ptr<double>()[c];
    TORCH_CHECK_VALUE(std::isfinite(lo) && std::isfinite(hi) && lo <= hi,
                      "affine_params_from_range: expected finite min <= max, got (", lo, ", ", hi, ")",
                      min.dim() == 1 ? " in channel " + std::to_string(c) : "");
  }
}

AffineParams affine_params_on_host(const ValueRange& values, const IntegerRange& range, Symmetry symmetry,
                                   PowerOfTwo power_of_two) {
  const auto min = values.min.detach().to(torch::kFloat).contiguous();
  const auto max = values.max.detach().to(torch::kFloat).contiguous();
  AffineParams params{torch::empty_like(min), torch::empty_like(min, torch::kInt), range};
  for (std::int64_t c = 0; c < min.numel(); ++c) {
    const AffineScale channel = affine_scale(min.const_data_ptr<float>()[c], max.const_data_ptr<float>()[c],
                                             static_cast<std::int32_t>(range.qmin()),
                                             static_cast<std::int32_t>(range.qmax()), symmetry, power_of_two);
    params.scale.mutable_data_ptr<float>()[c] = channel.scale;
    params.zero_point.mutable_data_ptr<std::int32_t>()[c] = channel.zero_point;
  }
  return params;
}

torch::Tensor usable_scale_by_tensor_operations(const torch::Tensor& raw, PowerOfTwo power_of_two) {
  const auto ceiling = power_of_two == PowerOfTwo::kNotRound ? kScaleCeiling : kPowerOfTwoCeiling;
  auto scale = raw.clamp(kScaleFloor, ceiling).to(torch::kFloat);
  if (power_of_two != PowerOfTwo::kNotRound) {
    const auto [mantissa, exponent] = torch::frexp(scale.to(torch::kDouble));
    const auto limit = power_of_two == PowerOfTwo::kCeil ? mantissa : mantissa.square();
    const auto lower = exponent - 1;
    const auto rounded =
        power_of_two == PowerOfTwo::kFloor ? lower : torch::where(limit > 0.5, exponent, lower);
    scale = torch::exp2(rounded.to(torch::kDouble)).to(torch::kFloat);
  }
  return torch::where(raw > 0, scale, kZeroRangeScale);
}

}  // namespace

std::string to_string(Symmetry symmetry) {
  return detail::enum_name(kSymmetryNames, symmetry);
}
std::string to_string(PowerOfTwo rounding) {
  return detail::enum_name(kPowerOfTwoNames, rounding);
}

Symmetry parse_symmetry(std::string_view text) {
  return detail::parse_enum(kSymmetryNames, "symmetry", text);
}

PowerOfTwo parse_power_of_two(std::string_view text) {
  return detail::parse_enum(kPowerOfTwoNames, "power-of-two rounding", text);
}

AffineParams affine_params_from_range(const ValueRange& values, const IntegerRange& range, Symmetry symmetry,
                                      PowerOfTwo power_of_two, std::optional<std::int64_t> axis) {
  check_shapes(values, range, symmetry, axis);
  check_values(values);
  return affine_params_from_range_unchecked(values, range, symmetry, power_of_two, axis);
}

AffineParams affine_params_from_range_unchecked(const ValueRange& values, const IntegerRange& range,
                                                Symmetry symmetry, PowerOfTwo power_of_two,
                                                std::optional<std::int64_t> axis) {
  check_shapes(values, range, symmetry, axis);
  auto params = values.min.is_cpu() && values.max.is_cpu()
                    ? affine_params_on_host(values, range, symmetry, power_of_two)
                    : detail::affine_params_by_tensor_operations(values, range, symmetry, power_of_two);
  params.axis = axis;
  return params;
}

torch::Tensor accumulator_scale(const torch::Tensor& scale_x, const torch::Tensor& scale_w) {
  for (const auto* scale : {&scale_x, &scale_w}) {
    TORCH_CHECK_VALUE(scale->defined() && scale->scalar_type() == torch::kFloat,
                      "accumulator_scale: expected float32 scales of input and weight, got ",
                      scale->defined() ? scale->toString() : "an undefined tensor");
  }
  return scale_x.detach() * scale_w.detach();
}

AffineParams detail::affine_params_by_tensor_operations(const ValueRange& values, const IntegerRange& range,
                                                        Symmetry symmetry, PowerOfTwo power_of_two) {
  const auto min = values.min.detach().to(torch::kFloat).to(torch::kDouble);
  const auto max = values.max.detach().to(torch::kFloat).to(torch::kDouble);
  const auto lo = torch::where(min < 0, min, 0.0);
  const auto hi = torch::where(max > 0, max, 0.0);
  const auto qmin = static_cast<double>(range.qmin());
  const auto qmax = static_cast<double>(range.qmax());
  // A divisor in device memory: by a host scalar CUDA would multiply by the reciprocal.
  const auto divided = [](const torch::Tensor& t, double divisor) {
    return t / torch::full_like(t, divisor);
  };
  if (symmetry == Symmetry::kSymmetric) {
    const auto bound = range.is_signed() ? torch::maximum(-lo, hi) : hi;
    const auto scale = usable_scale_by_tensor_operations(divided(bound, qmax), power_of_two);
    return {scale, torch::zeros_like(scale, torch::kInt), range};
  }
  const auto width = hi - lo;
  const auto raw = divided(width, qmax - qmin);
  const auto scale = usable_scale_by_tensor_operations(raw, power_of_two);
  const auto keeps_width = scale == raw.to(torch::kFloat);
  const auto position =
      torch::where(keeps_width, -lo * (qmax - qmin) / width, -lo / scale.to(torch::kDouble)) + qmin;
  const bool even = symmetry == Symmetry::kAffineEvenZero;
  const auto rounded = even ? torch::round(position / 2.0) * 2.0 : torch::round(position);
  const double lowest = even ? qmin + static_cast<double>(range.qmin() & 1) : qmin;
  const double highest = even ? qmax - static_cast<double>(range.qmax() & 1) : qmax;
  return {scale, torch::nan_to_num(rounded, lowest).clamp(lowest, highest).to(torch::kInt), range};
}

}  // namespace qat
