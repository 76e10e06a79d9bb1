#include "program_runner.h"

#include "data_files.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <sys/wait.h>

namespace qat::apps::testing {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char character : text)
    result += character == '\'' ? std::string("'\\''") : std::string(1, character);
  return result + "'";
}

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

ProgramOutcome run_built_program(const std::string& name, const std::vector<std::string>& arguments) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
  if (!std::filesystem::exists(program)) throw std::runtime_error(program.string() + " is not built");
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  const auto err = folder.path() / "err";
  auto command = quoted(program.string());
  for (const auto& argument : arguments)
    command += " " + quoted(argument);
  command += " < /dev/null > " + quoted(out.string()) + " 2> " + quoted(err.string());
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), content(out), content(err)};
}

}  // namespace qat::apps::testing
