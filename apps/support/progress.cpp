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
  auto text = state.phase;
  if (state.epochs > 0) text += fmt::format(" {}/{}", state.epoch, state.epochs);
  text += fmt::format("  step {}/{}", state.step, state.steps);
  if (state.loss) text += fmt::format("  loss {:.4f}", *state.loss);
  if (state.accuracy) text += fmt::format("  accuracy {:.2f} %", 100 * *state.accuracy);
  return text + fmt::format("  {:.0f} images/s  {} left", state.images_per_second,
                            duration_text(state.seconds_left));
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

void Progress::show_if_due(const std::string& phase, std::int64_t step, std::int64_t steps,
                           std::optional<double> accuracy, std::int64_t images, double seconds) {
  if (!due()) return;
  const auto seconds_a_step = seconds / static_cast<double>(step);
  show({phase,
        0,
        0,
        step,
        steps,
        {},
        accuracy,
        static_cast<double>(images) / seconds,
        seconds_a_step * static_cast<double>(steps - step)});
}

void Progress::clear() {
  if (width_ > 0) stream_ << '\r' << std::string(width_, ' ') << '\r' << std::flush;
  width_ = 0;
}

void Progress::message(const std::string& text) {
  clear();
  stream_ << text << std::endl;
}

}  // namespace qat::apps
