#include "slot_contents.h"

#include "support/catch.h"
#include "support/errors.h"

namespace nn = qat::nn;
using qat::testing::error_lacks;

TEST_CASE("case 51: one value per channel in train mode is torch's error with the layer's name",
          "[modules]") {
  nn::Sequential model(nn::BatchNorm2d(3));
  const auto x = torch::ones({1, 3, 1, 1});
  const char* expected = "Expected more than 1 value per channel when training, got input size [1, 3, 1, 1]";
  CHECK(error_lacks([&] { model->forward(x); }, {expected, "qat::nn::BatchNorm2d"}) == "");
  nn::quantizable_layers(*model);
  CHECK(error_lacks([&] { model->forward(x); }, {expected, "qat::nn::BatchNorm2d '0'"}) == "");
  CHECK(model->named_buffers()["0.num_batches_tracked"].item<std::int64_t>() == 0);
  model->eval();
  CHECK_NOTHROW(model->forward(x));
}

TEST_CASE("Inputs of a wrong dimension are refused by name", "[modules]") {
  CHECK(error_lacks(
            [&] {
              nn::BatchNorm1d(3)->forward(torch::ones({1, 3, 1, 1}));
            },
            {"qat::nn::BatchNorm1d: expected 2D or 3D"}) == "");
  CHECK(error_lacks(
            [&] {
              nn::BatchNorm2d(3)->forward(torch::ones({2, 3}));
            },
            {"qat::nn::BatchNorm2d: expected 4D"}) == "");
  CHECK(error_lacks(
            [&] {
              nn::BatchNorm3d(3)->forward(torch::ones({2, 3}));
            },
            {"qat::nn::BatchNorm3d: expected 5D"}) == "");
}

TEST_CASE("A batch norm shows its statistics", "[modules]") {
  nn::BatchNorm2d layer(nn::BatchNormOptions(2).eps(0.25));
  const auto statistics = layer->statistics();
  CHECK(statistics.mean.is_same(layer->running_mean));
  CHECK(statistics.variance.is_same(layer->running_var));
  CHECK(statistics.gamma.is_same(layer->weight));
  CHECK(statistics.beta.is_same(layer->bias));
  CHECK(statistics.eps == 0.25);
}

TEST_CASE("case 31: a batch norm without gamma and beta says so by undefined tensors", "[modules]") {
  nn::BatchNorm2d layer(nn::BatchNormOptions(2).affine(false));
  CHECK_FALSE(layer->statistics().gamma.defined());
  CHECK_FALSE(layer->statistics().beta.defined());
}

TEST_CASE("A batch norm without running statistics refuses to show them", "[modules]") {
  nn::BatchNorm2d layer(nn::BatchNormOptions(2).track_running_stats(false));
  CHECK_FALSE(layer->has_running_statistics());
  CHECK(error_lacks([&] { layer->statistics(); }, {"no running statistics"}) == "");
}

TEST_CASE("A folded batch norm passes its input on and trains nothing", "[modules]") {
  nn::BatchNorm2d layer(2);
  layer->become_identity();
  layer->become_identity();  // no harm
  CHECK(layer->is_identity());
  CHECK(layer->keeps_codes());
  CHECK(layer->parameters().empty());
  CHECK_FALSE(layer->options.affine());
  CHECK_FALSE(layer->weight.defined());
  for (const bool training : {true, false, true}) {
    layer->train(training);
    const auto x = torch::full({1, 2, 1, 1}, 3.0F).requires_grad_();
    const auto y = layer->forward(x);
    CHECK(torch::equal(y, x));
    y.sum().backward();
    CHECK(torch::equal(x.grad(), torch::ones({1, 2, 1, 1})));
  }
  CHECK(layer->running_mean.eq(0).all().item<bool>());
  CHECK(layer->num_batches_tracked.item<std::int64_t>() == 0);
  CHECK(c10::str(*layer) == "qat::nn::BatchNorm2d(folded)");
  CHECK(error_lacks([&] { layer->statistics(); }, {"is folded already"}) == "");
  const auto copy = std::dynamic_pointer_cast<nn::BatchNorm2dImpl>(layer->clone());
  CHECK(copy->is_identity());
  CHECK(copy->parameters().empty());
  layer->set_slot(slots::kOutput, slots::quantizer(0.5F));
  CHECK(layer->forward(torch::full({1, 2, 1, 1}, 0.7F)).eq(0.5F).all().item<bool>());
}

TEST_CASE("A layer gets a bias where it had none", "[modules]") {
  const auto check = [](auto layer, const torch::Tensor& x) {
    layer->to(torch::kDouble);
    const auto before = layer->forward(x);
    layer->set_bias_parameter(torch::tensor({1.0F, 2.0F}));
    CHECK(layer->options.bias());
    CHECK(layer->bias.scalar_type() == torch::kDouble);
    CHECK((layer->bias.requires_grad() && layer->bias.is_leaf()));
    CHECK(layer->named_parameters()["bias"].is_same(layer->bias));
    const auto difference = (layer->forward(x) - before).transpose(0, 1).flatten(1).mean(1);
    CHECK(torch::allclose(difference, torch::tensor({1.0, 2.0}, torch::kDouble)));
    const auto bias = layer->bias;
    layer->set_bias_parameter(torch::tensor({5.0F, 6.0F}));
    CHECK(layer->bias.is_same(bias));
    CHECK(torch::equal(bias, torch::tensor({5.0, 6.0})));
    CHECK(error_lacks([&] { layer->set_bias_parameter(torch::ones({3})); },
                      {"expected a bias of shape [2], got [3]"}) == "");
    CHECK(layer->clone()->named_parameters().contains("bias"));
  };
  check(nn::Linear(nn::LinearOptions(3, 2).bias(false)), torch::ones({4, 3}, torch::kDouble));
  check(nn::Conv2d(nn::Conv2dOptions(3, 2, 1).bias(false)), torch::ones({4, 3, 2, 2}, torch::kDouble));
  check(nn::ConvTranspose1d(nn::ConvTranspose1dOptions(3, 2, 1).bias(false)),
        torch::ones({4, 3, 2}, torch::kDouble));
  CHECK(error_lacks([&] { nn::ReLU()->set_bias_parameter(torch::ones({1})); },
                    {"qat::nn::ReLU: this layer cannot have a bias"}) == "");
}
