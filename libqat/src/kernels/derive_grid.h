#pragma once

#include "numerics/grid_rules.h"

#include <cstdint>

namespace qat::kernels {

/// A parameter of a quantizer: one value for each channel, or one for all.
struct GridParameter {
  const double* values = nullptr;  ///< null: the quantizer has no such parameter.
  std::int64_t count = 0;

  QAT_HOST_DEVICE double at(std::int64_t channel) const {
    return values == nullptr ? 0.0 : values[count == 1 ? 0 : channel];
  }
};

/// Where the grid of each channel goes; fields as in UniformGrid. Null: not wanted.
struct GridTables {
  float* scale = nullptr;
  float* lower = nullptr;
  float* upper = nullptr;
  std::int32_t* zero_point = nullptr;
  std::int32_t* low = nullptr;
  std::int32_t* high = nullptr;
};

/// The gradients of scale, lower and upper, one for each channel. Null: zero.
struct GridGradients {
  const float* scale = nullptr;
  const float* lower = nullptr;
  const float* upper = nullptr;
};

struct GridJob {
  std::int64_t channels = 1;
  GridParameter first;
  GridParameter second;
  const std::int64_t* bits_limit = nullptr;  ///< null: none.

  QAT_HOST_DEVICE double limit() const {
    return bits_limit == nullptr ? 16.0 : static_cast<double>(*bits_limit);
  }
};

/// A whole number as int32; NaN gives 0, what is too large the nearest number.
QAT_HOST_DEVICE std::int32_t to_int32(double v) {
  constexpr double most = 2147483647.0;
  return v >= most ? 2147483647 : (v <= -most ? -2147483647 : (v == v ? static_cast<std::int32_t>(v) : 0));
}

template <class Rule>
QAT_HOST_DEVICE void derive_channel(const Rule& rule, const GridJob& job, std::int64_t channel,
                                    const GridTables& out) {
  const auto grid = rule.derive(job.first.at(channel), job.second.at(channel), job.limit());
  out.scale[channel] = static_cast<float>(grid.scale.value());
  if (out.lower != nullptr) out.lower[channel] = static_cast<float>(grid.lower.value());
  if (out.upper != nullptr) out.upper[channel] = static_cast<float>(grid.upper.value());
  if (out.zero_point != nullptr) out.zero_point[channel] = to_int32(grid.zero_point);
  if (out.low != nullptr) out.low[channel] = to_int32(grid.low);
  if (out.high != nullptr) out.high[channel] = to_int32(grid.high);
}

template <class Rule>
void derive_grid(const Rule& rule, const GridJob& job, const GridTables& out) {
  for (std::int64_t channel = 0; channel < job.channels; ++channel)
    derive_channel(rule, job, channel, out);
}

/// The gradients of a channel's two parameters.
struct GridParameterGradients {
  double first;
  double second;
};

template <class Rule>
QAT_HOST_DEVICE GridParameterGradients channel_gradients(const Rule& rule, const GridJob& job,
                                                         std::int64_t channel,
                                                         const GridGradients& gradients) {
  detail::ScalarTape tape;
  const auto first = tape.parameter(job.first.at(channel));
  const auto second = tape.parameter(job.second.at(channel));
  const auto grid = rule.derive(first, second, job.limit());
  if (gradients.scale != nullptr) tape.seed(grid.scale, static_cast<double>(gradients.scale[channel]));
  if (gradients.lower != nullptr) tape.seed(grid.lower, static_cast<double>(gradients.lower[channel]));
  if (gradients.upper != nullptr) tape.seed(grid.upper, static_cast<double>(gradients.upper[channel]));
  tape.run_backward();
  return {tape.gradient(first), tape.gradient(second)};
}

/// The gradients of the parameters: those of a parameter that all channels share are added in the order of
/// the channels.
template <class Rule>
QAT_HOST_DEVICE void derive_gradients(const Rule& rule, const GridJob& job, const GridGradients& gradients,
                                      double* first, double* second) {
  for (std::int64_t i = 0; i < job.first.count; ++i)
    first[i] = 0;
  for (std::int64_t i = 0; i < job.second.count; ++i)
    second[i] = 0;
  for (std::int64_t channel = 0; channel < job.channels; ++channel) {
    const auto own = channel_gradients(rule, job, channel, gradients);
    first[job.first.count == 1 ? 0 : channel] += own.first;
    if (job.second.count != 0) second[job.second.count == 1 ? 0 : channel] += own.second;
  }
}

}  // namespace qat::kernels
