#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace qat::apps {

/// Runs a program's work with its arguments (the name first) and turns exceptions into one line on standard
/// error and an exit status: 0 success, 1 failure, 2 wrong usage.
int run_program(int argc, char** argv,
                const std::function<int(const std::vector<std::string>& arguments)>& work);

/// From now on SIGINT and SIGTERM ask the program to stop at the next good moment, see `stop_requested`; a
/// second one, of either kind, ends it at once. Signals that the program was started to ignore stay so.
void stop_on_signals();
/// Whether such a signal came.
bool stop_requested();

/// Keeps large blocks of freed memory in the process instead of giving them back to the system and faulting
/// them in again at every step: the float step of a small network takes a quarter less time. The process
/// keeps its peak memory. Does nothing where the C library is not glibc.
void keep_freed_memory();

/// Sets the number of threads that tensor operations use. `threads` 0: one for each core. Returns the number.
std::int64_t set_threads(std::int64_t threads);

}  // namespace qat::apps
