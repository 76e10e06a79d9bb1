#include "support/program.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <limits>
#include <thread>

#include "support/run_config.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace qat::apps {
namespace {

volatile std::sig_atomic_t stop_signal = 0;

}  // namespace

void stop_on_signals() {
  struct sigaction action = {};
  action.sa_handler = [](int signal) {
    stop_signal = signal;
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
  };
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction current = {};
    const bool is_ignored = sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
    if (!is_ignored) sigaction(signal, &action, nullptr);
  }
}

bool stop_requested() {
  return stop_signal != 0;
}

int run_program(int argc, char** argv,
                const std::function<int(const std::vector<std::string>& arguments)>& work) {
  const std::vector<std::string> arguments(argv, argv + argc);
  try {
    return work(arguments);
  } catch (const UsageError& error) {
    const auto name = std::filesystem::path(arguments.front()).filename().string();
    std::cerr << "error: " << error.what() << "\n'" << name << " --help' lists all options." << std::endl;
    return 2;
  } catch (const c10::Error& error) {
    std::cerr << "error: " << error.what_without_backtrace() << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
  }
  return 1;
}

void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

std::int64_t set_threads(std::int64_t threads) {
  if (threads == 0) threads = std::max(1U, std::thread::hardware_concurrency());
  at::set_num_threads(static_cast<int>(threads));
  return threads;
}

}  // namespace qat::apps
