// The eight parametric quantizers against numbers obtained by running nnabla; see tests/data/golden.
#include <qat/quantizers/parametric_quantizer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/golden.h"
#include "support/tensor_matchers.h"

using nlohmann::json;
using qat::Learnable;
using qat::ParametricOptions;
using qat::ParametricQuantizer;
using qat::testing::golden_number;
using qat::testing::golden_tensor;
using qat::testing::mismatch;
using torch::Tensor;

namespace {

struct Result {
  Tensor y;
  Tensor dx;
  std::map<std::string, double> dparams;
};

ParametricOptions options_of(const json& golden, bool compatible) {
  ParametricOptions options;
  options.kind = qat::parse_parametric_kind(golden["quantizer"].get<std::string>());
  options.is_signed = golden["sign"].get<bool>();
  options.with_zero = golden.value("with_zero", true);
  options.compatible = compatible;
  const auto learnable = [&](const char* name) -> std::optional<Learnable> {
    if (!golden["params"].contains(name)) return std::nullopt;
    const double min = golden_number(golden["bounds"][name][0]);
    const double max = golden_number(golden["bounds"][name][1]);
    const double value = golden_number(golden["params"][name]);
    return Learnable{std::clamp(value, min, max), min, max};
  };
  options.n = learnable("n");
  options.m = learnable("m");
  options.d = learnable("d");
  options.xmax = learnable("xmax");
  options.xmin = learnable("xmin");
  return options;
}

Result run(const json& golden, bool compatible) {
  ParametricQuantizer quantizer(options_of(golden, compatible));
  auto parameters = quantizer.named_parameters();
  {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, value] : golden["params"].items())
      parameters[name].fill_(golden_number(value));
  }
  const auto shape = golden["shape"].get<std::vector<std::int64_t>>();
  const auto x = golden_tensor(golden["x"], shape).requires_grad_();
  Result result;
  result.y = quantizer.forward(x);
  result.y.backward(golden_tensor(golden["g"], shape));
  result.dx = x.grad();
  for (const auto& parameter : parameters)
    result.dparams[parameter.key()] = parameter.value().grad().item<double>();
  return result;
}

bool affects(const json& golden, const std::string& what) {
  const auto list = golden.value("affects", std::vector<std::string>{});
  return std::find(list.begin(), list.end(), what) != list.end();
}

/// What differs from the golden numbers: "" or a sentence. `faulty`: parts that show nnabla's faults count
/// too.
std::string difference(const json& golden, const Result& result, bool faulty) {
  const auto shape = golden["shape"].get<std::vector<std::int64_t>>();
  const bool pow2 = golden["quantizer"].get<std::string>().starts_with("pow2");
  if (faulty || !affects(golden, "y")) {
    if (const auto text = mismatch(result.y, golden_tensor(golden["y"], shape)); !text.empty())
      return "y: " + text;
  }
  if (faulty || !affects(golden, "dx")) {
    const auto text =
        mismatch(result.dx, golden_tensor(golden["dx"], shape), {.relative = pow2 ? 3e-7 : 0.0});
    if (!text.empty()) return "dx: " + text;
  }
  for (const auto& [name, expected] : golden["dparams"].items()) {
    if (!faulty && (affects(golden, "dparams") || affects(golden, "dparams." + name))) continue;
    const double actual = result.dparams.at(name);
    const double value = golden_number(expected);
    if (actual == value || (std::isnan(actual) && std::isnan(value))) continue;
    // Cases without closed forms do not say how much cancels in the sum.
    const bool has_size = golden.contains("closed_form");
    const double size =
        has_size ? golden["closed_form"]["dparams_size"][name].get<double>() : 100 * std::abs(value);
    if (std::abs(actual - value) <= 5e-7 * size) continue;
    return fmt::format("dparams.{}: {} instead of {} (size {})", name, actual, value, size);
  }
  return "";
}

}  // namespace

TEST_CASE("golden: the default behaviour equals nnabla's where no fault of nnabla is involved") {
  int compared = 0;
  const auto file = qat::testing::golden_file("parametric.json");
  for (const auto& golden : file["cases"]) {
    if (golden["kind"] != "plain") continue;
    INFO(golden["id"]);
    CHECK(difference(golden, run(golden, /*compatible=*/false), /*faulty=*/true) == "");
    ++compared;
  }
  if (std::getenv("QAT_GOLDEN_DIR") == nullptr) CHECK(compared == 752);
}

TEST_CASE("golden: where a fault touches some numbers, the others are as nnabla's by default") {
  int compared = 0;
  const auto file = qat::testing::golden_file("parametric.json");
  for (const auto& golden : file["cases"]) {
    if (golden["kind"] != "compat" || affects(golden, "y")) continue;
    INFO(golden["id"]);
    CHECK(difference(golden, run(golden, /*compatible=*/false), /*faulty=*/false) == "");
    ++compared;
  }
  if (std::getenv("QAT_GOLDEN_DIR") == nullptr) CHECK(compared > 100);
}

TEST_CASE("golden: the compatible option reproduces all numbers, faults included") {
  int compared = 0;
  const auto file = qat::testing::golden_file("parametric.json");
  for (const auto& golden : file["cases"]) {
    INFO(golden["id"]);
    CHECK(difference(golden, run(golden, /*compatible=*/true), /*faulty=*/true) == "");
    ++compared;
  }
  if (std::getenv("QAT_GOLDEN_DIR") == nullptr) CHECK(compared == 968);
}
