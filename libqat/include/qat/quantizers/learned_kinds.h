#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace qat {

/// The eight parametrisations of "Mixed Precision DNNs" (Uhlich et al., arXiv 1905.11452); in text "fp_n_m",
/// ... Which two of bit width n, exponent m of the range, step d, range xmax and smallest magnitude xmin are
/// learned; the others follow. N = 2^(n - sign) - 1 codes on each side, K = 2^(n - sign - with_zero)
/// magnitudes; P2 is the nearest power of two, R rounds half away from zero.
enum class ParametricKind : std::int8_t {
  kFpNM,          ///< d = P2(2^m / N), xmax = N d.
  kFpBXmax,       ///< d = P2(xmax / N), clipped at min(xmax, N d). U2 of the paper.
  kFpDXmax,       ///< d and xmax as given. U3, recommended where the width learns.
  kFpDB,          ///< xmax = N d. U1.
  kPow2NM,        ///< xmax = 2^R(m), xmin = 2^(R(m) - K + 1).
  kPow2BXmax,     ///< xmin = 2^(1 - K) xmax.
  kPow2BXmin,     ///< xmax = 2^(K - 1) xmin.
  kPow2XminXmax,  ///< as given. P3, recommended where the width learns.
};

std::string to_string(ParametricKind kind);
/// Reads such a name. Throws: c10::ValueError listing the names.
ParametricKind parse_parametric_kind(std::string_view text);
bool is_power_of_two(ParametricKind kind);

/// Quantizers of a fixed width whose scale, offset or range learns; in text "lsq", "lsq_plus", "pact", "tqt".
enum class LearnedStepKind : std::int8_t {
  /// Learned step size (Esser et al., arXiv 1902.08153, eq. 1 to 3): parameter `scale`, zero point 0.
  kLsq,
  /// LSQ+ (Bhalgat et al., arXiv 2004.09576, eq. 1 to 5): parameters `scale` and `offset`. The offset is
  /// rounded to whole steps, zero_point = clamp(round(-offset / scale), qmin, qmax), so that 0 stays
  /// exactly 0.
  kLsqPlus,
  /// PACT (Choi et al., arXiv 1805.06085, eq. 1 to 3): parameter `alpha`, unsigned, scale = alpha / qmax;
  /// alpha gets the gradient of the elements at or above it, the rounding error gives none.
  kPact,
  /// TQT (Jain et al., arXiv 1903.08066, eq. 5 to 8): parameter `log2_t`,
  /// scale = 2^ceil(log2_t) / 2^(bits - signed). Elements up to half a step beyond the ends count as inside.
  kTqt,
};

std::string to_string(LearnedStepKind kind);
/// Reads such a name. Throws: c10::ValueError listing the names.
LearnedStepKind parse_learned_step_kind(std::string_view text);

}  // namespace qat
