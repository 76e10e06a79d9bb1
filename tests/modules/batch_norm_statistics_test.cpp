#include "slot_contents.h"
#include "trained_batch_norm.h"
#include <qat/nn/batch_norm_statistics.h>
#include <qat/nn/nn.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace nn = qat::nn;
using qat::testing::error_lacks;
using qat::testing::mismatch;
using qat::testing::set_all_statistics;

namespace {

torch::Tensor mean_of(const torch::Tensor& x) {
  return x.transpose(0, 1).flatten(1).mean(1);
}
torch::Tensor variance_of(const torch::Tensor& x) {
  return x.transpose(0, 1).flatten(1).var(1, /*unbiased=*/true);
}

std::vector<torch::Tensor> three_batches() {
  torch::manual_seed(11);
  std::vector<torch::Tensor> batches;
  for (const double shift : {0.0, 3.0, -1.0})
    batches.push_back(torch::randn({4, 2, 3, 3}) * (1.0 + shift) + shift);
  return batches;
}

}  // namespace

TEST_CASE("case 43: frozen statistics survive train()", "[modules]") {
  nn::BatchNorm2d bn(nn::BatchNorm2dOptions(1).eps(0.0));
  bn->running_mean.fill_(0.5);
  nn::Sequential net(bn);
  nn::freeze_batch_norm_statistics(*net);
  CHECK(bn->has_frozen_statistics());
  for (int cycle = 0; cycle < 2; ++cycle) {
    net->train(true);
    const auto y = net->forward(torch::full({2, 1, 2, 2}, 2.5));
    CHECK(y.eq(2.0).all().item<bool>());
    CHECK(bn->running_mean.item<float>() == 0.5F);
    CHECK(bn->num_batches_tracked.item<std::int64_t>() == 0);
    net->eval();
    CHECK(net->forward(torch::full({2, 1, 2, 2}, 2.5)).eq(2.0).all().item<bool>());
  }
  // A single value per channel needs no statistics of its batch; gamma and beta train.
  net->train();
  net->forward(torch::full({1, 1, 1, 1}, 2.5)).sum().backward();
  CHECK(bn->weight.grad().item<float>() == 2.0F);
  CHECK(bn->bias.grad().item<float>() == 1.0F);

  nn::freeze_batch_norm_statistics(*net, false);
  net->forward(torch::full({2, 1, 2, 2}, 2.5));
  CHECK(std::abs(bn->running_mean.item<float>() - 0.7F) < 1e-6F);
  CHECK(bn->num_batches_tracked.item<std::int64_t>() == 1);
}

TEST_CASE("Frozen statistics survive clone, save and load, and show in print", "[modules]") {
  nn::Sequential net(nn::BatchNorm2d(2));
  nn::freeze_batch_norm_statistics(*net);
  CHECK(c10::str(*net->ptr(0)).find("track_running_stats=true, frozen statistics)") != std::string::npos);
  const auto is_frozen = [](const nn::Sequential& each) {
    return each->ptr<nn::BatchNorm2dImpl>(0)->has_frozen_statistics();
  };
  CHECK(is_frozen(nn::Sequential(std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone()))));
  std::ostringstream file;
  torch::save(net, file);
  nn::Sequential loaded(nn::BatchNorm2d(2));
  std::istringstream in(file.str());
  torch::load(loaded, in);
  CHECK(is_frozen(loaded));
  // A file of a layer as built thaws.
  std::ostringstream plain;
  nn::Sequential built(nn::BatchNorm2d(2));
  torch::save(built, plain);
  std::istringstream back(plain.str());
  torch::load(loaded, back);
  CHECK_FALSE(is_frozen(loaded));
}

TEST_CASE("Freezing is refused where there is nothing to freeze, and passes folded layers by", "[modules]") {
  nn::Sequential net(nn::BatchNorm2d(2),
                     nn::BatchNorm2d(nn::BatchNorm2dOptions(2).track_running_stats(false)));
  CHECK(error_lacks([&] { nn::freeze_batch_norm_statistics(*net); },
                    {"qat::nn::BatchNorm2d '1'", "no running statistics"}) == "");
  CHECK_FALSE(net->ptr<nn::BatchNorm2dImpl>(0)->has_frozen_statistics());
  nn::freeze_batch_norm_statistics(*net, false);

  nn::Sequential folded(nn::BatchNorm2d(2));
  folded->ptr<nn::BatchNorm2dImpl>(0)->become_identity();
  nn::freeze_batch_norm_statistics(*folded);
  CHECK_FALSE(folded->ptr<nn::BatchNorm2dImpl>(0)->has_frozen_statistics());
}

TEST_CASE("Re-estimated statistics are the averages over the batches", "[modules]") {
  const auto batches = three_batches();
  nn::BatchNorm2d bn(2);
  nn::Sequential net(bn);
  set_all_statistics(*net);
  CHECK(nn::reestimate_batch_norm(net, batches) == 1);
  auto mean = torch::zeros({2});
  auto variance = torch::zeros({2});
  for (const auto& batch : batches) {
    mean += mean_of(batch) / 3;
    variance += variance_of(batch) / 3;
  }
  CHECK(mismatch(bn->running_mean, mean, {.relative = 1e-5, .absolute = 1e-6}) == "");
  CHECK(mismatch(bn->running_var, variance, {.relative = 1e-5}) == "");
  CHECK(bn->num_batches_tracked.item<std::int64_t>() == 3);
  CHECK(bn->options.momentum() == 0.1);
}

TEST_CASE("Re-estimation changes nothing but statistics", "[modules]") {
  torch::manual_seed(12);
  nn::Conv2d conv(2, 2, 1);
  nn::BatchNorm2d bn(2);
  nn::Dropout dropout(0.5);
  nn::BatchNorm2d after(2);
  nn::Sequential net(conv, bn, nn::ReLU(), dropout, after);
  conv->set_slot(slots::kOutput, slots::recorder());
  bn->set_slot(slots::kOutput, slots::recorder());
  net->train();
  dropout->eval();
  bn->eval();
  nn::freeze_batch_norm_statistics(*net);
  const auto parameters = net->parameters();
  std::vector<torch::Tensor> before;
  for (const auto& parameter : parameters)
    before.push_back(parameter.detach().clone());
  const auto recorded = conv->slot(slots::kOutput)->buffers()[0].clone();
  torch::manual_seed(13);
  const auto draw = torch::rand({4});
  torch::manual_seed(13);
  const auto batches = three_batches();
  torch::manual_seed(13);
  CHECK(nn::reestimate_batch_norm(net, batches) == 2);
  CHECK(torch::equal(torch::rand({4}), draw));
  for (std::size_t i = 0; i < parameters.size(); ++i)
    CHECK(torch::equal(parameters[i], before[i]));
  CHECK(torch::equal(conv->slot(slots::kOutput)->buffers()[0], recorded));
  CHECK((net->is_training() && conv->is_training() && after->is_training()));
  CHECK_FALSE((dropout->is_training() || bn->is_training()));
  CHECK_FALSE(bn->slot(slots::kOutput)->is_training());
  CHECK((bn->has_frozen_statistics() && after->has_frozen_statistics()));
  // Nothing was dropped: the second BatchNorm saw what it sees in eval mode.
  const auto seen = torch::relu(
      torch::batch_norm(conv->forward(batches[0]), bn->weight, bn->bias, {}, {}, true, 0.0, 1e-5, false));
  nn::reestimate_batch_norm(net, {batches[0]});
  CHECK(mismatch(after->running_mean, mean_of(seen), {.relative = 1e-4, .absolute = 1e-6}) == "");
}

TEST_CASE("Re-estimation refuses an empty list and leaves statistics where it fails", "[modules]") {
  nn::BatchNorm2d bn(2);
  nn::Sequential net(bn);
  set_all_statistics(*net);
  const auto mean = bn->running_mean.clone();
  CHECK(error_lacks([&] { nn::reestimate_batch_norm(net, {}); }, {"at least one batch"}) == "");
  const auto batches = three_batches();
  const auto fails = [&](const std::vector<torch::Tensor>& x) -> std::vector<torch::Tensor> {
    bn->forward(x[0]);
    throw std::runtime_error("no");
  };
  CHECK_THROWS_AS(nn::reestimate_batch_norm(*net, fails, {{batches[0]}}), std::runtime_error);
  CHECK(torch::equal(bn->running_mean, mean));
  CHECK(bn->options.momentum() == 0.1);
  // A layer that the model does not call keeps its statistics.
  const auto idle = [&](const std::vector<torch::Tensor>& x) { return x; };
  CHECK(nn::reestimate_batch_norm(*net, idle, {{batches[0]}}) == 0);
  CHECK(torch::equal(bn->running_mean, mean));
  // Folded ones have no use for them.
  bn->become_scale_and_shift();
  CHECK(nn::reestimate_batch_norm(net, batches) == 0);
  CHECK(torch::equal(bn->running_mean, mean));
}
