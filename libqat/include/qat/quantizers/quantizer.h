#pragma once

#include <qat/numerics/affine.h>
#include <qat/numerics/affine_params.h>
#include <qat/tensor_module.h>

#include <torch/types.h>

#include <cstdint>

namespace qat {

/// Maps real values to the nearest values of a small set, with a gradient that training can use.
class Quantizer : public TensorModule {
 public:
  using TensorModule::TensorModule;

  /// Fake-quantizes: the real values of the codes. Shape and type of x.
  torch::Tensor forward(const torch::Tensor& x) final { return forward(x, Activation{}); }

  /// Applies a ReLU-like activation and quantizes the result, in one pass.
  virtual torch::Tensor forward(const torch::Tensor& x, const Activation& activation) = 0;

  /// Quantized values and the scale that they have.
  struct Scaled {
    torch::Tensor values;
    torch::Tensor scale;
  };
  /// forward(x) and scale(x), for callers that need both where the scale follows the tensor: it is computed
  /// once.
  virtual Scaled forward_with_scale(const torch::Tensor& x) { return {forward(x), scale(x)}; }

  /// The integer codes of x, int32, shape of x.
  virtual torch::Tensor codes(const torch::Tensor& x) = 0;

  /// Scale, zero point and range in use: real = scale * (code - zero_point).
  /// `x`: the tensor that is quantized; only read by quantizers whose range follows the tensor (weights).
  virtual AffineParams affine_params(const torch::Tensor& x) = 0;

  /// The scale alone, as affine_params gives it, without waiting for a GPU.
  virtual torch::Tensor scale(const torch::Tensor& x) { return affine_params(x).scale; }

  virtual std::int64_t bits() const = 0;

  /// Brings learned parameters back into their bounds, NaN to the lower one; to be called after an
  /// optimizer's step. Quantizers without parameters have nothing to do.
  virtual void hold_in_bounds() {}

  virtual Rounding rounding() const = 0;
};

}  // namespace qat
