#include "support/cifar10_file.h"

#include <c10/util/Exception.h>

#include "support/byte_reader.h"

namespace qat::apps {

ImageSet read_cifar10(const std::filesystem::path& path) {
  constexpr const char* kWho = "qat::apps::read_cifar10";
  constexpr int64_t kClasses = 10, kChannels = 3, kSide = 32;
  constexpr int64_t kPixels = kChannels * kSide * kSide;
  constexpr int64_t kRecord = 1 + kPixels;

  ByteReader reader(path);
  // A label byte cannot be 0x1f, so a file that begins like gzip is gzip.
  TORCH_CHECK(
      !reader.compressed(), kWho, ": ", path.string(),
      ": expected the plain binary file, found gzip; unpack it first (gunzip, or tar xzf for the archive)");
  const auto size = static_cast<int64_t>(reader.file_size());
  const int64_t count = size / kRecord;
  TORCH_CHECK(size > 0 && size % kRecord == 0, kWho, ": ", path.string(), ": expected a multiple of ",
              kRecord, " bytes (label and 3 x 32 x 32 pixels), found ", size, " bytes = ", count,
              " records and ", size % kRecord, " bytes; fetch the file again");
  const auto records = torch::empty({count, kRecord}, torch::kUInt8);
  const size_t got = reader.read(records.data_ptr<uint8_t>(), static_cast<size_t>(size));
  TORCH_CHECK(got == static_cast<size_t>(size), kWho, ": ", path.string(), ": expected ", size,
              " bytes, could read ", got, ". ", reader.defect());

  ImageSet set;
  set.labels = records.select(1, 0).to(torch::kInt64);
  set.images = records.narrow(1, 1, kPixels).contiguous().view({count, kChannels, kSide, kSide});
  const int64_t* label = set.labels.data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK(label[i] < kClasses, kWho, ": ", path.string(), ": expected labels from 0 to ", kClasses - 1,
                ", got ", label[i], " for record ", i, " (byte ", i * kRecord, ")");
  }
  return set;
}

}  // namespace qat::apps
