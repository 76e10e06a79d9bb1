#pragma once

#include <qat/integer/packed_codes.h>
#include <qat/numerics/integer_range.h>
#include <qat/numerics/packed_size.h>

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// The packed form of quantized weights: what is stored for a layer, and the size that limits speak of.
namespace qat {

/// What the number that is stored for a weight stands for. In the header: "uniform", "odd", "power_of_two".
enum class PackedCoding : std::int8_t {
  kUniform,     ///< a code q: real = scale * (q - zero_point).
  kOdd,         ///< q for the odd number 2 q - (2^bits - 1): real = scale * (2 q - (2^bits - 1)); unsigned.
                ///< Binary weights (-1, 1) and DoReFa weights.
  kPowerOfTwo,  ///< the index j of a magnitude, real = scale * 2^j, 0 <= j < magnitudes; for negative numbers
                ///< j + magnitudes; unsigned. With a zero all of these are one higher, and 0 is 0.
};

/// How stored numbers become real values, together with scales and zero points.
struct PackedFormat {
  std::int64_t bits = 8;  ///< width of a stored number, 1 to 16.
  Signedness signedness = Signedness::kSigned;
  PackedCoding coding = PackedCoding::kUniform;
  std::int64_t magnitudes = 0;  ///< kPowerOfTwo: how many, 1 to 64; else 0.
  bool with_zero = false;       ///< kPowerOfTwo: whether 0 is among the values.
  std::int64_t axis = 0;        ///< the axis of the weight that the scales belong to, if there are several;
                                ///< counted from the front.
  bool operator==(const PackedFormat&) const = default;
};

/// The stored parameters of one layer.
struct PackedLayer : PackedFormat {
  std::vector<std::uint8_t> codes;        ///< the stored numbers, as pack_codes gives them.
  std::vector<std::int64_t> shape;        ///< of the weight.
  std::vector<float> scales;              ///< one for each channel or one for the tensor; positive, finite;
                                          ///< with kOdd also 0: a channel of zeros.
  std::vector<std::int32_t> zero_points;  ///< kUniform: as many as scales; empty where all are 0.
  std::vector<std::int32_t> biases;       ///< codes at scale_x * scale_w[c], one for each output channel;
                                          ///< empty without a bias.

  /// What this layer counts in a payload: bytes of codes + 4 * (scales + zero points + biases).
  std::int64_t payload_bytes() const;
  bool operator==(const PackedLayer&) const = default;
};

/// Packs a layer. `codes`: the numbers to store, int32, see pack_codes. `scales`: float32, [] or [channels].
/// `zero_points`: int32, of the shape of the scales, or undefined where all are 0. `biases`: int32,
/// [output channels], or undefined without a bias. Output channels are the size of axis 0, or that of axis 1
/// times a number of groups that divides axis 0 (transposed convolutions); with several scales those of their
/// axis. Throws: c10::ValueError for anything else, see PackedLayer.
PackedLayer pack_layer(const torch::Tensor& codes, const PackedFormat& format, const torch::Tensor& scales,
                       const torch::Tensor& zero_points, const torch::Tensor& biases);

/// The real values of a layer's weight, float32 on the CPU, of its shape: those that the quantizer gave for
/// the float32 weight, bit for bit (-0 becomes 0). Nothing but the layer is needed. Throws: c10::ValueError
/// for a layer that write_payload would refuse, and for a number that stands for no magnitude.
torch::Tensor unpack_weight(const PackedLayer& layer);

/// The layers of a model as one byte string, and the text that says how to read it.
///
/// `bytes` is the counted payload: for each layer in order its codes, its scales (IEEE float32), its zero
/// points and its biases (int32 in two's complement), little-endian, with nothing before, between or after.
/// bytes.size() is the sum of payload_bytes() of the layers: the size that a budget limits. `header` does not
/// count; it is JSON, numbers of entries for scales, zero points and biases:
/// {"format": "qat packed weights", "version": 2, "layers": [{"coding": "uniform", "bits": 4, "signed": true,
/// "shape": [16, 3, 3, 3], "axis": 0, "scales": 16, "zero_points": 0, "biases": 16}, ...]}; with the coding
/// "power_of_two" also "magnitudes" and "with_zero".
struct PackedPayload {
  std::string header;
  std::vector<std::uint8_t> bytes;
};

/// Writes layers. Throws: c10::ValueError for a layer whose parts disagree (code bytes and shape, scales and
/// channels, biases and output channels), whose scales are not positive and finite, or whose magnitudes leave
/// float32, naming the layer by its index.
PackedPayload write_payload(std::span<const PackedLayer> layers);

/// The layers that write_payload wrote. Throws: c10::ValueError for a header that is not as above (numbers
/// are whole), for bytes that are fewer or more than it says, for padding that is not zero and for layers
/// that write_payload would refuse.
std::vector<PackedLayer> read_payload(const PackedPayload& payload);

}  // namespace qat
