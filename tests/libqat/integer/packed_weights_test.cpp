#include <qat/integer/packed_weights.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace {

using qat::pack_layer;
using qat::PackedCoding;
using qat::PackedFormat;
using qat::PackedLayer;
using qat::PackedPayload;
using qat::read_payload;
using qat::Signedness;
using qat::unpack_weight;
using qat::write_payload;
using qat::testing::error_lacks;
using qat::testing::mismatch;
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
  return pack_layer(int_codes({-8, 7, 3}).reshape({3, 1}), {.bits = 4}, torch::tensor({0.5F, 0.25F, 3.0F}),
                    {}, int_codes({1, -2, 70000}));
}

}  // namespace

TEST_CASE("a layer counts its codes, scales and biases") {
  const PackedLayer layer = small_layer();
  CHECK(layer.payload_bytes() == 2 + 4 * 3 + 4 * 3);
  CHECK(layer.shape == std::vector<std::int64_t>{3, 1});
  CHECK(layer.scales == std::vector<float>{0.5F, 0.25F, 3.0F});
  CHECK(layer.biases == std::vector<std::int32_t>{1, -2, 70000});
  const auto plain = pack_layer(int_codes({1, 2, 3}), {.bits = 3}, torch::tensor(0.5F), {}, {});
  CHECK(plain.payload_bytes() == 2 + 4);
}

TEST_CASE("pack_layer refuses scales and biases of another kind") {
  const auto codes = int_codes({1, 2});
  const auto pack = [&](const torch::Tensor& scales, const torch::Tensor& biases) {
    return [=] { pack_layer(codes, {.bits = 4}, scales, {}, biases); };
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
        R"({"format":"qat packed weights","layers":[{"axis":0,"biases":3,"bits":4,"coding":"uniform",)"
        R"("scales":3,"shape":[3,1],"signed":true,"zero_points":0}],"version":2})");
}

TEST_CASE("a payload of several layers has their size and is read as it was written") {
  torch::manual_seed(2);
  std::vector<PackedLayer> layers = {small_layer()};
  layers.push_back(pack_layer(codes_of_width(1, Signedness::kUnsigned, 9),
                              {.bits = 1, .signedness = Signedness::kUnsigned, .coding = PackedCoding::kOdd},
                              torch::tensor(0.125F), {}, {}));
  layers.push_back(pack_layer(codes_of_width(2, Signedness::kUnsigned, 6).reshape({2, 3}),
                              {.bits = 2,
                               .signedness = Signedness::kUnsigned,
                               .coding = PackedCoding::kPowerOfTwo,
                               .magnitudes = 2,
                               .with_zero = true,
                               .axis = 1},
                              torch::tensor({0.125F, 0.5F, 2.0F}), {}, {}));
  layers.push_back(pack_layer(codes_of_width(8, Signedness::kUnsigned, 4).reshape({2, 2}),
                              {.signedness = Signedness::kUnsigned}, torch::tensor({0.125F, 0.5F}),
                              int_codes({128, 7}), {}));
  layers.push_back(pack_layer(torch::empty({0, 2}, torch::kInt), {}, torch::empty({0}), {}, {}));
  layers.push_back(pack_layer(codes_of_width(13, Signedness::kSigned, 30).reshape({2, 15}), {.bits = 13},
                              torch::tensor({1.0F, 2.0F}), {}, int_codes({5, 6})));
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
  CHECK(error_lacks(read("\"version\":2", "\"version\":1"), {"version 1", "version 2"}) == "");
  CHECK(error_lacks(read("\"bits\":4", "\"bits\":99"), {"layer 0: bits", "1 to 16", "99"}) == "");
  CHECK(error_lacks(read("\"bits\":4", "\"bits\":\"4\""), {"layer 0: bits", "whole number", "\"4\""}) == "");
  CHECK(error_lacks(read("\"bits\":4,", ""), {"header", "bits"}) == "");
  CHECK(error_lacks(read("\"uniform\"", "\"log\""), {"layer 0", "coding", "log", "power_of_two"}) == "");
  CHECK(error_lacks(read("\"uniform\"", "\"power_of_two\""), {"header", "magnitudes"}) == "");
  CHECK(error_lacks(read("\"axis\":0", "\"axis\":1"), {"layer 0", "axis 1", "got 3"}) == "");
  CHECK(error_lacks(read("\"axis\":0", "\"axis\":-7"), {"layer 0: axis", "0 to 1", "-7"}) == "");
  CHECK(error_lacks(read("\"scales\":3", "\"scales\":-3"), {"layer 0: scales", "got -3"}) == "");
  // Numbers that are not whole, or not within int64, or not there.
  CHECK(error_lacks(read("\"bits\":4", "\"bits\":4.9"), {"layer 0: bits", "whole number", "4.9"}) == "");
  CHECK(error_lacks(read("\"version\":2", "\"version\":2.9"), {"version 2, got", "version 2.9"}) == "");
  for (const std::string key : {"scales", "biases", "zero_points", "axis", "bits"}) {
    const auto from = payload.header.find("\"" + key + "\":") + key.size() + 3;
    const std::string number = "\"" + key + "\":" + payload.header.substr(from, 1);
    for (const std::string bad : {"1e300", "18446744073709551615", "0.5", "null", "[1]", "true"}) {
      CAPTURE(key, bad);
      CHECK(error_lacks(read(number, "\"" + key + "\":" + bad), {"layer 0: " + key, "whole number"}) == "");
    }
  }
  CHECK(error_lacks(read("\"shape\":[3,1]", "\"shape\":[3,1.0]"), {"layer 0: size in shape", "1.0"}) == "");
  CHECK(error_lacks(read("\"shape\":[3,1]", "\"shape\":3"), {"layer 0", "array as shape", "3"}) == "");
  CHECK(error_lacks(read("", R"({"format": "qat packed weights", "version": 2, "layers": null})"),
                    {"read_payload", "array", "null"}) == "");
  CHECK(error_lacks(read("\"shape\":[3,1]", "\"shape\":[281474976710656,281474976710656]"), {"layer 0"}) ==
        "");
  CHECK(error_lacks(read("\"shape\":[3,1]", "\"shape\":[281474976710656]"), {"truncated"}) == "");
}

TEST_CASE("a layer has a bias for each output channel or none") {
  const auto refused = [](const std::vector<std::int64_t>& shape, const PackedFormat& format,
                          std::int64_t scales, std::int64_t biases) {
    return error_lacks(
        [&] {
          pack_layer(torch::zeros(shape, torch::kInt), format, torch::ones({scales}), {},
                     torch::zeros({biases}, torch::kInt));
        },
        {"output channel", "got " + std::to_string(biases)});
  };
  const std::string accepted = "no exception";
  for (const std::int64_t scales : {1, 16}) {
    CHECK(refused({16, 3, 3, 3}, {}, scales, 7) == "");
    CHECK(refused({16, 3, 3, 3}, {}, scales, 16) == accepted);
    CHECK(refused({16, 3, 3, 3}, {}, scales, 0) == accepted);
  }
  // A transposed convolution: two, once for each of 1, 2 or 4 groups.
  for (const std::int64_t scales : {1, 2}) {
    for (const std::int64_t biases : {2, 4, 8})
      CHECK(refused({4, 2, 3}, {.axis = 1}, scales, biases) == accepted);
    for (const std::int64_t biases : {1, 3, 6, 16})
      CHECK(refused({4, 2, 3}, {.axis = 1}, scales, biases) == "");
  }
  CHECK(refused({16, 3, 3, 3}, {}, 16, 48) == "");  // its scales are on axis 0
  CHECK(refused({2, 4}, {.axis = 1}, 4, 2) == "");
  auto layer = small_layer();
  layer.biases.pop_back();
  CHECK(error_lacks(
            [&] {
              write_payload({&layer, 1});
            },
            {"layer 0", "output channel", "[3, 1]", "got 2"}) == "");
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

TEST_CASE("the values of a layer follow from what is stored alone") {
  // Uniform: 0.5 * -8, 0.25 * 7, 3 * 3.
  CHECK(mismatch(unpack_weight(small_layer()), torch::tensor({-4.0F, 1.75F, 9.0F}).reshape({3, 1})) == "");
  // With zero points: 0.5 * (0 - 128), 0.5 * (255 - 128) and 2 * (7 - 7), 2 * (3 - 7).
  const auto shifted =
      pack_layer(int_codes({0, 255, 7, 3}).reshape({2, 2}), {.signedness = Signedness::kUnsigned},
                 torch::tensor({0.5F, 2.0F}), int_codes({128, 7}), {});
  CHECK(mismatch(unpack_weight(shifted), torch::tensor({{-64.0F, 63.5F}, {0.0F, -8.0F}})) == "");
  CHECK(shifted.payload_bytes() == 4 + 4 * 2 + 4 * 2);
  // Odd numbers of two bits: -3, -1, 1, 3; a channel of zeros has the scale 0.
  const PackedFormat odd = {
      .bits = 2, .signedness = Signedness::kUnsigned, .coding = PackedCoding::kOdd, .axis = 1};
  const auto numbers =
      pack_layer(int_codes({0, 1, 2, 3}).reshape({2, 2}), odd, torch::tensor({0.25F, 0.0F}), {}, {});
  CHECK(mismatch(unpack_weight(numbers), torch::tensor({{-0.75F, 0.0F}, {0.25F, 0.0F}})) == "");
  // Powers of two: three magnitudes; 0, s, 2 s, 4 s, -s, -2 s, -4 s.
  PackedFormat powers = {.bits = 3,
                         .signedness = Signedness::kUnsigned,
                         .coding = PackedCoding::kPowerOfTwo,
                         .magnitudes = 3,
                         .with_zero = true};
  const auto indices = int_codes({0, 1, 2, 3, 4, 5, 6});
  const auto scale = torch::tensor(0.375F);
  CHECK(mismatch(unpack_weight(pack_layer(indices, powers, scale, {}, {})),
                 torch::tensor({0.0F, 0.375F, 0.75F, 1.5F, -0.375F, -0.75F, -1.5F})) == "");
  powers.with_zero = false;
  CHECK(mismatch(unpack_weight(pack_layer(indices.slice(0, 0, 6), powers, scale, {}, {})),
                 torch::tensor({0.375F, 0.75F, 1.5F, -0.375F, -0.75F, -1.5F})) == "");
  CHECK(error_lacks([&] { unpack_weight(pack_layer(indices, powers, scale, {}, {})); },
                    {"stored number 6", "less than 6"}) == "");
}

TEST_CASE("pack_layer refuses a coding that does not fit") {
  const auto pack = [](const PackedFormat& format, const torch::Tensor& zero_points) {
    return [=] { pack_layer(int_codes({1, 0}), format, torch::tensor({0.5F, 1.0F}), zero_points, {}); };
  };
  const auto kUnsigned = Signedness::kUnsigned;
  CHECK(error_lacks(pack({.coding = PackedCoding::kOdd}, {}), {"odd", "unsigned", "int8"}) == "");
  CHECK(error_lacks(pack({.signedness = kUnsigned, .coding = PackedCoding::kPowerOfTwo}, {}),
                    {"1 to 64 magnitudes", "got 0"}) == "");
  CHECK(error_lacks(pack({.magnitudes = 3}, {}), {"no magnitudes", "uniform", "got 3"}) == "");
  CHECK(error_lacks(pack({.axis = 1}, {}), {"axis 1", "[2]", "expected 0 to 0"}) == "");
  CHECK(error_lacks(pack({}, int_codes({1})), {"zero points of shape [2]", "[1]"}) == "");
  CHECK(error_lacks(pack({}, torch::ones({2})), {"int32 zero points", "Float"}) == "");
  CHECK(error_lacks(pack({.bits = 4}, int_codes({0, 8})), {"zero point 8", "int4", "[-8, 7]"}) == "");
  CHECK(error_lacks(pack({.signedness = kUnsigned, .coding = PackedCoding::kOdd}, int_codes({0, 0})),
                    {"uniform codes", "odd"}) == "");
  // Whole and finite, but 1e38 * 2^63 is not.
  const PackedFormat powers = {
      .bits = 7, .signedness = kUnsigned, .coding = PackedCoding::kPowerOfTwo, .magnitudes = 64};
  const auto top = int_codes({63});
  CHECK(error_lacks([&] { pack_layer(top, powers, torch::tensor(1e38F), {}, {}); },
                    {"64 magnitudes", "1e+38", "float32"}) == "");
  CHECK(mismatch(unpack_weight(pack_layer(top, powers, torch::tensor(0x1p63F), {}, {})),
                 torch::tensor({0x1p126F})) == "");
}
