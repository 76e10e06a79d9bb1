#include "support/run_config.h"

#include <qat/quantizers/make_quantizer.h>
#include <qat/suggestion.h>
#include <qat/version.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include "support/quantization.h"

namespace qat::apps {
namespace {

constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

struct About {
  std::string key;
  std::string group;
  std::string description;
};

template <class Number>
bool parse_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

Setting whole(About about, std::int64_t RunConfig::*member, std::int64_t low,
              std::int64_t high = kUnbounded) {
  auto expected = high == kUnbounded ? fmt::format("a whole number from {} up", low)
                                     : fmt::format("a whole number from {} to {}", low, high);
  return {about.key,
          about.group,
          about.description,
          std::move(expected),
          "",
          Setting::Kind::kNumber,
          [=](RunConfig& config, std::string_view text) {
            std::int64_t value = 0;
            if (!parse_number(text, value) || value < low || value > high) return false;
            config.*member = value;
            return true;
          },
          [=](const RunConfig& config) { return fmt::format("{}", config.*member); }};
}

/// `below`: values must be smaller than this.
Setting real(About about, double RunConfig::*member, double below = std::numeric_limits<double>::infinity()) {
  auto expected = std::isinf(below) ? std::string("a number from 0 up")
                                    : fmt::format("a number from 0 to below {}", below);
  return {about.key,
          about.group,
          about.description,
          std::move(expected),
          "",
          Setting::Kind::kNumber,
          [=](RunConfig& config, std::string_view text) {
            double value = 0;
            if (!parse_number(text, value) || !(value >= 0) || !(value < below)) return false;
            config.*member = value;
            return true;
          },
          [=](const RunConfig& config) { return fmt::format("{}", config.*member); }};
}

Setting choice(About about, std::string RunConfig::*member, std::vector<std::string> names) {
  return {about.key,
          about.group,
          about.description,
          fmt::format("one of {}", fmt::join(names, ", ")),
          "",
          Setting::Kind::kText,
          [=](RunConfig& config, std::string_view text) {
            if (std::find(names.begin(), names.end(), text) == names.end()) return false;
            config.*member = text;
            return true;
          },
          [=](const RunConfig& config) { return config.*member; }};
}

/// Any text; none stands for `empty`.
Setting any_text(About about, std::string RunConfig::*member, std::string expected, std::string empty) {
  return {about.key,
          about.group,
          about.description,
          std::move(expected),
          std::move(empty),
          Setting::Kind::kText,
          [=](RunConfig& config, std::string_view text) {
            config.*member = text;
            return true;
          },
          [=](const RunConfig& config) { return config.*member; }};
}

Setting flag(About about, bool RunConfig::*member) {
  return {about.key,
          about.group,
          about.description,
          "true or false",
          "",
          Setting::Kind::kFlag,
          [=](RunConfig& config, std::string_view text) {
            if (text != "true" && text != "false") return false;
            config.*member = text == "true";
            return true;
          },
          [=](const RunConfig& config) { return std::string(config.*member ? "true" : "false"); }};
}

/// A choice that may be left empty, which stands for `empty`.
Setting optional_choice(About about, std::string RunConfig::*member, const std::vector<std::string>& names,
                        std::string empty) {
  auto setting = choice(std::move(about), member, names);
  setting.empty = std::move(empty);
  setting.assign = [member, assign = setting.assign](RunConfig& config, std::string_view text) {
    if (!text.empty()) return assign(config, text);
    (config.*member).clear();
    return true;
  };
  return setting;
}

std::string table_text(const toml::table& table) {
  std::ostringstream text;
  text << table;
  return text.str();
}

/// A table of further keys, kept as text in one form.
Setting table(About about, std::string RunConfig::*member, std::string expected, std::string empty) {
  auto setting = any_text(std::move(about), member, std::move(expected), std::move(empty));
  setting.kind = Setting::Kind::kTable;
  setting.assign = [member](RunConfig& config, std::string_view text) {
    try {
      const toml::table parsed = toml::parse(text);
      config.*member = parsed.empty() ? "" : table_text(parsed);
    } catch (const toml::parse_error&) {
      return false;  // the message says what is expected
    }
    return true;
  };
  return setting;
}

std::vector<std::string> setting_keys() {
  std::vector<std::string> keys;
  for (const auto& setting : settings())
    keys.push_back(setting.key);
  return keys;
}

/// A scalar as the text that a command line would hold; nothing for tables, arrays and dates.
std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* value = node.as_string()) return value->get();
  if (const auto* value = node.as_integer()) return fmt::format("{}", value->get());
  if (const auto* value = node.as_floating_point()) return fmt::format("{}", value->get());
  if (const auto* value = node.as_boolean()) return value->get() ? "true" : "false";
  return std::nullopt;
}

}  // namespace

const std::vector<Setting>& settings() {
  using C = RunConfig;
  static const std::vector<Setting> all = {
      choice({"data", "Data", "data set"}, &C::data, {"fashion-mnist", "cifar10", "synthetic"}),
      any_text({"data_path", "Data", "where the data files are"}, &C::data_path, "a folder",
               "the usual place"),
      whole({"limit", "Data", "train with the first N samples, 0 for all"}, &C::limit, 0),
      whole({"batch_size", "Data", "samples in a step"}, &C::batch_size, 2, 1 << 20),
      flag({"augment", "Data", "shift and mirror images"}, &C::augment),
      choice({"model", "Model", "network"}, &C::model,
             {"mlp", "lenet", "cnn", "resnet8", "resnet20", "mobilenet"}),
      choice({"preset", "Quantization", "how layers are quantized"}, &C::preset,
             {"integer_only", "onnxruntime", "tensorrt", "default"}),
      optional_choice({"bn_folding", "Quantization", "when BatchNorm layers are folded"}, &C::bn_folding,
                      {"off", "once"}, "as the preset says"),
      choice({"quantizer", "Quantization", "family of quantizers"}, &C::quantizer, families_of_both()),
      optional_choice({"weight_quantizer", "Quantization", "family of weight quantizers"},
                      &C::weight_quantizer, weight_quantizer_names(), "that of --quantizer"),
      optional_choice({"activation_quantizer", "Quantization", "family of activation quantizers"},
                      &C::activation_quantizer, activation_quantizer_names(), "that of --quantizer"),
      whole({"weight_bits", "Quantization", "bits of a weight (the most, where the width learns)"},
            &C::weight_bits, 1, 16),
      whole({"activation_bits", "Quantization", "bits of an activation (likewise)"}, &C::activation_bits, 2,
            16),
      whole({"input_bits", "Quantization", "bits of the network's input"}, &C::input_bits, 2, 16),
      whole({"residual_bits", "Quantization",
             "the fewest bits of what residual connections add; layers with weights read activation_bits of "
             "it"},
            &C::residual_bits, 2, 16),
      choice({"weight_start", "Quantization",
              "start of the weights' scales: by statistics, or searched for the least squared error"},
             &C::weight_start, {"statistics", "mse"}),
      any_text({"layer_weight_bits", "Quantization", "layers whose weights have another width"},
               &C::layer_weight_bits, "a list like conv=8,fc=8", "none"),
      table({"scheduler", "Quantization", "further fields of QATConfig"}, &C::scheduler,
            "a TOML table such as skip_layers = ['head.*']", "none"),
      real({"weight_budget_kb", "Quantization",
            "the packed weights never take more kB of 1024 bytes, 0 for no limit"},
           &C::weight_budget_kb),
      real({"activation_budget_kb", "Quantization",
            "a sample's activations never take more kB, 0 for no limit"},
           &C::activation_budget_kb),
      choice({"activation_budget", "Quantization", "which activations the budget limits"},
             &C::activation_budget, {"sum", "largest"}),
      real({"budget_penalty", "Quantization", "weight of the squared excess, in kB, in the loss"},
           &C::budget_penalty),
      any_text({"init", "Training", "checkpoint whose weights are the start"}, &C::init, "a .qat file",
               "random weights"),
      whole({"float_epochs", "Training", "epochs in float"}, &C::float_epochs, 0, 1000000),
      whole({"record_batches", "Training", "batches whose ranges are recorded"}, &C::record_batches, 1,
            1000000),
      whole({"qat_epochs", "Training", "epochs with quantizers"}, &C::qat_epochs, 0, 1000000),
      choice({"optimizer", "Training", "optimizer"}, &C::optimizer, {"sgd", "adam"}),
      real({"learning_rate", "Training", "at the start"}, &C::learning_rate),
      real({"qat_learning_rate", "Training",
            "at the start of quantized training, 0 for a tenth of learning_rate"},
           &C::qat_learning_rate),
      real({"quantizer_rate", "Training", "learned quantizer parameters train at this multiple"},
           &C::quantizer_rate),
      real({"momentum", "Training", "momentum of sgd, first beta of adam"}, &C::momentum, 1.0),
      real({"weight_decay", "Training", "L2 penalty of weights"}, &C::weight_decay),
      choice({"schedule", "Training", "how the learning rate falls within each phase"}, &C::schedule,
             {"cosine", "step"}),
      whole({"seed", "Machine", "of weights, order and augmentation"}, &C::seed, 0),
      whole({"threads", "Machine", "CPU threads, 0 for one a core"}, &C::threads, 0, 1024),
      choice({"device", "Machine", "where to compute"}, &C::device, {"cpu", "cuda"}),
  };
  return all;
}

std::string Setting::option() const {
  auto name = key;
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

const Setting* find_setting(std::string_view key) {
  std::string name(key);
  std::replace(name.begin(), name.end(), '-', '_');
  const auto found = std::find_if(settings().begin(), settings().end(),
                                  [&](const Setting& each) { return each.key == name; });
  return found == settings().end() ? nullptr : &*found;
}

void assign_setting(RunConfig& config, const Setting& setting, std::string_view value,
                    std::string_view origin) {
  if (setting.assign(config, value)) return;
  const auto advice = family_advice(setting.key, value);
  throw UsageError(fmt::format("{} {}: {}", origin, value.empty() ? "''" : value,
                               advice.empty() ? "expected " + setting.expected : advice));
}

void RunConfig::validate() const {
  for (const auto& setting : settings()) {
    RunConfig copy;
    assign_setting(copy, setting, setting.text(*this), setting.key + " =");
  }
  if (data == "synthetic" && !data_path.empty())
    throw UsageError(fmt::format(
        "--data synthetic contradicts --data-path {}: synthetic data is made, not read", data_path));
  if (data == "cifar10" && data_path.empty())
    throw UsageError(
        "--data cifar10 needs --data-path: the folder that holds data_batch_1.bin to test_batch.bin");
  if (limit > 0 && limit < batch_size)
    throw UsageError(fmt::format(
        "--limit {} contradicts --batch-size {}: the samples do not fill one batch; expected a limit of 0 "
        "or at least the batch size",
        limit, batch_size));
  check_quantization(*this);
  if (float_epochs == 0 && qat_epochs == 0)
    throw UsageError(
        "--float-epochs 0 contradicts --qat-epochs 0: nothing would be trained; expected one of them to be 1 "
        "or more");
}

std::map<std::string, std::int64_t> RunConfig::weight_bits_by_layer() const {
  std::map<std::string, std::int64_t> result;
  std::string_view rest = layer_weight_bits;
  for (bool more = !rest.empty(); more;) {
    const auto item = rest.substr(0, rest.find(','));
    more = item.size() < rest.size();  // after a comma something must come
    rest.remove_prefix(more ? item.size() + 1 : item.size());
    const auto equal = item.find('=');
    std::int64_t bits = 0;
    if (equal == std::string_view::npos || equal == 0 || !parse_number(item.substr(equal + 1), bits) ||
        bits < 2 || bits > 16)
      throw UsageError(
          fmt::format("--layer-weight-bits {}: expected a list like conv=8,fc=8 with 2 to 16 bits, got {}",
                      layer_weight_bits, item.empty() ? "''" : item));
    const std::string layer(item.substr(0, equal));
    if (!result.emplace(layer, bits).second)
      throw UsageError(fmt::format(
          "--layer-weight-bits {}: expected each layer once, in a list like conv=8,fc=8; got {} again as {}",
          layer_weight_bits, layer, item));
  }
  return result;
}

std::string RunConfig::to_toml() const {
  std::ostringstream out;
  out << "# qat-train " << version() << "; run again with: qat-train --config THIS_FILE --out DIR\n";
  std::string group;
  for (const auto& setting : settings()) {
    if (setting.kind == Setting::Kind::kTable) continue;  // tables come last
    if (setting.group != group) out << "\n# " << (group = setting.group) << "\n";
    out << setting.key << " = ";
    if (setting.kind == Setting::Kind::kText) {
      out << toml::value<std::string>(setting.text(*this));
    } else {
      out << setting.text(*this);
    }
    out << "  # " << setting.description << ": " << setting.expected
        << (setting.empty.empty() ? "" : "; nothing: " + setting.empty) << "\n";
  }
  for (const auto& setting : settings()) {
    if (setting.kind != Setting::Kind::kTable) continue;
    out << "\n# " << setting.description << ": " << setting.expected << "; nothing: " << setting.empty
        << "\n";
    const toml::table fields = toml::parse(setting.text(*this));
    out << toml::table{{setting.key, fields}} << "\n";
  }
  return out.str();
}

void apply_toml(RunConfig& config, std::string_view text, const std::string& name) {
  toml::table table;
  try {
    table = toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    throw UsageError(fmt::format("{}:{}: {}", name, error.source().begin.line, error.description()));
  }
  for (const auto& [key, node] : table) {
    const auto place = fmt::format("{}:{}", name, node.source().begin.line);
    const auto* setting = find_setting(key.str());
    if (!setting)
      throw UsageError(
          fmt::format("{}: unknown key '{}'{}", place, key.str(), suggestion(key.str(), setting_keys())));
    const bool is_table = setting->kind == Setting::Kind::kTable && node.is_table();
    const auto value = is_table ? std::optional(table_text(*node.as_table())) : scalar_text(node);
    if (!value)
      throw UsageError(
          fmt::format("{}: {}: expected {}, got a table, list or date", place, key.str(), setting->expected));
    assign_setting(config, *setting, *value, fmt::format("{}: {} =", place, setting->key));
  }
}

void apply_toml_file(RunConfig& config, const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (!std::filesystem::is_regular_file(path) || file.bad())
    throw UsageError(fmt::format("--config {}: expected a readable TOML file", path.string()));
  apply_toml(config, text, path.string());
}

}  // namespace qat::apps
