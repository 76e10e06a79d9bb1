#include "numerics/enum_names.h"
#include "recorders/histogram.h"
#include "recorders/histogram_range.h"
#include "recorders/recorder_config.h"
#include <qat/recorders/recorder.h>

#include <torch/serialize/input-archive.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <ostream>
#include <utility>
#include <vector>

namespace qat {
namespace {

/// The empty range is (kNothing, -kNothing).
constexpr double kNothing = std::numeric_limits<double>::infinity();

constexpr detail::EnumNames<RecorderKind, 8> kKindNames{{{RecorderKind::kMinMaxMinMax, "MinMaxMinMax"},
                                                         {RecorderKind::kAbsMax, "AbsMax"},
                                                         {RecorderKind::kMinMaxMva, "MinMaxMva"},
                                                         {RecorderKind::kMaxMax, "MaxMax"},
                                                         {RecorderKind::kMaxMva, "MaxMva"},
                                                         {RecorderKind::kPercentile, "Percentile"},
                                                         {RecorderKind::kHistogram, "Histogram"},
                                                         {RecorderKind::kKlDivergence, "KlDivergence"}}};
constexpr detail::EnumNames<RecorderBehaviour, 2> kBehaviourNames{
    {{RecorderBehaviour::kCorrected, "corrected"}, {RecorderBehaviour::kNnabla, "nnabla"}}};

Recorder::Reduction& process_reduction() {
  static Recorder::Reduction reduction;
  return reduction;
}

Recorder::CountReduction& process_count_reduction() {
  static Recorder::CountReduction reduction;
  return reduction;
}

bool has_histogram(RecorderKind kind) {
  return kind == RecorderKind::kPercentile || kind == RecorderKind::kHistogram ||
         kind == RecorderKind::kKlDivergence;
}

void check_histogram_options(const RecorderOptions& options) {
  if (!has_histogram(options.kind)) return;
  const std::string who = "qat::Recorder: " + to_string(options.kind);
  TORCH_CHECK_VALUE(!options.axis, who, " has one range for the whole tensor, got axis ",
                    options.axis.value_or(0), "; use AbsMax or MinMaxMinMax per channel");
  TORCH_CHECK_VALUE(options.behaviour == RecorderBehaviour::kCorrected, who,
                    " is none of nnabla's recorders; expected the corrected behaviour");
  TORCH_CHECK_VALUE(options.percentile > 50.0 && options.percentile <= 100.0, who,
                    ": expected a percentile in (50, 100], got ", options.percentile);
  TORCH_CHECK_VALUE(options.bits >= 1 && options.bits <= 16, who, ": expected 1 to 16 bits, got ",
                    options.bits);
}

torch::Tensor read_buffer(torch::serialize::InputArchive& archive, const std::string& key,
                          const torch::Tensor& current) {
  torch::Tensor read;
  archive.read(key, read, /*is_buffer=*/true);
  return read.to(current.options());
}

}  // namespace

bool keeps_minimum(RecorderKind kind) {
  return kind != RecorderKind::kAbsMax && kind != RecorderKind::kMaxMax && kind != RecorderKind::kMaxMva;
}

std::string to_string(RecorderKind kind) {
  return detail::enum_name(kKindNames, kind);
}

RecorderKind parse_recorder_kind(std::string_view text) {
  constexpr std::string_view kSuffix = "RecorderCallback";
  const auto name = text.ends_with(kSuffix) ? text.substr(0, text.size() - kSuffix.size()) : text;
  return detail::parse_enum(kKindNames, "recorder", name);
}

Recorder::Recorder(RecorderOptions options) : TensorModule("qat::Recorder"), options_(options) {
  TORCH_CHECK_VALUE(options_.decay >= 0.0 && options_.decay < 1.0,
                    "qat::Recorder: expected a decay in [0, 1), got ", options_.decay);
  min_val_ = register_buffer("min_val", torch::empty({}, torch::kFloat));
  max_val_ = register_buffer("max_val", torch::empty({}, torch::kFloat));
  mean_abs_ = register_buffer("mean_abs", torch::empty({}, torch::kFloat));
  recorded_ = register_buffer("recorded", torch::empty({}, torch::kLong));
  check_histogram_options(options_);
  if (has_histogram(options_.kind)) {
    counts_ = register_buffer("counts", torch::empty({detail::kHistogramBins}, torch::kLong));
    limit_ = register_buffer("limit", torch::empty({}, torch::kDouble));
    zeros_ = register_buffer("zeros", torch::empty({}, torch::kLong));
  }
  reset();
}

void Recorder::reset() {
  const torch::NoGradGuard no_grad;
  resize_state(options_.axis ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{});
  recorded_.zero_();
  for (auto* const buffer : {&counts_, &limit_, &zeros_}) {
    if (buffer->defined()) buffer->zero_();
  }
}

void Recorder::resize_state(torch::IntArrayRef shape) {
  // nnabla starts at 0; an empty range is the neutral start.
  const double start = options_.behaviour == RecorderBehaviour::kNnabla ? 0.0 : kNothing;
  min_val_.set_data(torch::full(shape, start, min_val_.options()));
  max_val_.set_data(torch::full(shape, -start, max_val_.options()));
  mean_abs_.set_data(torch::zeros(shape, mean_abs_.options()));
}

torch::Tensor Recorder::forward(const torch::Tensor& x) {
  if (is_training()) record(x);
  return x;
}

void Recorder::record(const torch::Tensor& x) {
  const bool is_recordable =
      x.is_floating_point() || x.is_complex();  // finite_range refuses complex numbers by name
  if (!is_recordable || (x.numel() == 0 && !process_reduction())) return;
  const torch::NoGradGuard no_grad;
  auto [min, max] = finite_range(x, options_.axis);
  TORCH_CHECK_VALUE(min_val_.sizes() == min.sizes() || min_val_.numel() == 0, "qat::Recorder: expected ",
                    min_val_.numel(), " channels along axis ", options_.axis.value_or(0),
                    ", got a tensor of shape ", x.sizes(), "; reset the recorder to record other channels");
  min = min.to(min_val_.device());
  max = max.to(max_val_.device());
  auto mean_abs = qat::mean_magnitude(x, options_.axis).to(mean_abs_.device());
  if (process_reduction()) {
    process_reduction()(min, max);
    auto least_mean = mean_abs.clone();
    process_reduction()(least_mean, mean_abs);
  }
  if (min_val_.sizes() != min.sizes()) resize_state(min.sizes());
  if (counts_.defined()) count(x, min, max);
  update(min, max, mean_abs);
}

void Recorder::count(const torch::Tensor& x, const torch::Tensor& min, const torch::Tensor& max) {
  // (+inf, -inf) where no process saw anything.
  const double largest = std::max({-min.item<double>(), max.item<double>(), 0.0});
  const double seen = limit_.item<double>();
  const double limit = std::max(seen, detail::histogram_limit(largest));
  auto added = detail::count_elements(x, limit);
  if (process_count_reduction()) process_count_reduction()(added);
  const auto before = detail::widened(counts_.cpu(), seen, limit);
  counts_.copy_(before + added.narrow(0, 0, detail::kHistogramBins));
  zeros_.add_(added[detail::kHistogramBins].item<std::int64_t>());
  limit_.fill_(limit);
}

ValueRange Recorder::searched_range() const {
  const detail::Histogram histogram{counts_.to(torch::kCPU).contiguous(), limit_.item<double>(),
                                    zeros_.item<std::int64_t>()};
  const detail::Interval data{min_val_.item<double>(), max_val_.item<double>()};
  detail::Interval found{std::min(data.low, 0.0), std::max(data.high, 0.0)};
  if (histogram.limit > 0) {
    switch (options_.kind) {
      case RecorderKind::kPercentile:
        found = percentile_interval(histogram, data, options_.percentile);
        break;
      case RecorderKind::kHistogram:
        found = least_squares_interval(histogram, data, options_.bits, options_.symmetric);
        break;
      default:
        found = kl_divergence_interval(histogram, data, options_.bits, options_.symmetric);
        break;
    }
  }
  return {torch::full_like(min_val_, found.low), torch::full_like(max_val_, found.high)};
}

void Recorder::update(torch::Tensor min, torch::Tensor max, const torch::Tensor& mean_abs) {
  const auto seen = min <= max;
  if (!keeps_minimum(options_.kind)) {
    const bool is_plain_maximum =
        options_.behaviour == RecorderBehaviour::kNnabla && options_.kind != RecorderKind::kAbsMax;
    if (!is_plain_maximum) max = torch::maximum(max, -min);
    min = -max;
  }
  if (options_.kind == RecorderKind::kMinMaxMva || options_.kind == RecorderKind::kMaxMva) {
    auto new_min = min_val_ * options_.decay + min * (1.0 - options_.decay);
    auto new_max = max_val_ * options_.decay + max * (1.0 - options_.decay);
    if (options_.behaviour == RecorderBehaviour::kCorrected) {
      const auto is_first = min_val_ > max_val_;
      new_min = torch::where(is_first, min, new_min);
      new_max = torch::where(is_first, max, new_max);
    }
    min = torch::where(seen, new_min, min_val_);
    max = torch::where(seen, new_max, max_val_);
  } else {
    min = torch::minimum(min_val_, min);
    max = torch::maximum(max_val_, max);
  }
  min_val_.copy_(min);
  max_val_.copy_(max);
  mean_abs_.copy_(torch::maximum(mean_abs_, mean_abs));
  recorded_.add_(seen.any());
}

ValueRange Recorder::range() const {
  TORCH_CHECK(recorded() > 0, "qat::Recorder: nothing was recorded; run some batches in train mode first");
  const torch::NoGradGuard no_grad;
  if (counts_.defined()) return searched_range();
  const auto unseen = min_val_ == kNothing;
  return {min_val_.masked_fill(unseen, 0.0), max_val_.masked_fill(unseen, 0.0)};
}

torch::Tensor Recorder::mean_magnitude() const {
  return mean_abs_.clone();
}

std::int64_t Recorder::recorded() const {
  return recorded_.item<std::int64_t>();
}

void Recorder::set_reduction(Reduction reduction, CountReduction count_reduction) {
  process_reduction() = std::move(reduction);
  process_count_reduction() = std::move(count_reduction);
}

void Recorder::load(torch::serialize::InputArchive& archive) {
  const auto min = read_buffer(archive, "min_val", min_val_);
  const auto max = read_buffer(archive, "max_val", max_val_);
  const auto mean_abs = read_buffer(archive, "mean_abs", mean_abs_);
  const auto recorded = read_buffer(archive, "recorded", recorded_);
  TORCH_CHECK(min.dim() == min_val_.dim() && (min.sizes() == min_val_.sizes() || min_val_.numel() == 0),
              "qat::Recorder: min_val has shape ", min_val_.sizes(), ", the file holds ", min.sizes());
  TORCH_CHECK(max.sizes() == min.sizes(), "qat::Recorder: the file holds min_val of shape ", min.sizes(),
              " and max_val of shape ", max.sizes());
  TORCH_CHECK(mean_abs.sizes() == min.sizes(), "qat::Recorder: the file holds min_val of shape ", min.sizes(),
              " and mean_abs of shape ", mean_abs.sizes());
  TORCH_CHECK(recorded.dim() == 0, "qat::Recorder: recorded has shape [], the file holds ", recorded.sizes());
  std::vector<std::pair<torch::Tensor*, torch::Tensor>> histogram;
  if (counts_.defined()) {
    for (const auto& [key, buffer] :
         {std::pair("counts", &counts_), {"limit", &limit_}, {"zeros", &zeros_}}) {
      histogram.emplace_back(buffer, read_buffer(archive, key, *buffer));
      TORCH_CHECK(histogram.back().second.sizes() == buffer->sizes(), "qat::Recorder: ", key, " has shape ",
                  buffer->sizes(), ", the file holds ", histogram.back().second.sizes());
    }
  }
  min_val_.set_data(min);
  max_val_.set_data(max);
  mean_abs_.set_data(mean_abs);
  recorded_.set_data(recorded);
  for (const auto& [buffer, read] : histogram)
    buffer->set_data(read);
}

std::string Recorder::config() const {
  nlohmann::ordered_json json{{"type", kRecorderType}, {"kind", to_string(options_.kind)}};
  json["axis"] = options_.axis ? nlohmann::ordered_json(*options_.axis) : nlohmann::ordered_json(nullptr);
  json["decay"] = options_.decay;
  json["behaviour"] = detail::enum_name(kBehaviourNames, options_.behaviour);
  if (has_histogram(options_.kind)) {
    json["percentile"] = options_.percentile;
    json["bits"] = options_.bits;
    json["symmetric"] = options_.symmetric;
  }
  return json.dump();
}

std::shared_ptr<TensorModule> make_recorder(const nlohmann::json& config) {
  RecorderOptions options;
  try {
    options.kind = parse_recorder_kind(config.at("kind").get<std::string>());
    if (const auto& axis = config.at("axis"); !axis.is_null()) options.axis = axis.get<std::int64_t>();
    options.decay = config.at("decay").get<double>();
    options.behaviour =
        detail::parse_enum(kBehaviourNames, "behaviour", config.at("behaviour").get<std::string>());
    if (has_histogram(options.kind)) {
      options.percentile = config.at("percentile").get<double>();
      options.bits = config.at("bits").get<std::int64_t>();
      options.symmetric = config.at("symmetric").get<bool>();
    }
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, "qat::Recorder: bad configuration ", config.dump(), ": ", error.what());
  }
  return std::make_shared<Recorder>(options);
}

void Recorder::pretty_print(std::ostream& stream) const {
  stream << "qat::" << to_string(options_.kind) << "(";
  if (options_.axis) stream << "axis=" << *options_.axis << ", ";
  if (options_.kind == RecorderKind::kMinMaxMva || options_.kind == RecorderKind::kMaxMva) {
    stream << "decay=" << options_.decay << ", ";
  }
  if (options_.kind == RecorderKind::kPercentile) stream << "percentile=" << options_.percentile << ", ";
  if (options_.kind == RecorderKind::kHistogram || options_.kind == RecorderKind::kKlDivergence) {
    stream << "bits=" << options_.bits << ", " << (options_.symmetric ? "symmetric, " : "");
  }
  if (options_.behaviour != RecorderBehaviour::kCorrected) {
    stream << "behaviour=" << detail::enum_name(kBehaviourNames, options_.behaviour) << ", ";
  }
  stream << "recorded=" << recorded() << ")";
}

torch::Tensor nnabla_scale(const Recorder& recorder, RangeWidth width, PowerOfTwo power_of_two) {
  const auto range = recorder.range();
  const auto numerator =
      keeps_minimum(recorder.options().kind) ? (range.max - range.min).clamp_min(1e-24) : range.max * 2.0;
  const auto scale = (numerator / (width == RangeWidth::kNarrow ? 254.0 : 255.0)).cpu();
  float* values = scale.mutable_data_ptr<float>();
  for (std::int64_t c = 0; c < scale.numel(); ++c)
    values[c] = round_to_power_of_two(values[c], power_of_two);
  return scale;
}

}  // namespace qat
