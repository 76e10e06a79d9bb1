#include "graph_builder.h"

#include <chrono>
#include <set>
#include <string>

#include "support/catch.h"
#include "support/errors.h"

using namespace qat;
using namespace qat::testing;

namespace {

using Texts = std::set<std::string>;

/// Everything is quantized.
QATConfig nothing_skipped() {
  QATConfig config;
  config.skip_inputs_layers = {};
  config.skip_outputs_layers = {};
  return config;
}

}  // namespace

TEST_CASE("A chain is quantized at its input and behind its activations", "[schedulers]") {
  GraphBuilder g;
  const auto relu = g.layer("ReLU", "relu", {g.layer("Conv2d", "conv1", {g.input()})});
  const auto flat =
      g.layer("Flatten", "flatten", {g.layer("MaxPool2d", "pool", {g.layer("Conv2d", "conv2", {relu})})});
  g.output(g.layer("Linear", "fc", {flat}));
  const auto placement = g.place(nothing_skipped());

  // conv1's output goes into the ReLU alone; the output of the network stays real.
  CHECK(activations(placement) == Texts{"conv1.input_slot", "relu.output_slot", "conv2.output_slot"});
  CHECK(links(placement) ==
        Texts{"conv2.input_slot -> relu.output_slot", "fc.input_slot -> conv2.output_slot"});
  CHECK(layers(placement.weights) == Texts{"conv1", "conv2", "fc"});
  CHECK(layers(placement.biases) == Texts{"conv1", "conv2", "fc"});
}

TEST_CASE("skip_bias leaves biases in float", "[schedulers]") {
  GraphBuilder g;
  g.output(g.layer("Linear", "fc", {g.input()}));
  QATConfig config = nothing_skipped();
  config.skip_bias = true;
  CHECK(g.place(config).biases.empty());
  CHECK(layers(g.place(config).weights) == Texts{"fc"});
}

TEST_CASE("An activation that no quantizer computes gets a quantizer on both sides", "[schedulers]") {
  GraphBuilder g;
  const auto sigmoid = g.layer("Sigmoid", "sigmoid", {g.layer("Conv2d", "conv1", {g.input()})});
  g.output(g.layer("Conv2d", "conv2", {sigmoid}));
  const auto placement = g.place(nothing_skipped());
  CHECK(activations(placement) == Texts{"conv1.input_slot", "conv1.output_slot", "sigmoid.output_slot"});
}

TEST_CASE("A folded BatchNorm is looked through and an unfolded one stays float", "[schedulers]") {
  GraphBuilder g;
  const auto conv = g.layer("Conv2d", "conv", {g.input()});
  const auto relu = g.layer("ReLU", "relu", {g.layer("BatchNorm2d", "bn", {conv})});
  const auto bn2 = g.layer("BatchNorm2d", "bn2", {g.layer("Conv2d", "conv2", {relu})});
  g.output(g.layer("Conv2d", "conv3", {bn2}));

  const auto folded = g.place(nothing_skipped(), {"bn", "bn2"});
  CHECK(activations(folded) == Texts{"conv.input_slot", "relu.output_slot", "conv2.output_slot"});
  CHECK(links(folded) ==
        Texts{"conv2.input_slot -> relu.output_slot", "conv3.input_slot -> conv2.output_slot"});

  const auto unfolded = g.place(nothing_skipped());
  CHECK(activations(unfolded) == Texts{"conv.input_slot", "relu.output_slot", "bn2.output_slot"});
}

TEST_CASE("A function behind a folded BatchNorm is no part of it", "[schedulers]") {
  GraphBuilder g;
  const auto bn = g.layer("BatchNorm2d", "bn", {g.layer("Conv2d", "conv", {g.input()})});
  const auto scaled = g.operation("aten::mul", {bn});
  g.graph.nodes.back().path = "bn";  // as capture names the layer before an operation
  g.output(g.layer("Conv2d", "conv2", {scaled}));
  CHECK(activations(g.place(nothing_skipped(), {"bn"})) == Texts{"conv.input_slot", "conv2.input_slot"});
}

TEST_CASE("Max pooling between a layer and its activation keeps them apart", "[schedulers]") {
  GraphBuilder g;
  const auto pool = g.layer("MaxPool2d", "pool", {g.layer("Conv2d", "conv", {g.input()})});
  g.output(g.layer("Conv2d", "conv2", {g.layer("ReLU", "relu", {pool})}));
  CHECK(activations(g.place(nothing_skipped())) ==
        Texts{"conv.input_slot", "conv.output_slot", "relu.output_slot"});
}

TEST_CASE("A residual block with an identity shortcut shares one scale at its sum", "[schedulers]") {
  GraphBuilder g;
  const auto relu1 = g.layer("ReLU", "relu1", {g.layer("Conv2d", "conv1", {g.input()})});
  const auto bn = g.layer("BatchNorm2d", "bn", {g.layer("Conv2d", "conv2", {relu1})});
  const auto relu2 = g.layer("ReLU", "relu2", {g.layer("Add", "add", {bn, relu1})});
  g.output(g.layer("Linear", "fc", {relu2}));
  const auto placement = g.place(nothing_skipped(), {"bn"});
  CHECK(activations(placement) ==
        Texts{"conv1.input_slot", "relu1.output_slot = conv2.output_slot", "relu2.output_slot"});
  CHECK(links(placement) ==
        Texts{"conv2.input_slot -> relu1.output_slot", "add.input_slot -> relu1.output_slot",
              "add.input_slot_1 -> relu1.output_slot", "fc.input_slot -> relu2.output_slot"});
}

TEST_CASE("A residual block with a projection shortcut shares one scale of both convolutions",
          "[schedulers]") {
  GraphBuilder g;
  const auto x = g.input();
  const auto main = g.layer("Conv2d", "main", {x});
  const auto shortcut = g.layer("Conv2d", "shortcut", {x});
  g.output(g.layer("Linear", "fc", {g.layer("ReLU", "relu", {g.layer("Add", "add", {main, shortcut})})}));
  const auto placement = g.place(nothing_skipped());
  CHECK(activations(placement) ==
        Texts{"main.input_slot", "main.output_slot = shortcut.output_slot", "relu.output_slot"});
  CHECK(links(placement) ==
        Texts{"shortcut.input_slot => main.input_slot", "add.input_slot -> main.output_slot",
              "add.input_slot_1 -> main.output_slot", "fc.input_slot -> relu.output_slot"});
}

TEST_CASE("Sums that share an operand share one scale", "[schedulers]") {
  GraphBuilder g;
  const auto x = g.input();
  const auto a = g.layer("Conv2d", "a", {x});
  const auto b = g.layer("Conv2d", "b", {x});
  const auto c = g.layer("Conv2d", "c", {x});
  g.output(g.layer("Add", "add1", {a, b}));
  g.output(g.layer("Sub", "add2", {b, c}));
  CHECK(activations(g.place(nothing_skipped())) ==
        Texts{"a.input_slot", "a.output_slot = b.output_slot = c.output_slot"});
}

TEST_CASE("A sum of a tensor with itself has one quantizer", "[schedulers]") {
  GraphBuilder g;
  const auto h = g.layer("Conv2d", "conv", {g.input()});
  g.output(g.layer("Add", "add", {h, h}));
  const auto placement = g.place(nothing_skipped());
  CHECK(activations(placement) == Texts{"conv.input_slot", "conv.output_slot"});
  CHECK(links(placement) ==
        Texts{"add.input_slot -> conv.output_slot", "add.input_slot_1 -> conv.output_slot"});
}

TEST_CASE("The graph shows which activations are never negative", "[schedulers]") {
  GraphBuilder g;
  const auto x = g.input();
  const auto relu = g.layer("ReLU", "relu", {g.layer("Conv2d", "conv", {x})});
  const auto pooled = g.layer("MaxPool2d", "pool", {g.layer("Sigmoid", "sigmoid", {x})});
  const auto functional = g.operation("aten::relu", {g.layer("Conv2d", "hidden", {x})});
  const auto cat = g.layer("Cat", "cat", {relu, pooled});
  const auto sum =
      g.layer("Add", "add",
              {g.layer("ReLU", "relu2", {g.layer("Conv2d", "a", {cat})}), g.layer("Conv2d", "b", {cat})});
  g.output(g.layer("Conv2d", "c", {sum}));
  g.output(g.layer("Conv2d", "d", {functional}));
  const auto placement = g.place(nothing_skipped());
  Texts never;
  Texts maybe;
  for (const auto& group : placement.activations)
    (group.never_negative ? never : maybe).insert(group.owner().layer + "." + group.owner().id.name());
  CHECK(never == Texts{"relu.output_slot", "d.input_slot"});
  CHECK(maybe == Texts{"conv.input_slot", "relu2.output_slot", "add.output_slot"});
  CHECK(activations(placement).contains("relu.output_slot = sigmoid.output_slot"));
  REQUIRE(placement.activations.at(1).joined.size() == 1);
  CHECK(placement.activations.at(1).joined[0].layer == "cat");
}

TEST_CASE("Sums are wider than the products that read them", "[schedulers]") {
  GraphBuilder g;
  const auto x = g.input();
  const auto stem = g.layer("ReLU", "stem_relu", {g.layer("Conv2d", "stem", {x})});
  const auto branch = g.layer("Conv2d", "branch", {stem});
  const auto sum = g.layer("ReLU", "relu", {g.layer("Add", "add", {branch, stem})});
  const auto a = g.layer("Conv2d", "a", {stem});
  g.output(g.layer("Conv2d", "last", {sum}));
  g.output(a);
  QATConfig config = nothing_skipped();
  config.activation_bits = 4;
  config.input_bits = 8;
  const auto bits = [](const qat::detail::Placement& placement) {
    std::map<std::string, std::int64_t> result;
    for (const auto& group : placement.activations)
      result[group.owner().layer + "." + group.owner().id.name()] = group.bits;
    return result;
  };
  const auto narrow = g.place(config);
  CHECK(bits(narrow) == std::map<std::string, std::int64_t>{
                            {"stem.input_slot", 8}, {"stem_relu.output_slot", 4}, {"relu.output_slot", 4}});

  config.residual_bits = 8;
  const auto wide = g.place(config);
  CHECK(bits(wide) == std::map<std::string, std::int64_t>{{"stem.input_slot", 8},
                                                          {"stem_relu.output_slot", 8},
                                                          {"branch.input_slot", 4},
                                                          {"relu.output_slot", 4}});
  CHECK(links(wide) == Texts{"a.input_slot => branch.input_slot", "add.input_slot -> stem_relu.output_slot",
                             "add.input_slot_1 -> stem_relu.output_slot",
                             "last.input_slot -> relu.output_slot"});
  CHECK(activations(wide).contains("stem_relu.output_slot = branch.output_slot"));

  config.layer_activation_bits = {{"branch", 3}, {"stem_relu", 6}};
  CHECK(bits(g.place(config))["branch.input_slot"] == 3);
  CHECK(bits(g.place(config))["stem_relu.output_slot"] == 6);

  config.residual_bits = 0;  // a width that the layer was given is what its readers read
  CHECK_FALSE(bits(g.place(config)).contains("branch.input_slot"));
  config = nothing_skipped();
  config.activation_quantizer = "pow2_n_m";  // never more than 4 bits: nothing to narrow
  config.activation_bits = 4;
  config.residual_bits = 8;
  CHECK_FALSE(bits(g.place(config)).contains("branch.input_slot"));

  config = nothing_skipped();
  config.activation_bits = 10;
  config.residual_bits = 8;  // the fewest
  CHECK(activations(g.place(config)) == activations(narrow));
}

TEST_CASE("A concatenation of three carries the scale of its operands", "[schedulers]") {
  GraphBuilder g;
  const auto x = g.input();
  const auto cat = g.layer(
      "Cat", "cat", {g.layer("Conv2d", "a", {x}), g.layer("Conv2d", "b", {x}), g.layer("Conv2d", "c", {x})});
  g.output(g.layer("Conv2d", "conv", {cat}));
  const auto placement = g.place(nothing_skipped());
  CHECK(activations(placement) == Texts{"a.input_slot", "a.output_slot = b.output_slot = c.output_slot"});
  CHECK(links(placement).contains("conv.input_slot -> a.output_slot"));
  CHECK(links(placement).contains("cat.input_slot_2 -> a.output_slot"));

  // Where concatenations are not listed, only their result is quantized.
  QATConfig config = nothing_skipped();
  config.record_layers = {"Conv2d"};
  CHECK(activations(g.place(config)) == Texts{"a.input_slot", "cat.output_slot"});
}

TEST_CASE("B23 and B37: products have a scale for each operand and one for a square", "[schedulers]") {
  GraphBuilder g;
  const auto x = g.input();
  const auto a = g.layer("Tanh", "a", {x});
  const auto b = g.layer("Sigmoid", "b", {x});
  const auto product = g.layer("MatMul", "product", {a, b});
  g.output(g.layer("Mul", "square", {product, product}));
  const auto placement = g.place(nothing_skipped());
  CHECK(activations(placement) ==
        Texts{"a.input_slot", "a.output_slot", "b.output_slot", "product.output_slot"});
  CHECK(links(placement) == Texts{"b.input_slot => a.input_slot", "product.input_slot -> a.output_slot",
                                  "product.input_slot_1 -> b.output_slot",
                                  "square.input_slot -> product.output_slot",
                                  "square.input_slot_1 -> product.output_slot"});
}

TEST_CASE("A square of the input is quantized once", "[schedulers]") {
  GraphBuilder g;
  const auto x = g.input();
  g.output(g.layer("Mul", "square", {x, x}));
  const auto placement = g.place(nothing_skipped());
  CHECK(activations(placement) == Texts{"square.input_slot"});
  CHECK(links(placement) == Texts{"square.input_slot_1 => square.input_slot"});
}

TEST_CASE("Operands of a sum may be inputs and parameters and results of functions", "[schedulers]") {
  GraphBuilder g;
  const auto x = g.input();
  const auto sum = g.layer("Add", "add", {x, g.parameter()});
  const auto softmax = g.operation("aten::softmax", {sum});
  g.output(g.layer("Linear", "fc", {softmax}));
  const auto placement = g.place(nothing_skipped());
  CHECK(activations(placement) == Texts{"add.input_slot = add.input_slot_1", "fc.input_slot"});
  CHECK(links(placement).empty());
}

TEST_CASE("Views of one functional result are recorded each and share a scale", "[schedulers]") {
  GraphBuilder g;
  const auto x = g.input();
  g.output(g.layer("Conv2d", "conv", {g.layer("MaxPool2d", "pool", {x})}));
  g.output(g.layer("Conv2d", "conv2", {x}));
  const auto placement = g.place(nothing_skipped());
  CHECK(activations(placement) == Texts{"conv.input_slot = conv2.input_slot"});
  CHECK(links(placement).empty());
}

TEST_CASE("A functional operation ends the path of codes", "[schedulers]") {
  GraphBuilder g;
  const auto conv = g.layer("Conv2d", "conv", {g.input()});
  g.output(g.layer("Conv2d", "conv2", {g.layer("ReLU", "relu", {g.operation("aten::mul", {conv})})}));
  const auto placement = g.place(nothing_skipped());
  // Nobody quantizes conv's output: no layer reads it. The ReLU begins with a real tensor.
  CHECK(activations(placement) == Texts{"conv.input_slot", "relu.input_slot", "relu.output_slot"});
}

TEST_CASE("Two outputs of a network stay real unless a layer reads them", "[schedulers]") {
  GraphBuilder g;
  const auto conv = g.layer("Conv2d", "conv", {g.input()});
  const auto relu = g.layer("ReLU", "relu", {conv});
  g.output(conv);
  g.output(g.layer("Linear", "fc", {relu}));
  const auto placement = g.place(nothing_skipped());
  // conv's result is an output too: it cannot vanish into the ReLU.
  CHECK(activations(placement) == Texts{"conv.input_slot", "conv.output_slot", "relu.output_slot"});
}

TEST_CASE("B22: indices are never quantized and an embedding is by its weight only", "[schedulers]") {
  GraphBuilder g;
  g.output(g.layer("Linear", "fc", {g.layer("Embedding", "embedding", {g.input(torch::kInt64)})}));
  const auto placement = g.place(nothing_skipped());
  CHECK(activations(placement) == Texts{"embedding.output_slot"});
  CHECK(layers(placement.weights) == Texts{"embedding", "fc"});
  CHECK(layers(placement.biases) == Texts{"fc"});
}

TEST_CASE("The first convolutions and the last linear layer are skipped", "[schedulers]") {
  GraphBuilder g;
  const auto x = g.input();
  const auto relu1 = g.layer("ReLU", "relu1", {g.layer("Conv2d", "first", {x})});
  const auto other = g.layer("Conv2d", "other_first", {x});
  const auto relu2 = g.layer("ReLU", "relu2", {g.layer("Conv2d", "second", {relu1})});
  const auto hidden =
      g.layer("ReLU", "relu3", {g.layer("Linear", "hidden", {g.layer("Add", "add", {relu2, other})})});
  g.output(g.layer("Linear", "last", {hidden}));
  const auto placement = g.place(QATConfig());
  CHECK(layers(placement.weights) == Texts{"second", "hidden"});
  CHECK(layers(placement.biases) == Texts{"second", "hidden"});
  // Skipped layers still make quantized outputs for quantized readers; what only a skipped layer reads stays
  // real.
  CHECK(activations(placement) ==
        Texts{"relu1.output_slot", "other_first.output_slot = relu2.output_slot", "add.output_slot"});
}

TEST_CASE("A skipped layer reads the tensor that another layer quantizes", "[schedulers]") {
  GraphBuilder g;
  const auto x = g.input();
  g.output(g.layer("Conv2d", "skipped", {x}));
  g.output(g.layer("Mul", "gate", {x, x}));
  const auto placement = g.place(QATConfig());
  CHECK(activations(placement) == Texts{"gate.input_slot"});
  CHECK(links(placement) ==
        Texts{"gate.input_slot_1 => gate.input_slot", "skipped.input_slot => gate.input_slot"});
}

TEST_CASE("Only listed layers quantize what they read", "[schedulers]") {
  GraphBuilder g;
  const auto relu1 = g.layer("ReLU", "relu1", {g.layer("Conv2d", "conv1", {g.input()})});
  const auto relu2 =
      g.layer("ReLU", "relu2", {g.layer("Add", "add", {g.layer("Conv2d", "conv2", {relu1}), relu1})});
  g.output(g.layer("Linear", "fc", {relu2}));
  QATConfig config = nothing_skipped();
  config.record_layers = {"Conv2d", "Linear", "ReLU"};
  const auto placement = g.place(config);
  CHECK(activations(placement) == Texts{"conv1.input_slot", "relu1.output_slot", "relu2.output_slot"});
}

TEST_CASE("A layer that is called twice is refused by name where it needs a slot", "[schedulers]") {
  GraphBuilder g;
  const auto a = g.layer("ReLU", "blocks.0.relu", {g.layer("Conv2d", "a", {g.input()})});
  const auto b = g.layer("ReLU", "blocks.0.relu", {g.layer("Conv2d", "b", {a})});
  g.output(g.layer("Conv2d", "c", {b}));
  CHECK(error_lacks([&] { g.place(nothing_skipped()); }, {"blocks.0.relu", "more than once"}) == "");
}

TEST_CASE("A layer without slots may be called twice", "[schedulers]") {
  GraphBuilder g;
  const auto a = g.layer("MaxPool2d", "pool", {g.layer("Conv2d", "a", {g.input()})});
  const auto b = g.layer("MaxPool2d", "pool", {g.layer("Conv2d", "b", {a})});
  g.output(g.layer("Conv2d", "c", {b}));
  CHECK(activations(g.place(nothing_skipped())) == Texts{"a.input_slot", "a.output_slot", "b.output_slot"});
}

TEST_CASE("A configuration that quantizes nothing is refused", "[schedulers]") {
  GraphBuilder g;
  g.output(g.layer("Conv2d", "conv", {g.input()}));
  CHECK(error_lacks([&] { g.place(QATConfig()); }, {"quantizes no layer", "Conv2d"}) == "");
}

TEST_CASE("B19: 64 residual blocks are placed in milliseconds", "[schedulers]") {
  GraphBuilder g;
  auto x = g.layer("ReLU", "stem_relu", {g.layer("Conv2d", "stem", {g.input()})});
  for (int i = 0; i < 64; ++i) {
    const std::string prefix = "block" + std::to_string(i);
    const auto main = g.layer("Conv2d", prefix + "_conv", {x});
    x = g.layer("ReLU", prefix + "_relu", {g.layer("Add", prefix + "_add", {main, x})});
  }
  g.output(g.layer("Linear", "fc", {x}));
  const auto begin = std::chrono::steady_clock::now();
  const auto placement = g.place(QATConfig());
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  CHECK(layers(placement.weights).size() == 64);
  // One group for each block's sum; the output of the last block feeds the skipped layer only.
  CHECK(placement.activations.size() == 64);
  CHECK(elapsed.count() < 0.5);
}

TEST_CASE("Class names are read from types", "[schedulers]") {
  CHECK(qat::detail::class_name("qat::nn::Conv2d") == "Conv2d");
  CHECK(qat::detail::class_name("qat::nn::Conv2dImpl") == "Conv2d");
  CHECK(qat::detail::class_name("Mine") == "Mine");
}
