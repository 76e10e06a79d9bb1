#pragma once

#include "kernels/channel_view.h"
#include "kernels/element_type.h"

#include <torch/types.h>

#include <cstdint>
#include <optional>

namespace qat::detail {

/// The kernels' name of a floating-point type; nullopt for types they do not know.
std::optional<kernels::ElementType> element_type(torch::ScalarType type);

/// The axis counted from the front; nullopt stays nullopt. Throws: c10::ValueError if x has no such axis.
std::optional<std::int64_t> resolve_axis(const torch::Tensor& x, std::optional<std::int64_t> axis);

/// A tensor without gaps and overlaps (contiguous, channels-last, transposed, ...) in the order of its
/// memory; nullopt for other strides. `axis` as resolve_axis returns it.
std::optional<kernels::ChannelView> dense_view(const torch::Tensor& x, std::optional<std::int64_t> axis);

}  // namespace qat::detail
