// Which codes activations and inputs get: range, zero point, position, given scales.
#include "graph_builder.h"
#include "small_net.h"
#include <qat/quantizers/affine_quantizer.h>
#include <qat/schedulers/qat_scheduler.h>

#include "support/catch.h"
#include "support/errors.h"

using namespace qat;
using namespace qat::testing;

namespace {

using Texts = std::set<std::string>;

/// A network in TRAINING.
struct Trained {
  nn::Sequential net = small_net();
  QATScheduler scheduler;

  explicit Trained(const QATConfig& config) : scheduler(net, {images()}, config) {
    scheduler.start_recording();
    net->forward(images());
    scheduler.start_training();
  }
  AffineQuantizer& input() { return content(layer<nn::Conv2d>(net, 0), nn::SlotId::Kind::kInput); }
  AffineQuantizer& activation() { return content(layer<nn::ReLU>(net, 2), nn::SlotId::Kind::kOutput); }

 private:
  static AffineQuantizer& content(nn::QuantizableLayer& layer, nn::SlotId::Kind kind) {
    return dynamic_cast<AffineQuantizer&>(*layer.slot({kind}));
  }
};

QATConfig with_range(ActivationRange range, bool zero_point) {
  QATConfig config = everything();
  config.activation_range = range;
  config.zero_point = zero_point;
  return config;
}

}  // namespace

TEST_CASE("zero_point gives signed and unsigned activations the zero point of their range", "[schedulers]") {
  const double low = images().min().item<double>();
  const double high = images().max().item<double>();
  REQUIRE(low < 0);
  for (const auto range : {ActivationRange::kSigned, ActivationRange::kUnsigned}) {
    Trained run(with_range(range, true));
    const auto params = run.input().affine_params({});
    const auto zero_point = params.zero_point.item<std::int64_t>();
    CHECK(params.range.is_signed() == (range == ActivationRange::kSigned));
    CHECK(zero_point % 2 == 0);
    const double scale = params.scale.item<float>();
    CHECK((params.range.qmin() - zero_point) * scale <= low + scale);
    CHECK((params.range.qmax() - zero_point) * scale >= high - scale);
    // Much finer than the symmetric grid would be where the range is lopsided; never coarser by two codes.
    CHECK(scale <= (high - low) / 252);
  }
  Trained symmetric(with_range(ActivationRange::kSigned, false));
  CHECK(symmetric.input().affine_params({}).zero_point.item<std::int64_t>() == 0);
}

TEST_CASE("Unsigned activations without zero point refuse data that they would clip", "[schedulers]") {
  CHECK(error_lacks([] { Trained(with_range(ActivationRange::kUnsigned, false)); },
                    {"0.input_slot", "negative", "zero_point", "auto"}) == "");
  QATConfig config = with_range(ActivationRange::kUnsigned, false);
  config.skip_layers = {"0"};
  Trained run(config);  // what is left is made by the ReLU
  const auto params = run.activation().affine_params({});
  CHECK_FALSE(params.range.is_signed());
  CHECK(params.zero_point.item<std::int64_t>() == 0);
}

TEST_CASE("Codes that contradict each other are refused", "[schedulers]") {
  CHECK(error_lacks([] { with_range(ActivationRange::kAuto, true).validate(); }, {"zero_point", "auto"}) ==
        "");
  QATConfig config = with_range(ActivationRange::kSigned, true);
  config.activation_quantizer = "lsq";
  CHECK(error_lacks([&] { config.validate(); }, {"zero_point", "lsq activations", "lsq_plus"}) == "");
  config.activation_quantizer = "lsq_plus";
  CHECK_NOTHROW(config.validate());
  config.recorder_activation = RecorderKind::kAbsMax;
  CHECK(error_lacks([&] { config.validate(); }, {"zero_point", "AbsMax", "MinMaxMva"}) == "");
}

TEST_CASE("dtype sets widths and signs at once", "[schedulers]") {
  QATConfig config;
  config.set_dtype("uint8");
  CHECK(config.weight_bits == 8);
  CHECK(config.activation_bits == 8);
  CHECK(config.activation_range == ActivationRange::kUnsigned);
  config.set_dtype("int4");
  CHECK(config.weight_bits == 4);
  CHECK(config.activation_bits == 4);
  CHECK(config.activation_range == ActivationRange::kSigned);
  for (const char* name :
       {"", "int", "int1", "int17", "int08", "uint8 ", "float32", "8", "int-8", "uuint8"}) {
    INFO(name);
    CHECK(error_lacks([&] { config.set_dtype(name); }, {"dtype", name, "uint8"}) == "");
  }
  const auto parsed = parse_config(R"({"dtype": "int6", "activation_bits": 8})");
  CHECK(parsed.weight_bits == 6);
  CHECK(parsed.activation_bits == 8);
}

TEST_CASE("Inputs with a given scale are codes already and nothing is recorded for them", "[schedulers]") {
  QATConfig config = everything();
  config.input_scale = 1.0 / 255;
  auto net = small_net();
  QATScheduler scheduler(net, {images()}, config);
  scheduler.start_recording();
  const auto slot = layer<nn::Conv2d>(net, 0).slot({nn::SlotId::Kind::kInput});
  REQUIRE(std::dynamic_pointer_cast<AffineQuantizer>(slot));
  const auto pixels =
      torch::randint(0, 256, images().sizes()).to(torch::kFloat) * static_cast<float>(1.0 / 255);
  CHECK(slot->forward(pixels).equal(pixels));
  net->forward(pixels);
  scheduler.start_training();
  CHECK(layer<nn::Conv2d>(net, 0).slot({nn::SlotId::Kind::kInput}) == slot);
  const auto params = dynamic_cast<AffineQuantizer&>(*slot).affine_params({});
  CHECK(params.scale.item<float>() == static_cast<float>(1.0 / 255));
  CHECK(params.range == IntegerRange(8, Signedness::kUnsigned));

  config.skip_layers = {"0"};
  CHECK(error_lacks([&] { QATScheduler(small_net(), {images()}, config).check(); },
                    {"input_scale", "no quantized layer reads it"}) == "");
  for (const double scale : {-0.1, 1e-60, 1e300}) {
    config.input_scale = scale;
    CHECK(error_lacks([&] { config.validate(); }, {"input_scale", "1.0 / 255"}) == "");
  }
}

TEST_CASE("recorder_position BOTH quantizes what quantized layers make", "[schedulers]") {
  GraphBuilder g;
  const auto relu = g.layer("ReLU", "relu", {g.layer("Conv2d", "conv", {g.input()})});
  const auto twice = g.operation("aten::mul", {relu, relu});
  const auto last = g.layer("Linear", "fc", {twice});
  g.output(g.operation("aten::softmax", {last}));
  QATConfig config = everything();
  CHECK(activations(g.place(config)) == Texts{"conv.input_slot", "fc.input_slot"});
  config.recorder_position = RecorderPosition::kBoth;
  CHECK(activations(g.place(config)) ==
        Texts{"conv.input_slot", "fc.input_slot", "relu.output_slot", "fc.output_slot"});

  // The network's own output stays real, as nobody reads it.
  GraphBuilder plain;
  plain.output(plain.layer("Linear", "fc", {plain.input()}));
  CHECK(activations(plain.place(config)) == Texts{"fc.input_slot"});
}

TEST_CASE("Recorders that look at the distribution know the width and the codes of their tensor",
          "[schedulers]") {
  for (const auto kind : {RecorderKind::kPercentile, RecorderKind::kHistogram, RecorderKind::kKlDivergence}) {
    INFO(to_string(kind));
    QATConfig config = everything();
    config.recorder_activation = kind;
    config.activation_bits = 4;
    config.input_bits = 6;
    config.recorder_percentile = 99.0;
    auto net = small_net();
    QATScheduler scheduler(net, {images()}, config);
    scheduler.start_recording();
    const auto recorder = [&](nn::QuantizableLayer& of, nn::SlotId::Kind slot) {
      return std::dynamic_pointer_cast<Recorder>(of.slot({slot}));
    };
    const auto input = recorder(layer<nn::Conv2d>(net, 0), nn::SlotId::Kind::kInput);
    const auto relu = recorder(layer<nn::ReLU>(net, 2), nn::SlotId::Kind::kOutput);
    REQUIRE((input && relu));
    CHECK(input->options().bits == 6);
    CHECK(relu->options().bits == 4);
    CHECK(relu->options().percentile == 99.0);
    CHECK_FALSE(relu->options().symmetric);
    net->forward(images());
    const auto range = relu->range();
    scheduler.start_training();
    const auto quantizer =
        std::dynamic_pointer_cast<AffineQuantizer>(layer<nn::ReLU>(net, 2).slot({nn::SlotId::Kind::kOutput}));
    CHECK(quantizer->affine_params({}).scale.item<float>() == Approx(range.max.item<float>() / 15));
  }
  QATConfig config = everything();
  config.recorder_weight = RecorderKind::kHistogram;
  CHECK(error_lacks([&] { config.validate(); }, {"recorder_weight Histogram", "channel_wise", "AbsMax"}) ==
        "");
  config.channel_wise = false;
  CHECK_NOTHROW(config.validate());
  config.recorder_percentile = 50.0;
  CHECK(error_lacks([&] { config.validate(); }, {"recorder_percentile", "50"}) == "");
  config = QATConfig();
  config.recorder_activation = RecorderKind::kHistogram;
  QATScheduler scheduler(small_net(), {images()}, config);
  CHECK_NOTHROW(scheduler.start_recording());
}

TEST_CASE("channel_last keeps weights in that memory order and changes no value", "[schedulers]") {
  auto net = small_net();
  const auto before = net->forward(images());
  QATConfig config = everything();
  config.channel_last = true;
  const auto weight = *layer<nn::Conv2d>(net, 0).weight_parameter();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  QATScheduler scheduler(net, {images()}, config, &optimizer);
  CHECK(weight.is_contiguous(torch::MemoryFormat::ChannelsLast));
  CHECK(torch::allclose(net->forward(images()), before));
  CHECK(layer<nn::Conv2d>(net, 0).weight_parameter()->is_same(weight));
  scheduler.start_recording();
  net->forward(images());
  scheduler.start_training();
  CHECK_NOTHROW(train_step(net, optimizer));
}

TEST_CASE("ext_name is the device", "[schedulers]") {
  QATConfig config = everything();
  config.ext_name = "cpu";
  CHECK_NOTHROW(QATScheduler(small_net(), {images()}, config));
  for (const char* name : {"gpu", "cuda:", "cuda:x", "CPU"}) {
    config.ext_name = name;
    CHECK(error_lacks([&] { config.validate(); }, {"ext_name", name, "cuda:1"}) == "");
  }
  config.ext_name = "cuda:999";
  CHECK_NOTHROW(config.validate());
  CHECK(error_lacks([&] { QATScheduler(small_net(), {images()}, config); },
                    {"ext_name", "cuda:999", "CUDA device"}) == "");
}
