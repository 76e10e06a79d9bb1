#include "slot_contents.h"
#include <qat/export/safetensors.h>
#include <qat/nn/load_float.h>
#include <qat/nn/nn.h>

#include <torch/csrc/jit/api/module.h>
#include <torch/serialize.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdlib.h>

#include "support/catch.h"
#include "support/errors.h"

namespace nn = qat::nn;
using qat::testing::error_lacks;

namespace {

struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "qat_load_float_XXXXXX").string();
    path = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const char* name) const { return (path / name).string(); }
};

/// Convolution, BatchNorm, linear: "0", "1", "3".
template <class Sequential = nn::Sequential>
Sequential net(int seed) {
  torch::manual_seed(seed);
  Sequential result{nn::Conv2d(1, 2, 3), nn::BatchNorm2d(2), nn::Flatten(), nn::Linear(8, 3)};
  const torch::NoGradGuard no_grad;
  for (auto& buffer : result->named_buffers())
    buffer.value().fill_(seed + 2);
  return result;
}

std::map<std::string, torch::Tensor> state(const torch::nn::Module& model) {
  std::map<std::string, torch::Tensor> all;
  for (const auto& parameter : model.named_parameters())
    all[parameter.key()] = parameter.value().detach().clone();
  for (const auto& buffer : model.named_buffers())
    all[buffer.key()] = buffer.value().clone();
  return all;
}

bool same(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto left = state(a);
  const auto right = state(b);
  bool equal = left.size() == right.size();
  for (const auto& [name, tensor] : left)
    equal = equal && right.contains(name) && right.at(name).equal(tensor);
  return equal;
}

}  // namespace

TEST_CASE("A float network saved by torch, in any of the forms, loads by name", "[modules]") {
  const Folder folder;
  auto source = net(1);
  const auto archive = folder.file("archive.pt");
  torch::save(source, archive);
  const auto safe = folder.file("safe.safetensors");
  qat::save_safetensors(safe, state(*source));
  for (const auto& path : {archive, safe}) {
    INFO(path);
    auto model = net(2);
    const auto weight = model->ptr<nn::Conv2dImpl>(0)->weight;
    const auto report = nn::load_float(path, *model);
    CHECK(report.is_complete());
    CHECK(report.loaded.size() == 9);
    CHECK(same(*model, *source));
    CHECK(model->ptr<nn::Conv2dImpl>(0)->weight.is_same(weight));
    CHECK(weight.requires_grad());
  }
}

TEST_CASE("State dictionaries and TorchScript files from Python load", "[modules]") {
  const auto* python = std::getenv("QAT_PYTHON");
  if (python == nullptr) {
    WARN("skipped: set QAT_PYTHON to a Python that has torch");
    return;
  }
  const Folder folder;
  std::ofstream(folder.file("make.py")) << R"(
import sys, torch
torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(8, 3))
for value in model.state_dict().values():
    value.copy_(torch.arange(value.numel()).reshape(value.shape) * 0.5)
torch.save(dict(model.state_dict()), sys.argv[1] + "/dict.pt")
torch.save(model.state_dict(), sys.argv[1] + "/ordered.pt")
torch.save(dict(torch.nn.DataParallel(model).state_dict()), sys.argv[1] + "/parallel.pt")
torch.jit.save(torch.jit.script(model), sys.argv[1] + "/script.pt")
torch.save(model, sys.argv[1] + "/whole.pt")
)";
  const auto command = std::string("'") + python + "' '" + folder.file("make.py") + "' '" +
                       folder.path.string() + "' 2>/dev/null";
  REQUIRE(std::system(command.c_str()) == 0);
  for (const char* name : {"dict.pt", "script.pt", "parallel.pt"}) {
    INFO(name);
    auto model = net(2);
    CHECK(nn::load_float(folder.file(name), *model, {.remove_prefix = "module."}).is_complete());
    for (const auto& [key, tensor] : state(*model)) {
      INFO(key);
      const auto expected = torch::arange(tensor.numel()).reshape(tensor.sizes()) * 0.5;
      CHECK(tensor.to(torch::kFloat).equal(expected.to(tensor.dtype()).to(torch::kFloat)));
    }
  }
  auto model = net(2);
  const auto before = state(*model);
  CHECK(error_lacks([&] { nn::load_float(folder.file("parallel.pt"), *model); },
                    {"parallel.pt", "module.0.weight", "remove_prefix"}) == "");
  for (const char* name : {"whole.pt", "ordered.pt"})
    CHECK(error_lacks([&] { nn::load_float(folder.file(name), *model); },
                      {name, "dict(model.state_dict())"}) == "");
  CHECK(state(*model).at("0.weight").equal(before.at("0.weight")));
}

TEST_CASE("case 111: a file of which nothing, or half, matches says so", "[modules]") {
  const Folder folder;
  const auto path = folder.file("half.safetensors");
  auto model = net(2);
  const auto before = net(2);
  qat::save_safetensors(path, {{"a", torch::ones({2})}, {"b", torch::ones({3})}});
  for (const bool partial : {false, true}) {
    CHECK(error_lacks([&] { nn::load_float(path, *model, {.allow_partial = partial}); },
                      {"no tensor that the model has", "only in the file: a, b", "0.weight"}) == "");
    CHECK(same(*model, *before));
  }
  qat::save_safetensors(path, {{"0.weight", torch::full({2, 1, 3, 3}, 7.0F)},
                               {"0.bias", torch::ones({5})},
                               {"head.weight", torch::ones({3})}});
  CHECK(error_lacks([&] { nn::load_float(path, *model); },
                    {"nothing was loaded", "loaded 1: 0.weight", "only in the file: head.weight",
                     "only in the model: 1.bias, 1.running_mean, 1.running_var, 1.weight, 3.bias, 3.weight",
                     "0.bias has shape [5] in the file, [2] in the model"}) == "");
  CHECK(same(*model, *before));
  const auto report = nn::load_float(path, *model, {.allow_partial = true});
  CHECK(report.loaded == std::vector<std::string>{"0.weight"});
  CHECK(report.only_in_file == std::vector<std::string>{"head.weight"});
  CHECK(report.other_shape.size() == 1);
  CHECK(model->ptr<nn::Conv2dImpl>(0)->weight.equal(torch::full({2, 1, 3, 3}, 7.0F)));
  CHECK(state(*model).at("0.bias").equal(state(*before).at("0.bias")));
}

TEST_CASE("case 59: a float file loads into a quantized model and leaves its quantizers", "[modules]") {
  const Folder folder;
  nn::Sequential source(nn::Linear(nn::LinearOptions(1, 1).bias(false)));
  {
    const torch::NoGradGuard no_grad;
    source->ptr<nn::LinearImpl>(0)->weight.fill_(1.5);
  }
  const auto path = folder.file("float.pt");
  torch::save(source, path);
  nn::Sequential wrapped(nn::Linear(nn::LinearOptions(1, 1).bias(false)));
  const auto linear = wrapped->ptr<nn::LinearImpl>(0);
  linear->set_slot(slots::kWeight, slots::quantizer(0.25F));
  linear->set_slot(slots::kOutput, slots::unsigned_quantizer(0.5F));
  CHECK(nn::load_float(path, *wrapped).is_complete());
  CHECK(linear->weight.item<float>() == 1.5F);
  CHECK(linear->slot(slots::kWeight)->named_buffers()["scale"].item<float>() == 0.25F);
  // And the other way round: what a quantized model saved brings its float weights.
  torch::save(wrapped, path);
  nn::Sequential plain(nn::Linear(nn::LinearOptions(1, 1).bias(false)));
  CHECK(nn::load_float(path, *plain).is_complete());
  CHECK(plain->ptr<nn::LinearImpl>(0)->weight.item<float>() == 1.5F);
}

TEST_CASE("Types are converted to those of the model", "[modules]") {
  const Folder folder;
  const auto path = folder.file("half.safetensors");
  auto source = state(*net(1));
  for (auto& [name, tensor] : source)
    tensor = tensor.to(tensor.is_floating_point() ? torch::kHalf : torch::kLong);
  source.erase("1.num_batches_tracked");
  qat::save_safetensors(path, source);
  auto model = net(2);
  CHECK(nn::load_float(path, *model).is_complete());
  const auto weight = model->ptr<nn::Conv2dImpl>(0)->weight;
  CHECK(weight.dtype() == torch::kFloat);
  CHECK(weight.equal(source.at("0.weight").to(torch::kFloat)));
}

TEST_CASE("Files that are no float networks are refused by name", "[modules]") {
  const Folder folder;
  auto model = net(2);
  const auto before = net(2);
  const auto refused = [&](const std::string& content, std::initializer_list<std::string> words) {
    std::ofstream(folder.file("bad"), std::ios::binary) << content;
    return error_lacks([&] { nn::load_float(folder.file("bad"), *model); }, words);
  };
  CHECK(refused("", {"load_float", "bad", "empty"}) == "");
  CHECK(refused("something else altogether", {"bad", "safetensors"}) == "");
  CHECK(refused("PK\3\4 but no archive", {"bad", "cannot be read"}) == "");
  const auto archive = folder.file("archive.pt");
  torch::save(net(1), archive);
  std::ifstream stream(archive, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  CHECK(refused(bytes.substr(0, bytes.size() / 2), {"bad", "cannot be read"}) == "");
  CHECK(error_lacks([&] { nn::load_float("/no/such/file", *model); }, {"/no/such/file"}) == "");
  CHECK(error_lacks([&] { nn::load_float("/tmp", *model); }, {"/tmp"}) == "");
  CHECK(same(*model, *before));
}
