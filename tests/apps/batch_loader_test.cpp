#include "support/batch_loader.h"

#include "error_text.h"

#include <limits>
#include <set>

#include "support/catch.h"
#include "support/dataset.h"

using namespace qat::apps;
using namespace qat::apps::testing;
using Catch::Matchers::Contains;

namespace {

// Image n has the label n and the pixels n, n + 1, ... (modulo 256), channel after channel.
ImageSet counting_set(int64_t count, int64_t channels = 1, int64_t height = 3, int64_t width = 4) {
  const int64_t pixels = channels * height * width;
  const auto values = torch::arange(count).view({count, 1}) + torch::arange(pixels).view({1, pixels});
  return {values.remainder(256).to(torch::kUInt8).view({count, channels, height, width}),
          torch::arange(count)};
}

const std::vector<double> kMean = {0.0}, kStd = {1.0 / 255};  // normalised = raw, up to rounding

BatchLoaderOptions loader_options(int64_t batch_size) {
  BatchLoaderOptions options;
  options.batch_size = batch_size;
  return options;
}

std::vector<int64_t> labels_of_epoch(BatchLoader& loader, int64_t epoch) {
  std::vector<int64_t> labels;
  for (loader.start_epoch(epoch); auto batch = loader.next();) {
    labels.insert(labels.end(), batch->labels.data_ptr<int64_t>(),
                  batch->labels.data_ptr<int64_t>() + batch->labels.numel());
  }
  return labels;
}

}  // namespace

TEST_CASE("Images are normalised by the channel's mean and standard deviation in float32", "[apps]") {
  const auto set = counting_set(300, 2, 3, 5);
  const std::vector<double> mean = {0.286, 0.5}, std = {0.353, 0.25};
  const auto result = normalize(set.images, mean, std);
  REQUIRE(result.sizes() == set.images.sizes());
  const auto raw = set.images.accessor<uint8_t, 4>();
  const auto got = result.accessor<float, 4>();
  int64_t different = 0;
  for (int64_t n = 0; n < 300; ++n) {
    for (int64_t c = 0; c < 2; ++c) {
      for (int64_t p = 0; p < 15; ++p) {
        const float value = static_cast<float>(raw[n][c][p / 5][p % 5]) / 255.0F;
        const float expected = (value - static_cast<float>(mean[c])) / static_cast<float>(std[c]);
        different += got[n][c][p / 5][p % 5] != expected;
      }
    }
  }
  REQUIRE(different == 0);
}

TEST_CASE("A loader's batches hold the normalised images that belong to the labels", "[apps]") {
  const auto set = counting_set(40, 3, 4, 4);
  const std::vector<double> mean = {0.1, 0.2, 0.3}, std = {0.5, 0.6, 0.7};
  BatchLoader loader(set, mean, std, loader_options(8));
  const auto all = normalize(set.images, mean, std);
  int64_t batches = 0;
  while (auto batch = loader.next()) {
    REQUIRE(batch->images.sizes() == torch::IntArrayRef({8, 3, 4, 4}));
    REQUIRE(batch->images.scalar_type() == torch::kFloat32);
    REQUIRE(torch::equal(batch->images, all.index_select(0, batch->labels)));
    ++batches;
  }
  REQUIRE(batches == 5);
}

TEST_CASE("The order of an epoch depends on the seed and the epoch alone", "[apps]") {
  const auto set = counting_set(50);
  auto options = loader_options(10);
  options.seed = 5;
  BatchLoader loader(set, kMean, kStd, options), other(set, kMean, kStd, options);
  const auto first = labels_of_epoch(loader, 0), second = labels_of_epoch(loader, 1);
  REQUIRE(first != second);
  REQUIRE(std::set<int64_t>(first.begin(), first.end()).size() == 50);
  REQUIRE(labels_of_epoch(other, 1) == second);
  REQUIRE(labels_of_epoch(loader, 0) == first);
  options.seed = 6;
  BatchLoader differently_seeded(set, kMean, kStd, options);
  REQUIRE(labels_of_epoch(differently_seeded, 0) != first);
}

TEST_CASE("The order of an epoch is the same on every machine", "[apps]") {
  BatchLoader loader(counting_set(8), kMean, kStd, loader_options(8));
  REQUIRE(labels_of_epoch(loader, 0) == std::vector<int64_t>{2, 3, 0, 7, 1, 6, 4, 5});
}

TEST_CASE("Without shuffling the samples come as they are stored", "[apps]") {
  auto options = loader_options(4);
  options.shuffle = false;
  BatchLoader loader(counting_set(8), kMean, kStd, options);
  REQUIRE(labels_of_epoch(loader, 3) == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("case 51: of 5 samples in batches of 4 the training loader drops the short last batch", "[apps]") {
  Dataset dataset;
  dataset.train = counting_set(5);
  dataset.mean = kMean;
  dataset.std = kStd;
  auto loader = training_loader(dataset, loader_options(4));
  REQUIRE(loader.batches_per_epoch() == 1);
  REQUIRE(loader.samples_per_epoch() == 4);
  std::set<int64_t> seen;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    const auto labels = labels_of_epoch(loader, epoch);
    REQUIRE(labels.size() == 4);
    seen.insert(labels.begin(), labels.end());
  }
  REQUIRE(seen.size() == 5);
}

TEST_CASE("The test loader keeps a short last batch and the stored order", "[apps]") {
  Dataset dataset;
  dataset.test = counting_set(5);
  dataset.mean = kMean;
  dataset.std = kStd;
  auto loader = test_loader(dataset, 4);
  REQUIRE(loader.batches_per_epoch() == 2);
  REQUIRE(loader.samples_per_epoch() == 5);
  REQUIRE(labels_of_epoch(loader, 0) == std::vector<int64_t>{0, 1, 2, 3, 4});
  REQUIRE(loader.next() == std::nullopt);
}

TEST_CASE("A loader that resumes in mid-epoch gives the same batches", "[apps]") {
  auto options = loader_options(6);
  options.max_shift = 2;
  options.flip = true;
  const auto set = counting_set(60, 1, 8, 8);
  BatchLoader loader(set, kMean, kStd, options);
  loader.start_epoch(4);
  for (int skipped = 0; skipped < 3; ++skipped)
    loader.next();
  REQUIRE(loader.epoch() == 4);
  REQUIRE(loader.position() == 3);
  BatchLoader resumed(set, kMean, kStd, options);
  resumed.start_epoch(loader.epoch(), loader.position());
  while (auto expected = loader.next()) {
    const auto batch = resumed.next();
    REQUIRE(torch::equal(batch->images, expected->images));
    REQUIRE(torch::equal(batch->labels, expected->labels));
  }
  REQUIRE_FALSE(resumed.next().has_value());
}

TEST_CASE("A varied image is the stored one shifted and mirrored", "[apps]") {
  const auto set = counting_set(200, 2, 7, 5);
  auto options = loader_options(200);
  options.max_shift = 2;
  options.flip = true;
  const std::vector<double> mean = {0.3, 0.4}, std = {0.5, 0.6};
  BatchLoader loader(set, mean, std, options);
  const auto batch = *loader.next();
  std::set<std::tuple<int64_t, int64_t, bool>> seen;
  int64_t unexplained = 0;
  for (int64_t i = 0; i < 200; ++i) {
    const auto image = set.images[batch.labels[i].item<int64_t>()];
    bool found = false;
    for (int64_t down = -2; down <= 2 && !found; ++down) {
      for (int64_t right = -2; right <= 2 && !found; ++right) {
        for (const bool mirror : {false, true}) {
          const auto padded = torch::constant_pad_nd(image, {2, 2, 2, 2}, 0);
          auto moved = padded.narrow(1, 2 + down, 7).narrow(2, 2 + right, 5);
          if (mirror) moved = moved.flip(2);
          if (!torch::equal(normalize(moved.unsqueeze(0), mean, std)[0], batch.images[i])) continue;
          seen.insert({down, right, mirror});
          found = true;
          break;
        }
      }
    }
    unexplained += !found;
  }
  REQUIRE(unexplained == 0);
  REQUIRE(seen.size() > 40);  // of the 50 ways
}

TEST_CASE("Variation does not depend on the batch size or the number of threads and changes by epoch",
          "[apps]") {
  const auto set = counting_set(48, 3, 16, 16);
  const std::vector<double> mean(3, 0.5), std(3, 0.25);
  auto options = loader_options(48);
  options.max_shift = 2;
  options.flip = true;
  const auto by_label = [&](int64_t batch_size, int64_t epoch) {
    options.batch_size = batch_size;
    BatchLoader loader(set, mean, std, options);
    auto result = torch::empty({48, 3, 16, 16});
    for (loader.start_epoch(epoch); auto batch = loader.next();)
      result.index_copy_(0, batch->labels, batch->images);
    return result;
  };
  const auto whole = by_label(48, 0);
  const int threads = torch::get_num_threads();
  torch::set_num_threads(4);
  REQUIRE(torch::equal(by_label(48, 0), whole));
  torch::set_num_threads(threads);
  REQUIRE(torch::equal(by_label(6, 0), whole));
  REQUIRE_FALSE(torch::equal(by_label(48, 1), whole));
}

TEST_CASE("A loader refuses what it cannot batch", "[apps]") {
  const auto set = counting_set(5);
  const auto text = [&](const ImageSet& images, const BatchLoaderOptions& options,
                        const std::vector<double>& std) {
    return error_text([&] { BatchLoader loader(images, kMean, std, options); });
  };
  REQUIRE_THAT(text(set, loader_options(6), kStd), Contains("at least 6 samples") && Contains("got 5"));
  REQUIRE_THAT(text(set, loader_options(0), kStd), Contains("batch size") && Contains("got 0"));
  auto options = loader_options(4);
  options.max_shift = -1;
  REQUIRE_THAT(text(set, options, kStd), Contains("shift") && Contains("-1"));
  REQUIRE_THAT(text(set, loader_options(4), {0.0}), Contains("std above 0"));
  REQUIRE_THAT(text(set, loader_options(4), {std::numeric_limits<double>::quiet_NaN()}),
               Contains("std above 0"));
  REQUIRE_THAT(text(set, loader_options(4), {1.0, 1.0}), Contains("each of 1 channels"));
  REQUIRE_THAT(text({set.images.to(torch::kFloat32), set.labels}, loader_options(4), kStd),
               Contains("uint8"));
  REQUIRE_THAT(text({set.images, set.labels.narrow(0, 0, 4)}, loader_options(4), kStd),
               Contains("labels [5]"));
  REQUIRE_THAT(text({}, loader_options(4), kStd), Contains("got nothing"));
  BatchLoader loader(set, kMean, kStd, loader_options(2));
  REQUIRE_THAT(error_text([&] { loader.start_epoch(0, 3); }), Contains("from 0 to 2") && Contains("0 and 3"));
  REQUIRE_THAT(error_text([&] { loader.start_epoch(-1); }), Contains("-1"));
}
