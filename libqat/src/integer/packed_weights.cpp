#include <qat/integer/packed_weights.h>

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <utility>

namespace qat {
namespace {

constexpr std::string_view kPayloadFormat = "qat packed weights";
constexpr std::int64_t kPayloadVersion = 1;
constexpr std::size_t kWordBytes = 4;

/// The number of elements. `who` names the caller in messages.
std::int64_t element_count(torch::IntArrayRef shape, const std::string& who) {
  std::int64_t count = 1;
  bool is_empty = false;
  for (const std::int64_t size : shape) {
    TORCH_CHECK_VALUE(size >= 0 && size <= kMaxPackedCount, who, ": expected a shape with sizes of 0 to ",
                      kMaxPackedCount, ", got ", shape);
    is_empty = is_empty || size == 0;
    TORCH_CHECK_VALUE(is_empty || count <= kMaxPackedCount / size, who, ": expected a shape of at most ",
                      kMaxPackedCount, " elements, got ", shape);
    count = is_empty ? 0 : count * size;
  }
  return count;
}

/// "[1, 0, 2]": where element `index` of a contiguous tensor of this shape is.
std::string position_text(std::int64_t index, torch::IntArrayRef shape) {
  std::string text;
  for (std::size_t d = shape.size(); d-- > 0; index /= shape[d]) {
    text = std::to_string(index % shape[d]) + (text.empty() ? "" : ", ") + text;
  }
  return "[" + text + "]";
}

/// Collects bits, lowest first, into bytes.
class BitWriter {
 public:
  explicit BitWriter(std::int64_t bytes) { bytes_.reserve(static_cast<std::size_t>(bytes)); }

  void put(std::uint32_t value, int bits) {
    pending_ |= value << held_;
    for (held_ += bits; held_ >= 8; held_ -= 8) {
      bytes_.push_back(static_cast<std::uint8_t>(pending_ & 0xFFU));
      pending_ >>= 8U;
    }
  }

  std::vector<std::uint8_t> finish() {
    if (held_ > 0) bytes_.push_back(static_cast<std::uint8_t>(pending_));
    return std::move(bytes_);
  }

 private:
  std::vector<std::uint8_t> bytes_;
  std::uint32_t pending_ = 0;  ///< at most 7 bits of before and 16 new ones.
  int held_ = 0;
};

/// Hands out what a BitWriter collected.
class BitReader {
 public:
  explicit BitReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::uint32_t take(int bits) {
    for (; held_ < bits; held_ += 8)
      pending_ |= std::uint32_t{bytes_[next_++]} << held_;
    const std::uint32_t value = pending_ & ((1U << bits) - 1U);
    pending_ >>= bits;
    held_ -= bits;
    return value;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t next_ = 0;
  std::uint32_t pending_ = 0;
  int held_ = 0;
};

void check_code_bytes(std::size_t got, torch::IntArrayRef shape, std::int64_t bits, const std::string& who) {
  const std::int64_t expected = packed_code_bytes(element_count(shape, who), bits);
  TORCH_CHECK_VALUE(
      static_cast<std::int64_t>(got) == expected, who, ": codes of shape ", shape, " at ", bits,
      " bits take ", expected, " bytes, got ", got,
      static_cast<std::int64_t>(got) < expected ? "; the data are truncated" : "; the data are too long");
}

void check_padding(std::span<const std::uint8_t> bytes, torch::IntArrayRef shape, std::int64_t bits,
                   const std::string& who) {
  const std::int64_t used = element_count(shape, who) * bits % 8;
  TORCH_CHECK_VALUE(used == 0 || bytes.back() >> used == 0, who,
                    ": expected zero bits after the last code, got the last byte ",
                    static_cast<int>(bytes.back()), " of which ", used,
                    " bits are used; the data are damaged");
}

void check_packed_scales(const PackedLayer& layer, const std::string& who) {
  const auto& scales = layer.scales;
  TORCH_CHECK_VALUE(!scales.empty() || layer.codes.empty(), who,
                    ": expected a scale for each channel or one for the tensor, got none");
  for (std::size_t c = 0; c < scales.size(); ++c) {
    TORCH_CHECK_VALUE(std::isfinite(scales[c]) && scales[c] > 0.0F, who,
                      ": expected positive finite scales, got ", scales[c], " at ", c);
  }
}

/// All that a layer must be, in a payload written or read.
void check_packed_layer(const PackedLayer& layer, const std::string& who) {
  const IntegerRange range(layer.bits, layer.signedness);
  check_code_bytes(layer.codes.size(), layer.shape, range.bits(), who);
  check_padding(layer.codes, layer.shape, range.bits(), who);
  check_packed_scales(layer, who);
}

std::string layer_label(const char* function, std::size_t index) {
  return std::string(function) + ": layer " + std::to_string(index);
}

void append_word(std::vector<std::uint8_t>& bytes, std::uint32_t word) {
  for (std::size_t k = 0; k < kWordBytes; ++k)
    bytes.push_back(static_cast<std::uint8_t>(word >> (8 * k)));
}

std::uint32_t word_at(std::span<const std::uint8_t> bytes, std::size_t index) {
  std::uint32_t word = 0;
  for (std::size_t k = 0; k < kWordBytes; ++k) {
    word |= std::uint32_t{bytes[index * kWordBytes + k]} << (8 * k);
  }
  return word;
}

template <class T>
std::vector<T> words(std::span<const std::uint8_t> bytes) {
  std::vector<T> values(bytes.size() / kWordBytes);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::bit_cast<T>(word_at(bytes, i));
  return values;
}

/// How many bytes each part of a layer takes.
struct PartSizes {
  std::int64_t codes = 0;
  std::int64_t scales = 0;
  std::int64_t biases = 0;
};

/// What the header says of a layer: the layer without its data, and the sizes of these.
struct LayerHeader {
  PackedLayer layer;
  PartSizes sizes;
};

/// Bytes of `count` words. The bound keeps sums far from overflow.
std::int64_t word_bytes(std::int64_t count, const std::string& who) {
  TORCH_CHECK_VALUE(count >= 0 && count <= kMaxPackedCount, who, ": expected 0 to ", kMaxPackedCount,
                    " scales or biases, got ", count);
  return count * static_cast<std::int64_t>(kWordBytes);
}

LayerHeader parse_layer_header(const nlohmann::json& json, const std::string& who) {
  LayerHeader header;
  header.layer.bits = json.at("bits").get<std::int64_t>();
  header.layer.signedness = json.at("signed").get<bool>() ? Signedness::kSigned : Signedness::kUnsigned;
  header.layer.shape = json.at("shape").get<std::vector<std::int64_t>>();
  header.sizes.codes = packed_code_bytes(element_count(header.layer.shape, who), header.layer.bits);
  header.sizes.scales = word_bytes(json.at("scales").get<std::int64_t>(), who);
  header.sizes.biases = word_bytes(json.at("biases").get<std::int64_t>(), who);
  return header;
}

std::vector<LayerHeader> parse_layer_headers(const nlohmann::json& json) {
  TORCH_CHECK_VALUE(json.at("format").get<std::string>() == kPayloadFormat &&
                        json.at("version").get<std::int64_t>() == kPayloadVersion,
                    "read_payload: expected the format \"", kPayloadFormat, "\", version ", kPayloadVersion,
                    ", got ", json.at("format").dump(), ", version ", json.at("version").dump());
  std::vector<LayerHeader> headers;
  for (const auto& layer : json.at("layers")) {
    headers.push_back(parse_layer_header(layer, layer_label("read_payload", headers.size())));
  }
  return headers;
}

std::vector<LayerHeader> parse_payload_header(const std::string& text) {
  try {
    return parse_layer_headers(nlohmann::json::parse(text));
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, "read_payload: the header is not one of packed weights: ", error.what());
  }
}

/// Checks the length before anything is allocated.
void check_payload_length(const std::vector<LayerHeader>& headers, std::size_t got) {
  const auto length = static_cast<std::int64_t>(got);
  std::int64_t expected = 0;
  for (const LayerHeader& header : headers) {
    expected += header.sizes.codes + header.sizes.scales + header.sizes.biases;
    TORCH_CHECK_VALUE(expected <= length, "read_payload: the header needs ", expected, " bytes or more, got ",
                      length, "; the data are truncated");
  }
  TORCH_CHECK_VALUE(expected == length, "read_payload: the header needs ", expected, " bytes, got ", length,
                    "; the data are too long");
}

nlohmann::json layer_header_json(const PackedLayer& layer) {
  return {{"bits", layer.bits},
          {"signed", layer.signedness == Signedness::kSigned},
          {"shape", layer.shape},
          {"scales", layer.scales.size()},
          {"biases", layer.biases.size()}};
}

}  // namespace

std::vector<std::uint8_t> pack_codes(const torch::Tensor& codes, std::int64_t bits, Signedness signedness) {
  const IntegerRange range(bits, signedness);
  TORCH_CHECK_VALUE(codes.defined() && codes.scalar_type() == torch::kInt,
                    "qat::pack_codes: expected int32 codes, got ",
                    codes.defined() ? codes.toString() : "an undefined tensor");
  const auto values = codes.detach().to(torch::kCPU).contiguous();
  const auto* data = values.const_data_ptr<std::int32_t>();
  const std::uint32_t mask = (1U << bits) - 1U;
  BitWriter writer(packed_code_bytes(values.numel(), bits));
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const std::int32_t code = data[i];
    TORCH_CHECK_VALUE(code >= range.qmin() && code <= range.qmax(), "qat::pack_codes: code ", code,
                      " at position ", position_text(i, values.sizes()), " is outside of ", range.to_string(),
                      ", [", range.qmin(), ", ", range.qmax(), "]; pack it with more bits or clamp it");
    writer.put(static_cast<std::uint32_t>(code) & mask, static_cast<int>(bits));
  }
  return writer.finish();
}

torch::Tensor unpack_codes(std::span<const std::uint8_t> bytes, torch::IntArrayRef shape, std::int64_t bits,
                           Signedness signedness) {
  const IntegerRange range(bits, signedness);
  check_code_bytes(bytes.size(), shape, bits, "qat::unpack_codes");
  check_padding(bytes, shape, bits, "qat::unpack_codes");
  const auto codes = torch::empty(shape, torch::kInt);
  auto* values = codes.mutable_data_ptr<std::int32_t>();
  BitReader reader(bytes);
  for (std::int64_t i = 0; i < codes.numel(); ++i) {
    const auto code = static_cast<std::int32_t>(reader.take(static_cast<int>(bits)));
    values[i] = code > range.qmax() ? code - (std::int32_t{1} << bits) : code;
  }
  return codes;
}

std::int64_t PackedLayer::payload_bytes() const {
  return static_cast<std::int64_t>(codes.size() + kWordBytes * (scales.size() + biases.size()));
}

PackedLayer pack_layer(const torch::Tensor& codes, std::int64_t bits, Signedness signedness,
                       const torch::Tensor& scales, const torch::Tensor& biases) {
  PackedLayer layer{pack_codes(codes, bits, signedness), bits, signedness, codes.sizes().vec(), {}, {}};
  TORCH_CHECK_VALUE(scales.defined() && scales.scalar_type() == torch::kFloat && scales.dim() <= 1,
                    "qat::pack_layer: expected float32 scales of shape [] or [channels], got ",
                    scales.defined() ? scales.toString() : "an undefined tensor", " of shape ",
                    scales.defined() ? scales.sizes() : torch::IntArrayRef());
  const auto scale = scales.detach().to(torch::kCPU).contiguous();
  layer.scales.assign(scale.const_data_ptr<float>(), scale.const_data_ptr<float>() + scale.numel());
  check_packed_scales(layer, "qat::pack_layer");
  if (!biases.defined()) return layer;
  TORCH_CHECK_VALUE(biases.scalar_type() == torch::kInt && biases.dim() == 1,
                    "qat::pack_layer: expected int32 biases of shape [channels], got ", biases.toString(),
                    " of shape ", biases.sizes());
  const auto bias = biases.detach().to(torch::kCPU).contiguous();
  const auto* values = bias.const_data_ptr<std::int32_t>();
  layer.biases.assign(values, values + bias.numel());
  return layer;
}

PackedPayload write_payload(std::span<const PackedLayer> layers) {
  PackedPayload payload;
  auto headers = nlohmann::json::array();
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const PackedLayer& layer = layers[l];
    check_packed_layer(layer, layer_label("write_payload", l));
    payload.bytes.insert(payload.bytes.end(), layer.codes.begin(), layer.codes.end());
    for (const float scale : layer.scales)
      append_word(payload.bytes, std::bit_cast<std::uint32_t>(scale));
    for (const std::int32_t bias : layer.biases)
      append_word(payload.bytes, std::bit_cast<std::uint32_t>(bias));
    headers.push_back(layer_header_json(layer));
  }
  const nlohmann::json header = {
      {"format", kPayloadFormat}, {"version", kPayloadVersion}, {"layers", headers}};
  payload.header = header.dump();
  return payload;
}

std::vector<PackedLayer> read_payload(const PackedPayload& payload) {
  std::vector<LayerHeader> headers = parse_payload_header(payload.header);
  check_payload_length(headers, payload.bytes.size());
  std::span<const std::uint8_t> rest(payload.bytes);
  const auto take = [&rest](std::int64_t size) {
    const auto part = rest.first(static_cast<std::size_t>(size));
    rest = rest.subspan(part.size());
    return part;
  };
  std::vector<PackedLayer> layers;
  for (LayerHeader& header : headers) {
    const auto codes = take(header.sizes.codes);
    header.layer.codes.assign(codes.begin(), codes.end());
    header.layer.scales = words<float>(take(header.sizes.scales));
    header.layer.biases = words<std::int32_t>(take(header.sizes.biases));
    check_packed_layer(header.layer, layer_label("read_payload", layers.size()));
    layers.push_back(std::move(header.layer));
  }
  return layers;
}

}  // namespace qat
