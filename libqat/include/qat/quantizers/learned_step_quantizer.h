#pragma once

#include <qat/autograd/learned_quantize.h>
#include <qat/numerics/integer_range.h>
#include <qat/numerics/value_range.h>
#include <qat/quantizers/quantizer.h>

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace qat {

/// Quantizers of a fixed width whose scale, offset or range learns; in text "lsq", "lsq_plus", "pact", "tqt".
enum class LearnedStepKind : std::int8_t {
  /// Learned step size (Esser et al., arXiv 1902.08153, eq. 1 to 3): parameter `scale`, zero point 0.
  kLsq,
  /// LSQ+ (Bhalgat et al., arXiv 2004.09576, eq. 1 to 5): parameters `scale` and `offset`. The offset is
  /// rounded to a
  /// whole number of steps, zero_point = clamp(round(-offset / scale), qmin, qmax), so that 0 stays exactly
  /// 0.
  kLsqPlus,
  /// PACT (Choi et al., arXiv 1805.06085, eq. 1 to 3): parameter `alpha`, unsigned, scale = alpha / qmax;
  /// alpha gets the
  /// gradient of the elements at or above it, the rounding error gives none.
  kPact,
  /// TQT (Jain et al., arXiv 1903.08066, eq. 5 to 8): parameter `log2_t`, scale = 2^ceil(log2_t) / 2^(bits -
  /// signed).
  /// Elements up to half a step beyond the ends count as inside.
  kTqt,
};

std::string to_string(LearnedStepKind kind);
/// Reads such a name. Throws: c10::ValueError listing the names.
LearnedStepKind parse_learned_step_kind(std::string_view text);

struct LearnedStepOptions {
  LearnedStepKind kind = LearnedStepKind::kLsq;
  IntegerRange range = {};
  Rounding rounding = Rounding::kHalfToEven;
  std::optional<std::int64_t> axis =
      std::nullopt;           ///< the channel axis; nullopt: one set of parameters a tensor.
  std::int64_t channels = 0;  ///< entries of the parameters; needed with an axis.
  /// LSQ and LSQ+: multiply the parameters' gradients by 1 / sqrt(elements of a channel, batch included, *
  /// qmax) (Esser et al., section 2.2), so that scales move about as fast as weights.
  bool scale_gradient = true;
};

/// real = scale * (code - zero_point), code = clamp(round(x / scale) + zero_point, qmin, qmax), with a scale
/// that learns.
///
/// Parameters (float32, [] or [C]) by kind: `scale`; `scale`, `offset`; `alpha`; `log2_t`. Scale and alpha
/// are stored as they are and used held in [2^-63 (kScaleFloor), 2^63]; log2_t in [-31, 31]. Outside, a
/// parameter gets a gradient only if that points inward: it can grow again.
///
/// Gradient: elements strictly between the ends of the range give it to x (an element on an end or within
/// half a step beyond it belongs to the end; TQT: to x), the others to the parameter by the code they
/// saturate at; all give their rounding error to the scale.
class LearnedStepQuantizer : public Quantizer {
 public:
  /// Throws: c10::ValueError for PACT with a signed range, an axis without channels.
  explicit LearnedStepQuantizer(LearnedStepOptions options = {});

  using Quantizer::forward;
  torch::Tensor forward(const torch::Tensor& x, const Activation& activation) override;
  Scaled forward_with_scale(const torch::Tensor& x) override;
  torch::Tensor codes(const torch::Tensor& x) override;
  AffineParams affine_params(const torch::Tensor& x) override;
  std::int64_t bits() const override { return options_.range.bits(); }
  Rounding rounding() const override { return options_.rounding; }
  std::string config() const override;
  void pretty_print(std::ostream& stream) const override;
  void hold_in_bounds() override;

  /// Sets the parameters so that the range covers the values. A range of zero width gives kZeroRangeScale.
  /// Throws: c10::ValueError if its shape is not that of the parameters.
  void start_from(const ValueRange& values);
  /// LSQ's start for a tensor, 2 mean|x| / sqrt(qmax) of each channel (Esser et al., section 2.1),
  /// kZeroRangeScale where all is 0; other kinds: the range of x.
  void start_from_tensor(const torch::Tensor& x);

  /// The grid in use, differentiable by the parameters. `elements` of the tensor: for the gradient's scale.
  UniformGrid grid(std::int64_t elements = 0) const;
  const LearnedStepOptions& options() const { return options_; }

 private:
  std::int64_t channel_elements(const torch::Tensor& x) const;

  LearnedStepOptions options_;
};

}  // namespace qat
