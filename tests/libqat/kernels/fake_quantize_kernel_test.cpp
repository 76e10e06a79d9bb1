#include "kernels/fake_quantize.h"
#include "kernels/half.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "support/catch.h"

namespace {

using namespace qat::kernels;
using qat::Rounding;

constexpr InstructionSet kSets[] = {InstructionSet::kDefault, InstructionSet::kAvx2, InstructionSet::kAvx512};

/// Values that decide ties, saturate, or are special, in a random order.
template <class T>
std::vector<T> awkward_values(std::int64_t n) {
  std::mt19937 generator(7);
  std::uniform_int_distribution<int> half_steps(-600, 600);
  std::normal_distribution<double> normal(0.0, 3.0);
  const T specials[] = {std::numeric_limits<T>::quiet_NaN(),
                        std::numeric_limits<T>::infinity(),
                        -std::numeric_limits<T>::infinity(),
                        T(0),
                        T(-0.0),
                        T(1e20),
                        T(-1e20),
                        T(1e-30)};
  std::vector<T> values;
  for (std::int64_t i = 0; i < n; ++i) {
    if (i % 17 == 3) {
      values.push_back(specials[static_cast<std::size_t>(i / 17) % std::size(specials)]);
    } else {
      values.push_back(i % 2 == 0 ? static_cast<T>(half_steps(generator) * 0.125)
                                  : static_cast<T>(normal(generator)));
    }
  }
  return values;
}

/// A job over [5][7][inner] with two kinds of scales, and the memory that it reads and writes.
template <class T>
struct Example {
  explicit Example(std::int64_t inner) : view{5, 7, inner}, x(awkward_values<T>(view.size())), dy(x.size()) {
    for (std::size_t i = 0; i < dy.size(); ++i)
      dy[i] = static_cast<T>(i % 13) - T(5);
    for (std::int64_t c = 0; c < view.channels; ++c) {
      scale.push_back(c % 2 == 0 ? T(0.25) : static_cast<T>(0.1F * static_cast<float>(c)));
      zero_point.push_back(static_cast<T>(3 * c));
      low.push_back(static_cast<T>(c % 3));
      high.push_back(T(200));
    }
    job.view = view;
    job.scale = scale.data();
    job.zero_point = zero_point.data();
    job.low = low.data();
    job.high = high.data();
    job.qmin = 0;
    job.qmax = 255;
    job.slope_from = T(-1);
    job.slope_to = T(20);
    job.negative_slope = T(0.3F);
    job.upper = T(11);
    job.element = sizeof(T) == 8 ? ElementType::kDouble : ElementType::kFloat;
    job.x = x.data();
    job.dy = dy.data();
  }

  /// The bytes of the result, computed in pieces of `piece` elements.
  std::vector<std::uint8_t> run(InstructionSet set, std::int64_t piece) {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(view.size()) * 8);
    job.out = out.data();
    for (std::int64_t begin = 0; begin < view.size(); begin += piece) {
      run_fake_quantize(job, begin, std::min(begin + piece, view.size()), set);
    }
    return out;
  }

  ChannelView view;
  std::vector<T> x, dy, scale, zero_point, low, high;
  FakeQuantizeJob<T> job;
};

}  // namespace

TEMPLATE_TEST_CASE("fake-quantize kernels give the same bits on all instruction sets and for all cuts", "",
                   float, double) {
  int compared = 0;
  for (const std::int64_t inner : {1, 3, 33}) {
    Example<TestType> example(inner);
    for (const auto task :
         {FakeQuantizeTask::kForward, FakeQuantizeTask::kBackward, FakeQuantizeTask::kCodes}) {
      for (const auto rounding : {Rounding::kHalfToEven, Rounding::kHalfAwayFromZero, Rounding::kHalfUp}) {
        for (const bool clipped : {true, false}) {
          for (const bool leaky : {false, true}) {
            example.job.task = task;
            example.job.rounding = rounding;
            example.job.clipped = clipped;
            example.job.is_leaky = leaky;
            const auto expected = example.run(InstructionSet::kDefault, example.view.size());
            for (const auto set : kSets) {
              if (!is_supported(set)) continue;
              for (const std::int64_t piece : {example.view.size(), std::int64_t{1}, std::int64_t{10}}) {
                CAPTURE(inner, static_cast<int>(task), static_cast<int>(rounding), clipped, leaky,
                        static_cast<int>(set), piece);
                CHECK(example.run(set, piece) == expected);
                ++compared;
              }
            }
          }
        }
      }
    }
  }
  CHECK(compared >= 3 * 3 * 3 * 2 * 2 * 3);
}

TEMPLATE_TEST_CASE("a mask carries the gradient as well as the input does, on all instruction sets", "",
                   float, double) {
  for (const std::int64_t inner : {1, 3, 33}) {
    Example<TestType> example(inner);
    auto& job = example.job;
    for (const auto rounding : {Rounding::kHalfToEven, Rounding::kHalfAwayFromZero, Rounding::kHalfUp}) {
      for (const bool clipped : {true, false}) {
        job.rounding = rounding;
        job.clipped = clipped;
        job.task = FakeQuantizeTask::kForward;
        const auto values = example.run(InstructionSet::kDefault, example.view.size());
        job.task = FakeQuantizeTask::kBackward;
        const auto gradient = example.run(InstructionSet::kDefault, example.view.size());
        for (const auto set : kSets) {
          if (!is_supported(set)) continue;
          CAPTURE(inner, static_cast<int>(rounding), clipped, static_cast<int>(set));
          std::vector<std::uint8_t> mask(example.x.size(), 7);
          job.mask = mask.data();
          job.task = FakeQuantizeTask::kForwardMask;
          CHECK(example.run(set, 10) == values);
          job.task = FakeQuantizeTask::kBackwardOfMask;
          job.x = nullptr;
          CHECK(example.run(set, 10) == gradient);
          job.x = example.x.data();
          CHECK(std::all_of(mask.begin(), mask.end(), [](std::uint8_t byte) { return byte <= 1; }));
        }
      }
    }
  }
}

TEST_CASE("fake-quantize kernels agree with a plain loop over the element functions") {
  for (const std::int64_t inner : {1, 33}) {
    Example<float> example(inner);
    example.run(best_instruction_set(), example.view.size());
    std::vector<float> y(example.x.size());
    example.job.out = y.data();
    run_fake_quantize(example.job, 0, example.view.size(), best_instruction_set());
    for (std::int64_t i = 0; i < example.view.size(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      const auto c = static_cast<std::size_t>(i / inner % example.view.channels);
      const float code = std::nearbyint(example.x[at] / example.scale[c]) + example.zero_point[c];
      const float clamped =
          code < example.low[c] ? example.low[c] : (code > example.high[c] ? example.high[c] : code);
      const float expected = (clamped - example.zero_point[c]) * example.scale[c];
      CAPTURE(i, example.x[at]);
      CHECK((y[at] == expected || (std::isnan(y[at]) && std::isnan(expected))));
    }
  }
}

TEMPLATE_TEST_CASE("case 02: the vector body and the scalar tail agree on huge values", "", float, double) {
  const TestType scale = TestType(1e-4F);
  const TestType zero_point = 1;
  const TestType low = 0;
  const TestType high = 255;
  FakeQuantizeJob<TestType> job;
  job.element = sizeof(TestType) == 8 ? ElementType::kDouble : ElementType::kFloat;
  job.view = {1, 1, 11};
  job.scale = &scale;
  job.zero_point = &zero_point;
  job.low = &low;
  job.high = &high;
  job.qmax = 255;
  for (const auto set : kSets) {
    if (!is_supported(set)) continue;
    for (const double huge : {1e20, -1e20}) {
      const std::vector<TestType> x(11, static_cast<TestType>(huge));
      std::vector<TestType> y(11, TestType(-7));
      job.x = x.data();
      job.out = y.data();
      run_fake_quantize(job, 0, 11, set);
      for (const auto v : y)
        CHECK(v == (huge > 0 ? TestType(254) * scale : -scale));
    }
  }
}

TEST_CASE("half and bfloat16 convert as in torch for every bit pattern") {
  const auto codes = torch::arange(0, 65536, torch::kInt).to(torch::kShort);
  const auto halves = codes.view(torch::kHalf).to(torch::kFloat);
  const auto bfloats = codes.view(torch::kBFloat16).to(torch::kFloat);
  int differences = 0;
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const auto check = [&](float ours, float theirs, std::uint16_t back) {
      const bool same_value = ours == theirs || (std::isnan(ours) && std::isnan(theirs));
      const bool same_back = std::isnan(ours) ? (back & 0x7FFFU) != 0 : back == bits;
      if (!same_value || !same_back) ++differences;
    };
    check(to_compute(Half{bits}), halves.const_data_ptr<float>()[code],
          FromCompute<Half>::convert(to_compute(Half{bits})).bits);
    check(to_compute(BFloat16{bits}), bfloats.const_data_ptr<float>()[code],
          FromCompute<BFloat16>::convert(to_compute(BFloat16{bits})).bits);
  }
  CHECK(differences == 0);
}

TEST_CASE("float32 rounds to half and bfloat16 as in torch") {
  std::mt19937 generator(3);
  std::vector<float> values;
  for (int i = 0; i < 200000; ++i) {
    const auto bits = static_cast<std::uint32_t>(generator());
    float v;
    std::memcpy(&v, &bits, sizeof(v));
    values.push_back(v);
    // Around the halves' range, with ties.
    values.push_back(static_cast<float>(static_cast<int>(bits % 131072U) - 65536) * 0x1p-12F);
    values.push_back(static_cast<float>(static_cast<int>(bits % 8192U)) * 0x1p-26F);
  }
  for (const float v : {65504.0F, 65519.0F, 65520.0F, 65536.0F, -65520.0F, 6.1035156e-5F, 6.1e-5F})
    values.push_back(v);
  const auto x = torch::tensor(values);
  const auto halves = x.to(torch::kHalf).view(torch::kShort);
  const auto bfloats = x.to(torch::kBFloat16).view(torch::kShort);
  int differences = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      CHECK(std::isnan(to_compute(FromCompute<Half>::convert(values[i]))));
      CHECK(std::isnan(to_compute(FromCompute<BFloat16>::convert(values[i]))));
      continue;
    }
    if (FromCompute<Half>::convert(values[i]).bits !=
        static_cast<std::uint16_t>(halves.const_data_ptr<std::int16_t>()[i]))
      ++differences;
    if (FromCompute<BFloat16>::convert(values[i]).bits !=
        static_cast<std::uint16_t>(bfloats.const_data_ptr<std::int16_t>()[i]))
      ++differences;
  }
  CHECK(differences == 0);
}
