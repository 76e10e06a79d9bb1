#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "support/run_config.h"

namespace qat::apps {

/// What must be known to build a saved model again and to feed it; stored as text in checkpoints and exported
/// files.
struct ModelDescription {
  RunConfig config;                       ///< of the run that trained it.
  std::vector<std::int64_t> input_shape;  ///< of one sample: channels, height, width.
  std::int64_t classes = 0;
  /// For each channel, what is subtracted from an image, and what it is divided by then, after its bytes were
  /// divided by 255.
  std::vector<double> input_mean;
  std::vector<double> input_std;
  std::string phase;              ///< "FLOAT" or "TRAINING".
  std::string layer_bits;         ///< of quantized weights: "conv:4 fc:3"; "" if unknown.
  std::int64_t packed_bytes = 0;  ///< of the packed weights; 0 if unknown.

  /// Keys: config (TOML), version, phase, model, classes, input_shape, input_mean, input_std (JSON),
  /// layer_bits, packed_bytes.
  std::map<std::string, std::string> to_entries() const;
  /// `origin` names the file in messages. Throws: c10::Error naming it and the entry that is missing or
  /// wrong.
  static ModelDescription from_entries(const std::map<std::string, std::string>& entries,
                                       const std::string& origin);
};

}  // namespace qat::apps
