#include <qat/nn/passthrough.h>

#include <torch/nn/functional/dropout.h>

namespace qat::nn {

torch::Tensor FlattenImpl::forward(const torch::Tensor& input) {
  return pass(input,
              [&](const torch::Tensor& x) { return x.flatten(options.start_dim(), options.end_dim()); });
}

torch::Tensor IdentityImpl::forward(const torch::Tensor& input) {
  return pass(input, [](const torch::Tensor& x) { return x; });
}

torch::Tensor DropoutImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) {
    return torch::nn::functional::detail::dropout(x, options.p(), is_training(), options.inplace());
  });
}

void DropoutImpl::pretty_print(std::ostream& stream) const {
  std::ostringstream twin;
  torch::nn::DropoutImpl(options).pretty_print(twin);
  print_layer(stream, twin.str());
}

}  // namespace qat::nn
