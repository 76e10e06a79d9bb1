#pragma once

#include <qat/numerics/value_range.h>
#include <qat/quantizers/affine_quantizer.h>

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace qat {

/// The families of quantizers by the names that configurations use:
/// * affine: fixed width; nothing learns.
/// * lsq, tqt: fixed width; the scale learns.
/// * lsq_plus: as lsq for weights; for activations the offset learns too.
/// * pact: activations that are not negative; fixed width; the range learns.
/// * fp_n_m, fp_b_xmax, fp_d_xmax, fp_d_b: step, range and width learn, up to the given width.
/// * pow2_n_m, pow2_b_xmax, pow2_b_xmin, pow2_xmin_xmax: smallest and largest magnitude and width learn,
///   up to the given width and at most 4 bits.
/// * dorefa, binary, ternary: weights; fixed width (binary 1, ternary 2); nothing learns.
const std::vector<std::string>& weight_quantizer_names();
const std::vector<std::string>& activation_quantizer_names();
/// Whether quantizers of that family have parameters that learn: all but affine, dorefa, binary and ternary.
bool has_learned_parameters(std::string_view family);
/// Whether the width of that family learns.
bool has_learned_width(std::string_view family);

/// The most bits that a family uses where `bits` are asked for: 4 for power-of-two families (eight
/// magnitudes: codes in units of the smallest one fit 8 bits, and biases at its scale 32), `bits` for others.
std::int64_t most_bits(std::string_view family, std::int64_t bits);

/// Where the start values of a weight quantizer come from; in text "statistics", "mse".
enum class WeightStart : std::int8_t {
  kStatistics,  ///< what the family's paper says: the range, or the mean magnitude (lsq).
  /// The part k / 40 of the range, k = 1 ... 40, whose quantized weights have the smallest mean squared
  /// error, for each channel. As kStatistics for dorefa, binary and ternary: their scales follow the weights.
  kMse,
};

std::string to_string(WeightStart start);
/// Reads such a name. Throws: c10::ValueError listing the names.
WeightStart parse_weight_start(std::string_view text);

/// The range that activation quantizers which learn should start from: the part of the recorded range between
/// -L and L, L = 2 mean|x| sqrt(qmax), the start of LSQ (Esser et al., section 2.1, there as the scale L /
/// qmax). A few large values among many small ones would make the recorded range itself too coarse a start
/// for 4 bits and fewer. A mean of 0 limits nothing.
ValueRange start_range(const ValueRange& recorded, const torch::Tensor& mean_magnitude,
                       const IntegerRange& codes);

/// A quantizer of a family, with its start values.
///
/// `options`: codes, symmetry, rounding and axis that it is to have; what a family cannot have is ignored (a
/// parametric quantizer is symmetric). `range`: what was recorded. `weight`: the tensor itself for weights,
/// which some families start from (lsq), and `start`; undefined for activations. Power-of-two weights have no
/// zero, activations have. pact with signed codes is replaced by the affine quantizer: it has no negative
/// codes. Throws: c10::ValueError for an unknown family, for dorefa, binary and ternary activations.
std::shared_ptr<Quantizer> make_quantizer(std::string_view family, const AffineQuantizerOptions& options,
                                          const ValueRange& range, const torch::Tensor& weight = {},
                                          WeightStart start = WeightStart::kStatistics);

}  // namespace qat
