#include <qat/nn/packed_weights.h>
#include <qat/nn/quantizable_layer.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/quantizers/learned_step_quantizer.h>
#include <qat/quantizers/low_bit_weight_quantizer.h>
#include <qat/quantizers/parametric_quantizer.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace qat::nn {
namespace {

/// The numbers that are stored for a weight, and how they are read.
struct StoredWeight {
  torch::Tensor numbers;
  PackedFormat format;
  torch::Tensor scales;
  torch::Tensor zero_points;  ///< undefined where all are 0
};

std::int64_t counted_from_front(std::optional<std::int64_t> axis, const torch::Tensor& weight) {
  return !axis ? 0 : (*axis < 0 ? *axis + weight.dim() : *axis);
}

/// [C] as a tensor that broadcasts against the weight.
torch::Tensor along_axis(const torch::Tensor& channels, const torch::Tensor& weight, std::int64_t axis) {
  if (channels.dim() == 0) return channels;
  std::vector<std::int64_t> shape(static_cast<std::size_t>(weight.dim()), 1);
  shape[static_cast<std::size_t>(axis)] = -1;
  return channels.view(shape);
}

StoredWeight power_of_two_weight(const torch::Tensor& weight, ParametricQuantizer& quantizer) {
  const auto grid = quantizer.power_of_two_grid();
  const auto scales = grid.xmin.contiguous();
  PackedFormat format;
  format.signedness = Signedness::kUnsigned;
  format.coding = PackedCoding::kPowerOfTwo;
  format.axis = counted_from_front(grid.axis, weight);
  format.with_zero = grid.with_zero;
  format.magnitudes = std::lround(std::log2((grid.xmax / grid.xmin).max().item<double>())) + 1;
  const std::int64_t first = grid.with_zero ? 1 : 0;
  format.bits = 1;
  while ((std::int64_t{1} << format.bits) < first + format.magnitudes * (grid.is_signed ? 2 : 1))
    ++format.bits;

  const auto values = quantizer.forward(weight).to(torch::kDouble);
  TORCH_CHECK_VALUE(!torch::isnan(values).any().item<bool>(), "the weight holds a NaN, which has no code");
  const auto ratio = values.abs() / along_axis(scales, weight, format.axis);
  const auto is_zero = values == 0;
  const auto index = torch::log2(torch::where(is_zero, torch::ones_like(ratio), ratio)).round() +
                     torch::where(values < 0, format.magnitudes + first, first);
  return {torch::where(is_zero, torch::zeros_like(index), index).to(torch::kInt), format, scales, {}};
}

/// Binary and DoReFa weights.
StoredWeight odd_weight(const torch::Tensor& weight, LowBitWeightQuantizer& quantizer) {
  PackedFormat format;
  format.bits = quantizer.bits();
  format.signedness = Signedness::kUnsigned;
  format.coding = PackedCoding::kOdd;
  const auto params = quantizer.affine_params(weight);
  format.axis = counted_from_front(params.axis, weight);
  const std::int64_t levels = (std::int64_t{1} << format.bits) - 1;
  const auto numbers = (quantizer.codes(weight) + levels).floor_divide(2).to(torch::kInt);
  // A channel of zeros has zeros as values: the scale is the floor, what is stored is 0.
  const auto values = finite_range(quantizer.forward(weight), params.axis);
  const auto is_zero = (values.min == 0).logical_and(values.max == 0);
  return {numbers, format, torch::where(is_zero, torch::zeros_like(params.scale), params.scale), {}};
}

/// Whether zero points are stored: a property of the quantizer, not of the numbers of the moment, so that
/// sizes do not change while it trains.
bool stores_zero_points(const Quantizer& quantizer, const AffineParams& params) {
  if (const auto* learned = dynamic_cast<const LearnedStepQuantizer*>(&quantizer))
    return learned->options().kind == LearnedStepKind::kLsqPlus;
  const auto* affine = dynamic_cast<const AffineQuantizer*>(&quantizer);
  return (affine && affine->options().symmetry != Symmetry::kSymmetric) ||
         params.zero_point.any().item<bool>();
}

StoredWeight uniform_weight(const torch::Tensor& weight, Quantizer& quantizer) {
  const auto params = quantizer.affine_params(weight);
  PackedFormat format;
  format.bits = params.range.bits();
  format.signedness = params.range.is_signed() ? Signedness::kSigned : Signedness::kUnsigned;
  format.axis = counted_from_front(params.axis, weight);
  const bool shifted = stores_zero_points(quantizer, params);
  return {quantizer.codes(weight), format, params.scale, shifted ? params.zero_point : torch::Tensor()};
}

StoredWeight stored_weight(const torch::Tensor& weight, Quantizer& quantizer) {
  auto* parametric = dynamic_cast<ParametricQuantizer*>(&quantizer);
  if (parametric && is_power_of_two(parametric->options().kind))
    return power_of_two_weight(weight, *parametric);
  auto* low_bit = dynamic_cast<LowBitWeightQuantizer*>(&quantizer);
  if (low_bit && low_bit->options().kind != LowBitWeightKind::kTernary) return odd_weight(weight, *low_bit);
  return uniform_weight(weight, quantizer);
}

PackedLayer pack(const torch::Tensor& weight, Quantizer& quantizer, const torch::Tensor& biases) {
  const auto stored = stored_weight(weight, quantizer);
  auto packed = pack_layer(stored.numbers, stored.format, stored.scales, stored.zero_points, biases);
  if (weight.scalar_type() != torch::kFloat) return packed;
  const auto values = quantizer.forward(weight).to(torch::kCPU);
  TORCH_CHECK_VALUE(torch::equal(unpack_weight(packed), values),
                    "the packed form does not give back the values of the quantizer; expected one whose "
                    "values are scale * (code - zero_point) or powers of two");
  return packed;
}

}  // namespace

std::vector<std::pair<std::string, PackedLayer>> pack_weights(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  std::vector<std::pair<std::string, PackedLayer>> result;
  for (const auto& [path, layer] : quantizable_layers(model)) {
    const auto content = layer->slot({SlotId::Kind::kWeight});
    auto* quantizer = dynamic_cast<Quantizer*>(content.get());
    if (!quantizer) continue;
    const auto biases = layer->bias_codes();
    try {
      result.emplace_back(path, pack(layer->weight_parameter()->detach(), *quantizer, biases));
    } catch (const c10::Error& error) {
      TORCH_CHECK_VALUE(false, layer->describe(), ": ", error.what_without_backtrace());
    }
  }
  return result;
}

std::int64_t packed_constant_bytes(Quantizer& quantizer, const torch::Tensor& weight) {
  const torch::NoGradGuard no_grad;
  const auto scale = quantizer.scale(weight.detach());
  const auto* parametric = dynamic_cast<const ParametricQuantizer*>(&quantizer);
  const bool shifted = !parametric && stores_zero_points(quantizer, quantizer.affine_params(weight.detach()));
  return 4 * scale.numel() * (shifted ? 2 : 1);
}

}  // namespace qat::nn
