#pragma once

#include <string>

namespace qat {

/// SHA-256 over the bytes of a file, hex: what `sha256sum` prints. Throws: c10::Error naming the file if it
/// cannot be read.
std::string file_digest(const std::string& path);

}  // namespace qat
