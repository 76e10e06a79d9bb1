#include "images.h"
#include <qat/nn/nn.h>
#include <qat/schedulers/qat_scheduler.h>

#include <memory>
#include <vector>

#include "support/catch.h"

namespace nn = qat::nn;
using namespace qat;
using qat::testing::images;

namespace {

/// The state of a parameter as the optimizer would write it, and its tensors' bytes.
std::vector<torch::Tensor> state_tensors(const torch::optim::OptimizerParamState& state) {
  std::vector<torch::Tensor> tensors;
  const auto add = [&](const torch::Tensor& tensor) {
    if (tensor.defined()) tensors.push_back(tensor.detach().clone());
  };
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) {
    add(sgd->momentum_buffer());
  } else if (const auto* adam = dynamic_cast<const torch::optim::AdamParamState*>(&state)) {
    add(adam->exp_avg());
    add(adam->exp_avg_sq());
    add(torch::tensor(adam->step()));
  } else if (const auto* adamw = dynamic_cast<const torch::optim::AdamWParamState*>(&state)) {
    add(adamw->exp_avg());
    add(adamw->exp_avg_sq());
    add(torch::tensor(adamw->step()));
  } else if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropParamState*>(&state)) {
    add(rmsprop->square_avg());
    add(rmsprop->momentum_buffer());
    add(torch::tensor(rmsprop->step()));
  }
  return tensors;
}

/// Folds in the middle of a training with two groups and compares what the optimizer knows before and after.
template <class Optimizer, class Options>
void check_folding(const Options& options) {
  torch::manual_seed(0);
  nn::Conv2d conv(nn::Conv2dOptions(1, 2, 3).bias(false));
  nn::BatchNorm2d bn(2);
  nn::Linear linear(8, 3);
  nn::Sequential net(conv, bn, nn::ReLU(), nn::Flatten(), linear);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(linear->parameters(), std::make_unique<Options>(options));
  groups.emplace_back(std::vector<torch::Tensor>{conv->weight, bn->weight, bn->bias},
                      std::make_unique<Options>(options));
  Optimizer optimizer(groups, options);
  const auto step = [&] {
    optimizer.zero_grad();
    net->forward(images()).square().mean().backward();
    optimizer.step();
  };
  for (int i = 0; i < 3; ++i)
    step();

  const auto gamma = bn->weight;
  const auto beta = bn->bias;
  REQUIRE(optimizer.state().count(gamma.unsafeGetTensorImpl()) == 1);
  const auto weight = conv->weight;
  const std::vector<torch::Tensor> kept = {weight, linear->weight, linear->bias};
  std::vector<std::vector<torch::Tensor>> states;
  for (const auto& each : kept)
    states.push_back(state_tensors(*optimizer.state().at(each.unsafeGetTensorImpl())));
  REQUIRE_FALSE(states[0].empty());

  QATScheduler scheduler(net, {images()}, integer_only_config(), &optimizer);
  scheduler.start_recording();

  REQUIRE(conv->bias.defined());
  CHECK(optimizer.param_groups().size() == 2);
  CHECK(optimizer.param_groups()[0].params().size() == 2);
  CHECK(optimizer.param_groups()[1].params().size() == 2);
  CHECK(optimizer.param_groups()[1].params()[0].is_same(weight));
  CHECK(optimizer.param_groups()[1].params()[1].is_same(conv->bias));
  CHECK(conv->weight.is_same(weight));
  CHECK(optimizer.state().count(gamma.unsafeGetTensorImpl()) == 0);
  CHECK(optimizer.state().count(beta.unsafeGetTensorImpl()) == 0);
  CHECK(optimizer.state().size() == 3);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const auto after = state_tensors(*optimizer.state().at(kept[i].unsafeGetTensorImpl()));
    REQUIRE(after.size() == states[i].size());
    for (std::size_t k = 0; k < after.size(); ++k)
      CHECK(torch::equal(after[k], states[i][k]));
  }

  step();
  scheduler.start_training();
  const auto bias = conv->bias.detach().clone();
  step();
  CHECK_FALSE(torch::equal(conv->bias, bias));
}

}  // namespace

TEST_CASE("Folding takes parameters out of the optimizer and leaves all other state", "[schedulers]") {
  check_folding<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3));
  check_folding<torch::optim::Adam>(torch::optim::AdamOptions(0.01));
  check_folding<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01));
  check_folding<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.9));
}

TEST_CASE("A new bias stays out of an optimizer that does not train the weight", "[schedulers]") {
  nn::Conv2d conv(nn::Conv2dOptions(1, 2, 3).bias(false));
  nn::Linear linear(8, 3);
  nn::Sequential net(conv, nn::BatchNorm2d(2), nn::Flatten(), linear);
  torch::optim::SGD optimizer(linear->parameters(), 0.1);
  QATScheduler scheduler(net, {images()}, integer_only_config(), &optimizer);
  scheduler.start_recording();
  CHECK(conv->bias.defined());
  CHECK(optimizer.param_groups()[0].params().size() == 2);
}
