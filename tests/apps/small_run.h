#pragma once

#include "program_runner.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/catch.h"

namespace qat::apps::testing {

inline std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline nlohmann::json summary(const std::filesystem::path& folder) {
  return nlohmann::json::parse(content(folder / "summary.json"));
}

/// A small run of two epochs on synthetic data.
inline std::vector<std::string> small_run(const std::filesystem::path& out) {
  return {"--data",       "synthetic", "--model",          "lenet", "--float-epochs", "1",
          "--qat-epochs", "1",         "--record-batches", "2",     "--limit",        "256",
          "--batch-size", "32",        "--threads",        "1",     "--seed",         "5",
          "--out",        out.string()};
}

inline ProgramOutcome train(std::vector<std::string> arguments) {
  return run_built_program("qat-train", arguments);
}

/// The same with other values and further options.
inline std::vector<std::string> small_run_with(const std::filesystem::path& out,
                                               const std::vector<std::string>& options) {
  auto arguments = small_run(out);
  for (std::size_t i = 0; i + 1 < options.size(); i += 2) {
    const auto found = std::find(arguments.begin(), arguments.end(), options[i]);
    if (found == arguments.end()) {
      arguments.insert(arguments.end(), {options[i], options[i + 1]});
    } else {
      *(found + 1) = options[i + 1];
    }
  }
  return arguments;
}

inline double evaluated_accuracy(const std::filesystem::path& file) {
  const auto outcome = run_built_program("qat-eval", {file.string(), "--json", "--threads", "1"});
  INFO(outcome.standard_error);
  REQUIRE(outcome.status == 0);
  return nlohmann::json::parse(outcome.standard_output)["accuracy"].get<double>();
}

}  // namespace qat::apps::testing
