// BatchNorms that become a scale and shift of their own.
#include "slot_contents.h"
#include "trained_batch_norm.h"
#include <qat/graph/capture.h>
#include <qat/nn/fold_batch_norm.h>
#include <qat/nn/nn.h>

#include <sstream>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace nn = qat::nn;
using qat::testing::error_lacks;
using qat::testing::mismatch;
using qat::testing::set_all_statistics;
using qat::testing::set_statistics;

namespace {

constexpr nn::FoldOptions kOnlyThemselves{.into_layers = false, .into_themselves = true};
constexpr nn::FoldOptions kBoth{.into_layers = true, .into_themselves = true};

std::vector<nn::FoldReport> fold(nn::Sequential& net, const torch::Tensor& x, nn::FoldOptions options) {
  return nn::fold_batch_norms(*net, qat::capture(*net, qat::forward_function(net), {x}), options);
}

std::string bytes_of(const nn::Sequential& net) {
  std::ostringstream file;
  torch::save(net, file);
  return file.str();
}

void load_bytes(nn::Sequential& net, const std::string& bytes) {
  std::istringstream file(bytes);
  torch::load(net, file);
}

}  // namespace

TEST_CASE("A BatchNorm alone becomes a trainable scale and shift", "[modules]") {
  torch::manual_seed(1);
  const auto image = torch::randn({3, 4, 5, 5});
  const auto check = [](nn::Sequential net, const torch::Tensor& x) {
    set_all_statistics(*net);
    net->eval();
    const auto before = net->forward(x);
    const auto reports = fold(net, x, kOnlyThemselves);
    REQUIRE(reports.size() == 1);
    CHECK(reports[0].into_itself);
    CHECK(reports[0].into == "");
    CHECK(reports[0].why_not == "folding into layers is off");
    CHECK(mismatch(net->forward(x), before, {.relative = 1e-5, .absolute = 1e-5}) == "");
    // Statistics of the batch play no part in train mode, and are not gathered.
    const auto buffers = net->buffers();
    const auto mean = buffers[0].clone();
    net->train();
    const auto after = net->forward(x);
    CHECK(mismatch(after, before, {.relative = 1e-5, .absolute = 1e-5}) == "");
    CHECK(torch::equal(buffers[0], mean));
    REQUIRE(net->parameters().size() == 2);
    after.square().sum().backward();
    for (const auto& parameter : net->parameters())
      CHECK(parameter.grad().abs().sum().item<float>() > 0.0F);
    // Folded once.
    CHECK(fold(net, x, kBoth).empty());
  };
  check(nn::Sequential(nn::BatchNorm1d(4)), torch::randn({3, 4}));
  check(nn::Sequential(nn::BatchNorm1d(4)), torch::randn({3, 4, 5}));
  check(nn::Sequential(nn::BatchNorm2d(4)), image);
  check(nn::Sequential(nn::BatchNorm3d(4)), image.unsqueeze(2));
  check(nn::Sequential(nn::BatchNorm2d(nn::BatchNorm2dOptions(4).affine(false))), image);
}

TEST_CASE("V36: a BatchNorm folded into itself has the numbers of its formula", "[modules]") {
  nn::BatchNorm2d bn(nn::BatchNorm2dOptions(1).eps(0.0));
  {
    const torch::NoGradGuard no_grad;
    bn->bias.fill_(3.0);
    bn->weight.fill_(4.0);
    bn->running_mean.fill_(1.0);
    bn->running_var.fill_(4.0);
  }
  const auto weight = bn->weight;
  const auto bias = bn->bias;
  bn->become_scale_and_shift();
  bn->become_scale_and_shift();  // once
  CHECK(bn->weight.is_same(weight));
  CHECK(bn->bias.is_same(bias));
  CHECK(weight.item<float>() == 2.0F);
  CHECK(bias.item<float>() == 1.0F);
  CHECK(bn->forward(torch::full({1, 1, 1, 1}, 2.0)).item<float>() == 5.0F);
  CHECK(c10::str(*bn) == "qat::nn::BatchNorm2d(1, folded into scale and shift)");
  CHECK(bn->is_scale_and_shift());
  CHECK_FALSE(bn->is_identity());
  CHECK_FALSE(bn->keeps_codes());
  CHECK(error_lacks([&] { bn->statistics(); }, {"is folded already"}) == "");
}

TEST_CASE("BatchNorms without gamma and beta get trainable parameters by self folding", "[modules]") {
  torch::manual_seed(2);
  nn::BatchNorm2d bn(nn::BatchNorm2dOptions(3).affine(false));
  nn::Sequential net(bn);
  set_all_statistics(*net);
  const auto reports = fold(net, torch::randn({2, 3, 2, 2}), kBoth);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].added_parameters == std::vector<std::string>{"0.weight", "0.bias"});
  CHECK(reports[0].removed_parameters.empty());
  CHECK(net->named_parameters().keys() == std::vector<std::string>{"0.weight", "0.bias"});
  CHECK((bn->weight.requires_grad() && bn->weight.is_leaf()));
  CHECK((bn->bias.requires_grad() && bn->bias.is_leaf()));
}

TEST_CASE("B17, B18d: only what no layer takes is folded into itself", "[modules]") {
  struct Net : torch::nn::Module {
    nn::Conv2d first = register_module("first", nn::Conv2d(2, 2, 1));
    nn::BatchNorm2d taken = register_module("taken", nn::BatchNorm2d(2));
    nn::BatchNorm2d forked = register_module("forked", nn::BatchNorm2d(2));
  } net;
  torch::manual_seed(3);
  set_all_statistics(net);
  net.eval();
  const auto forward = [&](const std::vector<torch::Tensor>& x) {
    const auto y = net.taken->forward(net.first->forward(x[0]));
    return std::vector<torch::Tensor>{net.forked->forward(y) + y};
  };
  const std::vector<torch::Tensor> x = {torch::randn({3, 2, 4, 4})};
  const auto before = forward(x)[0];
  const auto graph = qat::capture(net, forward, x);
  const auto plan = nn::plan_batch_norm_folds(net, graph, kBoth);
  REQUIRE(plan.size() == 2);
  CHECK(net.forked->normalizes());  // a plan changes nothing
  nn::fold_batch_norms(net, graph, kBoth);
  CHECK(plan[0].into == "first");
  CHECK_FALSE(plan[0].into_itself);
  CHECK(plan[1].into == "");
  CHECK(plan[1].into_itself);
  CHECK(net.taken->is_identity());
  CHECK(net.forked->is_scale_and_shift());
  CHECK(mismatch(forward(x)[0], before, {.relative = 1e-5, .absolute = 1e-5}) == "");
}

TEST_CASE("BatchNorms without running statistics or with shared parameters are not folded into themselves",
          "[modules]") {
  const auto x = torch::randn({3, 2, 4, 4});
  nn::BatchNorm2d without(nn::BatchNorm2dOptions(2).track_running_stats(false));
  nn::Sequential net(without);
  const auto reports = fold(net, x, kBoth);
  REQUIRE(reports.size() == 1);
  CHECK_FALSE(reports[0].into_itself);
  CHECK(without->normalizes());
  CHECK(error_lacks([&] { without->become_scale_and_shift(); }, {"no running statistics"}) == "");
  CHECK(without->normalizes());

  struct Tied : torch::nn::Module {
    nn::BatchNorm2d bn = register_module("bn", nn::BatchNorm2d(2));
    torch::Tensor again = register_parameter("again", bn->weight);
  } tied;
  const auto forward = [&](const std::vector<torch::Tensor>& inputs) {
    return std::vector<torch::Tensor>{tied.bn->forward(inputs[0])};
  };
  const auto shared = nn::fold_batch_norms(tied, qat::capture(tied, forward, {x}), kBoth);
  REQUIRE(shared.size() == 1);
  CHECK_FALSE(shared[0].into_itself);
  CHECK(tied.bn->normalizes());
}

TEST_CASE("A self-folded BatchNorm survives clone, save and load, between all forms", "[modules]") {
  torch::manual_seed(4);
  for (const bool affine : {true, false}) {
    const auto make = [&] {
      nn::Sequential net(nn::BatchNorm2d(nn::BatchNorm2dOptions(3).affine(affine)));
      set_all_statistics(*net);
      return net;
    };
    const auto x = torch::randn({2, 3, 4, 4});
    std::vector<nn::Sequential> forms = {make(), make(), make()};
    forms[1]->ptr<nn::BatchNorm2dImpl>(0)->become_identity();
    forms[2]->ptr<nn::BatchNorm2dImpl>(0)->become_scale_and_shift();
    for (auto& net : forms) {
      net->eval();
      const auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone());
      CHECK(torch::equal(copy->forward(x), net->forward(x)));
      CHECK(c10::str(*copy->ptr(0)) == c10::str(*net->ptr(0)));
      const auto expected = net->forward(x);
      const std::string bytes = bytes_of(net);
      for (std::size_t other = 0; other < forms.size(); ++other) {
        nn::Sequential target = make();
        if (other == 1) target->ptr<nn::BatchNorm2dImpl>(0)->become_identity();
        if (other == 2) target->ptr<nn::BatchNorm2dImpl>(0)->become_scale_and_shift();
        load_bytes(target, bytes);
        target->eval();
        CHECK(torch::equal(target->forward(x), expected));
        CHECK(c10::str(*target->ptr(0)) == c10::str(*net->ptr(0)));
        CHECK(target->named_parameters().keys() == net->named_parameters().keys());
      }
    }
  }
}

TEST_CASE("Self folding keeps parameters that do not train, other types and slots", "[modules]") {
  torch::manual_seed(5);
  nn::BatchNorm2d bn(2);
  set_statistics(*bn);
  bn->weight.set_requires_grad(false);
  bn->to(torch::kDouble);
  bn->eval();
  const auto x = torch::randn({2, 2, 3, 3}, torch::kDouble);
  const auto expected = bn->forward(x);
  bn->become_scale_and_shift();
  CHECK(mismatch(bn->forward(x), expected, {.relative = 1e-12, .absolute = 1e-12}) == "");
  CHECK_FALSE(bn->weight.requires_grad());
  CHECK(bn->bias.requires_grad());
  bn->to(torch::kFloat);
  const auto narrow = bn->forward(x.to(torch::kBFloat16));
  CHECK(narrow.scalar_type() == torch::kBFloat16);
  CHECK(mismatch(narrow.to(torch::kDouble), expected, {.relative = 0.02, .absolute = 0.02}) == "");
  bn->set_slot(slots::kOutput, slots::quantizer(0.5F));
  const auto codes = bn->forward(torch::randn({2, 2, 3, 3})) / 0.5;
  CHECK(torch::equal(codes, codes.round()));
  // Held as any layer's.
  bn->hold_parameters(true);
  bn->forward(torch::randn({2, 2, 3, 3}).requires_grad_()).sum().backward();
  CHECK_FALSE(bn->bias.grad().defined());
}
