#include "quantizers/parametric_kind.h"

#include "numerics/enum_names.h"
#include <qat/numerics/affine_scale.h>

#include <c10/util/Exception.h>

#include <cmath>

namespace qat {
namespace {

constexpr detail::EnumNames<ParametricKind, 8> kParametricKindNames{
    {{ParametricKind::kFpNM, "fp_n_m"},
     {ParametricKind::kFpBXmax, "fp_b_xmax"},
     {ParametricKind::kFpDXmax, "fp_d_xmax"},
     {ParametricKind::kFpDB, "fp_d_b"},
     {ParametricKind::kPow2NM, "pow2_n_m"},
     {ParametricKind::kPow2BXmax, "pow2_b_xmax"},
     {ParametricKind::kPow2BXmin, "pow2_b_xmin"},
     {ParametricKind::kPow2XminXmax, "pow2_xmin_xmax"}}};

/// Steps and ranges lie in [2^-63 (kScaleFloor), 2^63]: then all that follows from them is a normal float32.
constexpr double kMostBoundLog2 = 63;
/// The bits between a range and its step, where the step follows from range and width.
constexpr double kMostStepBits = 16;

struct Allowed {
  double min;
  double max;
};

/// Where the bounds of a learnable, not n, may lie.
Allowed allowed_bounds(ParametricKind kind, std::string_view name) {
  const bool derives_step = kind == ParametricKind::kFpNM || kind == ParametricKind::kFpBXmax;
  const double least = derives_step ? kMostStepBits - kMostBoundLog2 : -kMostBoundLog2;
  if (name == "m") return {least, kMostBoundLog2};
  return {std::exp2(least), std::exp2(kMostBoundLog2)};
}

}  // namespace

namespace detail {

std::vector<const char*> learned_names(ParametricKind kind) {
  switch (kind) {
    case ParametricKind::kFpNM:
    case ParametricKind::kPow2NM:
      return {"n", "m"};
    case ParametricKind::kFpBXmax:
    case ParametricKind::kPow2BXmax:
      return {"n", "xmax"};
    case ParametricKind::kFpDXmax:
      return {"d", "xmax"};
    case ParametricKind::kFpDB:
      return {"n", "d"};
    case ParametricKind::kPow2BXmin:
      return {"n", "xmin"};
    case ParametricKind::kPow2XminXmax:
      break;
  }
  return {"xmin", "xmax"};
}

std::optional<Learnable> ParametricOptions::*member(std::string_view name) {
  using O = ParametricOptions;
  if (name == "n") return &O::n;
  if (name == "m") return &O::m;
  if (name == "d") return &O::d;
  if (name == "xmax") return &O::xmax;
  return &O::xmin;
}

double fewest_bits_of(const ParametricOptions& options) {
  const int sign = options.is_signed ? 1 : 0;
  return is_power_of_two(options.kind) ? sign + (options.with_zero ? 1 : 0) : 1 + sign;
}

void check_learnable(const ParametricOptions& options, std::string_view name, const Learnable& learnable) {
  const auto who = "qat::ParametricQuantizer " + to_string(options.kind);
  const auto [start, min, max] = learnable;
  TORCH_CHECK_VALUE(min <= max && std::isfinite(min) && std::isfinite(max), who, ": the bounds of ", name,
                    " are [", min, ", ", max, "]; expected min <= max");
  TORCH_CHECK_VALUE(start >= min && start <= max, who, ": ", name, " starts at ", start, "; expected ", min,
                    " to ", max, ", its bounds");
  if (name == "n") {
    const double fewest = fewest_bits_of(options);
    const double most =
        is_power_of_two(options.kind) && !options.compatible ? fewest + kMostMagnitudeBits : 16;
    const bool usable = options.compatible || (std::round(start) >= fewest && std::round(start) <= most);
    TORCH_CHECK_VALUE(usable && max <= 16, who, ": n = ", start, " in [", min, ", ", max, "] bits; expected ",
                      fewest, " to ", most, options.is_signed ? " (a sign takes one)" : "");
    return;
  }
  const auto allowed = allowed_bounds(options.kind, name);
  const bool is_low = min < allowed.min;
  TORCH_CHECK_VALUE(!is_low && max <= allowed.max, who, ": the ", is_low ? "lower" : "upper", " bound of ",
                    name, " is ", is_low ? min : max, "; expected ", name == "m" ? "" : "a positive number, ",
                    allowed.min, " to ", allowed.max);
}

}  // namespace detail

std::string to_string(ParametricKind kind) {
  return detail::enum_name(kParametricKindNames, kind);
}

ParametricKind parse_parametric_kind(std::string_view text) {
  return detail::parse_enum(kParametricKindNames, "parametric quantizer", text);
}

bool is_power_of_two(ParametricKind kind) {
  return kind >= ParametricKind::kPow2NM;
}

Learnable default_learnable(ParametricKind kind, std::string_view name) {
  const bool pow2 = is_power_of_two(kind);
  if (name == "n")
    return !pow2 ? Learnable{8, 2, 16} : Learnable{8, 1, kind == ParametricKind::kPow2NM ? 16.0 : 8.0};
  if (name == "m") return {1, -8, 8};
  if (name == "d") return {0x1p-4, 0x1p-8, 0x1p8};
  if (name == "xmax") return !pow2 ? Learnable{1, 0.001, 10} : Learnable{1, 0x1p-8, 256};
  TORCH_CHECK_VALUE(name == "xmin", "qat::default_learnable: unknown learnable '", name,
                    "'; expected n, m, d, xmax or xmin");
  return {0x1p-7, 0x1p-15, 256};
}

}  // namespace qat
