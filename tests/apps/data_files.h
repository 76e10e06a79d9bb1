#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace qat::apps::testing {

using Bytes = std::vector<uint8_t>;

/// A new empty folder below the system's temporary one; removed with all it holds at the end of its life.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Writes a file into the folder and returns its path.
  std::filesystem::path write(const std::string& name, const Bytes& bytes) const;

 private:
  std::filesystem::path path_;
};

/// Magic number and counts of an IDX file, big-endian.
Bytes idx_header(uint32_t magic, const std::vector<uint32_t>& counts);

/// An IDX file of `count` images whose pixel p of image n has the value (7 n + p) % 256.
Bytes idx_images(uint32_t count, uint32_t rows, uint32_t columns);

/// An IDX file of `count` labels: n % 10.
Bytes idx_labels(uint32_t count);

/// A CIFAR-10 file: record n has the label n % 10, and all its bytes of channel c are (3 n + c) % 256.
Bytes cifar10_records(int64_t count);

/// The bytes as a gzip stream.
Bytes gzipped(const Bytes& bytes);

/// The first `count` bytes.
Bytes cut(const Bytes& bytes, size_t count);

}  // namespace qat::apps::testing
