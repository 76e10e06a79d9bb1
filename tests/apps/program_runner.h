#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace qat::apps::testing {

/// What a program printed and how it ended.
struct ProgramOutcome {
  int status = -1;  ///< exit status; 128 + n after signal n.
  std::string standard_output;
  std::string standard_error;
};

/// Runs a program that lies in the folder of this test program, with no input, and waits for it.
ProgramOutcome run_built_program(const std::string& name, const std::vector<std::string>& arguments);

/// The same, and sends the signal as soon as `now` (asked every millisecond) says so.
ProgramOutcome stop_built_program(const std::string& name, const std::vector<std::string>& arguments,
                                  int signal, const std::function<bool()>& now);

}  // namespace qat::apps::testing
