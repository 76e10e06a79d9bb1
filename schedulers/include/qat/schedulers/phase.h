#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace qat {

/// Where a model is on its way from float to integers.
enum class Phase : std::int8_t {
  kFloat,       ///< no slot is filled: the model is bit for bit its torch twin.
  kRecording,   ///< slots hold recorders, parameters are held.
  kTraining,    ///< slots hold quantizers, parameters train again.
  kDeployment,  ///< slots hold integer codes and constants.
};

/// "FLOAT", "RECORDING", "TRAINING", "DEPLOYMENT".
std::string to_string(Phase phase);
/// Reads such a name. Throws: c10::ValueError listing the names.
Phase parse_phase(std::string_view text);

}  // namespace qat
