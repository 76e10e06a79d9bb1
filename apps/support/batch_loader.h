#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "support/image_set.h"

namespace qat::apps {

struct Dataset;

/// What becomes of the samples at the end of an epoch that do not fill a batch.
enum class LastBatch {
  kDrop,  ///< they are left out: every batch has exactly `batch_size` samples
  kKeep,  ///< they make a shorter batch, so that every sample is seen
};

/// Which samples make which batch, and how they are varied.
struct BatchLoaderOptions {
  /// Samples in a batch, at least 1.
  int64_t batch_size = 64;
  /// Seed of the order and of the variation.
  uint64_t seed = 0;
  /// Whether each epoch has an order of its own; otherwise the samples come as they are stored.
  bool shuffle = true;
  /// What becomes of a short last batch.
  LastBatch last_batch = LastBatch::kDrop;
  /// Moves every image by up to this many pixels in each direction, filling with raw 0. 0: not at all.
  int64_t max_shift = 0;
  /// Whether an image is mirrored left to right with probability one half. Only for classes that a mirror
  /// keeps: of the synthetic digits, 2 would become 5.
  bool flip = false;
};

/// Normalised samples, ready for a model; both tensors are the caller's own.
struct Batch {
  torch::Tensor images;  ///< float32 `[B, channels, height, width]`
  torch::Tensor labels;  ///< int64 `[B]`
};

/// Returns `(images / 255 - mean[c]) / std[c]`, each step in float32.
///
/// Shape: uint8 `[N, channels, height, width]` on the CPU; the result is float32 of the same shape.
/// Range: `mean` and `std` hold a value for each channel, `std` above 0.
/// Throws: `c10::Error` for anything else.
torch::Tensor normalize(const torch::Tensor& images, const std::vector<double>& mean,
                        const std::vector<double>& std);

/// Cuts a set into batches of normalised images, in an order that only (seed, epoch) decides. An image's
/// shift and mirroring depend on (seed, epoch, its place in the set), so neither the batch size nor the
/// number of threads nor resuming in mid-epoch changes them.
///
///     BatchLoader loader = training_loader(dataset, options);
///     for (int64_t epoch = 0; epoch < epochs; ++epoch) {
///       for (loader.start_epoch(epoch); auto batch = loader.next();) step(batch->images, batch->labels);
///     }
///
/// To stop and resume, store `epoch()` and `position()` and give them to `start_epoch`.
class BatchLoader {
 public:
  /// Shares the tensors of `set`. `mean` and `std` as in `normalize`.
  ///
  /// Throws: `c10::Error` when types, shapes or options are out of range, or when the set is too small for a
  /// single batch (`LastBatch::kDrop` and fewer than `batch_size` samples).
  BatchLoader(const ImageSet& set, const std::vector<double>& mean, const std::vector<double>& std,
              const BatchLoaderOptions& options);

  /// Goes to batch number `first_batch` of epoch `epoch`, both from 0. The constructor goes to the start of
  /// epoch 0.
  void start_epoch(int64_t epoch, int64_t first_batch = 0);

  /// The next batch, or nothing at the end of the epoch.
  std::optional<Batch> next();

  /// The epoch that `start_epoch` chose.
  int64_t epoch() const { return epoch_; }

  /// Number within the epoch of the batch that `next` gives next.
  int64_t position() const { return position_; }

  /// Batches that an epoch has.
  int64_t batches_per_epoch() const;

  /// Samples that an epoch has: all of the set, less the dropped ones.
  int64_t samples_per_epoch() const;

  const BatchLoaderOptions& options() const { return options_; }

 private:
  ImageSet set_;
  BatchLoaderOptions options_;
  std::vector<float> table_;  // normalised value of [channel][byte]
  std::vector<int64_t> order_;
  int64_t epoch_ = 0;
  int64_t position_ = 0;
};

/// Batches for training. A short last batch is dropped by default: a batch of one sample has no variance over
/// 1 x 1 maps, on which batch normalisation fails, and a short batch weighs its samples more than the others.
/// The order changes from epoch to epoch, so the dropped samples do as well.
BatchLoader training_loader(const Dataset& dataset, const BatchLoaderOptions& options);

/// Batches of all test samples in their stored order, unvaried; the last batch may be short.
BatchLoader test_loader(const Dataset& dataset, int64_t batch_size);

}  // namespace qat::apps
