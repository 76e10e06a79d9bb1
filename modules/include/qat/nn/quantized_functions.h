#pragma once

#include <qat/quantizers/quantizer.h>

#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

namespace qat::nn {

// The functional layers of "Mixed Precision DNNs" (Uhlich et al., arXiv 1905.11452):
//   y = op(x, Q_w(weight), Q_b(bias))
// with quantizers that the caller builds, their learnables trained with the weights. The layers have no
// slots: they are quantized from the first forward on, whatever a scheduler does.

/// Makes the start values of a parameter: a floating-point tensor of the given shape. `rng`: the generator of
/// the options; nullopt: torch's default one.
using Initializer =
    std::function<torch::Tensor(torch::IntArrayRef shape, std::optional<torch::Generator> rng)>;

/// Options of QuantizedAffine. Example:
///   QuantizedAffineOptions(12, {2, 2}).base_axis(2).quantizer_w(std::make_shared<ParametricQuantizer>())
struct QuantizedAffineOptions {
  /// `in_features`: product of the input's extents from base_axis on.
  QuantizedAffineOptions(std::int64_t in_features, std::int64_t n_outmaps)
      : in_features_(in_features), n_outmaps_{n_outmaps} {}
  QuantizedAffineOptions(std::int64_t in_features, std::vector<std::int64_t> n_outmaps)
      : in_features_(in_features), n_outmaps_(std::move(n_outmaps)) {}

  TORCH_ARG(std::int64_t, in_features);
  /// Extents of the output after base_axis: one number or several.
  TORCH_ARG(std::vector<std::int64_t>, n_outmaps);
  /// Axes before this one are batch axes; at least 0.
  TORCH_ARG(std::int64_t, base_axis) = 1;
  /// Empty: uniform in +-sqrt(6 / (in_features + product of n_outmaps)).
  TORCH_ARG(Initializer, w_init) = nullptr;
  /// Empty: zeros.
  TORCH_ARG(Initializer, b_init) = nullptr;
  /// Weight and bias require no gradient. Quantizers have a switch of their own.
  TORCH_ARG(bool, fix_parameters) = false;
  /// What the initialisers draw from; nullopt: torch's default generator.
  TORCH_ARG(std::optional<torch::Generator>, rng) = std::nullopt;
  TORCH_ARG(bool, with_bias) = true;
  /// nullptr: the weight is not quantized. Its output channels are on axis 1.
  TORCH_ARG(std::shared_ptr<Quantizer>, quantizer_w) = nullptr;
  /// nullptr: the bias is not quantized. Not the weight's instance.
  TORCH_ARG(std::shared_ptr<Quantizer>, quantizer_b) = nullptr;
};

/// Options of QuantizedConvolution. Example:
///   QuantizedConvolutionOptions(3, 16, {3, 3}).pad({1,
///   1}).quantizer_w(std::make_shared<ParametricQuantizer>())
struct QuantizedConvolutionOptions {
  /// `kernel`: one extent for each of 1, 2 or 3 spatial dimensions.
  QuantizedConvolutionOptions(std::int64_t in_channels, std::int64_t outmaps,
                              std::vector<std::int64_t> kernel)
      : in_channels_(in_channels), outmaps_(outmaps), kernel_(std::move(kernel)) {}

  /// The input's extent at base_axis.
  TORCH_ARG(std::int64_t, in_channels);
  /// Output channels.
  TORCH_ARG(std::int64_t, outmaps);
  TORCH_ARG(std::vector<std::int64_t>, kernel);
  /// Zeros on both sides of each spatial dimension, as many entries as `kernel` has; empty: 0.
  TORCH_ARG(std::vector<std::int64_t>, pad) = {};
  /// As many entries as `kernel` has; empty: 1.
  TORCH_ARG(std::vector<std::int64_t>, stride) = {};
  /// As many entries as `kernel` has; empty: 1.
  TORCH_ARG(std::vector<std::int64_t>, dilation) = {};
  /// Divides in_channels and outmaps.
  TORCH_ARG(std::int64_t, group) = 1;
  /// Empty: uniform in +-sqrt(6 / (in_channels * kernel area + outmaps)), whatever the group.
  TORCH_ARG(Initializer, w_init) = nullptr;
  /// Empty: zeros.
  TORCH_ARG(Initializer, b_init) = nullptr;
  /// The axis of the input's channels. Axes before it are batch axes; at least 0.
  TORCH_ARG(std::int64_t, base_axis) = 1;
  /// Weight and bias require no gradient. Quantizers have a switch of their own.
  TORCH_ARG(bool, fix_parameters) = false;
  /// What the initialisers draw from; nullopt: torch's default generator.
  TORCH_ARG(std::optional<torch::Generator>, rng) = std::nullopt;
  TORCH_ARG(bool, with_bias) = true;
  /// nullptr: the weight is not quantized. Its output channels are on axis 0.
  TORCH_ARG(std::shared_ptr<Quantizer>, quantizer_w) = nullptr;
  /// nullptr: the bias is not quantized. Not the weight's instance.
  TORCH_ARG(std::shared_ptr<Quantizer>, quantizer_b) = nullptr;
};

/// What both layers share: parameters `weight` and `bias`, child modules `weight_quantizer` and
/// `bias_quantizer`.
///
/// clone() and files hold the quantizers: loading makes, replaces and removes them to match the file; those
/// whose configuration is the file's stay the same objects. Learnables stay float32 when a layer is
/// converted.
template <class Derived, class Options>
class QuantizedParametersLayer : public torch::nn::Cloneable<Derived> {
 public:
  void reset() override;
  /// Draws new start values with the options' initialisers. The quantizers stay as they are.
  void reset_parameters();
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// Weight and bias as forward uses them, from the current parameters; differentiable. Without a quantizer
  /// the parameters themselves, without a bias undefined.
  torch::Tensor W_q() const;
  torch::Tensor b_q() const;

  /// The child modules; nullptr: none.
  const std::shared_ptr<Quantizer>& weight_quantizer() const { return weight_quantizer_; }
  const std::shared_ptr<Quantizer>& bias_quantizer() const { return bias_quantizer_; }
  /// Replace them, nullptr removes: on the weight's device, in the layer's train mode. An optimizer that was
  /// built before does not know the new learnables. Throws: c10::ValueError if weight and bias would share an
  /// instance, or the layer has no bias.
  void set_weight_quantizer(std::shared_ptr<Quantizer> quantizer);
  void set_bias_quantizer(std::shared_ptr<Quantizer> quantizer);

  /// As given, but for the quantizers, which are child modules now.
  Options options;
  torch::Tensor weight;
  torch::Tensor bias;  ///< undefined without bias.

 protected:
  explicit QuantizedParametersLayer(Options options_) : options(std::move(options_)) {}
  virtual const char* who() const = 0;
  virtual std::vector<std::int64_t> weight_shape() const = 0;
  virtual std::vector<std::int64_t> bias_shape() const = 0;
  /// Inputs and outputs of one output value, as the default start of the weight counts them.
  virtual double fan_sum() const = 0;

 private:
  void register_quantizer(const char* name, std::shared_ptr<Quantizer>& member,
                          std::shared_ptr<Quantizer> quantizer);

  std::shared_ptr<Quantizer> weight_quantizer_;
  std::shared_ptr<Quantizer> bias_quantizer_;
};

/// y = x Q_w(weight) + Q_b(bias), x flattened from base_axis on.
///
/// Parameters: weight [in_features, n_outmaps...], bias [n_outmaps...].
/// Example:
///   nn::QuantizedAffine layer(nn::QuantizedAffineOptions(12, 4)
///                                 .quantizer_w(std::make_shared<qat::ParametricQuantizer>())
///                                 .quantizer_b(std::make_shared<qat::ParametricQuantizer>()));
class QuantizedAffineImpl : public QuantizedParametersLayer<QuantizedAffineImpl, QuantizedAffineOptions> {
 public:
  /// Throws: c10::ValueError naming the option, its value and what is allowed.
  explicit QuantizedAffineImpl(QuantizedAffineOptions options_);
  QuantizedAffineImpl(std::int64_t in_features, std::int64_t n_outmaps)
      : QuantizedAffineImpl(QuantizedAffineOptions(in_features, n_outmaps)) {}

  /// Shape: [base_axis extents, any extents with the product in_features] to [base_axis extents,
  /// n_outmaps...].
  torch::Tensor forward(const torch::Tensor& x);
  void pretty_print(std::ostream& stream) const override;

 private:
  const char* who() const override { return "qat::nn::QuantizedAffine"; }
  std::vector<std::int64_t> weight_shape() const override;
  std::vector<std::int64_t> bias_shape() const override { return options.n_outmaps(); }
  double fan_sum() const override;
};
TORCH_MODULE(QuantizedAffine);

/// Convolution of x with Q_w(weight), plus Q_b(bias), over 1, 2 or 3 spatial dimensions.
///
/// Parameters: weight [outmaps, in_channels / group, kernel...], bias [outmaps].
class QuantizedConvolutionImpl
    : public QuantizedParametersLayer<QuantizedConvolutionImpl, QuantizedConvolutionOptions> {
 public:
  /// Throws: c10::ValueError naming the option, its value and what is allowed.
  explicit QuantizedConvolutionImpl(QuantizedConvolutionOptions options_);

  /// Shape: [base_axis extents, in_channels, spatial extents] to [base_axis extents, outmaps, spatial
  /// extents].
  torch::Tensor forward(const torch::Tensor& x);
  void pretty_print(std::ostream& stream) const override;

 private:
  const char* who() const override { return "qat::nn::QuantizedConvolution"; }
  std::vector<std::int64_t> weight_shape() const override;
  std::vector<std::int64_t> bias_shape() const override { return {options.outmaps()}; }
  double fan_sum() const override;
};
TORCH_MODULE(QuantizedConvolution);

namespace functional {

/// Options of quantized_affine; as those of QuantizedAffine.
struct QuantizedAffineFuncOptions {
  TORCH_ARG(std::int64_t, base_axis) = 1;
  TORCH_ARG(std::shared_ptr<Quantizer>, quantizer_w) = nullptr;
  TORCH_ARG(std::shared_ptr<Quantizer>, quantizer_b) = nullptr;
};

/// Options of quantized_convolution; as those of QuantizedConvolution.
struct QuantizedConvolutionFuncOptions {
  TORCH_ARG(std::vector<std::int64_t>, pad) = {};
  TORCH_ARG(std::vector<std::int64_t>, stride) = {};
  TORCH_ARG(std::vector<std::int64_t>, dilation) = {};
  TORCH_ARG(std::int64_t, group) = 1;
  TORCH_ARG(std::int64_t, base_axis) = 1;
  TORCH_ARG(std::shared_ptr<Quantizer>, quantizer_w) = nullptr;
  TORCH_ARG(std::shared_ptr<Quantizer>, quantizer_b) = nullptr;
};

/// What QuantizedAffine computes, with the given parameters: weight [in, out...], bias [out...] or undefined.
/// Throws: c10::ValueError if base_axis is no axis of x, or shapes do not fit.
torch::Tensor quantized_affine(const torch::Tensor& x, const torch::Tensor& weight,
                               const torch::Tensor& bias = {},
                               const QuantizedAffineFuncOptions& options = {});

/// What QuantizedConvolution computes, with the given parameters: weight [out, in / group, kernel...], bias
/// [out] or undefined. Throws: c10::ValueError if the ranks of kernel, x and options or the shapes do not
/// fit, or the group does not divide the channels.
torch::Tensor quantized_convolution(const torch::Tensor& x, const torch::Tensor& weight,
                                    const torch::Tensor& bias = {},
                                    const QuantizedConvolutionFuncOptions& options = {});

}  // namespace functional

}  // namespace qat::nn
