// What a user of torch::nn expects of qat::nn: names, printing, containers.
#include "slot_contents.h"

#include <type_traits>

#include "support/catch.h"

namespace {
namespace nn = qat::nn;
}

TEST_CASE("Layers are found under their own types", "[modules]") {
  nn::Sequential model(nn::Conv2d(1, 2, 3), nn::Dropout(0.5), nn::ReLU(), nn::Softmax(1));
  CHECK(model->ptr(2)->as<nn::ReLU>() != nullptr);
  CHECK(model->ptr(2)->as<torch::nn::ReLU>() == nullptr);
  CHECK(model->ptr(0)->as<nn::Conv2d>()->options.out_channels() == 2);
  CHECK(std::is_same_v<nn::Softmax, torch::nn::Softmax>);
  CHECK(std::is_same_v<nn::Conv2dOptions, torch::nn::Conv2dOptions>);
  CHECK(torch::equal(nn::functional::relu(torch::tensor({-1.0F})), torch::zeros({1})));
}

TEST_CASE("Containers fill default arguments of a transposed convolution", "[modules]") {
  nn::Sequential model(nn::ConvTranspose1d(1, 1, 2), nn::ConvTranspose2d(1, 1, 2));
  CHECK(model->ptr(0)->as<nn::ConvTranspose1d>()->forward(torch::ones({1, 1, 3})).sizes() ==
        torch::IntArrayRef({1, 1, 4}));
  nn::Sequential plane(nn::ConvTranspose2d(1, 1, 2), nn::ReLU());
  CHECK(plane->forward(torch::ones({1, 1, 3, 3})).sizes() == torch::IntArrayRef({1, 1, 4, 4}));
}

TEST_CASE("Layers print as torch prints under their own namespace", "[modules]") {
  CHECK(c10::str(*nn::Conv2d(1, 2, 3)) == "qat::nn::Conv2d(1, 2, kernel_size=[3, 3], stride=[1, 1])");
  CHECK(c10::str(*nn::ConvTranspose1d(1, 2, 3)) == "qat::nn::ConvTranspose1d(1, 2, kernel_size=3, stride=1)");
  CHECK(c10::str(*nn::Linear(nn::LinearOptions(3, 2).bias(false))) ==
        "qat::nn::Linear(in_features=3, out_features=2, bias=false)");
  CHECK(c10::str(*nn::BatchNorm2d(4)) ==
        "qat::nn::BatchNorm2d(4, eps=1e-05, momentum=0.1, affine=true, track_running_stats=true)");
  CHECK(c10::str(*nn::ReLU()) == "qat::nn::ReLU()");
  CHECK("torch" + c10::str(*nn::ReLU(true)).substr(3) == c10::str(*torch::nn::ReLU(true)));
  CHECK(c10::str(*nn::Hardswish()) == "qat::nn::Hardswish()");
  CHECK(c10::str(*nn::MaxPool2d(2)) ==
        "qat::nn::MaxPool2d(kernel_size=[2, 2], stride=[2, 2], padding=[0, 0], dilation=[1, 1], "
        "ceil_mode=false)");
  CHECK(c10::str(*nn::AdaptiveAvgPool2d(1)) == "qat::nn::AdaptiveAvgPool2d(output_size=[1, 1])");
  CHECK(c10::str(*nn::Embedding(3, 2)) == "qat::nn::Embedding(num_embeddings=3, embedding_dim=2)");
  CHECK(c10::str(*nn::Dropout(0.25)) == "qat::nn::Dropout(p=0.25, inplace=false)");
  CHECK(c10::str(*nn::Flatten()) == "qat::nn::Flatten(start_dim=1, end_dim=-1)");
  CHECK(c10::str(*nn::Add()) == "qat::nn::Add()");
  CHECK(c10::str(*nn::Cat(1)) == "qat::nn::Cat(dim=1)");
}

TEST_CASE("Printing shows what is in the slots", "[modules]") {
  nn::Conv2d conv(1, 2, 3);
  conv->set_slot(slots::kInput, slots::recorder());
  conv->set_slot(slots::kWeight, std::make_shared<qat::Recorder>(
                                     qat::RecorderOptions{.kind = qat::RecorderKind::kAbsMax, .axis = 0}));
  const std::string plain = "qat::nn::Conv2d(1, 2, kernel_size=[3, 3], stride=[1, 1]";
  CHECK(c10::str(*conv).starts_with(plain + ", input=MinMaxMinMax, weight=AbsMax per channel)"));
  conv->clear_slots();
  conv->set_link(slots::kInput, {"relu.output_slot", false});
  conv->set_slot(slots::kWeight, slots::channel_quantizer(0));
  conv->set_slot(slots::kBias, slots::bias_quantizer());
  conv->set_slot(slots::kOutput, slots::quantizer(0.1F));
  CHECK(c10::str(*conv).starts_with(
      plain +
      ", input=relu.output_slot, weight=int8 narrow per channel, bias=int32, output=int8 [-12.8, 12.7])"));
  nn::ReLU relu;
  relu->set_slot(slots::kOutput, slots::unsigned_quantizer(0.1F));
  CHECK(c10::str(*relu).starts_with("qat::nn::ReLU(output=uint8 [0, 25.5])"));
  relu->set_slot(slots::kOutput, slots::recorder());
  relu->forward(torch::tensor({-1.0F, 0.25F, 2.0F}));
  CHECK(c10::str(*relu).starts_with("qat::nn::ReLU(output=MinMaxMinMax [0, 2])"));
}

TEST_CASE("Slots have names that are the checkpoint format", "[modules]") {
  CHECK(slots::kInput.name() == "input_slot");
  CHECK(slots::kSecondInput.name() == "input_slot_1");
  CHECK(slots::kWeight.name() == "weight_slot");
  CHECK(slots::kBias.name() == "bias_slot");
  CHECK(slots::kOutput.name() == "output_slot");
}

TEST_CASE("Layers say what the scheduler must know of them", "[modules]") {
  CHECK(nn::MaxPool2d(2)->keeps_codes());
  CHECK(nn::AdaptiveMaxPool2d(2)->keeps_codes());
  CHECK(nn::Flatten()->keeps_codes());
  CHECK(nn::Dropout()->keeps_codes());
  CHECK_FALSE(nn::AvgPool2d(2)->keeps_codes());
  CHECK_FALSE(nn::BatchNorm2d(2)->keeps_codes());
  CHECK(nn::Add()->inputs_share_scale());
  CHECK(nn::Cat(1)->inputs_share_scale());
  CHECK_FALSE(nn::Mul()->inputs_share_scale());
  CHECK(nn::MatMul()->input_count() == 2);
  CHECK_FALSE(nn::Cat(1)->input_count().has_value());
  CHECK(nn::ReLU6()->fusable_activation() == qat::Activation{.negative_slope = 0, .upper = 6});
  CHECK_FALSE(nn::GELU()->fusable_activation().has_value());
  CHECK(nn::BatchNorm2d(2)->weight_parameter() == nullptr);
}
