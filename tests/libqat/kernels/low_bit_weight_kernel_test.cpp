#include "kernels/low_bit_weight.h"
#include "kernels/pack.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "support/catch.h"

namespace {

using namespace qat::kernels;
using qat::Rounding;

constexpr InstructionSet kSets[] = {InstructionSet::kDefault, InstructionSet::kAvx2, InstructionSet::kAvx512};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class T>
std::vector<T> weights(std::int64_t n) {
  std::vector<T> w;
  for (std::int64_t i = 0; i < n; ++i)
    w.push_back(static_cast<T>((i * 7919 % 1009 - 504) * 0.003));
  return w;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Sums of [4][5][inner] against plain loops, and against the portable ones bit by bit.
template <class T>
void check_sums(std::int64_t inner) {
  const ChannelView view{4, 5, inner};
  const auto w = weights<T>(view.size());
  const std::vector<T> threshold = {T(0.25), T(0.5), T(0), T(1), T(9)};
  for (const bool counts : {false, true}) {
    LowBitJob<T> job{.view = view, .threshold = counts ? threshold.data() : nullptr, .x = w.data()};
    std::vector<double> expected(10);
    for (std::int64_t i = 0; i < view.size(); ++i) {
      const auto c = static_cast<std::size_t>(i / inner % 5);
      const double magnitude = std::fabs(static_cast<double>(w[static_cast<std::size_t>(i)]));
      if (counts && magnitude <= static_cast<double>(threshold[c])) continue;
      expected[c] += magnitude;
      if (counts) expected[5 + c] += 1;
    }
    std::vector<double> portable(10);
    run_low_bit_sums(job, 0, view.size(), InstructionSet::kDefault, portable.data());
    for (std::size_t k = 0; k < (counts ? 10U : 5U); ++k) {
      CAPTURE(inner, counts, k);
      CHECK(std::fabs(portable[k] - expected[k]) <= 1e-12 * (1 + expected[k]));
    }
    for (const auto set : kSets) {
      if (!is_supported(set)) continue;
      std::vector<double> sums(10);
      run_low_bit_sums(job, 0, view.size(), set, sums.data());
      CHECK(same_bits(sums, portable));
    }
  }
}

/// A task on every instruction set, in pieces of 13 elements, against function(w, dy, scale, threshold).
template <class T, class Function>
void check_task(LowBitTask task, std::int64_t inner, const Function& function) {
  const ChannelView view{4, 5, inner};
  auto w = weights<T>(view.size());
  w[3] = T(0);
  w[8] = T(-0.0);
  w[11] = T(1);
  auto dy = weights<T>(view.size());
  std::reverse(dy.begin(), dy.end());
  const std::vector<T> scale = {T(1), T(0.3), T(0.7), T(2), T(0)};
  const std::vector<T> threshold = {T(0.25), T(0.5), T(0), T(1), T(9)};
  std::vector<T> expected;
  for (std::int64_t i = 0; i < view.size(); ++i) {
    const auto c = static_cast<std::size_t>(i / inner % 5);
    const auto at = static_cast<std::size_t>(i);
    expected.push_back(function(w[at], dy[at], scale[c], threshold[c]));
  }
  for (const auto set : kSets) {
    if (!is_supported(set)) continue;
    std::vector<T> out(w.size());
    LowBitJob<T> job{task,   view,     scale.data(), threshold.data(), T(15),
                     T(1.5), w.data(), dy.data(),    out.data()};
    for (std::int64_t begin = 0; begin < view.size(); begin += 13)
      run_low_bit(job, begin, std::min(begin + 13, view.size()), set);
    CAPTURE(inner, static_cast<int>(task), static_cast<int>(set));
    CHECK(out == expected);
  }
}

template <class T>
void check_elements(std::int64_t inner) {
  check_task<T>(LowBitTask::kBinary, inner, [](T w, T, T scale, T) { return w < 0 ? -scale : scale; });
  check_task<T>(LowBitTask::kTernary, inner, [](T w, T, T scale, T threshold) {
    return std::fabs(w) > threshold ? (w < 0 ? -scale : scale) : T(0) * scale;
  });
  check_task<T>(LowBitTask::kBinaryGradient, inner,
                [](T w, T dy, T, T) { return std::fabs(w) <= T(1) ? dy : T(0); });
  check_task<T>(LowBitTask::kTernaryGradient, inner, [](T, T dy, T, T) { return dy; });
  check_task<T>(LowBitTask::kDorefaGradient, inner,
                [](T t, T dy, T, T) { return dy / T(1.5) * (T(1) - t * t); });
}

template <Rounding rounding>
void check_rounding() {
  const float numbers[] = {0.49999997F, 0.5F,  -0.5F, 1.5F,  -1.5F, 2.5F,       -2.5F,   -0.0F,
                           8388609.0F,  -0.3F, 1e30F, -2.7F, 3.2F,  8388607.5F, -1e-40F, HUGE_VALF};
  for (std::size_t i = 0; i < std::size(numbers); i += 8) {
    const Pack<float> rounded = RoundPack<rounding, float>{}(load_pack(numbers + i));
    for (int k = 0; k < 8; ++k) {
      CAPTURE(numbers[i + static_cast<std::size_t>(k)], static_cast<int>(rounding));
      CHECK(rounded[k] == qat::round_to_integer<rounding>(numbers[i + static_cast<std::size_t>(k)]));
    }
  }
}

}  // namespace

TEST_CASE("packs round as single numbers do") {
  check_rounding<Rounding::kHalfToEven>();
  check_rounding<Rounding::kHalfAwayFromZero>();
  check_rounding<Rounding::kHalfUp>();
}

TEST_CASE("sums of low-bit weights are those of a loop, with the same bits on all instruction sets") {
  for (const std::int64_t inner : {1, 3, 8, 33, 500}) {
    check_sums<float>(inner);
    check_sums<double>(inner);
  }
}

TEST_CASE("values and gradients of low-bit weights are those of a loop") {
  for (const std::int64_t inner : {1, 3, 33, 500}) {
    check_elements<float>(inner);
    check_elements<double>(inner);
  }
}

TEST_CASE("a NaN among low-bit weights gets no gradient") {
  const float nan = static_cast<float>(kNan);
  const std::vector<float> x = {0.5F, nan, -0.25F};
  const std::vector<float> dy = {1, 2, 4};
  for (const auto task :
       {LowBitTask::kBinaryGradient, LowBitTask::kTernaryGradient, LowBitTask::kDorefaGradient}) {
    for (const auto set : kSets) {
      if (!is_supported(set)) continue;
      std::vector<float> out(x.size(), nan);
      LowBitJob<float> job{
          .task = task, .view = {1, 1, 3}, .x = x.data(), .dy = dy.data(), .out = out.data()};
      run_low_bit(job, 0, 3, set);
      CHECK(out[0] > 0);
      CHECK(out[1] == 0);
      CHECK(out[2] > 0);
    }
  }
}

TEST_CASE("DoReFa's codes are odd numbers around zero") {
  const std::vector<float> t = {1.5F, -1.5F, 0.0F, 0.75F};
  const float scale = 1;
  for (const auto set : kSets) {
    if (!is_supported(set)) continue;
    std::vector<float> out(t.size());
    LowBitJob<float> job{.task = LowBitTask::kDorefa,
                         .view = {1, 1, 4},
                         .scale = &scale,
                         .levels = 15,
                         .largest = 1.5F,
                         .x = t.data(),
                         .out = out.data()};
    run_low_bit(job, 0, 4, set);
    CHECK(out == std::vector<float>{15, -15, 1, 7});
  }
}

TEST_CASE("the largest magnitude is found at every place, and a NaN is not lost") {
  for (const auto set : kSets) {
    if (!is_supported(set)) continue;
    for (std::int64_t n = 1; n < 40; ++n) {
      for (std::int64_t at = 0; at < n; ++at) {
        std::vector<float> x(static_cast<std::size_t>(n), 0.5F);
        x[static_cast<std::size_t>(at)] = -2;
        CHECK(run_largest_magnitude(x.data(), 0, n, set) == 2);
        x[static_cast<std::size_t>(at)] = static_cast<float>(kNan);
        CHECK(std::isnan(run_largest_magnitude(x.data(), 0, n, set)));
      }
    }
    const std::vector<double> wide = {0, -3, 1, 2, 0.5};
    CHECK(run_largest_magnitude(wide.data(), 0, 5, set) == 3);
    CHECK(run_largest_magnitude(wide.data(), 2, 5, set) == 2);
  }
}
