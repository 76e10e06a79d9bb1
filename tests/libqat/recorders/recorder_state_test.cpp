#include <qat/recorders/recorder.h>
#include <qat/tensor_module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "support/catch.h"

using qat::Recorder;
using qat::RecorderKind;

namespace {

std::string saved(const std::shared_ptr<Recorder>& recorder) {
  std::ostringstream file;
  torch::serialize::OutputArchive archive;
  recorder->save(archive);
  archive.save_to(file);
  return file.str();
}

void load(Recorder& recorder, const std::string& text) {
  std::istringstream file(text);
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  recorder.load(archive);
}

std::shared_ptr<Recorder> per_channel() {
  return std::make_shared<Recorder>(qat::RecorderOptions{.kind = RecorderKind::kMinMaxMva, .axis = 1});
}

const torch::Tensor kThreeChannels = torch::tensor({-1.0F, -2.0F, -3.0F, 1.0F, 2.0F, 3.0F}).reshape({2, 3});

}  // namespace

TEST_CASE("case 63: a fresh recorder can be walked and saved and loaded and cloned and moved",
          "[recorders]") {
  for (const std::optional<std::int64_t> axis :
       {std::optional<std::int64_t>{}, std::optional<std::int64_t>{1}}) {
    const auto recorder = std::make_shared<Recorder>(qat::RecorderOptions{.axis = axis});
    for (const auto& buffer : recorder->named_buffers()) {
      CHECK(buffer.value().defined());
      CHECK_FALSE(buffer.value().isnan().any().item<bool>());
    }
    Recorder other({.axis = axis});
    load(other, saved(recorder));
    CHECK(other.recorded() == 0);
    const auto copy = std::dynamic_pointer_cast<Recorder>(recorder->clone());
    REQUIRE(copy);
    CHECK(copy->recorded() == 0);
    recorder->to(torch::kCPU);
    recorder->to(torch::kHalf);
    for (Recorder* each : {recorder.get(), copy.get(), &other}) {
      each->record(kThreeChannels);
      CHECK(each->range().max.max().item<float>() == 3.0F);
      CHECK(each->range().max.scalar_type() == torch::kFloat);
    }
  }
}

TEST_CASE("case 52: a per-channel range loads into a recorder that saw nothing", "[recorders]") {
  const auto recorder = per_channel();
  recorder->record(kThreeChannels);
  const auto file = saved(recorder);
  const auto fresh = per_channel();
  load(*fresh, file);
  CHECK(fresh->recorded() == 1);
  CHECK(torch::equal(fresh->range().min, torch::tensor({-1.0F, -2.0F, -3.0F})));
  CHECK(torch::equal(fresh->range().max, torch::tensor({1.0F, 2.0F, 3.0F})));
  // The loaded state is the state: the next batch is averaged in, not copied.
  fresh->record(torch::zeros({1, 3}));
  CHECK(fresh->range().max[2].item<float>() > 2.9F);
  CHECK(torch::equal(fresh->named_buffers()["max_val"], fresh->range().max));

  const auto four = per_channel();
  four->record(torch::ones({1, 4}));
  try {
    load(*four, file);
    FAIL("accepted");
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    CHECK(text.find("min_val") != std::string::npos);
    CHECK(text.find("[4]") != std::string::npos);
    CHECK(text.find("[3]") != std::string::npos);
  }
  CHECK(torch::equal(four->range().max, torch::ones({4})));
  CHECK(four->recorded() == 1);
}

TEST_CASE("A recorder keeps the largest mean magnitude of a batch", "[recorders]") {
  for (const RecorderKind kind : {RecorderKind::kMinMaxMva, RecorderKind::kAbsMax}) {
    const auto recorder = std::make_shared<Recorder>(qat::RecorderOptions{.kind = kind});
    CHECK(recorder->mean_magnitude().item<float>() == 0.0F);
    recorder->record(torch::tensor({-1.0F, 3.0F}));
    CHECK(recorder->mean_magnitude().item<float>() == 2.0F);
    recorder->record(torch::tensor({-1.0F, 0.0F, 1.0F, 0.0F}));
    CHECK(recorder->mean_magnitude().item<float>() == 2.0F);
    recorder->record(torch::tensor({5.0F}));
    CHECK(recorder->mean_magnitude().item<float>() == 5.0F);
    Recorder fresh;
    load(fresh, saved(recorder));
    CHECK(fresh.mean_magnitude().item<float>() == 5.0F);
    recorder->reset();
    CHECK(recorder->mean_magnitude().item<float>() == 0.0F);
  }
  const auto channels = per_channel();
  channels->record(torch::tensor({{1.0F, -2.0F, 0.0F}, {3.0F, 2.0F, 0.0F}}));
  CHECK(torch::equal(channels->mean_magnitude(), torch::tensor({2.0F, 2.0F, 0.0F})));
}

TEST_CASE("A file per channel does not load into a recorder per tensor", "[recorders]") {
  const auto recorder = per_channel();
  recorder->record(kThreeChannels);
  Recorder per_tensor;
  CHECK_THROWS_AS(load(per_tensor, saved(recorder)), c10::Error);
  CHECK(per_tensor.recorded() == 0);
}

TEST_CASE("A clone of a recorder has its state and goes on by itself", "[recorders]") {
  const auto recorder = per_channel();
  recorder->record(kThreeChannels);
  const auto copy = std::dynamic_pointer_cast<Recorder>(recorder->clone());
  REQUIRE(copy);
  CHECK(copy->options().kind == RecorderKind::kMinMaxMva);
  CHECK(copy->options().axis == 1);
  copy->record(torch::zeros({1, 3}));
  CHECK(copy->recorded() == 2);
  CHECK(recorder->recorded() == 1);
  CHECK(torch::equal(recorder->range().max, torch::tensor({1.0F, 2.0F, 3.0F})));
}

TEST_CASE("A recorder is rebuilt from its configuration", "[recorders]") {
  const Recorder recorder({.kind = RecorderKind::kMaxMva,
                           .axis = -2,
                           .decay = 0.9,
                           .behaviour = qat::RecorderBehaviour::kNnabla});
  CHECK(recorder.config() ==
        R"({"type":"Recorder","kind":"MaxMva","axis":-2,"decay":0.9,"behaviour":"nnabla"})");
  const auto rebuilt = std::dynamic_pointer_cast<Recorder>(qat::make_tensor_module(recorder.config()));
  REQUIRE(rebuilt);
  CHECK(rebuilt->config() == recorder.config());
  const auto per_tensor = std::dynamic_pointer_cast<Recorder>(qat::make_tensor_module(Recorder().config()));
  REQUIRE(per_tensor);
  CHECK_FALSE(per_tensor->options().axis.has_value());
  for (const std::string bad :
       {R"({"type":"Recorder"})", R"({"type":"Recorder","kind":"Max","axis":null})",
        R"({"type":"Recorder","kind":"MaxMva","axis":"x","decay":0.9,"behaviour":"nnabla"})",
        R"({"type":"Recorder","kind":"MaxMva","axis":0,"decay":2,"behaviour":"nnabla"})"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(qat::make_tensor_module(bad), c10::ValueError);
  }
}
