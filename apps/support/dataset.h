#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "support/image_set.h"
#include "support/synthetic.h"

namespace qat::apps {

/// Which data a program works on.
struct DatasetOptions {
  /// `fashion-mnist`, `cifar10` or `synthetic`.
  std::string name = "fashion-mnist";
  /// Folder of the files. Empty: the Debian package's folder for fashion-mnist; cifar10 needs one; synthetic
  /// reads no file and ignores it.
  std::filesystem::path path;
  /// Use only the first so many training samples; 0 or more than there are: all. The test set is always
  /// complete.
  int64_t limit = 0;
  /// Seed of the synthetic images; the others do not use it.
  uint64_t seed = 0;
  /// Size and shape of the synthetic images; the others do not use it.
  SyntheticOptions synthetic;
};

/// Data for training and testing, and the constants that normalise it.
struct Dataset {
  ImageSet train;
  ImageSet test;
  /// For each channel, mean and standard deviation of all training pixels after division by 255. They are
  /// taken before `limit` applies, so they do not depend on it. A constant channel has standard deviation 1.
  std::vector<double> mean;
  std::vector<double> std;
  int64_t classes = 0;
  std::string name;

  /// Shape of one sample: channels, height, width.
  std::vector<int64_t> sample_shape() const { return train.images.sizes().slice(1).vec(); }
};

/// Loads (or, for `synthetic`, makes) a data set. Nothing is downloaded.
///
/// * fashion-mnist: the four IDX files `{train,t10k}-{images-idx3,labels-idx1}-ubyte`, each plain or gzip,
/// with or
///   without `.gz`. Any data of that format with ten classes will do.
/// * cifar10: the binary version, `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`, in the
/// folder or in
///   its sub-folder `cifar-10-batches-bin`.
/// * synthetic: see `make_synthetic`.
///
/// Throws: `c10::Error` for an unknown name, a negative limit, a missing folder or file (with what to install
/// or to give instead), an unreadable file (see `read_idx_images`, `read_cifar10`), and images that do not
/// fit their labels.
Dataset load_dataset(const DatasetOptions& options);

}  // namespace qat::apps
