#include "support/models.h"

#include "error_text.h"
#include <qat/nn/quantizable_layer.h>

#include "support/catch.h"

using namespace qat::apps;
using namespace qat::apps::testing;
using Catch::Matchers::Contains;

TEST_CASE("Every model maps images of either size to logits and trains all its parameters", "[apps]") {
  const auto name = GENERATE(from_range(model_names()));
  const auto shape = GENERATE(values<std::vector<std::int64_t>>({{1, 28, 28}, {3, 32, 32}}));
  INFO(name << " " << shape);
  torch::manual_seed(3);
  const auto model = make_model(name, shape, 7);
  CHECK(model.name == name);
  const auto logits = model(torch::randn({4, shape[0], shape[1], shape[2]}));
  REQUIRE(logits.sizes() == torch::IntArrayRef({4, 7}));
  torch::nn::functional::cross_entropy(logits, torch::tensor({0, 1, 2, 6})).backward();
  for (const auto& parameter : model.module->named_parameters()) {
    INFO(parameter.key());
    REQUIRE(parameter.value().grad().defined());
    CHECK(parameter.value().grad().abs().sum().item<double>() > 0);
  }
}

TEST_CASE("Models consist of quantizable layers alone", "[apps]") {
  const auto name = GENERATE(from_range(model_names()));
  INFO(name);
  const auto model = make_model(name, {1, 28, 28}, 10);
  std::int64_t in_layers = 0;
  for (const auto& [path, layer] : qat::nn::quantizable_layers(*model.module))
    for (const auto& parameter : layer->module().parameters(/*recurse=*/false))
      in_layers += parameter.numel();
  std::int64_t total = 0;
  for (const auto& parameter : model.module->parameters())
    total += parameter.numel();
  CHECK(in_layers == total);
}

TEST_CASE("Models have the documented sizes", "[apps]") {
  const auto count = [](const char* name, std::vector<std::int64_t> shape) {
    std::int64_t total = 0;
    for (const auto& parameter : make_model(name, shape, 10).module->parameters())
      total += parameter.numel();
    return total;
  };
  // weights and biases of the linear layers
  CHECK(count("mlp", {1, 28, 28}) == 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10);
  // convolutions without bias, gamma and beta, the linear layer 3136 -> 10
  CHECK(count("cnn", {1, 28, 28}) == 9 * (1 * 32 + 32 * 64 + 64 * 64) + 2 * (32 + 64 + 64) + 3136 * 10 + 10);
  CHECK(count("lenet", {1, 28, 28}) == 61706);  // LeCun et al. 1998, with 28 x 28 images padded by 2
  const auto resnet8 = 9 * (3 * 16 + 2 * 16 * 16 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64) + 16 * 32 +
                       32 * 64 + 2 * (3 * 16 + 3 * 32 + 3 * 64) + 650;
  CHECK(count("resnet8", {3, 32, 32}) == resnet8);
  // two more blocks in each stage
  CHECK(count("resnet20", {3, 32, 32}) ==
        resnet8 + 9 * 4 * (16 * 16 + 32 * 32 + 64 * 64) + 2 * 4 * (16 + 32 + 64));
}

TEST_CASE("A shortcut has parameters only where shapes differ", "[apps]") {
  const auto parameters = make_model("resnet20", {3, 32, 32}, 10).module->named_parameters();
  CHECK_FALSE(parameters.contains("stage1_block1.shortcut_conv.weight"));
  CHECK(parameters.contains("stage2_block1.shortcut_conv.weight"));
  CHECK_FALSE(parameters.contains("stage2_block2.shortcut_conv.weight"));
}

TEST_CASE("A cloned model computes the same and shares nothing", "[apps]") {
  auto model = make_model("resnet8", {1, 28, 28}, 10);
  model.module->eval();
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model.module->clone());
  REQUIRE(copy);
  const auto x = torch::randn({2, 1, 28, 28});
  const auto before = model(x).clone();
  CHECK(torch::equal(copy->forward(x), before));
  torch::NoGradGuard no_grad;
  for (auto& parameter : copy->parameters())
    parameter.zero_();
  CHECK(torch::equal(model(x), before));
}

TEST_CASE("make_model refuses what it cannot build", "[apps]") {
  CHECK_THAT(error_text([] {
               make_model("resnet9", {1, 28, 28}, 10);
             }),
             Contains("resnet9") && Contains("resnet20"));
  CHECK_THAT(error_text([] { make_model("cnn", {28, 28}, 10); }), Contains("[28, 28]"));
  CHECK_THAT(error_text([] { make_model("cnn", {1, 8, 28}, 10); }), Contains("8 x 28"));
  CHECK_THAT(error_text([] { make_model("cnn", {1, 28, 28}, 1); }), Contains("classes"));
}
