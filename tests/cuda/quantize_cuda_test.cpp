#include "autograd/quantize_cuda.h"

#include "libqat/autograd/learned_quantize_check.h"
#include "libqat/kernels/gpu_examples.h"
#include <qat/autograd/fake_quantize.h>
#include <qat/autograd/learned_quantize.h>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <string>
#include <vector>

#include "support/catch.h"
#include "support/cuda_device.h"
#include "support/errors.h"

namespace {

using namespace qat::testing;
using qat::Activation;
using qat::Rounding;
using torch::Tensor;

qat::AffineParams on_gpu(qat::AffineParams params) {
  params.scale = params.scale.cuda();
  params.zero_point = params.zero_point.cuda();
  return params;
}

qat::UniformGrid on_gpu(qat::UniformGrid grid) {
  for (auto* tensor : {&grid.scale, &grid.lower, &grid.upper, &grid.zero_point, &grid.low, &grid.high})
    *tensor = tensor->cuda();
  return grid;
}

qat::PowerOfTwoGrid on_gpu(qat::PowerOfTwoGrid grid) {
  grid.xmin = grid.xmin.cuda();
  grid.xmax = grid.xmax.cuda();
  return grid;
}

/// The values and gradients of x and of the grid's tensors.
struct Result {
  Tensor y;
  std::vector<Tensor> gradients;
};

template <class Grid>
Result run(const Tensor& x, const Tensor& dy, const Grid& fixed, Rounding rounding,
           const Activation& activation) {
  auto grid = learning(fixed);
  std::vector<Tensor> inputs{x.detach().clone().requires_grad_()};
  for (const auto* tensor : learned_tensors(grid))
    inputs.push_back(*tensor);
  const auto y = quantize(inputs[0].view_as(inputs[0]), grid, rounding, activation);
  return {y.detach(), torch::autograd::grad({y}, inputs, {dy})};
}

Result run(const Tensor& x, const Tensor& dy, const qat::AffineParams& params,
           const qat::FakeQuantizeOptions& options) {
  const auto leaf = x.detach().clone().requires_grad_();
  const auto y = qat::fake_quantize(leaf, params, options);
  return {y.detach(), torch::autograd::grad({y}, {leaf}, {dy})};
}

/// Compares the GPU with the CPU: values and the gradient of x bit for bit, sums up to the rounding to
/// float32. "" or a sentence.
template <class Grid>
std::string learned_differs_on_gpu(const Tensor& x, const Grid& grid, Rounding rounding,
                                   const Activation& activation) {
  const auto dy = gradient_for(x);
  const auto reference = x.scalar_type() == torch::kDouble
                             ? learned_reference<double>(x, dy, grid, rounding, activation)
                             : learned_reference<float>(x, dy, grid, rounding, activation);
  const auto expected = run(x, dy, grid, rounding, activation);
  const auto actual = run(x.cuda(), dy.cuda(), on_gpu(grid), rounding, activation);
  auto text = bits_mismatch(actual.y, expected.y);
  if (!text.empty()) return "values: " + text;
  if (actual.y.strides() != x.strides()) return "other strides";
  text = bits_mismatch(actual.gradients[0], expected.gradients[0]);
  if (!text.empty()) return "gradient: " + text;
  for (std::size_t k = 0; k + 1 < expected.gradients.size(); ++k) {
    const auto& sum = actual.gradients[k + 1];
    if (!sum.is_cuda() || sum.sizes() != expected.gradients[k + 1].sizes()) return "sums of another shape";
    text = sums_differ(sum.cpu(), reference.sums[k], reference.sizes[k]);
    if (!text.empty()) return "sum " + std::to_string(k) + ": " + text;
  }
  return "";
}

/// The example tensors, channels last where they can be, with their layouts.
template <class Function>
void for_examples(const Function& function) {
  torch::manual_seed(11);
  for (const auto& layout : kLayouts) {
    for (const auto type : kTypes) {
      const auto x = awkward(layout.shape, type);
      CAPTURE(layout.shape, type);
      function(layout, x);
      if (x.dim() == 4) function(layout, x.contiguous(torch::MemoryFormat::ChannelsLast));
    }
  }
}

/// While it lives, whatever waits for the GPU throws.
struct NoWaiting {
  NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
};

}  // namespace

TEST_CASE("a GPU fake-quantizes with the bits of the CPU") {
  if (!has_cuda_device()) return;
  for_examples([](const Layout& layout, const Tensor& x) {
    const auto params = affine(layout);
    const auto dy = gradient_for(x);
    REQUIRE(qat::detail::has_cuda_kernel(x.cuda()));
    for (const auto& activation : kActivations) {
      for (const auto rounding : kRoundings) {
        for (const auto through : {qat::StraightThrough::kClipped, qat::StraightThrough::kUnclipped}) {
          const qat::FakeQuantizeOptions options{rounding, through, activation};
          CAPTURE(activation.negative_slope, activation.upper, static_cast<int>(rounding),
                  static_cast<int>(through));
          const auto expected = run(x, dy, params, options);
          const auto actual = run(x.cuda(), dy.cuda(), on_gpu(params), options);
          CHECK(bits_mismatch(actual.y, expected.y) == "");
          CHECK(actual.y.strides() == x.strides());
          CHECK(bits_mismatch(actual.gradients[0], expected.gradients[0]) == "");
        }
      }
    }
  });
}

TEST_CASE("a GPU finds the codes that the CPU finds, and refuses NaN") {
  if (!has_cuda_device()) return;
  for_examples([](const Layout& layout, const Tensor& x) {
    const auto numbers = torch::where(torch::isnan(x), torch::zeros_like(x), x);
    const auto params = affine(layout);
    const auto grid = uniform(layout);
    for (const auto rounding : kRoundings) {
      const qat::FakeQuantizeOptions options{.rounding = rounding};
      CHECK(mismatch(qat::affine_codes(numbers.cuda(), on_gpu(params), options).cpu(),
                     qat::affine_codes(numbers, params, options)) == "");
      CHECK(mismatch(qat::uniform_codes(numbers.cuda(), on_gpu(grid), rounding).cpu(),
                     qat::uniform_codes(numbers, grid, rounding)) == "");
    }
    if (x.numel() < 20) return;
    CHECK(error_lacks([&] { qat::affine_codes(x.cuda(), on_gpu(params)); }, {"NaN"}) == "");
    CHECK(error_lacks([&] { qat::uniform_codes(x.cuda(), on_gpu(grid)); }, {"NaN"}) == "");
  });
}

TEST_CASE("a GPU computes uniform grids and their gradients as the CPU does") {
  if (!has_cuda_device()) return;
  for_examples([](const Layout& layout, const Tensor& x) {
    for (const auto& activation : kActivations) {
      for (const auto rounding : kRoundings) {
        CAPTURE(activation.negative_slope, activation.upper, static_cast<int>(rounding));
        CHECK(learned_differs_on_gpu(x, uniform(layout), rounding, activation) == "");
      }
    }
  });
}

TEST_CASE("a GPU computes power-of-two grids and their gradients as the CPU does") {
  if (!has_cuda_device()) return;
  for_examples([](const Layout& layout, const Tensor& x) {
    for (const auto& activation : kActivations) {
      for (const int kind : {0, 1, 2, 3}) {
        CAPTURE(activation.negative_slope, activation.upper, kind);
        const auto grid = powers(layout, kind % 2 == 0, kind / 2 == 0);
        CHECK(learned_differs_on_gpu(grid.is_signed ? x : x.abs(), grid, Rounding::kHalfToEven, activation) ==
              "");
      }
    }
  });
}

TEST_CASE("tensors of a million elements and of none, twice with the same bits") {
  if (!has_cuda_device()) return;
  const Layout layouts[] = {{{1000003}, {}},  {{64, 16384}, 0}, {{64, 16384}, 1}, {{16, 64, 32, 32}, 1},
                            {{330000, 3}, 1}, {{0}, {}},        {{0, 4, 7}, 1},   {{1}, {}}};
  torch::manual_seed(12);
  for (const auto& layout : layouts) {
    CAPTURE(layout.shape);
    const auto x = awkward(layout.shape, torch::kFloat);
    const auto gpu = x.cuda();
    if (x.numel() == 0) {
      CHECK(mismatch(qat::uniform_quantize(gpu, on_gpu(uniform(layout))).cpu(), x) == "");
      CHECK(mismatch(qat::fake_quantize(gpu, on_gpu(affine(layout))).cpu(), x) == "");
      continue;
    }
    CHECK(learned_differs_on_gpu(x, uniform(layout), Rounding::kHalfToEven, {0.0}) == "");
    CHECK(learned_differs_on_gpu(x, powers(layout, true, true), Rounding::kHalfToEven, {}) == "");
    const auto dy = torch::randn_like(gpu);
    const auto first = run(gpu, dy, on_gpu(uniform(layout)), Rounding::kHalfToEven, {});
    const auto second = run(gpu, dy, on_gpu(uniform(layout)), Rounding::kHalfToEven, {});
    for (std::size_t k = 0; k < first.gradients.size(); ++k)
      CHECK(bits_mismatch(first.gradients[k], second.gradients[k]) == "");
  }
}

TEST_CASE("a step does not wait for the GPU, and runs on the current stream") {
  if (!has_cuda_device()) return;
  const Layout layout{{8, 16, 20, 20}, 1};
  const auto x = awkward(layout.shape, torch::kFloat);
  const auto dy = gradient_for(x);
  const auto expected = run(x, dy, uniform(layout), Rounding::kHalfToEven, {0.0});
  const auto gpu = x.cuda();
  const auto gpu_dy = dy.cuda();
  const auto params = on_gpu(affine(layout));
  const auto grid = on_gpu(uniform(layout));
  const auto powers_grid = on_gpu(powers(layout, true, true));
  c10::cuda::device_synchronize();
  const auto stream = c10::cuda::getStreamFromPool();
  Result actual;
  {
    const NoWaiting no_waiting;
    const c10::cuda::CUDAStreamGuard guard(stream);
    run(gpu, gpu_dy, params, {});
    run(gpu, gpu_dy, powers_grid, Rounding::kHalfToEven, {});
    actual = run(gpu, gpu_dy, grid, Rounding::kHalfToEven, {0.0});
  }
  stream.synchronize();
  CHECK(bits_mismatch(actual.y, expected.y) == "");
  CHECK(bits_mismatch(actual.gradients[0], expected.gradients[0]) == "");
}

TEST_CASE("on a GPU a gradient of the gradient passes through fake_quantize") {
  if (!has_cuda_device()) return;
  const Layout layout{{5, 40}, 1};
  const auto second_gradient = [&](const Tensor& input, const qat::AffineParams& params) {
    const auto x = input.clone().requires_grad_();
    const auto y = qat::fake_quantize(x * x, params, {.activation = {0.0}});
    const auto first = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
    return torch::autograd::grad({first.sum()}, {x})[0];
  };
  const auto x = torch::randn(layout.shape);
  CHECK(bits_mismatch(second_gradient(x.cuda(), on_gpu(affine(layout))).cpu(),
                      second_gradient(x, affine(layout))) == "");
}

TEST_CASE("a trace on a GPU holds torch operators alone") {
  if (!has_cuda_device()) return;
  const Layout layout{{4, 6, 5}, 1};
  const auto x = awkward(layout.shape, torch::kFloat);
  const auto grid = uniform(layout);
  const auto traced =
      run_traced([gpu = on_gpu(grid)](const Tensor& v) { return qat::uniform_quantize(v, gpu); }, x.cuda());
  CHECK(bits_mismatch(traced.cpu(), qat::uniform_quantize(x, grid)) == "");
}
