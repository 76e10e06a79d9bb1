#include <qat/nn/arithmetic.h>

namespace qat::nn {

torch::Tensor AddImpl::forward(const torch::Tensor& a, const torch::Tensor& b) {
  return pass(a, b, [](const torch::Tensor& x, const torch::Tensor& y) { return x + y; });
}

torch::Tensor SubImpl::forward(const torch::Tensor& a, const torch::Tensor& b) {
  return pass(a, b, [](const torch::Tensor& x, const torch::Tensor& y) { return x - y; });
}

torch::Tensor MulImpl::forward(const torch::Tensor& a, const torch::Tensor& b) {
  return pass(a, b, [](const torch::Tensor& x, const torch::Tensor& y) { return x * y; });
}

torch::Tensor MatMulImpl::forward(const torch::Tensor& a, const torch::Tensor& b) {
  return pass(a, b, [](const torch::Tensor& x, const torch::Tensor& y) { return torch::matmul(x, y); });
}

torch::Tensor CatImpl::forward(const std::vector<torch::Tensor>& inputs) {
  TORCH_CHECK_VALUE(!inputs.empty(), describe(), ": expected at least one tensor");
  const LayerScope scope(*this, inputs);
  if (is_float()) return scope.output(torch::cat(inputs, options.dim()));
  std::vector<torch::Tensor> x;
  x.reserve(inputs.size());
  for (const auto& input : inputs)
    x.push_back(slot_input(input, static_cast<std::int64_t>(x.size())));
  return scope.output(slot_output(torch::cat(x, options.dim())));
}

void CatImpl::pretty_print(std::ostream& stream) const {
  print_layer(stream, "qat::nn::Cat(dim=" + std::to_string(options.dim()) + ")");
}

}  // namespace qat::nn
