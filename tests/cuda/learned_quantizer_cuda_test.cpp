#include <qat/quantizers/make_quantizer.h>
#include <qat/quantizers/parametric_quantizer.h>

#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "support/catch.h"
#include "support/cuda_device.h"

namespace {

using torch::Tensor;

std::shared_ptr<qat::Quantizer> quantizer_of(const std::string& family) {
  const qat::AffineQuantizerOptions options{.range = qat::IntegerRange(4, qat::Signedness::kSigned),
                                            .axis = 1};
  return qat::make_quantizer(family, options,
                             {torch::tensor({-1.0F, -2.0F, -0.3F}), torch::tensor({0.8F, 2.0F, 0.5F})});
}

struct GridResult {
  Tensor y;
  std::vector<Tensor> gradients;  ///< of the quantizer's parameters.
};

GridResult result_on(torch::Device device, const std::string& family, const Tensor& x, const Tensor& dy) {
  const auto quantizer = quantizer_of(family);
  quantizer->to(device);
  const auto y = quantizer->forward(x.to(device));
  GridResult result{y.detach().cpu(), {}};
  for (const auto& gradient : torch::autograd::grad({y}, quantizer->parameters(), {dy.to(device)}))
    result.gradients.push_back(gradient.cpu());
  return result;
}

}  // namespace

TEST_CASE("on a GPU quantizers derive the grids and the gradients of their parameters as on a CPU") {
  if (!qat::testing::has_cuda_device()) return;
  torch::manual_seed(5);
  const auto x = torch::randn({4, 3, 17});
  const auto dy = torch::randn_like(x);
  for (const std::string family : {"lsq", "lsq_plus", "tqt", "fp_n_m", "fp_b_xmax", "fp_d_xmax", "fp_d_b",
                                   "pow2_n_m", "pow2_b_xmax", "pow2_b_xmin", "pow2_xmin_xmax"}) {
    CAPTURE(family);
    const auto expected = result_on(torch::kCPU, family, x, dy);
    const auto actual = result_on(torch::kCUDA, family, x, dy);
    CHECK(torch::equal(actual.y, expected.y));
    REQUIRE(actual.gradients.size() == expected.gradients.size());
    for (std::size_t i = 0; i < actual.gradients.size(); ++i)
      CHECK(torch::allclose(actual.gradients[i], expected.gradients[i], 1e-5, 1e-7));
  }
}

TEST_CASE("on a GPU a bit count follows the parameters as on a CPU") {
  if (!qat::testing::has_cuda_device()) return;
  for (const std::string family : {"fp_d_xmax", "pow2_xmin_xmax", "fp_n_m"}) {
    CAPTURE(family);
    const auto count = [&](torch::Device device) {
      const auto quantizer = quantizer_of(family);
      quantizer->to(device);
      return dynamic_cast<const qat::ParametricQuantizer&>(*quantizer).bit_count().item<double>();
    };
    CHECK(count(torch::kCUDA) == count(torch::kCPU));
  }
}
