#pragma once

#include <qat/numerics/packed_size.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// Learned bit widths: the width that a quantizer's parameters imply, the penalty of a size above a limit,
/// and the widths that keep a hard limit. Source of the formulas: Uhlich et al., "Mixed Precision DNNs: All
/// you need is a good parametrization" (ICLR 2020), and the program published with it.
namespace qat {

/// A width in bits and its derivatives with respect to the raw parameters, those before they are rounded to
/// powers of two. Rounding up and rounding have the derivative 1 (straight-through).
struct BitCount {
  std::int64_t bits;
  double d_xmax;  ///< with respect to the raw xmax.
  double d_step;  ///< with respect to the raw step (uniform) or the raw xmin (power of two).
};

/// The width of a uniform quantizer with step d = `step` rounded to a power of two and the range up to
/// `xmax`: max(ceil(log2(q + 1)) + s, min_bits), q = round(xmax / d), halves away from zero; s = 1 if
/// `is_signed`, else 0. Derivatives: 1 / (ln 2 * (q + 1) * d) for xmax, -xmax / (ln 2 * (q + 1) * d * step)
/// for the step; both 0 where min_bits is as large or larger. Bounds of the parameters are the caller's.
/// Throws: c10::ValueError unless xmax >= 0 and step > 0, both and their quotient finite, and min_bits >= 0.
BitCount uniform_bits(double xmax, double step, bool is_signed, std::int64_t min_bits);

/// The width of a power-of-two quantizer with the magnitudes xmin ... xmax, both rounded to powers of two:
/// max(ceil(log2(k + 1)) + e, min_bits), k = log2(xmax / xmin); e = 1 with `extra_bit` (the sign of weights,
/// the zero of activations), else 0. Derivatives: 1 / (ln(2)^2 * (k + 1) * xmax) for xmax and -1 / (ln(2)^2 *
/// (k + 1) * xmin) for xmin, with the raw parameters; both 0 where min_bits is as large or larger. Bounds in
/// the wrong order count as if exchanged. Throws: c10::ValueError unless both are positive and finite and
/// min_bits >= 0.
BitCount pow2_bits(double xmax, double xmin, bool extra_bit, std::int64_t min_bits);

struct BudgetPenalty {
  double value;
  double d_size;  ///< derivative with respect to the size, per kB.
};

/// lambda * max(0, size_kb - budget_kb)^2, to be added to the loss, and its derivative. Throws:
/// c10::ValueError for NaN or infinite values and for a negative lambda.
BudgetPenalty budget_penalty(double size_kb, double budget_kb, double lambda);

/// What one layer asks of a hard limit.
struct WidthRequest {
  std::int64_t count = 0;        ///< weights, 0 to kMaxPackedCount.
  std::int64_t fixed_bytes = 0;  ///< what the width does not change: scales and biases; 0 to kMaxPackedCount.
  /// The latent width in bits. Below min_bits, or NaN, it counts as min_bits; above max_bits as max_bits.
  double wanted = 8.0;
  std::int64_t min_bits = 2;  ///< 1 to max_bits.
  std::int64_t max_bits = 8;  ///< min_bits to 16.
  std::string name = {};      ///< module path, for error messages.
};

/// The bytes of all layers at these widths: the sum of packed_code_bytes(count, width) + fixed_bytes. Throws:
/// c10::ValueError if there are not as many widths as requests, and for values out of range.
std::int64_t packed_bytes(std::span<const WidthRequest> requests, std::span<const std::int64_t> widths);

/// The same with every layer at min_bits: no budget below it can be kept. Throws: c10::ValueError for
/// requests out of range.
std::int64_t smallest_packed_bytes(std::span<const WidthRequest> requests);

/// The widths within `budget_bytes` that are closest to the wanted ones.
///
/// Where everything fits, each is round(wanted), halves away from zero. Otherwise the sum of squares
/// (width - wanted)^2 is the smallest that the budget allows. Guaranteed:
/// * packed_bytes of the result is never above the budget; min_bits <= width <= round(wanted).
/// * No other widths within the budget are closer (by more than the rounding of double sums). So a larger
///   budget never gives a larger distance.
/// * No layer could have one bit more, up to round(wanted), within the budget.
/// * Equal arguments give equal widths. Of equally close widths those with the fewest bytes are taken, of
/// these
///   the ones where the first layers have fewer. Bytes left over go to the layers in order, where a bit more
///   is as close: 4 instead of 3 where 3.5 is wanted.
///
/// A step lowers one layer by a bit or more and saves whole bytes. Steps are first taken by the smallest rise
/// of the sum for each byte saved; that alone may miss the optimum by one step, but it bounds the optimum
/// from both sides. Between the bounds few combinations remain, which are compared in full: well below a
/// millisecond for 20 layers, about a millisecond for 60 and 20 ms for 200; a few times that in bad cases.
/// Throws: c10::ValueError if the budget is below smallest_packed_bytes, naming both and the layers' minima,
/// and for requests out of range.
std::vector<std::int64_t> widths_within_budget(std::span<const WidthRequest> requests,
                                               std::int64_t budget_bytes);

}  // namespace qat
