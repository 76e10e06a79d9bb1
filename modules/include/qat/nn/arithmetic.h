#pragma once

#include <qat/nn/quantizable.h>

#include <torch/nn/pimpl.h>

#include <vector>

namespace qat::nn {

/// Arithmetic on activations as layers, so that the results have slots; torch::nn has none of them.

/// a + b, broadcasting. Both inputs share one scale.
class AddImpl : public Quantizable<Stateless<AddImpl>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& a, const torch::Tensor& b);
  std::optional<std::int64_t> input_count() const final { return 2; }
  bool inputs_share_scale() const final { return true; }
};
TORCH_MODULE(Add);

/// a - b, broadcasting. Both inputs share one scale.
class SubImpl : public Quantizable<Stateless<SubImpl>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& a, const torch::Tensor& b);
  std::optional<std::int64_t> input_count() const final { return 2; }
  bool inputs_share_scale() const final { return true; }
};
TORCH_MODULE(Sub);

/// a * b, element by element, broadcasting.
class MulImpl : public Quantizable<Stateless<MulImpl>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& a, const torch::Tensor& b);
  std::optional<std::int64_t> input_count() const final { return 2; }
};
TORCH_MODULE(Mul);

/// The matrix product of two activations, as torch::matmul.
class MatMulImpl : public Quantizable<Stateless<MatMulImpl>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& a, const torch::Tensor& b);
  std::optional<std::int64_t> input_count() const final { return 2; }
};
TORCH_MODULE(MatMul);

struct CatOptions {
  CatOptions(std::int64_t dim) : dim_(dim) {}
  /// The dimension along which the tensors are joined; negative counts from the end.
  TORCH_ARG(std::int64_t, dim);
};

/// Joins any number of tensors along one dimension. All inputs share one scale.
/// Example: nn::Cat cat(1); cat->forward({a, b});
class CatImpl : public Quantizable<Stateless<CatImpl, void, CatOptions>> {
 public:
  using Quantizable::Quantizable;
  /// Throws: c10::Error if there is no tensor.
  torch::Tensor forward(const std::vector<torch::Tensor>& inputs);
  std::optional<std::int64_t> input_count() const final { return std::nullopt; }
  bool inputs_share_scale() const final { return true; }
  void pretty_print(std::ostream& stream) const final;
};
TORCH_MODULE(Cat);

}  // namespace qat::nn
