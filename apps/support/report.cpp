#include "support/report.h"

#include <qat/version.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>

#include "support/quantization.h"

namespace qat::apps {
namespace {

constexpr const char* kHead = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>qat-train report</title><style>
body{font:15px/1.45 system-ui,sans-serif;color:#222;max-width:1080px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}
table{border-collapse:collapse}th,td{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:right}
th:first-child,td:first-child,td.text,th.text{text-align:left}
pre{background:#f5f5f5;padding:1em;overflow-x:auto;font-size:13px}
figure{display:inline-block;margin:0 1.5em 1em 0}figcaption{font-size:.9em;color:#555}
.train,.budget{stroke:#9aa0a6}.test,.size{stroke:#1a66c2}.loss,.bits{stroke:#c2501a}
polyline,circle{fill:none;stroke-width:2}.phase{fill:#eef4fb}.axis{stroke:#888}svg text{font-size:11px;fill:#555}.bar{fill:#1a66c2}
</style></head><body>
)";

std::string escaped(const std::string& text) {
  std::string result;
  for (const char character : text) {
    switch (character) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      default:
        result += character;
    }
  }
  return result;
}

struct Curve {
  std::string css_class;
  std::string label;
  std::function<double(const MetricsRow&)> value;
};

/// A chart over all epochs; the quantized ones on a shaded ground.
class Chart {
 public:
  Chart(const std::vector<MetricsRow>& rows, const std::vector<Curve>& curves)
      : rows_(rows), curves_(curves) {
    low_ = high_ = curves.front().value(rows.front());
    for (const auto& curve : curves) {
      for (const auto& row : rows) {
        low_ = std::min(low_, curve.value(row));
        high_ = std::max(high_, curve.value(row));
      }
    }
    const double margin = high_ > low_ ? 0.05 * (high_ - low_) : 0.5;
    low_ -= margin;
    high_ += margin;
  }

  std::string svg(const std::string& caption) const {
    auto text = fmt::format("<figure><svg width=\"{}\" height=\"{}\" role=\"img\">", kWidth, kHeight);
    const auto first_qat =
        std::find_if(rows_.begin(), rows_.end(), [](const MetricsRow& row) { return row.phase == "qat"; });
    if (first_qat != rows_.end()) {
      const double left = x(static_cast<double>(first_qat - rows_.begin()) - 0.5);
      text += fmt::format(
          "<rect class=\"phase\" x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\"/><text x=\"{:.1f}\" "
          "y=\"{}\">quantized</text>",
          left, kTop, kWidth - kRight - left, kHeight - kTop - kBottom, left + 4, kTop + 12);
    }
    for (int tick = 0; tick <= 4; ++tick) {
      const double value = low_ + (high_ - low_) * tick / 4;
      text += fmt::format(
          "<line class=\"axis\" stroke-opacity=\".25\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
          "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.3f}</text>",
          kLeft, kWidth - kRight, y(value), y(value), kLeft - 5, y(value) + 4, value);
    }
    for (std::size_t index = 0; index < rows_.size(); ++index) {
      text += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                          x(static_cast<double>(index)), kHeight - 8, rows_[index].epoch);
    }
    double label = kLeft + 4;
    for (const auto& curve : curves_) {
      std::string points;
      for (std::size_t index = 0; index < rows_.size(); ++index)
        points += fmt::format("{:.1f},{:.1f} ", x(static_cast<double>(index)), y(curve.value(rows_[index])));
      text += fmt::format(
          "<polyline class=\"{}\" points=\"{}\"/><line class=\"{}\" stroke-width=\"2\" x1=\"{}\" x2=\"{}\" "
          "y1=\"9\" y2=\"9\"/>"
          "<text x=\"{}\" y=\"13\">{}</text>",
          curve.css_class, points, curve.css_class, label, label + 16, label + 20, curve.label);
      const auto last = rows_.size() - 1;  // a single epoch has no line
      text += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2\"/>", curve.css_class,
                          x(static_cast<double>(last)), y(curve.value(rows_[last])));
      label += 90;
    }
    return text + fmt::format("</svg><figcaption>{}</figcaption></figure>\n", caption);
  }

 private:
  static constexpr double kWidth = 500, kHeight = 260, kLeft = 50, kRight = 10, kTop = 20, kBottom = 25;

  double x(double index) const {
    return kLeft + (index + 0.5) * (kWidth - kLeft - kRight) / static_cast<double>(rows_.size());
  }
  double y(double value) const {
    return kHeight - kBottom - (value - low_) / (high_ - low_) * (kHeight - kTop - kBottom);
  }

  const std::vector<MetricsRow>& rows_;
  const std::vector<Curve>& curves_;
  double low_ = 0;
  double high_ = 1;
};

std::string curves(const std::vector<MetricsRow>& rows) {
  if (rows.empty()) return "";
  const std::vector<Curve> accuracy = {
      {"train", "training", [](const MetricsRow& row) { return row.train_accuracy; }},
      {"test", "test", [](const MetricsRow& row) { return row.test_accuracy; }}};
  const std::vector<Curve> loss = {{"loss", "training", [](const MetricsRow& row) { return row.loss; }}};
  return "<h2>Training</h2>\n" + Chart(rows, accuracy).svg("Accuracy by epoch") +
         Chart(rows, loss).svg("Loss by epoch");
}

/// What one budget does, over the quantized epochs: the size beside it, and the mean width.
std::string budget_curves(const std::vector<MetricsRow>& rows, const std::string& what, double budget_kb,
                          std::int64_t MetricsRow::*bytes, const std::string& unit,
                          double MetricsRow::*bits) {
  if (budget_kb == 0) return "";
  const std::vector<Curve> size = {
      {"size", "size", [bytes](const MetricsRow& row) { return static_cast<double>(row.*bytes) / 1024; }},
      {"budget", "budget", [budget_kb](const MetricsRow&) { return budget_kb; }}};
  const std::vector<Curve> width = {{"bits", "bits", [bits](const MetricsRow& row) { return row.*bits; }}};
  return Chart(rows, size).svg(what + " by epoch, kB") +
         Chart(rows, width).svg("Mean bits of " + unit + " by epoch");
}

std::string budget_curves(const RunResult& result) {
  const RunConfig& config = result.config;
  std::vector<MetricsRow> rows;
  std::copy_if(result.rows.begin(), result.rows.end(), std::back_inserter(rows),
               [](const MetricsRow& row) { return row.phase == "qat"; });
  if (rows.empty() || (config.weight_budget_kb == 0 && config.activation_budget_kb == 0)) return "";
  return "<h2>Budget</h2>\n" +
         budget_curves(rows, "Packed weights", config.weight_budget_kb, &MetricsRow::packed_bytes, "a weight",
                       &MetricsRow::mean_bits) +
         budget_curves(rows,
                       config.activation_budget == "sum" ? "Activations of a sample" : "Largest activation",
                       config.activation_budget_kb, &MetricsRow::activation_bytes, "an activation",
                       &MetricsRow::mean_activation_bits);
}

std::string weights(const RunResult& result) {
  if (result.weights.empty()) return "";
  std::string text =
      "<h2>Packed weights</h2>\n<p>Codes at their width, scales and int32 biases.</p>\n<table><tr>"
      "<th>layer</th><th>bits</th><th>packed bytes</th><th>share</th></tr>\n";
  const auto row = [&](const std::string& layer, const std::string& bits, std::int64_t bytes) {
    text += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.1f} %</td></tr>\n", escaped(layer), bits,
                        bytes, 100 * static_cast<double>(bytes) / static_cast<double>(result.packed_bytes));
  };
  for (const auto& each : result.weights)
    row(each.path, fmt::format("{}", each.bits), each.packed_bytes);
  row("all", fmt::format("{:.2f}", mean_bits(result.weights)), result.packed_bytes);
  return text + "</table>\n";
}

std::string results(const RunResult& result) {
  std::string heads;
  std::string sizes;
  std::string none;
  for (const auto& [head, size] : size_columns(result)) {
    heads += "<th>" + head + "</th>";
    sizes += "<td>" + size + "</td>";
    none += "<td></td>";
  }
  auto text = "<h2>Results</h2>\n<table><tr><th></th><th>accuracy</th><th>size</th>" + heads + "</tr>\n";
  const auto row = [&](const std::string& what, double accuracy, std::int64_t bytes,
                       const std::string& more) {
    text += fmt::format("<tr><td>{}</td><td>{:.2f} %</td><td>{}</td>{}</tr>\n", what, 100 * accuracy,
                        size_text(bytes), more);
  };
  row("float", result.float_accuracy, result.float_size_bytes, none);
  row("quantized: " + widths_text(result.config), result.qat_accuracy, result.size_bytes, sizes);
  row("exported: model.torchscript.pt", result.deployed_accuracy, result.exported_file_bytes, none);
  text += fmt::format(
      "</table>\n<p>Predictions that differ between the exported file and the quantized model: {} of {}; "
      "largest "
      "difference of an output: {:g}.</p>\n<p>Seconds a step:",
      result.codes_different, result.codes_compared, result.largest_output_difference);
  for (const auto& [phase, seconds] : result.seconds_per_step)
    text += fmt::format(" {} {:.4f}", phase, seconds);
  return text + fmt::format("; the run took {:.0f} s.</p>\n<p>Digest of model.qat: <code>{}</code></p>\n",
                            result.seconds, result.digest);
}

std::string histogram_svg(const std::vector<std::int64_t>& counts) {
  if (counts.empty()) return "";
  constexpr double kBar = 5, kHeight = 28;
  const double most =
      static_cast<double>(std::max<std::int64_t>(1, *std::max_element(counts.begin(), counts.end())));
  auto text =
      fmt::format("<svg width=\"{}\" height=\"{}\">", kBar * static_cast<double>(counts.size()), kHeight);
  for (std::size_t bin = 0; bin < counts.size(); ++bin) {
    const double height = kHeight * static_cast<double>(counts[bin]) / most;
    text += fmt::format("<rect class=\"bar\" x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\"/>",
                        kBar * static_cast<double>(bin), kHeight - height, kBar - 1, height);
  }
  return text + "</svg>";
}

/// "38.2 dB", "0.1 %" and "255 of 256" of the quantizer after the last epoch; nothing for biases.
std::array<std::string, 3> quality_cells(const RunResult& result, const SlotRow& slot) {
  for (auto row = result.layers.rbegin(); row != result.layers.rend(); ++row) {
    const auto& quality = row->quality;
    if (quality.layer != slot.path || quality.slot != slot.slot + "_slot" || quality.levels == 0) continue;
    return {fmt::format("{:.1f} dB", quality.qsnr_db), fmt::format("{:.2g} %", 100 * quality.clipped),
            fmt::format("{} of {}", quality.used_levels, quality.levels)};
  }
  return {};
}

std::string slots(const RunResult& result) {
  std::string text =
      "<h2>Quantizers</h2>\n<p>real = scale * (code - zero_point). Range: the real values of the lowest and "
      "the highest code. QSNR: the power of what is quantized over that of its error, on images of the test "
      "set; clipped: elements outside the range; levels: codes that occur. "
      "Codes: how the weights fall on their grid, from the lowest code to the highest.</p>\n"
      "<table><tr><th>layer</th><th class=\"text\">type</th><th class=\"text\">slot</th><th "
      "class=\"text\">quantizer</th>"
      "<th>scale</th><th>range</th><th>QSNR</th><th>clipped</th><th>levels</th>"
      "<th class=\"text\">codes</th></tr>\n";
  for (const auto& row : result.slots) {
    std::string scale;
    std::string range;
    if (row.largest_scale > 0) {
      scale = row.smallest_scale == row.largest_scale
                  ? fmt::format("{:.4g}", row.largest_scale)
                  : fmt::format("{:.3g} to {:.3g}", row.smallest_scale, row.largest_scale);
      range = fmt::format("{:.4g} to {:.4g}", row.low, row.high);
    }
    const auto [qsnr, clipped, levels] = quality_cells(result, row);
    text += fmt::format(
        "<tr><td>{}</td><td class=\"text\">{}</td><td class=\"text\">{}</td><td "
        "class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
        "<td class=\"text\">{}</td></tr>\n",
        escaped(row.path), escaped(row.type), row.slot, escaped(row.quantizer), scale, range, qsnr, clipped,
        levels, histogram_svg(row.histogram));
  }
  return text + "</table>\n";
}

}  // namespace

std::string report_html(const RunResult& result) {
  return kHead +
         fmt::format("<h1>{} on {}</h1>\n", escaped(result.config.model), escaped(result.config.data)) +
         results(result) + curves(result.rows) + budget_curves(result) + weights(result) + slots(result) +
         "<h2>Scheduler</h2>\n<pre>" + escaped(result.notes) + "</pre>\n<h2>Configuration</h2>\n<pre>" +
         escaped(result.config.to_toml()) +
         fmt::format("</pre>\n<p>qat-train {}</p>\n</body></html>\n", version());
}

}  // namespace qat::apps
