#include "graph/reporting_layers.h"

#include <thread>

#include "support/catch.h"

using namespace reporting;
using Tensors = std::vector<torch::Tensor>;

namespace {

/// Captures a function of one tensor over a model of one linear layer "a" (4 to 4) and what it is given
/// besides.
qat::Graph capture_function(const FromFunction::Layers& layers,
                            const std::function<torch::Tensor(const torch::Tensor&)>& forward,
                            std::vector<std::int64_t> shape = {2, 4}) {
  FromFunction model(layers);
  return qat::capture(model, [&](const Tensors& x) { return Tensors{forward(x[0])}; }, {torch::randn(shape)});
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace

TEST_CASE("capture ties every operation to the layer that makes it", "[graph]") {
  auto model = std::make_shared<Residual>();
  const auto graph = qat::capture(*model, qat::forward_function(model), {torch::randn({2, 1, 4, 4})});
  CHECK(graph.to_text() ==
        "0 stem Conv2d(%0[2, 1, 4, 4]) -> %1[2, 2, 4, 4]\n"
        "1 block.conv Conv2d(%1[2, 2, 4, 4]) -> %2[2, 2, 4, 4]\n"
        "2 block.bn BatchNorm2d(%2[2, 2, 4, 4]) -> %3[2, 2, 4, 4]\n"
        "3 aten::add(%3[2, 2, 4, 4], %1[2, 2, 4, 4]) -> %4[2, 2, 4, 4]\n"
        "4 relu ReLU(%4[2, 2, 4, 4]) -> %5[2, 2, 4, 4]\n"
        "5 aten::flatten(%5[2, 2, 4, 4]) -> %6[2, 32]\n"
        "6 head Linear(%6[2, 32]) -> %7[2, 3]\n");
  CHECK(graph.nodes[3].path == "block.bn");
  CHECK(graph.inputs == std::vector<std::int64_t>{0});
  CHECK(graph.outputs == std::vector<std::int64_t>{7});
  CHECK(graph.tensors[1].consumers == std::vector<std::int64_t>{1, 3});
  CHECK(graph.tensors[1].producer == 0);
  CHECK(graph.tensors[0].name == "input0");
  CHECK(graph.tensors[3].name == "block.bn.out");
  CHECK(graph.tensors[4].name == "aten::add#3.out");
  CHECK(graph.find_layer("block.bn")->id == 2);
  CHECK(graph.find_layer("block") == nullptr);
  CHECK(graph.find_layer("relu", 1) == nullptr);
}

TEST_CASE("capture draws a graph", "[graph]") {
  auto a = linear(4, 4);
  const auto graph = capture_function({{"a", a}}, [&](const torch::Tensor& x) { return a->forward(x) + x; });
  CHECK(graph.to_dot() ==
        "digraph model {\n"
        "  rankdir=LR;\n"
        "  node [shape=box];\n"
        "  t0 [shape=ellipse, label=\"input0\"];\n"
        "  n0 [label=\"a Linear\"];\n"
        "  n1 [label=\"aten::add\", style=dashed];\n"
        "  t0 -> n0 [label=\"[2, 4]\"];\n"
        "  n0 -> n1 [label=\"[2, 4]\"];\n"
        "  t0 -> n1 [label=\"[2, 4]\"];\n"
        "  output0 [shape=ellipse];\n"
        "  n1 -> output0 [label=\"[2, 4]\"];\n"
        "}\n");
}

TEST_CASE("capture counts the calls of a layer that runs twice", "[graph]") {
  auto a = linear(4, 4);
  const auto graph =
      capture_function({{"a", a}}, [&](const torch::Tensor& x) { return a->forward(a->forward(x)); });
  CHECK(graph.to_text() ==
        "0 a Linear(%0[2, 4]) -> %1[2, 4]\n"
        "1 a#1 Linear(%1[2, 4]) -> %2[2, 4]\n");
  CHECK(graph.find_layer("a", 1)->id == 1);
  CHECK(graph.tensors[2].name == "a#1.out");
}

TEST_CASE("capture names a layer with two paths by the first", "[graph]") {
  auto a = linear(4, 4);
  const auto graph =
      capture_function({{"a", a}, {"b", a}}, [&](const torch::Tensor& x) { return a->forward(x); });
  CHECK(graph.to_text() == "0 a Linear(%0[2, 4]) -> %1[2, 4]\n");
}

TEST_CASE("capture takes several inputs and outputs", "[graph]") {
  auto a = linear(4, 4);
  FromFunction model({{"a", a}});
  const auto graph = qat::capture(model,
                                  [&](const Tensors& x) {
                                    const auto y = a->forward(x[1]);
                                    return Tensors{y, y * x[0], x[1]};
                                  },
                                  {torch::randn({2, 4}), torch::randn({2, 4})});
  CHECK(graph.to_text() ==
        "0 a Linear(%1[2, 4]) -> %2[2, 4]\n"
        "1 aten::mul(%2[2, 4], %0[2, 4]) -> %3[2, 4]\n");
  CHECK(graph.inputs == std::vector<std::int64_t>{0, 1});
  CHECK(graph.outputs == std::vector<std::int64_t>{2, 3, 1});
}

TEST_CASE("capture gives the same tensor passed twice two inputs", "[graph]") {
  auto a = linear(4, 4);
  FromFunction model({{"a", a}});
  const auto x = torch::randn({2, 4});
  const auto graph = qat::capture(
      model, [&](const Tensors& inputs) { return Tensors{a->forward(inputs[0]) - inputs[1]}; }, {x, x});
  CHECK(graph.nodes[1].inputs == std::vector<std::int64_t>{2, 1});
}

TEST_CASE("capture gives a layer that returns its input a node and an output", "[graph]") {
  auto a = linear(4, 4);
  auto identity = layer<Identity>("Identity");
  auto dropout = layer<Dropout>("Dropout", 0.5);
  const auto graph =
      capture_function({{"a", a}, {"identity", identity}, {"dropout", dropout}}, [&](const torch::Tensor& x) {
        const auto y = a->forward(x);
        return dropout->forward(identity->forward(y)) + y;
      });
  CHECK(graph.to_text() ==
        "0 a Linear(%0[2, 4]) -> %1[2, 4]\n"
        "1 identity Identity(%1[2, 4]) -> %2[2, 4]\n"
        "2 dropout Dropout(%2[2, 4]) -> %3[2, 4]\n"
        "3 aten::add(%3[2, 4], %1[2, 4]) -> %4[2, 4]\n");
}

TEST_CASE("capture looks through lists of tensors", "[graph]") {
  auto a = linear(4, 4);
  const auto graph = capture_function({{"a", a}}, [&](const torch::Tensor& x) {
    const auto parts = a->forward(x).chunk(2, 1);
    return torch::cat({parts[1], x, parts[0]}, 1);
  });
  CHECK(graph.to_text() ==
        "0 a Linear(%0[2, 4]) -> %1[2, 4]\n"
        "1 aten::chunk(%1[2, 4]) -> %2[2, 2], %3[2, 2]\n"
        "2 aten::cat(%3[2, 2], %0[2, 4], %2[2, 2]) -> %4[2, 8]\n");
}

TEST_CASE("capture shows parameters and constants that functional code reads", "[graph]") {
  auto a = linear(4, 4);
  FromFunction model({{"a", a}});
  auto gain = model.register_parameter("gain", torch::ones({4}));
  auto offset = model.register_buffer("offset", torch::zeros({4}));
  const auto table = torch::ones({2, 4});
  const auto graph = qat::capture(
      model,
      [&](const Tensors& x) { return Tensors{a->forward(x[0]) * gain + offset + table + torch::ones({4})}; },
      {torch::randn({2, 4})});
  REQUIRE(graph.nodes.size() == 5);
  const auto& by = [&](std::int64_t node) { return graph.tensors[graph.nodes[node].inputs[1]]; };
  CHECK(by(1).name == "gain");
  CHECK(by(1).kind == qat::GraphTensor::Kind::kParameter);
  CHECK(by(2).name == "offset");
  CHECK(by(2).kind == qat::GraphTensor::Kind::kParameter);
  CHECK(by(3).kind == qat::GraphTensor::Kind::kConstant);
  CHECK(by(3).shape == std::vector<std::int64_t>{2, 4});
  CHECK(by(4).kind == qat::GraphTensor::Kind::kConstant);
}

TEST_CASE("capture follows tied parameters", "[graph]") {
  auto a = linear(4, 4);
  FromFunction model({{"a", a}});
  model.register_parameter("tied", a->named_parameters()["weight"]);
  const auto weight = a->named_parameters()["weight"];
  const auto graph =
      qat::capture(model, [&](const Tensors& x) { return Tensors{a->forward(x[0]).matmul(weight)}; },
                   {torch::randn({2, 4})});
  REQUIRE(graph.nodes.size() == 2);
  CHECK(graph.nodes[1].type == "aten::matmul");
  const auto& name = graph.tensors[graph.nodes[1].inputs[1]].name;
  CHECK((name == "tied" || name == "a.weight"));
}

TEST_CASE("capture names functional convolutions by kind and leaves out what nobody reads", "[graph]") {
  auto a = conv3x3(2, 2);
  FromFunction model({{"a", a}});
  auto kernel = model.register_parameter("kernel", torch::randn({2, 2, 3, 3}));
  const auto graph = qat::capture(model,
                                  [&](const Tensors& x) {
                                    const auto y = torch::conv2d(a->forward(x[0]), kernel);
                                    torch::relu(y);
                                    return Tensors{torch::conv_transpose2d(y, kernel)};
                                  },
                                  {torch::randn({1, 2, 5, 5})});
  CHECK(graph.to_text() ==
        "0 a Conv2d(%0[1, 2, 5, 5]) -> %1[1, 2, 5, 5]\n"
        "1 aten::conv2d(%1[1, 2, 5, 5], %2[2, 2, 3, 3]) -> %3[1, 2, 3, 3]\n"
        "2 aten::conv_transpose2d(%3[1, 2, 3, 3], %2[2, 2, 3, 3]) -> %4[1, 2, 5, 5]\n");
}

TEST_CASE("capture lets later readers see what was written in place", "[graph]") {
  auto a = linear(4, 4);
  auto b = linear(4, 4);
  auto relu = layer<ReLU>("ReLU", torch::nn::ReLUOptions().inplace(true));
  const auto graph = capture_function({{"a", a}, {"b", b}, {"relu", relu}}, [&](const torch::Tensor& x) {
    auto y = a->forward(x);
    y.relu_();
    y += x;
    relu->forward(y);
    return b->forward(y) + y;
  });
  CHECK(graph.to_text() ==
        "0 a Linear(%0[2, 4]) -> %1[2, 4]\n"
        "1 aten::relu(%1[2, 4]) -> %2[2, 4]\n"
        "2 aten::add(%2[2, 4], %0[2, 4]) -> %3[2, 4]\n"
        "3 relu ReLU(%3[2, 4]) -> %4[2, 4]\n"
        "4 b Linear(%4[2, 4]) -> %5[2, 4]\n"
        "5 aten::add(%5[2, 4], %4[2, 4]) -> %6[2, 4]\n");
  CHECK_FALSE(graph.nodes[1].in_place_on_view);
}

TEST_CASE("capture refuses in place writes into views and names operator and layer", "[graph]") {
  auto a = linear(4, 4);
  auto b = linear(4, 4);
  const FromFunction::Layers named = {{"a", a}, {"b", b}};
  using Function = std::function<torch::Tensor(const torch::Tensor&)>;
  const std::vector<std::pair<std::string, Function>> cases = {
      {"aten::add_ after a",
       [&](const torch::Tensor& x) {
         auto y = a->forward(x);
         y.select(1, 0).add_(1);
         return b->forward(y);
       }},
      {"aten::copy_ after a",
       [&](const torch::Tensor& x) {
         auto y = a->forward(x);
         y.slice(1, 0, 2).copy_(x.slice(1, 0, 2));
         return y;
       }},
      {"aten::relu_ after b",
       [&](const torch::Tensor& x) {
         auto y = b->forward(a->forward(x));
         auto view = y.view({-1});
         y.relu_();
         return view;
       }},
      {"aten::mul_ after b",
       [&](const torch::Tensor& x) {
         auto y = b->forward(a->forward(x));
         y.chunk(2, 1)[0].mul_(2);
         return y;
       }},
  };
  for (const auto& [expected, forward] : cases) {
    const auto error = error_of([&] { capture_function(named, forward); });
    INFO(error);
    CHECK(error.find(expected) != std::string::npos);
    CHECK(error.find("capture: ") == 0);
  }
}

TEST_CASE("capture refuses a layer that writes into a view of a tensor read later", "[graph]") {
  auto a = linear(4, 4);
  auto relu = layer<ReLU>("ReLU", torch::nn::ReLUOptions().inplace(true));
  const auto error = error_of([&] {
    capture_function({{"a", a}, {"relu", relu}}, [&](const torch::Tensor& x) {
      const auto y = a->forward(x);
      return relu->forward(y.view({8})).view({2, 4}) + y;
    });
  });
  CHECK(error.find("aten::relu_ in relu") != std::string::npos);
}

TEST_CASE("capture accepts an in place write into a view whose base is not read later", "[graph]") {
  auto a = linear(4, 4);
  const auto graph =
      capture_function({{"a", a}}, [&](const torch::Tensor& x) { return a->forward(x).flatten().relu_(); });
  REQUIRE(graph.nodes.size() == 3);
  CHECK(graph.nodes[2].type == "aten::relu");
  CHECK(graph.nodes[2].in_place_on_view);
}

TEST_CASE("capture refuses models without a layer that reports itself", "[graph]") {
  auto model = std::make_shared<torch::nn::LinearImpl>(4, 4);
  const auto error = error_of([&] {
    qat::capture(*model, qat::forward_function(model), {torch::randn({2, 4})});
  });
  CHECK(error.find("no layer of the model reports itself; use qat::nn layers") != std::string::npos);
}

TEST_CASE("capture refuses layers that are not registered and inputs that are undefined", "[graph]") {
  auto a = linear(4, 4);
  auto stray = linear(4, 4);
  CHECK(error_of([&] {
          capture_function({{"a", a}}, [&](const torch::Tensor& x) { return stray->forward(a->forward(x)); });
        }).find("a Linear runs that is not registered in the model") != std::string::npos);
  FromFunction model({{"a", a}});
  const auto forward = [&](const Tensors& x) { return Tensors{a->forward(x[0])}; };
  CHECK(error_of([&] { qat::capture(model, forward, {torch::Tensor()}); }) ==
        "capture: example input 0 is undefined");
  CHECK(error_of([&] { qat::capture(model, forward, {}); }) == "capture: expected example inputs, got none");
}

TEST_CASE("capture does not nest", "[graph]") {
  auto a = linear(4, 4);
  const auto inner = [&] {
    capture_function({{"a", a}}, [&](const torch::Tensor& x) { return a->forward(x); });
  };
  CHECK(error_of([&] {
          capture_function({{"a", a}}, [&](const torch::Tensor& x) {
            inner();
            return a->forward(x);
          });
        }).find("capture: a capture or trace runs on this thread already") == 0);
  inner();
}

TEST_CASE("captures in two threads do not disturb each other", "[graph]") {
  std::vector<std::string> texts(2);
  const auto work = [&](std::size_t i) {
    auto a = linear(4, static_cast<std::int64_t>(i) + 1);
    for (int repeat = 0; repeat < 5; ++repeat) {
      texts[i] =
          capture_function({{"a", a}}, [&](const torch::Tensor& x) { return a->forward(x); }).to_text();
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  CHECK(texts[0] == "0 a Linear(%0[2, 4]) -> %1[2, 1]\n");
  CHECK(texts[1] == "0 a Linear(%0[2, 4]) -> %1[2, 2]\n");
}

TEST_CASE("capture takes a layer as the whole model", "[graph]") {
  auto a = linear(4, 4);
  const auto graph = qat::capture(*a, qat::forward_function(a), {torch::randn({2, 4})});
  CHECK(graph.to_text() == "0 Linear(%0[2, 4]) -> %1[2, 4]\n");
  CHECK(graph.find_layer("") != nullptr);
}

TEST_CASE("capture reports a layer that does not report its output", "[graph]") {
  struct Forgetful : torch::nn::Module {
    Forgetful() : torch::nn::Module("Forgetful") {}
    torch::Tensor forward(const torch::Tensor& x) {
      qat::LayerScope scope(*this, {x});
      return x + 1;
    }
  };
  auto a = std::make_shared<Forgetful>();
  CHECK(error_of([&] {
          capture_function({{"a", a}}, [&](const torch::Tensor& x) { return a->forward(x); });
        }) == "capture: a (Forgetful) began and did not report its output; return scope.output(y)");
}
