#include "small_net.h"
#include <qat/nn/nn.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/schedulers/qat_scheduler.h>

#include <memory>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace nn = qat::nn;
using namespace qat;
using namespace qat::testing;

namespace {

constexpr nn::SlotId kInput{nn::SlotId::Kind::kInput};
constexpr nn::SlotId kWeight{nn::SlotId::Kind::kWeight};
constexpr nn::SlotId kBias{nn::SlotId::Kind::kBias};
constexpr nn::SlotId kOutput{nn::SlotId::Kind::kOutput};

std::shared_ptr<Recorder> recorder(const nn::QuantizableLayer& layer, nn::SlotId id) {
  return std::dynamic_pointer_cast<Recorder>(layer.slot(id));
}

std::shared_ptr<AffineQuantizer> quantizer(const nn::QuantizableLayer& layer, nn::SlotId id) {
  return std::dynamic_pointer_cast<AffineQuantizer>(layer.slot(id));
}

}  // namespace

TEST_CASE("golden V38: states and learning rate at each step", "[schedulers]") {
  struct Plan {
    std::int64_t recording, training;
    std::vector<Phase> phases;
    std::vector<double> rates;
  };
  constexpr auto kF = Phase::kFloat;
  constexpr auto kR = Phase::kRecording;
  constexpr auto kT = Phase::kTraining;
  for (const auto& plan : {Plan{0, 1, {kR, kT, kT, kT, kT}, {0.1, 0.01, 0.01, 0.01, 0.01}},
                           Plan{1, 3, {kF, kR, kR, kT, kT}, {0.1, 0.1, 0.1, 0.01, 0.01}},
                           Plan{2, 3, {kF, kF, kR, kT, kT}, {0.1, 0.1, 0.1, 0.01, 0.01}}}) {
    auto net = small_net();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    QATConfig config = everything();
    config.niter_to_recording = plan.recording;
    config.niter_to_training = plan.training;
    config.learning_rate_scale = 0.1;
    QATScheduler scheduler(net, {images()}, config, &optimizer);
    CHECK(scheduler.phase() == kF);
    for (std::size_t i = 0; i < plan.phases.size(); ++i) {
      scheduler.step();
      CHECK(scheduler.phase() == plan.phases[i]);
      CHECK(std::abs(optimizer.param_groups()[0].options().get_lr() - plan.rates[i]) < 1e-12);
      train_step(net, optimizer);
    }
    CHECK(scheduler.iteration() == 5);
  }
}

TEST_CASE("case 109: phases switch at their iteration and validation does not count", "[schedulers]") {
  auto net = small_net();
  QATConfig config = everything();
  config.niter_to_recording = 1;
  config.niter_to_training = 5;
  QATScheduler scheduler(net, {images()}, config);
  std::string phases;
  for (int i = 0; i < 7; ++i) {
    scheduler.step();
    phases += to_string(scheduler.phase())[0];
    net->train();
    net->forward(images());
    net->eval();
    for (int validation = 0; validation < 2; ++validation)
      net->forward(images());
  }
  CHECK(phases == "FRRRRTT");
  CHECK(scheduler.iteration() == 7);

  config.niter_to_recording = 5;
  config.niter_to_training = 1;
  CHECK(error_lacks([&] { QATScheduler(small_net(), {images()}, config); }, {"5", "1"}) == "");
}

TEST_CASE("The scheduler checks model and configuration at construction", "[schedulers]") {
  torch::nn::Sequential foreign(torch::nn::Linear(2, 2));
  CHECK(error_lacks([&] { QATScheduler(foreign, {torch::randn({1, 2})}); }, {"no qat::nn layer"}) == "");
  QATConfig config = everything();
  config.weight_bits = 1;
  CHECK(error_lacks([&] { QATScheduler(small_net(), {images()}, config); }, {"weight_bits"}) == "");
  config = everything();
  config.record_layers = {"Conv2D"};
  CHECK(error_lacks([&] { QATScheduler(small_net(), {images()}, config); },
                    {"Conv2D", "Conv2d, Flatten, Linear"}) == "");
}

TEST_CASE("A model in FLOAT is bit for bit its torch twin", "[schedulers]") {
  auto net = small_net();
  torch::nn::Sequential twin(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 2, 3).bias(false)),
                             torch::nn::BatchNorm2d(2), torch::nn::ReLU(), torch::nn::Flatten(),
                             torch::nn::Linear(8, 3));
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < net->parameters().size(); ++i)
      twin->parameters()[i].copy_(net->parameters()[i]);
  }
  QATConfig config = everything();
  config.niter_to_recording = 3;
  config.niter_to_training = 4;
  QATScheduler scheduler(net, {images()}, config);
  scheduler.step();
  CHECK(mismatch(net->forward(images()), twin->forward(images())) == "");
}

TEST_CASE("Recorders come first and quantizers of their ranges follow", "[schedulers]") {
  auto net = small_net();
  QATScheduler scheduler(net, {images()}, everything());
  scheduler.start_recording();
  auto& conv = layer<nn::Conv2d>(net, 0);
  auto& bn = layer<nn::BatchNorm2d>(net, 1);
  auto& relu = layer<nn::ReLU>(net, 2);
  auto& linear = layer<nn::Linear>(net, 4);
  REQUIRE(recorder(conv, kInput));
  REQUIRE(recorder(conv, kWeight));
  REQUIRE(recorder(relu, kOutput));
  REQUIRE(recorder(linear, kWeight));
  CHECK(conv.occupied_slots().size() == 2);
  CHECK(bn.occupied_slots().empty());
  CHECK(relu.occupied_slots().size() == 1);
  CHECK(linear.occupied_slots().size() == 1);
  CHECK(recorder(conv, kInput)->options().kind == RecorderKind::kMinMaxMva);
  CHECK(recorder(conv, kWeight)->options().axis == 0);
  CHECK(scheduler.graph().nodes.size() == 5);

  net->forward(images());
  const auto range = recorder(conv, kInput)->range();
  CHECK(range.min.item<float>() == images().min().item<float>());
  CHECK(range.max.item<float>() == images().max().item<float>());

  scheduler.start_training();
  const auto input = quantizer(conv, kInput);
  REQUIRE(input);
  CHECK(input->options().range == IntegerRange(8, Signedness::kUnsigned));
  CHECK(input->options().symmetry == Symmetry::kAffineEvenZero);
  CHECK(input->affine_params({}).zero_point.item<int>() % 2 == 0);
  const auto output = quantizer(relu, kOutput);
  REQUIRE(output);
  CHECK(output->options().range == IntegerRange(8, Signedness::kUnsigned));
  CHECK(output->affine_params({}).zero_point.item<int>() == 0);
  const auto weight = quantizer(conv, kWeight);
  REQUIRE(weight);
  CHECK(weight->options().range == IntegerRange(8, Signedness::kSigned, RangeWidth::kNarrow));
  CHECK(weight->options().scale_source == ScaleSource::kCurrent);
  CHECK(weight->options().axis == 0);
  CHECK(linear.slot(kBias) != nullptr);
  CHECK(conv.slot(kBias) == nullptr);
  REQUIRE(linear.link(kInput));
  CHECK(linear.link(kInput)->path == "2.output_slot");
  CHECK_FALSE(linear.link(kInput)->applies);
  CHECK(linear.link(kInput)->target.lock() == output);
  CHECK_FALSE(conv.holds_parameters());
}

TEST_CASE("Every numeric field of the configuration reaches recorders and quantizers", "[schedulers]") {
  QATConfig config;
  config.skip_inputs_layers = {};
  config.skip_outputs_layers = {};
  config.weight_bits = 4;
  config.activation_bits = 6;
  config.narrow_range = true;
  config.channel_wise = true;
  config.pow2 = PowerOfTwo::kCeil;
  config.round_mode = Rounding::kHalfAwayFromZero;
  config.straight_through = StraightThrough::kClipped;
  config.recorder_weight = RecorderKind::kAbsMax;
  config.recorder_activation = RecorderKind::kMaxMva;
  config.recorder_decay = 0.5;
  config.skip_bias = true;
  nn::Sequential net(nn::Linear(2, 3));
  QATScheduler scheduler(net, {torch::ones({1, 2})}, config);
  scheduler.start_recording();
  auto& linear = layer<nn::Linear>(net, 0);
  CHECK(recorder(linear, kInput)->options().kind == RecorderKind::kMaxMva);
  CHECK(recorder(linear, kInput)->options().decay == 0.5);
  CHECK(recorder(linear, kWeight)->options().kind == RecorderKind::kAbsMax);
  net->forward(torch::full({1, 2}, 8.0));
  net->forward(torch::full({1, 2}, 4.0));
  scheduler.start_training();

  const auto& input = quantizer(linear, kInput)->options();
  CHECK(input.range == IntegerRange(6, Signedness::kSigned, RangeWidth::kNarrow));
  CHECK(input.symmetry == Symmetry::kSymmetric);
  CHECK(input.power_of_two == PowerOfTwo::kCeil);
  CHECK(input.rounding == Rounding::kHalfAwayFromZero);
  CHECK(input.straight_through == StraightThrough::kClipped);
  // The moving average is 6: 6 / 31 is 0.19, up to 2^-2.
  CHECK(quantizer(linear, kInput)->affine_params({}).scale.item<float>() == 0.25F);
  const auto& weight = quantizer(linear, kWeight)->options();
  CHECK(weight.range == IntegerRange(4, Signedness::kSigned, RangeWidth::kNarrow));
  CHECK(weight.scale_source == ScaleSource::kFixed);
  CHECK(weight.axis == 0);
  CHECK(quantizer(linear, kWeight)->affine_params({}).scale.sizes() == torch::IntArrayRef({3}));
  CHECK(linear.slot(kBias) == nullptr);
}

TEST_CASE("B35: a scheduler without an optimizer makes all transitions", "[schedulers]") {
  auto net = small_net();
  QATScheduler scheduler(net, {images()});
  scheduler.step();
  net->forward(images());
  CHECK(scheduler.phase() == Phase::kRecording);
  scheduler.start_training();
  CHECK(scheduler.phase() == Phase::kTraining);
}

TEST_CASE("Transitions are refused from the wrong phase", "[schedulers]") {
  auto net = small_net();
  QATScheduler scheduler(net, {images()}, everything());
  CHECK(error_lacks([&] { scheduler.start_training(); }, {"FLOAT"}) == "");
  scheduler.start_recording();
  CHECK(error_lacks([&] { scheduler.start_recording(); }, {"RECORDING"}) == "");
  net->forward(images());
  scheduler.start_training();
  CHECK(error_lacks([&] { scheduler.start_training(); }, {"TRAINING"}) == "");
  QATScheduler second(net, {images()}, everything());
  CHECK(error_lacks([&] { second.start_recording(); }, {"slots already"}) == "");
}

TEST_CASE("case 68: evaluation never records", "[schedulers]") {
  auto net = small_net();
  QATScheduler scheduler(net, {images()}, everything());
  scheduler.start_recording();
  net->forward(images());
  auto& conv = layer<nn::Conv2d>(net, 0);
  const auto before = recorder(conv, kInput)->range();
  net->eval();
  net->forward(images() * 100.0);
  CHECK(recorder(conv, kInput)->recorded() == 1);
  CHECK(torch::equal(recorder(conv, kInput)->range().max, before.max));
  net->train();
  scheduler.start_training();
  net->forward(images() * 100.0);
  CHECK(quantizer(conv, kInput)->affine_params({}).scale.item<float>() < 0.1F);
}

TEST_CASE("case 71: training is refused while a slot has recorded nothing", "[schedulers]") {
  auto net = small_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  QATConfig config = everything();
  config.learning_rate_scale = 0.1;
  QATScheduler scheduler(net, {images()}, config, &optimizer);
  scheduler.start_recording();
  net->eval();
  net->forward(images());
  const auto slots = {std::string("0.input_slot"), std::string("0.weight_slot"), std::string("2.output_slot"),
                      std::string("4.weight_slot")};
  CHECK(error_lacks([&] { scheduler.start_training(); }, slots) == "");
  CHECK(scheduler.phase() == Phase::kRecording);
  CHECK(recorder(layer<nn::Conv2d>(net, 0), kInput));
  CHECK(layer<nn::Conv2d>(net, 0).holds_parameters());
  CHECK(optimizer.param_groups()[0].options().get_lr() == 0.1);
  net->train();
  net->forward(images());
  scheduler.start_training();
  CHECK(scheduler.phase() == Phase::kTraining);
}

TEST_CASE("A refused transition leaves the model as it was", "[schedulers]") {
  struct Net : torch::nn::Module {
    nn::Conv2d conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(2, 2, 1).bias(false)));
    nn::BatchNorm2d bn = register_module("bn", nn::BatchNorm2d(2));
    nn::Conv2d twice = register_module("twice", nn::Conv2d(2, 2, 1));
    torch::Tensor forward(torch::Tensor x) {
      return twice->forward(twice->forward(bn->forward(conv->forward(x))));
    }
  };
  auto net = std::make_shared<Net>();
  QATScheduler scheduler(net, {torch::randn({2, 2, 3, 3})}, integer_only_config());
  CHECK(error_lacks([&] { scheduler.start_recording(); }, {"twice", "more than once"}) == "");
  CHECK(scheduler.phase() == Phase::kFloat);
  CHECK_FALSE(net->bn->is_identity());
  CHECK_FALSE(net->conv->bias.defined());
  CHECK(net->conv->occupied_slots().empty());
  CHECK_FALSE(net->conv->holds_parameters());
}

TEST_CASE("case 45: an unfolded BatchNorm is updated once for each recording forward", "[schedulers]") {
  nn::BatchNorm2d bn(1);
  nn::Sequential net(bn, nn::Conv2d(1, 1, 1));
  QATScheduler scheduler(net, {torch::randn({2, 1, 2, 2})}, everything());
  scheduler.start_recording();
  net->forward(torch::full({2, 1, 2, 2}, 4.0) + torch::randn({2, 1, 2, 2}) * 0.0);
  CHECK(std::abs(bn->running_mean.item<float>() - 0.4F) < 1e-6F);
  CHECK(bn->num_batches_tracked.item<std::int64_t>() == 1);
}

TEST_CASE("A residual sum shares one quantizer over the joint range", "[schedulers]") {
  struct Net : torch::nn::Module {
    nn::Linear a = register_module("a", nn::Linear(nn::LinearOptions(1, 1).bias(false)));
    nn::Linear b = register_module("b", nn::Linear(nn::LinearOptions(1, 1).bias(false)));
    nn::Add add = register_module("add", nn::Add());
    nn::Linear c = register_module("c", nn::Linear(nn::LinearOptions(1, 1).bias(false)));
    torch::Tensor forward(torch::Tensor x) {
      const auto first = a->forward(x);  // the order of arguments is the compiler's choice
      return c->forward(add->forward(first, b->forward(x)));
    }
  };
  auto net = std::make_shared<Net>();
  torch::nn::init::constant_(net->a->weight, 1.0);
  torch::nn::init::constant_(net->b->weight, -10.0);
  torch::nn::init::constant_(net->c->weight, 1.0);
  QATScheduler scheduler(net, {torch::ones({2, 1})}, everything());
  scheduler.start_recording();
  // Moving averages: the joint range must not be an average over both operands.
  for (int i = 0; i < 5; ++i)
    net->forward(torch::tensor({{0.0F}, {1.0F}}));
  scheduler.start_training();
  const auto shared = quantizer(*net->a, kOutput);
  REQUIRE(shared);
  // a: [0, 1], b: [-10, 0].
  CHECK(std::abs(shared->affine_params({}).scale.item<float>() - 11.0F / 255.0F) < 1e-3F);
  REQUIRE(net->b->link(kOutput));
  CHECK(net->b->link(kOutput)->applies);
  CHECK(net->b->link(kOutput)->target.lock() == shared);
  CHECK(net->add->link({nn::SlotId::Kind::kInput, 1})->target.lock() == shared);
  net->eval();
  CHECK(std::abs(net->forward(torch::ones({1, 1})).item<float>() + 9.0F) < 0.1F);
  CHECK(net->named_buffers().contains("a.output_slot.scale"));
  CHECK_FALSE(net->named_buffers().contains("b.output_slot.scale"));
}

TEST_CASE("A quantizer that was set by hand is kept", "[schedulers]") {
  auto net = small_net();
  QATScheduler scheduler(net, {images()}, everything());
  scheduler.start_recording();
  net->forward(images());
  auto mine = std::make_shared<AffineQuantizer>();
  mine->set_params(torch::tensor(0.5F), torch::tensor(0, torch::kInt));
  layer<nn::Conv2d>(net, 0).set_slot(kInput, mine);
  scheduler.start_training();
  CHECK(layer<nn::Conv2d>(net, 0).slot(kInput) == mine);
}

TEST_CASE("The summary lists slots and ranges and what has none", "[schedulers]") {
  struct Net : torch::nn::Module {
    nn::Conv2d conv = register_module("conv", nn::Conv2d(1, 1, 1));
    nn::BatchNorm2d bn = register_module("bn", nn::BatchNorm2d(1));
    nn::ReLU relu = register_module("relu", nn::ReLU());
    nn::Conv2d last = register_module("last", nn::Conv2d(1, 1, 1));
    torch::Tensor forward(torch::Tensor x) {
      return last->forward(relu->forward(bn->forward(conv->forward(x)) + x));
    }
  };
  auto net = std::make_shared<Net>();
  QATScheduler scheduler(net, {images()}, integer_only_config());
  CHECK(scheduler.summary() == "phase FLOAT, iteration 0\n");
  scheduler.start_recording();
  CHECK(scheduler.summary().find("nothing recorded") != std::string::npos);
  net->forward(images());
  scheduler.start_training();
  const std::string text = scheduler.summary();
  for (const char* part : {"phase TRAINING", "conv", "input_slot", "weight_slot", "output_slot", "scale ",
                           "current extremes", "bn folded into conv", "aten::add"}) {
    CHECK((text.find(part) != std::string::npos ? "" : part) == std::string());
  }
}
