#include "trained_batch_norm.h"
#include <qat/graph/capture.h>
#include <qat/nn/fold_batch_norm.h>
#include <qat/nn/nn.h>
#include <qat/recorders/recorder.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>

#include "support/catch.h"
#include "support/tensor_matchers.h"

namespace nn = qat::nn;
using qat::testing::mismatch;
using qat::testing::set_all_statistics;
using qat::testing::set_statistics;

namespace {

using Tensors = std::vector<torch::Tensor>;

std::vector<nn::FoldReport> fold(nn::Sequential& net, const torch::Tensor& x) {
  return nn::fold_batch_norms(*net, qat::capture(*net, qat::forward_function(net), {x}));
}

/// Folds and compares the outputs in eval mode; the report of the only BatchNorm.
nn::FoldReport fold_exactly(nn::Sequential net, const torch::Tensor& x) {
  net->eval();
  set_all_statistics(*net);
  const auto before = net->forward(x);
  const auto reports = fold(net, x);
  CHECK(mismatch(net->forward(x), before, {.relative = 1e-4, .absolute = 1e-5}) == "");
  REQUIRE(reports.size() == 1);
  return reports[0];
}

std::string printed(const torch::nn::Module& module) {
  std::ostringstream text;
  module.pretty_print(text);
  return text.str();
}

/// A model with any forward.
struct Net : torch::nn::Module {
  nn::Conv2d conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(2, 2, 1).bias(false)));
  nn::BatchNorm2d bn = register_module("bn", nn::BatchNorm2d(2));
  std::vector<nn::FoldReport> fold_with(const std::function<torch::Tensor(torch::Tensor)>& forward) {
    set_statistics(*bn);
    const auto run = [&](const Tensors& x) { return Tensors{forward(x[0])}; };
    return nn::fold_batch_norms(*this, qat::capture(*this, run, {torch::randn({3, 2, 4, 4})}));
  }
};

}  // namespace

TEST_CASE("BatchNorm folds into the layers before it exactly", "[modules]") {
  torch::manual_seed(1);
  const auto image = torch::randn({2, 4, 5, 5});
  const auto no_bias = nn::Conv2dOptions(4, 6, 3).bias(false);
  for (const auto& report :
       {fold_exactly(nn::Sequential(nn::Conv2d(no_bias), nn::BatchNorm2d(6)), image),
        fold_exactly(
            nn::Sequential(nn::Conv2d(nn::Conv2dOptions(4, 6, 3).groups(2).padding(1)), nn::BatchNorm2d(6)),
            image),
        fold_exactly(nn::Sequential(nn::Conv2d(nn::Conv2dOptions(4, 4, 3).groups(4)), nn::BatchNorm2d(4)),
                     image),
        fold_exactly(nn::Sequential(nn::ConvTranspose2d(nn::ConvTranspose2dOptions(4, 6, 3).stride(2)),
                                    nn::BatchNorm2d(6)),
                     image),
        fold_exactly(
            nn::Sequential(nn::ConvTranspose2d(nn::ConvTranspose2dOptions(4, 6, 3).groups(2).bias(false)),
                           nn::BatchNorm2d(6)),
            image),
        fold_exactly(nn::Sequential(nn::Conv1d(4, 6, 3), nn::BatchNorm1d(6)), torch::randn({2, 4, 5})),
        fold_exactly(nn::Sequential(nn::Conv3d(4, 6, 2), nn::BatchNorm3d(6)), torch::randn({2, 4, 3, 3, 3})),
        fold_exactly(nn::Sequential(nn::Linear(4, 6), nn::BatchNorm1d(6)), torch::randn({3, 4}))}) {
    CHECK(report.batch_norm == "1");
    CHECK(report.into == "0");
    CHECK(report.why_not.empty());
    CHECK(report.removed_parameters == std::vector<std::string>{"1.weight", "1.bias"});
  }
  const auto report = fold_exactly(nn::Sequential(nn::Conv2d(no_bias), nn::BatchNorm2d(6)), image);
  CHECK(report.added_parameters == std::vector<std::string>{"0.bias"});
  const auto with_bias = fold_exactly(nn::Sequential(nn::Conv2d(4, 6, 3), nn::BatchNorm2d(6)), image);
  CHECK(with_bias.added_parameters.empty());
}

TEST_CASE("case 31: folding a BatchNorm without gamma and beta removes no parameter", "[modules]") {
  nn::Conv2d conv(nn::Conv2dOptions(1, 1, 1).bias(false));
  nn::BatchNorm2d bn(nn::BatchNorm2dOptions(1).affine(false).eps(1.0));
  torch::nn::init::constant_(conv->weight, 2.0);
  bn->running_mean.fill_(1.0);
  bn->running_var.fill_(3.0);
  nn::Sequential net(conv, bn);
  const auto reports = fold(net, torch::ones({1, 1, 1, 1}));
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].removed_parameters.empty());
  CHECK(conv->weight.item<float>() == 1.0F);
  CHECK(conv->bias.item<float>() == -0.5F);
}

TEST_CASE("Folding keeps the weight's tensor and leaves an identity", "[modules]") {
  nn::Conv2d conv(nn::Conv2dOptions(2, 3, 1).bias(false));
  nn::BatchNorm2d bn(3);
  nn::Sequential net(conv, bn);
  const auto weight = conv->weight;
  fold(net, torch::randn({2, 2, 4, 4}));
  CHECK(conv->weight.is_same(weight));
  CHECK(conv->bias.requires_grad());
  CHECK(net->named_parameters().keys() == std::vector<std::string>{"0.weight", "0.bias"});
  CHECK(bn->is_identity());
  CHECK(printed(*bn).find("folded") != std::string::npos);
  const auto x = torch::randn({2, 3, 2, 2});
  CHECK(mismatch(bn->forward(x), x) == "");
}

TEST_CASE("A new bias trains only if the weight does", "[modules]") {
  nn::Conv2d conv(nn::Conv2dOptions(2, 3, 1).bias(false));
  conv->weight.set_requires_grad(false);
  nn::Sequential net(conv, nn::BatchNorm2d(3));
  fold(net, torch::randn({2, 2, 4, 4}));
  REQUIRE(conv->bias.defined());
  CHECK_FALSE(conv->bias.requires_grad());
}

TEST_CASE("case 47: a second fold finds nothing to do", "[modules]") {
  nn::Conv2d conv(nn::Conv2dOptions(1, 1, 1).bias(false));
  nn::BatchNorm2d bn(nn::BatchNorm2dOptions(1).eps(0.0));
  torch::nn::init::constant_(conv->weight, 1.0);
  torch::nn::init::constant_(bn->weight, 2.0);
  nn::Sequential net(conv, bn);
  const auto x = torch::ones({1, 1, 1, 1});
  CHECK(fold(net, x).size() == 1);
  CHECK(conv->weight.item<float>() == 2.0F);
  CHECK(fold(net, x).empty());
  CHECK(conv->weight.item<float>() == 2.0F);
}

TEST_CASE("case 50: running statistics are used whatever the mode is", "[modules]") {
  for (const bool train_mode : {true, false}) {
    nn::Conv2d conv(nn::Conv2dOptions(1, 1, 1).bias(false));
    nn::BatchNorm2d bn(nn::BatchNorm2dOptions(1).eps(0.0));
    torch::nn::init::constant_(conv->weight, 1.0);
    bn->running_mean.fill_(1.0);
    bn->running_var.fill_(4.0);
    nn::Sequential net(conv, bn);
    net->train(train_mode);
    const auto five = torch::full({1, 1, 1, 1}, 5.0);
    fold(net, five);
    CHECK(net->forward(five).item<float>() == 2.0F);
    CHECK(bn->running_mean.item<float>() == 1.0F);
    CHECK(bn->running_var.item<float>() == 4.0F);
    CHECK(net->is_training() == train_mode);
  }
}

TEST_CASE("case 34: a BatchNorm without running statistics stays and says why", "[modules]") {
  nn::Sequential net(nn::Conv2d(2, 2, 1),
                     nn::BatchNorm2d(nn::BatchNorm2dOptions(2).track_running_stats(false)));
  const auto reports = fold(net, torch::randn({3, 2, 4, 4}));
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].batch_norm == "1");
  CHECK(reports[0].into.empty());
  CHECK(reports[0].why_not.find("no running statistics") != std::string::npos);
  CHECK(net->named_parameters().size() == 4);
}

TEST_CASE("case 39: a linear layer folds only where its channels are those of the BatchNorm", "[modules]") {
  nn::Linear linear(nn::LinearOptions(2, 2).bias(false));
  nn::BatchNorm1d bn(nn::BatchNorm1dOptions(2).eps(0.0));
  {
    const torch::NoGradGuard no_grad;
    linear->weight.copy_(torch::eye(2));
    bn->weight.copy_(torch::tensor({1.0, 10.0}));
  }
  nn::Sequential net(linear, bn);
  const auto x = torch::tensor({1.0F, 2.0F, 3.0F, 4.0F}).reshape({1, 2, 2});
  const auto reports = fold(net, x);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].into.empty());
  CHECK(reports[0].why_not.find("axis") != std::string::npos);
  net->eval();
  CHECK(mismatch(net->forward(x).flatten(), torch::tensor({1.0F, 2.0F, 30.0F, 40.0F})) == "");
}

TEST_CASE("A BatchNorm is kept where its convolution has other readers", "[modules]") {
  Net residual;
  const auto forked = residual.fold_with([&](torch::Tensor x) {
    const auto h = residual.conv->forward(x);
    return residual.bn->forward(h) + h;
  });
  REQUIRE(forked.size() == 1);
  CHECK(forked[0].why_not.find("other readers") != std::string::npos);

  Net between;
  const auto function = between.fold_with(
      [&](torch::Tensor x) { return between.bn->forward(torch::tanh(between.conv->forward(x))); });
  CHECK(function[0].why_not.find("aten::tanh") != std::string::npos);

  Net alone;
  const auto only = alone.fold_with([&](torch::Tensor x) { return alone.bn->forward(x); });
  CHECK(only[0].why_not == "no layer before it; no layer after it is the only reader of its output");
}

TEST_CASE("A BatchNorm is kept where a layer is called twice or shares its parameters", "[modules]") {
  Net twice;
  const auto again = twice.fold_with([&](torch::Tensor x) {
    return twice.bn->forward(twice.conv->forward(torch::relu(twice.conv->forward(x))));
  });
  REQUIRE(again.size() == 1);
  CHECK(again[0].why_not.starts_with("conv is called more than once"));

  Net norm_twice;
  const auto repeated = norm_twice.fold_with([&](torch::Tensor x) {
    return norm_twice.bn->forward(norm_twice.conv->forward(norm_twice.bn->forward(x)));
  });
  REQUIRE(repeated.size() == 1);
  CHECK(repeated[0].why_not == "it is called more than once");

  // A weight that two modules hold.
  struct Tied : Net {
    torch::Tensor again = register_parameter("again", conv->weight);
  } tied;
  const auto shared =
      tied.fold_with([&](torch::Tensor x) { return tied.bn->forward(tied.conv->forward(x)); });
  REQUIRE(shared.size() == 1);
  CHECK(shared[0].why_not.find("shared") != std::string::npos);
}

TEST_CASE("A BatchNorm is kept behind a layer of torch and behind an occupied slot", "[modules]") {
  nn::Sequential foreign(torch::nn::Conv2d(2, 2, 1), nn::BatchNorm2d(2));
  const auto x = torch::randn({3, 2, 4, 4});
  CHECK(fold(foreign, x)[0].why_not.find("no qat::nn layer") != std::string::npos);

  nn::Conv2d conv(2, 2, 1);
  conv->set_slot({nn::SlotId::Kind::kWeight}, std::make_shared<qat::Recorder>());
  nn::Sequential occupied(conv, nn::BatchNorm2d(2));
  CHECK(fold(occupied, x)[0].why_not.find("occupied") != std::string::npos);
}

TEST_CASE("Planning a fold changes nothing", "[modules]") {
  Net net;
  set_statistics(*net.bn);
  const auto before = net.conv->weight.detach().clone();
  const auto run = [&](const Tensors& x) { return Tensors{net.bn->forward(net.conv->forward(x[0]))}; };
  const auto graph = qat::capture(net, run, {torch::randn({3, 2, 4, 4})});
  const auto plan = nn::plan_batch_norm_folds(net, graph);
  REQUIRE(plan.size() == 1);
  CHECK(plan[0].into == "conv");
  CHECK(mismatch(net.conv->weight, before) == "");
  CHECK_FALSE(net.bn->is_identity());
}
