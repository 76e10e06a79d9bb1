#include "integer/packed_codes_check.h"
#include "numerics/enum_names.h"
#include <qat/integer/packed_weights.h>
#include <qat/numerics/affine.h>

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace qat {
namespace {

constexpr std::string_view kPayloadFormat = "qat packed weights";
constexpr std::int64_t kPayloadVersion = 2;
constexpr std::int64_t kMostMagnitudes = 64;
constexpr std::size_t kWordBytes = 4;

constexpr detail::EnumNames<PackedCoding, 3> kPackedCodingNames{
    {{PackedCoding::kUniform, "uniform"},
     {PackedCoding::kOdd, "odd"},
     {PackedCoding::kPowerOfTwo, "power_of_two"}}};

void check_packed_scales(const PackedLayer& layer, const std::string& who) {
  const auto& scales = layer.scales;
  TORCH_CHECK_VALUE(!scales.empty() || layer.codes.empty(), who,
                    ": expected a scale for each channel or one for the tensor, got none");
  for (std::size_t c = 0; c < scales.size(); ++c) {
    const bool is_usable = scales[c] > 0.0F || (scales[c] == 0.0F && layer.coding == PackedCoding::kOdd);
    TORCH_CHECK_VALUE(std::isfinite(scales[c]) && is_usable, who, ": expected positive finite scales, got ",
                      scales[c], " at ", c);
  }
  const auto dims = static_cast<std::int64_t>(layer.shape.size());
  TORCH_CHECK_VALUE(layer.axis >= 0 && layer.axis < std::max<std::int64_t>(dims, 1), who, ": axis ",
                    layer.axis, " does not exist in the shape ", torch::IntArrayRef(layer.shape),
                    "; expected 0 to ", std::max<std::int64_t>(dims, 1) - 1);
  if (scales.size() <= 1) return;
  const bool fits = dims > 0 && layer.shape[static_cast<std::size_t>(layer.axis)] ==
                                    static_cast<std::int64_t>(scales.size());
  TORCH_CHECK_VALUE(fits, who, ": expected one scale or as many as axis ", layer.axis, " of the shape ",
                    torch::IntArrayRef(layer.shape), " has channels, got ", scales.size());
}

/// Whether a weight of this shape can have so many output channels, which are on an axis: on axis 0, or on
/// axis 1 (transposed convolutions) and there once for each group, the groups sharing the channels of axis 0.
bool has_output_channels(const std::vector<std::int64_t>& shape, std::size_t axis, std::int64_t count) {
  if (axis == 0) return count == (shape.empty() ? 1 : shape[0]);
  if (axis != 1 || shape.size() < 2 || shape[1] == 0 || count % shape[1] != 0) return false;
  return shape[0] % (count / shape[1]) == 0;
}

/// Several scales say which axis the output channels are on; one scale leaves it open.
void check_packed_biases(const PackedLayer& layer, const std::string& who) {
  if (layer.biases.empty()) return;
  const auto count = static_cast<std::int64_t>(layer.biases.size());
  const bool fits =
      layer.scales.size() > 1
          ? has_output_channels(layer.shape, static_cast<std::size_t>(layer.axis), count)
          : has_output_channels(layer.shape, 0, count) || has_output_channels(layer.shape, 1, count);
  TORCH_CHECK_VALUE(fits, who, ": expected a bias for each output channel of the shape ",
                    torch::IntArrayRef(layer.shape), layer.scales.size() > 1 ? " on axis " : "",
                    layer.scales.size() > 1 ? std::to_string(layer.axis) : "", ", or none, got ", count);
}

void check_packed_coding(const PackedLayer& layer, const IntegerRange& range, const std::string& who) {
  const bool is_uniform = layer.coding == PackedCoding::kUniform;
  const std::string name = detail::enum_name(kPackedCodingNames, layer.coding);
  TORCH_CHECK_VALUE(is_uniform || !range.is_signed(), who, ": numbers of the coding ", name,
                    " are unsigned, got ", range.to_string());
  const bool has_magnitudes = layer.coding == PackedCoding::kPowerOfTwo;
  TORCH_CHECK_VALUE(has_magnitudes ? layer.magnitudes >= 1 && layer.magnitudes <= kMostMagnitudes
                                   : layer.magnitudes == 0 && !layer.with_zero,
                    who, ": expected ", has_magnitudes ? "1 to 64 magnitudes" : "no magnitudes and no zero",
                    " for the coding ", name, ", got ", layer.magnitudes);
  for (std::size_t c = 0; has_magnitudes && c < layer.scales.size(); ++c) {
    TORCH_CHECK_VALUE(std::isfinite(std::ldexp(layer.scales[c], static_cast<int>(layer.magnitudes) - 1)), who,
                      ": the largest of ", layer.magnitudes, " magnitudes at scale ", layer.scales[c],
                      " of channel ", c, " is beyond float32; expected fewer magnitudes or a smaller scale");
  }
  TORCH_CHECK_VALUE(
      layer.zero_points.empty() || (is_uniform && layer.zero_points.size() == layer.scales.size()), who,
      ": expected a zero point for each of the ", layer.scales.size(),
      " scales of uniform codes, or none; got ", layer.zero_points.size(), " with the coding ", name);
  for (const std::int32_t zero_point : layer.zero_points) {
    TORCH_CHECK_VALUE(zero_point >= range.qmin() && zero_point <= range.qmax(), who, ": the zero point ",
                      zero_point, " is outside of ", range.to_string(), ", [", range.qmin(), ", ",
                      range.qmax(), "]");
  }
}

/// All that a layer must be, in a payload written or read.
void check_packed_layer(const PackedLayer& layer, const std::string& who) {
  const IntegerRange range(layer.bits, layer.signedness);
  detail::check_packed_codes(layer.codes, layer.shape, range.bits(), who);
  check_packed_scales(layer, who);
  check_packed_coding(layer, range, who);
  check_packed_biases(layer, who);
}

/// The real value of a stored number in a channel.
float packed_value(const PackedLayer& layer, std::int32_t stored, std::size_t channel) {
  const float scale = layer.scales[channel];
  if (layer.coding == PackedCoding::kPowerOfTwo) {
    const std::int64_t index = stored - (layer.with_zero ? 1 : 0);
    TORCH_CHECK_VALUE(index < 2 * layer.magnitudes, "qat::unpack_weight: the stored number ", stored,
                      " stands for no value; expected less than ",
                      2 * layer.magnitudes + (layer.with_zero ? 1 : 0), "; the data are damaged");
    if (index < 0) return 0.0F;
    const float magnitude = std::ldexp(scale, static_cast<int>(index % layer.magnitudes));
    return index < layer.magnitudes ? magnitude : -magnitude;
  }
  if (layer.coding == PackedCoding::kOdd) {
    const std::int32_t odd = 2 * stored - ((std::int32_t{1} << layer.bits) - 1);
    return affine_real(static_cast<float>(odd), scale, 0.0F);
  }
  const std::int32_t zero_point = layer.zero_points.empty() ? 0 : layer.zero_points[channel];
  return affine_real(static_cast<float>(stored), scale, static_cast<float>(zero_point));
}

/// The values of a tensor of this type as a vector, in logical order.
template <class T>
std::vector<T> values_of(const torch::Tensor& tensor) {
  const auto values = tensor.detach().to(torch::kCPU).contiguous();
  const auto* data = values.template const_data_ptr<T>();
  return std::vector<T>(data, data + values.numel());
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
  std::int64_t zero_points = 0;
  std::int64_t biases = 0;
};

/// What the header says of a layer: the layer without its data, and the sizes of these.
struct LayerHeader {
  PackedLayer layer;
  PartSizes sizes;
};

/// A whole number between two; `who` names it.
std::int64_t whole_number(const nlohmann::json& json, std::int64_t min, std::int64_t max,
                          const std::string& who) {
  // An unsigned number beyond int64 would become negative.
  const bool fits = json.is_number_integer() &&
                    (!json.is_number_unsigned() || json.get<std::uint64_t>() <= std::uint64_t{INT64_MAX});
  const std::int64_t value = fits ? json.get<std::int64_t>() : min;
  TORCH_CHECK_VALUE(fits && value >= min && value <= max, who, ": expected a whole number from ", min, " to ",
                    max, ", got ", json.dump());
  return value;
}

/// Bytes of as many words as the header says. The bound keeps sums far from overflow.
std::int64_t word_bytes(const nlohmann::json& json, const char* name, const std::string& who) {
  return whole_number(json.at(name), 0, kMaxPackedCount, who + ": " + name) *
         static_cast<std::int64_t>(kWordBytes);
}

LayerHeader parse_layer_header(const nlohmann::json& json, const std::string& who) {
  LayerHeader header;
  header.layer.bits = whole_number(json.at("bits"), 1, 16, who + ": bits");
  header.layer.signedness = json.at("signed").get<bool>() ? Signedness::kSigned : Signedness::kUnsigned;
  header.layer.coding =
      detail::parse_enum(kPackedCodingNames, who + ": coding", json.at("coding").get<std::string>());
  if (header.layer.coding == PackedCoding::kPowerOfTwo) {
    header.layer.magnitudes = whole_number(json.at("magnitudes"), 1, kMostMagnitudes, who + ": magnitudes");
    header.layer.with_zero = json.at("with_zero").get<bool>();
  }
  TORCH_CHECK_VALUE(json.at("shape").is_array(), who, ": expected an array as shape, got ",
                    json.at("shape").dump());
  for (const auto& size : json.at("shape"))
    header.layer.shape.push_back(whole_number(size, 0, kMaxPackedCount, who + ": size in shape"));
  const auto dims = static_cast<std::int64_t>(header.layer.shape.size());
  header.layer.axis = whole_number(json.at("axis"), 0, std::max<std::int64_t>(dims, 1) - 1, who + ": axis");
  header.sizes.codes = packed_code_bytes(detail::element_count(header.layer.shape, who), header.layer.bits);
  header.sizes.scales = word_bytes(json, "scales", who);
  header.sizes.zero_points = word_bytes(json, "zero_points", who);
  header.sizes.biases = word_bytes(json, "biases", who);
  return header;
}

std::vector<LayerHeader> parse_layer_headers(const nlohmann::json& json) {
  const auto& format = json.at("format");
  const auto& version = json.at("version");
  TORCH_CHECK_VALUE(format.get<std::string>() == kPayloadFormat && version.is_number_integer() &&
                        version == kPayloadVersion,
                    "read_payload: expected the format \"", kPayloadFormat, "\", version ", kPayloadVersion,
                    ", got ", format.dump(), ", version ", version.dump());
  TORCH_CHECK_VALUE(json.at("layers").is_array(), "read_payload: expected an array as layers, got ",
                    json.at("layers").dump());
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
    const PartSizes& sizes = header.sizes;
    expected += sizes.codes + sizes.scales + sizes.zero_points + sizes.biases;
    TORCH_CHECK_VALUE(expected <= length, "read_payload: the header needs ", expected, " bytes or more, got ",
                      length, "; the data are truncated");
  }
  TORCH_CHECK_VALUE(expected == length, "read_payload: the header needs ", expected, " bytes, got ", length,
                    "; the data are too long");
}

nlohmann::json layer_header_json(const PackedLayer& layer) {
  nlohmann::json json = {{"coding", detail::enum_name(kPackedCodingNames, layer.coding)},
                         {"bits", layer.bits},
                         {"signed", layer.signedness == Signedness::kSigned},
                         {"shape", layer.shape},
                         {"axis", layer.axis},
                         {"scales", layer.scales.size()},
                         {"zero_points", layer.zero_points.size()},
                         {"biases", layer.biases.size()}};
  if (layer.coding == PackedCoding::kPowerOfTwo) {
    json["magnitudes"] = layer.magnitudes;
    json["with_zero"] = layer.with_zero;
  }
  return json;
}

}  // namespace

std::int64_t PackedLayer::payload_bytes() const {
  return static_cast<std::int64_t>(codes.size() +
                                   kWordBytes * (scales.size() + zero_points.size() + biases.size()));
}

PackedLayer pack_layer(const torch::Tensor& codes, const PackedFormat& format, const torch::Tensor& scales,
                       const torch::Tensor& zero_points, const torch::Tensor& biases) {
  PackedLayer layer;
  static_cast<PackedFormat&>(layer) = format;
  layer.codes = pack_codes(codes, format.bits, format.signedness);
  layer.shape = codes.sizes().vec();
  TORCH_CHECK_VALUE(scales.defined() && scales.scalar_type() == torch::kFloat && scales.dim() <= 1,
                    "qat::pack_layer: expected float32 scales of shape [] or [channels], got ",
                    scales.defined() ? scales.toString() : "an undefined tensor", " of shape ",
                    scales.defined() ? scales.sizes() : torch::IntArrayRef());
  layer.scales = values_of<float>(scales);
  if (zero_points.defined()) {
    TORCH_CHECK_VALUE(zero_points.scalar_type() == torch::kInt && zero_points.sizes() == scales.sizes(),
                      "qat::pack_layer: expected int32 zero points of shape ", scales.sizes(), ", got ",
                      zero_points.toString(), " of shape ", zero_points.sizes());
    layer.zero_points = values_of<std::int32_t>(zero_points);
  }
  if (biases.defined()) {
    TORCH_CHECK_VALUE(biases.scalar_type() == torch::kInt && biases.dim() == 1,
                      "qat::pack_layer: expected int32 biases of shape [channels], got ", biases.toString(),
                      " of shape ", biases.sizes());
    layer.biases = values_of<std::int32_t>(biases);
  }
  check_packed_layer(layer, "qat::pack_layer");
  return layer;
}

torch::Tensor unpack_weight(const PackedLayer& layer) {
  check_packed_layer(layer, "qat::unpack_weight");
  const auto stored = unpack_codes(layer.codes, layer.shape, layer.bits, layer.signedness);
  const auto weight = torch::empty(layer.shape, torch::kFloat);
  // How many elements follow one another in a channel.
  std::int64_t run = stored.numel();
  if (layer.scales.size() > 1) run = stored.numel() == 0 ? 1 : stored.stride(layer.axis);
  const auto channels = static_cast<std::int64_t>(layer.scales.size());
  const auto* numbers = stored.const_data_ptr<std::int32_t>();
  auto* values = weight.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < stored.numel(); ++i)
    values[i] = packed_value(layer, numbers[i], static_cast<std::size_t>(i / run % channels));
  return weight;
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
    for (const std::int32_t zero_point : layer.zero_points)
      append_word(payload.bytes, std::bit_cast<std::uint32_t>(zero_point));
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
    header.layer.zero_points = words<std::int32_t>(take(header.sizes.zero_points));
    header.layer.biases = words<std::int32_t>(take(header.sizes.biases));
    check_packed_layer(header.layer, layer_label("read_payload", layers.size()));
    layers.push_back(std::move(header.layer));
  }
  return layers;
}

}  // namespace qat
