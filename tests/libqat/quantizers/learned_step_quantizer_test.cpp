#include "libqat/quantizers/quantizer_run.h"
#include <qat/export/torchscript.h>
#include <qat/graph/layer_scope.h>
#include <qat/quantizers/learned_step_quantizer.h>

#include <ATen/autocast_mode.h>
#include <torch/script.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

namespace {

using qat::IntegerRange;
using qat::LearnedStepKind;
using qat::LearnedStepOptions;
using qat::LearnedStepQuantizer;
using qat::RangeWidth;
using qat::Signedness;
using qat::testing::error_lacks;
using qat::testing::mismatch;
using qat::testing::number;
using qat::testing::run;
using qat::testing::set;
using qat::testing::values;
using torch::Tensor;
using Kind = LearnedStepKind;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Kind kKinds[] = {Kind::kLsq, Kind::kLsqPlus, Kind::kPact, Kind::kTqt};
constexpr torch::ScalarType kTypes[] = {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16};
const IntegerRange kInt4(4, Signedness::kSigned);
const IntegerRange kUint4(4, Signedness::kUnsigned);

IntegerRange range_of(Kind kind, bool is_signed) {
  return is_signed && kind != Kind::kPact ? kInt4 : kUint4;
}

qat::ValueRange range(double min, double max) {
  return {torch::tensor(min, torch::kFloat), torch::tensor(max, torch::kFloat)};
}

}  // namespace

TEST_CASE("the names of the learned-step kinds read back") {
  for (const auto kind : kKinds)
    CHECK(qat::parse_learned_step_kind(qat::to_string(kind)) == kind);
  CHECK(error_lacks([] { qat::parse_learned_step_kind("apot"); },
                    {"apot", "lsq", "lsq_plus", "pact", "tqt"}) == "");
}

TEST_CASE("options that make no sense are refused") {
  CHECK(error_lacks([] { LearnedStepQuantizer({.kind = Kind::kPact, .range = kInt4}); },
                    {"pact", "unsigned", "int4"}) == "");
  CHECK(error_lacks([] { LearnedStepQuantizer({.axis = 1}); }, {"axis 1", "0 channels"}) == "");
  CHECK(error_lacks([] { LearnedStepQuantizer({.channels = 2}); }, {"axis none", "2 channels"}) == "");
  CHECK(error_lacks([] { LearnedStepQuantizer({.axis = 0, .channels = -1}); }, {"-1 channels"}) == "");
  LearnedStepQuantizer three({.axis = 1, .channels = 3});
  CHECK(error_lacks([&] { three.forward(torch::ones({3, 4})); }, {"3", "4"}) == "");
  CHECK(error_lacks([&] { three.forward(torch::ones({3})); }, {"axis 1"}) == "");
}

TEST_CASE("each parameter is registered once, with the shape of the channels") {
  const std::vector<std::vector<std::string>> names{{"scale"}, {"scale", "offset"}, {"alpha"}, {"log2_t"}};
  for (std::size_t i = 0; i < 4; ++i) {
    const LearnedStepQuantizer tensor({.kind = kKinds[i], .range = kUint4});
    const LearnedStepQuantizer channel({.kind = kKinds[i], .range = kUint4, .axis = 1, .channels = 3});
    CHECK(tensor.named_parameters().keys() == names[i]);
    CHECK(channel.named_parameters().keys() == names[i]);
    CHECK(channel.parameters().size() == names[i].size());
    for (const auto& parameter : channel.parameters()) {
      CHECK(parameter.sizes() == std::vector<std::int64_t>{3});
      CHECK(parameter.scalar_type() == torch::kFloat);
      CHECK(parameter.requires_grad());
    }
    CHECK(tensor.parameters()[0].dim() == 0);
    CHECK(tensor.named_buffers().keys() == std::vector<std::string>{"least"});
  }
}

TEST_CASE("case 82: saturated elements give the scale their code") {
  LearnedStepQuantizer quantizer({.range = kInt4, .scale_gradient = false});
  set(quantizer, "scale", 0.1);
  const auto result = run(quantizer, values({0.26, 5, -5}), values({1, 2, 3}));
  CHECK(mismatch(result.y, values({0.3, 0.7, -0.8}), {1e-6}) == "");
  CHECK(mismatch(result.dx, values({1, 0, 0})) == "");
  CHECK(result.gradient("scale") == Approx(-9.6).epsilon(1e-6));
  LearnedStepQuantizer scaled({.range = kInt4});
  set(scaled, "scale", 0.1);
  CHECK(run(scaled, values({0.26, 5, -5}), values({1, 2, 3})).gradient("scale") ==
        Approx(-9.6 / std::sqrt(3.0 * 7.0)).epsilon(1e-6));
}

TEST_CASE(
    "case 83: the outermost codes pass the gradient; within half a step beyond, it belongs to the end") {
  for (const auto type : kTypes) {
    LearnedStepQuantizer quantizer({.range = kInt4, .scale_gradient = false});
    const auto x = values({6.6, -7.7, 7.6, -8.7, 7.3, -8.3, 7, -8}, type);
    const auto result = run(quantizer, x, torch::ones_like(x));
    CHECK(mismatch(result.dx, values({1, 1, 0, 0, 0, 0, 0, 0}, type)) == "");
    LearnedStepQuantizer trained({.kind = Kind::kTqt, .range = kInt4});
    set(trained, "log2_t", 3);  // scale 1
    const auto inside = run(trained, x, torch::ones_like(x));
    CHECK(mismatch(inside.dx, values({1, 1, 0, 0, 1, 1, 1, 1}, type)) == "");
  }
}

TEST_CASE("case 84: a step of SGD moves the scale") {
  LearnedStepQuantizer quantizer({.range = kInt4, .scale_gradient = false});
  set(quantizer, "scale", 0.1);
  torch::optim::SGD optimizer(quantizer.parameters(), torch::optim::SGDOptions(0.01));
  quantizer.forward(values({0.26, 5, -5})).backward(values({1, 2, 3}));
  optimizer.step();
  CHECK(number(quantizer, "scale") == Approx(0.196).epsilon(1e-6));
  CHECK(quantizer.parameters().size() == 1);
}

TEST_CASE("case 12: a layer of zeros starts with a usable scale") {
  LearnedStepQuantizer quantizer({.range = kInt4});
  const auto zeros = torch::zeros({6});
  quantizer.start_from_tensor(zeros);
  CHECK(number(quantizer, "scale") == 1.0);
  torch::optim::SGD optimizer(quantizer.parameters(), torch::optim::SGDOptions(0.1));
  const auto result = run(quantizer, zeros, torch::ones_like(zeros));
  CHECK(mismatch(result.y, zeros) == "");
  CHECK(mismatch(result.dx, torch::ones_like(zeros)) == "");
  quantizer.forward(zeros).sum().backward();
  optimizer.step();
  CHECK(std::isfinite(number(quantizer, "scale")));
  quantizer.start_from_tensor(values({1, -2, 3, -4}));
  CHECK(number(quantizer, "scale") == Approx(5 / std::sqrt(7.0)).epsilon(1e-6));
}

TEST_CASE("case 16: half weights with a tiny range keep a float32 scale") {
  const IntegerRange narrow(8, Signedness::kSigned, RangeWidth::kNarrow);
  LearnedStepQuantizer quantizer({.range = narrow});
  const auto w = values({1e-6, 5e-7, -1e-6}, torch::kHalf);
  quantizer.start_from(qat::finite_range(w));
  CHECK(number(quantizer, "scale") == Approx(7.97857e-9).epsilon(1e-5));
  CHECK(mismatch(quantizer.codes(w), torch::tensor({127, 60, -127}, torch::kInt)) == "");
  const auto result = run(quantizer, w, torch::ones_like(w));
  CHECK(mismatch(result.y, w, {0.0, 6e-8}) == "");
  CHECK(result.gradients.at("scale").scalar_type() == torch::kFloat);
  CHECK(std::isfinite(result.gradient("scale")));
  quantizer.start_from_tensor(w);
  CHECK(number(quantizer, "scale") ==
        Approx(2 * (2 * 1.01328e-6 + 4.76837e-7) / 3 / std::sqrt(127.0)).epsilon(1e-5));
}

TEST_CASE("case 17: half input with a float32 scale") {
  LearnedStepQuantizer quantizer;
  set(quantizer, "scale", 0.05);
  const auto x = values({0.3, -1.7, 100}, torch::kHalf);
  const auto result = run(quantizer, x, torch::ones_like(x));
  CHECK(mismatch(result.y, values({0.30005, -1.7002, 6.3516}, torch::kHalf)) == "");
  CHECK(mismatch(quantizer.codes(x), torch::tensor({6, -34, 127}, torch::kInt)) == "");
  CHECK(result.gradients.at("scale").scalar_type() == torch::kFloat);
  CHECK(std::isfinite(result.gradient("scale")));
}

TEST_CASE("case 20: learned quantizers train inside autocast") {
  LearnedStepQuantizer weight;
  LearnedStepQuantizer activation;
  set(weight, "scale", 0.25);
  set(activation, "scale", 0.5);
  const auto w = torch::full({1, 1}, 0.3).requires_grad_();
  at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto y = activation.forward(torch::linear(torch::full({1, 1}, 2.0), weight.forward(w)));
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  CHECK(y.scalar_type() == torch::kBFloat16);
  CHECK(y.item<double>() == 0.5);
  y.sum().backward();
  CHECK(w.grad().item<double>() == 2.0);
  for (const auto* quantizer : {&weight, &activation}) {
    CHECK(quantizer->parameters()[0].scalar_type() == torch::kFloat);
    CHECK(quantizer->parameters()[0].grad().scalar_type() == torch::kFloat);
  }
}

TEST_CASE("case 89: a scale that a step carried through zero stays usable and grows again") {
  for (const double raw : {-0.01, 0.0, -kInfinity}) {
    LearnedStepQuantizer quantizer({.range = kInt4, .scale_gradient = false});
    set(quantizer, "scale", raw);
    const auto x = values({0.5, -0.5, 0});
    const auto y = quantizer.forward(x).detach();
    CHECK(y.isfinite().all().item<bool>());
    CHECK((y * x >= 0).all().item<bool>());
    const float exported = quantizer.affine_params({}).scale.item<float>();
    CHECK((exported > 0 && std::isfinite(exported)));
    // The saturated elements ask for a larger scale: dS = -7 - 8.
    const auto dy = values({-1, 1, 0});
    CHECK(run(quantizer, x, dy).gradient("scale") == Approx(-15));
    CHECK(run(quantizer, x, -dy).gradient("scale") == 0.0);
    quantizer.hold_in_bounds();
    CHECK(number(quantizer, "scale") == 0x1p-63);
    CHECK(run(quantizer, x, dy).gradient("scale") == Approx(-15));
    torch::optim::SGD optimizer(quantizer.parameters(), torch::optim::SGDOptions(0.01));
    quantizer.forward(x).backward(dy);
    optimizer.step();
    CHECK(number(quantizer, "scale") == Approx(0.15));
  }
}

TEST_CASE("After a start no step makes a scale smaller than 2^-10 of it") {
  for (const auto kind : kKinds) {
    LearnedStepQuantizer quantizer({.kind = kind, .range = range_of(kind, false), .axis = 0, .channels = 2});
    quantizer.start_from({torch::tensor({0.0F, 0.0F}), torch::tensor({1.0F, 6.0F})});
    const auto parameter = quantizer.parameters()[0];
    const auto start = parameter.detach().clone();
    {
      const torch::NoGradGuard no_grad;
      parameter.fill_(-1e6);
    }
    quantizer.hold_in_bounds();
    CAPTURE(qat::to_string(kind));
    const auto least = kind == LearnedStepKind::kTqt ? start - 10 : start * 0x1p-10;
    CHECK(torch::equal(parameter, least));
  }
  LearnedStepQuantizer weights({.kind = LearnedStepKind::kLsq, .range = kInt4});
  weights.start_from_tensor(values({1, -1, 1, -1}));
  const double start = number(weights, "scale");
  set(weights, "scale", 0);
  weights.hold_in_bounds();
  CHECK(number(weights, "scale") == start * 0x1p-10);
}

TEST_CASE("hold_in_bounds repairs parameters of every kind") {
  for (const auto kind : kKinds) {
    for (const double bad : {kNan, kInfinity, -kInfinity, -1e30, 1e30}) {
      LearnedStepQuantizer quantizer({.kind = kind, .range = range_of(kind, true)});
      for (const auto& parameter : quantizer.named_parameters())
        set(quantizer, parameter.key(), bad);
      quantizer.hold_in_bounds();
      CAPTURE(qat::to_string(kind), bad);
      for (const auto& parameter : quantizer.named_parameters()) {
        const double v = parameter.value().item<double>();
        CHECK(std::fabs(v) <= 0x1p63);
        if (parameter.key() == "log2_t") CHECK(std::fabs(v) <= 31);
        if (parameter.key() == "scale" || parameter.key() == "alpha") CHECK(v >= 0x1p-63);
      }
      const auto result = run(quantizer, values({-5, 0, 0.1, 5}), torch::ones({4}));
      CHECK(result.y.isfinite().all().item<bool>());
      for (const auto& [name, gradient] : result.gradients) {
        INFO(name);
        CHECK(gradient.isfinite().all().item<bool>());
      }
    }
  }
}

TEST_CASE("start_from covers a range") {
  LearnedStepQuantizer lsq;
  lsq.start_from(range(-2.54, 1));
  CHECK(number(lsq, "scale") == Approx(0.02).epsilon(1e-6));
  LearnedStepQuantizer plus({.kind = Kind::kLsqPlus, .range = IntegerRange(8, Signedness::kUnsigned)});
  plus.start_from(range(-1, 4.1));
  CHECK(number(plus, "scale") == Approx(0.02).epsilon(1e-6));
  CHECK(number(plus, "offset") == Approx(-1).epsilon(1e-6));
  const auto params = plus.affine_params({});
  CHECK(mismatch(params.zero_point, torch::tensor(50, torch::kInt)) == "");
  CHECK(params.range == IntegerRange(8, Signedness::kUnsigned));
  CHECK(mismatch(plus.forward(values({-9, -1, 0, 4.1, 9})), values({-1, -1, 0, 4.1, 4.1}), {1e-6}) == "");
  LearnedStepQuantizer pact({.kind = Kind::kPact, .range = kUint4});
  pact.start_from(range(0, 6));
  CHECK(number(pact, "alpha") == Approx(6).epsilon(1e-6));
  CHECK(mismatch(pact.forward(values({-1, 0.5, 7})), values({0, 0.4, 6}), {1e-6}) == "");
  // 1 is beyond the code 127 of the scale 2^-7: the next power of two.
  LearnedStepQuantizer tqt({.kind = Kind::kTqt});
  tqt.start_from(range(-0.3, 1));
  CHECK(mismatch(tqt.affine_params({}).scale, torch::tensor(0x1p-6F)) == "");
  tqt.start_from(range(-0.3, 0.99));
  CHECK(mismatch(tqt.affine_params({}).scale, torch::tensor(0x1p-7F)) == "");
  for (const auto kind : kKinds) {
    LearnedStepQuantizer zero({.kind = kind, .range = kUint4});
    zero.start_from(range(0, 0));
    CHECK(mismatch(zero.affine_params({}).scale, torch::tensor(1.0F)) == "");
    CHECK(error_lacks([&] { zero.start_from({torch::zeros({2}), torch::ones({2})}); }, {"[]", "[2]"}) == "");
  }
}

TEST_CASE("start_from_tensor follows LSQ's rule for each channel, the other kinds the range") {
  const auto x = values({1, -2, 3, 0, 0, 0, 0.5, 0.5, -1}).reshape({3, 3});
  LearnedStepQuantizer rows({.range = kInt4, .axis = 0, .channels = 3});
  rows.start_from_tensor(x);
  const double root = std::sqrt(7.0);
  CHECK(mismatch(rows.named_parameters()["scale"], values({4 / root, 1, 4.0 / 3 / root}), {1e-6}) == "");
  LearnedStepQuantizer columns({.range = kInt4, .axis = -1, .channels = 3});
  columns.start_from_tensor(x);
  CHECK(mismatch(columns.named_parameters()["scale"], values({1 / root, 5.0 / 3 / root, 8.0 / 3 / root}),
                 {1e-6}) == "");
  LearnedStepQuantizer vector({.range = kInt4, .axis = 0, .channels = 3});
  vector.start_from_tensor(values({1, -2, 0}));
  CHECK(mismatch(vector.named_parameters()["scale"], values({2 / root, 4 / root, 1}), {1e-6}) == "");
  LearnedStepQuantizer pact({.kind = Kind::kPact, .range = kUint4, .axis = 1, .channels = 3});
  pact.start_from_tensor(x.abs());
  CHECK(mismatch(pact.named_parameters()["alpha"], values({1, 2, 3}), {1e-6}) == "");
  LearnedStepQuantizer four({.range = kInt4, .axis = 0, .channels = 4});
  CHECK(error_lacks([&] { four.start_from_tensor(x); }, {"4", "[3, 3]"}) == "");
  rows.start_from_tensor(values({kNan, 1, 1, kInfinity, 1, 1, 7, 7, 7}).reshape({3, 3}));
  CHECK(mismatch(rows.named_parameters()["scale"], values({2 / root, 2 / root, 14 / root}), {1e-6}) == "");
  rows.start_from_tensor(values({kNan, kNan, kNan, kInfinity, 0, 0, 7, 7, 7}).reshape({3, 3}));
  CHECK(mismatch(rows.named_parameters()["scale"], values({1, 1, 14 / root}), {1e-6}) == "");
  LearnedStepQuantizer tensor({.range = kInt4});
  tensor.start_from_tensor(values({1, kNan, -3, kInfinity}));
  CHECK(number(tensor, "scale") == Approx(4 / root).epsilon(1e-6));
}

TEST_CASE("the scale of a channel that started with zeros can follow weights that come later") {
  LearnedStepQuantizer lsq({.range = kInt4, .axis = 0, .channels = 2});
  const auto zeros = values({0, 0, 1, -1}).reshape({2, 2});
  for (const auto kind : kKinds) {
    LearnedStepQuantizer quantizer({.kind = kind, .range = kUint4, .axis = 0, .channels = 2});
    if (kind == Kind::kLsq) {
      quantizer.start_from_tensor(zeros);
    } else {
      quantizer.start_from({values({0, 0}), values({0, 1})});
    }
    CAPTURE(qat::to_string(kind));
    const bool is_log = kind == Kind::kTqt;
    auto parameter = quantizer.parameters()[0];
    const auto start = parameter.detach().clone();
    {
      const torch::NoGradGuard no_grad;
      parameter.fill_(-1e6);
    }
    quantizer.hold_in_bounds();
    CHECK(parameter[0].item<double>() == (is_log ? -31 : 0x1p-63));
    CHECK(parameter[1].item<float>() == (is_log ? start[1] - 10 : start[1] * 0x1p-10).item<float>());
  }
  lsq.start_from({values({0, -1}), values({0, 1})});
  set(lsq, "scale", values({1e-5, 1e-5}));
  lsq.hold_in_bounds();
  CHECK(lsq.forward(values({1e-4, -1e-4, 1, 1}).reshape({2, 2}))[0].abs().min().item<double>() > 5e-5);
}

TEST_CASE("case 113: a learned scale is written as a constant and still learns") {
  struct Layer : torch::nn::Module {
    Layer() : torch::nn::Module("Layer") { register_module("quantizer", quantizer); }
    Tensor forward(const Tensor& x) {
      qat::LayerScope scope(*this, {x});
      return scope.output(quantizer->forward(x));
    }
    std::shared_ptr<LearnedStepQuantizer> quantizer = std::make_shared<LearnedStepQuantizer>();
  } layer;
  set(layer, "quantizer.scale", 0.25);
  torch::optim::SGD optimizer(layer.parameters(), torch::optim::SGDOptions(0.0));
  layer.forward(values({0.3, -7})).sum().backward();
  optimizer.step();
  std::string folder = (std::filesystem::temp_directory_path() / "qat-learned-XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()));
  const auto path = folder + "/layer.pt";
  qat::export_torchscript(
      layer, [&](const std::vector<Tensor>& x) { return std::vector<Tensor>{layer.forward(x[0])}; },
      {torch::randn({2, 3})}, path);
  auto loaded = torch::jit::load(path);
  CHECK(mismatch(loaded.forward({torch::full({1, 3}, 0.3)}).toTensor(), torch::full({1, 3}, 0.25)) == "");
  std::filesystem::remove_all(folder);
  CHECK(layer.parameters()[0].requires_grad());
  CHECK(run(*layer.quantizer, values({0.3}), values({1})).gradients.at("scale").defined());
}
