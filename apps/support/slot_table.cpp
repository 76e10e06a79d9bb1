#include "support/slot_table.h"

#include <qat/nn/packed_weights.h>
#include <qat/nn/quantizable_layer.h>
#include <qat/numerics/affine.h>
#include <qat/quantizers/quantizer.h>

#include <c10/util/accumulate.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <sstream>

namespace qat::apps {
namespace {

constexpr std::int64_t kHistogramBins = 32;

std::string class_name(const std::string& qualified) {
  auto name = qualified.substr(qualified.rfind(':') + 1);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

void describe_scale(SlotRow& row, Quantizer& quantizer, const torch::Tensor& x) {
  const auto params = quantizer.affine_params(x);
  const auto scale = params.scale.to(torch::kCPU, torch::kFloat64).contiguous();
  const auto zero_point = params.zero_point.to(torch::kCPU, torch::kFloat64).contiguous();
  row.smallest_scale = scale.min().item<double>();
  row.largest_scale = scale.max().item<double>();
  row.low = std::numeric_limits<double>::infinity();
  row.high = -row.low;
  for (std::int64_t c = 0; c < scale.numel(); ++c) {
    const auto real = [&](std::int64_t code) {
      return affine_real(static_cast<double>(code), scale.const_data_ptr<double>()[c],
                         zero_point.const_data_ptr<double>()[c]);
    };
    row.low = std::min(row.low, real(params.range.qmin()));
    row.high = std::max(row.high, real(params.range.qmax()));
  }
}

std::vector<std::int64_t> code_histogram(Quantizer& quantizer, const torch::Tensor& weight) {
  const auto range = quantizer.affine_params(weight).range;
  const auto codes = quantizer.codes(weight).to(torch::kCPU, torch::kFloat64);
  const auto counts = torch::histc(codes, kHistogramBins, static_cast<double>(range.qmin()),
                                   static_cast<double>(range.qmax()));
  std::vector<std::int64_t> result;
  for (std::int64_t bin = 0; bin < kHistogramBins; ++bin)
    result.push_back(counts[bin].item<std::int64_t>());
  return result;
}

}  // namespace

std::vector<SlotRow> slot_table(torch::nn::Module& model) {
  torch::NoGradGuard no_grad;
  std::vector<SlotRow> rows;
  for (const auto& [path, layer] : nn::quantizable_layers(model)) {
    for (const auto& id : layer->occupied_slots()) {
      const auto content = layer->slot(id);
      std::ostringstream text;
      content->pretty_print(text);
      SlotRow row;
      row.path = path;
      row.type = class_name(layer->module().name());
      row.slot = id.name();
      row.quantizer = text.str();
      if (const auto end = row.slot.find("_slot"); end != std::string::npos) row.slot.erase(end, 5);
      if (auto* quantizer = dynamic_cast<Quantizer*>(content.get())) {
        const bool is_weight = id.kind == nn::SlotId::Kind::kWeight;
        const auto x = is_weight ? *layer->weight_parameter() : torch::zeros({1});
        describe_scale(row, *quantizer, x);
        if (is_weight) row.histogram = code_histogram(*quantizer, x);
      }
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

nn::SlotQuality quality_of(torch::nn::Module& model, const QuantizedTensor& tensor,
                           const std::vector<nn::SlotQuality>& all) {
  auto wanted = tensor.layer.empty() ? tensor.slot : tensor.layer + "." + tensor.slot;
  for (const auto& [path, layer] : nn::quantizable_layers(model)) {
    if (path != tensor.layer) continue;
    for (const auto& id : layer->linked_slots()) {
      if (id.name() == tensor.slot) wanted = layer->link(id)->path;
    }
  }
  for (const auto& quality : all) {
    if ((quality.layer.empty() ? quality.slot : quality.layer + "." + quality.slot) == wanted) return quality;
  }
  return {"", "", 0, std::numeric_limits<double>::quiet_NaN()};
}

std::vector<WeightRow> weight_table(torch::nn::Module& model) {
  std::vector<WeightRow> rows;
  for (const auto& [path, layer] : nn::pack_weights(model))
    rows.push_back({path, layer.bits, c10::multiply_integers(layer.shape), layer.payload_bytes()});
  return rows;
}

std::int64_t packed_bytes(const std::vector<WeightRow>& rows) {
  std::int64_t bytes = 0;
  for (const auto& row : rows)
    bytes += row.packed_bytes;
  return bytes;
}

double mean_bits(const std::vector<WeightRow>& rows) {
  std::int64_t bits = 0;
  std::int64_t count = 0;
  for (const auto& row : rows) {
    bits += row.bits * row.count;
    count += row.count;
  }
  return count == 0 ? 0 : static_cast<double>(bits) / static_cast<double>(count);
}

std::string layer_bits(const std::vector<WeightRow>& rows) {
  std::string text;
  for (const auto& row : rows)
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", row.path, row.bits);
  return text;
}

std::int64_t parameter_bytes(torch::nn::Module& model) {
  std::int64_t bytes = 0;
  for (const auto& parameter : model.parameters())
    bytes += 4 * parameter.numel();
  for (const auto& [path, layer] : nn::quantizable_layers(model)) {
    const auto content = layer->slot({nn::SlotId::Kind::kWeight});
    const auto* quantizer = dynamic_cast<Quantizer*>(content.get());
    if (!quantizer) continue;
    const auto count = layer->weight_parameter()->numel();
    bytes += (count * quantizer->bits() + 7) / 8 - 4 * count;
  }
  return bytes;
}

}  // namespace qat::apps
