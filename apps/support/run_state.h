#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "support/run_result.h"
#include "support/trainer.h"

namespace qat::apps {

/// Where a run stands: with the model and the optimizer, all that it needs to go on to the bit.
struct RunState {
  /// What is being done: epochs in float, recording, epochs with quantizers.
  enum class Stage : std::int8_t { kFloat, kRecording, kQuantized };

  Stage stage = Stage::kFloat;
  std::int64_t epoch = 0;    ///< epochs of the stage that are complete.
  EpochProgress progress;    ///< of the next one.
  std::int64_t passes = 0;   ///< over the data, see Trainer::passes.
  double stage_seconds = 0;  ///< of training in complete epochs of the stage.
  std::int64_t stage_steps = 0;
  double seconds = 0;     ///< of the whole run.
  std::string scheduler;  ///< QATScheduler::state.
  std::string random;     ///< state of torch's generator, hexadecimal.
  RunResult found;        ///< what is known so far: rows, layers, float accuracy and size, seconds a step.
};

/// torch's generator on the CPU, as RunState holds it.
std::string random_state();
/// Throws: c10::Error if the text is no such state.
void set_random_state(const std::string& text);

/// For the entries of a checkpoint.
std::string to_json(const RunState& state);
/// `origin` names the file in messages. Throws: c10::Error naming it if the text cannot be read.
RunState parse_run_state(const std::string& text, const std::string& origin);

}  // namespace qat::apps
