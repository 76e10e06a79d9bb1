#pragma once

#include <filesystem>
#include <string>

#include "support/output_folder.h"

namespace qat::apps {

/// Where the digest of a file lies: FILE.sha256, beside it.
std::filesystem::path digest_path(const std::filesystem::path& file);

/// Writes the digest of a file of the folder beside it, as `sha256sum` does: hex, two spaces, name; so
/// `sha256sum -c` checks it too.
void write_digest(const OutputFolder& folder, const std::string& name);

/// Compares a file with the digest beside it and returns that; "" where there is none. Throws: c10::Error
/// naming the file, the expected and the found digest.
std::string check_digest(const std::filesystem::path& file);

}  // namespace qat::apps
