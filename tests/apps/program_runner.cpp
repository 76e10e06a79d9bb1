#include "program_runner.h"

#include "data_files.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

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
  return stop_built_program(name, arguments, 0, [] { return false; });
}

ProgramOutcome stop_built_program(const std::string& name, const std::vector<std::string>& arguments,
                                  int signal, const std::function<bool()>& now) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
  if (!std::filesystem::exists(program)) throw std::runtime_error(program.string() + " is not built");
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  const auto err = folder.path() / "err";
  auto command = "exec " + quoted(program.string());
  for (const auto& argument : arguments)
    command += " " + quoted(argument);
  command += " < /dev/null > " + quoted(out.string()) + " 2> " + quoted(err.string());
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot start " + program.string());
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  bool sent = false;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (!sent && now()) {
      kill(child, signal);
      sent = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), content(out), content(err)};
}

}  // namespace qat::apps::testing
