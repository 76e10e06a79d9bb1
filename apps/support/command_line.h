#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "support/run_config.h"
#include "support/run_options.h"

namespace qat::apps {

/// What the command line of qat-train asks for.
struct TrainCommand {
  RunConfig config;
  std::filesystem::path out;  ///< the output folder.
  RunOptions run;
};

/// Which data a program tests on, where it differs from what the model was trained on.
struct EvalCommand {
  std::filesystem::path file;            ///< a checkpoint (.qat) or a TorchScript file.
  std::optional<std::string> data;       ///< not given: as trained.
  std::optional<std::string> data_path;  ///< not given: as trained.
  std::int64_t batch_size = 500;
  std::int64_t threads = 0;  ///< 0: one for each core.
  std::string device = "cpu";
  bool json = false;  ///< print one JSON object.
};

/// A command, or a text (help, version) to print instead.
template <class Command>
struct Parsed {
  std::optional<Command> command;
  std::string text;
};

/// Reads the arguments of qat-train, the program's name first. Later sources win: defaults, --config (with
/// --resume: config.toml of the output folder, if it is there), then --set and options.
///
/// Throws: UsageError for unknown options and keys (with the nearest known one), values that are not allowed,
/// values that contradict each other (a key given twice with different values among them), a missing --out.
Parsed<TrainCommand> parse_train_command(const std::vector<std::string>& arguments);

/// Reads the arguments of qat-eval, the program's name first. Throws: UsageError, as `parse_train_command`.
Parsed<EvalCommand> parse_eval_command(const std::vector<std::string>& arguments);

}  // namespace qat::apps
