#pragma once

#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <string>

#include "support/model_description.h"

namespace qat::apps {

/// A model read from a file, ready to test.
struct SavedModel {
  std::string kind;  ///< "checkpoint" or "torchscript".
  ModelDescription description;
  /// Of a checkpoint, over its tensors; of a TorchScript file, the SHA-256 with which it was compared, "" if
  /// none lies beside it.
  std::string digest;
  /// Takes images `[N, channels, height, width]`, gives logits `[N, classes]`; eval mode.
  std::function<torch::Tensor(const torch::Tensor&)> forward;
};

/// Reads a checkpoint of qat-train or a TorchScript file that it exported; the content decides, not the name.
/// Throws: c10::Error naming the file and what is wrong: missing, empty, cut, of another program; damaged
/// checkpoints; files that differ from the digest beside them (check_digest).
SavedModel load_saved_model(const std::filesystem::path& path, torch::Device device);

}  // namespace qat::apps
