#pragma once

#include <qat/autograd/learned_quantize.h>
#include <qat/numerics/integer_range.h>
#include <qat/numerics/value_range.h>
#include <qat/quantizers/learned_kinds.h>
#include <qat/quantizers/quantizer.h>

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace qat {

/// LSQ's start scale 2 mean|x| / sqrt(qmax) (Esser et al., section 2.1), of the same shape; float64.
torch::Tensor lsq_start_scale(const torch::Tensor& mean_magnitude, const IntegerRange& range);

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
/// After a start, hold_in_bounds keeps scale and alpha at 2^-10 of their start values or above (log2_t: 10
/// below): a large step of the optimizer makes a scale small, not zero, and biases at it stay within int32.
/// Buffer `least`, shape of the parameter; kScaleFloor (-31) until a start, and for channels that were all 0
/// then: nothing is known of their scale.
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
  /// LSQ's start for a tensor, 2 mean|x| / sqrt(qmax) of each channel (Esser et al., section 2.1), NaN and
  /// infinities left out, kZeroRangeScale where nothing or only zeros remain; other kinds: the range of x.
  void start_from_tensor(const torch::Tensor& x);

  /// The grid in use, differentiable by the parameters. `elements` of the tensor: for the gradient's scale.
  UniformGrid grid(std::int64_t elements = 0) const;
  const LearnedStepOptions& options() const { return options_; }

 private:
  std::int64_t channel_elements(const torch::Tensor& x) const;

  /// `has_data`: whether the value follows from data other than 0, for each entry.
  void set_start(const torch::Tensor& value, const torch::Tensor& has_data);

  LearnedStepOptions options_;
  torch::Tensor least_;
};

}  // namespace qat
