#include "kernels/learned_quantize.h"

#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "support/catch.h"

namespace {

using namespace qat::kernels;
using qat::Rounding;

constexpr InstructionSet kSets[] = {InstructionSet::kDefault, InstructionSet::kAvx2, InstructionSet::kAvx512};
constexpr Rounding kRoundings[] = {Rounding::kHalfToEven, Rounding::kHalfAwayFromZero, Rounding::kHalfUp};

using Bytes = std::vector<std::uint8_t>;

/// The bytes of a tensor of numbers that decide ties, lie on ends, saturate or are special.
Bytes awkward_bytes(std::int64_t n, torch::ScalarType type) {
  torch::manual_seed(61);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto steps = torch::randint(-40, 40, {n}, torch::kDouble) * 0.125;
  auto x = torch::where(torch::rand({n}) < 0.5, steps, torch::randn({n}, torch::kDouble) * 2.0);
  const double specials[] = {
      std::numeric_limits<double>::quiet_NaN(), infinity, -infinity, 0.0, -0.0, 1e30, -1e-42};
  for (std::int64_t i = 3; i < n; i += 17)
    x[i] = specials[static_cast<std::size_t>(i / 17) % std::size(specials)];
  x = x.to(type);
  Bytes bytes(x.nbytes());
  std::memcpy(bytes.data(), x.const_data_ptr(), bytes.size());
  return bytes;
}

Bytes counted_bytes(std::int64_t n, torch::ScalarType type) {
  const auto dy = (torch::arange(n, torch::kDouble).remainder(13) - 5).mul(0.3).to(type);
  Bytes bytes(dy.nbytes());
  std::memcpy(bytes.data(), dy.const_data_ptr(), bytes.size());
  return bytes;
}

/// Tables for [5][7][inner], the memory that the kernels read, and their results.
template <class T>
struct Example {
  Example(std::int64_t inner, ElementType type, torch::ScalarType torch_type)
      : element(type),
        view{5, 7, inner},
        x(awkward_bytes(view.size(), torch_type)),
        dy(counted_bytes(view.size(), torch_type)) {
    for (std::int64_t c = 0; c < view.channels; ++c) {
      scale.push_back(c % 2 == 0 ? T(0.25) : static_cast<T>(0.1F * static_cast<float>(c)));
      zero_point.push_back(static_cast<T>(c - 3));
      low.push_back(T(-8));
      high.push_back(T(7));
      lower.push_back((T(-8) - zero_point.back()) * scale.back());
      upper.push_back((T(7) - zero_point.back()) * scale.back());
      xmin.push_back(c % 2 == 0 ? T(0.125) : T(0.5));
      xmax.push_back(c % 3 == 0 ? T(1) : T(4));
    }
  }

  UniformRule<T> rule(Rounding rounding) const {
    return {rounding, scale.data(), zero_point.data(), low.data(), high.data(), lower.data(), upper.data()};
  }
  PowerOfTwoRule<T> rule(bool is_signed, bool with_zero) const {
    return {is_signed, with_zero, xmin.data(), xmax.data()};
  }
  template <class Rule>
  LearnedJob<T, Rule> job(const Rule& rule, bool has_activation) const {
    return {.element = element,
            .view = view,
            .rule = rule,
            .has_activation = has_activation,
            .negative_slope = T(0.3F),
            .activation_upper = T(3),
            .x = x.data(),
            .dy = dy.data()};
  }

  /// The bytes of the gradients of x and of the sums, computed in pieces of `piece` elements.
  template <class Rule>
  std::pair<Bytes, std::vector<double>> gradients(LearnedJob<T, Rule> job, InstructionSet set,
                                                  std::int64_t piece) const {
    std::pair<Bytes, std::vector<double>> result;
    result.first.resize(x.size());
    result.second.resize(static_cast<std::size_t>(kLearnedSums * view.channels));
    job.out = result.first.data();
    for (std::int64_t begin = 0; begin < view.size(); begin += piece)
      run_learned_gradient(job, begin, std::min(begin + piece, view.size()), set, result.second.data());
    return result;
  }

  Bytes values(LearnedJob<T, PowerOfTwoRule<T>> job, InstructionSet set, std::int64_t piece) const {
    Bytes result(x.size());
    job.out = result.data();
    for (std::int64_t begin = 0; begin < view.size(); begin += piece)
      run_power_of_two(job, begin, std::min(begin + piece, view.size()), set);
    return result;
  }

  ElementType element;
  ChannelView view;
  Bytes x, dy;
  std::vector<T> scale, zero_point, low, high, lower, upper, xmin, xmax;
};

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

/// Runs `function(example)` for rows of every length and every type of elements.
template <class Function>
void for_examples(const Function& function) {
  for (const std::int64_t inner : {1, 3, 33, 500}) {
    function(Example<float>(inner, ElementType::kFloat, torch::kFloat));
    function(Example<float>(inner, ElementType::kHalf, torch::kHalf));
    function(Example<float>(inner, ElementType::kBFloat16, torch::kBFloat16));
    function(Example<double>(inner, ElementType::kDouble, torch::kDouble));
  }
}

/// Gradients on every instruction set, whole and in pieces, against those of the portable one.
template <class Example, class Job>
int check_gradients(const Example& example, const Job& job) {
  int compared = 0;
  for (const std::int64_t piece : {example.view.size(), std::int64_t{10}, std::int64_t{1500}}) {
    const auto expected = example.gradients(job, InstructionSet::kDefault, piece);
    const auto whole = example.gradients(job, InstructionSet::kDefault, example.view.size());
    CHECK(expected.first == whole.first);
    for (const auto set : kSets) {
      if (!is_supported(set)) continue;
      const auto actual = example.gradients(job, set, piece);
      CAPTURE(example.view.inner, static_cast<int>(example.element), static_cast<int>(set), piece);
      CHECK(actual.first == expected.first);
      CHECK(same_bits(actual.second, expected.second));
      ++compared;
    }
  }
  return compared;
}

}  // namespace

TEST_CASE("uniform gradients and their sums have the same bits on all instruction sets") {
  int compared = 0;
  for_examples([&](const auto& example) {
    for (const auto rounding : kRoundings) {
      for (const bool has_activation : {false, true})
        compared += check_gradients(example, example.job(example.rule(rounding), has_activation));
    }
  });
  CHECK(compared >= 16 * 3 * 2 * 3);
}

TEST_CASE("power-of-two gradients and values have the same bits on all instruction sets") {
  int compared = 0;
  for_examples([&](const auto& example) {
    for (const bool is_signed : {true, false}) {
      for (const bool with_zero : {true, false}) {
        for (const bool has_activation : {false, true}) {
          const auto job = example.job(example.rule(is_signed, with_zero), has_activation);
          compared += check_gradients(example, job);
          const auto expected = example.values(job, InstructionSet::kDefault, example.view.size());
          for (const auto set : kSets) {
            if (!is_supported(set)) continue;
            for (const std::int64_t piece : {example.view.size(), std::int64_t{10}}) {
              CAPTURE(example.view.inner, static_cast<int>(example.element), static_cast<int>(set), piece);
              CHECK(example.values(job, set, piece) == expected);
            }
          }
        }
      }
    }
  });
  CHECK(compared >= 16 * 8 * 3);
}

TEST_CASE("gradients of ranges add to the sums that are given") {
  const Example<float> example(3, ElementType::kFloat, torch::kFloat);
  auto job = example.job(example.rule(Rounding::kHalfToEven), false);
  Bytes out(example.x.size());
  job.out = out.data();
  std::vector<double> sums(static_cast<std::size_t>(kLearnedSums * example.view.channels), 100.0);
  run_learned_gradient(job, 0, 3, best_instruction_set(), sums.data());  // one row of channel 0
  for (std::size_t i = 0; i < sums.size(); ++i) {
    CAPTURE(i);
    if (i % 7 != 0) CHECK(sums[i] == 100.0);
  }
}
