#pragma once

#include <qat/autograd/fake_quantize.h>
#include <qat/quantizers/quantizer.h>

#include <cstdint>
#include <optional>
#include <string>

namespace qat {

/// Where an affine quantizer's scale comes from.
enum class ScaleSource : std::int8_t {
  kFixed,    ///< the buffers `scale` and `zero_point`, set once (from a recorder) and kept.
  kCurrent,  ///< the finite extremes of the tensor itself, at every call: weights, which move while they
             ///< train. A trace keeps the scale of the moment as a constant.
};

struct AffineQuantizerOptions {
  IntegerRange range = {};
  Symmetry symmetry = Symmetry::kSymmetric;
  PowerOfTwo power_of_two = PowerOfTwo::kNotRound;
  Rounding rounding = Rounding::kHalfToEven;
  StraightThrough straight_through = StraightThrough::kClipped;
  ScaleSource scale_source = ScaleSource::kFixed;
  /// The channel axis, negative counts from the end; nullopt: one scale for the whole tensor.
  std::optional<std::int64_t> axis = std::nullopt;
};

/// The affine quantizer: real = scale * (code - zero_point), code = clamp(round(x / scale) + zero_point,
/// qmin, qmax).
///
/// Buffers: `scale` (float32, [] or [C]), `zero_point` (int32, same shape); before a range is set they are
/// empty ([0]) and `forward` throws; with ScaleSource::kCurrent they stay so. Integer and boolean tensors
/// pass unchanged.
///
/// Example:
///   AffineQuantizer weights({.range = {8, Signedness::kSigned, RangeWidth::kNarrow}, .axis = 0});
///   weights.set_range({w.amin({1, 2, 3}), w.amax({1, 2, 3})});
class AffineQuantizer : public Quantizer {
 public:
  explicit AffineQuantizer(AffineQuantizerOptions options = {});

  using Quantizer::forward;
  torch::Tensor forward(const torch::Tensor& x, const Activation& activation) override;
  Scaled forward_with_scale(const torch::Tensor& x) override;
  torch::Tensor codes(const torch::Tensor& x) override;
  AffineParams affine_params(const torch::Tensor& x) override;
  std::int64_t bits() const override { return options_.range.bits(); }
  Rounding rounding() const override { return options_.rounding; }
  std::string config() const override;
  void pretty_print(std::ostream& stream) const override;

  /// Computes scale and zero point from a range and keeps them, on the range's device; kFixed.
  /// Throws: as affine_params_from_range; c10::Error if the scale follows the tensor (kCurrent).
  void set_range(const ValueRange& values);
  /// Keeps a given scale (positive, finite) and zero point (in [qmin, qmax]); shapes [] or [C].
  /// Throws: c10::ValueError naming the offending value.
  void set_params(const torch::Tensor& scale, const torch::Tensor& zero_point);
  bool has_range() const;
  const AffineQuantizerOptions& options() const { return options_; }

 private:
  AffineQuantizerOptions options_;
  torch::Tensor scale_;
  torch::Tensor zero_point_;
};

}  // namespace qat
