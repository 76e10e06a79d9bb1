// Which group of the optimizer gets the parameters that quantization brings.
#include "learned_net.h"
#include <qat/schedulers/checkpoint.h>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

using namespace qat;
using namespace qat::testing;

namespace {

using Options = torch::optim::SGDOptions;
using Tensors = std::vector<torch::Tensor>;

Options decayed(double decay = 0.02) {
  return Options(1e-3).momentum(0.9).weight_decay(decay);
}

const Options& options(torch::optim::Optimizer& optimizer, std::size_t group) {
  return static_cast<const Options&>(optimizer.param_groups().at(group).options());
}

bool same(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].is_same(b[i])) return false;
  }
  return true;
}

/// A net in TRAINING, loaded from a file as a program that resumes does.
nn::Sequential loaded(const QATConfig& config, std::string& state) {
  const Folder folder;
  Run run(config);
  run.start();
  run.step();
  save_checkpoint(folder.file("m.qat"), *run.net, {});
  state = run.scheduler.state();
  auto net = small_net();
  load_checkpoint(folder.file("m.qat"), *net);
  return net;
}

Tensors values(const std::map<std::string, torch::Tensor>& tensors) {
  Tensors result;
  for (const auto& [name, tensor] : tensors)
    result.push_back(tensor);
  return result;
}

bool holds(const Tensors& tensors, const torch::Tensor& tensor) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const torch::Tensor& each) { return each.is_same(tensor); });
}

}  // namespace

TEST_CASE("Quantizer parameters in the group of the weights move to a group of their own", "[schedulers]") {
  auto config = learned_config("lsq", "lsq");
  config.quantizer_learning_rate_scale = 0.5;
  std::string state;
  auto net = loaded(config, state);
  torch::optim::SGD optimizer(net->parameters(), decayed());
  for (const auto& parameter : net->parameters()) {
    auto momentum = std::make_unique<torch::optim::SGDParamState>();
    momentum->momentum_buffer(torch::full_like(parameter, 0.5));
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(momentum);
  }
  const auto all = net->parameters();
  const auto learned = values(learnables(net));
  QATScheduler scheduler(net, {images()}, config, &optimizer);
  const auto check = [&] {
    REQUIRE(optimizer.param_groups().size() == 2);
    CHECK(options(optimizer, 0).weight_decay() == 0.02);
    CHECK(options(optimizer, 1).weight_decay() == 0);
    CHECK(options(optimizer, 1).momentum() == 0.9);
    CHECK(options(optimizer, 0).lr() == 1e-3);
    CHECK(options(optimizer, 1).lr() == Approx(0.5e-3));
    CHECK(optimizer.param_groups()[0].params().size() + optimizer.param_groups()[1].params().size() ==
          all.size());
    for (const auto& parameter : all) {
      CHECK(holds(optimizer.param_groups()[0].params(), parameter) != holds(learned, parameter));
      CHECK(holds(optimizer.param_groups()[1].params(), parameter) == holds(learned, parameter));
      const auto& momentum = static_cast<const torch::optim::SGDParamState&>(
          *optimizer.state().at(parameter.unsafeGetTensorImpl()));
      CHECK(mismatch(momentum.momentum_buffer(), torch::full_like(parameter, 0.5)) == "");
    }
  };
  check();
  scheduler.restore(state);
  check();
}

TEST_CASE("Quantizer parameters join an optimizer that was made before they were loaded", "[schedulers]") {
  const auto config = learned_config("lsq", "lsq");
  std::string state;
  auto source = loaded(config, state);
  const Folder folder;
  save_checkpoint(folder.file("m.qat"), *source, {});
  auto net = small_net();
  torch::optim::SGD optimizer(net->parameters(), decayed());
  QATScheduler scheduler(net, {images()}, config, &optimizer);
  CHECK(optimizer.param_groups().size() == 1);
  load_checkpoint(folder.file("m.qat"), *net);
  scheduler.restore(state);
  REQUIRE(optimizer.param_groups().size() == 2);
  CHECK(options(optimizer, 1).weight_decay() == 0);
  CHECK(optimizer.param_groups()[1].params().size() == learnables(net).size());
}

TEST_CASE("A group of quantizer parameters that the user made stays as it is", "[schedulers]") {
  const auto config = learned_config("lsq", "lsq");
  std::string state;
  auto net = loaded(config, state);
  const auto learned = values(learnables(net));
  Tensors others;
  for (const auto& parameter : net->parameters()) {
    if (!holds(learned, parameter)) others.push_back(parameter);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(others, std::make_unique<Options>(decayed()));
  groups.emplace_back(learned, std::make_unique<Options>(decayed(0.125)));
  torch::optim::SGD optimizer(groups, decayed());
  QATScheduler scheduler(net, {images()}, config, &optimizer);
  scheduler.restore(state);
  REQUIRE(optimizer.param_groups().size() == 2);
  CHECK(same(optimizer.param_groups()[0].params(), others));
  CHECK(same(optimizer.param_groups()[1].params(), learned));
  CHECK(options(optimizer, 1).weight_decay() == 0.125);
}

TEST_CASE("An optimizer with a single group is refused where quantizers learn already", "[schedulers]") {
  std::string state;
  auto net = loaded(learned_config("lsq", "lsq"), state);
  torch::optim::LBFGS optimizer(net->parameters());
  CHECK(error_lacks([&] { QATScheduler(net, {images()}, learned_config("lsq", "lsq"), &optimizer); },
                    {"LBFGS", "SGD"}) == "");
  CHECK(optimizer.param_groups()[0].params().size() == net->parameters().size());
}

TEST_CASE("A folded bias takes the place of the BatchNorm's bias among those without decay", "[schedulers]") {
  auto net = small_net();
  auto& conv = layer<nn::Conv2d>(net, 0);
  Tensors weights;
  Tensors others;  // gamma, beta, the bias of the linear layer
  for (const auto& parameter : net->parameters())
    (parameter.dim() > 1 ? weights : others).push_back(parameter);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(weights, std::make_unique<Options>(decayed()));
  groups.emplace_back(others, std::make_unique<Options>(decayed(0)));
  torch::optim::SGD optimizer(groups, decayed());
  QATScheduler scheduler(net, {images()}, learned_config("lsq", "lsq"), &optimizer);
  scheduler.start_recording();
  REQUIRE(optimizer.param_groups().size() == 2);
  CHECK(same(optimizer.param_groups()[0].params(), weights));
  CHECK(same(optimizer.param_groups()[1].params(), {*conv.bias_parameter(), others[2]}));
}

TEST_CASE("Folded biases without such a place get a group without decay", "[schedulers]") {
  const auto make = [] {
    torch::manual_seed(0);
    const auto conv = [](std::int64_t in) { return nn::Conv2d(nn::Conv2dOptions(in, 2, 2).bias(false)); };
    const auto norm = [] { return nn::BatchNorm2d(nn::BatchNorm2dOptions(2).affine(false)); };
    return nn::Sequential(conv(1), norm(), conv(2), norm());
  };
  for (const double decay : {0.02, 0.0}) {
    INFO(decay);
    auto net = make();
    const auto weights = net->parameters();
    REQUIRE(weights.size() == 2);
    torch::optim::SGD optimizer(weights, decayed(decay));
    QATScheduler scheduler(net, {images()}, integer_only_config(), &optimizer);
    scheduler.start_recording();
    const Tensors biases = {*layer<nn::Conv2d>(net, 0).bias_parameter(),
                            *layer<nn::Conv2d>(net, 2).bias_parameter()};
    if (decay == 0) {
      REQUIRE(optimizer.param_groups().size() == 1);
      CHECK(same(optimizer.param_groups()[0].params(), {weights[0], biases[0], weights[1], biases[1]}));
      continue;
    }
    REQUIRE(optimizer.param_groups().size() == 2);
    CHECK(same(optimizer.param_groups()[0].params(), weights));
    CHECK(same(optimizer.param_groups()[1].params(), biases));
    CHECK(options(optimizer, 0).weight_decay() == 0.02);
    CHECK(options(optimizer, 1).weight_decay() == 0);
    CHECK(options(optimizer, 1).lr() == 1e-3);
    CHECK(options(optimizer, 1).momentum() == 0.9);
  }
}
