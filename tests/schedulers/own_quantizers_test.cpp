// Quantizers that the user puts into slots, sizes of what is stored, widths of layers that hold no quantizer.
#include "learned_net.h"
#include "packed_payload.h"
#include <qat/nn/packed_weights.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/quantizers/learned_step_quantizer.h>
#include <qat/quantizers/parametric_quantizer.h>
#include <qat/schedulers/checkpoint.h>

#include <torch/optim/lbfgs.h>

#include <cmath>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

using namespace qat;
using namespace qat::testing;

namespace {

constexpr nn::SlotId kWeight{nn::SlotId::Kind::kWeight};

/// Nine bits: xmax is 256 steps.
std::shared_ptr<ParametricQuantizer> wide_quantizer() {
  ParametricOptions options;
  options.d = Learnable{0x1p-8, 0x1p-10, 1};
  options.xmax = Learnable{1, 0.01, 10};
  return std::make_shared<ParametricQuantizer>(options);
}

std::int64_t limit(const Quantizer& quantizer) {
  return quantizer.named_buffers()["bits_limit"].item<std::int64_t>();
}

/// Up to RECORDING, with one batch; then a quantizer in the slot of the linear layer's weight.
void record_and_set(Run& run, const std::shared_ptr<Quantizer>& quantizer) {
  run.scheduler.start_recording();
  run.net->forward(images());
  layer<nn::Linear>(run.net, 4).set_slot(kWeight, quantizer);
}

QATConfig with_budget(QATConfig config, std::int64_t bytes) {
  config.weight_budget_kb = static_cast<double>(bytes) / 1024;
  return config;
}

/// Two convolutions into a sum: they share one quantizer.
struct SumImpl : torch::nn::Module {
  nn::Conv2d first = register_module("first", nn::Conv2d(1, 2, 3));
  nn::Conv2d second = register_module("second", nn::Conv2d(1, 2, 3));
  nn::Add add = register_module("add", nn::Add());
  nn::Conv2d last = register_module("last", nn::Conv2d(2, 1, 1));
  torch::Tensor forward(const torch::Tensor& x) {
    const auto a = first->forward(x);
    return last->forward(add->forward(a, second->forward(x)));
  }
};
TORCH_MODULE(Sum);

}  // namespace

TEST_CASE("A parametric quantizer set by hand keeps its own limit of bits", "[schedulers]") {
  for (const std::int64_t own : {3, 16}) {
    INFO(own);
    const Folder folder;
    const auto config = learned_config("fp_d_xmax", "fp_d_xmax", 4);
    Run run(config);
    const auto quantizer = wide_quantizer();
    quantizer->limit_bits(own);
    record_and_set(run, quantizer);
    run.scheduler.start_training();
    CHECK(limit(*quantizer) == own);
    CHECK(quantizer->bits() == (own == 3 ? 3 : 10));  // 256 steps to each side and 0: 513 codes
    run.step();
    CHECK(limit(*quantizer) == own);

    save_checkpoint(folder.file("m.qat"), *run.net, {{"scheduler", run.scheduler.state()}});
    auto net = small_net();
    const auto info = load_checkpoint(folder.file("m.qat"), *net);
    QATScheduler resumed(net, {images()}, config);
    resumed.restore(info.entries.at("scheduler"));
    CHECK(resumed.state() == run.scheduler.state());
    resumed.after_optimizer_step();
    CHECK(limit(*quantizers(net).at("4.weight_slot")) == own);
  }
}

TEST_CASE("A budget lowers a parametric quantizer set by hand within its own limit", "[schedulers]") {
  // Layer 0: 18 weights, two scales, two biases; layer 4: 24 weights, one scale by hand, three biases.
  constexpr std::int64_t kFixed = 4 * (2 + 2) + 4 * (1 + 3);
  constexpr std::int64_t kSmallest = kFixed + 5 + 6;
  auto config = learned_config("fp_d_xmax", "fp_d_xmax", 4);
  Run refused(with_budget(config, kSmallest - 1));
  record_and_set(refused, wide_quantizer());
  CHECK(error_lacks([&] { refused.scheduler.start_training(); }, {std::to_string(kSmallest) + " bytes"}) ==
        "");
  Run tight(with_budget(config, kSmallest));
  record_and_set(tight, wide_quantizer());
  tight.scheduler.start_training();
  CHECK(payload(tight.net) == kSmallest);
  const Folder folder;
  Run roomy(with_budget(config, kFixed + 9 + 30));
  const auto quantizer = wide_quantizer();
  record_and_set(roomy, quantizer);
  roomy.scheduler.start_training();
  CHECK(quantizer->bits() == 10);
  CHECK(payload(roomy.net) <= kFixed + 9 + 30);

  // A run that resumes with less room and then with more knows the own limit still.
  save_checkpoint(folder.file("m.qat"), *tight.net, {{"scheduler", tight.scheduler.state()}});
  auto net = small_net();
  const auto info = load_checkpoint(folder.file("m.qat"), *net);
  QATScheduler resumed(net, {images()}, with_budget(config, kFixed + 9 + 30));
  resumed.restore(info.entries.at("scheduler"));
  resumed.after_optimizer_step();
  CHECK(quantizers(net).at("4.weight_slot")->bits() == 10);
}

TEST_CASE("The size of a quantizer set by hand is its own, zero points included", "[schedulers]") {
  const auto config = learned_config("fp_d_xmax", "fp_d_xmax", 8);  // a scale for each channel
  // Layer 0 at two bits: 5 bytes, two scales, two biases. Layer 4: 24 codes of 4 bits, a scale, a zero point,
  // three biases.
  constexpr std::int64_t kSmallest = 5 + 8 + 8 + 12 + 4 + 4 + 12;
  const auto by_hand = [] {
    auto quantizer = std::make_shared<AffineQuantizer>(
        AffineQuantizerOptions{.range = {4, Signedness::kUnsigned}, .symmetry = Symmetry::kAffine});
    quantizer->set_params(torch::tensor(0.05F), torch::tensor(7, torch::kInt));
    return quantizer;
  };
  Run refused(with_budget(config, kSmallest - 1));
  record_and_set(refused, by_hand());
  CHECK(error_lacks([&] { refused.scheduler.start_training(); }, {std::to_string(kSmallest) + " bytes"}) ==
        "");
  Run run(with_budget(config, kSmallest));
  record_and_set(run, by_hand());
  run.scheduler.start_training();
  CHECK(payload(run.net) == kSmallest);
  run.step();
  CHECK(payload(run.net) == kSmallest);
}

TEST_CASE("A quantizer set by hand that learns needs an optimizer with groups", "[schedulers]") {
  auto net = small_net();
  torch::optim::LBFGS optimizer(net->parameters());
  QATScheduler scheduler(net, {images()}, everything(), &optimizer);
  scheduler.start_recording();
  net->forward(images());
  layer<nn::Linear>(net, 4).set_slot(kWeight, wide_quantizer());
  const auto digest = model_digest(*net);
  CHECK(error_lacks([&] { scheduler.start_training(); }, {"LBFGS", "SGD"}) == "");
  CHECK(scheduler.phase() == Phase::kRecording);
  CHECK(model_digest(*net) == digest);
}

TEST_CASE("A bias quantizer set by hand stays", "[schedulers]") {
  Run run(learned_config("lsq", "lsq"));
  run.scheduler.start_recording();
  run.net->forward(images());
  const auto own =
      std::make_shared<LearnedStepQuantizer>(LearnedStepOptions{.range = {8, Signedness::kSigned}});
  layer<nn::Linear>(run.net, 4).set_slot({nn::SlotId::Kind::kBias}, own);
  run.scheduler.start_training();
  CHECK(layer<nn::Linear>(run.net, 4).slot({nn::SlotId::Kind::kBias}) == own);
  CHECK(std::isfinite(run.step()));
}

TEST_CASE("Biases that stay real are not in the packed size", "[schedulers]") {
  auto config = learned_config("fp_d_xmax", "fp_d_xmax", 8);
  config.skip_bias = true;
  constexpr std::int64_t kSmallest = 5 + 8 + 6 + 12;  // codes and scales of both layers
  Run refused(with_budget(config, kSmallest - 1));
  CHECK(error_lacks([&] { refused.scheduler.check(); }, {std::to_string(kSmallest) + " bytes"}) == "");
  Run run(with_budget(config, kSmallest));
  CHECK_NOTHROW(run.scheduler.check());
  run.start();
  CHECK(payload(run.net) == kSmallest);
}

TEST_CASE("A folded transposed convolution in groups counts all its biases", "[schedulers]") {
  auto config = learned_config("fp_d_xmax", "fp_d_xmax", 8);
  const auto make = [] {
    torch::manual_seed(0);
    return nn::Sequential(nn::ConvTranspose2d(nn::ConvTranspose2dOptions(2, 4, 2).groups(2).bias(false)),
                          nn::BatchNorm2d(4));
  };
  // 16 weights at 2 bits, a scale for each of a group's two channels, four biases.
  constexpr std::int64_t kSmallest = 4 + 8 + 16;
  const auto example = torch::rand({2, 2, 4, 4});
  auto net = make();
  CHECK(error_lacks([&] { QATScheduler(net, {example}, with_budget(config, kSmallest - 1)).check(); },
                    {std::to_string(kSmallest) + " bytes"}) == "");
  QATScheduler scheduler(net, {example}, with_budget(config, kSmallest));
  scheduler.start_recording();
  net->forward(example);
  scheduler.start_training();
  CHECK(payload(net) == kSmallest);
}

TEST_CASE("Widths of layers without such a quantizer are refused before anything is trained",
          "[schedulers]") {
  const auto refusal_lacks = [](const QATConfig& config, std::initializer_list<std::string> words) {
    Run run(config);
    const auto digest = model_digest(*run.net);
    auto lacks = error_lacks([&] { run.scheduler.check(); }, words);
    lacks += error_lacks([&] { run.scheduler.start_recording(); }, words);
    CHECK(run.scheduler.phase() == Phase::kFloat);
    CHECK(model_digest(*run.net) == digest);
    return lacks;
  };
  auto config = learned_config("lsq", "lsq");
  config.layer_weight_bits = {{"2", 4}};
  CHECK(error_lacks([&] { Run run(config); },
                    {"layer_weight_bits", "\"2\"", "has no weight", "the model has 0, 4"}) == "");

  config.layer_weight_bits = {};
  config.layer_activation_bits = {{"4", 6}};  // reads what the ReLU quantizes
  CHECK(refusal_lacks(config, {"layer_activation_bits", "\"4\"", "may name 0, 2"}) == "");
  config.layer_activation_bits = {{"1", 6}};  // folded
  CHECK(refusal_lacks(config, {"layer_activation_bits", "\"1\"", "may name 0, 2"}) == "");

  config = QATConfig{};  // the first convolution and the last linear layer are skipped
  config.skip_outputs_layers = {};
  config.layer_weight_bits = {{"0", 4}};
  CHECK(refusal_lacks(config, {"layer_weight_bits", "\"0\"", "not quantized", "may name 4"}) == "");

  Sum sum;
  config = integer_only_config();
  config.layer_activation_bits = {{"second", 6}};
  QATScheduler scheduler(sum, {images()}, config);
  CHECK(error_lacks([&] { scheduler.start_recording(); },
                    {"layer_activation_bits", "\"second\"", "shares", "\"first\""}) == "");
}

TEST_CASE("Widths that a family of weights cannot have are refused for single layers too", "[schedulers]") {
  const auto refusal_lacks = [](const std::string& family, std::int64_t bits,
                                std::initializer_list<std::string> words) {
    auto config = learned_config(family, "lsq");
    config.layer_weight_bits = {{"4", bits}};
    return error_lacks([&] { Run run(config); }, words);
  };
  CHECK(refusal_lacks("dorefa", 9, {"layer_weight_bits of 4", "[2, 8]", "got 9", "dorefa"}) == "");
  CHECK(refusal_lacks("binary", 8, {"layer_weight_bits of 4", "[1, 1]", "got 8", "binary"}) == "");
  CHECK(refusal_lacks("ternary", 4, {"layer_weight_bits of 4", "[2, 2]", "got 4", "ternary"}) == "");
  CHECK(refusal_lacks("dorefa", 8, {}) == "no exception");
}

TEST_CASE("Scales that collapse to the floor do not end the training, but are not stored", "[schedulers]") {
  Run run(learned_config("lsq", "lsq"));
  run.start();
  run.step();  // the folded bias is no longer 0
  for (auto& [path, parameter] : learnables(run.net)) {
    const torch::NoGradGuard no_grad;
    parameter.fill_(0x1p-63);
  }
  CHECK(std::isfinite(run.step()));
  for (auto& [path, parameter] : learnables(run.net)) {
    const torch::NoGradGuard no_grad;
    parameter.fill_(0x1p-63);
  }
  CHECK(error_lacks([&] { nn::pack_weights(*run.net); }, {"Conv2d '0'", "bias", "int32"}) == "");
}

TEST_CASE("A quantizer set by hand in any slot of a shared scale is the one of all", "[schedulers]") {
  for (const bool second : {false, true}) {
    INFO(second);
    torch::manual_seed(0);
    Sum net;
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01));
    auto config = learned_config("lsq", "lsq");
    config.layer_activation_bits = {{"first", 6}};  // of the slot that the graph makes the owner
    QATScheduler scheduler(net, {images()}, config, &optimizer);
    scheduler.start_recording();
    net->forward(images());
    constexpr nn::SlotId kOutput{nn::SlotId::Kind::kOutput};
    const auto mine = wide_quantizer();
    (second ? net->second : net->first)->set_slot(kOutput, mine);
    scheduler.start_training();
    CHECK((second ? net->second : net->first)->slot(kOutput) == mine);
    const auto* link = (second ? net->first : net->second)->link(kOutput);
    REQUIRE(link);
    CHECK(link->target.lock() == mine);
    CHECK(net->add->link({nn::SlotId::Kind::kInput, 0})->target.lock() == mine);
    CHECK(net->add->link({nn::SlotId::Kind::kInput, 1})->target.lock() == mine);

    const auto state = scheduler.state();
    scheduler.restore(state);
    CHECK((second ? net->second : net->first)->slot(kOutput) == mine);
    net->forward(images()).square().mean().backward();
  }
}

TEST_CASE("Two quantizers set by hand for one scale are refused with both slots", "[schedulers]") {
  torch::manual_seed(0);
  Sum net;
  QATScheduler scheduler(net, {images()}, learned_config("affine", "affine"));
  scheduler.start_recording();
  net->forward(images());
  net->first->set_slot({nn::SlotId::Kind::kOutput}, wide_quantizer());
  net->second->set_slot({nn::SlotId::Kind::kOutput}, wide_quantizer());
  CHECK(error_lacks([&] { scheduler.start_training(); },
                    {"first.output_slot", "second.output_slot", "share one scale"}) == "");
}
