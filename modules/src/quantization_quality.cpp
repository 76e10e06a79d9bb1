#include <qat/nn/quantizable_layer.h>
#include <qat/nn/quantization_quality.h>
#include <qat/quantizers/quantizer.h>

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

namespace qat::nn {
namespace {

using torch::Tensor;

Tensor after_activation(const Tensor& x, const Activation& activation) {
  const auto bent = torch::where(x < 0, x * activation.negative_slope, x);
  return std::isinf(activation.upper) ? bent : bent.clamp_max(activation.upper);
}

/// The sums that a SlotQuality is made of.
struct Tally {
  SlotQuality quality;
  double signal = 0;
  double noise = 0;
  std::int64_t elements = 0;
  std::int64_t clipped = 0;
  Tensor used;  ///< bool, one for each code

  void add(const Tensor& x, const Tensor& y, const AffineParams& params) {
    if (!x.is_floating_point()) return;
    const auto wide = x.to(torch::kDouble);
    const auto finite = torch::isfinite(wide);
    const auto value = wide.masked_fill(~finite, 0.0);
    const auto error = (y.to(torch::kDouble) - value).masked_fill(~finite, 0.0);
    signal += value.square().sum().item<double>();
    noise += error.square().sum().item<double>();
    elements += finite.sum().item<std::int64_t>();

    std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
    if (params.axis)
      shape[static_cast<std::size_t>((*params.axis + x.dim()) % x.dim())] = params.scale.numel();
    const auto low = params.range.qmin();
    const auto high = params.range.qmax();
    const auto code = torch::round(value / params.scale.to(torch::kDouble).reshape(shape)) +
                      params.zero_point.to(torch::kDouble).reshape(shape);
    const auto outside = (code < low).logical_or(code > high);
    clipped += outside.logical_and(finite).sum().item<std::int64_t>();
    const auto index =
        (code.clamp(low, high) - static_cast<double>(low)).to(torch::kLong).masked_select(finite);
    if (!used.defined()) used = torch::zeros({high - low + 1}, torch::kBool);
    used.index_fill_(0, index.cpu(), true);
  }

  SlotQuality result() const {
    SlotQuality result = quality;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    result.qsnr_db = signal > 0 ? 10 * std::log10(signal / noise) : nan;
    result.clipped = elements > 0 ? static_cast<double>(clipped) / static_cast<double>(elements) : 0.0;
    if (used.defined()) result.used_levels = used.sum().item<std::int64_t>();
    return result;
  }
};

/// Stands in a slot in place of its quantizer.
class Probe : public Quantizer {
 public:
  Probe(std::shared_ptr<Quantizer> quantizer, std::shared_ptr<Tally> tally)
      : Quantizer("Probe"), quantizer_(std::move(quantizer)), tally_(std::move(tally)) {}

  using Quantizer::forward;
  Tensor forward(const Tensor& x, const Activation& activation) override {
    auto y = quantizer_->forward(x, activation);
    tally_->add(activation.is_identity() ? x : after_activation(x, activation), y, affine_params(x));
    return y;
  }
  Scaled forward_with_scale(const Tensor& x) override {
    auto result = quantizer_->forward_with_scale(x);
    tally_->add(x, result.values, affine_params(x));
    return result;
  }
  Tensor codes(const Tensor& x) override { return quantizer_->codes(x); }
  AffineParams affine_params(const Tensor& x) override { return quantizer_->affine_params(x); }
  Tensor scale(const Tensor& x) override { return quantizer_->scale(x); }
  std::int64_t bits() const override { return quantizer_->bits(); }
  Rounding rounding() const override { return quantizer_->rounding(); }
  std::string config() const override { return quantizer_->config(); }

 private:
  std::shared_ptr<Quantizer> quantizer_;
  std::shared_ptr<Tally> tally_;
};

/// Probes in all slots that hold quantizers, and eval mode, until it goes out of scope.
class Probing {
 public:
  explicit Probing(torch::nn::Module& model) {
    relink(model);  // throws now rather than half-way
    for (const auto& module : model.modules())
      modes_.emplace_back(module.get(), module->is_training());
    for (const auto& [path, layer] : quantizable_layers(model)) {
      layers_.emplace_back(layer, layer->structure());
      for (const SlotId id : layer->occupied_slots()) {
        const auto quantizer = std::dynamic_pointer_cast<Quantizer>(layer->slot(id));
        if (!quantizer) continue;
        const auto tally = std::make_shared<Tally>();
        tally->quality = {path, id.name(), quantizer->bits()};
        const auto& range =
            quantizer->affine_params(id.kind == SlotId::Kind::kWeight ? *layer->weight_parameter() : Tensor())
                .range;
        // Power-of-two codes leave most integers of their range out.
        tally->quality.levels =
            std::min(range.qmax() - range.qmin() + 1, std::int64_t{1} << quantizer->bits());
        tallies_.push_back(tally);
        probes_.push_back({layer, id, std::make_shared<Probe>(quantizer, tally)});
      }
    }
    for (auto& [layer, id, probe] : probes_)
      layer->set_slot(id, probe);
    relink(model);
    model.eval();
  }
  Probing(const Probing&) = delete;
  Probing& operator=(const Probing&) = delete;
  ~Probing() {
    for (auto& [layer, structure] : layers_)
      layer->set_structure(structure);
    for (auto& [module, is_training] : modes_)
      module->train(is_training);
  }

  std::vector<SlotQuality> results() const {
    std::vector<SlotQuality> results;
    for (const auto& tally : tallies_)
      results.push_back(tally->result());
    return results;
  }

 private:
  struct Place {
    QuantizableLayer* layer;
    SlotId id;
    std::shared_ptr<Probe> probe;
  };
  std::vector<std::pair<torch::nn::Module*, bool>> modes_;
  std::vector<std::pair<QuantizableLayer*, QuantizableLayer::Structure>> layers_;
  std::vector<Place> probes_;
  std::vector<std::shared_ptr<Tally>> tallies_;
};

bool has_quantizers(torch::nn::Module& model) {
  for (const auto& [path, layer] : quantizable_layers(model)) {
    for (const SlotId id : layer->occupied_slots()) {
      if (std::dynamic_pointer_cast<Quantizer>(layer->slot(id))) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<SlotQuality> measure_quantization(torch::nn::Module& model,
                                              const std::function<void()>& forward) {
  if (!has_quantizers(model)) return {};
  const torch::NoGradGuard no_grad;
  const Probing probing(model);
  forward();
  return probing.results();
}

}  // namespace qat::nn
