#include "support/idx_file.h"

#include "data_files.h"
#include "error_text.h"

#include <string>
#include <sys/resource.h>

#include "support/catch.h"

using namespace qat::apps;
using namespace qat::apps::testing;
using Catch::Matchers::Contains;

namespace {

long peak_kilobytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

}  // namespace

TEST_CASE("IDX images are read plain and from gzip with the same bytes", "[apps]") {
  TemporaryFolder folder;
  const Bytes bytes = idx_images(5, 4, 3);
  const auto plain = read_idx_images(folder.write("images", bytes));
  const auto packed = read_idx_images(folder.write("images.gz", gzipped(bytes)));
  REQUIRE(plain.sizes() == torch::IntArrayRef({5, 1, 4, 3}));
  REQUIRE(plain.scalar_type() == torch::kUInt8);
  REQUIRE(plain[2][0][1][2].item<int>() == 7 * 2 + 5);
  REQUIRE(torch::equal(plain, packed));
}

TEST_CASE("IDX images that shrink a hundredfold in gzip are read whole", "[apps]") {
  TemporaryFolder folder;
  Bytes bytes = idx_header(0x803, {100, 100, 100});
  bytes.resize(16 + 1000000, 9);
  const Bytes packed = gzipped(bytes);
  REQUIRE(packed.size() < 10000);
  const auto images = read_idx_images(folder.write("images.gz", packed));
  REQUIRE(images.sizes() == torch::IntArrayRef({100, 1, 100, 100}));
  REQUIRE(images.eq(9).all().item<bool>());
}

TEST_CASE("IDX labels are read as int64", "[apps]") {
  TemporaryFolder folder;
  const auto labels = read_idx_labels(folder.write("labels", idx_labels(12)), 10);
  REQUIRE(labels.scalar_type() == torch::kInt64);
  REQUIRE(torch::equal(labels, torch::arange(12).remainder(10)));
}

TEST_CASE("case 124 an IDX file that announces 60000 items and holds 10 tells both sizes", "[apps]") {
  TemporaryFolder folder;
  Bytes bytes = idx_header(0x803, {60000, 28, 28});
  bytes.resize(16 + 10 * 784);
  for (const bool packed : {false, true}) {
    const auto path = folder.write("images", packed ? gzipped(bytes) : bytes);
    const auto text = error_text([&] { read_idx_images(path); });
    REQUIRE_THAT(text, Contains(path.string()) && Contains("60000 x 28 x 28") && Contains("47040016 bytes") &&
                           Contains("7856 bytes"));
  }
}

TEST_CASE("case 124 an IDX file that is longer than its header says is refused", "[apps]") {
  TemporaryFolder folder;
  Bytes bytes = idx_images(2, 4, 4);
  bytes.resize(bytes.size() + 3);
  for (const bool packed : {false, true}) {
    const auto path = folder.write("images", packed ? gzipped(bytes) : bytes);
    const auto text = error_text([&] { read_idx_images(path); });
    REQUIRE_THAT(text, Contains(path.string()) && Contains("expected 48 bytes") &&
                           Contains(packed ? "at least 49 bytes" : "found 51 bytes"));
  }
}

TEST_CASE("case 124 a wrong IDX magic number is told with the expected one", "[apps]") {
  TemporaryFolder folder;
  const auto labels = folder.write("train-images-idx3-ubyte", idx_labels(10));
  REQUIRE_THAT(error_text([&] { read_idx_images(labels); }),
               Contains(labels.string()) && Contains("0x00000803") && Contains("0x00000801"));
  const auto floats = folder.write("floats", idx_header(0xd01, {0}));
  REQUIRE_THAT(error_text([&] { read_idx_labels(floats, 10); }),
               Contains("0x00000801") && Contains("0x00000d01"));
}

TEST_CASE("case 124 an empty or too short IDX file is refused", "[apps]") {
  TemporaryFolder folder;
  for (const size_t size : {0, 1, 3, 4, 15}) {
    const auto path = folder.write("images", cut(idx_images(1, 2, 2), size));
    REQUIRE_THAT(error_text([&] { read_idx_images(path); }),
                 Contains(path.string()) && Contains("16 bytes") &&
                     Contains("found " + std::to_string(size) + " bytes"));
  }
  const auto packed_nothing = folder.write("images.gz", gzipped({}));
  REQUIRE_THAT(error_text([&] { read_idx_images(packed_nothing); }), Contains("found 0 bytes"));
}

TEST_CASE("case 124 an IDX header without items or pixels is refused", "[apps]") {
  TemporaryFolder folder;
  const auto path = folder.write("images", idx_header(0x803, {0, 28, 28}));
  REQUIRE_THAT(error_text([&] { read_idx_images(path); }),
               Contains(path.string()) && Contains("0 x 28 x 28"));
  const auto flat = folder.write("flat", idx_header(0x803, {5, 0, 28}));
  REQUIRE_THROWS_AS(read_idx_images(flat), c10::Error);
}

TEST_CASE("case 124 gzip is known by its first bytes and not by the file's name", "[apps]") {
  TemporaryFolder folder;
  const Bytes bytes = idx_images(3, 5, 5);
  const auto packed_with_plain_name = folder.write("images-idx3-ubyte", gzipped(bytes));
  const auto plain_with_packed_name = folder.write("images-idx3-ubyte.gz", bytes);
  REQUIRE(torch::equal(read_idx_images(packed_with_plain_name), read_idx_images(plain_with_packed_name)));
}

TEST_CASE("case 124 a gzip stream that is cut short anywhere is refused", "[apps]") {
  TemporaryFolder folder;
  const Bytes packed = gzipped(idx_images(20, 28, 28));
  for (size_t size = 2; size < packed.size(); size += size < 64 || size + 64 > packed.size() ? 1 : 97) {
    const auto path = folder.write("images.gz", cut(packed, size));
    REQUIRE_THAT(error_text([&] { read_idx_images(path); }),
                 Contains(path.string()) && Contains("cut short"));
  }
  const auto path = folder.write("images.gz", cut(packed, packed.size() / 2));
  REQUIRE_THAT(error_text([&] { read_idx_images(path); }),
               Contains("expected 15696 bytes") &&
                   Contains("in " + std::to_string(packed.size() / 2) + " bytes of gzip"));
}

TEST_CASE("case 124 a damaged gzip stream is refused by its checksum", "[apps]") {
  TemporaryFolder folder;
  Bytes packed = gzipped(idx_images(20, 28, 28));
  packed[packed.size() - 6] ^= 0x01;
  const auto path = folder.write("images.gz", packed);
  REQUIRE_THAT(error_text([&] { read_idx_images(path); }), Contains(path.string()) && Contains("damaged"));
}

TEST_CASE("case 124 a count of 0xFFFFFFFF takes no memory", "[apps]") {
  TemporaryFolder folder;
  const long before = peak_kilobytes();
  for (const uint32_t side : {1U, 28U, 0xffffffffU}) {
    Bytes bytes = idx_header(0x803, {0xffffffff, side, side});
    bytes.resize(16 + 7840);
    for (const bool packed : {false, true}) {
      const auto path = folder.write("images", packed ? gzipped(bytes) : bytes);
      REQUIRE_THAT(error_text([&] { read_idx_images(path); }),
                   Contains(path.string()) && Contains("4294967295 x ") && Contains("7856 bytes"));
    }
  }
  const auto labels = folder.write("labels", idx_header(0x801, {0xffffffff}));
  REQUIRE_THAT(error_text([&] { read_idx_labels(labels, 10); }),
               Contains("expected 4294967303 bytes") && Contains("found 8 bytes"));
  REQUIRE(peak_kilobytes() - before < 64 * 1024);
}

TEST_CASE("case 124 a missing file or a folder in place of a file is told", "[apps]") {
  TemporaryFolder folder;
  const auto missing = folder.path() / "nothing-here";
  REQUIRE_THAT(error_text([&] { read_idx_images(missing); }),
               Contains(missing.string()) && Contains("does not exist"));
  REQUIRE_THAT(error_text([&] { read_idx_images(folder.path()); }),
               Contains(folder.path().string()) && Contains("a folder"));
}

TEST_CASE("case 124 a label out of range is told with its place", "[apps]") {
  TemporaryFolder folder;
  Bytes bytes = idx_labels(12);
  bytes[8 + 7] = 10;
  const auto path = folder.write("labels", bytes);
  REQUIRE_THAT(error_text([&] { read_idx_labels(path, 10); }), Contains(path.string()) &&
                                                                   Contains("0 to 9") && Contains("got 10") &&
                                                                   Contains("item 7") && Contains("byte 15"));
  REQUIRE(read_idx_labels(path, 11).max().item<int64_t>() == 10);
}
