#include <qat/numerics/affine_params.h>
#include <qat/quantizers/bias_quantizer.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace {

using qat::BiasQuantizer;
using qat::Rounding;
using qat::testing::error_lacks;
using qat::testing::mismatch;

}  // namespace

TEST_CASE("a bias becomes int32 at the scale of the accumulator") {
  torch::manual_seed(3);
  const auto bias = torch::randn({33});
  const auto scale = torch::rand({33}) * 1e-3 + 1e-6;
  BiasQuantizer quantizer;
  const auto y = quantizer.forward(bias, scale);
  const auto codes = quantizer.codes(bias, scale);
  CHECK(codes.scalar_type() == torch::kInt);
  for (std::int64_t c = 0; c < bias.numel(); ++c) {
    const float s = scale.const_data_ptr<float>()[c];
    const float code = std::nearbyint(bias.const_data_ptr<float>()[c] / s);
    CHECK(codes.const_data_ptr<std::int32_t>()[c] == static_cast<std::int32_t>(code));
    CHECK(y.const_data_ptr<float>()[c] == code * s);
  }
}

TEST_CASE("a bias keeps its type and its whole gradient") {
  BiasQuantizer quantizer;
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    const auto bias = torch::tensor({0.3, -1.26, 0.0}, torch::kDouble).to(type).requires_grad_();
    const auto y = quantizer.forward(bias, torch::tensor(0.25F));
    CHECK(mismatch(y, torch::tensor({0.25, -1.25, 0.0}, torch::kDouble).to(type)) == "");
    CHECK(mismatch(torch::autograd::grad({y.sum()}, {bias})[0], torch::ones({3}, type)) == "");
  }
  const torch::NoGradGuard no_grad;
  const auto bias = torch::ones({2}).requires_grad_();
  CHECK_FALSE(quantizer.forward(bias, torch::tensor(0.25F)).requires_grad());
}

TEST_CASE("ties of a bias follow the rounding") {
  const auto bias = torch::tensor({0.125F, 0.375F, -0.125F});
  const auto scale = torch::tensor(0.25F);
  CHECK(mismatch(BiasQuantizer().codes(bias, scale), torch::tensor({0, 2, 0}, torch::kInt)) == "");
  CHECK(mismatch(BiasQuantizer(Rounding::kHalfAwayFromZero).codes(bias, scale),
                 torch::tensor({1, 2, -1}, torch::kInt)) == "");
  CHECK(mismatch(BiasQuantizer(Rounding::kHalfUp).codes(bias, scale),
                 torch::tensor({1, 2, 0}, torch::kInt)) == "");
}

TEST_CASE("golden V37: an int32 bias at the scale of the accumulator") {
  const auto bias = torch::tensor({1.0F});
  const auto scale = torch::tensor(0x1p-15F);
  CHECK(BiasQuantizer().codes(bias, scale).item<std::int32_t>() == 32768);
  CHECK(BiasQuantizer().forward(bias, scale).item<float>() == 1.0F);
}

TEST_CASE("case 91: a bias beyond int32 is reported with the scale that it needs") {
  const auto bias = torch::tensor({1.0F, 3.0F});
  const auto small = torch::tensor({1.0F, 2e-12F});
  BiasQuantizer quantizer;
  quantizer.eval();
  const auto words = {std::string("channel 1"), std::string("1.5e+12"), std::string("1.39698e-09")};
  CHECK(error_lacks([&] { quantizer.forward(bias, small); }, words) == "");
  CHECK(error_lacks([&] { quantizer.codes(bias, small); }, words) == "");
  // The smallest weight scale that the message allows, at an input scale of 0.02.
  const auto enough = torch::tensor(0.02F * 6.98493e-8F);
  CHECK(quantizer.forward(bias, enough)[1].item<float>() == Approx(3.0).epsilon(1e-6));
  // 2147483647 is no float32: its neighbours are 2147483520 and 2147483648.
  const auto one = torch::tensor(1.0F);
  CHECK(quantizer.codes(torch::tensor({2147483520.0F}), one).item<std::int32_t>() == 2147483520);
  CHECK(error_lacks([&] { quantizer.codes(torch::tensor({2147483648.0F}), one); }, {"int32"}) == "");
  CHECK(quantizer.codes(torch::tensor({-2147483648.0F}), one).item<std::int32_t>() ==
        std::numeric_limits<std::int32_t>::min());
  CHECK(quantizer.codes(torch::tensor({2147483647.0}, torch::kDouble), one).item<std::int32_t>() ==
        2147483647);
}

TEST_CASE("a bias beyond int32 saturates in training and is refused where results count") {
  const auto infinity = std::numeric_limits<float>::infinity();
  const auto bias = torch::tensor({3.0F, -3.0F, 0.5F, infinity}).requires_grad_();
  const auto scale = torch::tensor({2e-12F, 2e-12F, 0.25F, 1.0F});
  BiasQuantizer quantizer;
  const auto y = quantizer.forward(bias, scale);
  CHECK(mismatch(y, torch::tensor({2147483520.0F * 2e-12F, -2147483648.0F * 2e-12F, 0.5F, 2147483520.0F})) ==
        "");
  CHECK(mismatch(torch::autograd::grad({y.sum()}, {bias})[0], torch::ones({4})) == "");
  const auto wide = torch::tensor({3.0, -3.0}, torch::kDouble);
  const auto one = torch::tensor(1e-12, torch::kDouble);
  CHECK(mismatch(quantizer.forward(wide, one),
                 torch::tensor({2147483647.0 * 1e-12, -2147483648.0 * 1e-12}, torch::kDouble)) == "");
  // The smallest scales that can be learned, one for the input and one for the weight.
  CHECK(quantizer.forward(torch::ones({1}), torch::tensor(0x1p-126F)).item<float>() ==
        2147483520.0F * 0x1p-126F);
  CHECK(error_lacks([&] { quantizer.codes(bias, scale); }, {"channel 0", "int32"}) == "");
  quantizer.eval();
  CHECK(error_lacks([&] { quantizer.forward(bias, scale); }, {"channel 0", "int32"}) == "");
}

TEST_CASE("a bias quantizer refuses what it cannot quantize") {
  BiasQuantizer quantizer;
  const auto bias = torch::ones({3});
  CHECK(error_lacks([&] { quantizer.forward(bias); }, {"scale"}) == "");
  CHECK(error_lacks([&] { quantizer.forward(bias, torch::ones({2})); }, {"3", "2"}) == "");
  CHECK(error_lacks([&] { quantizer.forward(bias, torch::zeros({})); }, {"positive"}) == "");
  CHECK(error_lacks([&] { quantizer.forward(torch::ones({3}, torch::kInt), torch::ones({})); },
                    {"real bias"}) == "");
  CHECK(error_lacks([&] { quantizer.forward(torch::Tensor(), torch::ones({})); }, {"undefined"}) == "");
  CHECK(error_lacks([&] { quantizer.forward(bias, torch::Tensor()); }, {"scale"}) == "");
  const auto nan = torch::full({1}, std::nan(""));
  CHECK(error_lacks([&] { quantizer.codes(nan, torch::ones({})); }, {"NaN"}) == "");
  CHECK(std::isnan(quantizer.forward(nan, torch::ones({})).item<float>()));
}

TEST_CASE("a bias quantizer prints itself") {
  std::ostringstream text;
  BiasQuantizer().pretty_print(text);
  CHECK(text.str() == "qat::BiasQuantizer(int32)");
}

TEST_CASE("The scale of an accumulator is one float32 product for each channel", "[quantizers]") {
  const auto x = torch::tensor(0.1F).requires_grad_();
  const auto w = torch::tensor({0.3F, 0.7F});
  const auto scale = qat::accumulator_scale(x, w);
  CHECK_FALSE(scale.requires_grad());
  CHECK(scale[0].item<float>() == 0.1F * 0.3F);
  CHECK(scale[1].item<float>() == 0.1F * 0.7F);
  CHECK(qat::accumulator_scale(x, w[0]).dim() == 0);
  CHECK(error_lacks([&] { qat::accumulator_scale(x, w.to(torch::kHalf)); },
                    {"accumulator_scale", "float32", "Half"}) == "");
  CHECK(error_lacks([&] { qat::accumulator_scale({}, w); }, {"undefined"}) == "");
}
