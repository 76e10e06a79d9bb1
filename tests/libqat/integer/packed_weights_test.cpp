#include <qat/integer/packed_weights.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"

namespace {

using qat::pack_codes;
using qat::pack_layer;
using qat::packed_code_bytes;
using qat::PackedLayer;
using qat::PackedPayload;
using qat::read_payload;
using qat::Signedness;
using qat::unpack_codes;
using qat::write_payload;
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

PackedLayer small_layer() {
  return pack_layer(int_codes({-8, 7, 3}).reshape({3, 1}), 4, Signedness::kSigned,
                    torch::tensor({0.5F, 0.25F, 3.0F}), int_codes({1, -2, 70000}));
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
}

TEST_CASE("a layer counts its codes, scales and biases") {
  const PackedLayer layer = small_layer();
  CHECK(layer.payload_bytes() == 2 + 4 * 3 + 4 * 3);
  CHECK(layer.shape == std::vector<std::int64_t>{3, 1});
  CHECK(layer.scales == std::vector<float>{0.5F, 0.25F, 3.0F});
  CHECK(layer.biases == std::vector<std::int32_t>{1, -2, 70000});
  const auto plain = pack_layer(int_codes({1, 2, 3}), 3, Signedness::kSigned, torch::tensor(0.5F), {});
  CHECK(plain.payload_bytes() == 2 + 4);
}

TEST_CASE("pack_layer refuses scales and biases of another kind") {
  const auto codes = int_codes({1, 2});
  const auto pack = [&](const torch::Tensor& scales, const torch::Tensor& biases) {
    return [=] { pack_layer(codes, 4, Signedness::kSigned, scales, biases); };
  };
  const auto scale = torch::tensor(0.5F);
  CHECK(error_lacks(pack({}, {}), {"scales", "undefined"}) == "");
  CHECK(error_lacks(pack(scale.to(torch::kDouble), {}), {"float32", "Double"}) == "");
  CHECK(error_lacks(pack(torch::tensor({0.5F, 0.0F}), {}), {"positive", "got 0 at 1"}) == "");
  CHECK(error_lacks(pack(torch::full({}, std::numeric_limits<float>::infinity()), {}), {"finite"}) == "");
  CHECK(error_lacks(pack(torch::empty({0}), {}), {"got none"}) == "");
  CHECK(error_lacks(pack(scale, torch::ones({2})), {"int32 biases", "Float"}) == "");
  CHECK(error_lacks(pack(scale, torch::ones({2, 1}, torch::kInt)), {"[channels]", "[2, 1]"}) == "");
}

TEST_CASE("a payload holds its layers and nothing else, in little-endian order") {
  const auto layer = small_layer();
  const auto payload = write_payload({&layer, 1});
  const Bytes expected = {
      0x78, 0x03,                                                            // codes
      0,    0,    0, 0x3F, 0,    0,    0x80, 0x3E, 0,    0,    0x40, 0x40,   // 0.5, 0.25, 3
      1,    0,    0, 0,    0xFE, 0xFF, 0xFF, 0xFF, 0x70, 0x11, 0x01, 0x00};  // 1, -2, 70000
  CHECK(payload.bytes == expected);
  CHECK(payload.header ==
        R"({"format":"qat packed weights","layers":[{"biases":3,"bits":4,"scales":3,"shape":[3,1],)"
        R"("signed":true}],"version":1})");
}

TEST_CASE("a payload of several layers has their size and is read as it was written") {
  torch::manual_seed(2);
  std::vector<PackedLayer> layers = {small_layer()};
  layers.push_back(pack_layer(codes_of_width(1, Signedness::kUnsigned, 9), 1, Signedness::kUnsigned,
                              torch::tensor(0.125F), {}));
  layers.push_back(
      pack_layer(torch::empty({0, 2}, torch::kInt), 8, Signedness::kSigned, torch::empty({0}), {}));
  layers.push_back(pack_layer(codes_of_width(13, Signedness::kSigned, 30).reshape({2, 15}), 13,
                              Signedness::kSigned, torch::tensor({1.0F, 2.0F}), int_codes({5, 6})));
  const auto payload = write_payload(layers);
  std::int64_t sum = 0;
  for (const PackedLayer& layer : layers)
    sum += layer.payload_bytes();
  CHECK(static_cast<std::int64_t>(payload.bytes.size()) == sum);
  CHECK((read_payload(payload) == layers));
  CHECK(write_payload({}).bytes.empty());
  CHECK(read_payload(write_payload({})).empty());
}

TEST_CASE("a payload that is truncated, too long or damaged is refused") {
  const std::vector<PackedLayer> layers(2, small_layer());
  const auto payload = write_payload(layers);
  const auto read = [](const PackedPayload& damaged) { return [=] { read_payload(damaged); }; };
  for (std::size_t length = 0; length < payload.bytes.size(); ++length) {
    PackedPayload truncated = payload;
    truncated.bytes.resize(length);
    CHECK(error_lacks(read(truncated), {"truncated"}) == "");
  }
  PackedPayload damaged = payload;
  damaged.bytes.push_back(0);
  CHECK(error_lacks(read(damaged), {"needs 52 bytes", "got 53", "too long"}) == "");
  damaged = payload;
  damaged.bytes[27] |= 0x80U;
  CHECK(error_lacks(read(damaged), {"layer 1", "zero bits"}) == "");
  damaged = payload;
  damaged.bytes[5] = 0xFF;
  CHECK(error_lacks(read(damaged), {"layer 0", "positive finite scales"}) == "");
}

TEST_CASE("a header that is not one of packed weights is refused") {
  const auto layer = small_layer();
  const auto payload = write_payload({&layer, 1});
  const auto read = [&](const std::string& from, const std::string& to) {
    PackedPayload changed = payload;
    if (from.empty()) {
      changed.header = to;
    } else {
      changed.header.replace(changed.header.find(from), from.size(), to);
    }
    return [=] { read_payload(changed); };
  };
  CHECK(error_lacks(read("", "not json"), {"read_payload", "header"}) == "");
  CHECK(error_lacks(read("", "{}"), {"header", "format"}) == "");
  CHECK(error_lacks(read("qat packed weights", "another"), {"format", "another"}) == "");
  CHECK(error_lacks(read("\"version\":1", "\"version\":2"), {"version 1", "version 2"}) == "");
  CHECK(error_lacks(read("\"bits\":4", "\"bits\":99"), {"1 to 16 bits", "99"}) == "");
  CHECK(error_lacks(read("\"bits\":4", "\"bits\":\"4\""), {"header", "string"}) == "");
  CHECK(error_lacks(read("\"bits\":4,", ""), {"header", "bits"}) == "");
  CHECK(error_lacks(read("\"scales\":3", "\"scales\":-3"), {"layer 0", "got -3"}) == "");
  CHECK(error_lacks(read("\"shape\":[3,1]", "\"shape\":[281474976710656,281474976710656]"), {"layer 0"}) ==
        "");
  CHECK(error_lacks(read("\"shape\":[3,1]", "\"shape\":[281474976710656]"), {"truncated"}) == "");
}

TEST_CASE("a layer whose parts disagree is not written") {
  auto layer = small_layer();
  layer.codes.push_back(0);
  CHECK(error_lacks([&] { write_payload({&layer, 1}); }, {"layer 0", "too long"}) == "");
  layer = small_layer();
  layer.scales.clear();
  CHECK(error_lacks([&] { write_payload({&layer, 1}); }, {"layer 0", "got none"}) == "");
  layer = small_layer();
  layer.bits = 17;
  CHECK_THROWS_AS(write_payload({&layer, 1}), c10::ValueError);
}
