#pragma once

#include <qat/quantizers/parametric_quantizer.h>

#include <optional>
#include <string_view>
#include <vector>

namespace qat::detail {

/// Magnitudes of a power-of-two grid: more would leave the exponents of float32.
constexpr double kMostMagnitudeBits = 6;

/// The learnables of a kind, by name.
std::vector<const char*> learned_names(ParametricKind kind);

/// The option of that name.
std::optional<Learnable> ParametricOptions::*member(std::string_view name);

/// The fewest bits of a kind: a uniform grid needs a code besides 0, a power-of-two grid one magnitude.
double fewest_bits_of(const ParametricOptions& options);

/// Throws: c10::ValueError naming the learnable, its value and what is allowed.
void check_learnable(const ParametricOptions& options, std::string_view name, const Learnable& learnable);

}  // namespace qat::detail
