#include "graph/reporting_layers.h"

#include "support/catch.h"

using namespace reporting;
using Tensors = std::vector<torch::Tensor>;

namespace {

std::string report_of(const std::function<torch::Tensor(const torch::Tensor&)>& forward, FromFunction& model,
                      std::vector<std::int64_t> shape = {2, 4}) {
  return qat::functional_report(
      qat::capture(model, [&](const Tensors& x) { return Tensors{forward(x[0])}; }, {torch::randn(shape)}));
}

}  // namespace

TEST_CASE("functional_report names neighbours and the layer to use", "[graph]") {
  auto model = std::make_shared<Residual>();
  const auto graph = qat::capture(*model, qat::forward_function(model), {torch::randn({2, 1, 4, 4})});
  CHECK(qat::functional_report(graph) == "aten::add between block.bn, stem and relu: use qat::nn::Add\n");
  const auto operations = qat::functional_operations(graph);
  REQUIRE(operations.size() == 1);
  CHECK(operations[0].node == 3);
  CHECK(operations[0].type == "aten::add");
  CHECK(operations[0].after == std::vector<std::string>{"block.bn", "stem"});
  CHECK(operations[0].before == std::vector<std::string>{"relu"});
  CHECK(operations[0].use_instead == "qat::nn::Add");
}

TEST_CASE("functional_report looks through operations to the layers", "[graph]") {
  auto a = linear(4, 4);
  auto b = linear(4, 4);
  FromFunction model({{"a", a}, {"b", b}});
  CHECK(report_of(
            [&](const torch::Tensor& x) {
              const auto y = torch::relu(a->forward(x).view({2, 2, 2}) + x.view({2, 2, 2})).flatten(1);
              return torch::softmax(b->forward(y), 1) - y;
            },
            model) ==
        "aten::add between a, input0 and b, output: use qat::nn::Add\n"
        "aten::relu between a, input0 and b, output: use qat::nn::ReLU\n"
        "aten::softmax between b and output: there is no layer for it, its result is not quantized\n"
        "aten::sub between b, a, input0 and output: use qat::nn::Sub\n");
}

TEST_CASE("functional_report knows the layers of convolutions pools and normalisation", "[graph]") {
  auto a = conv3x3(2, 2);
  FromFunction model({{"a", a}});
  auto kernel = model.register_parameter("kernel", torch::randn({2, 2, 3, 3}));
  auto gain = model.register_parameter("gain", torch::ones({2}));
  const auto report = report_of(
      [&](const torch::Tensor& x) {
        auto y = torch::conv2d(a->forward(x), kernel.abs());
        y = torch::batch_norm(y, gain, gain, gain, gain, false, 0.1, 1e-5, false);
        y = torch::max_pool2d(y, 2);
        y = torch::avg_pool2d(y, 2);
        y = torch::hardtanh(torch::gelu(torch::silu(torch::sigmoid(torch::tanh(y)))), 0, 6);
        y = torch::cat({y, y}, 1) * 2;
        return torch::linear(y.mean({2, 3}), torch::ones({3, 4}));
      },
      model, {1, 2, 10, 10});
  CHECK(report ==
        "aten::conv2d between a and output: use qat::nn::Conv2d\n"
        "aten::batch_norm between a and output: use qat::nn::BatchNorm2d\n"
        "aten::max_pool2d between a and output: use qat::nn::MaxPool2d\n"
        "aten::avg_pool2d between a and output: use qat::nn::AvgPool2d\n"
        "aten::tanh between a and output: use qat::nn::Tanh\n"
        "aten::sigmoid between a and output: use qat::nn::Sigmoid\n"
        "aten::silu between a and output: use qat::nn::SiLU\n"
        "aten::gelu between a and output: use qat::nn::GELU\n"
        "aten::hardtanh between a and output: there is no layer for it, its result is not quantized\n"
        "aten::cat between a and output: use qat::nn::Cat\n"
        "aten::mul between a and output: use qat::nn::Mul\n"
        "aten::mean between a and output: use qat::nn::AdaptiveAvgPool2d\n"
        "aten::linear between a and output: use qat::nn::Linear\n");
}

TEST_CASE("keeps_codes is true for what moves or selects values", "[graph]") {
  using Kind = qat::GraphNode::Kind;
  const auto keeps = [](Kind kind, const std::string& type) {
    qat::GraphNode node;
    node.kind = kind;
    node.type = type;
    return qat::keeps_codes(node);
  };
  for (const auto* type : {"aten::view", "aten::reshape", "aten::flatten", "aten::permute", "aten::slice",
                           "aten::chunk", "aten::dropout", "aten::max_pool2d", "aten::adaptive_max_pool2d"}) {
    INFO(type);
    CHECK(keeps(Kind::kOperation, type));
  }
  for (const auto* type : {"aten::add", "aten::relu", "aten::avg_pool2d", "aten::cat", "aten::mean"}) {
    INFO(type);
    CHECK_FALSE(keeps(Kind::kOperation, type));
  }
  for (const auto* type :
       {"qat::nn::Flatten", "qat::nn::MaxPool2d", "qat::nn::Dropout", "qat::nn::Identity"}) {
    INFO(type);
    CHECK(keeps(Kind::kLayer, type));
  }
  for (const auto* type : {"qat::nn::ReLU", "qat::nn::Conv2d", "qat::nn::AvgPool2d"}) {
    INFO(type);
    CHECK_FALSE(keeps(Kind::kLayer, type));
  }
}
