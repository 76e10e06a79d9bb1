#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>

namespace qat {

/// A `.qat` file: a header with the format version, text entries (configuration, phase, counters) and the SHA-256 of the
/// payload; the payload is a torch archive with the model's parameters, buffers, slots and links.
struct CheckpointInfo {
  std::map<std::string, std::string> entries;
  std::string digest;  ///< SHA-256, hex, over names, types, shapes and bytes of all parameters and buffers.
};

/// Writes to a temporary name, then renames. Throws: c10::Error naming the file if it cannot be written; no partial file stays.
CheckpointInfo save_checkpoint(const std::string& path, torch::nn::Module& model, const std::map<std::string, std::string>& entries);
/// Reads and checks the header and the digest of the payload; no model needed.
/// Throws: c10::Error naming the file: empty, cut ("expected N bytes, found M"), foreign ("not a .qat file"), damaged.
CheckpointInfo read_checkpoint_info(const std::string& path);
/// Loads into a freshly built model of the same structure, in whatever phase it was saved (slots are created). All or
/// nothing: on any error the model is bit for bit as before.
/// Throws: as read_checkpoint_info; naming keys and shapes that do not fit.
CheckpointInfo load_checkpoint(const std::string& path, torch::nn::Module& model);

}  // namespace qat
