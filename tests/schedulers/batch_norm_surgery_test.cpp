// What the scheduler makes of BatchNorms that stand before a layer or alone.
#include "small_net.h"
#include <qat/nn/batch_norm_statistics.h>
#include <qat/nn/nn.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/schedulers/checkpoint.h>
#include <qat/schedulers/qat_scheduler.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace nn = qat::nn;
using namespace qat;
using namespace qat::testing;

namespace {

constexpr nn::SlotId kInput{nn::SlotId::Kind::kInput};
constexpr nn::SlotId kOutput{nn::SlotId::Kind::kOutput};

/// A BatchNorm that no layer can take (two read it) between two that one can.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool affine)
      : first(register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 2, 3).padding(1).bias(false)))),
        taken(register_module("taken", nn::BatchNorm2d(2))),
        relu(register_module("relu", nn::ReLU())),
        alone(register_module("alone", nn::BatchNorm2d(nn::BatchNorm2dOptions(2).affine(affine)))),
        second(register_module("second", nn::Conv2d(2, 2, 1))),
        add(register_module("add", nn::Add())),
        fc(register_module("fc", nn::Linear(32, 3))) {
    const torch::NoGradGuard no_grad;
    for (const auto& bn : {taken, alone}) {
      bn->running_mean.normal_();
      bn->running_var.uniform_(0.5, 2.0);
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = alone->forward(relu->forward(taken->forward(first->forward(x))));
    return fc->forward(add->forward(second->forward(h), h).flatten(1));
  }

  nn::Conv2d first;
  nn::BatchNorm2d taken;
  nn::ReLU relu;
  nn::BatchNorm2d alone;
  nn::Conv2d second;
  nn::Add add;
  nn::Linear fc;
};
TORCH_MODULE(Net);

Net net_of(bool affine = true) {
  torch::manual_seed(0);
  return Net(affine);
}

torch::Tensor pixels() {
  torch::manual_seed(1);
  return torch::randn({4, 1, 4, 4});
}

torch::Tensor evaluate(Net& net) {
  const torch::NoGradGuard no_grad;
  net->eval();
  auto y = net->forward(pixels());
  net->train();
  return y;
}

void train_net(Net& net, torch::optim::Optimizer& optimizer) {
  optimizer.zero_grad();
  net->forward(pixels()).square().mean().backward();
  optimizer.step();
}

QATConfig self_folding() {
  QATConfig config = integer_only_config();
  config.bn_self_folding = true;
  return config;
}

}  // namespace

TEST_CASE("With the default configuration no BatchNorm with running statistics is left", "[schedulers]") {
  CHECK(tensorrt_config().bn_self_folding);
  CHECK_FALSE(QATConfig().bn_self_folding);
  CHECK_FALSE(integer_only_config().bn_self_folding);
  auto net = net_of();
  const auto before = evaluate(net);
  QATScheduler scheduler(net, {pixels()});
  scheduler.check();
  CHECK(net->alone->normalizes());
  scheduler.start_recording();
  CHECK(mismatch(evaluate(net), before, {.relative = 1e-5, .absolute = 1e-5}) == "");
  REQUIRE(scheduler.folds().size() == 2);
  CHECK(scheduler.folds()[0].into == "first");
  CHECK(scheduler.folds()[1].into_itself);
  CHECK(net->taken->is_identity());
  CHECK(net->alone->is_scale_and_shift());
  // Its output is recorded for the convolution, its input for nobody: the list does not name it.
  CHECK((net->alone->occupied_slots() == std::vector<nn::SlotId>{kOutput}));
  const auto summary = scheduler.summary();
  CHECK(summary.find("taken folded into first\n") != std::string::npos);
  CHECK(summary.find("alone folded into a scale and shift: ") != std::string::npos);
  net->forward(pixels());
  scheduler.start_training();
  CHECK(net->alone->is_scale_and_shift());
}

TEST_CASE("A BatchNorm before a convolution is folded into it by the scheduler", "[schedulers]") {
  torch::manual_seed(0);
  nn::BatchNorm2d bn(1);
  nn::Conv2d conv(nn::Conv2dOptions(1, 3, 3).bias(false));
  {
    const torch::NoGradGuard no_grad;
    bn->running_mean.fill_(0.3);
    bn->bias.fill_(-0.4);
  }
  nn::Sequential net(bn, conv, nn::Flatten(), nn::Linear(12, 2));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  train_step(net, optimizer);
  net->eval();
  const auto before = net->forward(images());
  net->train();
  QATScheduler scheduler(net, {images()}, integer_only_config(), &optimizer);
  scheduler.start_recording();
  REQUIRE(scheduler.folds().size() == 1);
  CHECK(scheduler.folds()[0].into == "1");
  CHECK(scheduler.folds()[0].into_next);
  CHECK(scheduler.summary().find("0 folded into 1, which reads it") != std::string::npos);
  CHECK(mismatch(net->forward(images()), before, {.relative = 1e-4, .absolute = 1e-5}) == "");
  // gamma and beta left, the new bias stands behind its weight.
  const auto& params = optimizer.param_groups()[0].params();
  REQUIRE(params.size() == 4);
  CHECK(params[0].is_same(conv->weight));
  CHECK(params[1].is_same(conv->bias));
  scheduler.start_training();
  CHECK(train_step(net, optimizer) > 0.0);
  CHECK(net->forward(images()).isfinite().all().item<bool>());
}

TEST_CASE("The smallest size counts the bias that a BatchNorm before a layer brings", "[schedulers]") {
  QATConfig config = integer_only_config();
  config.weight_quantizer = "fp_d_xmax";
  config.weight_budget_kb = 1e-3;
  const auto make = [] {
    torch::manual_seed(0);
    return nn::Sequential(nn::BatchNorm2d(1), nn::Conv2d(nn::Conv2dOptions(1, 5, 3).bias(false)));
  };
  const auto message = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "nothing thrown";
  };
  auto planned = make();
  QATScheduler first(planned, {images()}, config);
  auto recorded = make();
  QATScheduler second(recorded, {images()}, config);
  second.start_recording();
  recorded->forward(images());
  const auto before = message([&] { first.check(); });
  CHECK(before.find("weight_budget_kb") != std::string::npos);
  CHECK(before == message([&] { second.start_training(); }));
}

TEST_CASE("B24: scale and shift of a self-folded BatchNorm are never quantized as activations",
          "[schedulers]") {
  auto net = net_of();
  {
    // Shift 0: nnabla gives every activation its range.
    const torch::NoGradGuard no_grad;
    net->alone->running_mean.zero_();
    net->alone->bias.zero_();
  }
  const auto expected = evaluate(net);
  QATScheduler scheduler(net, {pixels()}, self_folding());
  scheduler.start_recording();
  net->forward(pixels());
  scheduler.start_training();
  CHECK(net->alone->is_scale_and_shift());
  CHECK_FALSE(net->alone->slot({nn::SlotId::Kind::kWeight}));
  CHECK_FALSE(net->alone->slot({nn::SlotId::Kind::kBias}));
  CHECK(net->alone->bias.eq(0).all().item<bool>());
  // What it reads is quantized where it is made, what it makes in its own output slot.
  CHECK(net->relu->slot(kOutput));
  REQUIRE(net->alone->link(kInput));
  CHECK(net->alone->link(kInput)->path == "relu.output_slot");
  const auto output = std::dynamic_pointer_cast<AffineQuantizer>(net->alone->slot(kOutput));
  REQUIRE(output);
  CHECK(output->affine_params({}).scale.item<float>() > 1e-3F);
  const auto y = evaluate(net);
  CHECK(mismatch(y, expected, {.absolute = 0.05 * expected.abs().max().item<double>()}) == "");
}

TEST_CASE("Self folding without folding into layers", "[schedulers]") {
  auto net = net_of();
  QATConfig config = self_folding();
  config.bn_folding = BatchNormFolding::kOff;
  const auto before = evaluate(net);
  QATScheduler scheduler(net, {pixels()}, config);
  scheduler.start_recording();
  CHECK(net->taken->is_scale_and_shift());
  CHECK(net->alone->is_scale_and_shift());
  CHECK_FALSE(net->first->bias.defined());
  CHECK(mismatch(evaluate(net), before, {.relative = 1e-5, .absolute = 1e-5}) == "");
  CHECK(parse_config(to_json(config)) == config);
}

TEST_CASE("Self folding keeps gamma and beta in the optimizer with their state", "[schedulers]") {
  auto net = net_of();
  torch::optim::SGD optimizer(net->parameters(),
                              torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(1e-3));
  train_net(net, optimizer);
  const auto gamma = net->alone->weight;
  const auto momentum = [&](const torch::Tensor& parameter) {
    const auto& state = *optimizer.state().at(parameter.unsafeGetTensorImpl());
    return dynamic_cast<const torch::optim::SGDParamState&>(state).momentum_buffer();
  };
  const auto before = momentum(gamma).clone();
  QATScheduler scheduler(net, {pixels()}, self_folding(), &optimizer);
  scheduler.start_recording();
  CHECK(net->alone->weight.is_same(gamma));
  CHECK(torch::equal(momentum(gamma), before));
  net->forward(pixels());
  scheduler.start_training();
  const auto value = gamma.detach().clone();
  train_net(net, optimizer);
  CHECK_FALSE(torch::equal(gamma, value));
}

TEST_CASE("New scales and shifts join the optimizer without weight decay", "[schedulers]") {
  for (const double decay : {0.0, 1e-3}) {
    auto net = net_of(/*affine=*/false);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).weight_decay(decay));
    QATScheduler scheduler(net, {pixels()}, self_folding(), &optimizer);
    scheduler.start_recording();
    REQUIRE(net->alone->weight.defined());
    const auto& groups = optimizer.param_groups();
    if (decay == 0.0) {
      // As in an optimizer that is built for the model as it is now.
      REQUIRE(groups.size() == 1);
      const auto expected = net->parameters();
      REQUIRE(groups[0].params().size() == expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i)
        CHECK(groups[0].params()[i].is_same(expected[i]));
    } else {
      REQUIRE(groups.size() == 2);
      REQUIRE(groups[1].params().size() == 2);
      CHECK(groups[1].params()[0].is_same(net->alone->weight));
      CHECK(groups[1].params()[1].is_same(net->alone->bias));
      CHECK(dynamic_cast<const torch::optim::SGDOptions&>(groups[1].options()).weight_decay() == 0.0);
    }
    net->forward(pixels());
    scheduler.start_training();
    const auto shift = net->alone->bias.detach().clone();
    train_net(net, optimizer);
    CHECK_FALSE(torch::equal(net->alone->bias, shift));
  }
}

TEST_CASE("A refused transition folds no BatchNorm into itself", "[schedulers]") {
  struct Twice : torch::nn::Module {
    nn::BatchNorm2d bn = register_module("bn", nn::BatchNorm2d(2));
    nn::Conv2d twice = register_module("twice", nn::Conv2d(2, 2, 1));
    torch::Tensor forward(const torch::Tensor& x) {
      const auto y = bn->forward(x);
      return twice->forward(twice->forward(y)) + y;
    }
  };
  auto net = std::make_shared<Twice>();
  QATScheduler scheduler(net, {torch::randn({2, 2, 3, 3})}, self_folding());
  CHECK(error_lacks([&] { scheduler.start_recording(); }, {"twice", "more than once"}) == "");
  CHECK(net->bn->normalizes());
}

TEST_CASE("A run with self-folded BatchNorms resumes with the same bits", "[schedulers]") {
  const auto file = (std::filesystem::temp_directory_path() / "qat_self_folded.qat").string();
  for (const bool affine : {true, false}) {
    for (const bool in_training : {false, true}) {
      auto net = net_of(affine);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
      QATScheduler scheduler(net, {pixels()}, self_folding(), &optimizer);
      scheduler.start_recording();
      train_net(net, optimizer);
      if (in_training) {
        scheduler.start_training();
        train_net(net, optimizer);
      }
      save_checkpoint(file, *net, {{"scheduler", scheduler.state()}}, &optimizer);

      auto resumed = net_of(affine);
      const auto info = load_checkpoint(file, *resumed);
      CHECK(resumed->alone->is_scale_and_shift());
      torch::optim::SGD second(resumed->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
      QATScheduler other(resumed, {pixels()}, self_folding(), &second);
      other.restore(info.entries.at("scheduler"));
      load_optimizer(file, *resumed, second);
      if (!in_training) {
        scheduler.start_training();
        other.start_training();
      }
      for (int i = 0; i < 2; ++i) {
        train_net(net, optimizer);
        train_net(resumed, second);
      }
      CHECK(model_digest(*net) == model_digest(*resumed));
    }
  }
  std::filesystem::remove(file);
}

TEST_CASE("Statistics of a kept BatchNorm freeze and are re-estimated in every phase", "[schedulers]") {
  auto net = small_net();
  auto& conv = *net->ptr<nn::Conv2dImpl>(0);
  auto& bn = *net->ptr<nn::BatchNorm2dImpl>(1);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  QATScheduler scheduler(net, {images()}, everything(), &optimizer);
  const std::vector<torch::Tensor> batches = {images(), images() * 2.0 + 1.0};
  const auto check = [&] {
    INFO(to_string(scheduler.phase()));
    std::map<std::string, torch::Tensor> before;
    for (const auto& item : net->named_parameters())
      before[item.key()] = item.value().detach().clone();
    for (const auto& item : net->named_buffers())
      before[item.key()] = item.value().clone();
    CHECK(nn::reestimate_batch_norm(net, batches) == 1);
    for (const auto& item : net->named_parameters())
      CHECK(torch::equal(item.value(), before.at(item.key())));
    for (const auto& item : net->named_buffers()) {
      if (!item.key().starts_with("1.")) CHECK(torch::equal(item.value(), before.at(item.key())));
    }
    // The averages of what the convolution makes, with quantizers where there are any.
    const torch::NoGradGuard no_grad;
    net->eval();
    auto mean = torch::zeros({2});
    for (const auto& batch : batches)
      mean += conv.forward(batch).transpose(0, 1).flatten(1).mean(1) / 2;
    net->train();
    CHECK(mismatch(bn.running_mean, mean, {.relative = 1e-5, .absolute = 1e-6}) == "");

    nn::freeze_batch_norm_statistics(*net);
    const auto frozen = bn.running_mean.clone();
    net->forward(images() * 3.0);
    CHECK(torch::equal(bn.running_mean, frozen));
    nn::freeze_batch_norm_statistics(*net, false);
    net->forward(images());
    CHECK_FALSE(torch::equal(bn.running_mean, frozen));
  };
  check();
  scheduler.start_recording();
  check();
  scheduler.start_training();
  check();
  CHECK(train_step(net, optimizer) > 0.0);
}

TEST_CASE("Re-estimation leaves a graph that is still to be differentiated alone", "[schedulers]") {
  auto net = small_net();
  QATScheduler scheduler(net, {images()}, everything());
  scheduler.start_recording();
  net->forward(images());
  scheduler.start_training();
  nn::freeze_batch_norm_statistics(*net);
  const auto loss = net->ptr<nn::Conv2dImpl>(0)->forward(images()).sum();
  nn::reestimate_batch_norm(net, {images()});
  CHECK_NOTHROW(loss.backward());
}
