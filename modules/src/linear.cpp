#include "quantizable_weighted-inl.h"
#include <qat/nn/linear.h>

#include <torch/nn/functional/linear.h>
#include <torch/nn/init.h>

#include <cmath>

namespace qat::nn {

LinearParameters::LinearParameters(const torch::nn::LinearOptions& options_) : options(options_) {
  LinearParameters::reset();
}

void LinearParameters::reset() {
  weight = register_parameter("weight", torch::empty({options.out_features(), options.in_features()}));
  if (options.bias()) {
    bias = register_parameter("bias", torch::empty(options.out_features()));
  } else {
    bias = register_parameter("bias", {}, /*requires_grad=*/false);
  }
  reset_parameters();
}

void LinearParameters::reset_parameters() {
  torch::nn::init::kaiming_uniform_(weight, /*a=*/std::sqrt(5));
  if (!bias.defined()) return;
  const double bound =
      options.in_features() > 0 ? 1 / std::sqrt(static_cast<double>(options.in_features())) : 0;
  torch::nn::init::uniform_(bias, -bound, bound);
}

void LinearParameters::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "torch::nn::Linear(in_features=" << options.in_features()
         << ", out_features=" << options.out_features() << ", bias=" << options.bias() << ')';
}

LinearImpl::LinearImpl(const torch::nn::LinearOptions& options_) : QuantizableWeighted(options_) {}

torch::Tensor LinearImpl::forward(const torch::Tensor& input) {
  const LayerScope scope(*this, {input});
  if (is_float()) return scope.output(torch::nn::functional::linear(input, weight, bias));
  const auto x = slot_input(input);
  const auto quantized = slot_parameters(weight, bias);
  return scope.output(slot_output(torch::nn::functional::linear(x, quantized.weight, quantized.bias)));
}

}  // namespace qat::nn
