#include "data_files.h"

#include <fstream>
#include <stdexcept>
#include <unistd.h>
#include <zlib.h>

namespace qat::apps::testing {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "qat-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder like " + name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path TemporaryFolder::write(const std::string& name, const Bytes& bytes) const {
  const auto path = path_ / name;
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path.string());
  return path;
}

Bytes idx_header(uint32_t magic, const std::vector<uint32_t>& counts) {
  Bytes bytes;
  const auto append = [&](uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<uint8_t>(value >> shift));
  };
  append(magic);
  for (const uint32_t count : counts)
    append(count);
  return bytes;
}

Bytes idx_images(uint32_t count, uint32_t rows, uint32_t columns) {
  Bytes bytes = idx_header(0x803, {count, rows, columns});
  for (uint32_t n = 0; n < count; ++n) {
    for (uint32_t p = 0; p < rows * columns; ++p)
      bytes.push_back(static_cast<uint8_t>(7 * n + p));
  }
  return bytes;
}

Bytes idx_labels(uint32_t count) {
  Bytes bytes = idx_header(0x801, {count});
  for (uint32_t n = 0; n < count; ++n)
    bytes.push_back(static_cast<uint8_t>(n % 10));
  return bytes;
}

Bytes cifar10_records(int64_t count) {
  Bytes bytes;
  for (int64_t n = 0; n < count; ++n) {
    bytes.push_back(static_cast<uint8_t>(n % 10));
    for (int64_t c = 0; c < 3; ++c)
      bytes.insert(bytes.end(), 1024, static_cast<uint8_t>(3 * n + c));
  }
  return bytes;
}

Bytes gzipped(const Bytes& bytes) {
  z_stream stream{};
  constexpr int kGzip = 15 + 16;
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::runtime_error("zlib does not start");
  }
  Bytes packed(deflateBound(&stream, bytes.size()));
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<uInt>(packed.size());
  const int result = deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  if (result != Z_STREAM_END) throw std::runtime_error("zlib does not finish");
  return packed;
}

Bytes cut(const Bytes& bytes, size_t count) {
  return {bytes.begin(), bytes.begin() + static_cast<long>(count)};
}

}  // namespace qat::apps::testing
