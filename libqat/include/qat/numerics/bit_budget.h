#pragma once

#include <qat/numerics/packed_size.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// Bit widths within a hard limit of size.
namespace qat {

/// What one layer asks of a hard limit.
struct WidthRequest {
  std::int64_t count = 0;        ///< weights, 0 to kMaxPackedCount.
  std::int64_t fixed_bytes = 0;  ///< what the width does not change: scales and biases; 0 to kMaxPackedCount.
  /// The latent width in bits. Below min_bits, or NaN, it counts as min_bits; above max_bits as max_bits.
  double wanted = 8.0;
  std::int64_t min_bits = 2;  ///< 1 to max_bits.
  std::int64_t max_bits = 8;  ///< min_bits to 16.
  std::string name = {};      ///< module path, for error messages.
  /// Of further tensors that have the same width, as `count`. Each of them takes whole bytes.
  std::vector<std::int64_t> further_counts = {};
};

/// The bytes of all layers at these widths: the sum of fixed_bytes and packed_code_bytes(count, width) for
/// each of the counts. Throws: c10::ValueError if there are not as many widths as requests, and for values
/// out of range.
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
