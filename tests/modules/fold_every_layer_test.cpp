// Folding of trained BatchNorms into every kind of layer, from both sides.
#include "trained_batch_norm.h"
#include <qat/graph/capture.h>
#include <qat/nn/fold_batch_norm.h>
#include <qat/nn/nn.h>

#include <string>
#include <vector>

#include "support/catch.h"
#include "support/tensor_matchers.h"

namespace nn = qat::nn;
using qat::testing::mismatch;
using qat::testing::set_all_statistics;

namespace {

std::vector<nn::FoldReport> fold(nn::Sequential& net, const torch::Tensor& x) {
  return nn::fold_batch_norms(*net, qat::capture(*net, qat::forward_function(net), {x}));
}

/// Folds once, and once more for nothing; eval outputs agree to 1e-5 of their largest value.
std::vector<nn::FoldReport> fold_exactly(nn::Sequential& net, const torch::Tensor& x) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto before = net->forward(x);
  auto reports = fold(net, x);
  const auto after = net->forward(x);
  CHECK(mismatch(after, before, {.absolute = 1e-5 * before.abs().max().item<double>()}) == "");
  for (const auto& again : fold(net, x))
    CHECK(again.into == "");
  CHECK(mismatch(net->forward(x), after) == "");
  return reports;
}

template <std::size_t D>
auto batch_norm(std::int64_t channels) {
  if constexpr (D == 1) return nn::BatchNorm1d(channels);
  if constexpr (D == 2) return nn::BatchNorm2d(channels);
  if constexpr (D == 3) return nn::BatchNorm3d(channels);
}
template <std::size_t D>
auto convolution(const torch::nn::ConvOptions<D>& options) {
  if constexpr (D == 1) return nn::Conv1d(options);
  if constexpr (D == 2) return nn::Conv2d(options);
  if constexpr (D == 3) return nn::Conv3d(options);
}
template <std::size_t D>
auto transposed(const torch::nn::ConvTransposeOptions<D>& options) {
  if constexpr (D == 1) return nn::ConvTranspose1d(options);
  if constexpr (D == 2) return nn::ConvTranspose2d(options);
  if constexpr (D == 3) return nn::ConvTranspose3d(options);
}

template <std::size_t D>
torch::Tensor example(std::int64_t channels) {
  std::vector<std::int64_t> shape = {2, channels};
  shape.resize(2 + D, 5);
  return torch::randn(shape);
}

/// The layer between two BatchNorms, then alone after one. `takes_former`: whether a BatchNorm before it
/// folds.
template <std::size_t D, class Layer>
void check_both_sides(const Layer& make, std::int64_t in, std::int64_t out, bool takes_former) {
  for (const bool has_bias : {true, false}) {
    INFO(D << "d, " << in << " to " << out << " channels, bias " << has_bias);
    nn::Sequential after(make(has_bias), batch_norm<D>(out));
    set_all_statistics(*after);
    const auto reports = fold_exactly(after, example<D>(in));
    REQUIRE(reports.size() == 1);
    CHECK(reports[0].into == "0");
    CHECK_FALSE(reports[0].into_next);
    CHECK(reports[0].removed_parameters == std::vector<std::string>{"1.weight", "1.bias"});
    CHECK(reports[0].added_parameters.size() == (has_bias ? 0 : 1));

    nn::Sequential before(batch_norm<D>(in), make(has_bias));
    set_all_statistics(*before);
    const auto former = fold_exactly(before, example<D>(in));
    REQUIRE(former.size() == 1);
    CHECK(former[0].into == (takes_former ? "1" : ""));
    CHECK(former[0].into_next == takes_former);
    CHECK(former[0].added_parameters.size() == (has_bias || !takes_former ? 0 : 1));

    nn::Sequential both(batch_norm<D>(in), make(has_bias), batch_norm<D>(out));
    set_all_statistics(*both);
    const auto each = fold_exactly(both, example<D>(in));
    REQUIRE(each.size() == 2);
    CHECK(each[0].into == (takes_former ? "1" : ""));
    CHECK(each[1].into == "1");
    CHECK(each[0].added_parameters.size() + each[1].added_parameters.size() == (has_bias ? 0 : 1));
  }
}

template <std::size_t D>
void check_convolutions() {
  const auto conv = [](std::int64_t in, std::int64_t out, std::int64_t groups) {
    return [=](bool bias) {
      return convolution<D>(torch::nn::ConvOptions<D>(in, out, 3).stride(2).groups(groups).bias(bias));
    };
  };
  check_both_sides<D>(conv(4, 6, 1), 4, 6, true);
  check_both_sides<D>(conv(4, 6, 2), 4, 6, true);  // grouped
  check_both_sides<D>(conv(4, 4, 4), 4, 4, true);  // depthwise
  check_both_sides<D>(conv(4, 8, 4), 4, 8, true);
  check_both_sides<D>(conv(4, 1, 1), 4, 1, true);  // B17: a single output channel
  for (const std::int64_t groups : {1, 2, 4}) {
    const auto make = [&](bool bias) {
      return transposed<D>(torch::nn::ConvTransposeOptions<D>(4, 8, 3).stride(2).groups(groups).bias(bias));
    };
    check_both_sides<D>(make, 4, 8, false);
  }
}

}  // namespace

TEST_CASE("Trained BatchNorms fold into convolutions of every kind, before and after them", "[modules]") {
  torch::manual_seed(1);
  check_convolutions<1>();
  check_convolutions<2>();
  check_convolutions<3>();
}

TEST_CASE("B16: trained BatchNorms fold into linear layers, before and after them", "[modules]") {
  torch::manual_seed(2);
  // As many outputs as inputs: a wrong axis would not show by the shapes.
  for (const auto& [in, out] : {std::pair(4, 6), std::pair(4, 4)}) {
    for (const bool has_bias : {true, false}) {
      const auto x = torch::randn({5, in});
      const auto linear = [&] { return nn::Linear(nn::LinearOptions(in, out).bias(has_bias)); };
      for (auto net :
           {nn::Sequential(linear(), nn::BatchNorm1d(out)), nn::Sequential(nn::BatchNorm1d(in), linear()),
            nn::Sequential(nn::BatchNorm1d(in), linear(), nn::BatchNorm1d(out))}) {
        set_all_statistics(*net);
        for (const auto& report : fold_exactly(net, x))
          CHECK(report.why_not == "");
      }
    }
  }
}

TEST_CASE("B18a: the shift of a BatchNorm before a convolution is scaled once", "[modules]") {
  nn::BatchNorm2d bn(nn::BatchNorm2dOptions(1).eps(0.0));
  nn::Conv2d conv(1, 1, 1);
  {
    const torch::NoGradGuard no_grad;
    bn->bias.fill_(3.0);
    bn->weight.fill_(4.0);
    bn->running_mean.fill_(1.0);
    bn->running_var.fill_(4.0);
    conv->weight.fill_(5.0);
    conv->bias.fill_(7.0);
  }
  nn::Sequential net(bn, conv);
  const auto x = torch::full({1, 1, 1, 1}, 2.0);
  const auto reports = fold(net, x);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].into_next);
  CHECK(conv->weight.item<float>() == 10.0F);
  CHECK(conv->bias.item<float>() == 12.0F);  // V36; nnabla has 17
  CHECK(net->forward(x).item<float>() == 32.0F);
  // B18b: nothing is folded a second time.
  CHECK(fold(net, x).empty());
  CHECK(conv->weight.item<float>() == 10.0F);
}

TEST_CASE("B18c: a BatchNorm before a convolution that pads with zeros folds only without a shift",
          "[modules]") {
  torch::manual_seed(3);
  const auto x = torch::randn({2, 4, 5, 5});
  const auto options = nn::Conv2dOptions(4, 6, 3).padding(1);
  nn::Sequential net(nn::BatchNorm2d(4), nn::Conv2d(options));
  set_all_statistics(*net);
  const auto kept = fold_exactly(net, x);
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].into == "");
  CHECK(kept[0].why_not ==
        "no layer before it; 1 after it pads with zeros, which the BatchNorm would not have shifted");

  const auto without_shift = [](nn::Sequential& each) {
    const torch::NoGradGuard no_grad;
    each->ptr<nn::BatchNorm2dImpl>(0)->bias.zero_();
    each->ptr<nn::BatchNorm2dImpl>(0)->running_mean.zero_();
  };
  without_shift(net);
  CHECK(fold_exactly(net, x)[0].into == "1");

  // One channel with a shift is enough; "same" pads too; padding that repeats the input's values is exact.
  nn::Sequential one(nn::BatchNorm2d(4), nn::Conv2d(options));
  set_all_statistics(*one);
  without_shift(one);
  {
    const torch::NoGradGuard no_grad;
    one->ptr<nn::BatchNorm2dImpl>(0)->bias[2] = 1.0;
  }
  CHECK(fold_exactly(one, x)[0].into == "");
  nn::Sequential same(nn::BatchNorm2d(4), nn::Conv2d(nn::Conv2dOptions(4, 6, 3).padding(torch::kSame)));
  set_all_statistics(*same);
  CHECK(fold_exactly(same, x)[0].into == "");
  const auto reflect = nn::Conv2dOptions(4, 6, 3).padding(1).padding_mode(torch::kReflect);
  for (auto each :
       {nn::Sequential(nn::BatchNorm2d(4), nn::Conv2d(reflect)),
        nn::Sequential(nn::BatchNorm2d(4), nn::Conv2d(nn::Conv2dOptions(4, 6, 3).padding(torch::kValid))),
        nn::Sequential(nn::BatchNorm2d(4), nn::Conv2d(nn::Conv2dOptions(4, 6, 1).padding(torch::kSame)))}) {
    set_all_statistics(*each);
    CHECK(fold_exactly(each, x)[0].into == "1");
  }
}

TEST_CASE("B18d: a BatchNorm that two layers read is kept", "[modules]") {
  struct Net : torch::nn::Module {
    nn::BatchNorm2d bn = register_module("bn", nn::BatchNorm2d(2));
    nn::Conv2d conv = register_module("conv", nn::Conv2d(2, 2, 1));
  } net;
  torch::manual_seed(4);
  qat::testing::set_statistics(*net.bn);
  net.eval();
  const auto forward = [&](const std::vector<torch::Tensor>& x) {
    const auto y = net.bn->forward(x[0]);
    return std::vector<torch::Tensor>{net.conv->forward(y) + y};
  };
  const std::vector<torch::Tensor> x = {torch::randn({3, 2, 4, 4})};
  const auto before = forward(x)[0];
  const auto reports = nn::fold_batch_norms(net, qat::capture(net, forward, x));
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].into == "");
  CHECK(reports[0].why_not.find("only reader") != std::string::npos);
  CHECK(mismatch(forward(x)[0], before) == "");

  // The same where the model itself gives the output away.
  const auto two = [&](const std::vector<torch::Tensor>& inputs) {
    const auto y = net.bn->forward(inputs[0]);
    return std::vector<torch::Tensor>{net.conv->forward(y), y};
  };
  CHECK(nn::fold_batch_norms(net, qat::capture(net, two, x))[0].into == "");
}

TEST_CASE("A BatchNorm that both sides could take goes into the layer before it", "[modules]") {
  torch::manual_seed(5);
  nn::Sequential net(nn::Conv2d(2, 3, 1), nn::BatchNorm2d(3), nn::Conv2d(3, 2, 1));
  set_all_statistics(*net);
  const auto reports = fold_exactly(net, torch::randn({2, 2, 3, 3}));
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].into == "0");
  CHECK_FALSE(reports[0].into_next);
}

TEST_CASE("Gammas of zero and BatchNorms without gamma and beta fold from both sides", "[modules]") {
  torch::manual_seed(6);
  const auto x = torch::randn({2, 3, 4, 4});
  for (auto net : {nn::Sequential(nn::Conv2d(3, 3, 2), nn::BatchNorm2d(3)),
                   nn::Sequential(nn::BatchNorm2d(3), nn::Conv2d(3, 3, 2))}) {
    set_all_statistics(*net);
    for (const auto& each : net->named_parameters()) {
      const bool is_gamma = each.value().dim() == 1 && each.key().ends_with("weight");
      if (is_gamma) each.value().detach()[1] = 0.0;
    }
    CHECK(fold_exactly(net, x)[0].why_not == "");
  }
  const auto plain = nn::BatchNorm2dOptions(3).affine(false);
  for (auto net : {nn::Sequential(nn::Conv2d(3, 3, 2), nn::BatchNorm2d(plain)),
                   nn::Sequential(nn::BatchNorm2d(plain), nn::Conv2d(3, 3, 2))}) {
    set_all_statistics(*net);
    const auto reports = fold_exactly(net, x);
    CHECK(reports[0].why_not == "");
    CHECK(reports[0].removed_parameters.empty());
  }
}

TEST_CASE("B14: each BatchNorm folds with parameters and statistics of its own", "[modules]") {
  torch::manual_seed(7);
  // Different numbers of channels, one behind an activation.
  nn::Sequential net(nn::Conv2d(2, 3, 1), nn::BatchNorm2d(3), nn::ReLU(), nn::Conv2d(3, 5, 1),
                     nn::BatchNorm2d(5), nn::ReLU(), nn::BatchNorm2d(5));
  set_all_statistics(*net);
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto x = torch::randn({2, 2, 3, 3});
  const auto before = net->forward(x);
  const auto graph = qat::capture(*net, qat::forward_function(net), {x});
  const auto reports = nn::fold_batch_norms(*net, graph, {.into_layers = true, .into_themselves = true});
  REQUIRE(reports.size() == 3);
  CHECK(reports[0].into == "0");
  CHECK(reports[1].into == "3");
  CHECK(reports[2].into_itself);
  CHECK(mismatch(net->forward(x), before, {.absolute = 1e-5 * before.abs().max().item<double>()}) == "");
}

TEST_CASE("B18e: a BatchNorm before a linear layer folds only for (N, C) input", "[modules]") {
  torch::manual_seed(8);
  // As many channels as features: a fold along the wrong axis would not show by the shapes.
  nn::Sequential wide(nn::BatchNorm2d(4), nn::Linear(4, 3));
  set_all_statistics(*wide);
  CHECK(fold_exactly(wide, torch::randn({2, 4, 4, 4}))[0].why_not.find("another axis") != std::string::npos);
  nn::Sequential long_input(nn::BatchNorm1d(4), nn::Linear(4, 3));
  set_all_statistics(*long_input);
  CHECK(fold_exactly(long_input, torch::randn({2, 4, 4}))[0].into == "");
}
