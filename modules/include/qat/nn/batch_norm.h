#pragma once

#include <qat/nn/fold_batch_norm.h>
#include <qat/nn/quantizable.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <optional>
#include <ostream>

namespace qat::nn {

/// What folding and the calls of batch_norm_statistics.h need of a BatchNorm of any dimension.
class BatchNormLayer {
 public:
  virtual ~BatchNormLayer() = default;
  virtual bool has_running_statistics() const = 0;
  /// Whether the output depends on statistics: true until a fold.
  virtual bool normalizes() const = 0;
  /// Running statistics, and gamma and beta (undefined if the layer is not affine). The tensors are the
  /// layer's own. Throws: c10::Error if there are no running statistics, or after a fold.
  virtual BatchNormStatistics statistics() const = 0;
  /// From now on the output is the input, in train mode too. Nothing trainable is left; the running
  /// statistics stay as they are. Survives clone(), save() and load(). Modifies: options.affine.
  virtual void become_identity() = 0;
  virtual bool is_identity() const = 0;
  /// From now on the output is weight * x + bias for each channel, in train mode too: weight is
  /// gamma / sqrt(running_var + eps), bias is beta - running_mean * weight, as they are now. Both train; the
  /// parameters of an affine layer stay the same tensors, else there are new ones. The running statistics
  /// stay as they are and are not used. Survives clone(), save() and load(). Modifies: options.affine.
  /// Throws: as statistics().
  virtual void become_scale_and_shift() = 0;
  virtual bool is_scale_and_shift() const = 0;
  /// Frozen: normalizes by the running statistics in train mode too and leaves them as they are, whatever
  /// train() says. Survives clone(), save() and load(). Throws: c10::ValueError if there are none.
  virtual void freeze_statistics(bool frozen) = 0;
  virtual bool has_frozen_statistics() const = 0;
  /// The running statistics start again: mean 0, variance 1, no batch seen.
  virtual void reset_statistics() = 0;
  /// Replaces the momentum with which batches enter the running statistics (nullopt: their plain average);
  /// the former one.
  virtual std::optional<double> exchange_momentum(std::optional<double> momentum) = 0;
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
  bool normalizes() const final { return !is_identity() && !is_scale_and_shift(); }
  BatchNormStatistics statistics() const final;
  void become_identity() final {
    set_form({.folded = true, .frozen_statistics = form_.frozen_statistics}, {});
  }
  bool is_identity() const final { return form_.folded; }
  void become_scale_and_shift() final;
  bool is_scale_and_shift() const final { return form_.scale_and_shift; }
  void freeze_statistics(bool frozen) final;
  bool has_frozen_statistics() const final { return form_.frozen_statistics; }
  void reset_statistics() final { this->reset_running_stats(); }
  std::optional<double> exchange_momentum(std::optional<double> momentum) final;
  bool keeps_codes() const final { return is_identity(); }
  LayerForm form() const final { return form_; }

 protected:
  void set_form(const LayerForm& form, const QuantizableLayer::Parameters& kept) final;

 private:
  /// What the layer computes, by its form.
  torch::Tensor compute(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias);
  torch::Tensor normalize(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias);
  bool uses_batch_statistics() const;

  LayerForm form_;
  bool built_affine_ = false;  ///< options.affine before a fold
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
