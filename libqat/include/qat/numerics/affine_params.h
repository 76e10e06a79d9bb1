#pragma once

#include <qat/numerics/affine_scale.h>
#include <qat/numerics/integer_range.h>
#include <qat/numerics/value_range.h>

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace qat {

/// The names used in configuration files: "symmetric", "affine", "affine_even_zero"; "notround", "round",
/// "ceil", "floor".
std::string to_string(Symmetry symmetry);
std::string to_string(PowerOfTwo rounding);
/// Read such a name, in any case. Throw: c10::ValueError listing the allowed names.
Symmetry parse_symmetry(std::string_view text);
PowerOfTwo parse_power_of_two(std::string_view text);

/// real = scale * (code - zero_point), code in [range.qmin(), range.qmax()].
struct AffineParams {
  torch::Tensor scale;       ///< float32, positive, finite; shape [] or [C].
  torch::Tensor zero_point;  ///< int32, in [qmin, qmax]; 0 if symmetric. Shape of `scale`.
  IntegerRange range = {};   ///< the codes.
  std::optional<std::int64_t> axis = std::nullopt;  ///< the channel axis of a [C] scale; nullopt per tensor.
};

/// Computes scale and zero point as `affine_scale` (affine_scale.h) says: for each channel, on the device of
/// `values`.
///
/// Ranges that do not hold 0 are widened to hold it: 0.0 has a code and comes back as exactly 0.0. A range of
/// zero width gets the scale kZeroRangeScale; no scale is below kScaleFloor. `axis`: only noted; needed for
/// [C] ranges, refused for [] ranges. Reads the values on the host, which waits for a GPU: for ranges that
/// are set once. Throws: c10::ValueError if min or max is NaN or infinite, if min > max, if shapes differ or
/// are neither [] nor [C], and for symmetric codes that lack 0 (narrow unsigned ranges).
AffineParams affine_params_from_range(const ValueRange& values, const IntegerRange& range, Symmetry symmetry,
                                      PowerOfTwo power_of_two = PowerOfTwo::kNotRound,
                                      std::optional<std::int64_t> axis = std::nullopt);

/// The same without looking at the values, so without waiting for a GPU: for ranges that follow a tensor at
/// every step. A NaN bound counts as 0, an infinite bound gives the largest scale: the result is always
/// finite and in range. Throws: c10::ValueError for shapes and codes, as above.
AffineParams affine_params_from_range_unchecked(const ValueRange& values, const IntegerRange& range,
                                                Symmetry symmetry,
                                                PowerOfTwo power_of_two = PowerOfTwo::kNotRound,
                                                std::optional<std::int64_t> axis = std::nullopt);

/// The scale of an integer accumulator, and of the bias that is added to it: scale_x * scale_w, one float32
/// product for each channel. `scale_x`: the input's, []; `scale_w`: the weight's, [] or [C]. No gradient.
/// Throws: c10::ValueError if one of them is undefined or not float32.
torch::Tensor accumulator_scale(const torch::Tensor& scale_x, const torch::Tensor& scale_w);

namespace detail {

/// `affine_scale` written with tensor operations, for devices whose memory the host cannot read. Same bits.
AffineParams affine_params_by_tensor_operations(const ValueRange& values, const IntegerRange& range,
                                                Symmetry symmetry, PowerOfTwo power_of_two);

}  // namespace detail
}  // namespace qat
