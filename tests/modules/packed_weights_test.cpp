// The packed form of every kind of weight quantizer holds all that its values need.
#include "slot_contents.h"
#include <qat/nn/packed_weights.h>
#include <qat/quantizers/learned_step_quantizer.h>
#include <qat/quantizers/low_bit_weight_quantizer.h>
#include <qat/quantizers/parametric_quantizer.h>

#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace {

namespace nn = qat::nn;
using namespace qat;
using qat::testing::error_lacks;
using qat::testing::mismatch;

/// The axis of the channels and their number; nullopt: one scale.
struct Channels {
  std::optional<std::int64_t> axis = std::nullopt;
  std::int64_t count = 0;
};

/// A transposed convolution in two groups: its channels, two for each group, are on axis 1.
nn::ConvTranspose2d make_layer() {
  torch::manual_seed(3);
  return nn::ConvTranspose2d(nn::ConvTranspose2dOptions(4, 4, 3).groups(2).bias(false));
}

/// What a file of the packed weight gives back, from its header and its bytes alone.
PackedLayer written_and_read(torch::nn::Module& model) {
  const auto packed = nn::pack_weights(model);
  REQUIRE(packed.size() == 1);
  const auto payload = write_payload({&packed[0].second, 1});
  const auto read = read_payload(payload);
  REQUIRE(read.size() == 1);
  CHECK(static_cast<std::int64_t>(payload.bytes.size()) == read[0].payload_bytes());
  return read[0];
}

/// How what a quantizer stores differs from what it computes; "" if in no bit.
std::string difference(const std::shared_ptr<Quantizer>& quantizer) {
  auto layer = make_layer();
  layer->set_slot(slots::kWeight, quantizer);
  const torch::NoGradGuard no_grad;
  const auto read = written_and_read(*layer);
  const auto codes = packed_code_bytes(layer->weight.numel(), read.bits);
  if (read.payload_bytes() != codes + nn::packed_constant_bytes(*quantizer, layer->weight)) return "size";
  if (read.bits != quantizer->bits()) return "bits";
  return mismatch(unpack_weight(read), quantizer->forward(layer->weight));
}

ValueRange range_of(const torch::Tensor& weight, const Channels& channels) {
  return finite_range(weight.detach(), channels.axis);
}

const std::vector<Channels>& both() {
  static const std::vector<Channels> all = {{}, {1, 2}, {-3, 2}};
  return all;
}

}  // namespace

TEST_CASE("Affine weights are stored with their zero points", "[modules]") {
  const auto weight = make_layer()->weight;
  for (const Channels& channels : both()) {
    for (const auto symmetry : {Symmetry::kSymmetric, Symmetry::kAffine, Symmetry::kAffineEvenZero}) {
      for (const auto signedness : {Signedness::kSigned, Signedness::kUnsigned}) {
        const auto quantizer = std::make_shared<AffineQuantizer>(
            AffineQuantizerOptions{.range = {5, signedness}, .symmetry = symmetry, .axis = channels.axis});
        quantizer->set_range(range_of(weight + 0.1, channels));
        CAPTURE(static_cast<int>(symmetry), quantizer->options().range.to_string(), channels.count);
        CHECK(difference(quantizer) == "");
      }
    }
  }
  // Set by hand: symmetric by its options, but shifted.
  const auto shifted = std::make_shared<AffineQuantizer>(
      AffineQuantizerOptions{.range = {8, Signedness::kUnsigned}, .axis = 1});
  shifted->set_params(torch::tensor({0.004F, 0.003F}), torch::tensor({128, 100}, torch::kInt));
  CHECK(difference(shifted) == "");
  auto layer = make_layer();
  layer->set_slot(slots::kWeight, shifted);
  CHECK(nn::pack_weights(*layer)[0].second.zero_points == std::vector<std::int32_t>{128, 100});
  // 72 codes of 8 bits, two scales, two zero points.
  CHECK(nn::pack_weights(*layer)[0].second.payload_bytes() == 72 + 8 + 8);
}

TEST_CASE("Learned-step weights are stored with scale and offset", "[modules]") {
  const auto weight = make_layer()->weight;
  for (const Channels& channels : both()) {
    for (const auto kind : {LearnedStepKind::kLsq, LearnedStepKind::kLsqPlus, LearnedStepKind::kTqt}) {
      const auto quantizer =
          std::make_shared<LearnedStepQuantizer>(LearnedStepOptions{.kind = kind,
                                                                    .range = {4, Signedness::kSigned},
                                                                    .axis = channels.axis,
                                                                    .channels = channels.count});
      quantizer->start_from(range_of(weight + 0.1, channels));
      CAPTURE(to_string(kind), channels.count);
      CHECK(difference(quantizer) == "");
    }
  }
}

TEST_CASE("Parametric weights of every kind are stored with their step or smallest magnitude", "[modules]") {
  const auto weight = make_layer()->weight;
  for (const Channels& channels : both()) {
    for (const auto kind : {ParametricKind::kFpNM, ParametricKind::kFpBXmax, ParametricKind::kFpDXmax,
                            ParametricKind::kFpDB, ParametricKind::kPow2NM, ParametricKind::kPow2BXmax,
                            ParametricKind::kPow2BXmin, ParametricKind::kPow2XminXmax}) {
      for (const bool is_signed : {true, false}) {
        for (const bool with_zero : {true, false}) {
          for (const std::int64_t bits : {3, 4}) {
            ParametricOptions options;
            options.kind = kind;
            options.is_signed = is_signed;
            options.with_zero = with_zero;
            options.axis = channels.axis;
            options.channels = channels.count;
            const auto quantizer = std::make_shared<ParametricQuantizer>(options);
            quantizer->start_from(range_of(weight, channels), bits);
            CAPTURE(to_string(kind), is_signed, with_zero, bits, channels.count);
            CHECK(difference(quantizer) == "");
          }
        }
      }
    }
  }
  // As it is by default: 64 magnitudes, far beyond codes in units of the smallest one.
  CHECK(difference(std::make_shared<ParametricQuantizer>(
            ParametricOptions{.kind = ParametricKind::kPow2NM, .n = Learnable{8, 1, 8}})) == "");
}

TEST_CASE("Low-bit weights are stored with their statistic", "[modules]") {
  for (std::int64_t bits = 1; bits <= 8; ++bits) {
    CAPTURE(bits);
    CHECK(difference(std::make_shared<LowBitWeightQuantizer>(
              LowBitWeightOptions{LowBitWeightKind::kDorefa, bits})) == "");
  }
  for (const auto kind : {LowBitWeightKind::kBinary, LowBitWeightKind::kTernary}) {
    for (const Channels& channels : both()) {
      CAPTURE(to_string(kind), channels.count);
      CHECK(difference(std::make_shared<LowBitWeightQuantizer>(
                LowBitWeightOptions{.kind = kind, .axis = channels.axis})) == "");
    }
  }
}

TEST_CASE("A channel of zeros is stored as zeros", "[modules]") {
  for (const auto kind : {LowBitWeightKind::kBinary, LowBitWeightKind::kTernary}) {
    auto layer = make_layer();
    const torch::NoGradGuard no_grad;
    layer->weight.select(1, 1).zero_();
    layer->set_slot(slots::kWeight,
                    std::make_shared<LowBitWeightQuantizer>(LowBitWeightOptions{.kind = kind, .axis = 1}));
    const auto values = unpack_weight(written_and_read(*layer));
    CHECK(values.select(1, 1).abs().max().item<float>() == 0);
    CHECK(values.select(1, 0).abs().max().item<float>() > 0);
  }
}

TEST_CASE("Scales below the smallest learned one are stored as they are", "[modules]") {
  for (const auto kind : {LowBitWeightKind::kBinary, LowBitWeightKind::kTernary}) {
    for (const std::optional<std::int64_t> axis :
         {std::optional<std::int64_t>{}, std::optional<std::int64_t>{1}}) {
      for (const double size : {1e-20, 1e-30, 1e-44}) {
        auto layer = make_layer();
        const torch::NoGradGuard no_grad;
        layer->weight.fill_(size).select(0, 2).neg_();
        const auto quantizer =
            std::make_shared<LowBitWeightQuantizer>(LowBitWeightOptions{.kind = kind, .axis = axis});
        layer->set_slot(slots::kWeight, quantizer);
        CAPTURE(to_string(kind), axis.value_or(-1), size);
        const auto values = unpack_weight(written_and_read(*layer));
        CHECK(mismatch(values, quantizer->forward(layer->weight)) == "");
        CHECK(values.abs().min().item<float>() > 0);
      }
    }
  }
}

TEST_CASE("A transposed convolution in groups is stored with all of its biases", "[modules]") {
  torch::manual_seed(3);
  nn::ConvTranspose2d layer(nn::ConvTranspose2dOptions(4, 6, 3).groups(2));
  const auto quantizer = std::make_shared<AffineQuantizer>(AffineQuantizerOptions{.axis = 1});
  quantizer->set_range(range_of(layer->weight, {1, 3}));
  layer->set_slot(slots::kInput, slots::quantizer(0.02F));
  layer->set_slot(slots::kWeight, quantizer);
  layer->set_slot(slots::kBias, slots::bias_quantizer());
  CHECK(written_and_read(*layer).biases.size() == 6);
}

TEST_CASE("What cannot be stored is refused with the layer's name", "[modules]") {
  nn::Sequential net(nn::Linear(2, 3));
  auto& layer = *net->ptr<nn::LinearImpl>(0);
  const auto refused = [&](std::initializer_list<std::string> words) {
    return error_lacks([&] { nn::pack_weights(*net); }, words);
  };
  struct Shifted : AffineQuantizer {
    using AffineQuantizer::AffineQuantizer;
    torch::Tensor forward(const torch::Tensor& x, const Activation& activation) override {
      return AffineQuantizer::forward(x, activation) + 0.1;
    }
  };
  const auto shifted = std::make_shared<Shifted>();
  shifted->set_params(torch::tensor(0.5F), torch::tensor(0, torch::kInt));
  layer.set_slot(slots::kWeight, shifted);
  CHECK(refused({"Linear '0'", "packed form"}) == "");

  const torch::NoGradGuard no_grad;
  layer.weight.fill_(std::numeric_limits<float>::quiet_NaN());
  for (const auto kind : {ParametricKind::kFpDXmax, ParametricKind::kPow2XminXmax}) {
    layer.set_slot(slots::kWeight, std::make_shared<ParametricQuantizer>(ParametricOptions{.kind = kind}));
    CHECK(refused({"Linear '0'", "NaN"}) == "");
  }

  layer.weight.fill_(0.5);
  layer.bias.fill_(3);
  layer.set_slot(slots::kInput, slots::quantizer(0.02F));
  layer.set_slot(slots::kWeight, slots::quantizer(1e-10F));
  layer.set_slot(slots::kBias, slots::bias_quantizer());
  CHECK(refused({"Linear '0'", "bias 3 of channel 0", "int32"}) == "");
  CHECK_NOTHROW(net->forward(torch::ones({1, 2})));  // in train mode
  net->eval();
  CHECK(error_lacks(
            [&] {
              net->forward(torch::ones({1, 2}));
            },
            {"Linear '0'", "bias 3 of channel 0", "int32"}) == "");
}
