#include <qat/integer/packed_codes.h>
#include <qat/numerics/packed_size.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"

namespace {

using qat::pack_codes;
using qat::packed_code_bytes;
using qat::Signedness;
using qat::unpack_codes;
using qat::testing::error_lacks;
using Bytes = std::vector<std::uint8_t>;

torch::Tensor int_codes(const std::vector<std::int32_t>& values) {
  return torch::tensor(values, torch::kInt);
}

/// All codes of a width if there are few, else random ones with the extremes among them.
torch::Tensor codes_of_width(std::int64_t bits, Signedness signedness, std::int64_t count) {
  const qat::IntegerRange range(bits, signedness);
  auto codes = torch::randint(range.qmin(), range.qmax() + 1, {count}, torch::kInt);
  codes[0] = range.qmin();
  codes[count - 1] = range.qmax();
  return codes;
}

}  // namespace

TEST_CASE("codes are packed lowest bit first, in two's complement, padded to a byte") {
  CHECK(pack_codes(int_codes({1, 2, 3}), 4, Signedness::kUnsigned) == Bytes{0x21, 0x03});
  CHECK(pack_codes(int_codes({-1, -8, 7}), 4, Signedness::kSigned) == Bytes{0x8F, 0x07});
  CHECK(pack_codes(int_codes({1, 0, 1, 1, 0, 0, 0, 1, 1}), 1, Signedness::kUnsigned) == Bytes{0x8D, 0x01});
  CHECK(pack_codes(int_codes({5, 3, 6}), 3, Signedness::kUnsigned) == Bytes{0x9D, 0x01});  // 110'011'101
  CHECK(pack_codes(int_codes({-2, 258}), 16, Signedness::kSigned) == Bytes{0xFE, 0xFF, 0x02, 0x01});
}

TEST_CASE("codes of every width and length come back") {
  torch::manual_seed(1);
  for (std::int64_t bits = 1; bits <= 16; ++bits) {
    for (const auto signedness : {Signedness::kSigned, Signedness::kUnsigned}) {
      if (bits == 1 && signedness == Signedness::kSigned) continue;
      for (const std::int64_t count : {2, 3, 7, 8, 9, 64, 1001}) {
        CAPTURE(bits, count, static_cast<int>(signedness));
        const auto codes = codes_of_width(bits, signedness, count);
        const Bytes bytes = pack_codes(codes, bits, signedness);
        CHECK(static_cast<std::int64_t>(bytes.size()) == packed_code_bytes(count, bits));
        CHECK(torch::equal(unpack_codes(bytes, {count}, bits, signedness), codes));
      }
    }
  }
}

TEST_CASE("codes are packed in logical order, whatever the strides") {
  const auto codes = torch::arange(24, torch::kInt).reshape({2, 3, 4});
  const auto strided = codes.permute({2, 0, 1});
  const Bytes bytes = pack_codes(strided, 5, Signedness::kUnsigned);
  CHECK(bytes == pack_codes(strided.contiguous(), 5, Signedness::kUnsigned));
  CHECK(torch::equal(unpack_codes(bytes, {4, 2, 3}, 5, Signedness::kUnsigned), strided));
}

TEST_CASE("tensors without elements and without dimensions are packed") {
  CHECK(pack_codes(torch::empty({0, 3}, torch::kInt), 4, Signedness::kSigned).empty());
  CHECK(unpack_codes({}, {0, 3}, 4, Signedness::kSigned).sizes() == torch::IntArrayRef({0, 3}));
  const Bytes bytes = pack_codes(torch::scalar_tensor(-3, torch::kInt), 3, Signedness::kSigned);
  CHECK(bytes == Bytes{0x05});
  CHECK(unpack_codes(bytes, {}, 3, Signedness::kSigned).item<std::int32_t>() == -3);
}

TEST_CASE("packed_code_bytes rounds up and refuses what has no size") {
  CHECK(packed_code_bytes(0, 7) == 0);
  CHECK(packed_code_bytes(1, 1) == 1);
  CHECK(packed_code_bytes(8, 1) == 1);
  CHECK(packed_code_bytes(3, 3) == 2);
  CHECK(packed_code_bytes(268346, 4) == 134173);
  CHECK(packed_code_bytes(qat::kMaxPackedCount, 16) == qat::kMaxPackedCount * 2);
  CHECK(error_lacks([] { packed_code_bytes(1, 0); }, {"1 to 16 bits", "got 0"}) == "");
  CHECK(error_lacks([] { packed_code_bytes(1, 17); }, {"got 17"}) == "");
  CHECK(error_lacks([] { packed_code_bytes(-1, 4); }, {"got -1"}) == "");
  CHECK_THROWS_AS(packed_code_bytes(qat::kMaxPackedCount + 1, 4), c10::ValueError);
}

TEST_CASE("a code outside of its width is refused by value, position and range") {
  const auto signed_codes = int_codes({0, 7, -8, 8, 0, 0}).reshape({2, 3});
  CHECK(error_lacks([&] { pack_codes(signed_codes, 4, Signedness::kSigned); },
                    {"code 8", "position [1, 0]", "int4", "[-8, 7]"}) == "");
  CHECK(error_lacks(
            [] {
              pack_codes(int_codes({3, -1}), 2, Signedness::kUnsigned);
            },
            {"code -1", "position [1]", "uint2", "[0, 3]"}) == "");
  CHECK_THROWS_AS(pack_codes(int_codes({std::numeric_limits<std::int32_t>::min()}), 16, Signedness::kSigned),
                  c10::ValueError);
}

TEST_CASE("packing refuses other types and widths") {
  CHECK(error_lacks([] { pack_codes(torch::ones({2}), 4, Signedness::kSigned); }, {"int32", "Float"}) == "");
  CHECK(error_lacks([] { pack_codes({}, 4, Signedness::kSigned); }, {"undefined"}) == "");
  CHECK_THROWS_AS(pack_codes(int_codes({0}), 0, Signedness::kUnsigned), c10::ValueError);
  CHECK_THROWS_AS(pack_codes(int_codes({0}), 17, Signedness::kUnsigned), c10::ValueError);
  CHECK_THROWS_AS(pack_codes(int_codes({0}), 1, Signedness::kSigned), c10::ValueError);
}

TEST_CASE("unpacking refuses bytes that are truncated, too long or not zero at the end") {
  const Bytes bytes = pack_codes(int_codes({1, 2, 3}), 4, Signedness::kUnsigned);
  const auto unpack = [](const Bytes& data, torch::IntArrayRef shape) {
    return [=] { unpack_codes(data, shape, 4, Signedness::kUnsigned); };
  };
  CHECK(error_lacks(unpack(bytes, {5}), {"[5]", "take 3 bytes", "got 2", "truncated"}) == "");
  CHECK(error_lacks(unpack(bytes, {2}), {"take 1 bytes", "got 2", "too long"}) == "");
  CHECK(error_lacks(unpack({0x21, 0x13}, {3}), {"zero bits", "got the last byte 19"}) == "");
  CHECK(error_lacks(unpack(bytes, {-3}), {"[-3]"}) == "");
  const std::int64_t huge = std::int64_t{1} << 40;
  CHECK_THROWS_AS(unpack_codes(bytes, {huge, huge}, 4, Signedness::kUnsigned), c10::ValueError);
  // Nothing to unpack, but no tensor either.
  for (const auto& shape :
       std::vector<std::vector<std::int64_t>>{{0, 1LL << 48, 1LL << 48}, {huge, huge, 0}}) {
    CHECK(error_lacks([&] { unpack_codes({}, shape, 4, Signedness::kUnsigned); }, {"at most", "elements"}) ==
          "");
  }
  CHECK(unpack_codes({}, {0, 1LL << 48}, 4, Signedness::kUnsigned).numel() == 0);
}
