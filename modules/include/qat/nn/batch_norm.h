#pragma once

#include <qat/nn/fold_batch_norm.h>
#include <qat/nn/quantizable.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

namespace qat::nn {

/// What folding needs of a BatchNorm of any dimension.
class BatchNormLayer {
 public:
  virtual ~BatchNormLayer() = default;
  virtual bool has_running_statistics() const = 0;
  /// Running statistics, and gamma and beta (undefined if the layer is not affine). The tensors are the
  /// layer's own.
  virtual BatchNormStatistics statistics() const = 0;
  /// From now on the output is the input, in train mode too. Nothing trainable is left; the running
  /// statistics stay as they are. Survives clone(), save() and load(). Modifies: options.affine.
  virtual void become_identity() = 0;
  virtual bool is_identity() const = 0;
};

/// Batch normalization with slots for input and output; options, parameters and buffers are torch's.
template <std::size_t D, class Derived>
class BatchNorm : public Quantizable<torch::nn::BatchNormImplBase<D, Derived>>, public BatchNormLayer {
 public:
  using Quantizable<torch::nn::BatchNormImplBase<D, Derived>>::Quantizable;

  /// Shape: [N, num_features, ...]. Throws: c10::Error in train mode if there is but one value per channel.
  torch::Tensor forward(const torch::Tensor& input);
  void pretty_print(std::ostream& stream) const final;

  bool has_running_statistics() const final {
    return this->running_mean.defined() && this->running_var.defined();
  }
  BatchNormStatistics statistics() const final;
  void become_identity() final;
  bool is_identity() const final { return identity_; }
  bool is_folded() const final { return identity_; }
  bool keeps_codes() const final { return identity_; }

 protected:
  void set_folded(bool folded, const QuantizableLayer::Parameters& kept) final;

 private:
  torch::Tensor normalize(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias);

  bool identity_ = false;
  bool affine_before_ = false;
};

class BatchNorm1dImpl : public BatchNorm<1, BatchNorm1dImpl> {
 public:
  using BatchNorm<1, BatchNorm1dImpl>::BatchNorm;
  torch::Tensor forward(const torch::Tensor& input) { return BatchNorm::forward(input); }

 protected:
  void _check_input_dim(const torch::Tensor& input) override;
};
class BatchNorm2dImpl : public BatchNorm<2, BatchNorm2dImpl> {
 public:
  using BatchNorm<2, BatchNorm2dImpl>::BatchNorm;
  torch::Tensor forward(const torch::Tensor& input) { return BatchNorm::forward(input); }

 protected:
  void _check_input_dim(const torch::Tensor& input) override;
};
class BatchNorm3dImpl : public BatchNorm<3, BatchNorm3dImpl> {
 public:
  using BatchNorm<3, BatchNorm3dImpl>::BatchNorm;
  torch::Tensor forward(const torch::Tensor& input) { return BatchNorm::forward(input); }

 protected:
  void _check_input_dim(const torch::Tensor& input) override;
};
TORCH_MODULE(BatchNorm1d);
TORCH_MODULE(BatchNorm2d);
TORCH_MODULE(BatchNorm3d);

}  // namespace qat::nn
