// Held parameters (RECORDING): the training loop runs and changes nothing.
#include "slot_contents.h"

#include "support/catch.h"

namespace {

namespace nn = qat::nn;

nn::Sequential model_with_parameters() {
  return nn::Sequential(nn::Conv2d(1, 2, 3), nn::BatchNorm2d(2), nn::ReLU(), nn::ConvTranspose2d(2, 1, 2),
                        nn::Flatten(), nn::Linear(25, 3));
}

void hold(torch::nn::Module& model, bool held = true) {
  for (const auto& [path, layer] : nn::quantizable_layers(model))
    layer->hold_parameters(held);
}

}  // namespace

TEST_CASE("A training loop over held parameters changes nothing", "[modules]") {
  auto model = model_with_parameters();
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
  const auto step = [&] {
    optimizer.zero_grad();
    model->forward(torch::randn({4, 1, 6, 6})).pow(2).sum().backward();
    optimizer.step();
  };
  step();  // leaves gradients and momentum behind
  hold(*model);
  std::vector<torch::Tensor> before;
  for (const auto& parameter : model->parameters())
    before.push_back(parameter.detach().clone());
  for (int i = 0; i < 3; ++i)
    step();
  const auto after = model->parameters();
  for (std::size_t i = 0; i < after.size(); ++i) {
    CHECK(torch::equal(after[i], before[i]));
    CHECK_FALSE(after[i].grad().defined());
  }
  hold(*model, false);
  step();
  for (std::size_t i = 0; i < after.size(); ++i)
    CHECK(after[i].grad().defined());
  CHECK_FALSE(torch::equal(after[0], before[0]));
}

TEST_CASE("Inputs of held layers get the gradient of free ones", "[modules]") {
  auto model = model_with_parameters();
  const auto gradient = [&] {
    const auto x = torch::ones({2, 1, 6, 6}).cumsum(3).requires_grad_();
    model->forward(x).pow(2).sum().backward();
    return x.grad();
  };
  const auto free = gradient();
  hold(*model);
  CHECK(torch::equal(gradient(), free));
}

TEST_CASE("Functional code may change the output of a held layer in place", "[modules]") {
  nn::Linear layer(2, 2);
  layer->hold_parameters(true);
  auto y = layer->forward(torch::ones({1, 2}));
  CHECK(y.requires_grad());
  y.mul_(2).add_(1);
  CHECK_NOTHROW(y.sum().backward());
  CHECK_FALSE(layer->weight.grad().defined());
}

TEST_CASE("Held layers do not invent gradients", "[modules]") {
  nn::Linear layer(2, 2);
  layer->hold_parameters(true);
  {
    const torch::NoGradGuard no_grad;
    CHECK_FALSE(layer->forward(torch::ones({1, 2})).requires_grad());
  }
  for (auto& parameter : layer->parameters())
    parameter.set_requires_grad(false);
  CHECK_FALSE(layer->forward(torch::ones({1, 2})).requires_grad());
  nn::ReLU relu;
  relu->hold_parameters(true);
  CHECK_FALSE(relu->forward(torch::ones({2})).requires_grad());
}

TEST_CASE("case 65: layers that share a weight see one quantized weight and add their gradients",
          "[modules]") {
  nn::Linear first(nn::LinearOptions(1, 1).bias(false)), second(nn::LinearOptions(1, 1).bias(false));
  {
    const torch::NoGradGuard no_grad;
    first->weight.fill_(0.33);
  }
  second->weight = first->weight;
  nn::Sequential model(first, second);
  for (auto* layer : {first.get(), second.get()})
    layer->set_slot(slots::kWeight, slots::quantizer(0.1F));
  const auto x = torch::ones({1, 1});
  const auto a = first->forward(x), b = second->forward(x);
  CHECK(a.item<float>() == Approx(0.3).epsilon(1e-6));
  CHECK(b.item<float>() == a.item<float>());
  (2 * a + 3 * b).sum().backward();
  CHECK(first->weight.grad().item<float>() == 5.0F);
  int listed = 0;
  for (const auto& parameter : model->parameters())
    listed += parameter.is_same(first->weight);
  CHECK(listed == 1);
}

TEST_CASE("Slots are listed once and their owner's optimizer steps once", "[modules]") {
  nn::Sequential model(nn::Linear(1, 1), nn::Identity());
  auto& linear = model->at<nn::LinearImpl>(0);
  linear.set_slot(slots::kOutput, slots::quantizer(0.5F));
  model->at<nn::IdentityImpl>(1).set_link(slots::kInput,
                                          {"0.output_slot", true, linear.slot(slots::kOutput)});
  CHECK(model->named_parameters().keys() == std::vector<std::string>{"0.weight", "0.bias"});
  CHECK(model->named_buffers().keys() ==
        std::vector<std::string>{"0.output_slot.scale", "0.output_slot.zero_point"});
  int visits = 0;
  model->apply([&](torch::nn::Module& module) { visits += &module == linear.slot(slots::kOutput).get(); });
  CHECK(visits == 1);
}

TEST_CASE("A layer reached by two paths is listed once", "[modules]") {
  nn::Linear shared(1, 1);
  nn::Sequential model(shared, shared, nn::ReLU());
  const auto layers = nn::quantizable_layers(*model);
  REQUIRE(layers.size() == 2);
  CHECK(layers[0].first == "0");
  CHECK(layers[1].first == "2");
  nn::Conv2d alone(1, 1, 1);
  CHECK(nn::quantizable_layers(*alone).at(0).first.empty());
}
