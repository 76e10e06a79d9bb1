#include <qat/nn/packed_weights.h>
#include <qat/nn/quantizable_layer.h>
#include <qat/quantizers/low_bit_weight_quantizer.h>
#include <qat/quantizers/parametric_quantizer.h>

#include <algorithm>
#include <cmath>

namespace qat::nn {
namespace {

/// Codes as they are stored.
struct StoredCodes {
  torch::Tensor codes;
  std::int64_t bits;
  Signedness signedness;
};

StoredCodes power_of_two_indices(const torch::Tensor& codes, const ParametricQuantizer& quantizer) {
  const auto grid = quantizer.power_of_two_grid();
  const auto magnitudes =
      static_cast<std::int64_t>(std::log2((grid.xmax / grid.xmin).max().item<double>())) + 1;
  const std::int64_t first = grid.with_zero ? 1 : 0;
  const auto index = torch::log2(codes.abs().clamp_min(1).to(torch::kDouble)).round().to(torch::kInt) + first;
  const auto stored = torch::where(codes < 0, index + magnitudes, index);
  std::int64_t bits = 1;
  while ((std::int64_t{1} << bits) < first + magnitudes * (grid.is_signed ? 2 : 1))
    ++bits;
  return {torch::where(codes == 0, torch::zeros_like(stored), stored), bits, Signedness::kUnsigned};
}

StoredCodes stored_codes(const torch::Tensor& weight, Quantizer& quantizer) {
  const auto codes = quantizer.codes(weight);
  const auto bits = quantizer.bits();
  if (const auto* parametric = dynamic_cast<const ParametricQuantizer*>(&quantizer)) {
    if (is_power_of_two(parametric->options().kind)) return power_of_two_indices(codes, *parametric);
    return {codes, std::max<std::int64_t>(bits, 2), Signedness::kSigned};
  }
  const auto* low_bit = dynamic_cast<const LowBitWeightQuantizer*>(&quantizer);
  if (low_bit && low_bit->options().kind != LowBitWeightKind::kTernary) {
    const std::int64_t levels = (std::int64_t{1} << bits) - 1;
    return {(codes + levels).floor_divide(2).to(torch::kInt), bits, Signedness::kUnsigned};
  }
  return {codes, bits, Signedness::kSigned};
}

}  // namespace

std::vector<std::pair<std::string, PackedLayer>> pack_weights(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  std::vector<std::pair<std::string, PackedLayer>> result;
  for (const auto& [path, layer] : quantizable_layers(model)) {
    const auto content = layer->slot({SlotId::Kind::kWeight});
    auto* quantizer = dynamic_cast<Quantizer*>(content.get());
    if (!quantizer) continue;
    const auto weight = layer->weight_parameter()->detach();
    try {
      const auto stored = stored_codes(weight, *quantizer);
      result.emplace_back(path, pack_layer(stored.codes, stored.bits, stored.signedness,
                                           quantizer->scale(weight), layer->bias_codes()));
    } catch (const c10::Error& error) {
      TORCH_CHECK_VALUE(false, layer->describe(), ": ", error.what_without_backtrace());
    }
  }
  return result;
}

}  // namespace qat::nn
