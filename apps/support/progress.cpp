#include "support/progress.h"

#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <unistd.h>

namespace qat::apps {
namespace {

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::ceil(seconds));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

std::string progress_line(const ProgressState& state) {
  return fmt::format("{} {}/{}  step {}/{}  loss {:.4f}  accuracy {:.2f} %  {:.0f} images/s  {} left",
                     state.phase, state.epoch, state.epochs, state.step, state.steps, state.loss,
                     100 * state.accuracy, state.images_per_second, duration_text(state.seconds_left));
}

Progress::Progress(std::ostream& stream, Output output) : stream_(stream), output_(output) {}

Progress Progress::standard_error() {
  return Progress(std::cerr, isatty(STDERR_FILENO) ? Output::kTerminal : Output::kPlain);
}

bool Progress::due() const {
  return Clock::now() - last_ >=
         (output_ == Output::kTerminal ? std::chrono::milliseconds(200) : std::chrono::seconds(5));
}

void Progress::show(const ProgressState& state) {
  auto line = progress_line(state);
  if (output_ == Output::kTerminal) {
    const auto width = line.size();
    if (width < width_) line.append(width_ - width, ' ');
    stream_ << '\r' << line << std::flush;
    width_ = width;
  } else {
    stream_ << line << std::endl;
  }
  last_ = Clock::now();
}

void Progress::message(const std::string& text) {
  if (width_ > 0) stream_ << '\r' << std::string(width_, ' ') << '\r';
  width_ = 0;
  stream_ << text << std::endl;
}

}  // namespace qat::apps
