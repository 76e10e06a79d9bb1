#include <qat/nn/batch_norm.h>

#include <torch/nn/functional/batchnorm.h>

#include <cstdint>
#include <vector>

namespace qat::nn {

template <std::size_t D, class Derived>
torch::Tensor BatchNorm<D, Derived>::forward(const torch::Tensor& input) {
  const LayerScope scope(*this, {input});
  if (identity_) return scope.output(this->is_float() ? input : this->slot_output(this->slot_input(input)));
  this->_check_input_dim(input);
  const bool uses_batch = this->is_training() || !this->options.track_running_stats();
  TORCH_CHECK_VALUE(!uses_batch || input.numel() != input.size(1), this->describe(),
                    ": Expected more than 1 value per channel when training, got input size ", input.sizes());
  if (this->is_float()) return scope.output(normalize(input, this->weight, this->bias));
  const auto x = this->slot_input(input);
  return scope.output(this->slot_output(normalize(x, this->held(this->weight), this->held(this->bias))));
}

template <std::size_t D, class Derived>
torch::Tensor BatchNorm<D, Derived>::normalize(const torch::Tensor& x, const torch::Tensor& weight,
                                               const torch::Tensor& bias) {
  const auto& options = this->options;
  const bool tracks = options.track_running_stats();
  double factor = options.momentum().value_or(0.0);
  if (this->is_training() && tracks && this->num_batches_tracked.defined()) {
    this->num_batches_tracked += 1;
    if (!options.momentum()) factor = 1.0 / this->num_batches_tracked.template item<double>();
  }
  return torch::nn::functional::detail::batch_norm(x, this->running_mean, this->running_var, weight, bias,
                                                   this->is_training() || !tracks, factor, options.eps());
}

template <std::size_t D, class Derived>
void BatchNorm<D, Derived>::pretty_print(std::ostream& stream) const {
  if (!identity_) return Quantizable<torch::nn::BatchNormImplBase<D, Derived>>::pretty_print(stream);
  this->print_layer(stream, "torch::nn::BatchNorm" + std::to_string(D) + "d(folded)");
}

template <std::size_t D, class Derived>
BatchNormStatistics BatchNorm<D, Derived>::statistics() const {
  TORCH_CHECK(has_running_statistics(), this->describe(),
              ": has no running statistics; build it with track_running_stats(true)");
  TORCH_CHECK(!identity_, this->describe(), ": is folded already");
  return {this->running_mean, this->running_var, this->weight, this->bias, this->options.eps()};
}

template <std::size_t D, class Derived>
void BatchNorm<D, Derived>::become_identity() {
  if (identity_) return;
  identity_ = true;
  affine_before_ = this->options.affine();
  this->options.affine(false);
  this->parameters_["weight"] = this->weight = torch::Tensor();
  this->parameters_["bias"] = this->bias = torch::Tensor();
}

template <std::size_t D, class Derived>
void BatchNorm<D, Derived>::set_folded(bool folded, const QuantizableLayer::Parameters& kept) {
  if (folded) become_identity();
  if (folded || !identity_) return;
  identity_ = false;
  this->options.affine(affine_before_);
  if (!affine_before_) return;
  const auto like = has_running_statistics() ? this->running_mean.options() : torch::TensorOptions();
  const std::vector<std::int64_t> shape = {this->options.num_features()};
  this->parameters_["weight"] = this->weight =
      kept.weight.defined() ? kept.weight : torch::ones(shape, like.requires_grad(true));
  this->parameters_["bias"] = this->bias =
      kept.bias.defined() ? kept.bias : torch::zeros(shape, like.requires_grad(true));
}

void BatchNorm1dImpl::_check_input_dim(const torch::Tensor& input) {
  TORCH_CHECK(input.dim() == 2 || input.dim() == 3, describe(), ": expected 2D or 3D input, got ",
              input.dim(), "D input");
}

void BatchNorm2dImpl::_check_input_dim(const torch::Tensor& input) {
  TORCH_CHECK(input.dim() == 4, describe(), ": expected 4D input, got ", input.dim(), "D input");
}

void BatchNorm3dImpl::_check_input_dim(const torch::Tensor& input) {
  TORCH_CHECK(input.dim() == 5, describe(), ": expected 5D input, got ", input.dim(), "D input");
}

template class BatchNorm<1, BatchNorm1dImpl>;
template class BatchNorm<2, BatchNorm2dImpl>;
template class BatchNorm<3, BatchNorm3dImpl>;

}  // namespace qat::nn
