#include <qat/numerics/bit_budget.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"

namespace {

using qat::packed_bytes;
using qat::smallest_packed_bytes;
using qat::WidthRequest;
using qat::widths_within_budget;
using qat::testing::error_lacks;
using Requests = std::vector<WidthRequest>;
using Widths = std::vector<std::int64_t>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double distance(const Requests& requests, const Widths& widths) {
  double sum = 0.0;
  for (std::size_t l = 0; l < requests.size(); ++l) {
    const auto lowest = static_cast<double>(requests[l].min_bits);
    const auto highest = static_cast<double>(requests[l].max_bits);
    const double wanted =
        std::isnan(requests[l].wanted) ? lowest : std::clamp(requests[l].wanted, lowest, highest);
    sum += std::pow(static_cast<double>(widths[l]) - wanted, 2);
  }
  return sum;
}

Widths starting_widths(const Requests& requests) {
  Widths widths;
  for (const auto& request : requests) {
    widths.push_back(
        std::isnan(request.wanted)
            ? request.min_bits
            : std::clamp<std::int64_t>(std::llround(request.wanted), request.min_bits, request.max_bits));
  }
  return widths;
}

/// The smallest distance of all widths within the budget, by trying all.
double smallest_distance(const Requests& requests, std::int64_t budget) {
  Widths widths;
  for (const auto& request : requests)
    widths.push_back(request.min_bits);
  double smallest = kInfinity;
  for (;;) {
    if (packed_bytes(requests, widths) <= budget) smallest = std::min(smallest, distance(requests, widths));
    std::size_t l = 0;
    for (; l < widths.size() && widths[l] == requests[l].max_bits; ++l)
      widths[l] = requests[l].min_bits;
    if (l == widths.size()) return smallest;
    ++widths[l];
  }
}

std::int64_t random_int(std::mt19937_64& generator, std::int64_t lowest, std::int64_t highest) {
  return lowest + static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(highest - lowest + 1));
}

/// Layers of 0 to `most` weights; wanted widths that are halves, or any, some of them beyond the bounds.
Requests random_requests(std::mt19937_64& generator, std::int64_t layers, std::int64_t most) {
  Requests requests;
  const double grid = random_int(generator, 0, 1) == 0 ? 2.0 : 1024.0;
  for (std::int64_t l = 0; l < layers; ++l) {
    WidthRequest request;
    request.count = random_int(generator, 0, most);
    request.fixed_bytes = random_int(generator, 0, 20);
    request.min_bits = random_int(generator, 1, 3);
    request.max_bits = request.min_bits + random_int(generator, 0, 5);
    request.wanted =
        static_cast<double>(random_int(generator, 0, static_cast<std::int64_t>(9 * grid))) / grid;
    if (random_int(generator, 0, 3) == 0) request.further_counts = {random_int(generator, 0, most)};
    requests.push_back(request);
  }
  return requests;
}

/// No layer can have a bit more within the budget.
bool is_full(const Requests& requests, const Widths& widths, std::int64_t budget) {
  const Widths most = starting_widths(requests);
  for (std::size_t l = 0; l < widths.size(); ++l) {
    if (widths[l] == most[l]) continue;
    Widths raised = widths;
    ++raised[l];
    if (packed_bytes(requests, raised) <= budget) return false;
  }
  return true;
}

/// What is wrong with the result for a budget, "" if nothing.
std::string fault(const Requests& requests, const Widths& widths, std::int64_t budget) {
  if (packed_bytes(requests, widths) > budget) return "above the budget";
  const Widths most = starting_widths(requests);
  for (std::size_t l = 0; l < widths.size(); ++l) {
    if (widths[l] < requests[l].min_bits || widths[l] > most[l]) return "width out of bounds";
  }
  if (!is_full(requests, widths, budget)) return "a bit more would fit";
  return widths == widths_within_budget(requests, budget) ? "" : "another result for the same budget";
}

Requests two_layers() {
  return {{.count = 80, .fixed_bytes = 8, .wanted = 6.0, .min_bits = 2, .max_bits = 8, .name = "conv"},
          {.count = 16, .fixed_bytes = 4, .wanted = 4.0, .min_bits = 3, .max_bits = 8, .name = "fc"}};
}

}  // namespace

TEST_CASE("sizes count codes and what is fixed") {
  CHECK(packed_bytes(two_layers(), Widths{6, 4}) == 60 + 8 + 8 + 4);
  CHECK(smallest_packed_bytes(two_layers()) == 20 + 8 + 6 + 4);
  CHECK(smallest_packed_bytes({}) == 0);
  CHECK(error_lacks([] { packed_bytes(two_layers(), Widths{6}); }, {"2 layers", "got 1"}) == "");
}

TEST_CASE("tensors that have one width take whole bytes each") {
  const Requests joint = {
      {.count = 3, .fixed_bytes = 1, .wanted = 5.0, .min_bits = 2, .max_bits = 8, .further_counts = {3, 9}}};
  CHECK(packed_bytes(joint, Widths{5}) == 2 + 2 + 6 + 1);
  CHECK(packed_bytes(joint, Widths{3}) == 2 + 2 + 4 + 1);
  CHECK(smallest_packed_bytes(joint) == 1 + 1 + 3 + 1);
  CHECK(widths_within_budget(joint, 11) == Widths{5});
  CHECK(widths_within_budget(joint, 10) == Widths{4});
  CHECK(widths_within_budget(joint, 8) == Widths{2});
  CHECK_THROWS_AS(widths_within_budget(joint, 5), c10::ValueError);
}

TEST_CASE("widths are the wanted ones, rounded, where they fit") {
  CHECK(widths_within_budget(two_layers(), 80) == Widths{6, 4});
  CHECK(widths_within_budget(two_layers(), std::numeric_limits<std::int64_t>::max()) == Widths{6, 4});
  Requests requests = two_layers();
  requests[0].wanted = 6.5;
  requests[1].wanted = 6.499;
  CHECK(widths_within_budget(requests, 1000) == Widths{7, 6});
}

TEST_CASE("widths fall where a byte costs least, and rise again where they fit") {
  CHECK(widths_within_budget(two_layers(), 79) == Widths{5, 4});  // 10 bytes for 1, instead of 2 bytes for 1
  CHECK(widths_within_budget(two_layers(), 78) == Widths{5, 4});
  CHECK(widths_within_budget(two_layers(), 70) == Widths{5, 4});
  CHECK(widths_within_budget(two_layers(), 69) == Widths{5, 3});
  CHECK(widths_within_budget(two_layers(), smallest_packed_bytes(two_layers())) == Widths{2, 3});
}

TEST_CASE("wanted widths that are no number, or beyond the bounds, count as a bound") {
  Requests requests = two_layers();
  requests[0].wanted = kNaN;
  requests[1].wanted = kInfinity;
  CHECK(widths_within_budget(requests, 1000) == Widths{2, 8});
  CHECK(widths_within_budget(requests, 45) == Widths{2, 6});
  requests[0].wanted = -1e300;
  requests[1].wanted = 1e300;
  CHECK(widths_within_budget(requests, 45) == Widths{2, 6});
}

TEST_CASE("a width halfway between two is the larger one where it fits") {
  Requests requests = {{.count = 8, .wanted = 3.5}, {.count = 8, .wanted = 3.5}};
  CHECK(widths_within_budget(requests, 8) == Widths{4, 4});
  CHECK(widths_within_budget(requests, 7) == Widths{4, 3});
  CHECK(widths_within_budget(requests, 6) == Widths{3, 3});
  CHECK(widths_within_budget(requests, 5) == Widths{2, 3});  // equally close: the first is lowered
}

TEST_CASE("layers without weights, single layers and no layers have widths") {
  CHECK(widths_within_budget({}, 0).empty());
  const Requests empty = {{.count = 0, .fixed_bytes = 3, .wanted = 5.0}};
  CHECK(widths_within_budget(empty, 3) == Widths{5});
  const Requests one_weight = {{.count = 1, .wanted = 12.0, .min_bits = 2, .max_bits = 16}};
  CHECK(widths_within_budget(one_weight, 2) == Widths{12});
  CHECK(widths_within_budget(one_weight, 1) == Widths{8});
  const Requests one_layer = {{.count = 10, .fixed_bytes = 4, .wanted = 8.0}};
  CHECK(widths_within_budget(one_layer, 13) == Widths{7});  // 9 bytes
  CHECK(widths_within_budget(one_layer, 12) == Widths{6});  // 8 bytes
}

TEST_CASE("a budget below the smallest size is refused with the numbers") {
  CHECK(error_lacks([] { widths_within_budget(two_layers(), 37); },
                    {"budget is 37 bytes", "38 bytes", "0.0371094 kB", "conv 2 bits (28 bytes)",
                     "fc 3 bits (10 bytes)", "raise the budget"}) == "");
  CHECK_THROWS_AS(widths_within_budget(two_layers(), 0), c10::ValueError);
  CHECK_THROWS_AS(widths_within_budget({}, -1), c10::ValueError);
  Requests unnamed = two_layers();
  unnamed[1].name.clear();
  CHECK(error_lacks([&] { widths_within_budget(unnamed, 1); }, {"layer 1 3 bits"}) == "");
}

TEST_CASE("requests out of range are refused by name") {
  const auto refused = [](auto&& change) {
    Requests requests = two_layers();
    change(requests[1]);
    return error_lacks([&] { widths_within_budget(requests, 1000); }, {"fc", "expected"});
  };
  CHECK(refused([](WidthRequest& r) { r.min_bits = 0; }) == "");
  CHECK(refused([](WidthRequest& r) { r.max_bits = 17; }) == "");
  CHECK(refused([](WidthRequest& r) { r.min_bits = r.max_bits + 1; }) == "");
  CHECK(refused([](WidthRequest& r) { r.count = -1; }) == "");
  CHECK(refused([](WidthRequest& r) { r.count = qat::kMaxPackedCount + 1; }) == "");
  CHECK(refused([](WidthRequest& r) { r.fixed_bytes = -1; }) == "");
  CHECK(refused([](WidthRequest& r) { r.further_counts = {1, -1}; }) == "");
}

TEST_CASE("of small cases the widths are the closest of all, and a larger budget is never worse") {
  std::mt19937_64 generator(1);
  for (int repeat = 0; repeat < 600; ++repeat) {
    const auto requests = random_requests(generator, 1 + repeat % 4, repeat % 3 == 0 ? 11 : 300);
    const std::int64_t smallest = smallest_packed_bytes(requests);
    const std::int64_t largest = packed_bytes(requests, starting_widths(requests));
    double before = kInfinity;
    for (std::int64_t budget = smallest; budget <= largest + 1; budget += 1 + (largest - smallest) / 20) {
      const auto widths = widths_within_budget(requests, budget);
      CAPTURE(repeat, budget, widths);
      REQUIRE(fault(requests, widths, budget) == "");
      REQUIRE(distance(requests, widths) == Approx(smallest_distance(requests, budget)).margin(1e-12));
      REQUIRE(distance(requests, widths) <= before);
      before = distance(requests, widths);
    }
  }
}

TEST_CASE("of large cases the budget is kept, and a larger one is never worse") {
  std::mt19937_64 generator(2);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto requests = random_requests(generator, 40, repeat % 2 == 0 ? 2000 : 300000);
    const std::int64_t smallest = smallest_packed_bytes(requests);
    const std::int64_t largest = packed_bytes(requests, starting_widths(requests));
    double before = kInfinity;
    for (std::int64_t budget = smallest; budget <= largest; budget += 1 + (largest - smallest) / 12) {
      const auto widths = widths_within_budget(requests, budget);
      CAPTURE(repeat, budget, widths);
      REQUIRE(fault(requests, widths, budget) == "");
      REQUIRE(distance(requests, widths) <= before);
      before = distance(requests, widths);
    }
  }
}
