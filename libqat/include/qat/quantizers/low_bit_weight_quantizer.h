#pragma once

#include <qat/quantizers/quantizer.h>

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace qat {

/// Weight quantizers whose scale is a statistic of the weights; in text "dorefa", "binary", "ternary".
enum class LowBitWeightKind : std::int8_t {
  /// DoReFa (Zhou et al., arXiv 1606.06160, eq. 9): t = tanh(w) / max|tanh(w)|,
  /// y = 2 round(N (t/2 + 1/2)) / N - 1 with N = 2^bits - 1; the gradient passes through the rounding, and
  /// through tanh with the maximum as a constant. Codes are the odd numbers 2 q - N at scale 1 / N: there is
  /// no 0.
  kDorefa,
  /// Binary weights (Rastegari et al., arXiv 1603.05279, eq. 4): y = mean|w| * sign(w), sign(0) = +1;
  /// dw = dy where |w| <= 1, else 0.
  kBinary,
  /// Ternary weights (Li et al., arXiv 1605.04711, eq. 5 and 6): y = alpha * sign(w) where |w| > 0.7 mean|w|,
  /// else 0; alpha the mean of |w| over those; dw = dy.
  kTernary,
};

std::string to_string(LowBitWeightKind kind);
/// Reads such a name. Throws: c10::ValueError listing the names.
LowBitWeightKind parse_low_bit_weight_kind(std::string_view text);

struct LowBitWeightOptions {
  LowBitWeightKind kind = LowBitWeightKind::kTernary;
  std::int64_t bits = 2;  ///< DoReFa: 1 to 8. Binary has 1, ternary 2.
  std::optional<std::int64_t> axis =
      std::nullopt;  ///< statistics for each channel of this axis; DoReFa: none.
};

/// real = scale * code with a scale that follows the tensor at every call; zero point 0. No parameters. For
/// weights: an activation given to `forward` is applied first. A tensor (channel) of zeros gives zeros,
/// DoReFa excepted. A NaN gets no gradient; the scale of a tensor (channel) with a NaN is NaN, and so are its
/// values, DoReFa's others excepted.
class LowBitWeightQuantizer : public Quantizer {
 public:
  /// Throws: c10::ValueError for other widths, for DoReFa with an axis.
  explicit LowBitWeightQuantizer(LowBitWeightOptions options = {});

  using Quantizer::forward;
  torch::Tensor forward(const torch::Tensor& x, const Activation& activation) override;
  /// Throws: c10::ValueError for NaN in x.
  torch::Tensor codes(const torch::Tensor& x) override;
  /// Throws: c10::ValueError if x is undefined, for the scale follows it, and, on the CPU, if a scale is not
  /// finite because x holds NaN or infinities.
  AffineParams affine_params(const torch::Tensor& x) override;
  std::int64_t bits() const override { return options_.bits; }
  Rounding rounding() const override { return Rounding::kHalfToEven; }
  std::string config() const override;
  void pretty_print(std::ostream& stream) const override;
  const LowBitWeightOptions& options() const { return options_; }

 private:
  LowBitWeightOptions options_;
};

}  // namespace qat
