#include <qat/nn/nn.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/schedulers/qat_scheduler.h>

#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "support/catch.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/tensor_matchers.h"

namespace nn = qat::nn;
using namespace qat;
using qat::testing::error_lacks;
using qat::testing::golden_tensor;
using qat::testing::mismatch;

namespace {

using Json = nlohmann::json;

/// nnabla quantizes what a ReLU reads as well as what it makes: an activation that no quantizer computes.
class PlainReLUImpl : public nn::Quantizable<nn::Stateless<PlainReLUImpl>> {
 public:
  using Quantizable::Quantizable;
  torch::Tensor forward(const torch::Tensor& x) {
    return pass(x, [](const torch::Tensor& y) { return torch::relu(y); });
  }
};
TORCH_MODULE(PlainReLU);

/// A net of the golden file: its layers are found by nnabla's names of their parameters.
struct GoldenNet : torch::nn::Module {
  virtual torch::Tensor forward(torch::Tensor x) = 0;

  void set(const std::string& name, const torch::Tensor& value) {
    const torch::NoGradGuard no_grad;
    torch::Tensor& own = *tensors.at(name);
    own.copy_(name == "fc/affine/W" ? value.t() : value.reshape(own.sizes()));
  }
  /// Statistics stay as they are.
  void train_but_batch_norm() {
    train();
    for (const auto& module : modules()) {
      if (module->name().find("BatchNorm") == std::string::npos) continue;
      module->eval();
      for (const auto& slot : module->children())
        slot->train();  // its recorder goes on
    }
  }
  template <class Layer>
  Layer conv(const std::string& name, const std::string& path, Layer layer) {
    register_module(name, layer);
    tensors[path + "/W"] = &layer->weight;
    tensors[path + "/b"] = &layer->bias;
    return layer;
  }
  template <class BatchNorm = nn::BatchNorm2d>
  BatchNorm norm(const std::string& name, std::int64_t channels) {
    BatchNorm bn(channels);
    register_module(name, bn);
    tensors[name + "/bn/gamma"] = &bn->weight;
    tensors[name + "/bn/beta"] = &bn->bias;
    tensors[name + "/bn/mean"] = &bn->running_mean;
    tensors[name + "/bn/var"] = &bn->running_var;
    return bn;
  }
  PlainReLU relu(const std::string& name) { return register_module(name, PlainReLU()); }

  std::map<std::string, torch::Tensor*> tensors;
};

struct Chain : GoldenNet {
  nn::Conv2d conv1 =
      conv("conv1", "conv1/conv", nn::Conv2d(nn::Conv2dOptions(3, 4, 3).padding(1).bias(false)));
  nn::BatchNorm2d bn1 = norm("bn1", 4);
  PlainReLU relu1 = relu("relu1");
  nn::Conv2d conv2 = conv("conv2", "conv2/conv", nn::Conv2d(nn::Conv2dOptions(4, 5, 3).padding(1).stride(2)));
  nn::BatchNorm2d bn2 = norm("bn2", 5);
  PlainReLU relu2 = relu("relu2");
  nn::AvgPool2d pool = register_module("pool", nn::AvgPool2d(2));
  nn::Linear fc = conv("fc", "fc/affine", nn::Linear(20, 4));

  torch::Tensor forward(torch::Tensor x) override {
    x = relu1->forward(bn1->forward(conv1->forward(x)));
    x = relu2->forward(bn2->forward(conv2->forward(x)));
    return fc->forward(pool->forward(x).flatten(1));
  }
};

struct Residual : GoldenNet {
  nn::Conv2d conv1 =
      conv("conv1", "conv1/conv", nn::Conv2d(nn::Conv2dOptions(3, 4, 3).padding(1).bias(false)));
  nn::BatchNorm2d bn1 = norm("bn1", 4);
  PlainReLU relu1 = relu("relu1");
  nn::Conv2d conv2 =
      conv("conv2", "conv2/conv", nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1).bias(false)));
  nn::BatchNorm2d bn2 = norm("bn2", 4);
  PlainReLU relu2 = relu("relu2");
  nn::Conv2d conv3 =
      conv("conv3", "conv3/conv", nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1).bias(false)));
  nn::BatchNorm2d bn3 = norm("bn3", 4);
  nn::Add add = register_module("add", nn::Add());
  PlainReLU relu3 = relu("relu3");
  nn::Conv2d dw =
      conv("dw", "dw/depthwise_conv", nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1).groups(4)));
  // nnabla folds no BatchNorm behind a depthwise convolution; torch's layer is none that could be.
  torch::nn::BatchNorm2d bn4 = norm<torch::nn::BatchNorm2d>("bn4", 4);
  PlainReLU relu4 = relu("relu4");
  nn::ConvTranspose2d deconv =
      conv("deconv", "deconv/deconv", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(4, 3, 2).stride(2)));

  torch::Tensor forward(torch::Tensor x) override {
    x = relu1->forward(bn1->forward(conv1->forward(x)));
    const auto y = bn3->forward(conv3->forward(relu2->forward(bn2->forward(conv2->forward(x)))));
    x = relu3->forward(add->forward(x, y));
    return deconv->forward(relu4->forward(bn4->forward(dw->forward(x))));
  }
};

QATConfig config_of(const Json& golden) {
  QATConfig config;
  const auto names = [&](const char* key) {
    const std::map<std::string, std::vector<std::string>> ours = {{"Convolution", {"Conv2d"}},
                                                                  {"Deconvolution", {"ConvTranspose2d"}},
                                                                  {"Affine", {"Linear"}},
                                                                  {"BatchMatmul", {}},
                                                                  {"ReLU", {"PlainReLU"}}};
    std::vector<std::string> result;
    for (const auto& name : golden.at(key)) {
      for (const auto& each : ours.at(name.get<std::string>()))
        result.push_back(each);
    }
    return result;
  };
  config.bn_folding = golden.at("bn_folding").get<bool>() ? BatchNormFolding::kOnce : BatchNormFolding::kOff;
  config.bn_self_folding = golden.at("bn_self_folding").get<bool>();
  config.pow2 = parse_power_of_two(golden.at("pow2").get<std::string>());
  config.narrow_range = golden.at("narrow_range").get<bool>();
  const auto rounding = golden.at("round_mode").get<std::string>();
  config.round_mode = rounding == "HALF_TO_EVEN" ? Rounding::kHalfToEven : Rounding::kHalfAwayFromZero;
  if (golden.at("recorder_position") == "BOTH") config.recorder_position = RecorderPosition::kBoth;
  config.skip_bias = golden.at("skip_bias").get<bool>();
  config.record_layers = names("record_layers");
  config.skip_inputs_layers = names("skip_inputs_layers");
  config.skip_outputs_layers = names("skip_outputs_layers");
  config.recorder_weight = parse_recorder_kind(golden.at("recorder_weight").get<std::string>());
  config.recorder_activation = parse_recorder_kind(golden.at("recorder_activation").get<std::string>());
  return config;
}

/// All scales in use, each as often as it occurs.
std::multiset<float> scales_of(torch::nn::Module& model) {
  std::multiset<float> scales;
  for (const auto& [path, layer] : nn::quantizable_layers(model)) {
    for (const nn::SlotId id : layer->occupied_slots()) {
      const auto quantizer = std::dynamic_pointer_cast<AffineQuantizer>(layer->slot(id));
      REQUIRE(quantizer);
      scales.insert(quantizer->affine_params({}).scale.item<float>());
    }
  }
  return scales;
}

/// Calls function(path, layer, id) for each slot that holds something, or refers to it.
template <class Function>
void for_slots(torch::nn::Module& model, const Function& function) {
  for (const auto& [path, layer] : nn::quantizable_layers(model)) {
    for (const nn::SlotId id : layer->occupied_slots())
      function(path + "." + id.name(), *layer, id);
    for (const nn::SlotId id : layer->linked_slots())
      function(path + "." + id.name(), *layer, id);
  }
}

/// nnabla spreads 2 max over 255 steps where the lowest code is used and scales are no powers of two, so that
/// the maximum itself saturates; here it has the highest code. These are its scales, by slot.
std::map<std::string, torch::Tensor> nnabla_scales(torch::nn::Module& model) {
  std::map<std::string, torch::Tensor> scales;
  for_slots(model, [&](const std::string& path, nn::QuantizableLayer& layer, nn::SlotId id) {
    if (const auto recorder = std::dynamic_pointer_cast<Recorder>(layer.slot(id)))
      scales[path] = nnabla_scale(*recorder, RangeWidth::kFull, PowerOfTwo::kNotRound);
  });
  return scales;
}

void set_scales(torch::nn::Module& model, const std::map<std::string, torch::Tensor>& scales) {
  std::map<std::string, torch::Tensor> by_owner;
  std::map<std::string, std::shared_ptr<AffineQuantizer>> owners;
  for_slots(model, [&](const std::string& path, nn::QuantizableLayer& layer, nn::SlotId id) {
    const auto* const link = layer.link(id);
    if (!link) owners[path] = std::dynamic_pointer_cast<AffineQuantizer>(layer.slot(id));
    const auto found = scales.find(path);
    if (found == scales.end()) return;
    auto& shared = by_owner[link ? link->path : path];
    shared = shared.defined() ? torch::maximum(shared, found->second) : found->second;
  });
  for (const auto& [path, scale] : by_owner)
    owners.at(path)->set_params(scale, torch::zeros({}, torch::kInt));
}

double largest(const torch::Tensor& tensor) {
  return tensor.abs().max().item<double>();
}

template <class Net>
void check(const Json& golden, const Json& net_data) {
  INFO(golden.at("id").get<std::string>());
  auto net = std::make_shared<Net>();
  for (const auto& [name, value] : net_data.at("parameters").items())
    net->set(name, golden_tensor(value));
  const auto shape = net_data.at("input_shape").get<std::vector<std::int64_t>>();
  const auto x = golden_tensor(golden.at("x"));
  const auto evaluate = [&] {
    const torch::NoGradGuard no_grad;
    net->eval();
    return net->forward(x);
  };
  const auto expected_float = golden_tensor(golden.at("float_output"));
  CHECK(mismatch(evaluate(), expected_float, {.absolute = 2e-6 * largest(expected_float)}) == "");

  net->train_but_batch_norm();
  QATScheduler scheduler(net, {x}, config_of(golden.at("config")));
  scheduler.start_recording();
  CHECK(mismatch(evaluate(), golden_tensor(golden.at("folded_output")),
                 {.absolute = 4e-6 * largest(expected_float)}) == "");
  for (const auto& [name, value] : golden.at("folded_parameters").items()) {
    std::string own = name.substr(0, name.size() - std::string("w-folded").size());
    own += name.ends_with("w-folded") ? "W" : "b";
    if (name.starts_with("bn-self-folding")) continue;
    CHECK(mismatch(net->tensors.at(own)->flatten(), golden_tensor(value).flatten(),
                   {.relative = 5e-7, .absolute = 1e-7}) == "");
  }
  net->train_but_batch_norm();
  for (const auto& batch : net_data.at("batches"))
    net->forward(golden_tensor(batch, shape));
  const auto scales = nnabla_scales(*net);
  scheduler.start_training();

  if (golden.at("kind") == "compat") {
    // The fault is gone: what is left is nearer to the float net than nnabla's.
    const auto error = [&](const torch::Tensor& output) {
      return (output - expected_float).abs().mean().item<double>();
    };
    CHECK(error(evaluate()) < error(golden_tensor(golden.at("training_output"))));
    return;
  }
  if (golden.at("config").at("pow2") == "NOTROUND") set_scales(*net, scales);
  // One quantizer for each of nnabla's; a scale that two tensors share counts once here and twice there.
  std::multiset<float> expected;
  std::set<std::string> places;
  for (const auto& quantizer : golden.at("quantizers")) {
    if (!places.insert(quantizer.at("place").get<std::string>()).second) continue;
    expected.insert(quantizer.at("scale").get<float>());
  }
  const auto found = scales_of(*net);
  CHECK(found.size() == expected.size());
  CHECK(std::equal(found.begin(), found.end(), expected.begin(), expected.end(),
                   [](float a, float b) { return std::abs(a - b) <= 3e-7F * b; }));

  const auto training_output = golden_tensor(golden.at("training_output"));
  CHECK(mismatch(evaluate(), training_output, {.absolute = 1e-5}) == "");
  net->train_but_batch_norm();
  const auto leaf = x.clone().set_requires_grad(true);
  const auto output = net->forward(leaf);
  CHECK(mismatch(output, training_output, {.absolute = 1e-5}) == "");
  output.backward(golden_tensor(golden.at("g")));
  const auto dx = golden_tensor(golden.at("dx"));
  CHECK(mismatch(leaf.grad(), dx, {.absolute = 1e-5 * largest(dx)}) == "");
  for (const auto& [name, value] : golden.at("dparams").items()) {
    std::string own = name;
    if (own.ends_with("w-folded")) own.replace(own.size() - 8, 8, "W");
    if (own.ends_with("b-folded")) own.replace(own.size() - 8, 8, "b");
    auto wanted = golden_tensor(value);
    if (own == "fc/affine/W") wanted = wanted.t();
    INFO(own);
    CHECK(mismatch(net->tensors.at(own)->grad().flatten(), wanted.flatten(),
                   {.absolute = 1e-5 * largest(wanted)}) == "");
  }
}

}  // namespace

TEST_CASE("golden scheduler: folded and recorded and trained numbers equal those of nnabla", "[schedulers]") {
  const auto file = qat::testing::golden_file("scheduler.json");
  std::map<std::string, int> count;
  for (const auto& golden : file.at("cases")) {
    const auto net = golden.at("net").get<std::string>();
    if (net == "chain") {
      check<Chain>(golden, file.at("nets").at(net));
    } else {
      check<Residual>(golden, file.at("nets").at(net));
    }
    ++count[golden.at("kind").get<std::string>()];
  }
  CHECK(count["plain"] > 0);
  CHECK(count["compat"] > 0);
}

TEST_CASE("golden scheduler: phases and learning rates follow the steps as in nnabla", "[schedulers]") {
  for (const auto& golden : qat::testing::golden_file("scheduler.json").at("state_machine")) {
    const auto id = golden.at("id").get<std::string>();
    INFO(id);
    QATConfig config;
    config.niter_to_recording = golden.at("niter_to_recording").get<std::int64_t>();
    config.niter_to_training = golden.at("niter_to_training").get<std::int64_t>();
    if (id.starts_with("constructor/")) {
      // B33: nnabla refuses its own default.
      const bool is_default = config == QATConfig();
      CHECK(error_lacks([&] { config.validate(); }, {}) ==
            (is_default || golden.at("error") == "" ? "no exception" : ""));
      continue;
    }
    if (golden.at("kind") == "compat")
      continue;  // B34: the rate is scaled once a graph; here there is one model
    auto net = std::make_shared<Chain>();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    QATScheduler scheduler(net, {torch::randn({2, 3, 8, 8})}, config, &optimizer);
    const auto& phases = golden.at("states_after_step");
    for (std::size_t i = 0; i < phases.size(); ++i) {
      scheduler.step();
      const auto phase = phases.at(i).get<std::string>();
      CHECK(to_string(scheduler.phase()) == (phase == "NON_QNN" ? "FLOAT" : phase));
      const auto rate = optimizer.param_groups().front().options().get_lr();
      CHECK(rate == Approx(golden.at("learning_rates").at(i).get<double>()).epsilon(1e-6));
      net->train();
      net->forward(torch::randn({2, 3, 8, 8}));
    }
    CHECK(scheduler.iteration() == golden.at("counter").get<std::int64_t>());
  }
}
