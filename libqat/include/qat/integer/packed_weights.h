#pragma once

#include <qat/numerics/integer_range.h>
#include <qat/numerics/packed_size.h>

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// The packed form of quantized weights: what is stored for a layer, and the size that limits speak of.
namespace qat {

/// Packs codes without gaps, in the order of a contiguous tensor (last dimension fastest).
///
/// Code i takes the bits i * bits ... (i + 1) * bits - 1 of the string, its lowest bit first; bit k of the
/// string is bit k % 8 of byte k / 8, counted from the lowest. Signed codes are in two's complement. The last
/// byte is filled up with zeros. `codes`: int32, any shape and device. `bits`: 1 to 16, 2 to 16 if signed.
/// Returns packed_code_bytes(codes.numel(), bits) bytes. Throws: c10::ValueError for another type or width,
/// and for a code outside of the width, naming the code, its position and the range.
std::vector<std::uint8_t> pack_codes(const torch::Tensor& codes, std::int64_t bits, Signedness signedness);

/// The codes that pack_codes packed: int32 on the CPU, of `shape`. Throws: c10::ValueError unless `bytes` has
/// exactly the length that shape and width need and its padding is zero, and for a negative size or a width
/// out of range.
torch::Tensor unpack_codes(std::span<const std::uint8_t> bytes, torch::IntArrayRef shape, std::int64_t bits,
                           Signedness signedness);

/// The stored parameters of one layer.
struct PackedLayer {
  std::vector<std::uint8_t> codes;  ///< the weight codes, as pack_codes gives them.
  std::int64_t bits = 8;            ///< width of a code, 1 to 16.
  Signedness signedness = Signedness::kSigned;
  std::vector<std::int64_t> shape;   ///< of the weight.
  std::vector<float> scales;         ///< one for each channel or one for the tensor; positive, finite.
  std::vector<std::int32_t> biases;  ///< codes at scale_x * scale_w[c]; empty without a bias.

  /// What this layer counts in a payload: bytes of codes + 4 * scales + 4 * biases.
  std::int64_t payload_bytes() const;
  bool operator==(const PackedLayer&) const = default;
};

/// Packs a layer. `codes`: int32, see pack_codes. `scales`: float32, [] or [channels], positive and finite.
/// `biases`: int32, [channels], or undefined without a bias. Throws: c10::ValueError for anything else.
PackedLayer pack_layer(const torch::Tensor& codes, std::int64_t bits, Signedness signedness,
                       const torch::Tensor& scales, const torch::Tensor& biases);

/// The layers of a model as one byte string, and the text that says how to read it.
///
/// `bytes` is the counted payload: for each layer in order its codes, its scales (IEEE float32) and its
/// biases (int32 in two's complement), little-endian, with nothing before, between or after. bytes.size() is
/// the sum of payload_bytes() of the layers: the size that a budget limits. `header` does not count; it is
/// JSON:
/// {"format": "qat packed weights", "version": 1, "layers": [{"bits": 4, "signed": true, "shape": [16, 3, 3,
/// 3], "scales": 16, "biases": 16}, ...]}.
struct PackedPayload {
  std::string header;
  std::vector<std::uint8_t> bytes;
};

/// Writes layers. Throws: c10::ValueError for a layer whose code bytes do not fit its shape and width, that
/// has no scale, or one that is not positive and finite, naming the layer by its index.
PackedPayload write_payload(std::span<const PackedLayer> layers);

/// The layers that write_payload wrote. Throws: c10::ValueError for a header that is not as above, for bytes
/// that are fewer or more than it says, for padding that is not zero and for scales that are not positive and
/// finite.
std::vector<PackedLayer> read_payload(const PackedPayload& payload);

}  // namespace qat
