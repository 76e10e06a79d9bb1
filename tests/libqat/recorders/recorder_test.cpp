#include <qat/recorders/recorder.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "support/catch.h"

using qat::Recorder;
using qat::RecorderBehaviour;
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

torch::Tensor values(std::vector<float> data) {
  return torch::tensor(data);
}

float min_of(const Recorder& recorder) {
  return recorder.range().min.item<float>();
}
float max_of(const Recorder& recorder) {
  return recorder.range().max.item<float>();
}

}  // namespace

TEST_CASE("Extremes are kept over batches", "[recorders]") {
  auto recorder = recorder_of(RecorderKind::kMinMaxMinMax);
  recorder.record(values({-1.0F, 2.0F}));
  recorder.record(values({0.5F, 0.25F}));
  recorder.record(values({-3.0F, 1.0F}));
  CHECK(min_of(recorder) == -3.0F);
  CHECK(max_of(recorder) == 2.0F);
  CHECK(recorder.recorded() == 3);
}

TEST_CASE("Moving averages follow their formula from the first batch on", "[recorders]") {
  auto recorder = recorder_of(RecorderKind::kMinMaxMva, std::nullopt, 0.75);
  recorder.record(values({-1.0F, 2.0F}));
  CHECK(min_of(recorder) == -1.0F);
  CHECK(max_of(recorder) == 2.0F);
  recorder.record(values({-3.0F, 1.0F}));
  CHECK(min_of(recorder) == -1.5F);  // 0.75 * -1 + 0.25 * -3
  CHECK(max_of(recorder) == 1.75F);  // 0.75 * 2 + 0.25 * 1
}

TEST_CASE("Absolute recorders keep a symmetric range", "[recorders]") {
  for (const RecorderKind kind : {RecorderKind::kAbsMax, RecorderKind::kMaxMax}) {
    auto recorder = recorder_of(kind);
    recorder.record(values({-3.0F, 1.0F}));
    recorder.record(values({2.0F, 1.0F}));
    CHECK(min_of(recorder) == -3.0F);
    CHECK(max_of(recorder) == 3.0F);
  }
  auto average = recorder_of(RecorderKind::kMaxMva, std::nullopt, 0.5);
  average.record(values({-3.0F, 1.0F}));
  average.record(values({2.0F, 1.0F}));
  CHECK(max_of(average) == 2.5F);
  CHECK(min_of(average) == -2.5F);
}

TEST_CASE("Recorders per channel take any axis", "[recorders]") {
  torch::manual_seed(5);
  const auto x = torch::randn({2, 3, 4});
  for (const std::int64_t axis : {0, 1, 2, -1, -2, -3}) {
    auto recorder = recorder_of(RecorderKind::kMinMaxMinMax, axis);
    recorder.record(x);
    recorder.record(2.0F * x);
    const auto rows = x.movedim(axis, 0).flatten(1) * 2.0F;
    CAPTURE(axis);
    CHECK(torch::equal(recorder.range().min, torch::minimum(rows.amin(1), rows.amin(1) / 2.0F)));
    CHECK(torch::equal(recorder.range().max, torch::maximum(rows.amax(1), rows.amax(1) / 2.0F)));
  }
}

TEST_CASE("A recorder returns the tensor itself and reads strided half tensors", "[recorders]") {
  Recorder recorder;
  const auto x = values({1.0F, 9.0F, -2.0F, 9.0F}).to(torch::kHalf).reshape({2, 2}).select(1, 0);
  const auto y = recorder.forward(x);
  CHECK(y.is_same(x));
  CHECK(min_of(recorder) == -2.0F);
  CHECK(max_of(recorder) == 1.0F);
  CHECK(recorder.range().min.scalar_type() == torch::kFloat);
}

TEST_CASE("A batch with another number of channels is refused and changes nothing", "[recorders]") {
  auto recorder = recorder_of(RecorderKind::kMinMaxMinMax, 1);
  recorder.record(torch::ones({2, 3}));
  try {
    recorder.record(torch::full({2, 4}, 7.0F));
    FAIL("accepted");
  } catch (const c10::ValueError& error) {
    const std::string text = error.what_without_backtrace();
    CHECK(text.find("3 channels") != std::string::npos);
    CHECK(text.find("[2, 4]") != std::string::npos);
  }
  CHECK_THROWS_AS(recorder.record(torch::ones({3})), c10::IndexError);
  CHECK(torch::equal(recorder.range().max, torch::ones({3})));
  CHECK(recorder.recorded() == 1);
}

TEST_CASE("The range of a recorder that saw nothing is an error", "[recorders]") {
  for (const RecorderKind kind : kKinds)
    CHECK_THROWS_AS(recorder_of(kind).range(), c10::Error);
}

TEST_CASE("The range is a copy", "[recorders]") {
  Recorder recorder;
  recorder.record(values({-1.0F, 1.0F}));
  const auto range = recorder.range();
  recorder.record(values({-5.0F, 5.0F}));
  CHECK(range.max.item<float>() == 1.0F);
}

TEST_CASE("A decay outside of 0 to 1 is refused", "[recorders]") {
  for (const double decay : {-0.1, 1.0, 1.5, std::nan("")}) {
    CHECK_THROWS_AS(Recorder({.kind = RecorderKind::kMaxMva, .decay = decay}), c10::ValueError);
  }
  auto last = recorder_of(RecorderKind::kMinMaxMva, std::nullopt, 0.0);
  last.record(values({-1.0F, 1.0F}));
  last.record(values({-2.0F, 5.0F}));
  CHECK(max_of(last) == 5.0F);
}

TEST_CASE("Complex tensors are refused", "[recorders]") {
  Recorder recorder;
  CHECK_THROWS_AS(recorder.record(torch::ones({1}, torch::kComplexFloat)), c10::TypeError);
}

TEST_CASE("Recorder names are read back", "[recorders]") {
  for (const RecorderKind kind : kKinds) {
    CHECK(qat::parse_recorder_kind(qat::to_string(kind)) == kind);
    CHECK(qat::parse_recorder_kind(qat::to_string(kind) + "RecorderCallback") == kind);
  }
  CHECK(qat::parse_recorder_kind("absmax") == RecorderKind::kAbsMax);
  try {
    qat::parse_recorder_kind("Entropy");
    FAIL("accepted");
  } catch (const c10::ValueError& error) {
    CHECK(
        std::string(error.what_without_backtrace()).find("MinMaxMinMax, AbsMax, MinMaxMva, MaxMax, MaxMva") !=
        std::string::npos);
  }
}

TEST_CASE("A recorder prints its kind and options", "[recorders]") {
  std::ostringstream text;
  Recorder({.kind = RecorderKind::kMinMaxMva, .axis = 1}).pretty_print(text);
  CHECK(text.str() == "qat::MinMaxMva(axis=1, decay=0.99, recorded=0)");
  text.str("");
  Recorder recorder({.kind = RecorderKind::kMaxMax, .behaviour = RecorderBehaviour::kNnabla});
  recorder.record(torch::ones({2}));
  recorder.pretty_print(text);
  CHECK(text.str() == "qat::MaxMax(behaviour=nnabla, recorded=1)");
}

TEST_CASE("Batches of NaN do not count", "[recorders]") {
  for (const RecorderKind kind : kKinds) {
    auto recorder = recorder_of(kind, 0, 0.5);
    recorder.record(values({kNan, kNan, 1.0F, kNan}).reshape({2, 2}));  // channel 0 sees nothing
    CHECK(recorder.recorded() == 1);
    CHECK(torch::equal(recorder.range().max, values({0.0F, 1.0F})));
    recorder.record(values({kNan, kNan, kNan, kInfinity}).reshape({2, 2}));
    CHECK(recorder.recorded() == 1);
    recorder.record(values({4.0F, 4.0F, kNan, kNan}).reshape({2, 2}));
    CHECK(recorder.recorded() == 2);
    CHECK(torch::equal(recorder.range().max, values({4.0F, 1.0F})));
  }
}
