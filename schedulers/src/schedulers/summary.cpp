#include "schedulers/slot_contents.h"
#include <qat/schedulers/qat_scheduler.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>

namespace qat {
namespace {

using Row = std::array<std::string, 5>;

std::string extent(const torch::Tensor& low, const torch::Tensor& high) {
  return fmt::format("[{:.6g}, {:.6g}]", low.min().item<double>(), high.max().item<double>());
}

// The range that a recorder saw, or the scale that a quantizer uses.
std::string range_text(TensorModule& content) {
  if (const auto* recorder = dynamic_cast<const Recorder*>(&content)) {
    if (recorder->recorded() == 0) return "nothing recorded";
    const ValueRange range = recorder->range();
    return extent(range.min, range.max);
  }
  auto* affine = dynamic_cast<AffineQuantizer*>(&content);
  if (!affine) return "";
  if (affine->options().scale_source == ScaleSource::kCurrent) return "current extremes";
  if (!affine->has_range()) return "no range";
  const AffineParams params = affine->affine_params({});
  if (params.scale.dim() == 0) {
    return fmt::format("scale {:.6g}, zero point {}", params.scale.item<float>(),
                       params.zero_point.item<int>());
  }
  return fmt::format("{} scales in {}", params.scale.numel(), extent(params.scale, params.scale));
}

std::string printed(const TensorModule& content) {
  std::ostringstream text;
  content.pretty_print(text);
  return text.str();
}

std::string table(const std::vector<Row>& rows) {
  std::array<std::size_t, 5> width{};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i)
      width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += fmt::format("{:<{}}  ", row[i], width[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace

std::string QATScheduler::summary() const {
  std::vector<Row> rows = {{"layer", "class", "slot", "content", "range"}};
  for (const auto& [path, layer] : nn::quantizable_layers(*model_)) {
    const std::string type = detail::class_name(layer->module().name());
    for (const nn::SlotId id : layer->occupied_slots()) {
      TensorModule& content = *layer->slot(id);
      rows.push_back({path, type, id.name(), printed(content), range_text(content)});
    }
    for (const nn::SlotId id : layer->linked_slots()) {
      const nn::SlotLink& link = *layer->link(id);
      rows.push_back({path, type, id.name(), (link.applies ? "by " : "arrives by ") + link.path, ""});
    }
  }
  std::string text = fmt::format("phase {}, iteration {}\n", to_string(phase_), iteration_);
  if (rows.size() > 1) text += table(rows);
  for (const nn::FoldReport& fold : folds_) {
    if (!fold.into.empty()) {
      text += fmt::format("{} folded into {}{}\n", fold.batch_norm, fold.into,
                          fold.into_next ? ", which reads it" : "");
    } else {
      text += fmt::format("{} {}: {}\n", fold.batch_norm,
                          fold.into_itself ? "folded into a scale and shift" : "not folded", fold.why_not);
    }
  }
  return text + functional_report(graph_);
}

}  // namespace qat
