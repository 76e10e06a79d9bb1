#include "support/dataset.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <system_error>

#include "support/cifar10_file.h"
#include "support/idx_file.h"

namespace qat::apps {
namespace {

constexpr const char* kLoadDataset = "qat::apps::load_dataset";
constexpr int64_t kDatasetClasses = 10;  // all three sets have ten
constexpr const char* kFashionMnistFolder = "/usr/share/datasets/fashion-mnist";
constexpr const char* kFashionMnistHelp =
    "install the Debian package dataset-fashion-mnist (sudo apt-get install dataset-fashion-mnist), name the "
    "folder "
    "of the four IDX files with --data-path, or use --data synthetic";
constexpr const char* kCifar10Help =
    "unpack CIFAR-10's binary version (cifar-10-binary.tar.gz) and name its folder with --data-path, or use "
    "--data "
    "synthetic";

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

void check_folder(const std::filesystem::path& folder, const char* help) {
  std::error_code error;
  TORCH_CHECK(is_there(folder), kLoadDataset, ": folder ", folder.string(), " does not exist; ", help);
  TORCH_CHECK(std::filesystem::is_directory(folder, error), kLoadDataset, ": expected ", folder.string(),
              " to be a folder, got a file; ", help);
}

std::filesystem::path plain_or_packed(const std::filesystem::path& folder, const std::string& name) {
  const auto plain = folder / name;
  if (is_there(plain)) return plain;
  const auto packed = folder / (name + ".gz");
  TORCH_CHECK(is_there(packed), kLoadDataset, ": neither ", plain.string(), " nor ", packed.string(),
              " exists; ", kFashionMnistHelp);
  return packed;
}

ImageSet load_idx(const std::filesystem::path& folder, const std::string& prefix) {
  const auto images_path = plain_or_packed(folder, prefix + "-images-idx3-ubyte");
  const auto labels_path = plain_or_packed(folder, prefix + "-labels-idx1-ubyte");
  ImageSet set;
  set.images = read_idx_images(images_path);
  set.labels = read_idx_labels(labels_path, kDatasetClasses);
  TORCH_CHECK(set.images.size(0) == set.labels.size(0), kLoadDataset,
              ": expected as many labels as images, got ", set.images.size(0), " images in ",
              images_path.string(), " and ", set.labels.size(0), " labels in ", labels_path.string());
  return set;
}

void load_fashion_mnist(const DatasetOptions& options, Dataset& dataset) {
  const auto folder = options.path.empty() ? std::filesystem::path(kFashionMnistFolder) : options.path;
  check_folder(folder, kFashionMnistHelp);
  dataset.train = load_idx(folder, "train");
  dataset.test = load_idx(folder, "t10k");
  TORCH_CHECK(dataset.train.images.sizes().slice(1) == dataset.test.images.sizes().slice(1), kLoadDataset,
              ": expected test images of the size of the training images, ",
              dataset.train.images.sizes().slice(1), ", got ", dataset.test.images.sizes().slice(1), " in ",
              folder.string());
}

void load_cifar10(const DatasetOptions& options, Dataset& dataset) {
  TORCH_CHECK(!options.path.empty(), kLoadDataset, ": cifar10 needs a folder; ", kCifar10Help);
  check_folder(options.path, kCifar10Help);
  const auto inner = options.path / "cifar-10-batches-bin";
  const auto folder = is_there(inner) ? inner : options.path;
  const auto read = [&](const std::string& name) {
    TORCH_CHECK(is_there(folder / name), kLoadDataset, ": file ", (folder / name).string(),
                " does not exist; ", kCifar10Help);
    return read_cifar10(folder / name);
  };
  std::vector<torch::Tensor> images, labels;
  for (int batch = 1; batch <= 5; ++batch) {
    const auto part = read("data_batch_" + std::to_string(batch) + ".bin");
    images.push_back(part.images);
    labels.push_back(part.labels);
  }
  dataset.train = {torch::cat(images), torch::cat(labels)};
  dataset.test = read("test_batch.bin");
}

// Exact: counts bytes by value, so neither the order nor the number of threads matters.
void measure_channels(Dataset& dataset) {
  const auto& images = dataset.train.images;
  const int64_t channels = images.size(1), pixels = images.size(2) * images.size(3);
  const uint8_t* bytes = images.data_ptr<uint8_t>();
  for (int64_t c = 0; c < channels; ++c) {
    // Four histograms in turn: neighbours are often equal, and one counter would wait for itself.
    std::array<std::array<int64_t, 256>, 4> counts{};
    for (int64_t n = 0; n < images.size(0); ++n) {
      const uint8_t* plane = bytes + (n * channels + c) * pixels;
      for (int64_t i = 0; i < pixels; ++i)
        ++counts[i % 4][plane[i]];
    }
    int64_t sum = 0, squares = 0;
    for (int64_t value = 0; value < 256; ++value) {
      const int64_t count = counts[0][value] + counts[1][value] + counts[2][value] + counts[3][value];
      sum += count * value;
      squares += count * value * value;
    }
    const auto total = static_cast<double>(images.size(0) * pixels);
    const double mean = static_cast<double>(sum) / total;
    const double variance = std::max(0.0, static_cast<double>(squares) / total - mean * mean);
    dataset.mean.push_back(mean / 255);
    dataset.std.push_back(variance > 0 ? std::sqrt(variance) / 255 : 1.0);
  }
}

}  // namespace

Dataset load_dataset(const DatasetOptions& options) {
  TORCH_CHECK(options.limit >= 0, kLoadDataset, ": expected a limit of 0 (all samples) or more, got ",
              options.limit);
  Dataset dataset;
  dataset.name = options.name;
  dataset.classes = kDatasetClasses;
  if (options.name == "fashion-mnist") {
    load_fashion_mnist(options, dataset);
  } else if (options.name == "cifar10") {
    load_cifar10(options, dataset);
  } else if (options.name == "synthetic") {
    dataset.train = make_synthetic(options.synthetic, options.seed, Split::kTrain);
    dataset.test = make_synthetic(options.synthetic, options.seed, Split::kTest);
  } else {
    TORCH_CHECK(false, kLoadDataset, ": expected fashion-mnist, cifar10 or synthetic, got \"", options.name,
                "\"");
  }
  measure_channels(dataset);
  if (options.limit > 0 && options.limit < dataset.train.size()) {
    // Copies, so that the memory of the rest is given back.
    dataset.train.images = dataset.train.images.narrow(0, 0, options.limit).clone();
    dataset.train.labels = dataset.train.labels.narrow(0, 0, options.limit).clone();
  }
  return dataset;
}

}  // namespace qat::apps
