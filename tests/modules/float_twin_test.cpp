// In FLOAT every layer computes the bits of its torch twin, forward and backward.
#include <qat/nn/nn.h>

#include <vector>

#include "support/catch.h"
#include "support/errors.h"

namespace {

namespace nn = qat::nn;
using qat::testing::error_lacks;
namespace tnn = torch::nn;

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || (a.scalar_type() == b.scalar_type() &&
                                                         a.strides() == b.strides() && torch::equal(a, b)));
}

/// Runs both on the same input with the same parameters and compares output, gradients and buffers.
template <class Ours, class Twin>
void compare(Ours& ours, Twin& twin, const torch::Tensor& input) {
  INFO(c10::str(*twin, " on ", input.toString(), input.sizes()));
  ours->to(input.scalar_type());
  twin->to(input.scalar_type());
  {
    const torch::NoGradGuard no_grad;
    const auto theirs = twin->named_parameters();
    REQUIRE(ours->named_parameters().size() == theirs.size());
    for (const auto& parameter : ours->named_parameters())
      parameter.value().copy_(theirs[parameter.key()]);
  }
  const auto x = input.detach().clone().requires_grad_();
  const auto x_twin = input.detach().clone().requires_grad_();
  torch::manual_seed(5);
  const auto y = ours->forward(x);
  torch::manual_seed(5);
  const auto y_twin = twin->forward(x_twin);
  CHECK(same_bits(y, y_twin));
  const auto gradient = torch::randn(y.sizes()).to(y.scalar_type());
  y.backward(gradient);
  y_twin.backward(gradient);
  CHECK(same_bits(x.grad(), x_twin.grad()));
  for (const auto& parameter : ours->named_parameters()) {
    CHECK(same_bits(parameter.value().grad(), twin->named_parameters()[parameter.key()].grad()));
  }
  for (const auto& buffer : ours->named_buffers())
    CHECK(same_bits(buffer.value(), twin->named_buffers()[buffer.key()]));
  ours->zero_grad();
  twin->zero_grad();
}

/// Whether LibTorch has the layer for bfloat16 on the CPU.
enum class NarrowType { kYes, kNo };

template <class Ours, class Twin>
void compare_layouts(Ours ours, Twin twin, const torch::Tensor& x, NarrowType narrow = NarrowType::kYes) {
  const int threads = torch::get_num_threads();
  torch::set_num_threads(1);
  compare(ours, twin, x);
  compare(ours, twin, x.transpose(-1, -2).contiguous().transpose(-1, -2));
  if (x.dim() == 4) compare(ours, twin, x.contiguous(torch::MemoryFormat::ChannelsLast));
  compare(ours, twin, x.to(torch::kDouble));
  if (narrow == NarrowType::kYes) compare(ours, twin, x.to(torch::kBFloat16));
  torch::set_num_threads(threads);
}

template <class Twin, class Ours, class Options>
void compare_all(const Options& options, const torch::Tensor& x, NarrowType narrow = NarrowType::kYes) {
  compare_layouts(Ours(options), Twin(options), x, narrow);
}

torch::Tensor image(int dimensions, std::int64_t extent = 7) {
  torch::manual_seed(dimensions);
  std::vector<std::int64_t> shape(dimensions + 2, extent);
  shape[0] = 2;
  shape[1] = 4;
  return torch::randn(shape);
}

}  // namespace

TEST_CASE("Convolutions equal their torch twins bit for bit", "[modules]") {
  compare_all<tnn::Conv1d, nn::Conv1d>(tnn::Conv1dOptions(4, 6, 3).stride(2).padding(1), image(1));
  compare_all<tnn::Conv2d, nn::Conv2d>(tnn::Conv2dOptions(4, 6, 3).groups(2).dilation(2), image(2));
  compare_all<tnn::Conv3d, nn::Conv3d>(tnn::Conv3dOptions(4, 6, 2).bias(false), image(3, 4));
}

TEST_CASE("Every padding of a convolution is that of torch", "[modules]") {
  compare_all<tnn::Conv1d, nn::Conv1d>(tnn::Conv1dOptions(4, 2, 3).padding(torch::kSame), image(1));
  compare_all<tnn::Conv2d, nn::Conv2d>(tnn::Conv2dOptions(4, 2, {4, 3}).padding(torch::kSame), image(2));
  compare_all<tnn::Conv2d, nn::Conv2d>(tnn::Conv2dOptions(4, 2, 3).padding(torch::kValid), image(2));
  const auto options = tnn::Conv2dOptions(4, 2, 3).padding({1, 2});
  compare_all<tnn::Conv2d, nn::Conv2d>(tnn::Conv2dOptions(options).padding_mode(torch::kCircular), image(2));
  compare_all<tnn::Conv2d, nn::Conv2d>(tnn::Conv2dOptions(options).padding_mode(torch::kReflect), image(2));
  compare_all<tnn::Conv2d, nn::Conv2d>(tnn::Conv2dOptions(options).padding_mode(torch::kReplicate), image(2));
  compare_all<tnn::Conv2d, nn::Conv2d>(
      tnn::Conv2dOptions(4, 2, 4).padding(torch::kSame).padding_mode(torch::kCircular), image(2));
}

TEST_CASE("Transposed convolutions equal their torch twins bit for bit", "[modules]") {
  compare_all<tnn::ConvTranspose1d, nn::ConvTranspose1d>(
      tnn::ConvTranspose1dOptions(4, 6, 3).stride(2).output_padding(1), image(1));
  compare_all<tnn::ConvTranspose2d, nn::ConvTranspose2d>(
      tnn::ConvTranspose2dOptions(4, 6, 3).groups(2).padding(1), image(2));
  compare_all<tnn::ConvTranspose3d, nn::ConvTranspose3d>(tnn::ConvTranspose3dOptions(4, 6, 2).bias(false),
                                                         image(3, 4));
}

TEST_CASE("A transposed convolution takes the wanted output size", "[modules]") {
  const auto options = tnn::ConvTranspose2dOptions(4, 2, 3).stride(3);
  nn::ConvTranspose2d ours(options);
  tnn::ConvTranspose2d twin(options);
  const auto x = image(2, 4);
  for (const std::vector<std::int64_t>& size : {std::vector<std::int64_t>{13, 14}, {2, 2, 12, 12}}) {
    CHECK(ours->forward(x, at::IntArrayRef(size)).sizes() == twin->forward(x, at::IntArrayRef(size)).sizes());
  }
  const std::vector<std::int64_t> too_large{20, 14};
  CHECK(error_lacks([&] { ours->forward(x, at::IntArrayRef(too_large)); },
                    {"output_size[0] in [12, 14], got 20"}) == "");
  // Without batch.
  const std::vector<std::int64_t> single{14, 14};
  CHECK(ours->forward(x[0], at::IntArrayRef(single)).sizes() == torch::IntArrayRef({2, 14, 14}));
}

TEST_CASE("Linear and embedding layers equal their torch twins bit for bit", "[modules]") {
  compare_all<tnn::Linear, nn::Linear>(tnn::LinearOptions(7, 3), torch::randn({5, 7}));
  compare_all<tnn::Linear, nn::Linear>(tnn::LinearOptions(7, 3), image(2));
  compare_all<tnn::Linear, nn::Linear>(tnn::LinearOptions(7, 3).bias(false), image(1));
  const auto options = tnn::EmbeddingOptions(10, 3).padding_idx(-1);
  nn::Embedding ours(options);
  tnn::Embedding twin(options);
  torch::NoGradGuard no_grad;
  ours->weight.copy_(twin->weight);
  CHECK(torch::equal(ours->weight[9], torch::zeros({3})));
  const auto indices = torch::tensor({{0, 9}, {3, 3}});
  CHECK(same_bits(ours->forward(indices), twin->forward(indices)));
  const auto table = torch::randn({4, 2});
  CHECK(
      torch::equal(nn::Embedding::from_pretrained(table)->forward(torch::tensor({2})), table.slice(0, 2, 3)));
}

TEST_CASE("The same seed initialises a layer and its torch twin alike", "[modules]") {
  const auto equal = [](auto make_ours, auto make_twin) {
    torch::manual_seed(3);
    const auto ours = make_ours();
    torch::manual_seed(3);
    const auto twin = make_twin();
    for (const auto& each : twin->named_parameters())
      CHECK(torch::equal(ours->named_parameters()[each.key()], each.value()));
  };
  equal([] { return nn::Conv2d(3, 5, 3); }, [] { return tnn::Conv2d(3, 5, 3); });
  equal([] { return nn::ConvTranspose2d(3, 5, 3); }, [] { return tnn::ConvTranspose2d(3, 5, 3); });
  equal([] { return nn::Linear(3, 5); }, [] { return tnn::Linear(3, 5); });
  equal([] { return nn::Embedding(3, 5); }, [] { return tnn::Embedding(3, 5); });
}

TEST_CASE("Batch normalization equals its torch twin bit for bit", "[modules]") {
  compare_all<tnn::BatchNorm1d, nn::BatchNorm1d>(tnn::BatchNormOptions(4).momentum(std::nullopt), image(1));
  compare_all<tnn::BatchNorm2d, nn::BatchNorm2d>(tnn::BatchNormOptions(4).eps(1e-3).momentum(0.3), image(2));
  compare_all<tnn::BatchNorm2d, nn::BatchNorm2d>(tnn::BatchNormOptions(4).affine(false), image(2));
  compare_all<tnn::BatchNorm3d, nn::BatchNorm3d>(tnn::BatchNormOptions(4).track_running_stats(false),
                                                 image(3, 3));
  nn::BatchNorm2d ours(4);
  tnn::BatchNorm2d twin(4);
  ours->eval();
  twin->eval();
  compare(ours, twin, image(2));
}

TEST_CASE("Activations equal their torch twins bit for bit", "[modules]") {
  auto x = image(2);
  x.flatten()[3] = 0;
  compare_layouts(nn::ReLU(), tnn::ReLU(), x);
  compare_layouts(nn::ReLU6(), tnn::ReLU6(), 5 * x);
  compare_all<tnn::LeakyReLU, nn::LeakyReLU>(tnn::LeakyReLUOptions().negative_slope(0.1), x);
  compare_layouts(nn::Sigmoid(), tnn::Sigmoid(), x);
  compare_layouts(nn::Tanh(), tnn::Tanh(), x);
  compare_layouts(nn::GELU(), tnn::GELU(), x);
  compare_all<tnn::GELU, nn::GELU>(tnn::GELUOptions().approximate("tanh"), x);
  compare_layouts(nn::SiLU(), tnn::SiLU(), x);
  compare_layouts(nn::Hardswish(),
                  tnn::Functional([](const torch::Tensor& v) { return torch::hardswish(v); }), 3 * x);
  const auto in_place = torch::tensor({-1.0F, 2.0F});
  CHECK(nn::ReLU(true)->forward(in_place).data_ptr() == in_place.data_ptr());
}

TEST_CASE("Pools equal their torch twins bit for bit", "[modules]") {
  compare_all<tnn::MaxPool1d, nn::MaxPool1d>(tnn::MaxPool1dOptions(3).stride(2).padding(1), image(1));
  compare_all<tnn::MaxPool2d, nn::MaxPool2d>(tnn::MaxPool2dOptions(2).dilation(2).ceil_mode(true).stride(1),
                                             image(2));
  compare_all<tnn::MaxPool3d, nn::MaxPool3d>(tnn::MaxPool3dOptions(2), image(3, 4));
  compare_all<tnn::AvgPool1d, nn::AvgPool1d>(tnn::AvgPool1dOptions(3).stride(2), image(1));
  compare_all<tnn::AvgPool2d, nn::AvgPool2d>(
      tnn::AvgPool2dOptions({3, 2}).padding(1).count_include_pad(false), image(2));
  compare_all<tnn::AvgPool3d, nn::AvgPool3d>(tnn::AvgPool3dOptions(2).divisor_override(5), image(3, 4),
                                             NarrowType::kNo);
  compare_layouts(nn::AdaptiveAvgPool1d(3), tnn::AdaptiveAvgPool1d(3), image(1));
  compare_all<tnn::AdaptiveAvgPool2d, nn::AdaptiveAvgPool2d>(tnn::AdaptiveAvgPool2dOptions({2, std::nullopt}),
                                                             image(2));
  compare_layouts(nn::AdaptiveAvgPool3d(2), tnn::AdaptiveAvgPool3d(2), image(3, 4));
  compare_layouts(nn::AdaptiveMaxPool1d(3), tnn::AdaptiveMaxPool1d(3), image(1));
  compare_layouts(nn::AdaptiveMaxPool2d(2), tnn::AdaptiveMaxPool2d(2), image(2));
  compare_layouts(nn::AdaptiveMaxPool3d(2), tnn::AdaptiveMaxPool3d(2), image(3, 4));
  const auto [values, indices] = nn::MaxPool2d(2)->forward_with_indices(image(2));
  const auto [twin_values, twin_indices] = tnn::MaxPool2d(2)->forward_with_indices(image(2));
  CHECK((torch::equal(values, twin_values) && torch::equal(indices, twin_indices)));
}

TEST_CASE("Layers that keep values equal their torch twins bit for bit", "[modules]") {
  compare_layouts(nn::Flatten(), tnn::Flatten(), image(2));
  compare_all<tnn::Flatten, nn::Flatten>(tnn::FlattenOptions().start_dim(-2), image(2));
  compare_layouts(nn::Identity(), tnn::Identity(), image(2));
  compare_layouts(nn::Dropout(0.3), tnn::Dropout(0.3), image(2));
}

TEST_CASE("Arithmetic layers compute what the operators compute", "[modules]") {
  const auto a = image(2), b = image(2).flip(0);
  CHECK(torch::equal(nn::Add()->forward(a, b), a + b));
  CHECK(torch::equal(nn::Sub()->forward(a, b[0]), a - b[0]));
  CHECK(torch::equal(nn::Mul()->forward(a, b), a * b));
  CHECK(torch::equal(nn::MatMul()->forward(a, b), torch::matmul(a, b)));
  CHECK(torch::equal(nn::Cat(1)->forward({a, b, a}), torch::cat({a, b, a}, 1)));
  CHECK(torch::equal(nn::Cat(-1)->forward({a, b}), torch::cat({a, b}, -1)));
  CHECK(error_lacks([&] { nn::Cat(1)->forward({}); }, {"qat::nn::Cat: expected at least one tensor"}) == "");
}
