// What users of other tools met when they saved, moved and shared models.
#include "learned_net.h"
#include <qat/nn/packed_weights.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/schedulers/checkpoint.h>

#include <ATen/Parallel.h>

#include <thread>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

using namespace qat;
using namespace qat::testing;

namespace {

QATConfig planned(std::int64_t recording, std::int64_t training) {
  QATConfig config = everything();
  config.niter_to_recording = recording;
  config.niter_to_training = training;
  return config;
}

/// One iteration of a training loop that calls step(); the loss.
double iterate(Run& run, std::int64_t iteration) {
  run.scheduler.step();
  run.optimizer.zero_grad();
  const auto loss = run.net->forward(images(static_cast<std::uint64_t>(iteration))).square().mean();
  loss.backward();
  run.optimizer.step();
  return loss.item<double>();
}

std::vector<double> losses(Run& run, std::int64_t first, std::int64_t last) {
  std::vector<double> result;
  for (std::int64_t i = first; i < last; ++i)
    result.push_back(iterate(run, i));
  return result;
}

void save(Run& run, const std::string& path) {
  save_checkpoint(path, *run.net, {{"scheduler", run.scheduler.state()}}, &run.optimizer);
}

void load(Run& run, const std::string& path) {
  const auto entries = load_checkpoint(path, *run.net).entries;
  run.scheduler.restore(entries.at("scheduler"));
  load_optimizer(path, *run.net, run.optimizer);
}

}  // namespace

TEST_CASE("case 55: a run that is resumed keeps its plan of phases and its losses", "[schedulers]") {
  const auto config = planned(10, 20);
  const Folder folder;
  Run whole(config);
  auto expected = losses(whole, 0, 15);
  save(whole, folder.file("recording.qat"));
  const auto further = losses(whole, 15, 25);
  save(whole, folder.file("training.qat"));
  const auto last = losses(whole, 25, 26);

  Run resumed(config);
  load(resumed, folder.file("recording.qat"));
  CHECK(resumed.scheduler.phase() == Phase::kRecording);
  auto found = losses(resumed, 15, 20);
  CHECK(resumed.scheduler.phase() == Phase::kRecording);
  found.push_back(iterate(resumed, 20));
  CHECK(resumed.scheduler.phase() == Phase::kTraining);
  for (const double loss : losses(resumed, 21, 25))
    found.push_back(loss);
  CHECK(found == further);

  Run later(config);
  load(later, folder.file("training.qat"));
  CHECK(later.scheduler.phase() == Phase::kTraining);
  CHECK(losses(later, 25, 26) == last);
}

TEST_CASE("A run whose biases went beyond int32 goes on, and refuses to evaluate", "[schedulers]") {
  const auto config = learned_config("lsq", "lsq", 8);
  const Folder folder;
  Run run(config);
  run.start();
  {
    const torch::NoGradGuard no_grad;
    layer<nn::Linear>(run.net, 4).bias_parameter()->fill_(1e12);
  }
  CHECK_NOTHROW(run.net->forward(images()));
  save(run, folder.file("beyond.qat"));
  Run resumed(config);
  CHECK_NOTHROW(load(resumed, folder.file("beyond.qat")));
  CHECK_NOTHROW(resumed.net->forward(images()));
  resumed.net->eval();
  CHECK(error_lacks([&] { resumed.net->forward(images()); }, {"'4'", "int32"}) == "");
}

TEST_CASE("case 57: what was recorded so far survives eval mode, saving and loading", "[schedulers]") {
  const Folder folder;
  Run run(planned(0, 30));
  for (int i = 0; i < 5; ++i)
    iterate(run, i);
  run.net->eval();
  const auto output = run.net->forward(images());  // the float network's: nothing is quantized yet
  save(run, folder.file("early.qat"));

  Run loaded(planned(0, 30));
  load(loaded, folder.file("early.qat"));
  const auto recorder = [](Run& of) {
    return std::dynamic_pointer_cast<Recorder>(layer<nn::ReLU>(of.net, 2).slot({nn::SlotId::Kind::kOutput}));
  };
  REQUIRE(recorder(loaded));
  CHECK(recorder(loaded)->recorded() == 5);
  CHECK(recorder(loaded)->range().max.equal(recorder(run)->range().max));
  loaded.net->eval();
  CHECK(loaded.net->forward(images()).equal(output));
  CHECK(recorder(loaded)->recorded() == 5);
}

TEST_CASE("case 81: ranges and scales are the same bits after a conversion there and back", "[schedulers]") {
  for (const char* family : {"affine", "lsq", "fp_d_xmax"}) {
    INFO(family);
    auto config = learned_config(family, family, 8);
    config.weight_range_current = false;
    Run run(config);
    run.scheduler.start_recording();
    run.net->forward(images());
    const auto tensors = [&] {
      std::map<std::string, torch::Tensor> all;
      for (const auto& buffer : run.net->named_buffers()) {
        if (buffer.key().find("_slot.") != std::string::npos) all[buffer.key()] = buffer.value().clone();
      }
      for (const auto& parameter : run.net->named_parameters()) {
        if (parameter.key().find("_slot.") != std::string::npos)
          all[parameter.key()] = parameter.value().clone();
      }
      return all;
    };
    const auto check = [&] {
      const auto before = tensors();
      run.net->to(torch::kDouble);
      CHECK_NOTHROW(run.net->forward(images().to(torch::kDouble)));
      run.net->to(torch::kFloat);
      CHECK_NOTHROW(run.net->forward(images()));
      for (const auto& [name, tensor] : tensors()) {
        INFO(name);
        CHECK(tensor.dtype() == before.at(name).dtype());
        CHECK(tensor.equal(before.at(name)));
      }
    };
    run.net->eval();
    check();
    run.net->train();
    run.scheduler.start_training();
    run.net->eval();
    check();
  }
}

TEST_CASE("case 106: eight threads evaluate one model to the bits of one thread", "[schedulers]") {
  for (const char* family : {"affine", "lsq", "pow2_xmin_xmax"}) {
    INFO(family);
    Run run(learned_config(family, family, 4));
    run.start();
    run.step();
    run.net->eval();
    const auto x = images(3);
    std::vector<torch::Tensor> outputs(8);
    std::vector<std::thread> threads;
    for (auto& output : outputs) {
      threads.emplace_back([&] {
        const torch::NoGradGuard no_grad;
        output = run.net->forward(x);  // the first call too
        for (int i = 0; i < 50; ++i) {
          if (!run.net->forward(x).equal(output)) output = torch::Tensor();
          if (!output.defined()) return;
        }
      });
    }
    for (auto& thread : threads)
      thread.join();
    const torch::NoGradGuard no_grad;
    const auto expected = run.net->forward(x);
    for (const auto& output : outputs) {
      REQUIRE(output.defined());
      CHECK(output.equal(expected));
    }
  }
}

TEST_CASE("case 118: a weight that doubles in one step has its new range at once, packed too",
          "[schedulers]") {
  QATConfig config = everything();
  config.recorder_weight = RecorderKind::kMinMaxMva;
  config.recorder_decay = 0.99;
  Run run(config);
  auto& weighted = layer<nn::Linear>(run.net, 4);
  const torch::NoGradGuard no_grad;
  weighted.weight_parameter()->fill_(1.0);
  run.scheduler.start_recording();
  run.net->forward(images());
  run.scheduler.start_training();
  weighted.weight_parameter()->fill_(2.0);
  run.net->eval();
  const auto quantizer = std::dynamic_pointer_cast<Quantizer>(weighted.slot({nn::SlotId::Kind::kWeight}));
  const auto quantized = quantizer->forward(*weighted.weight_parameter());
  CHECK(quantized.equal(torch::full_like(quantized, 2.0)));
  const auto packed = nn::pack_weights(*run.net);
  REQUIRE(packed.back().first == "4");
  CHECK(mismatch(unpack_weight(packed.back().second), quantized) == "");
}
