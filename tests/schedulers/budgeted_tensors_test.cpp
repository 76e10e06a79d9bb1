// What budgets count: every quantized tensor of the model, at the width of its quantizer.
#include "learned_net.h"
#include "packed_payload.h"
#include "schedulers/width_budget.h"
#include <qat/nn/packed_weights.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/quantizers/parametric_quantizer.h>
#include <qat/schedulers/checkpoint.h>

#include <fmt/format.h>

#include <cmath>

#include "support/catch.h"
#include "support/errors.h"

using namespace qat;
using namespace qat::testing;

namespace {

constexpr nn::SlotId kWeight{nn::SlotId::Kind::kWeight};

QATConfig with_weight_budget(QATConfig config, std::int64_t bytes) {
  config.weight_budget_kb = static_cast<double>(bytes) / 1024;
  return config;
}

QATConfig with_activation_budget(std::int64_t bytes, ActivationBudget kind = ActivationBudget::kSum) {
  auto config = learned_config("fp_d_xmax", "fp_d_xmax", 8);
  config.activation_budget_kb = static_cast<double>(bytes) / 1024;
  config.activation_budget = kind;
  return config;
}

/// The linear layer of the small net is skipped: its weight stays real.
QATConfig with_real_linear() {
  auto config = learned_config("fp_d_xmax", "fp_d_xmax", 8);
  config.skip_outputs_layers = {"Linear"};
  return config;
}

/// Asks for ten bits: xmax is 256 steps.
std::shared_ptr<ParametricQuantizer> wide_quantizer(bool compatible = false) {
  ParametricOptions options;
  options.d = Learnable{0x1p-8, 0x1p-10, 1};
  options.xmax = Learnable{1, 0.01, 10};
  options.compatible = compatible;
  return std::make_shared<ParametricQuantizer>(options);
}

/// Up to RECORDING, with one batch; then a quantizer in a slot.
void record_and_set(Run& run, std::size_t index, nn::SlotId id, const std::shared_ptr<Quantizer>& quantizer) {
  run.scheduler.start_recording();
  run.net->forward(images());
  nn::quantizable_layers(*run.net).at(index).second->set_slot(id, quantizer);
}

/// Two convolutions with results of 9 elements, added or joined, and one that reads that.
template <class Joint>
struct TwoImpl : torch::nn::Module {
  nn::Conv2d first = register_module("first", nn::Conv2d(1, 1, 2));
  nn::Conv2d second = register_module("second", nn::Conv2d(1, 1, 2));
  Joint joint = nullptr;
  nn::Conv2d last = nullptr;
  TwoImpl() {
    if constexpr (std::is_same_v<Joint, nn::Cat>) {
      joint = this->register_module("joint", nn::Cat(1));
      last = this->register_module("last", nn::Conv2d(2, 1, 1));
    } else {
      joint = this->register_module("joint", nn::Add());
      last = this->register_module("last", nn::Conv2d(1, 1, 1));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto a = first->forward(x);
    const auto b = second->forward(x);
    if constexpr (std::is_same_v<Joint, nn::Cat>) {
      return last->forward(joint->forward(std::vector<torch::Tensor>{a, b}));
    } else {
      return last->forward(joint->forward(a, b));
    }
  }
};

template <class Joint>
std::shared_ptr<TwoImpl<Joint>> two() {
  torch::manual_seed(0);
  return std::make_shared<TwoImpl<Joint>>();
}

/// The bytes of the activations: their sum, or the largest.
std::int64_t activation_bytes(const QATScheduler& scheduler, ActivationBudget kind = ActivationBudget::kSum) {
  std::int64_t sum = 0;
  std::int64_t largest = 0;
  for (const auto& tensor : scheduler.quantized_tensors()) {
    if (tensor.kind != QuantizedTensor::Kind::kActivation) continue;
    sum += tensor.bytes;
    largest = std::max(largest, tensor.bytes);
  }
  return kind == ActivationBudget::kSum ? sum : largest;
}

/// A line for each of the quantized tensors: "fc.weight_slot 4 bits, 24 elements, 20 bytes".
std::vector<std::string> listed(const QATScheduler& scheduler) {
  std::vector<std::string> lines;
  for (const auto& tensor : scheduler.quantized_tensors()) {
    lines.push_back(fmt::format("{} {}.{} {} bits, {} elements, {} bytes",
                                tensor.kind == QuantizedTensor::Kind::kWeight ? "weight" : "activation",
                                tensor.layer, tensor.slot, tensor.bits, tensor.elements, tensor.bytes));
  }
  return lines;
}

/// The smallest budget that check() takes is `smallest`, and it is kept.
template <class Joint>
void check_smallest(std::int64_t smallest, ActivationBudget kind) {
  QATScheduler refused(two<Joint>(), {images()}, with_activation_budget(smallest - 1, kind));
  CHECK(error_lacks([&] { refused.check(); },
                    {"activation_budget_kb", std::to_string(smallest) + " bytes"}) == "");
  const auto net = two<Joint>();
  QATScheduler scheduler(net, {images()}, with_activation_budget(smallest, kind));
  CHECK_NOTHROW(scheduler.check());
  scheduler.start_recording();
  net->forward(images());
  scheduler.start_training();
  CHECK(activation_bytes(scheduler, kind) <= smallest);
}

}  // namespace

TEST_CASE("A quantizer set by hand in a layer that is skipped is in the weight budget", "[schedulers]") {
  // Layer 0: 18 weights, two scales, two biases; layer 4: 24 weights, one scale, its bias stays real.
  constexpr std::int64_t kFixed = 4 * (2 + 2) + 4;
  constexpr std::int64_t kSmallest = kFixed + 5 + 6;
  const auto config = with_real_linear();
  Run refused(with_weight_budget(config, kSmallest - 1));
  record_and_set(refused, 4, kWeight, wide_quantizer());
  CHECK(error_lacks([&] { refused.scheduler.start_training(); },
                    {"weight_budget_kb", std::to_string(kSmallest) + " bytes"}) == "");
  CHECK(refused.scheduler.phase() == Phase::kRecording);

  Run tight(with_weight_budget(config, kSmallest));
  record_and_set(tight, 4, kWeight, wide_quantizer());
  tight.scheduler.start_training();
  CHECK(payload(tight.net) == kSmallest);

  // A run that resumes counts it too, and knows its own limit still.
  const Folder folder;
  save_checkpoint(folder.file("m.qat"), *tight.net, {{"scheduler", tight.scheduler.state()}});
  CHECK(std::isfinite(tight.step()));
  CHECK(payload(tight.net) == kSmallest);
  const auto resumed = [&](std::int64_t bytes) {
    auto net = small_net();
    const auto info = load_checkpoint(folder.file("m.qat"), *net);
    QATScheduler scheduler(net, {images()}, with_weight_budget(config, bytes));
    scheduler.restore(info.entries.at("scheduler"));
    scheduler.after_optimizer_step();
    return net;
  };
  auto roomy = resumed(kFixed + 18 + 30);
  CHECK(quantizers(roomy).at("4.weight_slot")->bits() == 10);
  auto medium = resumed(kSmallest + 9);
  CHECK(payload(medium) <= kSmallest + 9);
  CHECK(error_lacks([&] { resumed(kSmallest - 1); }, {std::to_string(kSmallest) + " bytes"}) == "");
}

TEST_CASE("A quantizer of fixed width in a layer that is skipped is in the weight budget", "[schedulers]") {
  constexpr std::int64_t kSmallest = 5 + 4 * (2 + 2) + 12 + 4 + 4;  // layer 4: 4 bits, a scale, a zero point
  const auto by_hand = [] {
    auto quantizer = std::make_shared<AffineQuantizer>(
        AffineQuantizerOptions{.range = {4, Signedness::kUnsigned}, .symmetry = Symmetry::kAffine});
    quantizer->set_params(torch::tensor(0.05F), torch::tensor(7, torch::kInt));
    return quantizer;
  };
  Run refused(with_weight_budget(with_real_linear(), kSmallest - 1));
  record_and_set(refused, 4, kWeight, by_hand());
  CHECK(error_lacks([&] { refused.scheduler.start_training(); }, {std::to_string(kSmallest) + " bytes"}) ==
        "");
  Run run(with_weight_budget(with_real_linear(), kSmallest));
  record_and_set(run, 4, kWeight, by_hand());
  run.scheduler.start_training();
  CHECK(payload(run.net) == kSmallest);
}

TEST_CASE("A quantizer set by hand where no activation is quantized is in the activation budget",
          "[schedulers]") {
  // The input of 16 elements and the result of the linear layer, 3 elements, at 2 bits; the ReLU's 8 at 1.
  const auto set = [](Run& run) { record_and_set(run, 4, {nn::SlotId::Kind::kOutput}, wide_quantizer()); };
  Run refused(with_activation_budget(5));
  set(refused);
  CHECK(error_lacks([&] { refused.scheduler.start_training(); }, {"activation_budget_kb", "6 bytes"}) == "");
  Run run(with_activation_budget(6));
  set(run);
  run.scheduler.start_training();
  CHECK(activation_bytes(run.scheduler) == 6);
}

TEST_CASE("A compatible quantizer is refused under a budget and keeps its width without", "[schedulers]") {
  for (const auto& config : {with_real_linear(), learned_config("fp_d_xmax", "fp_d_xmax", 8)}) {
    Run refused(with_weight_budget(config, 10000));
    record_and_set(refused, 4, kWeight, wide_quantizer(/*compatible=*/true));
    const auto digest = model_digest(*refused.net);
    CHECK(error_lacks([&] { refused.scheduler.start_training(); },
                      {"4.weight_slot", "compatible", "weight_budget_kb", "expected"}) == "");
    CHECK_THROWS_AS(refused.scheduler.start_training(), c10::ValueError);
    CHECK(model_digest(*refused.net) == digest);

    Run run(config);
    const auto quantizer = wide_quantizer(/*compatible=*/true);
    record_and_set(run, 4, kWeight, quantizer);
    run.scheduler.start_training();
    CHECK(quantizer->bits() == 10);
    CHECK(std::isfinite(run.step()));
    const Folder folder;
    save_checkpoint(folder.file("m.qat"), *run.net, {{"scheduler", run.scheduler.state()}});
    auto net = small_net();
    const auto info = load_checkpoint(folder.file("m.qat"), *net);
    QATScheduler resumed(net, {images()}, with_weight_budget(config, 10000));
    CHECK(error_lacks([&] { resumed.restore(info.entries.at("scheduler")); }, {"4.weight_slot"}) == "");
  }
  Run activations(with_activation_budget(10000));
  record_and_set(activations, 2, {nn::SlotId::Kind::kOutput}, wide_quantizer(/*compatible=*/true));
  CHECK(error_lacks([&] { activations.scheduler.start_training(); },
                    {"2.output_slot", "compatible", "activation_budget_kb"}) == "");
}

TEST_CASE("Each tensor that shares a scale takes whole bytes", "[schedulers]") {
  // 16 elements of the input, three results of 9, at 2 bits: 4 + 3 + 3 + 3 bytes.
  check_smallest<nn::Add>(13, ActivationBudget::kSum);
  check_smallest<nn::Add>(4, ActivationBudget::kLargest);
}

TEST_CASE("The result of Cat is in the activation budget", "[schedulers]") {
  // 16 elements of the input, two results of 9, and 18 joined, at 2 bits: 4 + 3 + 3 + 5 bytes.
  check_smallest<nn::Cat>(15, ActivationBudget::kSum);
  check_smallest<nn::Cat>(5, ActivationBudget::kLargest);
}

TEST_CASE("Quantized tensors are listed one by one with width and size", "[schedulers]") {
  const auto net = two<nn::Cat>();
  QATScheduler scheduler(net, {images()}, learned_config("lsq", "lsq", 4));
  CHECK(scheduler.quantized_tensors().empty());
  scheduler.start_recording();
  CHECK(scheduler.quantized_tensors().empty());
  net->forward(images());
  scheduler.start_training();
  const std::vector<std::string> expected = {"weight first.weight_slot 4 bits, 4 elements, 10 bytes",
                                             "weight second.weight_slot 4 bits, 4 elements, 10 bytes",
                                             "weight last.weight_slot 4 bits, 2 elements, 9 bytes",
                                             "activation first.input_slot 4 bits, 16 elements, 8 bytes",
                                             "activation first.output_slot 4 bits, 9 elements, 5 bytes",
                                             "activation second.output_slot 4 bits, 9 elements, 5 bytes",
                                             "activation joint.output_slot 4 bits, 18 elements, 9 bytes"};
  CHECK(listed(scheduler) == expected);
}

TEST_CASE("Listed weights have width and size of the packed form, in every family", "[schedulers]") {
  for (const auto& family : all_families()) {
    INFO(family.weights);
    const Folder folder;
    const auto config = learned_config(family.weights, family.activations);
    Run run(config);
    run.start();
    run.step();
    const auto tensors = run.scheduler.quantized_tensors();
    std::size_t index = 0;
    for (const auto& [path, packed] : nn::pack_weights(*run.net)) {
      const auto& tensor = tensors.at(index++);
      CHECK(tensor.layer == path);
      CHECK(tensor.bits == packed.bits);
      CHECK(tensor.bytes == packed.payload_bytes());
    }
    save_checkpoint(folder.file("m.qat"), *run.net, {{"scheduler", run.scheduler.state()}});
    auto net = small_net();
    const auto info = load_checkpoint(folder.file("m.qat"), *net);
    QATScheduler resumed(net, {images()}, config);
    resumed.restore(info.entries.at("scheduler"));
    CHECK(listed(resumed) == listed(run.scheduler));
  }
}

TEST_CASE("golden V40: the penalty of ResNet-20 at 4 bits", "[schedulers]") {
  constexpr std::int64_t kWeights = 268346;
  nn::Sequential net(nn::Linear(nn::LinearOptions(kWeights, 1).bias(false)));
  ParametricOptions options;
  options.d = Learnable{0.125, 0x1p-10, 1};
  options.xmax = Learnable{0.875, 0.01, 10};
  const auto quantizer = std::make_shared<ParametricQuantizer>(options);
  layer<nn::Linear>(net, 0).set_slot(kWeight, quantizer);
  const std::vector<qat::detail::BudgetedSlot> weights = {
      {{"0", kWeight}, {.count = kWeights, .max_bits = 16}, {}}};
  auto config = learned_config("fp_d_xmax", "fp_d_xmax");
  config.weight_budget_kb = 70.1;
  config.budget_penalty = 0.1;
  const auto step = quantizer->named_parameters()["d"];
  const auto slope = [&](const torch::Tensor& value) {
    return torch::autograd::grad({value}, {step})[0].item<double>();
  };
  const auto penalty = qat::detail::size_penalty(weights, {}, qat::detail::layer_map(*net), config);
  CHECK(penalty.item<double>() == Approx(371.22602).epsilon(1e-7));
  const double kilobytes_per_bit = static_cast<double>(kWeights) / 8 / kBytesPerKilobyte;
  CHECK(4 * kilobytes_per_bit == Approx(131.0283203).epsilon(1e-9));
  CHECK(slope(penalty) ==
        Approx(12.185664 * kilobytes_per_bit * slope(quantizer->bit_count())).epsilon(1e-6));

  for (const double budget : {131.03, 200.0}) {
    config.weight_budget_kb = budget;
    const auto none = qat::detail::size_penalty(weights, {}, qat::detail::layer_map(*net), config);
    CHECK(none.item<double>() == 0.0);
    CHECK(slope(none) == 0.0);
  }
}
