// The functional layers of "Mixed Precision DNNs" against numbers obtained by running nnabla; see
// tests/data/golden.
#include <qat/nn/quantized_functions.h>
#include <qat/quantizers/parametric_quantizer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "support/catch.h"
#include "support/golden.h"
#include "support/tensor_matchers.h"

namespace {

namespace nn = qat::nn;
namespace F = qat::nn::functional;
using nlohmann::json;
using qat::ParametricOptions;
using qat::ParametricQuantizer;
using qat::testing::golden_number;
using qat::testing::golden_tensor;
using qat::testing::mismatch;
using torch::Tensor;

std::shared_ptr<ParametricQuantizer> golden_quantizer(const json& golden, const char* name, bool compatible) {
  if (!golden["quantizers"].contains(name)) return nullptr;
  const json& entry = golden["quantizers"][name];
  ParametricOptions options;
  options.kind = qat::parse_parametric_kind(entry["quantizer"].get<std::string>());
  options.is_signed = entry["sign"].get<bool>();
  options.with_zero = entry.value("with_zero", true);
  options.compatible = compatible;
  const auto learnable = [&](const char* key) -> std::optional<qat::Learnable> {
    if (!entry["params"].contains(key)) return std::nullopt;
    const double min = golden_number(entry["bounds"][key][0]);
    const double max = golden_number(entry["bounds"][key][1]);
    return qat::Learnable{max, min, max};
  };
  options.d = learnable("d");
  options.xmax = learnable("xmax");
  options.xmin = learnable("xmin");
  auto quantizer = std::make_shared<ParametricQuantizer>(options);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : quantizer->named_parameters())
    parameter.value().fill_(golden_number(entry["params"][parameter.key()]));
  return quantizer;
}

/// What differs from the golden gradients of a quantizer's learnables: "" or a sentence. `gradient`: the key
/// of the quantized tensor's gradient, which gives the size of the sums; nnabla itself is 4e-7 of it off
/// exact sums.
std::string difference(const json& golden, const char* name, const char* gradient,
                       const ParametricQuantizer* quantizer) {
  if (quantizer == nullptr) return "";
  const double size = golden_tensor(golden[gradient]).abs().sum().item<double>();
  for (const auto& parameter : quantizer->named_parameters()) {
    const double actual = parameter.value().grad().item<double>();
    const double expected = golden_number(golden["quantizers"][name]["dparams"][parameter.key()]);
    if (std::abs(actual - expected) > 1e-6 * std::max(size, std::abs(expected)))
      return fmt::format("{}.{}: {} instead of {}", name, parameter.key(), actual, expected);
  }
  return "";
}

std::string difference(const json& golden, const char* name, const Tensor& actual) {
  if (!golden.contains(name)) return actual.defined() ? fmt::format("{} has no golden numbers", name) : "";
  const auto expected = golden_tensor(golden[name]);
  const bool is_operand = std::string_view(name).ends_with("_q");
  const bool exact = is_operand || golden["exact"].get<bool>();
  const double largest = expected.abs().max().item<double>();
  const auto text = mismatch(actual, expected, {.absolute = exact ? 0.0 : 1e-6 * largest});
  return text.empty() ? "" : fmt::format("{}: {}", name, text);
}

struct Operands {
  Tensor x, weight, bias;
};

/// y of a layer or a function, the parameters that it used, and what their quantizers, if any, make of them.
struct Result {
  Tensor y, weight, bias, weight_q, bias_q;
};

struct Quantizers {
  std::shared_ptr<ParametricQuantizer> x, weight, bias;
};

template <class Layer>
Result run_layer(Layer layer, const Tensor& x) {
  const auto y = layer->forward(x);
  const bool has_bias = layer->bias_quantizer() != nullptr;
  return {y, layer->weight, layer->bias, layer->weight_quantizer() ? layer->W_q() : Tensor(),
          has_bias ? layer->b_q() : Tensor()};
}

Result run_layer(const json& golden, const Operands& operands, const Quantizers& quantizers) {
  const json& args = golden["args"];
  const auto w_init = [&](torch::IntArrayRef, const auto&) { return operands.weight.detach(); };
  const auto b_init = [&](torch::IntArrayRef, const auto&) { return operands.bias.detach(); };
  const bool with_bias = operands.bias.defined();
  if (golden["op"] == "affine") {
    return run_layer(
        nn::QuantizedAffine(nn::QuantizedAffineOptions(operands.weight.size(0), args["outmaps"].get<int>())
                                .base_axis(args["base_axis"].get<int>())
                                .w_init(w_init)
                                .b_init(b_init)
                                .with_bias(with_bias)
                                .quantizer_w(quantizers.weight)
                                .quantizer_b(quantizers.bias)),
        operands.x);
  }
  return run_layer(
      nn::QuantizedConvolution(
          nn::QuantizedConvolutionOptions(operands.x.size(1), args["outmaps"].get<int>(), args["kernel"])
              .pad(args["pad"])
              .stride(args["stride"])
              .dilation(args["dilation"])
              .group(args["group"].get<int>())
              .w_init(w_init)
              .b_init(b_init)
              .with_bias(with_bias)
              .quantizer_w(quantizers.weight)
              .quantizer_b(quantizers.bias)),
      operands.x);
}

Result run_function(const json& golden, const Operands& operands, const Quantizers& quantizers) {
  const json& args = golden["args"];
  Result result;
  result.weight = operands.weight.clone().requires_grad_();
  if (operands.bias.defined()) result.bias = operands.bias.clone().requires_grad_();
  if (golden["op"] == "affine") {
    result.y = F::quantized_affine(operands.x, result.weight, result.bias,
                                   F::QuantizedAffineFuncOptions()
                                       .base_axis(args["base_axis"].get<int>())
                                       .quantizer_w(quantizers.weight)
                                       .quantizer_b(quantizers.bias));
  } else {
    result.y = F::quantized_convolution(operands.x, result.weight, result.bias,
                                        F::QuantizedConvolutionFuncOptions()
                                            .pad(args["pad"])
                                            .stride(args["stride"])
                                            .dilation(args["dilation"])
                                            .group(args["group"].get<int>())
                                            .quantizer_w(quantizers.weight)
                                            .quantizer_b(quantizers.bias));
  }
  if (quantizers.weight) result.weight_q = quantizers.weight->forward(result.weight);
  if (quantizers.bias) result.bias_q = quantizers.bias->forward(result.bias);
  return result;
}

template <class Run>
std::string difference(const json& golden, bool compatible, const Run& run) {
  const Quantizers quantizers{golden_quantizer(golden, "x", compatible),
                              golden_quantizer(golden, "W", compatible),
                              golden_quantizer(golden, "b", compatible)};
  const auto x = golden_tensor(golden["x"]).requires_grad_();
  const auto x_q = quantizers.x ? quantizers.x->forward(x) : x;
  const Operands operands{x_q, golden_tensor(golden["W"]),
                          golden.contains("b") ? golden_tensor(golden["b"]) : Tensor()};
  const Result result = run(golden, operands, quantizers);
  result.y.backward(golden_tensor(golden["g"]));
  std::string text = difference(golden, "y", result.y) + difference(golden, "dx", x.grad()) +
                     difference(golden, "dW", result.weight.grad()) +
                     difference(golden, "W_q", result.weight_q) + difference(golden, "b_q", result.bias_q) +
                     difference(golden, "x_q", quantizers.x ? x_q : Tensor()) +
                     difference(golden, "db", result.bias.defined() ? result.bias.grad() : Tensor());
  text += difference(golden, "x", "dx", quantizers.x.get());
  text += difference(golden, "W", "dW", quantizers.weight.get());
  text += difference(golden, "b", "db", quantizers.bias.get());
  return text;
}

template <class Run>
void compare_all(const Run& run) {
  int plain = 0;
  int compat = 0;
  const json file = qat::testing::golden_file("affine_conv.json");
  for (const auto& golden : file["cases"]) {
    INFO(golden["id"]);
    if (golden["kind"] == "plain") {
      CHECK(difference(golden, /*compatible=*/false, run) == "");
      ++plain;
    } else {
      ++compat;
      CHECK(difference(golden, /*compatible=*/false, run) != "");
    }
    CHECK(difference(golden, /*compatible=*/true, run) == "");
  }
  if (std::getenv("QAT_GOLDEN_DIR") == nullptr) CHECK((plain == 13 && compat == 1));
}

}  // namespace

TEST_CASE("golden: quantized layers compute what nnabla computes", "[modules]") {
  compare_all([](const auto&... arguments) { return run_layer(arguments...); });
}

TEST_CASE("golden: quantized functions compute what nnabla computes", "[modules]") {
  compare_all([](const auto&... arguments) { return run_function(arguments...); });
}
