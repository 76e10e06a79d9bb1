#include "support/models.h"

#include <qat/nn/nn.h>

#include <torch/nn/cloneable.h>

#include <algorithm>
#include <initializer_list>

namespace nn = qat::nn;

namespace qat::apps {
namespace {

constexpr std::int64_t kSmallestSide = 12;

struct ImageShape {
  std::int64_t channels;
  std::int64_t height;
  std::int64_t width;
};

nn::Conv2dOptions convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                              std::int64_t stride = 1) {
  return nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false);
}

/// Two 3x3 convolutions beside a shortcut; the shortcut has parameters only where the shapes differ.
class ResidualBlockImpl : public torch::nn::Cloneable<ResidualBlockImpl> {
 public:
  ResidualBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : in_(in), out_(out), stride_(stride) {
    reset();
  }

  void reset() override {
    conv1 = register_module("conv1", nn::Conv2d(convolution(in_, out_, 3, stride_)));
    bn1 = register_module("bn1", nn::BatchNorm2d(out_));
    relu1 = register_module("relu1", nn::ReLU());
    conv2 = register_module("conv2", nn::Conv2d(convolution(out_, out_, 3)));
    bn2 = register_module("bn2", nn::BatchNorm2d(out_));
    if (in_ != out_ || stride_ != 1) {
      shortcut_conv = register_module("shortcut_conv", nn::Conv2d(convolution(in_, out_, 1, stride_)));
      shortcut_bn = register_module("shortcut_bn", nn::BatchNorm2d(out_));
    }
    add = register_module("add", nn::Add());
    relu2 = register_module("relu2", nn::ReLU());
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = bn2(conv2(relu1(bn1(conv1(x)))));
    return relu2(add(y, shortcut_conv ? shortcut_bn(shortcut_conv(x)) : x));
  }

 private:
  std::int64_t in_;
  std::int64_t out_;
  std::int64_t stride_;
  nn::Conv2d conv1{nullptr};
  nn::BatchNorm2d bn1{nullptr};
  nn::ReLU relu1{nullptr};
  nn::Conv2d conv2{nullptr};
  nn::BatchNorm2d bn2{nullptr};
  nn::Conv2d shortcut_conv{nullptr};
  nn::BatchNorm2d shortcut_bn{nullptr};
  nn::Add add{nullptr};
  nn::ReLU relu2{nullptr};
};
TORCH_MODULE(ResidualBlock);

nn::Sequential mlp(const ImageShape& shape, std::int64_t classes) {
  nn::Sequential net;
  net->push_back("flatten", nn::Flatten());
  net->push_back("fc1", nn::Linear(shape.channels * shape.height * shape.width, 256));
  net->push_back("relu1", nn::ReLU());
  net->push_back("fc2", nn::Linear(256, 128));
  net->push_back("relu2", nn::ReLU());
  net->push_back("fc3", nn::Linear(128, classes));
  return net;
}

nn::Sequential lenet(const ImageShape& shape, std::int64_t classes) {
  nn::Sequential net;
  net->push_back("conv1", nn::Conv2d(nn::Conv2dOptions(shape.channels, 6, 5).padding(2)));
  net->push_back("relu1", nn::ReLU());
  net->push_back("pool1", nn::MaxPool2d(2));
  net->push_back("conv2", nn::Conv2d(6, 16, 5));
  net->push_back("relu2", nn::ReLU());
  net->push_back("pool2", nn::MaxPool2d(2));
  net->push_back("flatten", nn::Flatten());
  net->push_back("fc1", nn::Linear(16 * ((shape.height / 2 - 4) / 2) * ((shape.width / 2 - 4) / 2), 120));
  net->push_back("relu3", nn::ReLU());
  net->push_back("fc2", nn::Linear(120, 84));
  net->push_back("relu4", nn::ReLU());
  net->push_back("fc3", nn::Linear(84, classes));
  return net;
}

nn::Sequential cnn(const ImageShape& shape, std::int64_t classes) {
  nn::Sequential net;
  std::int64_t in = shape.channels;
  for (const std::int64_t layer : {1, 2, 3}) {
    const auto number = std::to_string(layer);
    const std::int64_t out = layer == 1 ? 32 : 64;
    net->push_back("conv" + number, nn::Conv2d(convolution(in, out, 3)));
    net->push_back("bn" + number, nn::BatchNorm2d(out));
    net->push_back("relu" + number, nn::ReLU());
    if (layer < 3) net->push_back("pool" + number, nn::MaxPool2d(2));
    in = out;
  }
  net->push_back("flatten", nn::Flatten());
  net->push_back("fc", nn::Linear(in * (shape.height / 4) * (shape.width / 4), classes));
  return net;
}

nn::Sequential resnet(const ImageShape& shape, std::int64_t classes, std::int64_t blocks) {
  nn::Sequential net;
  net->push_back("conv", nn::Conv2d(convolution(shape.channels, 16, 3)));
  net->push_back("bn", nn::BatchNorm2d(16));
  net->push_back("relu", nn::ReLU());
  std::int64_t in = 16;
  for (const std::int64_t stage : {1, 2, 3}) {
    const std::int64_t out = 8 << stage;
    for (std::int64_t block = 1; block <= blocks; ++block) {
      const std::int64_t stride = stage > 1 && block == 1 ? 2 : 1;
      net->push_back("stage" + std::to_string(stage) + "_block" + std::to_string(block),
                     ResidualBlock(in, out, stride));
      in = out;
    }
  }
  net->push_back("pool", nn::AdaptiveAvgPool2d(1));
  net->push_back("flatten", nn::Flatten());
  net->push_back("fc", nn::Linear(in, classes));
  return net;
}

nn::Sequential mobilenet(const ImageShape& shape, std::int64_t classes) {
  struct Block {
    std::int64_t out;
    std::int64_t stride;
  };
  nn::Sequential net;
  const auto activated = [&](const std::string& prefix, const nn::Conv2dOptions& options) {
    net->push_back(prefix + "conv", nn::Conv2d(options));
    net->push_back(prefix + "bn", nn::BatchNorm2d(options.out_channels()));
    net->push_back(prefix + "relu", nn::ReLU6());
  };
  activated("", convolution(shape.channels, 16, 3));
  std::int64_t in = 16;
  std::int64_t number = 1;
  for (const Block& block : {Block{32, 1}, Block{64, 2}, Block{64, 1}, Block{128, 2}, Block{128, 1}}) {
    const auto prefix = "block" + std::to_string(number++) + "_";
    activated(prefix + "depthwise_", convolution(in, in, 3, block.stride).groups(in));
    activated(prefix + "pointwise_", convolution(in, block.out, 1));
    in = block.out;
  }
  net->push_back("pool", nn::AdaptiveAvgPool2d(1));
  net->push_back("flatten", nn::Flatten());
  net->push_back("fc", nn::Linear(in, classes));
  return net;
}

struct Builder {
  std::string name;
  nn::Sequential (*build)(const ImageShape& shape, std::int64_t classes);
};

const std::vector<Builder>& builders() {
  static const std::vector<Builder> all = {
      {"mlp", mlp},
      {"lenet", lenet},
      {"cnn", cnn},
      {"resnet8", [](const ImageShape& shape, std::int64_t classes) { return resnet(shape, classes, 1); }},
      {"resnet20", [](const ImageShape& shape, std::int64_t classes) { return resnet(shape, classes, 3); }},
      {"mobilenet", mobilenet},
  };
  return all;
}

}  // namespace

const std::vector<std::string>& model_names() {
  static const auto names = [] {
    std::vector<std::string> all;
    for (const auto& builder : builders())
      all.push_back(builder.name);
    return all;
  }();
  return names;
}

Model make_model(std::string_view name, const std::vector<std::int64_t>& sample_shape, std::int64_t classes) {
  const auto builder = std::find_if(builders().begin(), builders().end(),
                                    [&](const Builder& each) { return each.name == name; });
  TORCH_CHECK_VALUE(builder != builders().end(), "make_model: unknown model '", name, "'; there are ",
                    c10::Join(", ", model_names()));
  TORCH_CHECK_VALUE(sample_shape.size() == 3 && sample_shape[0] > 0,
                    "make_model: expected a sample of shape [channels, height, width], got ",
                    torch::IntArrayRef(sample_shape));
  TORCH_CHECK_VALUE(sample_shape[1] >= kSmallestSide && sample_shape[2] >= kSmallestSide, "make_model: '",
                    name, "' needs images of at least ", kSmallestSide, " x ", kSmallestSide, " pixels, got ",
                    sample_shape[1], " x ", sample_shape[2]);
  TORCH_CHECK_VALUE(classes >= 2, "make_model: expected at least 2 classes, got ", classes);
  auto net = builder->build({sample_shape[0], sample_shape[1], sample_shape[2]}, classes);
  return {builder->name, net.ptr(), forward_function(net.ptr())};
}

}  // namespace qat::apps
