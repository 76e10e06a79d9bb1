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

  /// Fake-quantizes x with `params`, which `affine_params(x)` returned just before: for callers that need the
  /// scale too, where it follows the tensor and costs a pass over it. Others just quantize.
  virtual torch::Tensor forward_with(const torch::Tensor& x, const AffineParams&) { return forward(x); }

  /// The integer codes of x, int32, shape of x.
  virtual torch::Tensor codes(const torch::Tensor& x) = 0;

  /// Scale, zero point and range in use: real = scale * (code - zero_point).
  /// `x`: the tensor that is quantized; only read by quantizers whose range follows the tensor (weights).
  virtual AffineParams affine_params(const torch::Tensor& x) = 0;

  virtual std::int64_t bits() const = 0;
  virtual Rounding rounding() const = 0;
};

}  // namespace qat
