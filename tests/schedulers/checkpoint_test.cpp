#include "images.h"
#include <qat/nn/nn.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/schedulers/checkpoint.h>
#include <qat/schedulers/qat_scheduler.h>

#include <torch/serialize.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdlib.h>
#include <string>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace nn = qat::nn;
using namespace qat;
using qat::testing::error_lacks;
using qat::testing::images;
using qat::testing::mismatch;

namespace {

/// A folder of its own for each test, removed afterwards.
struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "qat_checkpoint_XXXXXX").string();
    path = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const char* name) const { return (path / name).string(); }
  std::size_t count() const {
    const auto each = std::filesystem::directory_iterator(path);
    return static_cast<std::size_t>(std::distance(begin(each), end(each)));
  }
};

/// Convolution without bias, BatchNorm, residual sum: folding adds a parameter, sharing needs links.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t channels = 2)
      : conv(register_module("conv", nn::Conv2d(nn::Conv2dOptions(1, channels, 3).padding(1).bias(false)))),
        bn(register_module("bn", nn::BatchNorm2d(channels))),
        relu(register_module("relu", nn::ReLU())),
        conv2(register_module("conv2", nn::Conv2d(nn::Conv2dOptions(channels, channels, 1)))),
        add(register_module("add", nn::Add())),
        fc(register_module("fc", nn::Linear(channels * 16, 3))) {}
  torch::Tensor forward(torch::Tensor x) {
    x = relu->forward(bn->forward(conv->forward(x)));
    return fc->forward(add->forward(conv2->forward(x), x).flatten(1));
  }
  nn::Conv2d conv;
  nn::BatchNorm2d bn;
  nn::ReLU relu;
  nn::Conv2d conv2;
  nn::Add add;
  nn::Linear fc;
};
TORCH_MODULE(Net);

Net seeded(int seed) {
  torch::manual_seed(seed);
  return Net();
}

torch::Tensor evaluate(Net& net) {
  const torch::NoGradGuard no_grad;
  const bool training = net->is_training();
  net->eval();
  const auto y = net->forward(images(7));
  net->train(training);
  return y;
}

/// Leads a model into a phase, with a few training steps.
void lead(Net& net, QATScheduler& scheduler, Phase phase) {
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  const auto step = [&](int seed) {
    optimizer.zero_grad();
    net->forward(images(seed)).square().mean().backward();
    optimizer.step();
  };
  step(2);
  if (phase == Phase::kFloat) return;
  scheduler.start_recording();
  step(3);
  if (phase == Phase::kRecording) return;
  scheduler.start_training();
}

std::string read(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace

TEST_CASE("case 53: a model saved in any phase loads into a fresh one and evaluates to equal bits",
          "[schedulers]") {
  for (const Phase phase : {Phase::kFloat, Phase::kRecording, Phase::kTraining}) {
    const Folder folder;
    Net net = seeded(0);
    QATScheduler scheduler(net, {images()}, integer_only_config());
    lead(net, scheduler, phase);
    const auto expected = evaluate(net);
    const auto saved =
        save_checkpoint(folder.file("m.qat"), *net, {{"scheduler", scheduler.state()}, {"note", "a\nb"}});
    CHECK(folder.count() == 1);

    Net fresh = seeded(99);
    const auto info = load_checkpoint(folder.file("m.qat"), *fresh);
    CHECK(info.entries.at("note") == "a\nb");
    CHECK(info.digest == saved.digest);
    CHECK(model_digest(*fresh) == saved.digest);
    CHECK(mismatch(evaluate(fresh), expected) == "");
    CHECK(read_checkpoint_info(folder.file("m.qat")).entries == saved.entries);

    QATScheduler resumed(fresh, {images()}, integer_only_config());
    resumed.restore(info.entries.at("scheduler"));
    CHECK(resumed.phase() == phase);
    CHECK(resumed.state() == scheduler.state());
    CHECK(mismatch(evaluate(fresh), expected) == "");
  }
}

TEST_CASE("case 58: a loaded TRAINING model quantizes at once", "[schedulers]") {
  const Folder folder;
  nn::Sequential net(nn::Linear(nn::LinearOptions(1, 1).bias(false)));
  torch::nn::init::constant_(net->ptr<nn::LinearImpl>(0)->weight, 1.0);
  QATConfig config = integer_only_config();
  config.weight_bits = 16;
  QATScheduler scheduler(net, {torch::ones({1, 1})}, config);
  scheduler.start_recording();
  net->forward(torch::tensor({{0.0F}, {63.75F}}));  // scale 0.25
  scheduler.start_training();
  save_checkpoint(folder.file("m.qat"), *net, {});

  nn::Sequential fresh(nn::Linear(nn::LinearOptions(1, 1).bias(false)));
  load_checkpoint(folder.file("m.qat"), *fresh);
  fresh->eval();
  CHECK(std::abs(fresh->forward(torch::full({1, 1}, 0.3F)).item<float>() - 0.25F) < 1e-5F);
}

TEST_CASE("A run that stops and resumes equals the run that went on", "[schedulers]") {
  const Folder folder;
  QATConfig config = integer_only_config();
  config.niter_to_recording = 2;
  config.niter_to_training = 4;
  const auto run = [&](Net& net, QATScheduler& scheduler, torch::optim::Optimizer& optimizer, int begin,
                       int end) {
    std::vector<double> losses;
    for (int i = begin; i < end; ++i) {
      scheduler.step();
      optimizer.zero_grad();
      const auto loss = net->forward(images(i)).square().mean();
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<double>());
    }
    return losses;
  };
  const auto make_optimizer = [](Net& net) {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  };
  Net net = seeded(0);
  auto optimizer = make_optimizer(net);
  QATScheduler scheduler(net, {images()}, config, &optimizer);
  // Stops in the middle of recording, and in the middle of training.
  for (const int stop : {3, 6}) {
    run(net, scheduler, optimizer, static_cast<int>(scheduler.iteration()), stop);
    save_checkpoint(folder.file("m.qat"), *net,
                    {{"scheduler", scheduler.state()}, {"config", to_json(config)}});
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    archive.save_to(folder.file("optimizer.pt"));

    Net again = seeded(42);
    const auto info = load_checkpoint(folder.file("m.qat"), *again);
    auto other = make_optimizer(again);
    torch::serialize::InputArchive state;
    state.load_from(folder.file("optimizer.pt"));
    other.load(state);
    QATScheduler resumed(again, {images()}, parse_config(info.entries.at("config")), &other);
    resumed.restore(info.entries.at("scheduler"));
    const auto expected = run(net, scheduler, optimizer, stop, stop + 2);
    CHECK(run(again, resumed, other, stop, stop + 2) == expected);
    CHECK(model_digest(*again) == model_digest(*net));
  }
}

TEST_CASE("case 126: damaged and foreign files are refused and leave the model alone", "[schedulers]") {
  const Folder folder;
  const std::string path = folder.file("m.qat");
  Net net = seeded(0);
  QATScheduler scheduler(net, {images()}, integer_only_config());
  lead(net, scheduler, Phase::kTraining);
  save_checkpoint(path, *net, {});
  const std::string whole = read(path);

  Net fresh = seeded(5);
  const std::string digest = model_digest(*fresh);
  const auto refused = [&](const std::string& bytes, const std::string& word) {
    write(path, bytes);
    const auto lacks = error_lacks([&] { load_checkpoint(path, *fresh); }, {path, word});
    const auto info_lacks = error_lacks([&] { read_checkpoint_info(path); }, {path, word});
    CHECK(model_digest(*fresh) == digest);
    return lacks + info_lacks;
  };
  CHECK(refused("", "empty") == "");
  CHECK(refused(whole.substr(0, whole.size() / 2), "found " + std::to_string(whole.size() / 2)) == "");
  CHECK(refused(whole.substr(0, whole.size() - 1), "expected") == "");
  CHECK(refused(whole.substr(0, 20), "cut") == "");
  CHECK(refused(whole.substr(0, 4), "cut") == "");
  CHECK(refused(whole + "x", "found " + std::to_string(whole.size() + 1)) == "");
  CHECK(refused("weights = 3\n", "no .qat file") == "");
  CHECK(refused("\x80\x02}q\x01.", "no .qat file") == "");
  CHECK(refused("PK\x03\x04 a torch archive", "no .qat file") == "");
  for (const std::size_t at : {std::size_t(8), std::size_t(13), std::size_t(25), std::size_t(40),
                               std::size_t(70), whole.size() / 2, whole.size() - 1}) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    CHECK(refused(damaged, "checkpoint") == "");
  }
  // A length of 2^63 bytes allocates nothing.
  std::string huge = whole;
  huge[19] = static_cast<char>(0x80);
  CHECK(refused(huge, "expected") == "");

  write(path, whole);
  CHECK_NOTHROW(load_checkpoint(path, *fresh));
  CHECK(error_lacks([&] { read_checkpoint_info(folder.file("absent.qat")); }, {"absent.qat"}) == "");
}

TEST_CASE("A checkpoint of another structure is refused and named tensor by tensor", "[schedulers]") {
  const Folder folder;
  Net net = seeded(0);
  QATScheduler scheduler(net, {images()}, integer_only_config());
  lead(net, scheduler, Phase::kTraining);
  save_checkpoint(folder.file("m.qat"), *net, {});

  Net wider(4);
  const std::string digest = model_digest(*wider);
  CHECK(error_lacks(
            [&] { load_checkpoint(folder.file("m.qat"), *wider); },
            {"m.qat", "conv.weight is Float[2, 1, 3, 3] in the file, Float[4, 1, 3, 3] in the model"}) == "");
  CHECK(model_digest(*wider) == digest);
  CHECK(wider->conv->occupied_slots().empty());

  nn::Sequential other(nn::Linear(2, 2));
  CHECK(error_lacks([&] { load_checkpoint(folder.file("m.qat"), *other); },
                    {"fc.weight Float[3, 32] is in the file only",
                     "0.weight Float[2, 2] is in the model only"}) == "");

  Net half = seeded(0);
  half->to(torch::kHalf);
  CHECK(error_lacks([&] { load_checkpoint(folder.file("m.qat"), *half); },
                    {"Half[2, 1, 3, 3] in the model"}) == "");
}

TEST_CASE("A FLOAT checkpoint brings a quantized model back to float", "[schedulers]") {
  const Folder folder;
  Net net = seeded(0);
  const auto expected = evaluate(net);
  save_checkpoint(folder.file("float.qat"), *net, {});
  QATScheduler scheduler(net, {images()}, integer_only_config());
  lead(net, scheduler, Phase::kTraining);
  REQUIRE(net->bn->is_identity());
  load_checkpoint(folder.file("float.qat"), *net);
  CHECK_FALSE(net->bn->is_identity());
  CHECK_FALSE(net->conv->bias.defined());
  CHECK(net->conv->occupied_slots().empty());
  CHECK(mismatch(evaluate(net), expected) == "");
}

TEST_CASE("Loading keeps the identity of the parameters", "[schedulers]") {
  const Folder folder;
  Net net = seeded(0);
  save_checkpoint(folder.file("m.qat"), *net, {});
  Net fresh = seeded(1);
  const auto weight = fresh->conv->weight;
  load_checkpoint(folder.file("m.qat"), *fresh);
  CHECK(fresh->conv->weight.is_same(weight));
  CHECK(mismatch(weight, net->conv->weight) == "");
  CHECK(weight.requires_grad());
}

TEST_CASE("A path that cannot be written is named and nothing stays", "[schedulers]") {
  const Folder folder;
  Net net = seeded(0);
  const std::string absent = folder.file("absent/m.qat");
  CHECK(error_lacks([&] { save_checkpoint(absent, *net, {}); }, {absent, "cannot be written"}) == "");
  std::filesystem::create_directory(folder.path / "taken");
  std::filesystem::create_directory(folder.path / "taken" / "inside");
  CHECK(error_lacks([&] { save_checkpoint(folder.file("taken"), *net, {}); },
                    {"taken", "cannot be written"}) == "");
  CHECK(folder.count() == 1);
}

TEST_CASE("The digest depends on names and types and shapes and bits", "[schedulers]") {
  const auto digest = [](const char* name, const torch::Tensor& tensor) {
    struct Holder : torch::nn::Module {
      Holder(const char* key, const torch::Tensor& value) { register_buffer(key, value); }
    };
    return model_digest(Holder(name, tensor));
  };
  const auto base = digest("a", torch::tensor({1.0F, 2.0F}));
  CHECK(base.size() == 64);
  CHECK(digest("a", torch::tensor({1.0F, 2.0F})) == base);
  CHECK(digest("b", torch::tensor({1.0F, 2.0F})) != base);
  CHECK(digest("a", torch::tensor({1.0F, 2.0F}).reshape({2, 1})) != base);
  CHECK(digest("a", torch::tensor({1.0F, 2.0F}).view(torch::kInt)) != base);
  CHECK(digest("a", torch::tensor({1.0F, 2.0000002F})) != base);
  CHECK(digest("a", torch::tensor({0.0F})) != digest("a", torch::tensor({-0.0F})));
  CHECK(digest("a", torch::arange(6.0F).reshape({2, 3}).t()) ==
        digest("a", torch::arange(6.0F).reshape({2, 3}).t().contiguous()));
  // SHA-256 of "a Float[0]\n", by sha256sum.
  CHECK(digest("a", torch::empty({0})) == "feed0796a3726d1071e8f23feddd57d6c21326ff124ac412448ef83fe6a4e5be");
}

TEST_CASE("restore refuses states that do not fit the model", "[schedulers]") {
  Net net = seeded(0);
  QATScheduler scheduler(net, {images()}, integer_only_config());
  CHECK(error_lacks([&] { scheduler.restore("nonsense"); }, {"nonsense"}) == "");
  CHECK(error_lacks([&] { scheduler.restore(R"({"phase": "TRAINING", "iteration": 9, "frozen": []})"); },
                    {"TRAINING", "FLOAT", "load the checkpoint"}) == "");
  CHECK(scheduler.iteration() == 0);
  scheduler.restore(R"({"phase": "FLOAT", "iteration": 9, "frozen": []})");
  CHECK(scheduler.iteration() == 9);
}
