#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace qat::apps {

/// The folder that holds the results of one run. A file appears in it complete or not at all.
class OutputFolder {
 public:
  /// What becomes of an earlier run's results.
  enum class Earlier : std::int8_t { kRemove, kKeep };

  /// Makes the folder (with its parents) and, in it, `checkpoints`; removes the result files of an earlier
  /// run, so that the folder never describes two, or keeps them for a run that goes on. Files that were being
  /// written when a run was killed go in any case. Other files stay. Throws: c10::Error naming the folder if
  /// it cannot be made or written.
  explicit OutputFolder(std::filesystem::path path, Earlier earlier = Earlier::kRemove);

  /// The path of a file in the folder.
  std::filesystem::path file(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

  /// The name of the checkpoint after a quantized epoch, counted from 1.
  static std::string quantized_checkpoint(std::int64_t epoch);

  /// Writes a file to a temporary name, then renames it. Throws: c10::Error naming the file; nothing partial
  /// stays.
  void write(std::string_view name, std::string_view content) const;

 private:
  std::filesystem::path path_;
};

}  // namespace qat::apps
