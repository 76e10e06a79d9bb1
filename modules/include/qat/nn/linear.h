#pragma once

#include <qat/nn/quantizable.h>

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace qat::nn {

class LinearImpl;

/// Options and parameters of a Linear layer, initialised as torch's.
class LinearParameters : public torch::nn::Cloneable<LinearImpl> {
 public:
  explicit LinearParameters(const torch::nn::LinearOptions& options_);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  torch::nn::LinearOptions options;
  torch::Tensor weight;  ///< [out_features, in_features]
  torch::Tensor bias;    ///< [out_features]
};

/// y = x weight^T + bias with slots for input, weight, bias and output.
class LinearImpl : public QuantizableWeighted<LinearParameters> {
 public:
  explicit LinearImpl(const torch::nn::LinearOptions& options_);
  LinearImpl(std::int64_t in_features, std::int64_t out_features)
      : LinearImpl(torch::nn::LinearOptions(in_features, out_features)) {}

  /// Shape: [*, in_features] to [*, out_features].
  torch::Tensor forward(const torch::Tensor& input);

 private:
  std::int64_t output_channels() const final { return options.out_features(); }
};
TORCH_MODULE(Linear);

}  // namespace qat::nn
