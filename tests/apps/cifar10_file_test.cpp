#include "support/cifar10_file.h"

#include "data_files.h"
#include "error_text.h"

#include "support/catch.h"

using namespace qat::apps;
using namespace qat::apps::testing;
using Catch::Matchers::Contains;

TEST_CASE("A CIFAR-10 file is read as planes of red and green and blue", "[apps]") {
  TemporaryFolder folder;
  const auto set = read_cifar10(folder.write("data_batch_1.bin", cifar10_records(12)));
  REQUIRE(set.images.sizes() == torch::IntArrayRef({12, 3, 32, 32}));
  REQUIRE(set.images.is_contiguous());
  REQUIRE(set.images.scalar_type() == torch::kUInt8);
  REQUIRE(torch::equal(set.labels, torch::arange(12).remainder(10)));
  const auto value = 3 * torch::arange(12).view({12, 1, 1, 1}) + torch::arange(3).view({1, 3, 1, 1});
  REQUIRE(set.images.to(torch::kInt64).eq(value).all().item<bool>());
}

TEST_CASE("case 124 a CIFAR-10 file that is no multiple of 3073 bytes is refused", "[apps]") {
  TemporaryFolder folder;
  const auto path = folder.write("test_batch.bin", cut(cifar10_records(3), 2 * 3073 + 100));
  REQUIRE_THAT(error_text([&] { read_cifar10(path); }),
               Contains(path.string()) && Contains("multiple of 3073 bytes") &&
                   Contains("found 6246 bytes") && Contains("2 records and 100 bytes"));
}

TEST_CASE("case 124 an empty CIFAR-10 file is refused", "[apps]") {
  TemporaryFolder folder;
  const auto path = folder.write("test_batch.bin", {});
  REQUIRE_THAT(error_text([&] { read_cifar10(path); }), Contains(path.string()) && Contains("found 0 bytes"));
}

TEST_CASE("case 124 a compressed CIFAR-10 file is refused with what to do", "[apps]") {
  TemporaryFolder folder;
  const auto path = folder.write("test_batch.bin", gzipped(cifar10_records(2)));
  REQUIRE_THAT(error_text([&] { read_cifar10(path); }), Contains(path.string()) && Contains("unpack"));
}

TEST_CASE("case 124 a CIFAR-10 label above 9 is told with its place", "[apps]") {
  TemporaryFolder folder;
  Bytes bytes = cifar10_records(4);
  bytes[2 * 3073] = 200;
  const auto path = folder.write("test_batch.bin", bytes);
  REQUIRE_THAT(error_text([&] { read_cifar10(path); }), Contains(path.string()) && Contains("got 200") &&
                                                            Contains("record 2") && Contains("byte 6146"));
}
