#include <qat/schedulers/phase.h>

#include <c10/util/Exception.h>

namespace qat {

std::string to_string(Phase phase) {
  switch (phase) {
    case Phase::kFloat:
      return "FLOAT";
    case Phase::kRecording:
      return "RECORDING";
    case Phase::kTraining:
      return "TRAINING";
    case Phase::kDeployment:
      return "DEPLOYMENT";
  }
  TORCH_INTERNAL_ASSERT(false, "phase ", static_cast<int>(phase));
}

Phase parse_phase(std::string_view text) {
  for (const Phase phase : {Phase::kFloat, Phase::kRecording, Phase::kTraining, Phase::kDeployment}) {
    if (text == to_string(phase)) return phase;
  }
  TORCH_CHECK_VALUE(false, "phase: expected FLOAT, RECORDING, TRAINING or DEPLOYMENT, got \"", text, "\"");
}

}  // namespace qat
