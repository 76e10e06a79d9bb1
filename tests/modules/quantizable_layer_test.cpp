// Slots: what they do to a layer's forward and backward.
#include "slot_contents.h"

#include "support/catch.h"
#include "support/errors.h"

namespace {

namespace nn = qat::nn;
using qat::testing::error_lacks;

void set(torch::Tensor& parameter, const torch::Tensor& value) {
  const torch::NoGradGuard no_grad;
  parameter.copy_(value.reshape(parameter.sizes()));
}

nn::Linear make_linear(const torch::Tensor& weight, const torch::Tensor& bias = {}) {
  nn::Linear layer(nn::LinearOptions(weight.size(1), weight.size(0)).bias(bias.defined()));
  set(layer->weight, weight);
  if (bias.defined()) set(layer->bias, bias);
  return layer;
}

}  // namespace

TEST_CASE("A slot is a child module that can be filled replaced and emptied", "[modules]") {
  nn::Add layer;
  layer->set_slot(slots::kSecondInput, slots::recorder());
  CHECK(layer->named_children().contains("input_slot_1"));
  const auto second = slots::quantizer(0.5);
  layer->set_slot(slots::kSecondInput, second);
  CHECK(layer->slot(slots::kSecondInput) == second);
  CHECK(layer->children().size() == 1);
  CHECK((layer->occupied_slots() == std::vector{slots::kSecondInput}));
  layer->set_slot(slots::kSecondInput, nullptr);
  CHECK(layer->children().empty());
  layer->set_slot(slots::kInput, slots::recorder());
  layer->set_link(slots::kOutput, {"add.input_slot", true, layer->slot(slots::kInput)});
  CHECK((layer->linked_slots() == std::vector{slots::kOutput}));
  CHECK(layer->link(slots::kOutput)->path == "add.input_slot");
  CHECK(layer->children().size() == 1);
  layer->clear_slots();
  CHECK((layer->children().empty() && layer->occupied_slots().empty() && layer->linked_slots().empty()));
}

TEST_CASE("Slots that a layer does not have are refused by name", "[modules]") {
  CHECK(error_lacks([&] { nn::ReLU()->set_slot(slots::kWeight, slots::recorder()); },
                    {"qat::nn::ReLU has no weight_slot"}) == "");
  CHECK(error_lacks(
            [&] {
              nn::Add()->set_slot({nn::SlotId::Kind::kInput, 2}, slots::recorder());
            },
            {"has no input_slot_2"}) == "");
  nn::Conv2d conv(nn::Conv2dOptions(1, 1, 1).bias(false));
  CHECK(error_lacks([&] { conv->set_slot(slots::kBias, slots::bias_quantizer()); },
                    {"qat::nn::Conv2d has no bias_slot"}) == "");
  CHECK(error_lacks(
            [&] {
              conv->set_link(slots::kWeight, {"x", true});
            },
            {"expected an input or output slot"}) == "");
  CHECK_NOTHROW(nn::Cat(1)->set_slot({nn::SlotId::Kind::kInput, 7}, slots::recorder()));
  CHECK(error_lacks([&] { nn::Embedding(3, 2)->set_slot(slots::kInput, slots::recorder()); },
                    {"has no input_slot"}) == "");
}

TEST_CASE("Recorders see input weight bias and output and change nothing", "[modules]") {
  auto layer = make_linear(torch::tensor({{0.5F, -2.0F}}), torch::tensor({3.0F}));
  for (const auto id : {slots::kInput, slots::kWeight, slots::kBias, slots::kOutput})
    layer->set_slot(id, slots::recorder());
  const auto y = layer->forward(torch::tensor({{1.0F, 4.0F}, {2.0F, -1.0F}}));
  CHECK(torch::equal(y, torch::tensor({{-4.5F}, {6.0F}})));
  const auto range = [&](slots::SlotId id) {
    const auto seen = slots::recorder_of(*layer, id).range();
    return std::pair(seen.min.item<float>(), seen.max.item<float>());
  };
  CHECK(range(slots::kInput) == std::pair(-1.0F, 4.0F));
  CHECK(range(slots::kWeight) == std::pair(-2.0F, 0.5F));
  CHECK(range(slots::kBias) == std::pair(3.0F, 3.0F));
  CHECK(range(slots::kOutput) == std::pair(-4.5F, 6.0F));

  // Validation batches are not recorded.
  layer->eval();
  layer->forward(torch::tensor({{100.0F, 100.0F}}));
  CHECK(range(slots::kInput) == std::pair(-1.0F, 4.0F));
}

TEST_CASE("case 61: what a slot recorded is in the model's buffers", "[modules]") {
  nn::Sequential model(nn::Identity{});
  model->at<nn::IdentityImpl>(0).set_slot(slots::kInput, slots::recorder());
  model->forward(torch::tensor({-1.0F, 2.0F}));
  const auto buffers = model->named_buffers();
  CHECK(buffers["0.input_slot.min_val"].item<float>() == -1.0F);
  CHECK(buffers["0.input_slot.max_val"].item<float>() == 2.0F);
  CHECK(buffers["0.input_slot.recorded"].item<std::int64_t>() == 1);
}

TEST_CASE("golden V37: the bias is an int32 code at the scale of the accumulator", "[modules]") {
  auto layer = make_linear(torch::tensor({{0.5F}}), torch::tensor({1.0F}));
  layer->set_slot(slots::kInput, slots::quantizer(0x1p-7F));
  layer->set_slot(slots::kWeight, slots::quantizer(0x1p-8F));
  layer->set_slot(slots::kBias, slots::bias_quantizer());
  const auto x = torch::tensor({{1.0F}, {-1.0F}});
  // (127 * 127 + 32768) and (-128 * 127 + 32768), in units of 2^-15.
  CHECK(torch::equal(layer->forward(x), torch::tensor({{48897.0F}, {16512.0F}}) * 0x1p-15F));
  layer->set_slot(slots::kOutput, slots::quantizer(0x1p-6F));
  CHECK(torch::equal(layer->forward(x), torch::tensor({{1.5F}, {0.5F}})));
}

TEST_CASE("The bias is rounded to the product of the input scale and each weight scale", "[modules]") {
  auto layer = make_linear(torch::tensor({{1.27F}, {0.5F}}), torch::tensor({0.0013F, 0.4F}));
  layer->set_slot(slots::kInput, slots::quantizer(0.1F));
  layer->set_slot(slots::kWeight, slots::channel_quantizer(0));
  layer->set_slot(slots::kBias, slots::bias_quantizer());
  const auto y = layer->forward(torch::zeros({1, 1})).flatten();
  CHECK(y[0].item<float>() == Approx(0.001).epsilon(1e-6));  // one step of 0.1 * 0.01
  const double step = 0.1 * 0.5 / 127;
  CHECK(y[1].item<float>() == Approx(std::round(0.4 / step) * step).epsilon(1e-6));
}

TEST_CASE("A bias without a quantized input stays float", "[modules]") {
  auto layer = make_linear(torch::tensor({{0.5F}}), torch::tensor({0.123456F}));
  layer->set_slot(slots::kWeight, slots::quantizer(0.25F));
  layer->set_slot(slots::kBias, slots::bias_quantizer());
  CHECK(layer->forward(torch::zeros({1, 1})).item<float>() == 0.123456F);
}

TEST_CASE("The range of a weight is computed once for weight and bias", "[modules]") {
  struct Counting : qat::AffineQuantizer {
    using AffineQuantizer::AffineQuantizer;
    qat::AffineParams affine_params(const torch::Tensor& x) override {
      ++calls;
      return AffineQuantizer::affine_params(x);
    }
    int calls = 0;
  };
  auto layer = make_linear(torch::tensor({{0.5F}}), torch::tensor({0.123456F}));
  const auto weights = std::make_shared<Counting>(
      qat::AffineQuantizerOptions{.scale_source = qat::ScaleSource::kCurrent, .axis = 0});
  layer->set_slot(slots::kInput, slots::quantizer(0.25F));
  layer->set_slot(slots::kWeight, weights);
  layer->set_slot(slots::kBias, slots::bias_quantizer());
  layer->forward(torch::zeros({1, 1}));
  CHECK(weights->calls == 1);
}

TEST_CASE("case 24: transposed convolutions have their channels on axis 1", "[modules]") {
  nn::ConvTranspose2d layer(2, 3, 1);
  set(layer->weight, torch::tensor({{1.0F, 10.0F, 100.0F}, {2.0F, 20.0F, 200.0F}}));
  set(layer->bias, torch::tensor({1.0F, 2.0F, 3.0F}));
  CHECK(layer->weight_channel_axis() == 1);
  const auto weights = slots::channel_quantizer(layer->weight_channel_axis());
  layer->set_slot(slots::kInput, slots::quantizer(1.0F));
  layer->set_slot(slots::kWeight, weights);
  layer->set_slot(slots::kBias, slots::bias_quantizer());
  CHECK(torch::allclose(weights->affine_params(layer->weight).scale,
                        torch::tensor({2.0F, 20.0F, 200.0F}) / 127, 1e-6));
  const auto y = layer->forward(torch::ones({1, 2, 1, 1})).flatten();
  CHECK(torch::allclose(y, torch::tensor({4.0F, 32.0F, 303.0F}), 0.005));
}

TEST_CASE("Groups of a transposed convolution repeat the scales for the bias", "[modules]") {
  nn::ConvTranspose1d layer(nn::ConvTranspose1dOptions(2, 4, 1).groups(2));
  set(layer->weight, torch::tensor({{1.27F, 12.7F}, {0.5F, 5.0F}}));
  set(layer->bias, torch::tensor({0.013F, 0.13F, 0.024F, 0.24F}));
  layer->set_slot(slots::kInput, slots::quantizer(1.0F));
  layer->set_slot(slots::kWeight, slots::channel_quantizer(1));
  layer->set_slot(slots::kBias, slots::bias_quantizer());
  const auto y = layer->forward(torch::zeros({1, 2, 1})).flatten();
  CHECK(torch::allclose(y, torch::tensor({0.01F, 0.1F, 0.02F, 0.2F}), 1e-6));
}

TEST_CASE("case 28: a layer with one output channel has one scale", "[modules]") {
  auto layer = make_linear(torch::tensor({{0.5F, -1.27F, 0.0F, 0.01F}}));
  const auto weights = slots::channel_quantizer(0);
  layer->set_slot(slots::kWeight, weights);
  const auto scale = weights->affine_params(layer->weight).scale;
  CHECK(scale.sizes() == torch::IntArrayRef({1}));
  CHECK(scale[0].item<float>() == Approx(0.01).epsilon(1e-6));
  CHECK(torch::allclose(layer->forward(torch::eye(4)).flatten(), layer->weight.flatten(), 1e-6));
}

TEST_CASE("An activation and its quantizer are one pass with the values of two", "[modules]") {
  const auto x = torch::tensor({-1.0F, -0.2F, 0.0F, 0.3F, 0.374F, 5.0F, 100.0F, std::nanf("")});
  const auto gradient = torch::arange(1, 9).to(torch::kFloat);
  const auto check = [&](auto layer, auto plain) {
    const auto quantizer = slots::quantizer(0.25F);
    layer->set_slot(slots::kOutput, quantizer);
    auto a = x.clone().requires_grad_(), b = x.clone().requires_grad_();
    const auto y = layer->forward(a), expected = quantizer->forward(plain(b));
    y.backward(gradient);
    expected.backward(gradient);
    CHECK(torch::allclose(y, expected, 0, 0, /*equal_nan=*/true));
    CHECK(torch::allclose(a.grad(), b.grad(), 0, 0, /*equal_nan=*/true));
  };
  check(nn::ReLU(), [](const torch::Tensor& v) { return torch::relu(v); });
  check(nn::ReLU(true), [](const torch::Tensor& v) { return torch::relu(v); });
  check(nn::ReLU6(), [](const torch::Tensor& v) { return torch::hardtanh(v, 0, 6); });
  check(nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.5)),
        [](const torch::Tensor& v) { return torch::leaky_relu(v, 0.5); });
  check(nn::Sigmoid(), [](const torch::Tensor& v) { return torch::sigmoid(v); });
  const auto integers = torch::tensor({-3, 4});
  nn::ReLU layer;
  layer->set_slot(slots::kOutput, slots::quantizer(0.25F));
  CHECK(torch::equal(layer->forward(integers), torch::tensor({0, 4})));
}

TEST_CASE("A link passes the tensor through another layer's slot or only knows it", "[modules]") {
  nn::Identity first, second;
  first->set_slot(slots::kOutput, slots::quantizer(0.5F));
  second->set_link(slots::kOutput, {"first.output_slot", true, first->slot(slots::kOutput)});
  const auto x = torch::tensor({0.7F});
  CHECK(second->forward(x).item<float>() == 0.5F);
  second->set_link(slots::kOutput, {"first.output_slot", false, first->slot(slots::kOutput)});
  CHECK(second->forward(x).item<float>() == 0.7F);

  // The scale of the bias comes through a link.
  auto layer = make_linear(torch::tensor({{0.5F}}), torch::tensor({0.3F}));
  layer->set_link(slots::kInput, {"first.output_slot", false, first->slot(slots::kOutput)});
  layer->set_slot(slots::kWeight, slots::quantizer(0.25F));
  layer->set_slot(slots::kBias, slots::bias_quantizer());
  CHECK(layer->forward(torch::zeros({1, 1})).item<float>() == 0.25F);  // 2 * 0.125

  first->clear_slots();
  CHECK(error_lacks([&] { second->forward(x); }, {"call qat::nn::relink(model)"}) == "");
}

TEST_CASE("A linked activation fuses with the quantizer it is linked to", "[modules]") {
  nn::Identity first;
  first->set_slot(slots::kOutput, slots::quantizer(0.5F));
  nn::ReLU second;
  second->set_link(slots::kOutput, {"first.output_slot", true, first->slot(slots::kOutput)});
  CHECK(torch::equal(second->forward(torch::tensor({-0.7F, 0.7F})), torch::tensor({0.0F, 0.5F})));
}

TEST_CASE("case 71: a quantizer without a range is an error", "[modules]") {
  nn::ReLU layer;
  layer->set_slot(slots::kOutput, std::make_shared<qat::AffineQuantizer>());
  CHECK(error_lacks([&] { layer->forward(torch::tensor({0.3F, 0.4F})); }, {"record a range first"}) == "");
}

TEST_CASE("case 104: indices reach an embedding untouched", "[modules]") {
  nn::Embedding layer(301, 2);
  layer->set_slot(slots::kWeight, slots::channel_quantizer(1));
  layer->set_slot(slots::kOutput, slots::quantizer(0.5F));
  const auto y = layer->forward(torch::tensor({0, 5, 300}));
  const auto codes = y / 0.5;
  CHECK(torch::equal(codes, codes.round()));
  CHECK(torch::allclose(y, layer->weight.index_select(0, torch::tensor({0, 5, 300})), 0, 0.27));
  nn::Embedding sparse(nn::EmbeddingOptions(3, 2).sparse(true));
  sparse->set_slot(slots::kWeight, slots::channel_quantizer(1));
  CHECK(error_lacks([&] { sparse->forward(torch::tensor({0})); }, {"sparse(false)"}) == "");
}

TEST_CASE("case 107: filling slots leaves the parameters the optimizer knows", "[modules]") {
  auto layer = make_linear(torch::tensor({{1.0F}}));
  torch::optim::SGD optimizer(layer->parameters(), 0.1);
  const auto before = layer->weight;
  layer->set_slot(slots::kInput, slots::recorder());
  layer->set_slot(slots::kWeight, slots::recorder());
  layer->forward(torch::ones({1, 1})).backward();
  optimizer.step();
  CHECK(layer->weight.is_same(before));
  CHECK(layer->parameters().size() == 1);
  CHECK(layer->forward(torch::ones({1, 1})).item<float>() == 0.9F);
}

TEST_CASE("case 102: NaN and empty batches pass through quantized layers", "[modules]") {
  nn::Conv2d layer(2, 3, 1);
  layer->set_slot(slots::kInput, slots::quantizer(0.1F));
  layer->set_slot(slots::kWeight, slots::channel_quantizer(0));
  layer->set_slot(slots::kBias, slots::bias_quantizer());
  layer->set_slot(slots::kOutput, slots::quantizer(0.1F));
  auto x = torch::zeros({1, 2, 2, 2});
  x[0][1][1][0] = NAN;
  const auto is_nan = torch::isnan(layer->forward(x))[0];
  CHECK(torch::equal(is_nan[0], torch::tensor({{false, false}, {true, false}})));
  CHECK(is_nan.sum().item<int>() == 3);
  auto empty = torch::zeros({0, 2, 2, 2}).requires_grad_();
  const auto y = layer->forward(empty);
  CHECK(y.sizes() == torch::IntArrayRef({0, 3, 2, 2}));
  y.sum().backward();
  CHECK(empty.grad().sizes() == empty.sizes());
}
