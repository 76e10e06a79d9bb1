#include "schedulers/slot_contents.h"

#include "schedulers/layer_settings.h"
#include <qat/quantizers/bias_quantizer.h>
#include <qat/quantizers/make_quantizer.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace qat::detail {
namespace {

using nn::QuantizableLayer;

std::optional<std::int64_t> weight_axis(const QuantizableLayer& layer, const QATConfig& config) {
  // An embedding has an output channel for each number of a row; its rows are looked up, not summed: one
  // scale.
  const bool has_channels = layer.input_count() != 0;
  return config.channel_wise && has_channels ? std::optional(layer.weight_channel_axis()) : std::nullopt;
}

RangeWidth width(const QATConfig& config) {
  return config.narrow_range ? RangeWidth::kNarrow : RangeWidth::kFull;
}

AffineQuantizerOptions common_options(const QATConfig& config) {
  return {.power_of_two = config.pow2,
          .rounding = config.round_mode,
          .straight_through = config.straight_through};
}

std::shared_ptr<Quantizer> weight_quantizer(QuantizableLayer& layer, const std::string& path,
                                            const ValueRange& range, const QATConfig& config) {
  AffineQuantizerOptions options = common_options(config);
  const std::int64_t bits = weight_bits(config, path);
  // One-bit families have codes of their own; the range is not used then.
  options.range = IntegerRange(std::max<std::int64_t>(bits, 2), Signedness::kSigned, width(config));
  options.axis = weight_axis(layer, config);
  if (config.weight_range_current) options.scale_source = ScaleSource::kCurrent;
  return make_quantizer(weight_family(config, path), options, range, *layer.weight_parameter(),
                        config.weight_start);
}

/// What recorders saw of a tensor, or of all that share its scale.
struct Seen {
  ValueRange range;
  torch::Tensor mean_magnitude;
};

/// Codes and symmetry for an activation. `has_zero_point`: its family can have one.
AffineQuantizerOptions activation_options(const ScaleGroup& group, const ValueRange& range,
                                          bool has_zero_point, const QATConfig& config) {
  AffineQuantizerOptions options = common_options(config);
  const IntegerRange signed_codes(group.bits, Signedness::kSigned, width(config));
  const IntegerRange unsigned_codes(group.bits, Signedness::kUnsigned);
  const bool starts_at_zero = range.min.item<float>() >= 0.0F;
  switch (config.activation_range) {
    case ActivationRange::kSigned:
      options.range = signed_codes;
      options.symmetry = config.zero_point ? Symmetry::kAffineEvenZero : Symmetry::kSymmetric;
      break;
    case ActivationRange::kUnsigned:
      TORCH_CHECK_VALUE(starts_at_zero || config.zero_point, "QATScheduler: ", slot_path(group.owner()),
                        " recorded negative values, down to ", range.min.item<float>(),
                        ", which unsigned codes without zero point clip; set zero_point, or activation_range "
                        "to signed or auto");
      options.range = unsigned_codes;
      options.symmetry =
          config.zero_point && !starts_at_zero ? Symmetry::kAffineEvenZero : Symmetry::kSymmetric;
      break;
    case ActivationRange::kAuto:
      options.range = starts_at_zero || has_zero_point ? unsigned_codes : signed_codes;
      options.symmetry = starts_at_zero || !has_zero_point ? Symmetry::kSymmetric : Symmetry::kAffineEvenZero;
      break;
  }
  return options;
}

std::shared_ptr<Quantizer> activation_quantizer(const ScaleGroup& group, const Seen& seen,
                                                const QATConfig& config) {
  // Only affine and lsq_plus have a zero point; the others need signed codes for negative values.
  const bool has_zero_point = group.family == "affine" || group.family == "lsq_plus";
  const auto options = activation_options(group, seen.range, has_zero_point, config);
  if (group.family == "affine") return make_quantizer("affine", options, seen.range);
  return make_quantizer(group.family, options, start_range(seen.range, seen.mean_magnitude, options.range));
}

/// real = input_scale * code.
std::shared_ptr<Quantizer> given_input_quantizer(const ScaleGroup& group, const QATConfig& config) {
  AffineQuantizerOptions options = common_options(config);
  options.range = IntegerRange(group.bits, Signedness::kUnsigned);
  auto quantizer = std::make_shared<AffineQuantizer>(options);
  quantizer->set_params(torch::scalar_tensor(config.input_scale), torch::scalar_tensor(0, torch::kInt));
  return quantizer;
}

Seen joint(const std::optional<Seen>& a, const Seen& b) {
  if (!a) return b;
  return {{torch::minimum(a->range.min, b.range.min), torch::maximum(a->range.max, b.range.max)},
          torch::maximum(a->mean_magnitude, b.mean_magnitude)};
}

// What recorders saw; collects the slots that saw nothing.
class Recorded {
 public:
  explicit Recorded(const LayerMap& layers) : layers_(layers) {}

  // nullopt if the slot holds a quantizer, or nothing was recorded.
  std::optional<Seen> by(const PlacedSlot& slot) {
    const auto content = layers_.at(slot.layer)->slot(slot.id);
    if (std::dynamic_pointer_cast<Quantizer>(content)) return std::nullopt;
    const auto recorder = std::dynamic_pointer_cast<Recorder>(content);
    if (recorder && recorder->recorded() > 0) return Seen{recorder->range(), recorder->mean_magnitude()};
    missing_.push_back(slot_path(slot));
    return std::nullopt;
  }

  void check() const {
    TORCH_CHECK(missing_.empty(), "QATScheduler: nothing was recorded by ",
                fmt::format("{}", fmt::join(missing_, ", ")),
                "; run at least one forward pass in train mode during RECORDING");
  }

 private:
  const LayerMap& layers_;
  std::vector<std::string> missing_;
};

/// Fills a slot. Layers without parameters (ReLU, Add) do not know where the model is: contents go to the
/// device of its first parameter.
class SlotFiller {
 public:
  explicit SlotFiller(const LayerMap& layers) : layers_(layers) {
    for (const auto& [path, layer] : layers) {
      const auto parameters = layer->module().parameters(/*recurse=*/false);
      if (parameters.empty()) continue;
      device_ = parameters.front().device();
      return;
    }
  }
  void operator()(const PlacedSlot& slot, std::shared_ptr<TensorModule> content) const {
    content->to(device_);
    layers_.at(slot.layer)->set_slot(slot.id, std::move(content));
  }

 private:
  const LayerMap& layers_;
  torch::Device device_ = torch::kCPU;
};

}  // namespace

LayerMap layer_map(torch::nn::Module& model) {
  const auto layers = nn::quantizable_layers(model);
  return {layers.begin(), layers.end()};
}

bool has_given_scale(const ScaleGroup& group, const QATConfig& config) {
  return group.is_model_input && config.input_scale > 0.0;
}

std::string slot_path(const PlacedSlot& slot) {
  return slot.layer.empty() ? slot.id.name() : slot.layer + "." + slot.id.name();
}

void fill_with_recorders(const Placement& placement, const LayerMap& layers, const QATConfig& config) {
  const SlotFiller fill(layers);
  for (const ScaleGroup& group : placement.activations) {
    for (const PlacedSlot& slot : group.slots) {
      if (has_given_scale(group, config) && slot == group.owner()) {
        fill(slot, given_input_quantizer(group, config));
        continue;
      }
      const bool symmetric = config.activation_range == ActivationRange::kSigned && !config.zero_point;
      const RecorderOptions options{.kind = config.recorder_activation,
                                    .decay = config.recorder_decay,
                                    .percentile = config.recorder_percentile,
                                    .bits = group.bits,
                                    .symmetric = symmetric};
      fill(slot, std::make_shared<Recorder>(options));
    }
  }
  for (const PlacedSlot& slot : placement.weights) {
    const QuantizableLayer& layer = *layers.at(slot.layer);
    const RecorderOptions options{.kind = config.recorder_weight,
                                  .axis = weight_axis(layer, config),
                                  .decay = config.recorder_decay,
                                  .percentile = config.recorder_percentile,
                                  .bits = weight_bits(config, slot.layer),
                                  .symmetric = true};
    fill(slot, std::make_shared<Recorder>(options));
  }
}

void let_set_quantizers_own(Placement& placement, const LayerMap& layers) {
  const auto is_set = [&](const PlacedSlot& slot) {
    return std::dynamic_pointer_cast<Quantizer>(layers.at(slot.layer)->slot(slot.id)) != nullptr;
  };
  for (ScaleGroup& group : placement.activations) {
    const auto set = std::find_if(group.slots.begin(), group.slots.end(), is_set);
    if (set == group.slots.end()) continue;
    const auto second = std::find_if(set + 1, group.slots.end(), is_set);
    TORCH_CHECK_VALUE(second == group.slots.end(), "QATScheduler: ", slot_path(*set), " and ",
                      second == group.slots.end() ? "" : slot_path(*second),
                      " hold a quantizer each, but these tensors share one scale; set one of them");
    const PlacedSlot former = group.owner();
    std::rotate(group.slots.begin(), set, set + 1);
    for (PlacedLink& link : placement.links) {
      if (link.to == former) link.to = group.owner();
    }
  }
}

void fill_with_quantizers(const Placement& placement, const LayerMap& layers, const QATConfig& config) {
  Recorded recorded(layers);
  std::vector<std::optional<Seen>> activations;
  for (const ScaleGroup& group : placement.activations) {
    std::optional<Seen> all;
    for (const PlacedSlot& slot : group.slots) {
      if (const auto seen = recorded.by(slot)) all = joint(all, *seen);
    }
    activations.push_back(all);
  }
  std::vector<std::optional<Seen>> weights;
  for (const PlacedSlot& slot : placement.weights)
    weights.push_back(recorded.by(slot));
  recorded.check();

  std::vector<std::pair<PlacedSlot, std::shared_ptr<TensorModule>>> contents;
  for (std::size_t i = 0; i < activations.size(); ++i) {
    const PlacedSlot& owner = placement.activations[i].owner();
    const bool set_by_hand =
        std::dynamic_pointer_cast<Quantizer>(layers.at(owner.layer)->slot(owner.id)) != nullptr;
    if (!set_by_hand)
      contents.emplace_back(owner, activation_quantizer(placement.activations[i], *activations[i], config));
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!weights[i]) continue;
    const PlacedSlot& slot = placement.weights[i];
    contents.emplace_back(slot,
                          weight_quantizer(*layers.at(slot.layer), slot.layer, weights[i]->range, config));
  }
  for (const PlacedSlot& slot : placement.biases) {
    if (layers.at(slot.layer)->slot(slot.id)) continue;  // set by hand
    contents.emplace_back(slot, std::make_shared<BiasQuantizer>(config.round_mode));
  }

  // Nothing fails from here on.
  const SlotFiller fill(layers);
  for (const auto& [slot, content] : contents)
    fill(slot, content);
  const auto link = [&](const PlacedSlot& from, const PlacedSlot& to, bool applies) {
    layers.at(from.layer)->set_link(from.id, {slot_path(to), applies, layers.at(to.layer)->slot(to.id)});
  };
  for (const ScaleGroup& group : placement.activations) {
    for (std::size_t i = 1; i < group.slots.size(); ++i)
      link(group.slots[i], group.owner(), true);
  }
  for (const PlacedLink& each : placement.links)
    link(each.from, each.to, each.applies);
}

}  // namespace qat::detail
