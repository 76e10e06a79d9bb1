// Training that goes on from a file: model, scheduler and optimizer have the bits that they would have had.
#include "learned_net.h"
#include <qat/schedulers/checkpoint.h>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>

#include <functional>

#include "support/catch.h"
#include "support/errors.h"

using namespace qat;
using namespace qat::testing;
using torch::optim::Optimizer;

namespace {

using Maker = std::function<std::unique_ptr<Optimizer>(const std::vector<torch::Tensor>&)>;

/// A net with any optimizer.
struct Training {
  Training(const QATConfig& config, const Maker& make_optimizer)
      : net(small_net()), optimizer(make_optimizer(net->parameters())), scheduler(scheduler_of(config)) {}

  void step(int count) {
    for (int i = 0; i < count; ++i) {
      optimizer->zero_grad();
      net->forward(images()).square().mean().backward();
      optimizer->step();
      scheduler->after_optimizer_step();
      for (auto& group : optimizer->param_groups())
        group.options().set_lr(0.9 * group.options().get_lr());
    }
  }
  void start() {
    step(2);
    scheduler->start_recording();
    net->forward(images());
    scheduler->start_training();
  }
  /// A process of its own would do this.
  static Training resumed(const std::string& path, const QATConfig& config, const Maker& make_optimizer) {
    Training result(config, make_optimizer);
    const auto info = load_checkpoint(path, *result.net);
    result.optimizer = make_optimizer(result.net->parameters());
    result.scheduler = result.scheduler_of(config);
    result.scheduler->restore(info.entries.at("state"));
    load_optimizer(path, *result.net, *result.optimizer);
    return result;
  }
  std::unique_ptr<QATScheduler> scheduler_of(const QATConfig& config) {
    return std::make_unique<QATScheduler>(net, std::vector<torch::Tensor>{images()}, config, optimizer.get());
  }
  void save(const std::string& path) {
    save_checkpoint(path, *net, {{"state", scheduler->state()}}, optimizer.get());
  }

  nn::Sequential net;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<QATScheduler> scheduler;
};

/// Weights in one group, the rest in another.
template <class Made, class Options>
Maker maker(Options options) {
  return [options](const std::vector<torch::Tensor>& parameters) {
    std::vector<torch::Tensor> weights;
    std::vector<torch::Tensor> others;
    for (const auto& parameter : parameters)
      (parameter.dim() > 1 ? weights : others).push_back(parameter);
    std::vector<torch::optim::OptimizerParamGroup> groups{{weights}, {others}};
    return std::make_unique<Made>(groups, options);
  };
}

std::map<std::string, Maker> makers() {
  return {{"SGD", maker<torch::optim::SGD>(torch::optim::SGDOptions(1e-3).momentum(0.9).weight_decay(1e-3))},
          {"Adam", maker<torch::optim::Adam>(torch::optim::AdamOptions(1e-3).amsgrad(true))},
          {"AdamW", maker<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3))},
          {"RMSprop", maker<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-4).momentum(0.5))}};
}

}  // namespace

TEST_CASE("Training that goes on from a file has the bits of one that was not stopped", "[schedulers]") {
  const auto config = learned_config("lsq", "lsq");
  for (const auto& [name, make] : makers()) {
    INFO(name);
    const Folder folder;
    Training whole(config, make);
    whole.start();
    whole.step(3);
    whole.save(folder.file("m.qat"));
    whole.step(3);

    auto resumed = Training::resumed(folder.file("m.qat"), config, make);
    REQUIRE(model_digest(*resumed.net) != model_digest(*whole.net));
    CHECK(resumed.optimizer->param_groups().size() == whole.optimizer->param_groups().size());
    resumed.step(3);
    CHECK(model_digest(*resumed.net) == model_digest(*whole.net));
  }
}

TEST_CASE("A float model goes on from a file too", "[schedulers]") {
  const auto config = learned_config("lsq", "lsq");
  const auto make = makers().at("Adam");
  const Folder folder;
  Training whole(config, make);
  whole.step(2);
  whole.save(folder.file("m.qat"));
  whole.step(2);
  auto resumed = Training::resumed(folder.file("m.qat"), config, make);
  resumed.step(2);
  CHECK(model_digest(*resumed.net) == model_digest(*whole.net));
}

TEST_CASE("An optimizer that does not fit is refused and stays as it was", "[schedulers]") {
  const auto config = learned_config("lsq", "lsq");
  const Folder folder;
  const auto path = folder.file("m.qat");
  Training adam(config, makers().at("Adam"));
  adam.start();
  adam.step(1);
  adam.save(path);

  Run sgd(config);
  sgd.start();
  CHECK(error_lacks([&] { load_optimizer(path, *sgd.net, sgd.optimizer); }, {"Adam", "SGD"}) == "");

  Training fresh(config, makers().at("Adam"));
  fresh.step(1);
  const auto groups = fresh.optimizer->param_groups().size();
  const auto states = fresh.optimizer->state().size();
  CHECK(error_lacks([&] { load_optimizer(path, *fresh.net, *fresh.optimizer); },
                    {"0.bias", "does not have"}) == "");
  CHECK(fresh.optimizer->param_groups().size() == groups);
  CHECK(fresh.optimizer->state().size() == states);
  fresh.step(1);

  save_checkpoint(path, *fresh.net, {});
  CHECK(error_lacks([&] { load_optimizer(path, *fresh.net, *fresh.optimizer); }, {"no optimizer"}) == "");

  torch::optim::SGD foreign({torch::zeros({3, 5}, torch::requires_grad())}, 0.1);
  CHECK(error_lacks([&] { save_checkpoint(path, *fresh.net, {}, &foreign); }, {"[3, 5]"}) == "");
  CHECK(read_checkpoint_info(path).digest == model_digest(*fresh.net));
}
