#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace qat {

/// Where a model is on its way from float to integers.
enum class Phase : std::int8_t { kFloat, kRecording, kTraining, kDeployment };

/// "FLOAT", "RECORDING", "TRAINING", "DEPLOYMENT".
std::string to_string(Phase phase);
Phase parse_phase(std::string_view text);

}  // namespace qat
