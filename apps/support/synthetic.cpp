#include "support/synthetic.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "support/random_stream.h"

namespace qat::apps {
namespace {

constexpr int64_t kDigitCount = 10;

struct Stroke {
  double x0, y0, x1, y1;
};

// The segments in a box of width 1 and height 2, clockwise from the top, then the middle.
constexpr std::array<Stroke, 7> kSegments = {
    {{0, 0, 1, 0}, {1, 0, 1, 1}, {1, 1, 1, 2}, {0, 2, 1, 2}, {0, 1, 0, 2}, {0, 0, 0, 1}, {0, 1, 1, 1}}};
// Bit s: segment s is lit.
constexpr std::array<unsigned, kDigitCount> kDigits = {0x3f, 0x06, 0x5b, 0x4f, 0x66,
                                                       0x6d, 0x7d, 0x07, 0x7f, 0x6f};

// The strokes of one image, in pixels.
std::vector<Stroke> draw_strokes(int64_t digit, double height, double width, RandomStream& random) {
  const double side = std::min(height, width);
  const double half_height = side * random.uniform(0.24, 0.32);  // of the digit
  const double digit_width = side * random.uniform(0.30, 0.42);
  const double slant = random.uniform(-0.25, 0.25);
  const double centre_x = width / 2 - 0.5 + side * random.uniform(-0.16, 0.16);
  const double centre_y = height / 2 - 0.5 + side * random.uniform(-0.16, 0.16);
  const auto place_x = [&](double x, double y) {
    return centre_x + (x - 0.5) * digit_width - slant * (y - 1) * half_height;
  };
  const auto place_y = [&](double y) { return centre_y + (y - 1) * half_height; };

  std::vector<Stroke> strokes;
  for (size_t s = 0; s < kSegments.size(); ++s) {
    if ((kDigits[digit] >> s & 1U) == 0) continue;
    const auto& segment = kSegments[s];
    strokes.push_back({place_x(segment.x0, segment.y0), place_y(segment.y0), place_x(segment.x1, segment.y1),
                       place_y(segment.y1)});
  }
  if (random.below(2) == 1) {
    const double x = random.uniform(0, width), y = random.uniform(0, height);
    const double reach = 0.12 * side;
    strokes.push_back({x, y, x + random.uniform(-reach, reach), y + random.uniform(-reach, reach)});
  }
  return strokes;
}

double squared_distance(const Stroke& stroke, double x, double y) {
  const double dx = stroke.x1 - stroke.x0, dy = stroke.y1 - stroke.y0;
  const double length = std::max(dx * dx + dy * dy, 1e-9);
  const double along = std::clamp(((x - stroke.x0) * dx + (y - stroke.y0) * dy) / length, 0.0, 1.0);
  const double away_x = x - stroke.x0 - along * dx, away_y = y - stroke.y0 - along * dy;
  return away_x * away_x + away_y * away_y;
}

// Sum of four uniform numbers: near enough to a normal one of standard deviation 1.
double noise(RandomStream& random) {
  const uint64_t bits = random.next();
  const auto sum =
      static_cast<double>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
  return (sum - 131070.0) / 37837.0;
}

void draw_image(const SyntheticOptions& options, int64_t digit, RandomStream random, uint8_t* image) {
  const int64_t plane = options.height * options.width;
  const auto strokes =
      draw_strokes(digit, static_cast<double>(options.height), static_cast<double>(options.width), random);
  const double radius =
      static_cast<double>(std::min(options.height, options.width)) * random.uniform(0.025, 0.045);
  std::vector<double> ink(static_cast<size_t>(plane));
  for (int64_t y = 0; y < options.height; ++y) {
    for (int64_t x = 0; x < options.width; ++x) {
      double nearest = 1e9;
      for (const auto& stroke : strokes) {
        nearest = std::min(nearest, squared_distance(stroke, static_cast<double>(x), static_cast<double>(y)));
      }
      ink[y * options.width + x] = std::clamp(radius + 0.5 - std::sqrt(nearest), 0.0, 1.0);
    }
  }
  for (int64_t c = 0; c < options.channels; ++c) {
    const double paper = random.uniform(10, 60);
    const double contrast = random.uniform(90, 170);
    for (int64_t i = 0; i < plane; ++i) {
      const double value = paper + contrast * ink[i] + 22 * noise(random);
      image[c * plane + i] = static_cast<uint8_t>(std::clamp(value + 0.5, 0.0, 255.0));
    }
  }
}

}  // namespace

ImageSet make_synthetic(const SyntheticOptions& options, uint64_t seed, Split split) {
  TORCH_CHECK(options.train_count >= 1 && options.test_count >= 1 && options.channels >= 1 &&
                  options.height >= 12 && options.width >= 12,
              "qat::apps::make_synthetic: expected at least 1 image, 1 channel and 12 x 12 pixels, got ",
              options.train_count, " and ", options.test_count, " images of ", options.channels, " x ",
              options.height, " x ", options.width);
  const int64_t count = split == Split::kTrain ? options.train_count : options.test_count;
  ImageSet set;
  set.images = torch::empty({count, options.channels, options.height, options.width}, torch::kUInt8);
  set.labels = torch::empty({count}, torch::kInt64);
  uint8_t* images = set.images.data_ptr<uint8_t>();
  int64_t* labels = set.labels.data_ptr<int64_t>();
  const int64_t image = options.channels * options.height * options.width;
  at::parallel_for(0, count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      labels[i] = i % kDigitCount;
      const RandomStream random(
          seed, split == Split::kTrain ? RandomUse::kSyntheticTrainImage : RandomUse::kSyntheticTestImage, 0,
          static_cast<uint64_t>(i));
      draw_image(options, labels[i], random, images + i * image);
    }
  });
  return set;
}

}  // namespace qat::apps
