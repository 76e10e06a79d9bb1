#include <qat/nn/embedding.h>

#include <torch/nn/functional/embedding.h>
#include <torch/nn/init.h>

namespace qat::nn {

EmbeddingParameters::EmbeddingParameters(torch::nn::EmbeddingOptions options_)
    : options(std::move(options_)) {
  EmbeddingParameters::reset();
}

void EmbeddingParameters::reset() {
  const std::int64_t rows = options.num_embeddings();
  if (auto padding = options.padding_idx()) {
    TORCH_CHECK_VALUE(*padding >= -rows && *padding < rows, "qat::nn::Embedding: expected padding_idx in [",
                      -rows, ", ", rows - 1, "], got ", *padding);
    if (*padding < 0) options.padding_idx(rows + *padding);
  }
  if (!options._weight().defined()) {
    weight = register_parameter("weight", torch::empty({rows, options.embedding_dim()}));
    reset_parameters();
    return;
  }
  TORCH_CHECK_VALUE(options._weight().sizes() == torch::IntArrayRef({rows, options.embedding_dim()}),
                    "qat::nn::Embedding: expected a table of shape [", rows, ", ", options.embedding_dim(),
                    "], got ", options._weight().sizes());
  weight = register_parameter("weight", options._weight());
  options._weight(torch::Tensor());  // a clone must not register the same table again
}

void EmbeddingParameters::reset_parameters() {
  torch::nn::init::normal_(weight);
  if (!options.padding_idx()) return;
  const torch::NoGradGuard no_grad;
  weight[*options.padding_idx()].fill_(0);
}

void EmbeddingParameters::pretty_print(std::ostream& stream) const {
  // With the table given, the twin draws no random numbers.
  torch::nn::EmbeddingImpl(torch::nn::EmbeddingOptions(options)._weight(weight.detach()))
      .pretty_print(stream);
}

EmbeddingImpl::EmbeddingImpl(torch::nn::EmbeddingOptions options_) : Quantizable(std::move(options_)) {}

torch::Tensor EmbeddingImpl::forward(const torch::Tensor& indices) {
  const LayerScope scope(*this, {indices});
  const auto look_up = [&](const torch::Tensor& table) {
    return torch::nn::functional::detail::embedding(indices, table, options.padding_idx(), options.max_norm(),
                                                    options.norm_type(), options.scale_grad_by_freq(),
                                                    options.sparse());
  };
  if (is_float()) return scope.output(look_up(weight));
  TORCH_CHECK_VALUE(
      !options.sparse() || !slot({SlotId::Kind::kWeight}), describe(),
      ": sparse gradients do not pass through a slot of the weight; build it with sparse(false)");
  return scope.output(slot_output(look_up(slot_weight(weight))));
}

Embedding Embedding::from_pretrained(const torch::Tensor& embeddings,
                                     const torch::nn::EmbeddingFromPretrainedOptions& options) {
  TORCH_CHECK_VALUE(embeddings.dim() == 2, "qat::nn::Embedding: expected a table with 2 dimensions, got ",
                    embeddings.sizes());
  Embedding embedding(torch::nn::EmbeddingOptions(embeddings.size(0), embeddings.size(1))
                          ._weight(embeddings)
                          .padding_idx(options.padding_idx())
                          .max_norm(options.max_norm())
                          .norm_type(options.norm_type())
                          .scale_grad_by_freq(options.scale_grad_by_freq())
                          .sparse(options.sparse()));
  embedding->weight.set_requires_grad(!options.freeze());
  return embedding;
}

}  // namespace qat::nn
