#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace qat::apps {

/// Reads the bytes of a file from front to back. A gzip file is recognised by its first two bytes, whatever
/// its name is, and unpacked on the way; all other files are read as they are.
class ByteReader {
 public:
  /// Opens `path`.
  ///
  /// Throws: `c10::Error` naming the file when it does not exist, is a folder, or cannot be opened.
  explicit ByteReader(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }

  /// The size on disk in bytes; for a gzip file that is the packed size.
  uint64_t file_size() const { return file_size_; }

  /// Whether the file is gzip-compressed.
  bool compressed() const { return compressed_; }

  /// Reads the next `count` bytes into `target` and returns how many there were: fewer than `count` only at
  /// the end of the file or where `defect()` tells what is wrong with it.
  size_t read(void* target, size_t count);

  /// Bytes read so far, counted after unpacking.
  uint64_t position() const { return position_; }

  /// What is wrong with the stream as far as it was read, for example a gzip file that is cut short or fails
  /// its checksum (which is compared when the end of the file is read). Empty: nothing.
  const std::string& defect() const { return defect_; }

 private:
  struct Close {
    void operator()(void* file) const;
  };

  std::filesystem::path path_;
  uint64_t file_size_ = 0;
  uint64_t position_ = 0;
  std::string defect_;
  std::unique_ptr<void, Close> file_;
  bool compressed_ = false;
};

}  // namespace qat::apps
