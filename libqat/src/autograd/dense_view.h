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

/// The same tensor with short rows of a channel (a 2 x 2 map) unrolled into a longer table of channels, so
/// that they cost what long ones do. Entry i of a table for the result belongs to channel i / view.inner %
/// view.channels.
kernels::ChannelView unrolled(const kernels::ChannelView& view);

/// Whether two tensors of one shape have their elements in the same order of memory.
bool same_order(const torch::Tensor& a, const torch::Tensor& b);

/// Elements for which starting a thread is worth while.
inline constexpr std::int64_t kGrain = 32768;

}  // namespace qat::detail
