#include "support/command_line.h"

#include <qat/suggestion.h>
#include <qat/version.h>

#include <cxxopts.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

namespace qat::apps {
namespace {

/// One option as it was given; options of any type arrive as text.
struct Given {
  std::string option;
  std::string value;
};

struct Arguments {
  std::vector<Given> given;
  std::vector<std::string> positional;

  bool has(const std::string& option) const {
    return std::any_of(given.begin(), given.end(), [&](const Given& each) { return each.option == option; });
  }
};

/// Splits the command line; what cxxopts does not know is refused here, with the nearest option.
Arguments split(cxxopts::Options& options, const std::vector<std::string>& known,
                const std::vector<std::string>& arguments) {
  options.allow_unrecognised_options();
  std::vector<const char*> pointers;
  for (const auto& each : arguments)
    pointers.push_back(each.c_str());
  Arguments result;
  try {
    const auto parsed = options.parse(static_cast<int>(pointers.size()), pointers.data());
    for (const auto& each : parsed.arguments())
      result.given.push_back({each.key(), each.value()});
    result.positional = parsed.unmatched();
  } catch (const cxxopts::exceptions::exception& error) {
    throw UsageError(error.what());
  }
  for (const auto& each : result.positional) {
    if (each.size() < 2 || each[0] != '-') continue;
    const auto name = each.substr(0, each.find('='));
    throw UsageError(fmt::format("unknown option '{}'{}", name, suggestion(name, known)));
  }
  return result;
}

/// Assigns settings and remembers which were given: the same key with two values is a contradiction.
class ExplicitSettings {
 public:
  explicit ExplicitSettings(RunConfig& config) : config_(config) {}

  void assign(const Setting& setting, const std::string& value, const std::string& origin) {
    assign_setting(config_, setting, value, origin);
    const auto [earlier, fresh] = given_.try_emplace(setting.key, setting.text(config_));
    if (!fresh && earlier->second != setting.text(config_))
      throw UsageError(fmt::format("{} {} contradicts --{} {}, given before it", origin, value,
                                   setting.option(), earlier->second));
  }

 private:
  RunConfig& config_;
  std::map<std::string, std::string> given_;
};

void assign_key_value(ExplicitSettings& settings_given, const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos) throw UsageError(fmt::format("--set {}: expected key=value", text));
  const auto key = text.substr(0, equals);
  const auto* setting = find_setting(key);
  if (!setting) {
    std::vector<std::string> keys;
    for (const auto& each : settings())
      keys.push_back(each.key);
    throw UsageError(fmt::format("--set {}: unknown key '{}'{}", text, key, suggestion(key, keys)));
  }
  settings_given.assign(*setting, text.substr(equals + 1), fmt::format("--set {}", key));
}

double seconds_of(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0))
    throw UsageError(fmt::format("--checkpoint-seconds {}: expected a number from 0 up", text));
  return value;
}

std::string help_text(const Setting& setting, const std::string& standard) {
  return fmt::format("{}: {} (default: {})", setting.description, setting.expected,
                     standard.empty() ? setting.empty : standard);
}

cxxopts::Options train_options() {
  cxxopts::Options options("qat-train", "Trains a network in float, then with quantizers, and exports it.\n");
  options.custom_help("--out DIR [OPTION...]");
  options.set_width(110);
  options.add_options("Run")("out", "output folder; files of an earlier run in it are replaced (required)",
                             cxxopts::value<std::string>(), "DIR")(
      "config", "TOML file with any of the keys below, spelled as in DIR/config.toml",
      cxxopts::value<std::string>(),
      "FILE")("set", "set a key as in the file; may be repeated", cxxopts::value<std::string>(), "KEY=VALUE")(
      "resume", "go on with the run that was stopped in DIR, with its configuration")(
      "checkpoint-seconds", "time between checkpoints to resume from, 0 for after each step (default: 60)",
      cxxopts::value<std::string>(), "N")("help", "print this text")("version", "print the version");
  const RunConfig defaults;
  for (const auto& setting : settings()) {
    auto value = cxxopts::value<std::string>();
    if (setting.kind == Setting::Kind::kFlag) value->implicit_value("true");
    const auto standard = setting.text(defaults);
    options.add_options(setting.group)(setting.option(), help_text(setting, standard), value,
                                       setting.kind == Setting::Kind::kNumber ? "N" : "NAME");
  }
  return options;
}

/// The groups of settings in their order, after `first`.
std::vector<std::string> setting_groups(const std::string& first) {
  std::vector<std::string> groups = {first};
  for (const auto& setting : settings())
    if (groups.back() != setting.group) groups.push_back(setting.group);
  return groups;
}

/// `groups`: of options, in the order of the help text.
template <class Command>
std::optional<Parsed<Command>> help_or_version(const Arguments& arguments, const cxxopts::Options& options,
                                               const std::vector<std::string>& groups) {
  if (arguments.has("help")) return Parsed<Command>{std::nullopt, options.help(groups)};
  if (arguments.has("version"))
    return Parsed<Command>{std::nullopt, fmt::format("{} {}\n", options.program(), version())};
  return std::nullopt;
}

}  // namespace

Parsed<TrainCommand> parse_train_command(const std::vector<std::string>& arguments) {
  auto options = train_options();
  std::vector<std::string> known = {"--out",  "--config", "--set", "--resume", "--checkpoint-seconds",
                                    "--help", "--version"};
  for (const auto& setting : settings())
    known.push_back("--" + setting.option());
  const auto parts = split(options, known, arguments);
  if (auto text = help_or_version<TrainCommand>(parts, options, setting_groups("Run"))) return *text;
  if (!parts.positional.empty())
    throw UsageError(
        fmt::format("unexpected argument '{}'; expected options only", parts.positional.front()));

  TrainCommand command;
  for (const auto& [option, value] : parts.given) {
    if (option == "resume") command.run.resume = value == "true";
    if (option == "out") {
      if (value.empty() || !(command.out.empty() || command.out == value))
        throw UsageError(fmt::format("--out '{}': expected one folder", value));
      command.out = value;
    }
    if (option == "checkpoint-seconds") command.run.checkpoint_seconds = seconds_of(value);
  }
  if (command.out.empty()) throw UsageError("--out is missing: expected the folder for the results");
  const auto earlier = command.out / "config.toml";
  if (command.run.resume && !parts.has("config") && std::filesystem::exists(earlier))
    apply_toml_file(command.config, earlier);
  for (const auto& [option, value] : parts.given)
    if (option == "config") apply_toml_file(command.config, value);
  ExplicitSettings explicit_settings(command.config);
  for (const auto& [option, value] : parts.given) {
    if (option == "set") assign_key_value(explicit_settings, value);
    if (const auto* setting = find_setting(option)) explicit_settings.assign(*setting, value, "--" + option);
  }
  command.config.validate();
  return {command, ""};
}

Parsed<EvalCommand> parse_eval_command(const std::vector<std::string>& arguments) {
  cxxopts::Options options("qat-eval",
                           "Tests a checkpoint (.qat) or an exported TorchScript file on a data set.\n");
  options.custom_help("FILE [OPTION...]");
  options.set_width(110);
  auto add = options.add_options("Test");
  std::vector<std::string> known = {"--json", "--help", "--version"};
  for (const char* key : {"data", "data_path", "batch_size", "threads", "device"}) {
    const auto& setting = *find_setting(key);
    known.push_back("--" + setting.option());
    const auto standard = key == std::string("batch_size") ? "500"
                          : setting.group == "Data"        ? "as trained"
                                                           : setting.text({});
    add(setting.option(), help_text(setting, standard), cxxopts::value<std::string>(),
        setting.kind == Setting::Kind::kNumber ? "N" : "NAME");
  }
  add("json", "print one JSON object")("help", "print this text")("version", "print the version");

  const auto parts = split(options, known, arguments);
  if (auto text = help_or_version<EvalCommand>(parts, options, {"Test"})) return *text;
  if (parts.positional.size() != 1)
    throw UsageError(fmt::format("expected one FILE, got {} of them", parts.positional.size()));

  EvalCommand command;
  command.file = parts.positional.front();
  RunConfig config;
  ExplicitSettings explicit_settings(config);
  for (const auto& [option, value] : parts.given) {
    const auto* setting = find_setting(option);
    if (setting) explicit_settings.assign(*setting, value, "--" + option);
    if (option == "data") command.data = config.data;
    if (option == "data-path") command.data_path = config.data_path;
    if (option == "batch-size") command.batch_size = config.batch_size;
    if (option == "threads") command.threads = config.threads;
    if (option == "device") command.device = config.device;
    if (option == "json") command.json = true;
  }
  return {command, ""};
}

}  // namespace qat::apps
