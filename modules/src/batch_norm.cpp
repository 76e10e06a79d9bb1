#include <qat/nn/batch_norm.h>

#include <torch/nn/functional/batchnorm.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

namespace qat::nn {

template <std::size_t D, class Derived>
torch::Tensor BatchNorm<D, Derived>::forward(const torch::Tensor& input) {
  const LayerScope scope(*this, {input});
  if (is_identity())
    return scope.output(this->is_float() ? input : this->slot_output(this->slot_input(input)));
  this->_check_input_dim(input);
  TORCH_CHECK_VALUE(!uses_batch_statistics() || input.numel() != input.size(1), this->describe(),
                    ": Expected more than 1 value per channel when training, got input size ", input.sizes());
  if (this->is_float()) return scope.output(compute(input, this->weight, this->bias));
  const auto x = this->slot_input(input);
  return scope.output(this->slot_output(compute(x, this->held(this->weight), this->held(this->bias))));
}

template <std::size_t D, class Derived>
bool BatchNorm<D, Derived>::uses_batch_statistics() const {
  if (!normalizes()) return false;
  return !this->options.track_running_stats() || (this->is_training() && !form_.frozen_statistics);
}

template <std::size_t D, class Derived>
torch::Tensor BatchNorm<D, Derived>::compute(const torch::Tensor& x, const torch::Tensor& weight,
                                             const torch::Tensor& bias) {
  if (!is_scale_and_shift()) return normalize(x, weight, bias);
  std::vector<std::int64_t> shape(x.dim(), 1);
  shape[1] = this->options.num_features();
  const auto y = torch::addcmul(bias.view(shape), x, weight.view(shape));
  // Parameters may be wider than the input, which BatchNorm allows.
  return y.scalar_type() == x.scalar_type() ? y : y.to(x.scalar_type());
}

template <std::size_t D, class Derived>
torch::Tensor BatchNorm<D, Derived>::normalize(const torch::Tensor& x, const torch::Tensor& weight,
                                               const torch::Tensor& bias) {
  const auto& options = this->options;
  const bool uses_batch = uses_batch_statistics();
  double factor = options.momentum().value_or(0.0);
  if (uses_batch && options.track_running_stats() && this->num_batches_tracked.defined()) {
    this->num_batches_tracked += 1;
    if (!options.momentum()) factor = 1.0 / this->num_batches_tracked.template item<double>();
  }
  return torch::nn::functional::detail::batch_norm(x, this->running_mean, this->running_var, weight, bias,
                                                   uses_batch, factor, options.eps());
}

template <std::size_t D, class Derived>
void BatchNorm<D, Derived>::pretty_print(std::ostream& stream) const {
  const std::string name = "torch::nn::BatchNorm" + std::to_string(D) + "d(";
  if (is_identity()) return this->print_layer(stream, name + "folded)");
  if (is_scale_and_shift()) {
    return this->print_layer(
        stream, name + std::to_string(this->options.num_features()) + ", folded into scale and shift)");
  }
  std::ostringstream twin;
  torch::nn::BatchNormImplBase<D, Derived>::pretty_print(twin);
  std::string text = twin.str();
  if (form_.frozen_statistics) text.insert(text.size() - 1, ", frozen statistics");
  this->print_layer(stream, text);
}

template <std::size_t D, class Derived>
BatchNormStatistics BatchNorm<D, Derived>::statistics() const {
  TORCH_CHECK(has_running_statistics(), this->describe(),
              ": has no running statistics; build it with track_running_stats(true)");
  TORCH_CHECK(normalizes(), this->describe(), ": is folded already");
  return {this->running_mean, this->running_var, this->weight, this->bias, this->options.eps()};
}

template <std::size_t D, class Derived>
void BatchNorm<D, Derived>::become_scale_and_shift() {
  if (is_scale_and_shift()) return;
  const torch::NoGradGuard no_grad;
  const ChannelAffine affine = channel_affine(statistics());
  set_form({.scale_and_shift = true, .frozen_statistics = form_.frozen_statistics}, {});
  this->weight.copy_(affine.scale);
  this->bias.copy_(affine.shift);
}

template <std::size_t D, class Derived>
void BatchNorm<D, Derived>::freeze_statistics(bool frozen) {
  TORCH_CHECK_VALUE(!frozen || has_running_statistics(), this->describe(),
                    ": has no running statistics to freeze; build it with track_running_stats(true)");
  form_.frozen_statistics = frozen;
}

template <std::size_t D, class Derived>
std::optional<double> BatchNorm<D, Derived>::exchange_momentum(std::optional<double> momentum) {
  const std::optional<double> former = this->options.momentum();
  this->options.momentum(momentum);
  return former;
}

template <std::size_t D, class Derived>
void BatchNorm<D, Derived>::set_form(const LayerForm& form, const QuantizableLayer::Parameters& kept) {
  TORCH_CHECK_VALUE(
      !form.folded || !form.scale_and_shift, this->describe(),
      ": the file says that it is folded away and folded into scale and shift; expected one of them");
  if (normalizes()) built_affine_ = this->options.affine();
  form_ = form;
  const bool affine = form.scale_and_shift || (!form.folded && built_affine_);
  this->options.affine(affine);
  const auto like = has_running_statistics() ? this->running_mean.options() : torch::TensorOptions();
  const auto fill = [&](const char* name, torch::Tensor& parameter, const torch::Tensor& known,
                        double value) {
    if (!affine) parameter = torch::Tensor();
    if (affine && !parameter.defined())
      parameter = known.defined()
                      ? known
                      : torch::full({this->options.num_features()}, value, like.requires_grad(true));
    this->parameters_[name] = parameter;
  };
  fill("weight", this->weight, kept.weight, 1.0);
  fill("bias", this->bias, kept.bias, 0.0);
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
