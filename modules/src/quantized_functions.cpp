#include <qat/graph/layer_scope.h>
#include <qat/nn/quantized_functions.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace qat::nn {
namespace {

using torch::Tensor;

constexpr const char* kQuantizersAttribute = "quantizers";
constexpr const char* kWeightQuantizer = "weight_quantizer";
constexpr const char* kBiasQuantizer = "bias_quantizer";

using Extents = std::vector<std::int64_t>;

std::int64_t product(torch::IntArrayRef extents) {
  return std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>());
}

void check_all_at_least(const char* who, const char* name, torch::IntArrayRef values, std::int64_t least) {
  TORCH_CHECK_VALUE(std::all_of(values.begin(), values.end(), [&](std::int64_t v) { return v >= least; }),
                    who, ": expected ", name, " of at least ", least, ", got ", values);
}

/// The values of an option for each spatial dimension.
Extents spatial(const char* who, const char* name, const Extents& values, std::size_t dimensions,
                std::int64_t least) {
  if (values.empty()) return Extents(dimensions, least);
  TORCH_CHECK_VALUE(values.size() == dimensions, who, ": expected as many entries of ", name,
                    " as the kernel has, ", dimensions, ", got ", torch::IntArrayRef(values));
  check_all_at_least(who, name, values, least);
  return values;
}

/// Where and how a kernel moves.
struct ConvolutionSteps {
  Extents pad;
  Extents stride;
  Extents dilation;
};

template <class Options>
ConvolutionSteps steps_of(const char* who, const Options& options, torch::IntArrayRef kernel) {
  TORCH_CHECK_VALUE(!kernel.empty() && kernel.size() <= 3, who,
                    ": expected a kernel of 1, 2 or 3 dimensions, got ", kernel.size());
  check_all_at_least(who, "kernel extents", kernel, 1);
  return {spatial(who, "pad", options.pad(), kernel.size(), 0),
          spatial(who, "stride", options.stride(), kernel.size(), 1),
          spatial(who, "dilation", options.dilation(), kernel.size(), 1)};
}

void check_group(const char* who, std::int64_t group, std::int64_t in_channels, std::int64_t outmaps) {
  TORCH_CHECK_VALUE(group >= 1 && in_channels % group == 0 && outmaps % group == 0, who,
                    ": expected a group that divides the ", in_channels, " input channels and the ", outmaps,
                    " output channels, got ", group);
}

void check_axis(const char* who, const Tensor& x, std::int64_t base_axis) {
  TORCH_CHECK_VALUE(x.defined(), who, ": the input is undefined");
  TORCH_CHECK_VALUE(base_axis >= 0 && base_axis < x.dim(), who, ": base_axis ", base_axis,
                    " is no axis of an input of shape ", x.sizes(), "; expected 0 to ", x.dim() - 1);
}

void check_bias(const char* who, const Tensor& bias, torch::IntArrayRef shape, const Quantizer* quantizer) {
  TORCH_CHECK_VALUE(bias.defined() || quantizer == nullptr, who,
                    ": there is a quantizer of the bias, but no bias; leave out one or give the other");
  TORCH_CHECK_VALUE(!bias.defined() || bias.sizes() == shape, who, ": expected a bias of shape ", shape,
                    ", got ", bias.defined() ? bias.sizes() : shape);
}

void check_separate(const char* who, const std::shared_ptr<Quantizer>& a,
                    const std::shared_ptr<Quantizer>& b) {
  TORCH_CHECK_VALUE(!a || a != b, who,
                    ": weight and bias share one quantizer, which would be trained twice; give each its own");
}

Tensor quantized(const std::shared_ptr<Quantizer>& quantizer, const Tensor& parameter) {
  return quantizer && parameter.defined() ? quantizer->forward(parameter) : parameter;
}

Tensor affine(const char* who, const Tensor& x, const Tensor& weight, const Tensor& bias,
              std::int64_t base_axis, const std::shared_ptr<Quantizer>& quantizer_w,
              const std::shared_ptr<Quantizer>& quantizer_b) {
  check_axis(who, x, base_axis);
  TORCH_CHECK_VALUE(weight.defined() && weight.dim() >= 2, who,
                    ": expected a weight of shape [in, out...], got ",
                    weight.defined() ? c10::str(weight.sizes()) : "an undefined one");
  const auto batch = x.sizes().slice(0, base_axis);
  const auto features = x.sizes().slice(base_axis);
  TORCH_CHECK_VALUE(product(features) == weight.size(0), who, ": expected ", weight.size(0),
                    " features from base_axis ", base_axis, " on, got ", product(features),
                    " of an input of shape ", x.sizes());
  const auto outmaps = weight.sizes().slice(1);
  check_bias(who, bias, outmaps, quantizer_b.get());

  const auto w = quantized(quantizer_w, weight).flatten(1);
  const auto b = quantized(quantizer_b, bias);
  const auto y = torch::linear(x.flatten(base_axis), w.t(), b.defined() ? b.flatten() : b);
  Extents shape(batch.begin(), batch.end());
  shape.insert(shape.end(), outmaps.begin(), outmaps.end());
  return y.reshape(shape);
}

template <class Options>
Tensor convolve(const char* who, const Tensor& x, const Tensor& weight, const Tensor& bias,
                const Options& options, const std::shared_ptr<Quantizer>& quantizer_w,
                const std::shared_ptr<Quantizer>& quantizer_b) {
  check_axis(who, x, options.base_axis());
  TORCH_CHECK_VALUE(weight.defined() && weight.dim() >= 3, who,
                    ": expected a weight of shape [out, in / group, kernel...], got ",
                    weight.defined() ? c10::str(weight.sizes()) : "an undefined one");
  const auto kernel = weight.sizes().slice(2);
  const auto steps = steps_of(who, options, kernel);
  const std::int64_t base_axis = options.base_axis();
  const auto batch = x.sizes().slice(0, base_axis);
  const auto image = x.sizes().slice(base_axis);
  TORCH_CHECK_VALUE(image.size() == kernel.size() + 1, who, ": expected channels and ", kernel.size(),
                    " spatial dimensions, as the kernel has, from base_axis ", base_axis,
                    " on, got an input of shape ", x.sizes());
  check_group(who, options.group(), image[0], weight.size(0));
  TORCH_CHECK_VALUE(image[0] == weight.size(1) * options.group(), who, ": expected ",
                    weight.size(1) * options.group(), " channels at base_axis ", base_axis,
                    ", got an input of shape ", x.sizes());
  check_bias(who, bias, weight.sizes().slice(0, 1), quantizer_b.get());

  Extents shape{product(batch)};
  shape.insert(shape.end(), image.begin(), image.end());
  const auto y = torch::convolution(base_axis == 1 ? x : x.reshape(shape), quantized(quantizer_w, weight),
                                    quantized(quantizer_b, bias), steps.stride, steps.pad, steps.dilation,
                                    /*transposed=*/false, Extents(kernel.size(), 0), options.group());
  if (base_axis == 1) return y;
  shape.assign(batch.begin(), batch.end());
  shape.insert(shape.end(), y.sizes().begin() + 1, y.sizes().end());
  return y.reshape(shape);
}

/// A quantizer with fresh tensors.
std::shared_ptr<Quantizer> fresh(const char* who, const std::string& config) {
  auto quantizer = std::dynamic_pointer_cast<Quantizer>(make_tensor_module(config));
  TORCH_CHECK_VALUE(quantizer, who, ": expected the configuration of a quantizer, got ", config);
  return quantizer;
}

void fill(const char* who, const char* name, const Tensor& parameter, const Tensor& values) {
  TORCH_CHECK_VALUE(
      values.defined() && values.is_floating_point() && values.sizes() == parameter.sizes(), who,
      ": expected ", name, " to make floating-point values of shape ", parameter.sizes(), ", got ",
      values.defined() ? c10::str(values.scalar_type(), values.sizes()) : "an undefined tensor");
  parameter.copy_(values);
}

}  // namespace

template <class Derived, class Options>
void QuantizedParametersLayer<Derived, Options>::reset() {
  // In a clone in the making the members are still those of its source, and the values come later.
  const bool is_clone = weight.defined();
  const bool trains = !options.fix_parameters();
  weight = this->register_parameter(
      "weight", is_clone ? torch::empty_like(weight) : torch::empty(weight_shape()), trains);
  if (options.with_bias()) {
    bias = this->register_parameter("bias", is_clone ? torch::empty_like(bias) : torch::empty(bias_shape()),
                                    trains);
  } else {
    bias = this->register_parameter("bias", {}, /*requires_grad=*/false);
  }
  if (is_clone) {
    for (auto [name, member] :
         {std::pair{kWeightQuantizer, &weight_quantizer_}, std::pair{kBiasQuantizer, &bias_quantizer_}}) {
      if (*member) register_quantizer(name, *member, fresh(who(), (*member)->config()));
    }
    return;
  }
  reset_parameters();
  set_weight_quantizer(options.quantizer_w());
  set_bias_quantizer(options.quantizer_b());
  options.quantizer_w(nullptr).quantizer_b(nullptr);
}

template <class Derived, class Options>
void QuantizedParametersLayer<Derived, Options>::reset_parameters() {
  const torch::NoGradGuard no_grad;
  if (options.w_init()) {
    fill(who(), "w_init", weight, options.w_init()(weight.sizes(), options.rng()));
  } else {
    const double bound = std::sqrt(6.0 / fan_sum());
    weight.uniform_(-bound, bound, options.rng());
  }
  if (!bias.defined()) return;
  if (options.b_init()) {
    fill(who(), "b_init", bias, options.b_init()(bias.sizes(), options.rng()));
  } else {
    bias.zero_();
  }
}

template <class Derived, class Options>
void QuantizedParametersLayer<Derived, Options>::register_quantizer(const char* name,
                                                                    std::shared_ptr<Quantizer>& member,
                                                                    std::shared_ptr<Quantizer> quantizer) {
  if (this->named_children().contains(name)) this->unregister_module(name);
  member = std::move(quantizer);
  if (!member) return;
  member->to(weight.device());
  member->train(this->is_training());
  this->register_module(name, member);
}

template <class Derived, class Options>
void QuantizedParametersLayer<Derived, Options>::set_weight_quantizer(std::shared_ptr<Quantizer> quantizer) {
  check_separate(who(), quantizer, bias_quantizer_);
  register_quantizer(kWeightQuantizer, weight_quantizer_, std::move(quantizer));
}

template <class Derived, class Options>
void QuantizedParametersLayer<Derived, Options>::set_bias_quantizer(std::shared_ptr<Quantizer> quantizer) {
  check_separate(who(), quantizer, weight_quantizer_);
  check_bias(who(), bias, bias_shape(), quantizer.get());
  register_quantizer(kBiasQuantizer, bias_quantizer_, std::move(quantizer));
}

template <class Derived, class Options>
Tensor QuantizedParametersLayer<Derived, Options>::W_q() const {
  return quantized(weight_quantizer_, weight);
}

template <class Derived, class Options>
Tensor QuantizedParametersLayer<Derived, Options>::b_q() const {
  return quantized(bias_quantizer_, bias);
}

template <class Derived, class Options>
void QuantizedParametersLayer<Derived, Options>::save(torch::serialize::OutputArchive& archive) const {
  torch::nn::Module::save(archive);
  auto configs = nlohmann::json::object();
  if (weight_quantizer_) configs[kWeightQuantizer] = nlohmann::json::parse(weight_quantizer_->config());
  if (bias_quantizer_) configs[kBiasQuantizer] = nlohmann::json::parse(bias_quantizer_->config());
  if (!configs.empty()) archive.write(kQuantizersAttribute, c10::IValue(configs.dump()));
}

template <class Derived, class Options>
void QuantizedParametersLayer<Derived, Options>::load(torch::serialize::InputArchive& archive) {
  auto configs = nlohmann::json::object();
  c10::IValue attribute;
  if (archive.try_read(kQuantizersAttribute, attribute)) {
    TORCH_CHECK_VALUE(attribute.isString(), who(), ": expected the attribute '", kQuantizersAttribute,
                      "' of the file to be text");
    configs = nlohmann::json::parse(attribute.toStringRef(), nullptr, /*allow_exceptions=*/false);
    TORCH_CHECK_VALUE(configs.is_object(), who(), ": the attribute '", kQuantizersAttribute,
                      "' of the file is no JSON object");
  }
  const auto match = [&](const char* name,
                         const std::shared_ptr<Quantizer>& present) -> std::shared_ptr<Quantizer> {
    if (!configs.contains(name)) return nullptr;
    if (present && nlohmann::json::parse(present->config()) == configs[name]) return present;
    return fresh(who(), configs[name].dump());
  };
  const auto of_weight = match(kWeightQuantizer, weight_quantizer_);
  const auto of_bias = match(kBiasQuantizer, bias_quantizer_);
  set_weight_quantizer(of_weight);
  set_bias_quantizer(of_bias);
  torch::nn::Module::load(archive);
}

QuantizedAffineImpl::QuantizedAffineImpl(QuantizedAffineOptions options_)
    : QuantizedParametersLayer(std::move(options_)) {
  check_all_at_least(who(), "in_features", options.in_features(), 1);
  TORCH_CHECK_VALUE(!options.n_outmaps().empty(), who(),
                    ": expected at least one entry of n_outmaps, got none");
  check_all_at_least(who(), "n_outmaps", options.n_outmaps(), 1);
  check_all_at_least(who(), "base_axis", options.base_axis(), 0);
  reset();
}

Extents QuantizedAffineImpl::weight_shape() const {
  Extents shape{options.in_features()};
  shape.insert(shape.end(), options.n_outmaps().begin(), options.n_outmaps().end());
  return shape;
}

double QuantizedAffineImpl::fan_sum() const {
  return static_cast<double>(options.in_features()) + static_cast<double>(product(options.n_outmaps()));
}

Tensor QuantizedAffineImpl::forward(const Tensor& x) {
  const LayerScope scope(*this, {x});
  return scope.output(
      affine(who(), x, weight, bias, options.base_axis(), weight_quantizer(), bias_quantizer()));
}

void QuantizedAffineImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << who() << "(in_features=" << options.in_features()
         << ", n_outmaps=" << torch::IntArrayRef(options.n_outmaps()) << ", base_axis=" << options.base_axis()
         << ", with_bias=" << options.with_bias() << ')';
}

QuantizedConvolutionImpl::QuantizedConvolutionImpl(QuantizedConvolutionOptions options_)
    : QuantizedParametersLayer(std::move(options_)) {
  check_all_at_least(who(), "in_channels", options.in_channels(), 1);
  check_all_at_least(who(), "outmaps", options.outmaps(), 1);
  check_all_at_least(who(), "base_axis", options.base_axis(), 0);
  steps_of(who(), options, options.kernel());
  check_group(who(), options.group(), options.in_channels(), options.outmaps());
  reset();
}

Extents QuantizedConvolutionImpl::weight_shape() const {
  Extents shape{options.outmaps(), options.in_channels() / options.group()};
  shape.insert(shape.end(), options.kernel().begin(), options.kernel().end());
  return shape;
}

double QuantizedConvolutionImpl::fan_sum() const {
  const auto area = static_cast<double>(product(options.kernel()));
  return static_cast<double>(options.in_channels()) * area + static_cast<double>(options.outmaps());
}

Tensor QuantizedConvolutionImpl::forward(const Tensor& x) {
  const LayerScope scope(*this, {x});
  return scope.output(convolve(who(), x, weight, bias, options, weight_quantizer(), bias_quantizer()));
}

void QuantizedConvolutionImpl::pretty_print(std::ostream& stream) const {
  const auto steps = steps_of(who(), options, options.kernel());
  stream << std::boolalpha << who() << '(' << options.in_channels() << ", " << options.outmaps()
         << ", kernel=" << torch::IntArrayRef(options.kernel()) << ", pad=" << torch::IntArrayRef(steps.pad)
         << ", stride=" << torch::IntArrayRef(steps.stride)
         << ", dilation=" << torch::IntArrayRef(steps.dilation) << ", group=" << options.group()
         << ", base_axis=" << options.base_axis() << ", with_bias=" << options.with_bias() << ')';
}

namespace functional {

Tensor quantized_affine(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const QuantizedAffineFuncOptions& options) {
  return affine("qat::nn::functional::quantized_affine", x, weight, bias, options.base_axis(),
                options.quantizer_w(), options.quantizer_b());
}

Tensor quantized_convolution(const Tensor& x, const Tensor& weight, const Tensor& bias,
                             const QuantizedConvolutionFuncOptions& options) {
  return convolve("qat::nn::functional::quantized_convolution", x, weight, bias, options,
                  options.quantizer_w(), options.quantizer_b());
}

}  // namespace functional

template class QuantizedParametersLayer<QuantizedAffineImpl, QuantizedAffineOptions>;
template class QuantizedParametersLayer<QuantizedConvolutionImpl, QuantizedConvolutionOptions>;

}  // namespace qat::nn
