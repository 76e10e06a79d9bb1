#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>

namespace qat {

/// Real values [min, max]: float32 tensors of shape [] (per tensor) or [C] (per channel). min > max is an
/// empty range; (+inf, -inf) stands for "nothing seen".
struct ValueRange {
  torch::Tensor min;
  torch::Tensor max;
};

/// The smallest and the largest finite element of x, per tensor or per channel of `axis` (negative counts
/// from the end).
///
/// NaN and infinities are left out. Where no finite element remains (an empty tensor, a channel of NaN) the
/// result is the empty range (+inf, -inf). Zeros come out as +0. One pass over the memory on the CPU,
/// whatever the strides of a dense tensor; on a GPU no host synchronisation. No gradient. Types: float32;
/// other floating types are converted to float32 first (a double beyond its range counts as infinite).
/// Throws: c10::TypeError if x is not real floating point, c10::IndexError if the axis does not exist.
ValueRange finite_range(const torch::Tensor& x, std::optional<std::int64_t> axis = std::nullopt);

/// The mean of |x| over the finite elements, per tensor or per channel of `axis`; float32, 0 where there is
/// none. Axis, types and errors as for finite_range. On the CPU the same bits for any number of threads: sums
/// of short pieces, added in float64 in a fixed order.
torch::Tensor mean_magnitude(const torch::Tensor& x, std::optional<std::int64_t> axis = std::nullopt);

}  // namespace qat
