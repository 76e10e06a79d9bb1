#include "autograd/dense_view.h"
#include "numerics/enum_names.h"
#include <qat/quantizers/learned_step_quantizer.h>
#include <qat/quantizers/low_bit_weight_quantizer.h>
#include <qat/quantizers/make_quantizer.h>
#include <qat/quantizers/parametric_quantizer.h>

#include <algorithm>
#include <limits>

namespace qat {
namespace {

constexpr detail::EnumNames<WeightStart, 2> kWeightStartNames{
    {{WeightStart::kStatistics, "statistics"}, {WeightStart::kMse, "mse"}}};

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text;
}

bool is_learned_step(std::string_view family) {
  return family == "lsq" || family == "lsq_plus" || family == "pact" || family == "tqt";
}

std::int64_t channel_count(const AffineQuantizerOptions& options, const ValueRange& range) {
  return options.axis ? range.min.numel() : 0;
}

std::shared_ptr<Quantizer> affine(const AffineQuantizerOptions& options, const ValueRange& range) {
  auto quantizer = std::make_shared<AffineQuantizer>(options);
  if (options.scale_source == ScaleSource::kFixed) quantizer->set_range(range);
  return quantizer;
}

std::shared_ptr<Quantizer> learned_step(std::string_view family, const AffineQuantizerOptions& options,
                                        const ValueRange& range, const torch::Tensor& weight,
                                        WeightStart start) {
  // An offset would give weights a zero point; the paper keeps them symmetric.
  const auto kind =
      weight.defined() && family == "lsq_plus" ? LearnedStepKind::kLsq : parse_learned_step_kind(family);
  auto quantizer =
      std::make_shared<LearnedStepQuantizer>(LearnedStepOptions{.kind = kind,
                                                                .range = options.range,
                                                                .rounding = options.rounding,
                                                                .axis = options.axis,
                                                                .channels = channel_count(options, range)});
  if (weight.defined() && start == WeightStart::kStatistics) {
    quantizer->start_from_tensor(weight);
  } else {
    quantizer->start_from(range);
  }
  return quantizer;
}

/// Bounds wide enough for any network; the width is limited by limit_bits.
ParametricOptions wide_bounds(ParametricOptions options, std::int64_t bits) {
  options.n = Learnable{static_cast<double>(bits), 1, 16};
  options.m = Learnable{0, -24, 16};
  options.d = Learnable{0x1p-4, 0x1p-24, 0x1p16};
  options.xmax = Learnable{1, 0x1p-16, 0x1p16};
  options.xmin = Learnable{0x1p-7, 0x1p-63, 0x1p16};
  return options;
}

std::shared_ptr<Quantizer> parametric(std::string_view family, const AffineQuantizerOptions& options,
                                      const ValueRange& range, bool is_weight) {
  const ParametricOptions wanted{.kind = parse_parametric_kind(family),
                                 .is_signed = options.range.is_signed(),
                                 .with_zero = !is_weight,
                                 .rounding = options.rounding,
                                 .axis = options.axis,
                                 .channels = channel_count(options, range)};
  const std::int64_t bits = most_bits(family, options.range.bits());
  auto quantizer = std::make_shared<ParametricQuantizer>(wide_bounds(wanted, bits));
  quantizer->start_from(range, bits);
  quantizer->limit_bits(bits);
  return quantizer;
}

/// A family whose start follows from a range.
std::shared_ptr<Quantizer> ranged(std::string_view family, const AffineQuantizerOptions& options,
                                  const ValueRange& range, const torch::Tensor& weight, WeightStart start) {
  if (family == "affine" || (family == "pact" && options.range.is_signed())) return affine(options, range);
  if (is_learned_step(family)) return learned_step(family, options, range, weight, start);
  return parametric(family, options, range, weight.defined());
}

/// The mean squared error of quantized weights, float64, shape [] or, with an axis, [C].
torch::Tensor squared_error(Quantizer& quantizer, const torch::Tensor& weight,
                            std::optional<std::int64_t> axis) {
  const auto square = (quantizer.forward(weight) - weight).to(torch::kDouble).square();
  return axis ? square.transpose(0, *axis).unsqueeze(-1).flatten(1).mean(1) : square.mean();
}

/// The part of `range` with the smallest error; the largest such part where several are equal.
ValueRange least_error_range(std::string_view family, const AffineQuantizerOptions& options,
                             const ValueRange& range, const torch::Tensor& weight) {
  constexpr int kParts = 40;
  const torch::NoGradGuard no_grad;
  const auto at = weight.detach();
  const auto axis = detail::resolve_axis(at, options.axis);
  ValueRange best = range;
  torch::Tensor least;
  for (int k = kParts; k > 0; --k) {
    const double part = static_cast<double>(k) / kParts;
    const ValueRange tried{range.min * part, range.max * part};
    const auto error = squared_error(*ranged(family, options, tried, at, WeightStart::kMse), at, axis);
    const auto better = least.defined() ? error < least : torch::ones_like(error, torch::kBool);
    least = least.defined() ? torch::where(better, error, least) : error;
    best = {torch::where(better.to(range.min.device()), tried.min, best.min),
            torch::where(better.to(range.max.device()), tried.max, best.max)};
  }
  return best;
}

}  // namespace

std::string to_string(WeightStart start) {
  return detail::enum_name(kWeightStartNames, start);
}

WeightStart parse_weight_start(std::string_view text) {
  return detail::parse_enum(kWeightStartNames, "weight start", text);
}

const std::vector<std::string>& activation_quantizer_names() {
  static const std::vector<std::string> names = {
      "affine",    "lsq",    "lsq_plus", "pact",        "tqt",         "fp_n_m",        "fp_b_xmax",
      "fp_d_xmax", "fp_d_b", "pow2_n_m", "pow2_b_xmax", "pow2_b_xmin", "pow2_xmin_xmax"};
  return names;
}

const std::vector<std::string>& weight_quantizer_names() {
  static const std::vector<std::string> names = [] {
    auto all = activation_quantizer_names();
    std::erase(all, "pact");
    all.insert(all.end(), {"dorefa", "binary", "ternary"});
    return all;
  }();
  return names;
}

bool has_learned_parameters(std::string_view family) {
  return is_learned_step(family) || has_learned_width(family);
}

bool has_learned_width(std::string_view family) {
  return family.starts_with("fp_") || family.starts_with("pow2_");
}

std::int64_t most_bits(std::string_view family, std::int64_t bits) {
  return family.starts_with("pow2_") ? std::min<std::int64_t>(bits, 4) : bits;
}

ValueRange start_range(const ValueRange& recorded, const torch::Tensor& mean_magnitude,
                       const IntegerRange& codes) {
  const auto largest = (lsq_start_scale(mean_magnitude, codes) * codes.qmax()).to(torch::kFloat);
  const auto limit =
      torch::where(largest > 0, largest, torch::full_like(largest, std::numeric_limits<float>::max()));
  return {torch::maximum(recorded.min, -limit), torch::minimum(recorded.max, limit)};
}

std::shared_ptr<Quantizer> make_quantizer(std::string_view family, const AffineQuantizerOptions& options,
                                          const ValueRange& range, const torch::Tensor& weight,
                                          WeightStart start) {
  const bool is_weight = weight.defined();
  const auto& names = is_weight ? weight_quantizer_names() : activation_quantizer_names();
  TORCH_CHECK_VALUE(contains(names, family), "qat::make_quantizer: there is no family \"", family, "\" for ",
                    is_weight ? "weights" : "activations", "; expected ", joined(names));
  if (family == "affine" || is_learned_step(family) || has_learned_width(family)) {
    const bool searches = is_weight && start == WeightStart::kMse && weight.numel() != 0;
    return ranged(family, options, searches ? least_error_range(family, options, range, weight) : range,
                  weight, start);
  }
  const auto kind = parse_low_bit_weight_kind(family);
  const auto axis = kind == LowBitWeightKind::kDorefa ? std::nullopt : options.axis;
  return std::make_shared<LowBitWeightQuantizer>(
      LowBitWeightOptions{.kind = kind, .bits = options.range.bits(), .axis = axis});
}

}  // namespace qat
