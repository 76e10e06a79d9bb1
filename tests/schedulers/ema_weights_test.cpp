#include "learned_net.h"
#include <qat/schedulers/ema_weights.h>

#include <torch/serialize.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "support/catch.h"
#include "support/errors.h"

using namespace qat;
using namespace qat::testing;

namespace {

std::map<std::string, torch::Tensor> parameters(const torch::nn::Module& model) {
  std::map<std::string, torch::Tensor> all;
  for (const auto& parameter : model.named_parameters())
    all[parameter.key()] = parameter.value().detach().clone();
  return all;
}

bool same(const std::map<std::string, torch::Tensor>& a, const std::map<std::string, torch::Tensor>& b) {
  bool equal = a.size() == b.size();
  for (const auto& [name, tensor] : a)
    equal = equal && b.contains(name) && b.at(name).equal(tensor);
  return equal;
}

/// A model of one number.
nn::Linear number(float value) {
  nn::Linear linear(nn::LinearOptions(1, 1).bias(false));
  const torch::NoGradGuard no_grad;
  linear->weight.fill_(value);
  return linear;
}

}  // namespace

TEST_CASE("The average of a weight is that of a plain loop, with and without warm-up", "[schedulers]") {
  for (const bool warm_up : {false, true}) {
    INFO(warm_up);
    auto model = number(0.0F);
    EmaWeights ema(model.ptr(), {.decay = 0.9, .warm_up = warm_up});
    double expected = 0;
    for (int n = 1; n <= 200; ++n) {
      const double value = std::sin(n);
      {
        const torch::NoGradGuard no_grad;
        model->weight.fill_(value);
      }
      ema.update();
      const double stored = static_cast<float>(value);
      const double decay = warm_up ? std::min(0.9, n / (n + 9.0)) : 0.9;
      expected = n == 1 ? stored : decay * expected + (1 - decay) * stored;
    }
    CHECK(ema.average("weight").item<float>() == Approx(expected).epsilon(1e-6));
  }
}

TEST_CASE("Scales of quantizers are averaged by their logarithms", "[schedulers]") {
  Run run(learned_config("lsq", "fp_d_xmax", 4));
  run.start();
  EmaWeights ema(run.net.ptr(), {.decay = 0.5, .warm_up = false});
  const auto set = [&](const std::string& name, double value) {
    const torch::NoGradGuard no_grad;
    run.net->named_parameters()[name].fill_(value);
  };
  for (const double value : {0.25, 4.0}) {
    set("4.weight_slot.scale", value);
    set("2.output_slot.d", value / 8);
    set("4.bias", value);
    ema.update();
  }
  CHECK(ema.average("4.weight_slot.scale").max().item<float>() == Approx(1.0));  // the geometric mean
  CHECK(ema.average("2.output_slot.d").item<float>() == Approx(0.125));
  CHECK(ema.average("4.bias").max().item<float>() == Approx(2.125));
}

TEST_CASE("The averaged model evaluates and trains on as if it had not been looked at", "[schedulers]") {
  for (const auto& family : all_families()) {
    INFO(family.weights << " " << family.activations);
    Run run(learned_config(family.weights, family.activations));
    run.start();
    EmaWeights ema(run.net.ptr(), {.decay = 0.9});
    for (int i = 0; i < 3; ++i) {
      run.step();
      ema.update();
    }
    const auto trained = parameters(*run.net);
    ema.apply();
    CHECK(ema.is_applied());
    CHECK_FALSE(same(parameters(*run.net), trained));
    run.net->eval();
    CHECK(torch::isfinite(run.net->forward(images())).all().item<bool>());
    run.net->train();
    ema.restore();
    CHECK(same(parameters(*run.net), trained));
    CHECK_NOTHROW(run.step());
  }
}

TEST_CASE("Averages follow a model through its phases", "[schedulers]") {
  Run run(learned_config("lsq", "lsq"));
  EmaWeights ema(run.net.ptr(), {.decay = 0.5, .warm_up = false});
  ema.update();
  CHECK_NOTHROW(ema.average("1.weight"));
  run.start();  // folds the BatchNorm, brings a bias and scales
  CHECK(error_lacks([&] { ema.apply(); }, {"other parameters", "1.weight", "0.bias", "update()"}) == "");
  ema.update();
  CHECK(error_lacks([&] { ema.average("1.weight"); }, {"1.weight"}) == "");
  const auto bias = *layer<nn::Conv2d>(run.net, 0).bias_parameter();
  CHECK(ema.average("0.bias").equal(bias));
  CHECK_NOTHROW(ema.apply());
}

TEST_CASE("Averages are saved and loaded to the bit", "[schedulers]") {
  Run run(learned_config("lsq", "lsq"));
  run.start();
  EmaWeights ema(run.net.ptr());
  run.step();
  ema.update();
  std::stringstream stream;
  torch::serialize::OutputArchive out;
  ema.save(out);
  out.save_to(stream);
  EmaWeights loaded(run.net.ptr());
  torch::serialize::InputArchive in;
  in.load_from(stream);
  loaded.load(in);
  run.step();
  ema.update();
  loaded.update();
  for (const auto& [name, tensor] : parameters(*run.net)) {
    INFO(name);
    CHECK(ema.average(name).equal(loaded.average(name)));
  }
}

TEST_CASE("Averages are refused where they would be wrong", "[schedulers]") {
  auto model = number(1.0F);
  for (const double decay : {-0.1, 1.0, std::nan("")})
    CHECK(error_lacks([&] { EmaWeights(model.ptr(), {.decay = decay}); }, {"decay", "[0, 1)"}) == "");
  CHECK(error_lacks([] { EmaWeights(nullptr); }, {"model"}) == "");
  EmaWeights ema(model.ptr());
  CHECK(error_lacks([&] { ema.apply(); }, {"nothing was averaged"}) == "");
  CHECK(error_lacks([&] { ema.restore(); }, {"nothing to restore"}) == "");
  ema.update();
  ema.apply();
  CHECK(error_lacks([&] { ema.apply(); }, {"already"}) == "");
  CHECK(error_lacks([&] { ema.update(); }, {"restore()"}) == "");
  ema.restore();
  {
    const torch::NoGradGuard no_grad;
    model->weight.fill_(std::numeric_limits<float>::infinity());
  }
  CHECK(error_lacks([&] { ema.update(); }, {"weight", "not finite"}) == "");
  CHECK(ema.average("weight").item<float>() == 1.0F);
}
