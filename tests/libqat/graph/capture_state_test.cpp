// What capture leaves as it was: the model, the inputs, the random state.
#include "graph/reporting_layers.h"

#include "support/catch.h"
#include "support/errors.h"

using namespace reporting;
using qat::testing::error_lacks;
using Tensors = std::vector<torch::Tensor>;

namespace {

/// A layer that changes its buffer, throws or draws random numbers in forward.
struct Misbehaving : torch::nn::Module {
  Misbehaving() : torch::nn::Module("Misbehaving") { count = register_buffer("count", torch::zeros({2})); }
  torch::Tensor forward(const torch::Tensor& x) {
    qat::LayerScope scope(*this, {x});
    was_training = is_training();
    grad_mode = torch::GradMode::is_enabled();
    count.add_(1);
    const auto noise = torch::rand_like(x);
    TORCH_CHECK(!throws, "thrown by the model");
    return scope.output(x + noise);
  }
  torch::Tensor count;
  bool throws = false;
  bool was_training = true;
  bool grad_mode = true;
};

}  // namespace

TEST_CASE("capture leaves modes buffers gradients and the random state as they were", "[graph]") {
  const bool throws = GENERATE(false, true);
  auto layer_a = std::make_shared<Misbehaving>();
  auto layer_b = linear(4, 4);
  auto parent = std::make_shared<FromFunction>(FromFunction::Layers{{"b", layer_b}});
  FromFunction model({{"a", layer_a}, {"parent", parent}});
  model.train();
  parent->train(false);
  layer_b->train(true);
  layer_a->throws = throws;
  const auto version_free_count = layer_a->count.clone();

  torch::manual_seed(7);
  const auto expected = torch::rand({5});
  torch::manual_seed(7);
  const auto x = torch::zeros({2, 4}, torch::requires_grad());
  const auto run = [&] {
    qat::capture(
        model, [&](const Tensors& inputs) { return Tensors{layer_b->forward(layer_a->forward(inputs[0]))}; },
        {x});
  };
  if (throws) {
    CHECK(error_lacks(run, {"thrown by the model"}) == "");
  } else {
    run();
  }
  CHECK(torch::equal(torch::rand({5}), expected));
  CHECK(torch::equal(layer_a->count, version_free_count));
  CHECK_FALSE(layer_a->was_training);
  CHECK_FALSE(layer_a->grad_mode);
  CHECK(torch::GradMode::is_enabled());
  CHECK(model.is_training());
  CHECK(layer_a->is_training());
  CHECK_FALSE(parent->is_training());
  CHECK(layer_b->is_training());
  for (const auto& parameter : model.parameters()) {
    CHECK(parameter.requires_grad());
    CHECK_FALSE(parameter.grad().defined());
  }
  CHECK(qat::CaptureListener::current() == nullptr);
  layer_a->throws = false;
  run();
}

TEST_CASE("capture does not write into the example inputs", "[graph]") {
  auto a = linear(4, 4);
  FromFunction model({{"a", a}});
  auto x = -torch::ones({2, 4});
  qat::capture(model, [&](const Tensors& inputs) { return Tensors{a->forward(inputs[0].relu_())}; }, {x});
  CHECK(torch::equal(x, -torch::ones({2, 4})));
}
