#include "schedulers/checkpoint_file.h"

#include "schedulers/sha256.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <unistd.h>

namespace qat::detail {
namespace {

constexpr std::string_view kMagic = "QATMODEL";
constexpr std::uint32_t kFormatVersion = 1;
constexpr std::size_t kPreamble =
    kMagic.size() + sizeof(std::uint32_t) + 2 * sizeof(std::uint64_t) + Sha256::kSize;

// Little endian, whatever the machine is.
template <class Integer>
std::string to_bytes(Integer value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(Integer); ++i)
    bytes += static_cast<char>(value >> (8 * i) & 255);
  return bytes;
}

template <class Integer>
Integer from_bytes(std::string_view bytes) {
  Integer value = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    value |= static_cast<Integer>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

std::string digest_of(const CheckpointFile& file) {
  Sha256 sha;
  sha.add(file.header);
  sha.add(file.payload);
  return sha.bytes();
}

}  // namespace

void write_checkpoint_file(const std::string& path, const CheckpointFile& file) {
  const std::string temporary = path + ".partial" + std::to_string(getpid());
  errno = 0;
  std::ofstream stream(temporary, std::ios::binary);
  stream << kMagic << to_bytes(kFormatVersion) << to_bytes<std::uint64_t>(file.header.size())
         << to_bytes<std::uint64_t>(file.payload.size()) << digest_of(file) << file.header << file.payload;
  stream.close();
  std::error_code error;
  if (stream) {
    std::filesystem::rename(temporary, path, error);
  } else {
    error = std::error_code(errno ? errno : EIO, std::generic_category());
  }
  if (!error) return;
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  TORCH_CHECK(false, "checkpoint ", path, ": cannot be written: ", error.message());
}

CheckpointFile read_checkpoint_file(const std::string& path) {
  std::error_code error;
  [[maybe_unused]] const auto size_of_name = std::filesystem::file_size(path, error);
  TORCH_CHECK(!error, "checkpoint ", path, ": cannot be read: ", error.message());
  // The size of the file that was opened: another one may take its name at any time.
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  const auto end = stream.tellg();
  TORCH_CHECK(end >= 0, "checkpoint ", path, ": cannot be read: ", std::generic_category().message(errno));
  const auto size = static_cast<std::uint64_t>(end);
  TORCH_CHECK(size > 0, "checkpoint ", path, ": the file is empty");
  stream.seekg(0);
  std::string preamble(kPreamble, '\0');
  stream.read(preamble.data(), static_cast<std::streamsize>(kPreamble));
  const auto found = static_cast<std::size_t>(stream.gcount());
  TORCH_CHECK(std::string_view(preamble).starts_with(kMagic.substr(0, found)), "checkpoint ", path,
              ": this is no .qat file (it does not begin with ", kMagic, ")");
  TORCH_CHECK(found == kPreamble, "checkpoint ", path, ": cut: expected at least ", kPreamble,
              " bytes, found ", size);

  std::string_view rest = std::string_view(preamble).substr(kMagic.size());
  const auto version = from_bytes<std::uint32_t>(rest);
  rest.remove_prefix(sizeof(std::uint32_t));
  const auto header_size = from_bytes<std::uint64_t>(rest);
  rest.remove_prefix(sizeof(std::uint64_t));
  const auto payload_size = from_bytes<std::uint64_t>(rest);
  rest.remove_prefix(sizeof(std::uint64_t));
  TORCH_CHECK(version == kFormatVersion, "checkpoint ", path, ": format version ", version,
              ", this program reads ", kFormatVersion);
  const std::uint64_t body = size - kPreamble;
  // In this order no sum overflows, and nothing larger than the file is allocated.
  const bool fits = header_size <= body && payload_size == body - header_size;
  TORCH_CHECK(fits, "checkpoint ", path, ": cut or damaged: expected ", kPreamble, " + ", header_size, " + ",
              payload_size, " bytes, found ", size);

  CheckpointFile file{std::string(header_size, '\0'), std::string(payload_size, '\0')};
  stream.read(file.header.data(), static_cast<std::streamsize>(header_size));
  stream.read(file.payload.data(), static_cast<std::streamsize>(payload_size));
  TORCH_CHECK(stream, "checkpoint ", path, ": cannot be read to its end");
  TORCH_CHECK(digest_of(file) == rest, "checkpoint ", path, ": damaged: the SHA-256 of its content is ",
              to_hex(digest_of(file)), ", it says ", to_hex(rest));
  return file;
}

}  // namespace qat::detail
