// The scheduler and an optimizer: what moves while recording, which rates change.
#include "small_net.h"
#include <qat/schedulers/qat_scheduler.h>

#include <memory>
#include <vector>

#include "support/catch.h"

using namespace qat;
using namespace qat::testing;

namespace {

std::vector<torch::Tensor> copies(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> result;
  for (const auto& each : tensors)
    result.push_back(each.detach().clone());
  return result;
}

bool same_bits(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!torch::equal(a[i], b[i])) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("Nothing moves while recording whatever the optimizer remembers", "[schedulers]") {
  const auto check = [](auto make_optimizer) {
    auto net = small_net();
    auto optimizer = make_optimizer(net->parameters());
    QATScheduler scheduler(net, {images()}, everything(), &optimizer);
    for (int i = 0; i < 3; ++i)
      train_step(net, optimizer, /*set_to_none=*/false);
    scheduler.start_recording();
    const auto before = copies(net->parameters());
    for (const bool set_to_none : {false, true, false})
      train_step(net, optimizer, set_to_none);
    CHECK(same_bits(net->parameters(), before));
    scheduler.start_training();
    train_step(net, optimizer);
    CHECK_FALSE(same_bits(net->parameters(), before));
  };
  check([](const auto& parameters) {
    return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  });
  check([](const auto& parameters) {
    return torch::optim::Adam(parameters, torch::optim::AdamOptions(0.1).weight_decay(0.01));
  });
}

TEST_CASE("Parameters of torch's own layers are held and released too", "[schedulers]") {
  torch::manual_seed(0);
  nn::Sequential net(nn::Linear(2, 2), torch::nn::LayerNorm(torch::nn::LayerNormOptions({2})),
                     nn::Linear(2, 2));
  auto norm = net->ptr<torch::nn::LayerNormImpl>(1);
  norm->bias.set_requires_grad(false);
  torch::optim::SGD optimizer(net->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
  QATScheduler scheduler(net, {torch::randn({3, 2})}, everything(), &optimizer);
  const auto step = [&] {
    optimizer.zero_grad(/*set_to_none=*/false);
    net->forward(torch::randn({3, 2})).square().sum().backward();
    optimizer.step();
  };
  step();
  scheduler.start_recording();
  const auto before = copies(net->parameters());
  step();
  CHECK(same_bits(net->parameters(), before));
  scheduler.start_training();
  CHECK(norm->weight.requires_grad());
  CHECK_FALSE(norm->bias.requires_grad());
  step();
  CHECK_FALSE(torch::equal(norm->weight, before[2]));
}

TEST_CASE("Parameters go on training while recording if they are not held", "[schedulers]") {
  auto net = small_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  QATConfig config = everything();
  config.hold_parameters = false;
  QATScheduler scheduler(net, {images()}, config, &optimizer);
  scheduler.start_recording();
  for (const auto& [path, each] : nn::quantizable_layers(*net))
    CHECK_FALSE(each->holds_parameters());
  const auto before = copies(net->parameters());
  train_step(net, optimizer);
  for (std::size_t i = 0; i < before.size(); ++i) {
    INFO(net->named_parameters()[i].key());
    CHECK_FALSE(torch::equal(net->parameters()[i], before[i]));
  }
  scheduler.start_training();
  CHECK(scheduler.phase() == Phase::kTraining);
  const auto recorded = copies(net->parameters());
  train_step(net, optimizer);
  CHECK_FALSE(same_bits(net->parameters(), recorded));
}

TEST_CASE("The learning rate of every group is scaled once", "[schedulers]") {
  auto net = small_net();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(layer<nn::Conv2d>(net, 0).module().parameters(),
                      std::make_unique<torch::optim::SGDOptions>(1e-3));
  groups.emplace_back(layer<nn::Linear>(net, 4).module().parameters(),
                      std::make_unique<torch::optim::SGDOptions>(1e-4));
  torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(0.1));
  QATConfig config = everything();
  config.learning_rate_scale = 0.5;
  QATScheduler scheduler(net, {images()}, config, &optimizer);
  scheduler.start_recording();
  CHECK(optimizer.param_groups()[0].options().get_lr() == 1e-3);
  net->forward(images());
  scheduler.start_training();
  CHECK(optimizer.param_groups()[0].options().get_lr() == 0.5e-3);
  CHECK(optimizer.param_groups()[1].options().get_lr() == 0.5e-4);
}
