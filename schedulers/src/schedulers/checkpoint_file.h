#pragma once

#include <string>

namespace qat::detail {

/// The two parts of a `.qat` file.
struct CheckpointFile {
  std::string header;  ///< JSON text
  std::string payload;
};

/// Writes beside `path` and renames. Throws: c10::Error naming the file; no partial file stays.
void write_checkpoint_file(const std::string& path, const CheckpointFile& file);

/// Throws: c10::Error naming the file: missing, empty, foreign, of another format version, cut, damaged.
CheckpointFile read_checkpoint_file(const std::string& path);

}  // namespace qat::detail
