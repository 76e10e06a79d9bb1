// From a model of qat::nn layers, through the scheduler, to an exported file that computes the same bits.
#include <qat/export/torchscript.h>
#include <qat/nn/nn.h>
#include <qat/schedulers/qat_scheduler.h>

#include <torch/script.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "support/catch.h"
#include "support/tensor_matchers.h"

namespace {

namespace fs = std::filesystem;
namespace nn = qat::nn;
using qat::testing::mismatch;

/// A folder that is removed at the end of the test.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "qat-integration-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()));
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

/// Two convolutions with a shortcut around the second, and a linear layer. Images [N, 1, 6, 6].
struct Residual : torch::nn::Module {
  nn::Conv2d conv1 = register_module("conv1", nn::Conv2d(convolution(1, 4)));
  nn::BatchNorm2d bn1 = register_module("bn1", nn::BatchNorm2d(4));
  nn::ReLU relu1 = register_module("relu1", nn::ReLU());
  nn::Conv2d conv2 = register_module("conv2", nn::Conv2d(convolution(4, 4)));
  nn::BatchNorm2d bn2 = register_module("bn2", nn::BatchNorm2d(4));
  nn::Add add = register_module("add", nn::Add());
  nn::ReLU relu2 = register_module("relu2", nn::ReLU());
  nn::Flatten flatten = register_module("flatten", nn::Flatten());
  nn::Linear head = register_module("head", nn::Linear(4 * 6 * 6, 3));

  torch::Tensor forward(torch::Tensor x) {
    x = relu1(bn1(conv1(x)));
    return head(flatten(relu2(add(bn2(conv2(x)), x))));
  }

 private:
  static nn::Conv2dOptions convolution(std::int64_t in, std::int64_t out) {
    return nn::Conv2dOptions(in, out, 3).padding(1).bias(false);
  }
};

void train(Residual& net, torch::optim::Optimizer& optimizer, int steps) {
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    net.forward(torch::randn({8, 1, 6, 6})).square().mean().backward();
    optimizer.step();
  }
}

/// A network in TRAINING, a few steps after each transition.
std::shared_ptr<Residual> trained(qat::QATConfig config) {
  torch::manual_seed(11);
  auto net = std::make_shared<Residual>();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  config.niter_to_recording = -1;
  config.niter_to_training = -1;
  qat::QATScheduler scheduler(net, {torch::randn({2, 1, 6, 6})}, config, &optimizer);
  train(*net, optimizer, 3);
  scheduler.start_recording();
  train(*net, optimizer, 2);
  scheduler.start_training();
  train(*net, optimizer, 3);
  REQUIRE(scheduler.phase() == qat::Phase::kTraining);
  net->eval();
  return net;
}

}  // namespace

TEST_CASE("A model trained with quantizers computes the same bits after export", "[integration]") {
  const Folder folder;
  auto kept = qat::integer_only_config();
  kept.bn_folding = qat::BatchNormFolding::kOff;
  auto itself = kept;
  itself.bn_self_folding = true;
  const std::pair<const char*, qat::QATConfig> configs[] = {{"integer_only", qat::integer_only_config()},
                                                            {"BatchNorm kept", kept},
                                                            {"BatchNorm folded into itself", itself},
                                                            {"tensorrt", qat::tensorrt_config()},
                                                            {"default", qat::QATConfig{}}};
  for (const auto& [name, config] : configs) {
    INFO(name);
    const auto net = trained(config);
    REQUIRE(net->conv2->slot({nn::SlotId::Kind::kWeight}) != nullptr);
    const auto path = folder.file("model.pt");
    qat::export_torchscript(*net, qat::forward_function(net), {torch::randn({2, 1, 6, 6})}, path);
    auto exported = torch::jit::load(path);
    exported.eval();
    const torch::NoGradGuard no_grad;
    for (const std::int64_t batch : {1, 5}) {
      const auto x = torch::randn({batch, 1, 6, 6});
      CHECK(mismatch(exported.forward({x}).toTensor(), net->forward(x)) == "");
    }
  }
}
