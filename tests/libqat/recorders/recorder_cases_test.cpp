#include <qat/numerics/affine.h>
#include <qat/numerics/affine_params.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/recorders/recorder.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "support/catch.h"

using qat::Recorder;
using qat::RecorderKind;

namespace {

const float kNan = std::nanf("");
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr RecorderKind kKinds[] = {RecorderKind::kMinMaxMinMax, RecorderKind::kAbsMax,
                                   RecorderKind::kMinMaxMva, RecorderKind::kMaxMax, RecorderKind::kMaxMva};

Recorder recorder_of(RecorderKind kind, std::optional<std::int64_t> axis = std::nullopt,
                     double decay = 0.99) {
  return Recorder({.kind = kind, .axis = axis, .decay = decay});
}

bool is_absolute(RecorderKind kind) {
  return kind == RecorderKind::kAbsMax || kind == RecorderKind::kMaxMax || kind == RecorderKind::kMaxMva;
}

torch::Tensor values(std::vector<float> data) {
  return torch::tensor(data);
}

float min_of(const Recorder& recorder) {
  return recorder.range().min.item<float>();
}
float max_of(const Recorder& recorder) {
  return recorder.range().max.item<float>();
}

struct Reduced {
  explicit Reduced(Recorder::Reduction reduction) { Recorder::set_reduction(std::move(reduction)); }
  ~Reduced() { Recorder::set_reduction({}); }
};

}  // namespace

TEST_CASE("case 07: zero batches give a finite scale that keeps zeros", "[recorders]") {
  using qat::Symmetry;
  const auto zero = torch::zeros({8});
  for (const RecorderKind kind : kKinds) {
    auto recorder = recorder_of(kind);
    recorder.record(zero);
    recorder.record(zero);
    for (const Symmetry symmetry : {Symmetry::kSymmetric, Symmetry::kAffine, Symmetry::kAffineEvenZero}) {
      const qat::IntegerRange range;
      const auto params = qat::affine_params_from_range(recorder.range(), range, symmetry);
      const auto scale = params.scale.item<float>();
      const auto zero_point = static_cast<float>(params.zero_point.item<int>());
      CHECK(scale == qat::kZeroRangeScale);
      CHECK(zero_point >= -128.0F);
      CHECK(zero_point <= 127.0F);
      const auto raw = qat::affine_raw_code<qat::Rounding::kHalfToEven>(0.0F, scale, zero_point);
      CHECK(qat::affine_passes(raw, -128.0F, 127.0F));
      CHECK(qat::affine_real(qat::clamp_code(raw, -128.0F, 127.0F), scale, zero_point) == 0.0F);
      const auto half =
          qat::affine_code<qat::Rounding::kHalfToEven>(0.5F, scale, zero_point, -128.0F, 127.0F);
      CHECK(std::isfinite(qat::affine_real(half, scale, zero_point)));
    }
  }
}

TEST_CASE("case 07: quantizers after zero batches give zeros back and pass their gradient", "[recorders]") {
  using qat::StraightThrough;
  using qat::Symmetry;
  const auto gradient = torch::arange(1, 9).to(torch::kFloat);
  for (const RecorderKind kind : kKinds) {
    for (const Symmetry symmetry : {Symmetry::kSymmetric, Symmetry::kAffine, Symmetry::kAffineEvenZero}) {
      for (const auto straight_through : {StraightThrough::kClipped, StraightThrough::kUnclipped}) {
        auto recorder = recorder_of(kind);
        recorder.forward(torch::zeros({8}));
        recorder.forward(torch::zeros({8}));
        qat::AffineQuantizer quantizer({.symmetry = symmetry, .straight_through = straight_through});
        quantizer.set_range(recorder.range());
        const auto x = torch::zeros({8}, torch::requires_grad());
        const auto y = quantizer.forward(x);
        y.backward(gradient);
        CHECK(torch::equal(y, torch::zeros({8})));
        CHECK(torch::equal(x.grad(), gradient));
        const auto half = quantizer.forward(torch::tensor({0.5F}));
        CHECK(torch::isfinite(half).all().item<bool>());
      }
    }
  }
}

TEST_CASE("case 08: a constant gives a one-sided range", "[recorders]") {
  const qat::IntegerRange uint8(8, qat::Signedness::kUnsigned);
  for (const float constant : {5.0F, -5.0F}) {
    Recorder recorder;
    recorder.record(torch::full({4}, constant));
    const auto params = qat::affine_params_from_range(recorder.range(), uint8, qat::Symmetry::kAffine);
    CHECK(params.scale.item<float>() == 5.0F / 255.0F);
    CHECK(params.zero_point.item<int>() == (constant > 0 ? 0 : 255));
  }
}

TEST_CASE("case 09: the statistic stays as seen and the scale computation widens it", "[recorders]") {
  const qat::IntegerRange uint8(8, qat::Signedness::kUnsigned);
  Recorder recorder;
  recorder.record(values({10.0F, 14.0F}));
  CHECK(min_of(recorder) == 10.0F);
  CHECK(max_of(recorder) == 14.0F);
  const auto params = qat::affine_params_from_range(recorder.range(), uint8, qat::Symmetry::kAffine);
  CHECK(params.scale.item<float>() == 14.0F / 255.0F);
  CHECK(params.zero_point.item<int>() == 0);
  recorder.reset();
  recorder.record(values({-14.0F, -10.0F}));
  const auto mirrored = qat::affine_params_from_range(recorder.range(), uint8, qat::Symmetry::kAffine);
  CHECK(mirrored.scale.item<float>() == 14.0F / 255.0F);
  CHECK(mirrored.zero_point.item<int>() == 255);
}

TEST_CASE("case 13: NaN and infinite elements never enter a recorder", "[recorders]") {
  Recorder recorder;
  recorder.record(values({1.0F, kNan, 3.0F}));
  CHECK(min_of(recorder) == 1.0F);
  CHECK(max_of(recorder) == 3.0F);
  recorder.record(values({-2.0F, 4.0F}));
  recorder.record(values({kInfinity, 0.0F, -kInfinity}));
  CHECK(min_of(recorder) == -2.0F);
  CHECK(max_of(recorder) == 4.0F);
}

TEST_CASE("case 61: the registered buffers hold the statistics", "[recorders]") {
  for (const std::optional<std::int64_t> axis :
       {std::optional<std::int64_t>{}, std::optional<std::int64_t>{0}}) {
    auto recorder = recorder_of(RecorderKind::kMinMaxMinMax, axis);
    const auto before = recorder.named_buffers();
    recorder.record(axis ? values({-1.0F, 2.0F}).reshape({1, 2}) : values({-1.0F, 2.0F}));
    const auto buffers = recorder.named_buffers();
    CHECK(buffers.size() == 4);
    CHECK(buffers["min_val"].sum().item<float>() == -1.0F);
    CHECK(buffers["max_val"].sum().item<float>() == 2.0F);
    CHECK(buffers["recorded"].item<std::int64_t>() == 1);
    CHECK(buffers["min_val"].sizes() == (axis ? torch::IntArrayRef{1} : torch::IntArrayRef{}));
    for (const auto& buffer : before)
      CHECK(buffers[buffer.key()].is_same(buffer.value()));
  }
}

TEST_CASE("case 64: one recorder called twice sees the joint range", "[recorders]") {
  for (const bool reversed : {false, true}) {
    Recorder recorder;
    recorder.forward(values({0.0F, reversed ? 10.0F : 1.0F}));
    recorder.forward(values({0.0F, reversed ? 1.0F : 10.0F}));
    CHECK(min_of(recorder) == 0.0F);
    CHECK(max_of(recorder) == 10.0F);
  }
  auto average = recorder_of(RecorderKind::kMinMaxMva, std::nullopt, 0.5);
  average.forward(values({0.0F, 1.0F}));
  average.forward(values({0.0F, 10.0F}));
  CHECK(max_of(average) == 5.5F);  // one update for each call
}

TEST_CASE("case 68: evaluation leaves the range alone", "[recorders]") {
  for (const RecorderKind kind : kKinds) {
    auto recorder = recorder_of(kind);
    recorder.forward(values({0.0F, 1.0F}));
    const auto min = min_of(recorder);
    recorder.eval();
    const auto x = values({-100.0F, 100.0F});
    CHECK(recorder.forward(x).is_same(x));
    CHECK(min_of(recorder) == min);
    CHECK(max_of(recorder) == 1.0F);
    CHECK(recorder.recorded() == 1);
  }
}

TEST_CASE("case 70: a recorded range gives its scale at once", "[recorders]") {
  const qat::IntegerRange narrow(8, qat::Signedness::kSigned, qat::RangeWidth::kNarrow);
  auto recorder = recorder_of(RecorderKind::kAbsMax);
  recorder.record(values({-12.7F, 3.0F}));
  const auto params = qat::affine_params_from_range(recorder.range(), narrow, qat::Symmetry::kSymmetric);
  const auto scale = params.scale.item<float>();
  CHECK(std::fabs(scale - 0.1F) < 1e-7F);
  const auto code = qat::affine_code<qat::Rounding::kHalfToEven>(0.26F, scale, 0.0F, -127.0F, 127.0F);
  CHECK(std::fabs(qat::affine_real(code, scale, 0.0F) - 0.3F) < 1e-6F);
}

TEST_CASE("case 73: B30: the first batch is copied into the average", "[recorders]") {
  for (const RecorderKind kind : {RecorderKind::kMinMaxMva, RecorderKind::kMaxMva}) {
    auto recorder = recorder_of(kind);
    recorder.record(values({0.0F, 8.0F}));
    CHECK(max_of(recorder) == 8.0F);
    recorder.record(values({0.0F, 4.0F}));
    CHECK(std::fabs(max_of(recorder) - 7.96F) < 1e-5F);
  }
}

TEST_CASE("case 76: batches may change in every size but the channels", "[recorders]") {
  const std::vector<std::vector<std::int64_t>> shapes{{4, 3, 8, 8}, {1, 3, 8, 8}, {2, 3, 5, 5}};
  for (const std::optional<std::int64_t> axis :
       {std::optional<std::int64_t>{}, std::optional<std::int64_t>{1}}) {
    auto recorder = recorder_of(RecorderKind::kMinMaxMinMax, axis);
    float max = 0.0F;
    for (const auto& shape : shapes)
      recorder.record(torch::full(shape, ++max));
    CHECK(torch::equal(recorder.range().max, axis ? torch::full({3}, 3.0F) : torch::tensor(3.0F)));
  }
}

TEST_CASE("case 77: reset forgets everything and keeps type and device", "[recorders]") {
  for (const std::optional<std::int64_t> axis :
       {std::optional<std::int64_t>{}, std::optional<std::int64_t>{0}}) {
    for (const RecorderKind kind : {RecorderKind::kMinMaxMinMax, RecorderKind::kMinMaxMva}) {
      auto recorder = recorder_of(kind, axis);
      recorder.record(values({-5.0F, 5.0F}).reshape({1, 2}));
      recorder.reset();
      CHECK(recorder.recorded() == 0);
      CHECK_THROWS_AS(recorder.range(), c10::Error);
      recorder.record(values({0.0F, 1.0F, 0.0F, 1.0F}).reshape({2, 2}));
      CHECK(recorder.range().min.max().item<float>() == 0.0F);
      CHECK(recorder.range().max.min().item<float>() == 1.0F);
      CHECK(recorder.range().min.numel() == (axis ? 2 : 1));
      CHECK(recorder.named_buffers()["min_val"].device() == torch::kCPU);
      CHECK(recorder.named_buffers()["min_val"].scalar_type() == torch::kFloat);
    }
  }
}

TEST_CASE("case 78: ranges combine across processes before they enter the state", "[recorders]") {
  // Two processes take turns: the second one's extremes are known to the first.
  const auto other_min = torch::tensor(-2.0F);
  const auto other_max = torch::tensor(9.0F);
  const Reduced reduced([&](torch::Tensor& min, torch::Tensor& max) {
    min = torch::minimum(min, other_min);
    max = torch::maximum(max, other_max);
  });
  for (const RecorderKind kind : kKinds) {
    auto first = recorder_of(kind);
    auto second = recorder_of(kind);
    first.record(values({0.0F, 1.0F}));
    second.record(values({-2.0F, 9.0F}));
    CHECK(min_of(first) == (is_absolute(kind) ? -9.0F : -2.0F));
    CHECK(max_of(first) == 9.0F);
    CHECK(min_of(first) == min_of(second));
    CHECK(max_of(first) == max_of(second));
    auto idle = recorder_of(kind);  // an empty batch takes part too
    idle.record(torch::empty({0}));
    CHECK(max_of(idle) == 9.0F);
    CHECK(idle.mean_magnitude().item<float>() == 9.0F);  // the other process's, as written above
    CHECK(idle.recorded() == 1);
  }
}

TEST_CASE("case 102: empty batches change nothing", "[recorders]") {
  for (const RecorderKind kind : kKinds) {
    for (const std::optional<std::int64_t> axis :
         {std::optional<std::int64_t>{}, std::optional<std::int64_t>{1}}) {
      auto recorder = recorder_of(kind, axis);
      const auto empty = torch::empty({0, 3}, torch::requires_grad());
      const auto y = recorder.forward(empty);
      CHECK(y.sizes() == torch::IntArrayRef{0, 3});
      y.sum().backward();
      CHECK(recorder.recorded() == 0);
      CHECK_THROWS_AS(recorder.range(), c10::Error);
      recorder.forward(values({0.0F, 0.0F, 0.0F, 1.0F, 1.0F, 1.0F}).reshape({2, 3}));
      const auto range = recorder.range();
      recorder.forward(empty);
      CHECK(torch::equal(recorder.range().min, range.min));
      CHECK(torch::equal(recorder.range().max, range.max));
      CHECK(range.max.max().item<float>() == 1.0F);
      CHECK(recorder.recorded() == 1);
    }
  }
}

TEST_CASE("case 104: integer and boolean tensors pass and are not recorded", "[recorders]") {
  Recorder recorder;
  for (const auto& x : {torch::tensor({0, 5, 300}, torch::kLong), torch::tensor({true, false})}) {
    CHECK(recorder.forward(x).is_same(x));
    CHECK(recorder.recorded() == 0);
  }
}

TEST_CASE("B28: an all-zero range of the absolute recorders has a positive scale", "[recorders]") {
  for (const RecorderKind kind : {RecorderKind::kAbsMax, RecorderKind::kMaxMax, RecorderKind::kMaxMva}) {
    auto recorder = recorder_of(kind);
    recorder.record(torch::zeros({2, 4}));
    for (const auto rounding : {qat::PowerOfTwo::kNotRound, qat::PowerOfTwo::kRound}) {
      const auto params =
          qat::affine_params_from_range(recorder.range(), {}, qat::Symmetry::kSymmetric, rounding);
      CHECK(params.scale.item<float>() > 0.0F);
    }
  }
}

TEST_CASE("B29: the maximum recorders see negative data", "[recorders]") {
  for (const RecorderKind kind : {RecorderKind::kMaxMax, RecorderKind::kMaxMva}) {
    auto recorder = recorder_of(kind);
    recorder.record(values({-8.0F, -1.0F}));
    CHECK(min_of(recorder) == -8.0F);
    CHECK(max_of(recorder) == 8.0F);
  }
}

TEST_CASE("B31: scales from a recorder cover the range that was seen", "[recorders]") {
  Recorder recorder;
  recorder.record(values({0.0F, 1.0F, 2.0F, 4.0F}));
  const auto params = qat::affine_params_from_range(recorder.range(), {}, qat::Symmetry::kSymmetric);
  CHECK(params.scale.item<float>() * 127.0F == 4.0F);
}

TEST_CASE("B32: the gradient passes a recorder unchanged", "[recorders]") {
  for (const RecorderKind kind : kKinds) {
    auto recorder = recorder_of(kind);
    const auto x = torch::randn({4}, torch::requires_grad());
    const auto gradient = values({10.0F, 11.0F, -3.0F, 3.0F});
    recorder.forward(x).backward(gradient);
    CHECK(torch::equal(x.grad(), gradient));
    recorder.forward(x).backward(gradient);
    CHECK(torch::equal(x.grad(), 2.0F * gradient));
  }
}
