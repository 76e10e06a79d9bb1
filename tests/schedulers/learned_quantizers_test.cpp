// Learned quantizers through the phases of a training: gradients, optimizer, bounds, files, widths, errors.
#include "learned_net.h"
#include <qat/export/torchscript.h>
#include <qat/quantizers/learned_step_quantizer.h>
#include <qat/quantizers/parametric_quantizer.h>
#include <qat/schedulers/checkpoint.h>

#include <torch/script.h>

#include <cmath>
#include <limits>
#include <utility>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

using namespace qat;
using namespace qat::testing;

namespace {

std::map<std::string, torch::Tensor> copies(const std::map<std::string, torch::Tensor>& tensors) {
  std::map<std::string, torch::Tensor> result;
  for (const auto& [path, tensor] : tensors)
    result[path] = tensor.detach().clone();
  return result;
}

/// The closed range in which a learnable may lie.
std::pair<double, double> bounds(const Quantizer& quantizer, const std::string& name) {
  if (const auto* parametric = dynamic_cast<const ParametricQuantizer*>(&quantizer)) {
    const auto learnable = parametric->learnable(name);
    return {learnable.min, learnable.max};
  }
  if (name == "log2_t") return {-31, 31};
  if (name == "offset") return {-0x1p63, 0x1p63};
  return {0x1p-63, 0x1p63};
}

/// What lies outside of its bounds; "" if nothing.
std::string outside(nn::Sequential& net) {
  std::string text;
  for (const auto& [path, quantizer] : quantizers(net)) {
    for (const auto& parameter : quantizer->named_parameters()) {
      const auto [min, max] = bounds(*quantizer, parameter.key());
      const auto value = parameter.value().detach().to(torch::kDouble);
      // The bounds as float32 are those that a parameter can have.
      const bool inside =
          ((value >= static_cast<float>(min)) & (value <= static_cast<float>(max))).all().item<bool>();
      if (!inside) text += path + "." + parameter.key() + " ";
    }
  }
  return text;
}

}  // namespace

TEST_CASE("Every family goes from FLOAT to TRAINING and trains with a finite loss", "[schedulers]") {
  for (const auto& family : all_families()) {
    INFO(family.weights << " weights, " << family.activations << " activations");
    Run run(learned_config(family.weights, family.activations));
    CHECK(run.scheduler.phase() == Phase::kFloat);
    CHECK(std::isfinite(run.step()));
    CHECK_NOTHROW(run.scheduler.check());
    run.start();
    CHECK(run.scheduler.phase() == Phase::kTraining);
    CHECK(quantizers(run.net).size() == 4);  // input, two weights, the activation between them
    CHECK(std::isfinite(run.step()));
    CHECK(std::isfinite(run.step()));
    CHECK(outside(run.net) == "");
    CHECK(torch::isfinite(run.evaluate()).all().item<bool>());
    const auto most = widths(run.net, /*of_weights=*/true);
    for (const auto& [path, bits] : most) {
      INFO(path);
      CHECK(bits <= run.scheduler.config().weight_bits);
    }
    for (const auto& [path, bits] : widths(run.net, /*of_weights=*/false)) {
      INFO(path);
      CHECK(bits <= run.scheduler.config().activation_bits);
    }
  }
}

TEST_CASE("Learned scales, steps and ranges get gradients and move", "[schedulers]") {
  for (const std::string family : {"lsq", "fp_d_xmax"}) {
    INFO(family);
    Run run(learned_config(family, family));
    run.start();
    const auto before = copies(learnables(run.net));
    REQUIRE(before.size() == (family == "lsq" ? 4U : 8U));
    run.step();
    for (const auto& [path, parameter] : learnables(run.net)) {
      INFO(path);
      REQUIRE(parameter.grad().defined());
      CHECK(torch::isfinite(parameter.grad()).all().item<bool>());
      const bool unreached = path == "2.output_slot.xmax";  // nothing is as large as what was recorded
      CHECK((parameter.grad().abs().sum().item<double>() > 0) != unreached);
    }
    run.step();
    for (const auto& [path, parameter] : learnables(run.net)) {
      INFO(path);
      CHECK(torch::equal(parameter, before.at(path)) == (path == "2.output_slot.xmax"));
    }
  }
}

TEST_CASE("Copies and loaded checkpoints of every family compute the same bits", "[schedulers]") {
  for (const auto& family : all_families()) {
    INFO(family.weights << " weights, " << family.activations << " activations");
    const Folder folder;
    const auto config = learned_config(family.weights, family.activations);
    Run run(config);
    run.start();
    run.step();
    run.step();
    const auto expected = run.evaluate();

    nn::Sequential copy(std::dynamic_pointer_cast<nn::Sequential::ContainedType>(run.net->clone()));
    nn::relink(*copy);
    CHECK(mismatch(Run::evaluated(copy), expected) == "");

    save_checkpoint(folder.file("m.qat"), *run.net, {{"scheduler", run.scheduler.state()}});
    auto loaded = small_net();
    const auto info = load_checkpoint(folder.file("m.qat"), *loaded);
    CHECK(mismatch(Run::evaluated(loaded), expected) == "");
    QATScheduler resumed(loaded, {images()}, config);
    resumed.restore(info.entries.at("scheduler"));
    resumed.after_optimizer_step();
    CHECK(mismatch(Run::evaluated(loaded), expected) == "");
    CHECK(widths(loaded, true) == widths(run.net, true));

    run.step();  // the copy has parameters of its own
    CHECK(mismatch(Run::evaluated(copy), expected) == "");
  }
}

TEST_CASE("case 108: quantizer parameters join the optimizer and leave all that was there", "[schedulers]") {
  auto net = small_net();
  const auto conv = layer<nn::Conv2d>(net, 0).module().parameters();
  std::vector<torch::Tensor> others;
  for (const auto& parameter : net->parameters()) {
    if (!parameter.is_same(conv[0])) others.push_back(parameter);
  }
  using Options = torch::optim::SGDOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(conv, std::make_unique<Options>(Options(1e-4).momentum(0.9).weight_decay(0.01)));
  groups.emplace_back(others, std::make_unique<Options>(Options(1e-3).momentum(0.9).weight_decay(0.02)));
  torch::optim::SGD optimizer(groups, Options(0.1));
  for (const auto& parameter : net->parameters()) {
    auto state = std::make_unique<torch::optim::SGDParamState>();
    state->momentum_buffer(torch::full_like(parameter, 0.5));
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
  auto config = learned_config("lsq", "lsq_plus");
  config.bn_folding = BatchNormFolding::kOff;
  config.quantizer_learning_rate_scale = 0.5;
  const auto before = net->parameters();
  QATScheduler scheduler(net, {images()}, config, &optimizer);
  scheduler.start_recording();
  net->forward(images());
  scheduler.start_training();

  REQUIRE(optimizer.param_groups().size() == 3);
  const auto options = [&](std::size_t i) {
    return static_cast<const Options&>(optimizer.param_groups()[i].options());
  };
  CHECK(options(0).lr() == 1e-4);
  CHECK(options(1).lr() == 1e-3);
  CHECK(options(2).lr() == Approx(0.5e-4));
  CHECK(options(0).weight_decay() == 0.01);
  CHECK(options(1).weight_decay() == 0.02);
  CHECK(options(2).weight_decay() == 0.0);
  CHECK(options(2).momentum() == 0.9);
  CHECK(optimizer.state().size() == before.size());
  for (const auto& parameter : before) {
    const auto& state = static_cast<const torch::optim::SGDParamState&>(
        *optimizer.state().at(parameter.unsafeGetTensorImpl()));
    CHECK(mismatch(state.momentum_buffer(), torch::full_like(parameter, 0.5)) == "");
  }

  const auto learned = learnables(net);
  CHECK(optimizer.param_groups()[2].params().size() == learned.size());
  for (const auto& named : net->named_parameters()) {
    INFO(named.key());
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < 3; ++i) {
      for (const auto& each : optimizer.param_groups()[i].params()) {
        if (each.is_same(named.value())) found.push_back(i);
      }
    }
    REQUIRE(found.size() == 1);
    CHECK((found[0] == 2) == learned.contains(named.key()));
  }
  train_step(net, optimizer);
  CHECK(optimizer.state().size() == before.size() + learned.size());
}

TEST_CASE("case 108: a quantizer without gradient is not moved by weight decay", "[schedulers]") {
  auto net = small_net();
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.5));
  QATScheduler scheduler(net, {images()}, learned_config("lsq", "lsq"), &optimizer);
  scheduler.start_recording();
  net->forward(images());
  scheduler.start_training();
  const auto before = copies(learnables(net));
  optimizer.zero_grad();
  (net->forward(images()) * 0).sum().backward();
  optimizer.step();
  for (const auto& [path, parameter] : learnables(net)) {
    INFO(path);
    CHECK(mismatch(parameter, before.at(path)) == "");
  }
}

TEST_CASE("Optimizers with a single group are refused with their name", "[schedulers]") {
  auto net = small_net();
  torch::optim::LBFGS optimizer(net->parameters());
  QATScheduler scheduler(net, {images()}, learned_config("lsq", "lsq"), &optimizer);
  scheduler.start_recording();
  net->forward(images());
  CHECK(error_lacks([&] { scheduler.start_training(); }, {"LBFGS", "SGD"}) == "");
  CHECK(scheduler.phase() == Phase::kRecording);
}

TEST_CASE("Parameters that a step drives out come back into their bounds", "[schedulers]") {
  for (const auto& family : all_families()) {
    INFO(family.weights << " weights, " << family.activations << " activations");
    auto config = learned_config(family.weights, family.activations);
    config.skip_bias = true;  // int32 biases have no code at the smallest scales
    Run run(config);
    run.start();
    run.step();
    auto& groups = run.optimizer.param_groups();
    if (learnables(run.net).empty()) continue;  // affine
    REQUIRE(groups.size() == 2);
    groups[0].options().set_lr(0);
    groups[1].options().set_lr(1e30);
    run.optimizer.zero_grad();
    run.net->forward(images()).square().mean().backward();
    run.optimizer.step();
    CHECK(outside(run.net) != "");
    run.scheduler.after_optimizer_step();
    CHECK(outside(run.net) == "");
    CHECK(torch::isfinite(run.evaluate()).all().item<bool>());

    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double infinity = std::numeric_limits<double>::infinity();
    for (const double value : {nan, infinity, -infinity}) {
      for (auto& [path, parameter] : learnables(run.net)) {
        const torch::NoGradGuard no_grad;
        parameter.fill_(value);
      }
      run.scheduler.step();  // does the same
      CHECK(outside(run.net) == "");
      for (const auto& [path, bits] : widths(run.net, true)) {
        INFO(value << " " << path);
        CHECK(bits <= config.weight_bits);
      }
    }
  }
}

TEST_CASE("case 113: a model is exported right after a step of training", "[schedulers]") {
  for (const auto& family : all_families()) {
    INFO(family.weights << " weights, " << family.activations << " activations");
    const Folder folder;
    Run run(learned_config(family.weights, family.activations));
    run.start();
    run.step();
    for (const auto& [path, parameter] : learnables(run.net))
      REQUIRE(parameter.requires_grad());
    export_torchscript(*run.net, forward_function(run.net), {images(7)}, folder.file("m.pt"));
    auto loaded = torch::jit::load(folder.file("m.pt"));
    CHECK(mismatch(loaded.forward({images(7)}).toTensor(), run.evaluate()) == "");
    for (const auto& [path, parameter] : learnables(run.net))
      CHECK(parameter.requires_grad());
    CHECK(std::isfinite(run.step()));
  }
}
