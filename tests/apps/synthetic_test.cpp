#include "support/synthetic.h"

#include "error_text.h"

#include <algorithm>
#include <array>

#include "support/batch_loader.h"
#include "support/catch.h"
#include "support/dataset.h"

using namespace qat::apps;
using namespace qat::apps::testing;
using Catch::Matchers::Contains;

namespace {

// FNV-1a, 64 bit.
uint64_t digest(const torch::Tensor& bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int64_t i = 0; i < bytes.numel(); ++i)
    hash = (hash ^ bytes.data_ptr<uint8_t>()[i]) * 0x100000001b3;
  return hash;
}

// The share of test images whose class the value of one pixel tells, at the best of all pixels.
double best_single_pixel(const ImageSet& train, const ImageSet& test) {
  constexpr int64_t kBin = 16;
  const int64_t pixels = train.images[0].numel();
  int64_t best = 0;
  for (int64_t p = 0; p < pixels; ++p) {
    const auto bin = [&](const ImageSet& set, int64_t n) {
      return set.images.data_ptr<uint8_t>()[n * pixels + p] / kBin;
    };
    std::array<std::array<int64_t, 10>, 256 / kBin> counts{};
    for (int64_t n = 0; n < train.size(); ++n)
      ++counts[bin(train, n)][train.labels.data_ptr<int64_t>()[n]];
    int64_t correct = 0;
    for (int64_t n = 0; n < test.size(); ++n) {
      const auto& row = counts[bin(test, n)];
      correct += std::max_element(row.begin(), row.end()) - row.begin() == test.labels.data_ptr<int64_t>()[n];
    }
    best = std::max(best, correct);
  }
  return static_cast<double>(best) / static_cast<double>(test.size());
}

struct SmallNet : torch::nn::Module {
  SmallNet() {
    layers = torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 5).stride(2).padding(2)),
                                   torch::nn::BatchNorm2d(8), torch::nn::ReLU(),
                                   torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).stride(2).padding(1)),
                                   torch::nn::BatchNorm2d(16), torch::nn::ReLU(), torch::nn::Flatten(),
                                   torch::nn::Linear(16 * 7 * 7, 10));
    register_module("layers", layers);
  }
  torch::nn::Sequential layers;
};

}  // namespace

TEST_CASE("Synthetic images do not depend on the number of threads or on the count", "[apps]") {
  SyntheticOptions options;
  options.train_count = 500;
  const int threads = torch::get_num_threads();
  torch::set_num_threads(1);
  const auto one = make_synthetic(options, 7, Split::kTrain);
  torch::set_num_threads(4);
  const auto four = make_synthetic(options, 7, Split::kTrain);
  torch::set_num_threads(threads);
  REQUIRE(torch::equal(one.images, four.images));
  options.train_count = 30;
  REQUIRE(torch::equal(make_synthetic(options, 7, Split::kTrain).images, one.images.narrow(0, 0, 30)));
}

TEST_CASE("Synthetic images are the same on every machine", "[apps]") {
  SyntheticOptions options;
  options.test_count = 64;
  REQUIRE(digest(make_synthetic(options, 0, Split::kTest).images) == 0xb6f14cd025e1c7d2);
}

TEST_CASE("Synthetic images differ by seed and by split", "[apps]") {
  SyntheticOptions options;
  options.train_count = options.test_count = 20;
  const auto train = make_synthetic(options, 0, Split::kTrain);
  REQUIRE_FALSE(torch::equal(train.images, make_synthetic(options, 1, Split::kTrain).images));
  REQUIRE_FALSE(torch::equal(train.images, make_synthetic(options, 0, Split::kTest).images));
  REQUIRE(torch::equal(train.labels, torch::arange(20).remainder(10)));
}

TEST_CASE("Synthetic images may have colours and another size", "[apps]") {
  SyntheticOptions options;
  options.train_count = 10;
  options.channels = 3;
  options.height = 32;
  options.width = 48;
  const auto set = make_synthetic(options, 0, Split::kTrain);
  REQUIRE(set.images.sizes() == torch::IntArrayRef({10, 3, 32, 48}));
  REQUIRE_FALSE(torch::equal(set.images.select(1, 0), set.images.select(1, 1)));
}

TEST_CASE("Synthetic options out of range are refused", "[apps]") {
  SyntheticOptions options;
  options.height = 4;
  REQUIRE_THAT(error_text([&] { make_synthetic(options, 0, Split::kTrain); }),
               Contains("12 x 12 pixels") && Contains("1 x 4 x 28"));
  options = {};
  options.test_count = 0;
  REQUIRE_THROWS_AS(make_synthetic(options, 0, Split::kTest), c10::Error);
}

TEST_CASE("No single pixel tells the class of a synthetic image", "[apps]") {
  const auto train = make_synthetic({}, 0, Split::kTrain), test = make_synthetic({}, 0, Split::kTest);
  REQUIRE(best_single_pixel(train, test) < 0.35);
}

TEST_CASE("A small convolutional network learns the synthetic images in two epochs", "[apps]") {
  torch::manual_seed(0);
  DatasetOptions options;
  options.name = "synthetic";
  const auto dataset = load_dataset(options);
  SmallNet net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto loader = training_loader(dataset, {});
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    for (loader.start_epoch(epoch); auto batch = loader.next();) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(net.layers->forward(batch->images), batch->labels).backward();
      optimizer.step();
    }
  }
  net.eval();
  torch::NoGradGuard no_grad;
  int64_t correct = 0;
  auto tester = test_loader(dataset, 200);
  while (auto batch = tester.next())
    correct += net.layers->forward(batch->images).argmax(1).eq(batch->labels).sum().item<int64_t>();
  const double accuracy = static_cast<double>(correct) / static_cast<double>(dataset.test.size());
  INFO("accuracy " << accuracy);
  REQUIRE(accuracy > 0.9);
}
