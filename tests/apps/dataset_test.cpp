#include "support/dataset.h"

#include "data_files.h"
#include "error_text.h"

#include <cmath>

#include "support/catch.h"

using namespace qat::apps;
using namespace qat::apps::testing;
using Catch::Matchers::Contains;

namespace {

void write_fashion_mnist(const TemporaryFolder& folder, uint32_t train_count, uint32_t test_count) {
  folder.write("train-images-idx3-ubyte.gz", gzipped(idx_images(train_count, 6, 5)));
  folder.write("train-labels-idx1-ubyte.gz", gzipped(idx_labels(train_count)));
  folder.write("t10k-images-idx3-ubyte", idx_images(test_count, 6, 5));
  folder.write("t10k-labels-idx1-ubyte", idx_labels(test_count));
}

DatasetOptions dataset_options(const std::string& name, const std::filesystem::path& path = {}) {
  DatasetOptions options;
  options.name = name;
  options.path = path;
  return options;
}

}  // namespace

TEST_CASE("The Fashion-MNIST of the Debian package is read whole", "[apps]") {
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist")) {
    WARN("skipped: the Debian package dataset-fashion-mnist is not installed");
    return;
  }
  const auto dataset = load_dataset(dataset_options("fashion-mnist"));
  REQUIRE(dataset.name == "fashion-mnist");
  REQUIRE(dataset.classes == 10);
  REQUIRE(dataset.train.images.sizes() == torch::IntArrayRef({60000, 1, 28, 28}));
  REQUIRE(dataset.test.images.sizes() == torch::IntArrayRef({10000, 1, 28, 28}));
  REQUIRE(torch::equal(dataset.train.labels.narrow(0, 0, 5), torch::tensor({9, 0, 0, 3, 0}, torch::kInt64)));
  REQUIRE(torch::equal(torch::bincount(dataset.train.labels), torch::full({10}, 6000, torch::kInt64)));
  REQUIRE(torch::equal(torch::bincount(dataset.test.labels), torch::full({10}, 1000, torch::kInt64)));
  REQUIRE(dataset.sample_shape() == std::vector<int64_t>{1, 28, 28});
  REQUIRE(dataset.mean.size() == 1);
  // The constants that are usual for this set.
  REQUIRE(dataset.mean[0] == Approx(0.2860).margin(5e-5));
  REQUIRE(dataset.std[0] == Approx(0.3530).margin(5e-5));
}

TEST_CASE("A folder of IDX files may mix plain and compressed ones", "[apps]") {
  TemporaryFolder folder;
  write_fashion_mnist(folder, 20, 8);
  const auto dataset = load_dataset(dataset_options("fashion-mnist", folder.path()));
  REQUIRE(dataset.train.size() == 20);
  REQUIRE(dataset.test.size() == 8);
  REQUIRE(dataset.sample_shape() == std::vector<int64_t>{1, 6, 5});
}

TEST_CASE("A limit takes the first training samples and leaves the constants and the test set alone",
          "[apps]") {
  TemporaryFolder folder;
  write_fashion_mnist(folder, 20, 8);
  auto options = dataset_options("fashion-mnist", folder.path());
  const auto all = load_dataset(options);
  options.limit = 7;
  const auto limited = load_dataset(options);
  REQUIRE(torch::equal(limited.train.images, all.train.images.narrow(0, 0, 7)));
  REQUIRE(torch::equal(limited.train.labels, all.train.labels.narrow(0, 0, 7)));
  REQUIRE(torch::equal(limited.test.images, all.test.images));
  REQUIRE(limited.mean == all.mean);
  REQUIRE(limited.std == all.std);
  options.limit = 1000;
  REQUIRE(load_dataset(options).train.size() == 20);
  options.limit = -1;
  REQUIRE_THAT(error_text([&] { load_dataset(options); }), Contains("limit") && Contains("-1"));
}

TEST_CASE("CIFAR-10 is read from its folder or the one around it", "[apps]") {
  TemporaryFolder folder;
  const auto inner = folder.path() / "cifar-10-batches-bin";
  std::filesystem::create_directory(inner);
  for (int batch = 1; batch <= 5; ++batch) {
    folder.write("cifar-10-batches-bin/data_batch_" + std::to_string(batch) + ".bin", cifar10_records(batch));
  }
  folder.write("cifar-10-batches-bin/test_batch.bin", cifar10_records(4));
  for (const auto& path : {folder.path(), inner}) {
    const auto dataset = load_dataset(dataset_options("cifar10", path));
    REQUIRE(dataset.train.images.sizes() == torch::IntArrayRef({15, 3, 32, 32}));
    REQUIRE(dataset.test.size() == 4);
    REQUIRE(dataset.mean.size() == 3);
    REQUIRE(dataset.std.size() == 3);
    // Batch b adds the labels 0 to b - 1.
    REQUIRE(
        torch::equal(dataset.train.labels.narrow(0, 0, 6), torch::tensor({0, 0, 1, 0, 1, 2}, torch::kInt64)));
  }
}

TEST_CASE("The normalisation constants are the mean and standard deviation of each channel", "[apps]") {
  TemporaryFolder folder;
  for (int batch = 1; batch <= 5; ++batch) {
    folder.write("data_batch_" + std::to_string(batch) + ".bin", cifar10_records(2));
  }
  folder.write("test_batch.bin", cifar10_records(1));
  const auto dataset = load_dataset(dataset_options("cifar10", folder.path()));
  for (int c = 0; c < 3; ++c) {
    // Half of the pixels have the value c, the other half c + 3.
    REQUIRE(dataset.mean[c] == Approx((c + 1.5) / 255));
    REQUIRE(dataset.std[c] == Approx(1.5 / 255));
  }
}

TEST_CASE("A constant channel gets the standard deviation 1", "[apps]") {
  TemporaryFolder folder;
  for (int batch = 1; batch <= 5; ++batch) {
    folder.write("data_batch_" + std::to_string(batch) + ".bin", cifar10_records(1));
  }
  folder.write("test_batch.bin", cifar10_records(1));
  REQUIRE(load_dataset(dataset_options("cifar10", folder.path())).std == std::vector<double>{1, 1, 1});
}

TEST_CASE("The synthetic set needs no file and follows its seed", "[apps]") {
  auto options = dataset_options("synthetic", "/nonexistent");
  options.seed = 3;
  const auto dataset = load_dataset(options);
  REQUIRE(dataset.train.images.sizes() == torch::IntArrayRef({4096, 1, 28, 28}));
  REQUIRE(dataset.test.images.sizes() == torch::IntArrayRef({1024, 1, 28, 28}));
  options.synthetic.train_count = options.synthetic.test_count = 20;
  REQUIRE(torch::equal(load_dataset(options).train.images, dataset.train.images.narrow(0, 0, 20)));
  options.seed = 4;
  REQUIRE_FALSE(torch::equal(load_dataset(options).train.images, dataset.train.images.narrow(0, 0, 20)));
}

TEST_CASE("An unknown data set is refused with the known ones", "[apps]") {
  REQUIRE_THAT(
      error_text([] { load_dataset(dataset_options("imagenet")); }),
      Contains("imagenet") && Contains("fashion-mnist") && Contains("cifar10") && Contains("synthetic"));
}

TEST_CASE("case 124 a missing folder is told with the package to install and the other ways", "[apps]") {
  TemporaryFolder folder;
  const auto missing = folder.path() / "nothing-here";
  REQUIRE_THAT(error_text([&] { load_dataset(dataset_options("fashion-mnist", missing)); }),
               Contains(missing.string()) && Contains("does not exist") &&
                   Contains("dataset-fashion-mnist") && Contains("--data-path") &&
                   Contains("--data synthetic"));
  REQUIRE_THAT(error_text([&] { load_dataset(dataset_options("cifar10", missing)); }),
               Contains(missing.string()) && Contains("--data-path") && Contains("--data synthetic"));
  REQUIRE_THAT(error_text([] { load_dataset(dataset_options("cifar10")); }), Contains("--data-path"));
}

TEST_CASE("case 124 a file in place of the folder is told", "[apps]") {
  TemporaryFolder folder;
  const auto file = folder.write("cifar-10-binary.tar.gz", {1, 2, 3});
  for (const char* name : {"fashion-mnist", "cifar10"}) {
    REQUIRE_THAT(error_text([&] { load_dataset(dataset_options(name, file)); }),
                 Contains(file.string()) && Contains("to be a folder"));
  }
}

TEST_CASE("case 124 a missing file in the folder is told by name", "[apps]") {
  TemporaryFolder folder;
  write_fashion_mnist(folder, 4, 4);
  std::filesystem::remove(folder.path() / "t10k-labels-idx1-ubyte");
  REQUIRE_THAT(
      error_text([&] { load_dataset(dataset_options("fashion-mnist", folder.path())); }),
      Contains((folder.path() / "t10k-labels-idx1-ubyte").string()) && Contains("dataset-fashion-mnist"));
  REQUIRE_THAT(error_text([&] { load_dataset(dataset_options("cifar10", folder.path())); }),
               Contains((folder.path() / "data_batch_1.bin").string()));
}

TEST_CASE("case 124 different numbers of images and labels are refused", "[apps]") {
  TemporaryFolder folder;
  write_fashion_mnist(folder, 4, 4);
  folder.write("train-labels-idx1-ubyte", idx_labels(5));
  REQUIRE_THAT(error_text([&] { load_dataset(dataset_options("fashion-mnist", folder.path())); }),
               Contains("4 images") && Contains("5 labels") &&
                   Contains((folder.path() / "train-labels-idx1-ubyte").string()));
}

TEST_CASE("case 124 test images of another size than the training images are refused", "[apps]") {
  TemporaryFolder folder;
  write_fashion_mnist(folder, 4, 4);
  folder.write("t10k-images-idx3-ubyte", idx_images(4, 5, 6));
  REQUIRE_THAT(error_text([&] { load_dataset(dataset_options("fashion-mnist", folder.path())); }),
               Contains("[1, 6, 5]") && Contains("[1, 5, 6]"));
}
