#pragma once

#include <qat/nn/quantizable.h>

namespace qat::nn {

template <class Base>
void QuantizableWeighted<Base>::set_bias_parameter(const torch::Tensor& value) {
  TORCH_CHECK_VALUE(value.dim() == 1 && value.size(0) == output_channels(), this->describe(),
                    ": expected a bias of shape [", output_channels(), "], got ", value.sizes());
  const torch::NoGradGuard no_grad;
  if (this->bias.defined()) {
    this->bias.copy_(value);
    return;
  }
  this->bias = value.detach()
                   .to(this->weight.options(), /*non_blocking=*/false, /*copy=*/true)
                   .set_requires_grad(true);
  this->parameters_["bias"] = this->bias;
  this->options.bias(true);
  bias_added_ = true;
}

template <class Base>
void QuantizableWeighted<Base>::set_form(const LayerForm& form, const QuantizableLayer::Parameters& kept) {
  // Refuses what only a BatchNorm can be.
  QuantizableLayer::set_form(
      {.scale_and_shift = form.scale_and_shift, .frozen_statistics = form.frozen_statistics});
  if (form.folded && !this->bias.defined()) {
    set_bias_parameter(torch::zeros({output_channels()}));
    if (kept.bias.defined()) this->parameters_["bias"] = this->bias = kept.bias;
  }
  if (!form.folded && bias_added_) {
    this->bias = torch::Tensor();
    this->parameters_["bias"] = this->bias;
    this->options.bias(false);
    bias_added_ = false;
  }
}

}  // namespace qat::nn
