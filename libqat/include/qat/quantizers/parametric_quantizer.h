#pragma once

#include <qat/autograd/learned_quantize.h>
#include <qat/numerics/value_range.h>
#include <qat/quantizers/learned_kinds.h>
#include <qat/quantizers/quantizer.h>

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace qat {

namespace detail {
struct GridInputs;
struct ParametricRule;
}  // namespace detail

/// A learnable: its start value, and the closed range in which it is used.
struct Learnable {
  double start = 0;
  double min = 0;
  double max = 0;
  bool operator==(const Learnable&) const = default;
};

struct ParametricOptions {
  ParametricKind kind = ParametricKind::kFpDXmax;
  bool is_signed = true;  ///< unsigned: the quantizer is a ReLU too.
  bool with_zero = true;  ///< power-of-two kinds: whether 0 is among the values.
  /// Start values and bounds; those that the kind does not learn are ignored. nullopt: the defaults of
  /// `default_learnable`.
  std::optional<Learnable> n = std::nullopt;
  std::optional<Learnable> m = std::nullopt;
  std::optional<Learnable> d = std::nullopt;
  std::optional<Learnable> xmax = std::nullopt;
  std::optional<Learnable> xmin = std::nullopt;
  Rounding rounding = Rounding::kHalfAwayFromZero;  ///< of elements. Widths always round half away from zero.
  std::optional<std::int64_t> axis =
      std::nullopt;             ///< the channel axis; nullopt: one d, xmax, xmin, m a tensor.
  std::int64_t channels = 0;    ///< entries of d, xmax, xmin, m; needed with an axis. n has one.
  bool fix_parameters = false;  ///< the learnables keep their values.
  /// Reproduces nnabla's numbers with its faults: no gradient at a bound, codes beyond the width, values
  /// above xmax, NaN at zeros and infinities. Its width has no limit: limit_bits refuses. Slow; for
  /// comparisons.
  bool compatible = false;
};

/// The defaults of the original: n 8 in [2, 16] (pow2: [1, 8]; pow2_n_m [1, 16]), m 1 in [-8, 8], d 2^-4 in
/// [2^-8, 2^8], xmax 1 in [0.001, 10] (pow2: [2^-8, 256]), xmin 2^-7 in [2^-15, 256]. `name`: "n", "m", "d",
/// "xmax" or "xmin".
Learnable default_learnable(ParametricKind kind, std::string_view name);

/// A quantizer whose step, range and bit width learn.
///
/// Parameters (float32): those of n, m, d, xmax, xmin that the kind learns; [] or, with an axis, [C]; n is []
/// always. The gradient of an element inside the range goes to x, of one on or beyond an end to that end, and
/// the rounding error to the step. A parameter outside its bounds is used at the bound; there it gets a
/// gradient only if that points inward.
///
/// Uniform kinds: real = d * code, d a power of two, code in [-high, high] or [0, high], high = floor(xmax /
/// d) <= N: no value exceeds xmax; the d in use is held at or below xmax, also where its own lower bound is
/// above. Power-of-two kinds: real = xmin * code, code 0, +-1, +-2, +-4, ...; K is held in [1, 64], the xmin
/// in use at or below xmax in the same way.
///
/// Example:
///   ParametricQuantizer weights({.kind = ParametricKind::kFpDXmax, .axis = 0, .channels = 64});
///   weights.start_from({w.amin({1, 2, 3}), w.amax({1, 2, 3})}, /*bits=*/4);
class ParametricQuantizer : public Quantizer {
 public:
  /// Throws: c10::ValueError naming the learnable, its value and what is allowed: start values outside their
  /// bounds, empty bounds, widths below 1 + signed (pow2: below signed + with_zero) or above 16, bounds of d,
  /// xmax and xmin outside [2^-63 (kScaleFloor), 2^63], of m outside [-63, 63]; where the step follows from
  /// range and width (fp_n_m, fp_b_xmax) from 2^-47 (m: -47) on, so that no step is below kScaleFloor.
  explicit ParametricQuantizer(ParametricOptions options = {});

  using Quantizer::forward;
  torch::Tensor forward(const torch::Tensor& x, const Activation& activation) override;
  Scaled forward_with_scale(const torch::Tensor& x) override;
  torch::Tensor codes(const torch::Tensor& x) override;
  torch::Tensor scale(const torch::Tensor& x) override;
  /// Scale d (xmin), zero point 0, and the narrowest range that holds all codes.
  /// Throws: c10::ValueError where codes in units of xmin need more than 16 bits.
  AffineParams affine_params(const torch::Tensor& x) override;
  /// The width of the codes in use: ceil(log2(high + 1)) + signed; pow2: ceil(log2(magnitudes + with_zero)) +
  /// signed. Waits for a GPU.
  std::int64_t bits() const override;
  Rounding rounding() const override { return options_.rounding; }
  std::string config() const override;
  void pretty_print(std::ostream& stream) const override;
  void hold_in_bounds() override;

  /// Sets the learnables for values in a range and a width: xmax = max(|min|, |max|), the step
  /// 2^floor(log2(xmax / N)), above 4 bits 2^ceil; m = log2(xmax); held in the bounds. A range of zero width
  /// keeps the start values. Throws: c10::ValueError if the shapes are not those of the parameters or the
  /// width is impossible.
  void start_from(const ValueRange& values, std::int64_t bits);

  /// Never more than so many bits from now on, whatever the parameters say: of the range and the step the
  /// range is kept and the step becomes coarser (2^k, the finest that fits). The parameters themselves stay,
  /// so that they can learn across the limit: they get the gradient of the step in use. Stored in the buffer
  /// `bits_limit` (int64). Throws: c10::ValueError for a limit below the fewest bits of the kind or above 16,
  /// and if the quantizer is `compatible`: the original has no limit.
  void limit_bits(std::int64_t bits);
  /// The fewest bits that the kind can have: 1 + signed; pow2: signed + with_zero, at least 1.
  std::int64_t fewest_bits() const;
  /// The width that the parameters ask for, before rounding up and without the limit: log2(floor(xmax / d) +
  /// 1) + signed; pow2: log2(log2(xmax / xmin) + 1 + with_zero) + signed; R(n) where n learns. The largest of
  /// the channels. Waits for a GPU.
  double wanted_bits() const;
  /// A width for a penalty, differentiable with rounding as the identity: max(ceil(log2(R(xmax / d) + 1)) +
  /// signed, fewest_bits()); pow2: max(ceil(log2(log2(xmax / xmin) + 1 + with_zero)) + signed,
  /// fewest_bits()); R(n). Without the limit; at fewest_bits() without a gradient. The largest of the
  /// channels. float64, []. Waits for a GPU.
  torch::Tensor bit_count() const;

  /// From now on the gradients of the learnables are clipped to [-d, d] (pow2_xmin_xmax: [-xmin, xmin]) as
  /// they arrive, so that the penalty of a budget cannot throw them far (the paper's program, in constrained
  /// runs). fp_d_xmax and pow2_xmin_xmax only; others keep their gradients. Not part of a checkpoint: the
  /// scheduler asks for it again.
  void clip_gradients();

  /// The grid in use, differentiable by the parameters.
  /// Throws: c10::Error if the kind is of the other family (see is_power_of_two).
  UniformGrid uniform_grid() const;
  PowerOfTwoGrid power_of_two_grid() const;
  const ParametricOptions& options() const { return options_; }
  /// The bounds and the start value in force of a parameter.
  Learnable learnable(std::string_view name) const;

 private:
  detail::ParametricRule rule() const;
  detail::GridInputs inputs() const;

  ParametricOptions options_;
  torch::Tensor bits_limit_;
  bool clips_gradients_ = false;
};

}  // namespace qat
