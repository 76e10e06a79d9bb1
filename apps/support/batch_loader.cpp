#include "support/batch_loader.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "support/dataset.h"
#include "support/random_stream.h"

namespace qat::apps {
namespace {

constexpr int64_t kByteValues = 256;
constexpr int64_t kPixelsPerTask = 1 << 16;  // below this a second thread costs more than it saves

// A byte has 256 values, so each channel's normalisation is a table: one rounding rule, whatever the compiler
// does.
std::vector<float> normalization_table(const char* who, int64_t channels, const std::vector<double>& mean,
                                       const std::vector<double>& std) {
  TORCH_CHECK(static_cast<int64_t>(mean.size()) == channels && static_cast<int64_t>(std.size()) == channels,
              who, ": expected a mean and a std for each of ", channels, " channels, got ", mean.size(),
              " and ", std.size());
  std::vector<float> table(static_cast<size_t>(channels * kByteValues));
  for (int64_t c = 0; c < channels; ++c) {
    const auto m = static_cast<float>(mean[c]);
    const auto s = static_cast<float>(std[c]);
    TORCH_CHECK(std::isfinite(m) && std::isfinite(s) && s > 0, who,
                ": expected a finite mean and a std above 0, got ", mean[c], " and ", std[c], " for channel ",
                c);
    for (int64_t byte = 0; byte < kByteValues; ++byte) {
      table[c * kByteValues + byte] = (static_cast<float>(byte) / 255.0F - m) / s;
    }
  }
  return table;
}

void check_images(const char* who, const torch::Tensor& images) {
  TORCH_CHECK(
      images.defined() && images.dim() == 4 && images.scalar_type() == torch::kUInt8 && images.is_cpu(), who,
      ": expected uint8 images [N, channels, height, width] on the CPU, got ",
      images.defined() ? images.toString() : "nothing", " with ", images.defined() ? images.dim() : 0,
      " dimensions");
}

struct Variation {
  int64_t down = 0;  // rows and columns by which the source is displaced
  int64_t right = 0;
  bool mirror = false;
};

Variation vary(const BatchLoaderOptions& options, int64_t epoch, int64_t sample) {
  RandomStream random(options.seed, RandomUse::kImageVariation, static_cast<uint64_t>(epoch),
                      static_cast<uint64_t>(sample));
  const auto range = static_cast<uint64_t>(2 * options.max_shift + 1);
  Variation variation;
  variation.down = static_cast<int64_t>(random.below(range)) - options.max_shift;
  variation.right = static_cast<int64_t>(random.below(range)) - options.max_shift;
  variation.mirror = options.flip && random.below(2) == 1;
  return variation;
}

void convert_plane(const uint8_t* source, const float* table, int64_t pixels, float* target) {
  for (int64_t i = 0; i < pixels; ++i)
    target[i] = table[source[i]];
}

void convert_plane(const uint8_t* source, const float* table, int64_t height, int64_t width,
                   const Variation& variation, float* target) {
  for (int64_t y = 0; y < height; ++y) {
    const int64_t from_y = y + variation.down;
    const bool row_exists = from_y >= 0 && from_y < height;
    for (int64_t x = 0; x < width; ++x) {
      const int64_t from_x = (variation.mirror ? width - 1 - x : x) + variation.right;
      const bool exists = row_exists && from_x >= 0 && from_x < width;
      target[y * width + x] = table[exists ? source[from_y * width + from_x] : 0];
    }
  }
}

}  // namespace

torch::Tensor normalize(const torch::Tensor& images, const std::vector<double>& mean,
                        const std::vector<double>& std) {
  constexpr const char* kWho = "qat::apps::normalize";
  check_images(kWho, images);
  const int64_t channels = images.size(1);
  const auto table = normalization_table(kWho, channels, mean, std);
  const auto source = images.contiguous();
  auto result = torch::empty(source.sizes(), torch::kFloat32);
  const int64_t pixels = source.size(2) * source.size(3);
  const uint8_t* from = source.data_ptr<uint8_t>();
  float* to = result.data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, kPixelsPerTask / std::max<int64_t>(1, pixels));
  at::parallel_for(0, source.size(0) * channels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      convert_plane(from + plane * pixels, table.data() + plane % channels * kByteValues, pixels,
                    to + plane * pixels);
    }
  });
  return result;
}

BatchLoader::BatchLoader(const ImageSet& set, const std::vector<double>& mean, const std::vector<double>& std,
                         const BatchLoaderOptions& options)
    : options_(options) {
  constexpr const char* kWho = "qat::apps::BatchLoader";
  check_images(kWho, set.images);
  const auto& labels = set.labels;
  TORCH_CHECK(labels.defined() && labels.dim() == 1 && labels.scalar_type() == torch::kInt64 &&
                  labels.is_cpu() && labels.size(0) == set.images.size(0),
              kWho, ": expected int64 labels [", set.images.size(0), "] on the CPU, one for each image");
  TORCH_CHECK(options.batch_size >= 1, kWho, ": expected a batch size of at least 1, got ",
              options.batch_size);
  TORCH_CHECK(options.max_shift >= 0 && options.max_shift <= std::max(set.images.size(2), set.images.size(3)),
              kWho, ": expected a shift from 0 to the image's size, got ", options.max_shift);
  const int64_t needed = options.last_batch == LastBatch::kDrop ? options.batch_size : 1;
  TORCH_CHECK(set.size() >= needed, kWho, ": expected at least ", needed, " samples for one batch of ",
              options.batch_size, ", got ", set.size(), "; use a smaller batch or more samples");
  table_ = normalization_table(kWho, set.images.size(1), mean, std);
  set_ = {set.images.contiguous(), labels.contiguous()};
  start_epoch(0);
}

int64_t BatchLoader::batches_per_epoch() const {
  const int64_t full = set_.size() / options_.batch_size;
  const bool short_one = options_.last_batch == LastBatch::kKeep && set_.size() % options_.batch_size != 0;
  return full + (short_one ? 1 : 0);
}

int64_t BatchLoader::samples_per_epoch() const {
  return std::min(set_.size(), batches_per_epoch() * options_.batch_size);
}

void BatchLoader::start_epoch(int64_t epoch, int64_t first_batch) {
  TORCH_CHECK(epoch >= 0 && first_batch >= 0 && first_batch <= batches_per_epoch(),
              "qat::apps::BatchLoader: expected an epoch from 0 and a batch from 0 to ", batches_per_epoch(),
              ", got ", epoch, " and ", first_batch);
  order_.resize(static_cast<size_t>(set_.size()));
  std::iota(order_.begin(), order_.end(), int64_t{0});
  if (options_.shuffle) {
    RandomStream random(options_.seed, RandomUse::kSampleOrder, static_cast<uint64_t>(epoch), 0);
    for (size_t i = order_.size(); i > 1; --i)
      std::swap(order_[i - 1], order_[random.below(i)]);
  }
  epoch_ = epoch;
  position_ = first_batch;
}

std::optional<Batch> BatchLoader::next() {
  if (position_ >= batches_per_epoch()) return std::nullopt;
  const int64_t first = position_++ * options_.batch_size;
  const int64_t count = std::min(options_.batch_size, set_.size() - first);
  const int64_t channels = set_.images.size(1), height = set_.images.size(2), width = set_.images.size(3);
  const int64_t plane = height * width, image = channels * plane;

  Batch batch;
  batch.images = torch::empty({count, channels, height, width}, torch::kFloat32);
  batch.labels = torch::empty({count}, torch::kInt64);
  const uint8_t* images = set_.images.data_ptr<uint8_t>();
  const int64_t* labels = set_.labels.data_ptr<int64_t>();
  float* to_images = batch.images.data_ptr<float>();
  int64_t* to_labels = batch.labels.data_ptr<int64_t>();
  const bool varied = options_.max_shift > 0 || options_.flip;
  const int64_t grain = std::max<int64_t>(1, kPixelsPerTask / std::max<int64_t>(1, image));
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = order_[static_cast<size_t>(first + i)];
      const Variation variation = varied ? vary(options_, epoch_, sample) : Variation{};
      to_labels[i] = labels[sample];
      for (int64_t c = 0; c < channels; ++c) {
        const uint8_t* source = images + sample * image + c * plane;
        const float* table = table_.data() + c * kByteValues;
        float* target = to_images + i * image + c * plane;
        if (varied) {
          convert_plane(source, table, height, width, variation, target);
        } else {
          convert_plane(source, table, plane, target);
        }
      }
    }
  });
  return batch;
}

BatchLoader training_loader(const Dataset& dataset, const BatchLoaderOptions& options) {
  return BatchLoader(dataset.train, dataset.mean, dataset.std, options);
}

BatchLoader test_loader(const Dataset& dataset, int64_t batch_size) {
  BatchLoaderOptions options;
  options.batch_size = batch_size;
  options.shuffle = false;
  options.last_batch = LastBatch::kKeep;
  return BatchLoader(dataset.test, dataset.mean, dataset.std, options);
}

}  // namespace qat::apps
