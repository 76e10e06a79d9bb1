// The functional layers of "Mixed Precision DNNs": shapes, start values, cloning, files, errors.
#include <qat/graph/capture.h>
#include <qat/nn/nn.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/quantizers/parametric_quantizer.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace {

namespace nn = qat::nn;
namespace F = qat::nn::functional;
using qat::ParametricOptions;
using qat::ParametricQuantizer;
using qat::testing::error_lacks;
using qat::testing::mismatch;
using torch::Tensor;

using Extents = std::vector<std::int64_t>;

void fill(const Tensor& parameter, double value) {
  const torch::NoGradGuard no_grad;
  parameter.fill_(value);
}

std::shared_ptr<ParametricQuantizer> d_xmax(double d) {
  ParametricOptions options;
  options.d = qat::Learnable{d, 0x1p-8, 1};
  return std::make_shared<ParametricQuantizer>(options);
}

nn::QuantizedAffine quantized_affine() {
  return nn::QuantizedAffine(
      nn::QuantizedAffineOptions(6, {2, 3}).quantizer_w(d_xmax(0.125)).quantizer_b(d_xmax(0.25)));
}

nn::QuantizedConvolution quantized_convolution() {
  return nn::QuantizedConvolution(nn::QuantizedConvolutionOptions(4, 6, {3, 3})
                                      .pad({1, 1})
                                      .group(2)
                                      .quantizer_w(d_xmax(0.125))
                                      .quantizer_b(d_xmax(0.25)));
}

template <class Module>
std::string bytes_of(const Module& module) {
  std::ostringstream file;
  torch::save(module, file);
  return file.str();
}

template <class Module>
void load_bytes(Module& module, const std::string& bytes) {
  std::istringstream file(bytes);
  torch::load(module, file);
}

/// Names, values and types of parameters agree, and share no memory.
void check_same_state(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto left = a.named_parameters();
  const auto right = b.named_parameters();
  REQUIRE(left.keys() == right.keys());
  for (const auto& item : left) {
    INFO(item.key());
    CHECK(mismatch(item.value(), right[item.key()]) == "");
    CHECK(item.value().data_ptr() != right[item.key()].data_ptr());
  }
}

}  // namespace

TEST_CASE("A quantized affine layer takes several batch axes and makes several output axes", "[modules]") {
  const auto x = torch::randn({2, 3, 4, 5});
  for (std::int64_t base_axis = 0; base_axis < 4; ++base_axis) {
    INFO(base_axis);
    const auto in = x.flatten(base_axis).size(base_axis);
    nn::QuantizedAffine layer(nn::QuantizedAffineOptions(in, {7, 2}).base_axis(base_axis));
    CHECK(layer->weight.sizes() == torch::IntArrayRef({in, 7, 2}));
    CHECK(layer->bias.sizes() == torch::IntArrayRef({7, 2}));
    fill(layer->bias, 0.5);
    const auto y = layer(x);
    auto expected = x.sizes().slice(0, base_axis).vec();
    expected.insert(expected.end(), {7, 2});
    CHECK(y.sizes() == torch::IntArrayRef(expected));
    const auto reference =
        torch::tensordot(x.flatten(base_axis), layer->weight, {base_axis}, {0}) + layer->bias;
    CHECK(mismatch(y, reference, {.absolute = 1e-5}) == "");
  }
  CHECK(nn::QuantizedAffine(20, 6)(torch::randn({0, 4, 5})).sizes() == torch::IntArrayRef({0, 6}));
}

TEST_CASE("A quantized convolution takes any number of batch axes", "[modules]") {
  const Extents spatial{6, 5, 4};
  for (std::size_t d = 1; d <= 3; ++d) {
    nn::QuantizedConvolution layer(nn::QuantizedConvolutionOptions(4, 6, Extents(d, 3)).group(2));
    REQUIRE(layer->weight.dim() == static_cast<std::int64_t>(d) + 2);
    CHECK(layer->weight.size(1) == 2);
    for (const Extents& batch : {Extents{}, Extents{2}, Extents{2, 3}, Extents{1, 2, 3}, Extents{2, 0}}) {
      INFO(d << " dimensions, batch " << torch::IntArrayRef(batch));
      layer->options.base_axis(static_cast<std::int64_t>(batch.size()));
      Extents in = batch;
      Extents out = batch;
      in.push_back(4);
      out.push_back(6);
      for (std::size_t i = 0; i < d; ++i) {
        in.push_back(spatial[i]);
        out.push_back(spatial[i] - 2);
      }
      const auto x = torch::randn(in);
      const auto y = layer(x);
      REQUIRE(y.sizes() == torch::IntArrayRef(out));
      if (batch.size() != 2 || y.numel() == 0) continue;
      layer->options.base_axis(1);
      CHECK(mismatch(y[1], layer(x[1]), {.absolute = 1e-6}) == "");
    }
  }
}

TEST_CASE("Weights start uniform as nnabla's, biases at zero", "[modules]") {
  const auto rng = torch::make_generator<torch::CPUGeneratorImpl>(3);
  nn::QuantizedAffine affine(nn::QuantizedAffineOptions(100, {5, 10}).rng(rng));
  const double bound = std::sqrt(6.0 / 150);
  CHECK(affine->weight.abs().max().item<double>() <= bound);
  CHECK(affine->weight.abs().max().item<double>() > 0.99 * bound);
  CHECK(affine->weight.mean().abs().item<double>() < 0.05 * bound);
  CHECK(affine->bias.eq(0).all().item<bool>());
  // The channels of all groups count, and the kernel's area with the inputs.
  nn::QuantizedConvolution conv(nn::QuantizedConvolutionOptions(40, 60, {3, 5}).group(2).rng(rng));
  const double limit = std::sqrt(6.0 / (40 * 15 + 60));
  CHECK(conv->weight.abs().max().item<double>() <= limit);
  CHECK(conv->weight.abs().max().item<double>() > 0.99 * limit);

  const auto again = torch::make_generator<torch::CPUGeneratorImpl>(3);
  CHECK(torch::equal(nn::QuantizedAffine(nn::QuantizedAffineOptions(100, {5, 10}).rng(again))->weight,
                     affine->weight));
  torch::manual_seed(1);
  const auto first = nn::QuantizedAffine(4, 4)->weight;
  torch::manual_seed(1);
  CHECK(torch::equal(nn::QuantizedAffine(4, 4)->weight, first));
}

TEST_CASE("Initialisers get shape and generator of the options", "[modules]") {
  const auto rng = torch::make_generator<torch::CPUGeneratorImpl>(5);
  std::vector<std::string> shapes;
  const auto init = [&](torch::IntArrayRef shape, std::optional<torch::Generator> generator) {
    shapes.push_back(c10::str(shape));
    CHECK((generator && *generator == rng));
    return torch::full(shape, 0.5);
  };
  nn::QuantizedConvolution layer(
      nn::QuantizedConvolutionOptions(4, 6, {3}).group(2).w_init(init).b_init(init).rng(rng).fix_parameters(
          true));
  CHECK(shapes == std::vector<std::string>{"[6, 2, 3]", "[6]"});
  CHECK((layer->weight.eq(0.5).all() & layer->bias.eq(0.5).all()).item<bool>());
  CHECK((!layer->weight.requires_grad() && !layer->bias.requires_grad()));
  layer->clone();  // draws nothing
  CHECK(shapes.size() == 2);
  layer->reset_parameters();
  CHECK(shapes.size() == 4);
}

TEST_CASE("A layer without bias and without quantizers is the plain operation", "[modules]") {
  nn::QuantizedConvolution layer(nn::QuantizedConvolutionOptions(3, 4, {3, 3}).with_bias(false));
  CHECK(!layer->bias.defined());
  CHECK(!layer->b_q().defined());
  CHECK(layer->parameters().size() == 1);
  CHECK(layer->W_q().is_same(layer->weight));
  const auto x = torch::randn({2, 3, 5, 5});
  CHECK(mismatch(layer(x), torch::conv2d(x, layer->weight)) == "");
  nn::QuantizedConvolution copy(std::dynamic_pointer_cast<nn::QuantizedConvolutionImpl>(layer->clone()));
  CHECK(mismatch(copy(x), layer(x)) == "");
}

TEST_CASE("W_q and b_q follow the parameters and pass gradients", "[modules]") {
  auto layer = quantized_affine();
  fill(layer->bias, 0.3);
  CHECK(mismatch(layer->b_q(), torch::full({2, 3}, 0.25)) == "");
  const auto codes = layer->W_q() / 0.125;
  CHECK(torch::equal(codes, codes.round()));
  layer->W_q().sum().backward();
  CHECK(layer->weight.grad().eq(1).all().item<bool>());
  fill(layer->bias, -0.6);
  CHECK(mismatch(layer->b_q(), torch::full({2, 3}, -0.5)) == "");
}

TEST_CASE("A quantizer per output channel of the weight", "[modules]") {
  const auto quantizer = std::make_shared<ParametricQuantizer>(ParametricOptions{.axis = 1, .channels = 4});
  nn::QuantizedAffine affine(nn::QuantizedAffineOptions(6, 4).quantizer_w(quantizer));
  affine(torch::randn({2, 6})).sum().backward();
  CHECK(affine->weight_quantizer()->parameters()[0].grad().sizes() == torch::IntArrayRef({4}));
}

TEST_CASE("Quantized layers clone with their quantizers", "[modules]") {
  nn::Sequential model(quantized_convolution(), nn::Flatten(),
                       nn::QuantizedAffine(nn::QuantizedAffineOptions(96, 3).quantizer_w(d_xmax(0.0625))));
  model->eval();
  fill(model->parameters().back(), 0.75);
  const auto x = torch::randn({2, 4, 4, 4});
  nn::Sequential copy(std::dynamic_pointer_cast<nn::SequentialImpl>(model->clone()));
  check_same_state(*model, *copy);
  CHECK(c10::str(*copy) == c10::str(*model));
  CHECK(!copy->at<nn::QuantizedConvolutionImpl>(0).weight_quantizer()->is_training());
  const auto expected = model->forward(x);
  CHECK(mismatch(copy->forward(x), expected) == "");
  // The copy is independent, and its quantizers are those that it uses.
  fill(model->parameters().front(), 0);
  CHECK(mismatch(copy->forward(x), expected) == "");
  copy->forward(x).sum().backward();
  for (const auto& parameter : copy->named_parameters()) {
    INFO(parameter.key());
    CHECK(parameter.value().grad().defined());
  }
  for (const auto& parameter : model->parameters())
    CHECK(!parameter.grad().defined());
}

TEST_CASE("A file of a quantized layer loads into a fresh one, quantizers included", "[modules]") {
  auto source = quantized_convolution();
  fill(source->weight_quantizer()->parameters()[0], 0.5);
  const auto x = torch::randn({1, 4, 4, 4});
  const auto names = source->named_parameters().keys();
  CHECK(names == std::vector<std::string>{"weight", "bias", "weight_quantizer.d", "weight_quantizer.xmax",
                                          "bias_quantizer.d", "bias_quantizer.xmax"});
  auto same = quantized_convolution();
  const auto kept = same->weight_quantizer();
  load_bytes(same, bytes_of(source));
  CHECK(same->weight_quantizer() == kept);
  check_same_state(*source, *same);
  CHECK(mismatch(same(x), source(x)) == "");

  const auto options = nn::QuantizedConvolutionOptions(4, 6, {3, 3}).pad({1, 1}).group(2);
  nn::QuantizedConvolution fresh(options);
  load_bytes(fresh, bytes_of(source));
  check_same_state(*source, *fresh);
  CHECK(mismatch(fresh(x), source(x)) == "");

  nn::QuantizedConvolution plain(options);
  load_bytes(same, bytes_of(plain));
  CHECK((!same->weight_quantizer() && !same->bias_quantizer() && same->children().empty()));
  CHECK(mismatch(same(x), plain(x)) == "");
}

TEST_CASE("A damaged description of the quantizers is refused", "[modules]") {
  const auto load_text = [](const std::string& text) {
    torch::serialize::OutputArchive out;
    out.write("quantizers", c10::IValue(text));
    std::ostringstream file;
    out.save_to(file);
    std::istringstream stream(file.str());
    torch::serialize::InputArchive in;
    in.load_from(stream);
    quantized_affine()->load(in);
  };
  CHECK(error_lacks([&] { load_text("["); }, {"qat::nn::QuantizedAffine", "is no JSON object"}) == "");
  CHECK(error_lacks([&] { load_text(R"({"weight_quantizer": {"type": "Other"}})"); }, {"'Other'"}) == "");
  const std::string recorder = R"({"weight_quantizer": {"type": "qat::Recorder"}})";
  CHECK(error_lacks([&] { load_text(recorder); }, {"qat::Recorder"}) == "");
}

TEST_CASE("A converted quantized layer keeps its learnables in float32", "[modules]") {
  auto affine = quantized_affine();
  auto conv = quantized_convolution();
  for (const auto type : {torch::kHalf, torch::kBFloat16, torch::kFloat}) {
    INFO(type);
    affine->to(type);
    conv->to(type);
    CHECK(affine->weight.scalar_type() == type);
    CHECK(affine->weight_quantizer()->parameters()[0].scalar_type() == torch::kFloat);
    CHECK(affine(torch::randn({2, 6}).to(type)).scalar_type() == type);
    const auto y = conv(torch::randn({2, 4, 5, 5}).to(type));
    CHECK(y.scalar_type() == type);
    y.sum().backward();
    CHECK(conv->weight_quantizer()->parameters()[0].grad().scalar_type() == torch::kFloat);
    conv->zero_grad();
  }
}

TEST_CASE("Quantizers of a layer can be set, replaced and removed later", "[modules]") {
  nn::QuantizedAffine layer(6, 4);
  layer->eval();
  layer->set_weight_quantizer(d_xmax(0.25));
  CHECK(!layer->weight_quantizer()->is_training());
  layer->set_weight_quantizer(std::make_shared<qat::AffineQuantizer>());
  layer->set_bias_quantizer(d_xmax(0.25));
  CHECK(layer->named_children().keys() == std::vector<std::string>{"weight_quantizer", "bias_quantizer"});
  layer->set_weight_quantizer(nullptr);
  layer->set_bias_quantizer(nullptr);
  CHECK(layer->children().empty());
  const auto shared = d_xmax(0.25);
  layer->set_weight_quantizer(shared);
  CHECK(error_lacks([&] { layer->set_bias_quantizer(shared); },
                    {"share one quantizer", "give each its own"}) == "");
}

TEST_CASE("Quantized layers are layers of a captured graph", "[modules]") {
  nn::Sequential model(quantized_convolution(), nn::ReLU());
  const auto graph = qat::capture(*model, qat::forward_function(model), {torch::randn({1, 4, 5, 5})});
  REQUIRE(graph.nodes.size() == 2);
  CHECK(graph.nodes[0].kind == qat::GraphNode::Kind::kLayer);
  CHECK(graph.nodes[0].type == "qat::nn::QuantizedConvolution");
}

TEST_CASE("Quantized layers print their options", "[modules]") {
  CHECK(c10::str(*nn::QuantizedAffine(nn::QuantizedAffineOptions(6, {2, 3}).with_bias(false))) ==
        "qat::nn::QuantizedAffine(in_features=6, n_outmaps=[2, 3], base_axis=1, with_bias=false)");
  const auto text = c10::str(*quantized_convolution());
  CHECK(
      text.starts_with("qat::nn::QuantizedConvolution(4, 6, kernel=[3, 3], pad=[1, 1], stride=[1, 1], "
                       "dilation=[1, 1], group=2, base_axis=1, with_bias=true)"));
  CHECK(text.find("(bias_quantizer): qat::ParametricQuantizer(") != std::string::npos);
}

TEST_CASE("Bad options of quantized layers are refused", "[modules]") {
  using AffineOptions = nn::QuantizedAffineOptions;
  using ConvOptions = nn::QuantizedConvolutionOptions;
  const auto affine_lacks = [](const AffineOptions& options, std::initializer_list<std::string> words) {
    return error_lacks([&] { nn::QuantizedAffine layer(options); }, words);
  };
  CHECK(affine_lacks({0, 3}, {"qat::nn::QuantizedAffine", "in_features of at least 1, got [0]"}) == "");
  CHECK(affine_lacks({3, Extents{}}, {"at least one entry of n_outmaps"}) == "");
  CHECK(affine_lacks({3, {2, 0}}, {"n_outmaps of at least 1, got [2, 0]"}) == "");
  CHECK(affine_lacks(AffineOptions(3, 2).base_axis(-1), {"base_axis of at least 0, got [-1]"}) == "");
  const auto shared = d_xmax(0.5);
  CHECK(affine_lacks(AffineOptions(3, 2).quantizer_w(shared).quantizer_b(shared), {"share one quantizer"}) ==
        "");
  CHECK(affine_lacks(AffineOptions(3, 2).with_bias(false).quantizer_b(shared),
                     {"no bias", "leave out one"}) == "");
  const auto wrong = [](torch::IntArrayRef, const auto&) { return torch::zeros({3}); };
  CHECK(affine_lacks(AffineOptions(3, 2).w_init(wrong), {"w_init", "shape [3, 2], got", "[3]"}) == "");
  CHECK(affine_lacks(AffineOptions(3, 2).b_init(wrong), {"b_init", "shape [2], got", "[3]"}) == "");

  const auto conv_lacks = [](const ConvOptions& options, std::initializer_list<std::string> words) {
    return error_lacks([&] { nn::QuantizedConvolution layer(options); }, words);
  };
  CHECK(conv_lacks({0, 2, {3}}, {"qat::nn::QuantizedConvolution", "in_channels of at least 1"}) == "");
  CHECK(conv_lacks({2, 0, {3}}, {"outmaps of at least 1"}) == "");
  CHECK(conv_lacks({2, 2, {}}, {"kernel of 1, 2 or 3 dimensions, got 0"}) == "");
  CHECK(conv_lacks({2, 2, {1, 1, 1, 1}}, {"kernel of 1, 2 or 3 dimensions, got 4"}) == "");
  CHECK(conv_lacks({2, 2, {3, 0}}, {"kernel extents of at least 1, got [3, 0]"}) == "");
  CHECK(conv_lacks(ConvOptions(2, 2, {3, 3}).pad({1}), {"entries of pad", "2, got [1]"}) == "");
  CHECK(conv_lacks(ConvOptions(2, 2, {3}).pad({-1}), {"pad of at least 0, got [-1]"}) == "");
  CHECK(conv_lacks(ConvOptions(2, 2, {3}).stride({0}), {"stride of at least 1, got [0]"}) == "");
  CHECK(conv_lacks(ConvOptions(2, 2, {3}).dilation({1, 1}), {"entries of dilation", "1, got [1, 1]"}) == "");
  CHECK(conv_lacks(ConvOptions(4, 6, {3}).group(4),
                   {"a group that divides the 4 input channels and the 6 output channels, got 4"}) == "");
  CHECK(conv_lacks(ConvOptions(4, 6, {3}).group(0), {"got 0"}) == "");
  CHECK(conv_lacks(ConvOptions(4, 6, {3}).base_axis(-2), {"base_axis of at least 0, got [-2]"}) == "");
}

TEST_CASE("Bad inputs of quantized functions are refused", "[modules]") {
  const auto x = torch::randn({2, 3, 4});
  const auto affine_lacks = [&](const Tensor& weight, const Tensor& bias,
                                const F::QuantizedAffineFuncOptions& options,
                                std::initializer_list<std::string> words) {
    return error_lacks([&] { F::quantized_affine(x, weight, bias, options); }, words);
  };
  const auto w = torch::randn({12, 5});
  CHECK(affine_lacks(w, {}, F::QuantizedAffineFuncOptions().base_axis(3),
                     {"quantized_affine", "base_axis 3", "[2, 3, 4]", "expected 0 to 2"}) == "");
  CHECK(affine_lacks(w, {}, F::QuantizedAffineFuncOptions().base_axis(2),
                     {"expected 12 features from base_axis 2 on, got 4", "[2, 3, 4]"}) == "");
  CHECK(affine_lacks(torch::randn({12}), {}, {}, {"weight of shape [in, out...], got [12]"}) == "");
  CHECK(affine_lacks({}, {}, {}, {"got an undefined one"}) == "");
  CHECK(affine_lacks(w, torch::randn({4}), {}, {"bias of shape [5], got [4]"}) == "");
  CHECK(affine_lacks(w, {}, F::QuantizedAffineFuncOptions().quantizer_b(d_xmax(0.5)), {"no bias"}) == "");
  CHECK(error_lacks([&] { F::quantized_affine({}, w); }, {"the input is undefined"}) == "");
  CHECK(error_lacks([&] { nn::QuantizedAffine(5, 2)(x); },
                    {"qat::nn::QuantizedAffine", "expected 5 features", "got 12"}) == "");

  const auto conv_lacks = [&](const Tensor& weight, const F::QuantizedConvolutionFuncOptions& options,
                              std::initializer_list<std::string> words) {
    return error_lacks([&] { F::quantized_convolution(x, weight, {}, options); }, words);
  };
  CHECK(conv_lacks(torch::randn({6, 3, 3, 3}), {},
                   {"quantized_convolution", "2 spatial dimensions", "[2, 3, 4]"}) == "");
  CHECK(conv_lacks(torch::randn({6, 3}), {}, {"[out, in / group, kernel...], got [6, 3]"}) == "");
  CHECK(conv_lacks(torch::randn({6, 3, 1, 1, 1, 1}), {}, {"kernel of 1, 2 or 3 dimensions, got 4"}) == "");
  CHECK(conv_lacks(torch::randn({6, 2, 3}), {}, {"expected 2 channels at base_axis 1", "[2, 3, 4]"}) == "");
  CHECK(conv_lacks(torch::randn({6, 1, 3}), F::QuantizedConvolutionFuncOptions().group(2),
                   {"a group that divides"}) == "");
  CHECK(conv_lacks(torch::randn({6, 3, 3}), F::QuantizedConvolutionFuncOptions().base_axis(3),
                   {"base_axis 3"}) == "");
  CHECK(conv_lacks(torch::randn({6, 3, 3}), F::QuantizedConvolutionFuncOptions().stride({1, 1}),
                   {"entries of stride", "1, got [1, 1]"}) == "");
  CHECK(error_lacks(
            [&] {
              F::quantized_convolution(x, torch::randn({6, 3, 3}), torch::randn({3}));
            },
            {"bias of shape [6], got [3]"}) == "");
}
