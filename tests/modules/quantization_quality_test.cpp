#include <qat/nn/nn.h>
#include <qat/nn/quantization_quality.h>
#include <qat/quantizers/affine_quantizer.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "support/catch.h"

using namespace qat;
namespace nn = qat::nn;
using Kind = nn::SlotId::Kind;

namespace {

std::shared_ptr<AffineQuantizer> quantizer(std::int64_t bits, Signedness sign, double scale) {
  auto result = std::make_shared<AffineQuantizer>(AffineQuantizerOptions{.range = IntegerRange(bits, sign)});
  result->set_params(torch::scalar_tensor(scale), torch::scalar_tensor(0, torch::kInt));
  return result;
}

}  // namespace

TEST_CASE("The quality of a weight counts its noise, its clipped elements and its dead levels", "[modules]") {
  nn::Linear linear(nn::LinearOptions(3, 2).bias(false));
  {
    const torch::NoGradGuard no_grad;
    linear->weight.copy_(torch::tensor({0.4, -5.0, 2.0, 3.6, 0.0, 1.2}).reshape({2, 3}));
  }
  linear->set_slot({Kind::kWeight}, quantizer(3, Signedness::kSigned, 1.0));
  const auto rows = nn::measure_quantization(*linear, [&] { linear->forward(torch::ones({1, 3})); });
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].layer.empty());
  CHECK(rows[0].slot == "weight_slot");
  CHECK(rows[0].bits == 3);
  // Quantized: 0, -4, 2, 3, 0, 1.
  const double signal = 0.16 + 25 + 4 + 12.96 + 1.44;
  const double noise = 0.16 + 1 + 0.36 + 0.04;
  CHECK(rows[0].qsnr_db == Approx(10 * std::log10(signal / noise)).epsilon(1e-6));
  CHECK(rows[0].clipped == Approx(2.0 / 6));
  CHECK(rows[0].levels == 8);
  CHECK(rows[0].used_levels == 5);
}

TEST_CASE("The quality of an activation is that behind its ReLU, without NaN and infinity", "[modules]") {
  nn::Sequential net((nn::ReLU()), (nn::Identity()));
  const auto content = quantizer(2, Signedness::kUnsigned, 1.0);
  net->ptr<nn::ReLUImpl>(0)->set_slot({Kind::kOutput}, content);
  const float infinity = std::numeric_limits<float>::infinity();
  const auto x = torch::tensor({-1.0F, 0.4F, 2.6F, 9.0F, std::nanf(""), infinity});
  const auto rows = nn::measure_quantization(*net, [&] { net->forward(x); });
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].layer == "0");
  // Of 0, 0.4, 2.6, 9: quantized 0, 0, 3, 3.
  CHECK(rows[0].qsnr_db == Approx(10 * std::log10((0.16 + 6.76 + 81) / (0.16 + 0.16 + 36))).epsilon(1e-6));
  CHECK(rows[0].clipped == Approx(0.25));
  CHECK(rows[0].levels == 4);
  CHECK(rows[0].used_levels == 2);
}

TEST_CASE("Per-channel scales and calls one after another count together", "[modules]") {
  nn::Sequential net((nn::ReLU()));
  auto content = std::make_shared<AffineQuantizer>(
      AffineQuantizerOptions{.range = IntegerRange(2, Signedness::kUnsigned), .axis = 1});
  content->set_params(torch::tensor({1.0F, 10.0F}), torch::zeros({2}, torch::kInt));
  net->ptr<nn::ReLUImpl>(0)->set_slot({Kind::kOutput}, content);
  const auto rows = nn::measure_quantization(*net, [&] {
    net->forward(torch::tensor({{1.0F, 10.0F}}));
    net->forward(torch::tensor({{4.0F, 20.0F}}));
  });
  // Codes 1, 1, 4 (clipped to 3), 2.
  CHECK(rows[0].clipped == Approx(0.25));
  CHECK(rows[0].used_levels == 3);
  CHECK(rows[0].qsnr_db == Approx(10 * std::log10((1 + 100 + 16 + 400) / 1.0)).epsilon(1e-6));
}

TEST_CASE("Tensors without noise, without signal and never seen have no finite ratio", "[modules]") {
  nn::Sequential net((nn::ReLU()));
  net->ptr<nn::ReLUImpl>(0)->set_slot({Kind::kOutput}, quantizer(2, Signedness::kUnsigned, 1.0));
  const auto ratio = [&](const torch::Tensor& x) {
    return nn::measure_quantization(*net, [&] { net->forward(x); })[0].qsnr_db;
  };
  CHECK(ratio(torch::ones({3})) == std::numeric_limits<double>::infinity());
  CHECK(std::isnan(ratio(torch::zeros({3}))));
  CHECK(std::isnan(ratio(torch::empty({0}))));
  const auto unseen = nn::measure_quantization(*net, [] {});
  CHECK(std::isnan(unseen[0].qsnr_db));
  CHECK(unseen[0].used_levels == 0);
}

TEST_CASE("Measuring leaves slots, links, modes and order as they were", "[modules]") {
  nn::Sequential net(nn::Linear(2, 2), nn::ReLU(), nn::Linear(2, 2));
  const auto content = quantizer(8, Signedness::kUnsigned, 0.1);
  auto first = net->ptr<nn::LinearImpl>(0);
  auto relu = net->ptr<nn::ReLUImpl>(1);
  auto last = net->ptr<nn::LinearImpl>(2);
  const auto weight = quantizer(8, Signedness::kSigned, 0.01);
  first->set_slot({Kind::kWeight}, weight);
  relu->set_slot({Kind::kOutput}, content);
  last->set_link({Kind::kInput}, {"1.output_slot", false, content});
  net->train();
  relu->eval();
  const auto names = [&] {
    std::vector<std::string> all;
    for (const auto& module : net->named_modules())
      all.push_back(module.key());
    return all;
  };
  const auto before = names();
  const auto x = torch::randn({3, 2});
  const auto check = [&] {
    CHECK(names() == before);
    CHECK(first->slot({Kind::kWeight}) == weight);
    CHECK(relu->slot({Kind::kOutput}) == content);
    CHECK(last->link({Kind::kInput})->target.lock() == content);
    CHECK(first->is_training());
    CHECK_FALSE(relu->is_training());
    CHECK(last->is_training());
    CHECK_NOTHROW(net->forward(x));
  };
  bool was_training = true;
  CHECK(nn::measure_quantization(*net, [&] {
          was_training = net->is_training();
          net->forward(x);
        }).size() == 2);
  CHECK_FALSE(was_training);
  check();
  CHECK_THROWS_AS(nn::measure_quantization(*net, [] { throw std::runtime_error("stop"); }),
                  std::runtime_error);
  check();
  nn::Sequential plain(nn::Linear(2, 2));
  CHECK(nn::measure_quantization(*plain, [] {}).empty());
}
