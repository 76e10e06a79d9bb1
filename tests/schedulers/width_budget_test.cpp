// Budgets of packed weights and of activations: kept at every step, refused when impossible, learned towards.
#include "learned_net.h"
#include "packed_payload.h"
#include <qat/nn/packed_weights.h>
#include <qat/quantizers/parametric_quantizer.h>
#include <qat/schedulers/checkpoint.h>

#include <fmt/format.h>

#include <cmath>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

using namespace qat;
using namespace qat::testing;

namespace {

// The net has 18 weights in layer 0 and 24 in layer 4, two and three scales, two (folded) and three biases.
constexpr std::int64_t kFixedBytes = 4 * (2 + 2) + 4 * (3 + 3);
constexpr std::int64_t kSmallest = kFixedBytes + 5 + 6;   // 36 and 48 bits
constexpr std::int64_t kLargest = kFixedBytes + 18 + 24;  // 8 bits everywhere

double kilobytes(std::int64_t bytes) {
  return static_cast<double>(bytes) / 1024;
}

QATConfig budget_config(std::int64_t weight_bytes, const std::string& family = "fp_d_xmax") {
  auto config = learned_config(family, family, 8);
  config.weight_budget_kb = kilobytes(weight_bytes);
  return config;
}

/// ceil(log2(round(xmax / d) + 1)) + 1 of the widest channel, in plain numbers.
double width_by_hand(const ParametricQuantizer& quantizer) {
  const auto parameters = quantizer.named_parameters();
  const auto xmax = parameters["xmax"].detach().to(torch::kDouble);
  const auto d = parameters["d"].detach().to(torch::kDouble);
  double widest = 0;
  for (std::int64_t i = 0; i < xmax.numel(); ++i) {
    const double step = std::exp2(std::round(std::log2(d[i].item<double>())));
    widest = std::max(widest, std::ceil(std::log2(std::round(xmax[i].item<double>() / step) + 1)) + 1);
  }
  return widest;
}

const ParametricQuantizer& parametric(nn::Sequential& net, const std::string& path) {
  return dynamic_cast<const ParametricQuantizer&>(*quantizers(net).at(path));
}

/// The size that the penalty speaks of, in kB.
double weights_by_hand(nn::Sequential& net) {
  return (std::min(8.0, width_by_hand(parametric(net, "0.weight_slot"))) * 18 / 8 +
          std::min(8.0, width_by_hand(parametric(net, "4.weight_slot"))) * 24 / 8 + kFixedBytes) /
         1024;
}

/// Bytes of the 16 inputs and the 8 outputs of the ReLU of a sample, at their widths.
std::pair<std::int64_t, std::int64_t> activation_bytes(nn::Sequential& net) {
  const auto bits = widths(net, /*of_weights=*/false);
  return {2 * bits.at("0.input_slot"), bits.at("2.output_slot")};
}

}  // namespace

TEST_CASE("The packed weights are never above the budget", "[schedulers]") {
  for (const std::int64_t bytes : {kSmallest, kSmallest + 9, kLargest - 7}) {
    INFO(bytes << " bytes");
    Run run(budget_config(bytes), /*rate=*/0.05);
    run.step();
    CHECK_NOTHROW(run.scheduler.check());
    run.start();
    CHECK(payload(run.net) <= bytes);
    CHECK(payload(run.net) < kLargest);
    for (int i = 0; i < 10; ++i) {
      CHECK(std::isfinite(run.step()));
      CHECK(payload(run.net) <= bytes);
    }
  }
}

TEST_CASE("The smallest budget leaves codes other than zero", "[schedulers]") {
  auto config = budget_config(kSmallest);
  config.activation_budget_kb = kilobytes(5);  // 2 bits for the input, 1 behind the ReLU
  Run run(config);
  run.start();
  for (const auto& [path, bits] : widths(run.net, true)) {
    INFO(path);
    CHECK(bits == 2);
  }
  CHECK(widths(run.net, false).at("0.input_slot") == 2);
  CHECK(widths(run.net, false).at("2.output_slot") == 1);
}

TEST_CASE("Every family whose width learns keeps the budget", "[schedulers]") {
  for (const auto& family : weight_quantizer_names()) {
    if (!has_learned_width(family)) continue;
    INFO(family);
    // Power-of-two weights can have one bit.
    const std::int64_t smallest = family.starts_with("pow2") ? kFixedBytes + 3 + 3 : kSmallest;
    for (const std::int64_t bytes : {smallest, smallest + 5}) {
      Run run(budget_config(bytes, family));
      CHECK_NOTHROW(run.scheduler.check());
      run.start();
      CHECK(payload(run.net) <= bytes);
      for (int i = 0; i < 3; ++i) {
        CHECK(std::isfinite(run.step()));
        CHECK(payload(run.net) <= bytes);
      }
    }
    Run refused(budget_config(smallest - 1, family));
    CHECK(error_lacks([&] { refused.scheduler.check(); }, {std::to_string(smallest) + " bytes"}) == "");
  }
}

TEST_CASE("Parameters that ask for more bits than before do not break the budget", "[schedulers]") {
  Run run(budget_config(kSmallest + 4));
  run.start();
  for (const double factor : {0x1p-8, 0x1p4, 0x1p-12}) {
    for (auto& [path, parameter] : learnables(run.net)) {
      const torch::NoGradGuard no_grad;
      if (path.ends_with("weight_slot.d")) parameter.mul_(factor);
    }
    run.scheduler.step();  // as after_optimizer_step()
    CHECK(payload(run.net) <= kSmallest + 4);
  }
}

TEST_CASE("A budget that does not bind leaves the configured widths", "[schedulers]") {
  for (const std::int64_t bytes : {kLargest, 10 * kLargest}) {
    Run free(learned_config("fp_d_xmax", "fp_d_xmax", 8));
    Run run(budget_config(bytes));
    free.start();
    run.start();
    for (const bool of_weights : {true, false})
      CHECK(widths(run.net, of_weights) == widths(free.net, of_weights));
    CHECK(mismatch(run.evaluate(), free.evaluate()) == "");
    // Under a budget gradients are clipped: the runs part, and this one stays within its limits.
    for (int i = 0; i < 3; ++i)
      run.step();
    CHECK(payload(run.net) <= bytes);
    CHECK(run.scheduler.penalty().item<double>() == 0);
  }
}

TEST_CASE("A budget below the smallest size is refused in FLOAT and the named size works", "[schedulers]") {
  for (const auto folding : {BatchNormFolding::kOnce, BatchNormFolding::kOff}) {
    // Without folding the convolution has no bias.
    const std::int64_t smallest = folding == BatchNormFolding::kOnce ? kSmallest : kSmallest - 8;
    auto config = budget_config(smallest - 1);
    config.bn_folding = folding;
    Run run(config);
    const auto before = model_digest(*run.net);
    const auto named = fmt::format("{:.4f} kB", std::ceil(kilobytes(smallest) * 1e4) / 1e4);
    CHECK(error_lacks([&] { run.scheduler.check(); },
                      {"weight_budget_kb", std::to_string(smallest) + " bytes", named}) == "");
    CHECK(run.scheduler.phase() == Phase::kFloat);
    CHECK(model_digest(*run.net) == before);

    // Who goes on without check() is told before quantizers come.
    run.scheduler.start_recording();
    run.net->forward(images());
    const auto recording = model_digest(*run.net);
    CHECK(error_lacks([&] { run.scheduler.start_training(); }, {"weight_budget_kb", named}) == "");
    CHECK(run.scheduler.phase() == Phase::kRecording);
    CHECK(model_digest(*run.net) == recording);

    config.weight_budget_kb = std::stod(named);
    Run possible(config);
    CHECK_NOTHROW(possible.scheduler.check());
    possible.start();
    CHECK(payload(possible.net) == smallest);
    CHECK(std::isfinite(possible.step()));
  }
}

TEST_CASE("check() refuses a model that holds quantizers already", "[schedulers]") {
  Run run(learned_config("lsq", "lsq"));
  run.start();
  QATScheduler again(run.net, {images()}, learned_config("lsq", "lsq"));
  CHECK(error_lacks([&] { again.check(); }, {"slots already", "restore()"}) == "");
  CHECK_NOTHROW(run.scheduler.check());  // it leads the model itself
}

TEST_CASE("The penalty is the squared excess of the size", "[schedulers]") {
  for (const std::int64_t bytes : {kSmallest, kSmallest + 9, kLargest - 7}) {
    auto config = budget_config(bytes);
    config.budget_penalty = 0.3;
    Run run(config);
    CHECK(run.scheduler.penalty().item<double>() == 0);  // in FLOAT
    run.start();
    const double size = weights_by_hand(run.net);
    REQUIRE(size > config.weight_budget_kb);
    const double expected = 0.3 * std::pow(size - config.weight_budget_kb, 2);
    CHECK(run.scheduler.penalty().scalar_type() == torch::kDouble);
    CHECK(run.scheduler.penalty().item<double>() == Approx(expected).epsilon(1e-9));
    run.step();
    const double later = 0.3 * std::pow(std::max(0.0, weights_by_hand(run.net) - config.weight_budget_kb), 2);
    CHECK(run.scheduler.penalty().item<double>() == Approx(later).epsilon(1e-9));
  }
  Run fitting(budget_config(kLargest));
  fitting.start();
  CHECK(fitting.scheduler.penalty().item<double>() == 0);
}

TEST_CASE("Steps along the penalty alone bring the widths within the budget", "[schedulers]") {
  auto config = budget_config(kSmallest + 10);
  config.budget_penalty = 1;
  Run run(config);
  run.start();
  std::vector<torch::Tensor> parameters;
  for (const auto& [path, parameter] : learnables(run.net)) {
    if (path.find("weight_slot") != std::string::npos) parameters.push_back(parameter);
  }
  torch::optim::SGD optimizer(parameters, 1.0);
  const double first = weights_by_hand(run.net);
  double last = run.scheduler.penalty().item<double>();
  for (int i = 0; i < 200 && last > 0; ++i) {
    optimizer.zero_grad();
    run.scheduler.penalty().backward();
    optimizer.step();
    run.scheduler.after_optimizer_step();
    const double now = run.scheduler.penalty().item<double>();
    CHECK(now <= last);
    last = now;
  }
  CHECK(last == 0);
  CHECK(weights_by_hand(run.net) < first);
  CHECK(weights_by_hand(run.net) <= config.weight_budget_kb);
}

TEST_CASE("The same parameters give the same widths, also after a restart", "[schedulers]") {
  const Folder folder;
  auto config = budget_config(kSmallest + 9);
  config.activation_budget_kb = kilobytes(14);
  Run run(config);
  run.start();
  for (int i = 0; i < 3; ++i)
    run.step();
  const auto expected = run.evaluate();
  const auto bits = widths(run.net, true);
  for (int i = 0; i < 2; ++i)
    run.scheduler.after_optimizer_step();
  CHECK(widths(run.net, true) == bits);
  CHECK(mismatch(run.evaluate(), expected) == "");

  save_checkpoint(folder.file("m.qat"), *run.net, {{"scheduler", run.scheduler.state()}});
  const double penalty = run.scheduler.penalty().item<double>();
  CHECK(penalty > 0);
  const auto continued = [&](const QATConfig& with) {
    auto net = small_net();
    const auto info = load_checkpoint(folder.file("m.qat"), *net);
    QATScheduler scheduler(net, {images()}, with);
    scheduler.restore(info.entries.at("scheduler"));
    CHECK(mismatch(Run::evaluated(net), expected) == "");
    if (with == config) CHECK(scheduler.penalty().item<double>() == penalty);
    scheduler.after_optimizer_step();
    return net;
  };
  auto same = continued(config);
  CHECK(widths(same, true) == bits);
  CHECK(mismatch(Run::evaluated(same), expected) == "");
  CHECK(payload(same) == payload(run.net));

  auto other = config;
  other.weight_budget_kb = kilobytes(kSmallest + 3);
  auto tighter = continued(other);
  CHECK(payload(tighter) <= kSmallest + 3);
}

TEST_CASE("The activation budget limits the sum or the largest", "[schedulers]") {
  auto config = learned_config("fp_d_xmax", "fp_d_xmax", 8);
  config.activation_budget_kb = kilobytes(12);
  Run sum(config);
  CHECK_NOTHROW(sum.scheduler.check());
  sum.start();
  config.activation_budget = ActivationBudget::kLargest;
  config.activation_budget_kb = kilobytes(8);
  Run largest(config);
  CHECK_NOTHROW(largest.scheduler.check());
  largest.start();
  CHECK(activation_bytes(largest.net).second > 4);  // the smaller tensor keeps its bits
  for (int i = 0; i < 5; ++i) {
    const auto [input, relu] = activation_bytes(sum.net);
    CHECK(input + relu <= 12);
    const auto [largest_input, largest_relu] = activation_bytes(largest.net);
    CHECK(std::max(largest_input, largest_relu) <= 8);
    CHECK(std::isfinite(sum.step()));
    CHECK(std::isfinite(largest.step()));
  }
  CHECK(sum.scheduler.penalty().item<double>() > 0);
  CHECK(largest.scheduler.penalty().item<double>() > 0);
}

TEST_CASE("An activation budget that check() takes is kept", "[schedulers]") {
  for (const auto kind : {ActivationBudget::kSum, ActivationBudget::kLargest}) {
    for (const std::int64_t bytes : {1, 2, 3, 4, 5, 6}) {
      INFO((kind == ActivationBudget::kSum ? "sum, " : "largest, ") << bytes << " bytes");
      auto config = learned_config("fp_d_xmax", "fp_d_xmax", 8);
      config.activation_budget = kind;
      config.activation_budget_kb = kilobytes(bytes);
      Run run(config);
      // The input may be negative: 16 elements of 2 bits. The ReLU's 8 are not: 1 bit.
      if (bytes < (kind == ActivationBudget::kSum ? 5 : 4)) {
        CHECK(error_lacks([&] { run.scheduler.check(); }, {"activation_budget_kb"}) == "");
        continue;
      }
      CHECK_NOTHROW(run.scheduler.check());
      run.start();
      const auto [input, relu] = activation_bytes(run.net);
      CHECK((kind == ActivationBudget::kSum ? input + relu : std::max(input, relu)) <= bytes);
    }
  }
}
