#include <qat/nn/fold_batch_norm.h>
#include <qat/numerics/affine_params.h>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

using qat::nn::BatchNormStatistics;
using qat::nn::fold_batch_norm;
using qat::nn::fold_batch_norm_before;
using qat::testing::error_lacks;
using qat::testing::mismatch;

namespace {

torch::Tensor numbers(std::vector<double> values) {
  return torch::tensor(values, torch::kFloat32);
}

/// A BatchNorm whose scale is `factor` and whose shift is 0.
BatchNormStatistics scaling(const torch::Tensor& factor) {
  return {torch::zeros_like(factor), torch::ones_like(factor), factor, torch::zeros_like(factor), 0.0};
}

/// With every statistic different in every channel.
BatchNormStatistics trained(std::int64_t channels) {
  return {torch::randn(channels), torch::rand(channels) + 0.5, torch::randn(channels), torch::randn(channels),
          1e-3};
}

torch::Tensor normalize(const torch::Tensor& x, const BatchNormStatistics& bn) {
  return torch::batch_norm(x, bn.gamma, bn.beta, bn.mean, bn.variance, /*training=*/false, 0.1, bn.eps,
                           false);
}

}  // namespace

TEST_CASE("golden V35: a convolution and the BatchNorm after it", "[modules]") {
  const auto weight = numbers({5, 6}).reshape({2, 1, 1, 1});
  const auto bias = numbers({7, 8});
  const BatchNormStatistics bn{numbers({1, 2}), numbers({4, 16}), numbers({4, 1}), numbers({3, -1}), 0.0};
  const auto folded = fold_batch_norm(weight, bias, bn);
  CHECK(mismatch(folded.weight.flatten(), numbers({10, 1.5})) == "");
  CHECK(mismatch(folded.bias, numbers({15, 0.5})) == "");
  const auto x = torch::full({1, 1, 1, 1}, 2.0);
  CHECK(mismatch(torch::conv2d(x, folded.weight, folded.bias).flatten(), numbers({35, 3.5})) == "");
  CHECK(mismatch(normalize(torch::conv2d(x, weight, bias), bn).flatten(), numbers({35, 3.5})) == "");
}

TEST_CASE("golden V36: a BatchNorm and the convolution after it", "[modules]") {
  const BatchNormStatistics bn{numbers({1}), numbers({4}), numbers({4}), numbers({3}), 0.0};
  const auto affine = qat::nn::channel_affine(bn);
  CHECK(affine.scale.item<double>() == 2.0);
  CHECK(affine.shift.item<double>() == 1.0);

  const auto folded = fold_batch_norm_before(torch::full({1, 1, 1, 1}, 5.0), numbers({7}), bn);
  CHECK(mismatch(folded.weight.flatten(), numbers({10})) == "");
  CHECK(mismatch(folded.bias, numbers({12})) == "");
  const auto x = torch::full({1, 1, 1, 1}, 2.0);
  CHECK(torch::conv2d(x, folded.weight, folded.bias).item<float>() == 32.0F);
}

TEST_CASE("case 31: a BatchNorm without gamma and beta folds into a convolution without bias", "[modules]") {
  const auto folded =
      fold_batch_norm(torch::full({1, 1, 1, 1}, 2.0), {}, {numbers({1}), numbers({3}), {}, {}, /*eps=*/1.0});
  CHECK(mismatch(folded.weight.flatten(), numbers({1.0})) == "");
  CHECK(mismatch(folded.bias, numbers({-0.5})) == "");
  const auto half = fold_batch_norm(torch::full({1, 1, 1, 1}, 2.0, torch::kHalf), {},
                                    {numbers({1}), numbers({3}), {}, {}, /*eps=*/1.0});
  CHECK(half.weight.scalar_type() == torch::kHalf);
  CHECK(half.bias.scalar_type() == torch::kHalf);
}

TEST_CASE("case 32: the epsilon of the BatchNorm counts", "[modules]") {
  const auto one = numbers({1});
  const auto folded = fold_batch_norm(torch::ones({1, 1, 1, 1}), {},
                                      {numbers({0}), numbers({1e-4}), one, numbers({0}), 1e-3});
  CHECK(mismatch(folded.weight.flatten(), numbers({30.15113}), {.relative = 1e-6}) == "");
}

TEST_CASE("case 35: a missing bias becomes the shift", "[modules]") {
  const auto folded = fold_batch_norm(torch::ones({1, 1, 1, 1}), {},
                                      {numbers({5}), numbers({4}), numbers({2}), numbers({1}), 0.0});
  CHECK(folded.weight.item<float>() == 1.0F);
  CHECK(folded.bias.item<float>() == -4.0F);
  const auto five = torch::full({1, 1, 1, 1}, 5.0);
  CHECK(torch::conv2d(five, folded.weight, folded.bias).item<float>() == 1.0F);
}

TEST_CASE("case 36: a bias that exists is folded", "[modules]") {
  const auto folded = fold_batch_norm(torch::ones({1, 1, 1, 1}), numbers({3}),
                                      {numbers({1}), numbers({4}), numbers({2}), numbers({0.5}), 0.0});
  CHECK(folded.bias.item<float>() == 2.5F);
  CHECK(torch::conv2d(torch::ones({1, 1, 1, 1}), folded.weight, folded.bias).item<float>() == 3.5F);
}

TEST_CASE("case 37: transposed convolutions have their output channels on axis 1", "[modules]") {
  const auto weight = numbers({1, 2, 3, 4}).reshape({2, 2, 1, 1});
  const auto folded = fold_batch_norm(weight, {}, scaling(numbers({10, 100})), /*channel_axis=*/1);
  CHECK(mismatch(folded.weight.flatten(), numbers({10, 200, 30, 400})) == "");
}

TEST_CASE("case 49: a negative factor keeps the range in order", "[modules]") {
  const auto folded = fold_batch_norm(numbers({-1, 3}).reshape({1, 2}), {}, scaling(numbers({-2})));
  const qat::ValueRange range{folded.weight.amin(), folded.weight.amax()};
  CHECK(range.min.item<float>() == -6.0F);
  CHECK(range.max.item<float>() == 2.0F);
  const auto params = qat::affine_params_from_range(range, qat::IntegerRange(8, qat::Signedness::kUnsigned),
                                                    qat::Symmetry::kAffine);
  CHECK(params.scale.item<float>() == 8.0F / 255.0F);
}

TEST_CASE("A gamma of zero leaves the shift alone", "[modules]") {
  const auto folded = fold_batch_norm(torch::ones({1, 1, 1, 1}), numbers({3}),
                                      {numbers({1}), numbers({4}), numbers({0}), numbers({0.7}), 0.0});
  CHECK(folded.weight.item<float>() == 0.0F);
  CHECK(folded.bias.item<float>() == 0.7F);
}

TEST_CASE("Folding is exact for convolutions of any kind", "[modules]") {
  torch::manual_seed(3);
  const auto x = torch::randn({2, 4, 5, 5});
  const auto bias = torch::randn(6);
  const auto bn = trained(6);
  const qat::testing::Tolerance tolerance{.relative = 1e-5, .absolute = 1e-5};
  for (const std::int64_t groups : {1, 2}) {
    const auto weight = torch::randn({6, 4 / groups, 3, 3});
    const auto folded = fold_batch_norm(weight, bias, bn, 0, groups);
    const auto expected = normalize(torch::conv2d(x, weight, bias, 2, 1, 1, groups), bn);
    CHECK(mismatch(torch::conv2d(x, folded.weight, folded.bias, 2, 1, 1, groups), expected, tolerance) == "");

    const auto transposed = torch::randn({4, 6 / groups, 3, 3});
    const auto both = fold_batch_norm(transposed, bias, bn, 1, groups);
    const auto wanted = normalize(torch::conv_transpose2d(x, transposed, bias, 2, 1, 0, groups), bn);
    CHECK(mismatch(torch::conv_transpose2d(x, both.weight, both.bias, 2, 1, 0, groups), wanted, tolerance) ==
          "");
  }
  const auto depthwise = torch::randn({4, 1, 3, 3});
  const auto four = trained(4);
  const auto folded = fold_batch_norm(depthwise, {}, four, 0, 4);
  const auto expected = normalize(torch::conv2d(x, depthwise, {}, 1, 1, 1, 4), four);
  CHECK(mismatch(torch::conv2d(x, folded.weight, folded.bias, 1, 1, 1, 4), expected, tolerance) == "");
}

TEST_CASE("Folding is exact for linear layers with other sizes of input and output", "[modules]") {
  torch::manual_seed(4);
  const auto x = torch::randn({5, 3});
  const auto weight = torch::randn({7, 3});
  const auto bias = torch::randn(7);
  const auto bn = trained(7);
  const auto folded = fold_batch_norm(weight, bias, bn);
  CHECK(mismatch(torch::linear(x, folded.weight, folded.bias), normalize(torch::linear(x, weight, bias), bn),
                 {.relative = 1e-5, .absolute = 1e-5}) == "");
}

TEST_CASE("B18: folding a BatchNorm into the convolution after it is exact without padding", "[modules]") {
  torch::manual_seed(5);
  const auto x = torch::randn({2, 4, 5, 5});
  const auto bn = trained(4);
  const std::vector<std::int64_t> no_padding{0, 0};
  for (const std::int64_t groups : {1, 2}) {
    const auto weight = torch::randn({6, 4 / groups, 3, 3});
    const auto bias = torch::randn(6);
    const auto folded = fold_batch_norm_before(weight, bias, bn, groups);
    const auto expected = torch::conv2d(normalize(x, bn), weight, bias, 1, no_padding, 1, groups);
    CHECK(mismatch(torch::conv2d(x, folded.weight, folded.bias, 1, no_padding, 1, groups), expected,
                   {.relative = 1e-5, .absolute = 1e-5}) == "");
  }
}

TEST_CASE("Folding changes none of its arguments", "[modules]") {
  const auto weight = torch::randn({2, 1, 1, 1}).set_requires_grad(true);
  const auto before = weight.detach().clone();
  const auto bn = trained(2);
  const auto gamma = bn.gamma.clone();
  const auto folded = fold_batch_norm(weight, {}, bn);
  CHECK(mismatch(weight, before) == "");
  CHECK(mismatch(bn.gamma, gamma) == "");
  CHECK_FALSE(folded.weight.requires_grad());
  CHECK_FALSE(folded.bias.requires_grad());
}

TEST_CASE("Folding refuses what does not fit", "[modules]") {
  const auto weight = torch::ones({3, 1, 1, 1});
  CHECK(error_lacks([&] { fold_batch_norm(weight, {}, scaling(torch::ones(4))); }, {"3 channels", "4"}) ==
        "");
  CHECK(error_lacks([&] { fold_batch_norm(weight, {}, {}); }, {"no running statistics"}) == "");
  CHECK(error_lacks([&] { fold_batch_norm(torch::ones(3), {}, scaling(torch::ones(3))); }, {"[3]"}) == "");
  CHECK(error_lacks([&] { fold_batch_norm(weight, {}, scaling(torch::ones(3)), 2); }, {"axis 2"}) == "");
  CHECK(error_lacks([&] { fold_batch_norm_before(weight, {}, scaling(torch::ones(3))); }, {"1 channels"}) ==
        "");
}
