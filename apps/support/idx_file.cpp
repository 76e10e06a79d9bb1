#include "support/idx_file.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "support/byte_reader.h"

namespace qat::apps {
namespace {

constexpr uint32_t kUnsignedBytes = 0x0800;  // third byte of the magic number: the element type

uint32_t big_endian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

std::string hexadecimal(uint32_t value) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "0x%08x", value);
  return text.data();
}

std::string found_bytes(const ByteReader& reader, uint64_t found) {
  std::string text = std::to_string(found) + " bytes";
  if (reader.compressed()) text += " in " + std::to_string(reader.file_size()) + " bytes of gzip";
  if (!reader.defect().empty()) text += " (" + reader.defect() + ")";
  return text;
}

// Product of the dimensions; the largest value where that has no room in 64 bits.
uint64_t body_bytes(const std::vector<uint32_t>& dimensions) {
  uint64_t product = 1;
  for (const uint64_t dimension : dimensions) {
    if (dimension != 0 && product > std::numeric_limits<uint64_t>::max() / 2 / dimension) {
      return std::numeric_limits<uint64_t>::max() / 2;
    }
    product *= dimension;
  }
  return product;
}

// Reads exactly `expected` bytes and checks that nothing follows. Memory grows with what is found, never with
// what a header merely announces: a plain file's size was compared before, a gzip file's size is known at its
// end only.
torch::Tensor read_body(const char* who, ByteReader& reader, uint64_t expected,
                        const std::string& announced) {
  const uint64_t header = reader.position();
  const auto check_total = [&](bool holds, uint64_t found, const char* relation) {
    TORCH_CHECK(holds, who, ": ", reader.path().string(), ": the header announces ", announced, ", expected ",
                header + expected, " bytes in all, found ", relation, found_bytes(reader, found),
                "; fetch the file again");
  };
  if (!reader.compressed()) check_total(reader.file_size() == header + expected, reader.file_size(), "");

  const uint64_t first_guess = 4 * reader.file_size() + 4096;
  auto body = torch::empty({static_cast<int64_t>(std::min(expected, first_guess))}, torch::kUInt8);
  for (uint64_t filled = 0; filled < expected;) {
    const auto room = static_cast<uint64_t>(body.numel());
    if (filled == room) {
      body.resize_({static_cast<int64_t>(std::min(expected, 2 * room))});
      continue;
    }
    const size_t got = reader.read(body.data_ptr<uint8_t>() + filled, room - filled);
    filled += got;
    check_total(filled == room, header + filled, "");
  }
  uint8_t extra = 0;
  const bool ended = reader.read(&extra, 1) == 0;  // for gzip, this is where the checksum is compared
  check_total(ended, reader.position(), "at least ");
  check_total(reader.defect().empty(), reader.position(), "");
  return body;
}

// One byte tensor of `rank` dimensions.
torch::Tensor read_idx(const char* who, const std::filesystem::path& path, uint32_t rank) {
  ByteReader reader(path);
  std::vector<uint8_t> header(4 + 4 * size_t{rank});
  const size_t got = reader.read(header.data(), header.size());
  if (got >= 4) {
    const uint32_t magic = big_endian(header.data());
    TORCH_CHECK(magic == (kUnsignedBytes | rank), who, ": ", path.string(),
                ": expected the first four bytes ", hexadecimal(kUnsignedBytes | rank),
                " (IDX, unsigned bytes, ", rank, rank == 1 ? " dimension" : " dimensions", "), got ",
                hexadecimal(magic), "; this is another kind of file");
  }
  TORCH_CHECK(got == header.size(), who, ": ", path.string(), ": expected an IDX header of ", header.size(),
              " bytes, found ", found_bytes(reader, got), "; fetch the file again");
  std::vector<uint32_t> dimensions;
  std::vector<int64_t> sizes;
  std::string announced;
  for (uint32_t i = 0; i < rank; ++i) {
    dimensions.push_back(big_endian(header.data() + 4 + 4 * i));
    sizes.push_back(dimensions.back());
    announced += (i == 0 ? "" : " x ") + std::to_string(dimensions.back());
  }
  announced += " bytes";
  const uint64_t expected = body_bytes(dimensions);
  TORCH_CHECK(expected > 0, who, ": ", path.string(), ": expected at least one item, the header announces ",
              announced);
  return read_body(who, reader, expected, announced).view(sizes);
}

}  // namespace

torch::Tensor read_idx_images(const std::filesystem::path& path) {
  return read_idx("qat::apps::read_idx_images", path, 3).unsqueeze(1);
}

torch::Tensor read_idx_labels(const std::filesystem::path& path, int64_t classes) {
  const char* who = "qat::apps::read_idx_labels";
  const auto bytes = read_idx(who, path, 1);
  const uint8_t* label = bytes.data_ptr<uint8_t>();
  for (int64_t i = 0; i < bytes.numel(); ++i) {
    TORCH_CHECK(label[i] < classes, who, ": ", path.string(), ": expected labels from 0 to ", classes - 1,
                ", got ", static_cast<int>(label[i]), " for item ", i, " (byte ", 8 + i, ")");
  }
  return bytes.to(torch::kInt64);
}

}  // namespace qat::apps
