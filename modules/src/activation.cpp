#include <qat/nn/activation.h>

#include <torch/nn/functional/activation.h>

namespace qat::nn {

namespace F = torch::nn::functional;

torch::Tensor ReLUImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) { return F::detail::relu(x, options.inplace()); });
}

torch::Tensor ReLU6Impl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) { return F::detail::relu6(x, options.inplace()); });
}

torch::Tensor LeakyReLUImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) {
    return F::detail::leaky_relu(x, options.negative_slope(), options.inplace());
  });
}

torch::Tensor HardswishImpl::forward(const torch::Tensor& input) {
  return pass(input, [](const torch::Tensor& x) { return torch::hardswish(x); });
}

torch::Tensor SigmoidImpl::forward(const torch::Tensor& input) {
  return pass(input, [](const torch::Tensor& x) { return torch::sigmoid(x); });
}

torch::Tensor TanhImpl::forward(const torch::Tensor& input) {
  return pass(input, [](const torch::Tensor& x) { return torch::tanh(x); });
}

torch::Tensor GELUImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) { return F::detail::gelu(x, options.approximate()); });
}

torch::Tensor SiLUImpl::forward(const torch::Tensor& input) {
  return pass(input, [](const torch::Tensor& x) { return F::silu(x); });
}

}  // namespace qat::nn
