#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

namespace qat::apps {

/// How far a phase has come.
struct ProgressState {
  std::string phase;               ///< "float", "recording", "qat", "test".
  std::int64_t epoch = 0;          ///< from 1.
  std::int64_t epochs = 0;         ///< 0: a phase without epochs.
  std::int64_t step = 0;           ///< steps done in this epoch.
  std::int64_t steps = 0;          ///< steps that an epoch has.
  std::optional<double> loss;      ///< mean of the epoch so far.
  std::optional<double> accuracy;  ///< fraction of 1, of the epoch so far.
  double images_per_second = 0;
  double seconds_left = 0;  ///< of the phase.
};

/// "float 2/6  step 120/468  loss 0.4321  accuracy 84.31 %  2150 images/s  1:32 left";
/// "recording  step 12/50  2150 images/s  0:03 left".
std::string progress_line(const ProgressState& state);

/// Shows progress: one line that is rewritten on a terminal, a plain line every few seconds elsewhere.
class Progress {
 public:
  enum class Output { kTerminal, kPlain };

  Progress(std::ostream& stream, Output output);
  /// Standard error; a terminal if it is one.
  static Progress standard_error();

  /// Whether enough time has passed since the last line. Ask before computing what costs time (a loss on a
  /// GPU).
  bool due() const;
  void show(const ProgressState& state);
  /// Shows a phase without epochs if a line is due: `images` were seen in `seconds`.
  void show_if_due(const std::string& phase, std::int64_t step, std::int64_t steps,
                   std::optional<double> accuracy, std::int64_t images, double seconds);
  /// Takes the line off the terminal.
  void clear();
  /// Prints a line that stays.
  void message(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  std::ostream& stream_;
  Output output_;
  Clock::time_point last_ = Clock::now();
  std::size_t width_ = 0;  ///< of the line that stands on the terminal.
};

}  // namespace qat::apps
