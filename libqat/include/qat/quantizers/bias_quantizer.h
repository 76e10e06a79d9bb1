#pragma once

#include <qat/numerics/affine.h>
#include <qat/tensor_module.h>

#include <torch/types.h>

#include <string>

namespace qat {

/// Quantizes a bias to int32 at the scale of the accumulator: real = scale_x * scale_w[c] * code, zero point
/// 0. The scales belong to the input's and the weight's quantizers and are passed at each call; this module
/// holds no tensor.
class BiasQuantizer : public TensorModule {
 public:
  explicit BiasQuantizer(Rounding rounding = Rounding::kHalfToEven) : rounding_(rounding) {}

  /// Not callable without a scale. Throws: c10::Error saying so.
  torch::Tensor forward(const torch::Tensor& bias) override;
  /// `bias` [C]; `scale` float32, [] or [C]: scale_x * scale_w. Straight-through gradient.
  ///
  /// In train mode a code beyond int32 saturates (2147483520 for float32 biases, the largest float32 below
  /// 2^31), so that a scale that learns may become small for a while without ending the run. In eval mode it
  /// is an error: results would not be those of the network.
  /// Throws: c10::ValueError if a scale is not positive and finite (not checked on CUDA in training, which
  /// would stall it); in eval mode if a code leaves int32 ("bias 3 of channel 0 needs code 1.5e12 at scale
  /// 2e-12 ..."), naming the smallest scale that would do and the factor by which the weight scale is too
  /// small.
  torch::Tensor forward(const torch::Tensor& bias, const torch::Tensor& scale);
  /// int32 codes, as they are stored. Throws: as forward in eval mode, whatever the mode; for NaN.
  torch::Tensor codes(const torch::Tensor& bias, const torch::Tensor& scale);
  std::string config() const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  Rounding rounding_;
};

}  // namespace qat
