#include "graph/reporting_layers.h"
#include <qat/export/torchscript.h>

#include <torch/script.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/catch.h"

using namespace reporting;
using Tensors = std::vector<torch::Tensor>;
namespace fs = std::filesystem;

namespace {

/// A folder that is removed at the end of the test.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "qat-export-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()));
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::size_t count() const { return std::distance(fs::directory_iterator(path_), fs::directory_iterator()); }

 private:
  fs::path path_;
};

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// The first sample is all that a model of one linear layer needs.
void export_function(const FromFunction::Layers& layers,
                     const std::function<torch::Tensor(const torch::Tensor&)>& forward,
                     const std::string& path, std::vector<std::int64_t> shape = {2, 4}) {
  FromFunction model(layers);
  qat::export_torchscript(
      model, [&](const Tensors& x) { return Tensors{forward(x[0])}; }, {torch::randn(shape)}, path);
}

/// Fake-quantizes with a learned scale as the quantizers do while tracing.
struct LearnedScale : torch::nn::Module {
  LearnedScale() : torch::nn::Module("LearnedScale") {
    scale = register_parameter("scale", torch::tensor({0.25f}));
    zero_point = register_buffer("zero_point", torch::zeros({1}, torch::kInt));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    qat::LayerScope scope(*this, {x});
    if (is_training()) return scope.output((x / scale).round() * scale);
    return scope.output(torch::fake_quantize_per_tensor_affine(x, scale.detach(), zero_point, -128, 127));
  }
  torch::Tensor scale;
  torch::Tensor zero_point;
};

}  // namespace

TEST_CASE("export_torchscript writes a model that runs with any batch size", "[export]") {
  const Folder folder;
  torch::manual_seed(1);
  auto model = std::make_shared<Residual>();
  model->bn->named_buffers()["running_mean"].copy_(torch::tensor({0.5, -0.25}));
  qat::export_torchscript(*model, qat::forward_function(model), {torch::randn({2, 1, 4, 4})},
                          folder.file("m.pt"));
  CHECK(folder.count() == 1);

  auto loaded = torch::jit::load(folder.file("m.pt"));
  model->eval();
  const torch::NoGradGuard no_grad;
  for (const std::int64_t batch : {1, 2, 7}) {
    const auto x = torch::randn({batch, 1, 4, 4});
    CHECK(torch::equal(loaded.forward({x}).toTensor(), model->forward(x)));
  }
}

TEST_CASE("export_torchscript keeps the names and values of parameters and buffers", "[export]") {
  const Folder folder;
  auto model = std::make_shared<Residual>();
  qat::export_torchscript(*model, qat::forward_function(model), {torch::randn({2, 1, 4, 4})},
                          folder.file("m.pt"));
  const auto loaded = torch::jit::load(folder.file("m.pt"));
  const auto parameters = model->named_parameters();
  const auto buffers = model->named_buffers();
  std::size_t count = 0;
  for (const auto& parameter : loaded.named_parameters()) {
    INFO(parameter.name);
    REQUIRE(parameters.contains(parameter.name));
    CHECK(torch::equal(parameter.value, parameters[parameter.name]));
    CHECK(parameter.value.requires_grad());
    ++count;
  }
  CHECK(count == parameters.size());
  count = 0;
  for (const auto& buffer : loaded.named_buffers()) {
    INFO(buffer.name);
    REQUIRE(buffers.contains(buffer.name));
    CHECK(torch::equal(buffer.value, buffers[buffer.name]));
    ++count;
  }
  CHECK(count == buffers.size());
}

TEST_CASE("export_torchscript stores the metadata", "[export]") {
  const Folder folder;
  auto a = linear(4, 4);
  FromFunction model({{"a", a}});
  qat::export_torchscript(model, [&](const Tensors& x) { return Tensors{a->forward(x[0])}; },
                          {torch::randn({2, 4})}, folder.file("m.pt"),
                          {.metadata = {{"input_shape", "[4]"}, {"input_mean", "0.5"}}});
  torch::jit::ExtraFilesMap metadata = {{"input_shape", ""}, {"input_mean", ""}};
  torch::jit::load(folder.file("m.pt"), torch::kCPU, metadata);
  CHECK(metadata["input_shape"] == "[4]");
  CHECK(metadata["input_mean"] == "0.5");
}

TEST_CASE("export_torchscript takes several inputs and outputs", "[export]") {
  const Folder folder;
  auto a = linear(4, 4);
  FromFunction model({{"a", a}});
  qat::export_torchscript(
      model,
      [&](const Tensors& x) {
        const auto y = a->forward(x[1]);
        return Tensors{y * x[0], y};
      },
      {torch::randn({2, 4}), torch::randn({2, 4})}, folder.file("m.pt"));
  auto loaded = torch::jit::load(folder.file("m.pt"));
  const auto x = torch::randn({5, 4});
  const auto y = torch::randn({5, 4});
  const auto result = loaded.forward({x, y});
  const auto& outputs = result.toTupleRef().elements();
  REQUIRE(outputs.size() == 2);
  CHECK(torch::equal(outputs[0].toTensor(), a->forward(y) * x));
  CHECK(torch::equal(outputs[1].toTensor(), a->forward(y)));
}

TEST_CASE("export_torchscript refuses a baked batch size and names operator and layer", "[export]") {
  const Folder folder;
  auto a = conv3x3(1, 1);
  const auto view = error_of([&] {
    export_function({{"a", a}},
                    [&](const torch::Tensor& x) {
                      return a->forward(x).view({x.size(0), -1});
                    },
                    folder.file("m.pt"), {2, 1, 4, 4});
  });
  INFO(view);
  CHECK(view.find("export_torchscript: the batch size is baked into\n"
                  "  aten::view after a: size is [2, -1], with one sample more [3, -1]\n") == 0);
  const auto zeros = error_of([&] {
    export_function({{"a", a}},
                    [&](const torch::Tensor& x) {
                      const auto y = a->forward(x);
                      return y + torch::zeros({x.size(0), 1, 1, 1});
                    },
                    folder.file("m.pt"), {2, 1, 4, 4});
  });
  INFO(zeros);
  CHECK(zeros.find("aten::zeros after a: size is [2, 1, 1, 1], with one sample more [3, 1, 1, 1]") !=
        std::string::npos);
  const auto branch = error_of([&] {
    export_function(
        {{"a", a}},
        [&](const torch::Tensor& x) { return x.size(0) > 2 ? a->forward(x).relu() : a->forward(x); },
        folder.file("m.pt"), {2, 1, 4, 4});
  });
  INFO(branch);
  CHECK(branch.find("must not branch on the batch size") != std::string::npos);
  CHECK(folder.count() == 0);
}

TEST_CASE("export_torchscript refuses a file that disagrees with the model", "[export]") {
  const Folder folder;
  auto a = linear(4, 4);
  // What leaves ATen is invisible to a trace: the file would hold the values of the example.
  const auto error = error_of([&] {
    export_function(
        {{"a", a}},
        [&](const torch::Tensor& x) {
          const auto y = a->forward(x);
          auto z = torch::empty({4});
          for (int i = 0; i < 4; ++i)
            z.data_ptr<float>()[i] = x.sum(0).data_ptr<float>()[i];
          return y + z;
        },
        folder.file("m.pt"));
  });
  INFO(error);
  CHECK(error.find("m.pt read back differs from the model's in") != std::string::npos);
  CHECK(folder.count() == 0);
}

TEST_CASE("export_torchscript counts NaN as equal to NaN", "[export]") {
  const Folder folder;
  auto a = linear(4, 4);
  export_function(
      {{"a", a}}, [&](const torch::Tensor& x) { return (a->forward(x) - 10.0).log(); }, folder.file("m.pt"));
  CHECK(folder.count() == 1);
}

TEST_CASE("export_torchscript reports a path that can not be written", "[export]") {
  const Folder folder;
  auto a = linear(4, 4);
  const auto forward = [&](const torch::Tensor& x) { return a->forward(x); };
  const auto missing = folder.file("missing/m.pt");
  const auto error = error_of([&] { export_function({{"a", a}}, forward, missing); });
  CHECK(error == "export_torchscript: cannot write " + missing + ": No such file or directory");
  fs::create_directory(folder.file("m.pt"));
  CHECK(error_of([&] {
          export_function({{"a", a}}, forward, folder.file("m.pt"));
        }) == "export_torchscript: cannot write " + folder.file("m.pt") + ": it is a folder");
  CHECK(folder.count() == 1);
}

TEST_CASE("export_torchscript keeps the old file when it fails", "[export]") {
  const Folder folder;
  std::ofstream(folder.file("m.pt")) << "old";
  auto a = linear(4, 4);
  CHECK(error_of([&] {
          export_function(
              {{"a", a}},
              [&](const torch::Tensor& x) {
                return a->forward(x).view({x.size(0), -1});
              },
              folder.file("m.pt"));
        }) != "");
  CHECK(fs::file_size(folder.file("m.pt")) == 3);
  CHECK(folder.count() == 1);
}

TEST_CASE("export_torchscript refuses empty and undefined inputs", "[export]") {
  const Folder folder;
  auto a = linear(4, 4);
  FromFunction model({{"a", a}});
  const auto forward = [&](const Tensors& x) { return Tensors{a->forward(x[0])}; };
  const auto error_with = [&](const Tensors& inputs) {
    return error_of([&] { qat::export_torchscript(model, forward, inputs, folder.file("m.pt")); });
  };
  CHECK(error_with({}) == "export_torchscript: expected example inputs, got none");
  CHECK(error_with({torch::Tensor()}) == "export_torchscript: example input 0 is undefined");
  CHECK(error_with({torch::randn({0, 4})}) ==
        "export_torchscript: expected at least one sample, got example input 0 of shape [0, 4]");
}

TEST_CASE("case 113: export_torchscript writes a learned scale and leaves it trainable", "[export]") {
  const Folder folder;
  LearnedScale model;
  torch::optim::SGD optimizer(model.parameters(), 0.0);
  model.forward(torch::tensor({0.3f, 0.4f})).sum().backward();
  optimizer.step();
  const auto gradient = model.scale.grad().clone();
  qat::export_torchscript(
      model, [&](const Tensors& x) { return Tensors{model.forward(x[0])}; }, {torch::randn({2, 4})},
      folder.file("m.pt"));

  auto loaded = torch::jit::load(folder.file("m.pt"));
  CHECK(loaded.forward({torch::tensor({0.3f})}).toTensor().item<float>() == 0.25f);
  CHECK(loaded.attr("scale").toTensor().item<float>() == 0.25f);
  CHECK(model.scale.requires_grad());
  CHECK(model.scale.is_leaf());
  CHECK(torch::equal(model.scale.grad(), gradient));
  CHECK(model.is_training());
}

TEST_CASE("case 114: an exported model does not change when it runs", "[export]") {
  const Folder folder;
  /// Records its input's maximum in train mode only.
  struct Recording : torch::nn::Module {
    Recording() : torch::nn::Module("Recording") { max = register_buffer("max", torch::zeros({})); }
    torch::Tensor forward(const torch::Tensor& x) {
      qat::LayerScope scope(*this, {x});
      if (is_training()) max.copy_(torch::maximum(max, x.max()));
      return scope.output(x / 2);
    }
    torch::Tensor max;
  };
  Recording model;
  model.forward(torch::ones({1, 4}));
  qat::export_torchscript(
      model, [&](const Tensors& x) { return Tensors{model.forward(x[0])}; }, {torch::full({2, 4}, 50.0f)},
      folder.file("m.pt"));
  CHECK(model.max.item<float>() == 1.0f);

  auto loaded = torch::jit::load(folder.file("m.pt"));
  const auto x = torch::full({1, 4}, 0.5f);
  const auto before = loaded.forward({x}).toTensor().clone();
  loaded.forward({torch::full({1, 4}, 100.0f)});
  CHECK(torch::equal(loaded.forward({x}).toTensor(), before));
  CHECK(loaded.attr("max").toTensor().item<float>() == 1.0f);
  CHECK(loaded.get_method("forward").graph()->toString().find("max") == std::string::npos);
}

TEST_CASE("case 117: an export in the middle of training changes nothing", "[export]") {
  const Folder folder;
  const auto train = [&](bool with_export) {
    torch::manual_seed(3);
    auto model = std::make_shared<Residual>();
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    model->bn->eval();
    for (int step = 0; step < 3; ++step) {
      if (with_export && step == 1) {
        qat::export_torchscript(*model, qat::forward_function(model), {torch::ones({2, 1, 4, 4})},
                                folder.file("m.pt"));
        CHECK(model->is_training());
        CHECK(model->stem->is_training());
        CHECK_FALSE(model->bn->is_training());
      }
      optimizer.zero_grad();
      model->forward(torch::rand({4, 1, 4, 4})).square().sum().backward();
      optimizer.step();
    }
    return model;
  };
  const auto plain = train(false);
  const auto exported = train(true);
  for (const auto& parameter : plain->named_parameters()) {
    CHECK(torch::equal(parameter.value(), exported->named_parameters()[parameter.key()]));
    CHECK(exported->named_parameters()[parameter.key()].requires_grad());
  }
  for (const auto& buffer : plain->named_buffers()) {
    CHECK(torch::equal(buffer.value(), exported->named_buffers()[buffer.key()]));
  }
}

TEST_CASE("Python loads an exported model and computes the same", "[export]") {
  const auto* python = std::getenv("QAT_PYTHON");
  if (!python) {
    WARN("skipped: set QAT_PYTHON to a Python that has torch");
    return;
  }
  const Folder folder;
  auto model = std::make_shared<Residual>();
  const auto x = torch::linspace(-1, 1, 48).view({3, 1, 4, 4});
  qat::export_torchscript(*model, qat::forward_function(model), {x.narrow(0, 0, 2)}, folder.file("m.pt"),
                          {.metadata = {{"input_shape", "[1, 4, 4]"}}});
  model->eval();
  std::ofstream(folder.file("names")) << [&] {
    std::string names;
    for (const auto& parameter : model->named_parameters())
      names += parameter.key() + "\n";
    for (const auto& buffer : model->named_buffers())
      names += buffer.key() + "\n";
    return names;
  }();
  const auto expected = model->forward(x).sum().item<float>();
  std::ofstream(folder.file("check.py"))
      << "import sys, torch\n"
         "folder, expected = sys.argv[1], float(sys.argv[2])\n"
         "extra = {'input_shape': ''}\n"
         "model = torch.jit.load(folder + '/m.pt', _extra_files=extra)\n"
         "assert extra['input_shape'] in (b'[1, 4, 4]', '[1, 4, 4]'), extra\n"
         "names = sorted(open(folder + '/names').read().split())\n"
         "assert sorted(model.state_dict()) == names, (sorted(model.state_dict()), names)\n"
         "x = torch.linspace(-1, 1, 48).view(3, 1, 4, 4)\n"
         "y = model(x)\n"
         "assert y.requires_grad and not model.training\n"
         "assert abs(y.sum().item() - expected) < 1e-5, (y.sum().item(), expected)\n";
  const auto command = std::string(python) + " " + folder.file("check.py") + " " + folder.file("") + " " +
                       std::to_string(expected);
  CHECK(std::system(command.c_str()) == 0);
}
