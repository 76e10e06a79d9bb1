#pragma once

#include <qat/nn/quantizable.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

namespace qat::nn {

class EmbeddingImpl;

/// Options and parameter of an Embedding, initialised as torch's.
class EmbeddingParameters : public torch::nn::Cloneable<EmbeddingImpl> {
 public:
  explicit EmbeddingParameters(torch::nn::EmbeddingOptions options_);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  torch::nn::EmbeddingOptions options;
  torch::Tensor weight;  ///< [num_embeddings, embedding_dim]
};

/// Looks rows up in a table, with slots for the weight and the output. Indices are no data: they are never
/// quantized, and the layer has no input slot. A quantized weight refuses `sparse(true)`.
class EmbeddingImpl : public Quantizable<EmbeddingParameters> {
 public:
  explicit EmbeddingImpl(torch::nn::EmbeddingOptions options_);
  EmbeddingImpl(std::int64_t num_embeddings, std::int64_t embedding_dim)
      : EmbeddingImpl(torch::nn::EmbeddingOptions(num_embeddings, embedding_dim)) {}

  /// Shape: integers [*] to [*, embedding_dim].
  torch::Tensor forward(const torch::Tensor& indices);
  std::optional<std::int64_t> input_count() const final { return 0; }
  torch::Tensor* weight_parameter() final { return &weight; }
};

class Embedding : public torch::nn::ModuleHolder<EmbeddingImpl> {
 public:
  using torch::nn::ModuleHolder<EmbeddingImpl>::ModuleHolder;
  using Impl = EmbeddingImpl;

  /// An embedding that uses the given table [rows, columns], frozen unless the options say otherwise.
  static Embedding from_pretrained(const torch::Tensor& embeddings,
                                   const torch::nn::EmbeddingFromPretrainedOptions& options = {});
};

}  // namespace qat::nn
