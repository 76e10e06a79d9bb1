// Recorders that look at the distribution: Percentile, Histogram, KlDivergence.
#include <qat/numerics/affine.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/recorders/recorder.h>

#include <ATen/Parallel.h>
#include <torch/serialize.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

using namespace qat;
using qat::testing::error_lacks;

namespace {

constexpr RecorderKind kKinds[] = {RecorderKind::kPercentile, RecorderKind::kHistogram,
                                   RecorderKind::kKlDivergence};

struct Ends {
  double low;
  double high;
};

Ends ends(const Recorder& recorder) {
  const auto range = recorder.range();
  return {range.min.item<double>(), range.max.item<double>()};
}

Ends recorded(const RecorderOptions& options, const torch::Tensor& x) {
  Recorder recorder(options);
  recorder.record(x);
  return ends(recorder);
}

torch::Tensor normal(std::int64_t n, std::uint64_t seed = 1) {
  torch::manual_seed(seed);
  return torch::randn({n});
}

/// The mean squared error of the quantizer that a range gives.
double squared_error(const torch::Tensor& x, const Ends& range, std::int64_t bits, bool symmetric) {
  AffineQuantizer quantizer({.range = {bits, symmetric ? Signedness::kSigned : Signedness::kUnsigned,
                                       symmetric ? RangeWidth::kNarrow : RangeWidth::kFull},
                             .symmetry = symmetric ? Symmetry::kSymmetric : Symmetry::kAffine});
  quantizer.set_range({torch::scalar_tensor(range.low), torch::scalar_tensor(range.high)});
  return (quantizer.forward(x) - x).square().mean().item<double>();
}

std::vector<torch::Tensor> state(const Recorder& recorder) {
  std::vector<torch::Tensor> tensors;
  for (const auto& buffer : recorder.named_buffers())
    tensors.push_back(buffer.value().clone());
  return tensors;
}

bool same_state(const Recorder& a, const Recorder& b) {
  const auto left = state(a);
  const auto right = state(b);
  bool same = left.size() == right.size();
  for (std::size_t i = 0; same && i < left.size(); ++i)
    same = left[i].equal(right[i]);
  return same;
}

}  // namespace

TEST_CASE("The percentile leaves out the share that it says, found by sorting", "[recorders]") {
  const auto x = normal(100000);
  const auto sorted = std::get<0>(x.sort());
  for (const double percentile : {90.0, 99.0, 99.9, 99.99}) {
    INFO(percentile);
    const auto found = recorded({.kind = RecorderKind::kPercentile, .percentile = percentile}, x);
    const auto most = static_cast<std::int64_t>(100000 * (1 - percentile / 100) + 0.5);
    const double width = 2.0 * 8 / 4096;  // max |x| lies between 4 and 8
    CHECK(found.high >= sorted[99999 - most].item<double>() - 1e-6);
    CHECK(found.high <= sorted[99999 - most].item<double>() + width);
    CHECK(found.low <= sorted[most].item<double>() + 1e-6);
    CHECK(found.low >= sorted[most].item<double>() - width);
    CHECK((x > found.high).sum().item<std::int64_t>() <= most);
    CHECK((x < found.low).sum().item<std::int64_t>() <= most);
  }
  const auto all = recorded({.kind = RecorderKind::kPercentile, .percentile = 100.0}, x);
  CHECK(all.low == x.min().item<double>());
  CHECK(all.high == x.max().item<double>());
}

TEST_CASE("An outlier moves neither percentile nor threshold", "[recorders]") {
  auto x = normal(50000).abs();
  x[7] = 1000.0;
  CHECK(recorded({.kind = RecorderKind::kPercentile}, x).high < 6.0);
  x[7] = 50.0;
  // 2048 bins up to 64, and at least one a code: 256 bins reach to 8; a few more tie with them.
  CHECK(recorded({.kind = RecorderKind::kKlDivergence}, x).high < 9.0);
  x[7] = 1000.0;
  CHECK(recorded({.kind = RecorderKind::kHistogram, .bits = 4}, x).high < 1000.0);
  for (const auto kind : kKinds) {
    CHECK(recorded({.kind = kind}, x).low == 0.0);
    CHECK(recorded({.kind = kind, .bits = 4, .symmetric = true}, normal(1000)).low < 0.0);
  }
}

TEST_CASE("The histogram's range has nearly the least error that any range has, in both forms",
          "[recorders]") {
  for (const bool symmetric : {true, false}) {
    for (const std::int64_t bits : {3, 4, 8}) {
      const auto x = symmetric ? normal(20000) : normal(20000, 2) * 0.5 + 0.8;
      INFO(symmetric << " " << bits);
      const auto found =
          recorded({.kind = RecorderKind::kHistogram, .bits = bits, .symmetric = symmetric}, x);
      const double error = squared_error(x, found, bits, symmetric);
      double least = std::numeric_limits<double>::infinity();
      const double low = x.min().item<double>();
      const double high = x.max().item<double>();
      for (double up = 0.1; up <= 1.0; up += 0.05) {
        for (double down = 0.1; down <= 1.0; down += 0.05) {
          if (symmetric && down != up) continue;
          const double t = up * std::max(-low, high);
          const Ends tried = symmetric ? Ends{-t, t} : Ends{down * low, up * high};
          least = std::min(least, squared_error(x, tried, bits, symmetric));
        }
      }
      CHECK(error < 1.1 * least);
      if (bits == 3) CHECK(error < 0.9 * squared_error(x, {low, high}, bits, symmetric));
    }
  }
}

TEST_CASE("The known optimum for normal data is found: 4 bits clip near 2.5 standard deviations",
          "[recorders]") {
  // Banner et al. 2018 (ACIQ), table of optimal clipping for Gaussian data: 2.55 at 4 bits, 3.92 at 8 bits...
  // here with a narrow grid of 2^b - 2 steps: the minimum of step^2 / 12 + 2 times the tail is found by a
  // plain loop.
  const auto x = normal(400000);
  const auto found = recorded({.kind = RecorderKind::kHistogram, .bits = 4, .symmetric = true}, x);
  const auto density = [](double t) { return std::exp(-t * t / 2) / std::sqrt(2 * std::acos(-1.0)); };
  double least = 1e9;
  double best = 0;
  for (double t = 0.5; t < 5; t += 0.001) {
    const double beyond = 0.5 * std::erfc(t / std::sqrt(2.0));
    const double tail = 2 * ((1 + t * t) * beyond - t * density(t));
    const double step = 2 * t / 14;
    const double error = step * step / 12 * (1 - 2 * beyond) + tail;
    if (error < least) {
      least = error;
      best = t;
    }
  }
  CHECK(found.high == Approx(best).margin(0.05));
  CHECK(found.low == -found.high);
}

TEST_CASE("KL divergence prefers the threshold that keeps a distribution's shape", "[recorders]") {
  // 16 values, the larger the more often, and a few far away: unsigned 4 bits have a code for each value up
  // to 1.
  std::vector<float> values;
  for (int i = 1; i <= 16; ++i)
    values.insert(values.end(), 10 * i * i, static_cast<float>(i) / 16 - 0.001F);
  values.insert(values.end(), 3, 15.9F);
  const auto x = torch::tensor(values);
  const auto found = recorded({.kind = RecorderKind::kKlDivergence, .bits = 4}, x);
  CHECK(found.low == 0.0);
  CHECK(found.high >= 0.95);
  CHECK(found.high <= 1.5);
  // Zeros change nothing: every grid has them.
  const auto with_zeros = torch::cat({x, torch::zeros({100000})});
  CHECK(recorded({.kind = RecorderKind::kKlDivergence, .bits = 4}, with_zeros).high == found.high);
  // Fewer bins than codes: all of it.
  const auto few = torch::tensor({0.1F, 0.2F, 0.2F});
  CHECK(recorded({.kind = RecorderKind::kKlDivergence, .bits = 16}, few).high == Approx(0.2).epsilon(1e-6));
}

TEST_CASE("Neither batches nor their order nor threads change what is found", "[recorders]") {
  const int threads = at::get_num_threads();
  for (const auto kind : kKinds) {
    INFO(to_string(kind));
    const auto x = normal(200000);
    const auto large = normal(1000, 2) * 100;
    const auto tiny = normal(1000, 3) * 1e-6;
    Recorder one({.kind = kind});
    one.record(torch::cat({x, large, tiny}));
    Recorder many({.kind = kind});
    for (const auto& batch : {tiny, x.slice(0, 0, 1000), large, x.slice(0, 1000)})
      many.record(batch);
    // The bins are those of the whole, though they grew by steps: all but the count of batches.
    const auto left = one.named_buffers();
    const auto right = many.named_buffers();
    for (const char* name : {"counts", "limit", "zeros", "min_val", "max_val"}) {
      INFO(name);
      CHECK(left[name].equal(right[name]));
    }
    CHECK(ends(one).high == ends(many).high);
    CHECK(left["counts"].sum().item<std::int64_t>() + left["zeros"].item<std::int64_t>() == 202000);
    at::set_num_threads(1);
    Recorder alone({.kind = kind});
    alone.record(torch::cat({x, large, tiny}));
    at::set_num_threads(threads);
    CHECK(same_state(alone, one));
  }
}

TEST_CASE("Processes that sum their counts find one range", "[recorders]") {
  const auto x = normal(10000);
  for (const auto kind : kKinds) {
    INFO(to_string(kind));
    Recorder whole({.kind = kind, .bits = 4});
    whole.record(x);
    // Two processes in turn: each sees its half and is told what the other one adds.
    const auto min = x.min();
    const auto max = x.max();
    const auto largest = x.abs().max();
    for (const bool first : {true, false}) {
      const auto own = first ? x.slice(0, 0, 4000) : x.slice(0, 4000);
      const auto other = first ? x.slice(0, 4000) : x.slice(0, 0, 4000);
      Recorder theirs({.kind = kind});
      theirs.record(torch::cat({other, largest.reshape({1})}));  // so that it has the same bins
      auto added = theirs.named_buffers()["counts"].clone();
      const double width = theirs.named_buffers()["limit"].item<double>() * 2 / 4096;
      added[static_cast<std::int64_t>(largest.item<double>() / width) + 2048] -= 1;
      Recorder::set_reduction(
          [&](torch::Tensor& low, torch::Tensor& high) {
            low.copy_(torch::minimum(low, min));
            high.copy_(torch::maximum(high, max));
          },
          [&](torch::Tensor& counts) { counts.narrow(0, 0, 4096).add_(added); });
      Recorder part({.kind = kind, .bits = 4});
      part.record(own);
      Recorder::set_reduction({});
      CHECK(ends(part).low == ends(whole).low);
      CHECK(ends(part).high == ends(whole).high);
    }
  }
}

TEST_CASE("Distributions of every kind of data give ranges that hold 0", "[recorders]") {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto nan = std::nanf("");
  for (const auto kind : kKinds) {
    INFO(to_string(kind));
    const RecorderOptions options{.kind = kind};
    const auto negative = recorded(options, -normal(1000).abs() - 1);
    CHECK(negative.low < 0);
    CHECK((kind == RecorderKind::kKlDivergence || negative.high == 0));
    CHECK(recorded(options, torch::zeros({10})).high == 0.0);
    CHECK(recorded(options, torch::full({10}, 3.0F)).high == Approx(3.0).epsilon(1e-3));
    const auto some = recorded(options, torch::tensor({nan, 1.0F, infinity, -infinity, 0.5F}));
    CHECK(some.high == Approx(1.0).epsilon(1e-3));
    Recorder nothing(options);
    nothing.record(torch::empty({0}));
    nothing.record(torch::full({3}, nan));
    CHECK(nothing.recorded() == 0);
    CHECK(error_lacks([&] { nothing.range(); }, {"nothing was recorded"}) == "");
    // Other types and strides hold the same values.
    const auto x = (normal(512).reshape({16, 32}) * 8).round() / 8;
    const auto expected = recorded(options, x);
    for (const auto type : {torch::kDouble, torch::kHalf, torch::kBFloat16})
      CHECK(recorded(options, x.to(type)).high == expected.high);
    CHECK(recorded(options, x.t()).high == expected.high);
    CHECK(recorded(options, torch::stack({x, x}, 2).select(2, 1)).low == expected.low);
    CHECK(recorded(options, torch::tensor({1e-38F, 3e38F})).high <= 3.1e38);
  }
}

TEST_CASE("Histograms are saved, loaded, cloned and forgotten", "[recorders]") {
  for (const auto kind : kKinds) {
    INFO(to_string(kind));
    auto recorder = std::make_shared<Recorder>(RecorderOptions{.kind = kind, .percentile = 99.0, .bits = 4});
    recorder->record(normal(1000));
    std::stringstream stream;
    torch::serialize::OutputArchive out;
    recorder->save(out);
    out.save_to(stream);
    const auto loaded = std::dynamic_pointer_cast<Recorder>(make_tensor_module(recorder->config()));
    REQUIRE(loaded);
    torch::serialize::InputArchive in;
    in.load_from(stream);
    loaded->load(in);
    CHECK(same_state(*recorder, *loaded));
    CHECK(ends(*loaded).high == ends(*recorder).high);
    const auto copy = std::dynamic_pointer_cast<Recorder>(recorder->clone());
    CHECK(same_state(*recorder, *copy));
    copy->record(normal(10) * 50);
    CHECK_FALSE(same_state(*recorder, *copy));
    recorder->reset();
    CHECK(recorder->recorded() == 0);
    CHECK(recorder->named_buffers()["counts"].sum().item<std::int64_t>() == 0);
    CHECK(parse_recorder_kind(to_string(kind)) == kind);
    CHECK(keeps_minimum(kind));
  }
  std::ostringstream text;
  Recorder({.kind = RecorderKind::kHistogram, .bits = 4, .symmetric = true}).pretty_print(text);
  CHECK(text.str() == "qat::Histogram(bits=4, symmetric, recorded=0)");
}

TEST_CASE("Options that a histogram cannot have are refused", "[recorders]") {
  const auto refused = [](RecorderOptions options, std::initializer_list<std::string> words) {
    return error_lacks([&] { Recorder recorder(options); }, words);
  };
  for (const auto kind : kKinds) {
    CHECK(refused({.kind = kind, .axis = 0}, {to_string(kind), "whole tensor", "AbsMax"}) == "");
    CHECK(refused({.kind = kind, .behaviour = RecorderBehaviour::kNnabla}, {to_string(kind), "nnabla"}) ==
          "");
    for (const double percentile : {50.0, 100.5, std::nan("")})
      CHECK(refused({.kind = kind, .percentile = percentile}, {"percentile", "(50, 100]"}) == "");
    for (const std::int64_t bits : {0, 17})
      CHECK(refused({.kind = kind, .bits = bits}, {"1 to 16 bits", std::to_string(bits)}) == "");
  }
}
