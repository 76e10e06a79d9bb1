// Forward and backward of the fused fake-quantizer on 16 M floats, against the time that the memory alone
// takes.
//
//   fake_quantize_bench [--json FILE] [--threads N] [--repeats N] [--only TEXT]
//
// Without --threads: with two threads and then with one, whose figures are under "one_thread" in the JSON
// file. --only: the rows with TEXT in their names.
//
// The floor is 2.5 copies of the tensor: forward reads x and writes y, backward reads x and dy and writes dx,
// five streams where a copy has two. All rows are measured in turn, in one process, with a heap that keeps
// large blocks.

#include <qat/autograd/fake_quantize.h>
#include <qat/quantizers/make_quantizer.h>

#include <torch/types.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace {

using torch::Tensor;

struct Row {
  std::string name;
  std::string leaf;  ///< name in the JSON file; empty: not written.
  std::function<void()> run;
  std::vector<double> milliseconds = {};

  double median() const {
    auto sorted = milliseconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

/// Forward and backward of a function of a tensor.
std::function<void()> step(const Tensor& x, const Tensor& dy, std::function<Tensor(const Tensor&)> function) {
  const auto leaf = x.detach().requires_grad_();
  return [=] { torch::autograd::grad({function(leaf)}, {leaf}, {dy}); };
}

/// The same with the gradients of the quantizer's parameters.
std::function<void()> learned_step(const Tensor& x, const Tensor& dy,
                                   std::shared_ptr<qat::Quantizer> quantizer) {
  const auto leaf = x.detach().requires_grad_();
  auto inputs = quantizer->parameters();
  inputs.insert(inputs.begin(), leaf);
  return [=] { torch::autograd::grad({quantizer->forward(leaf)}, inputs, {dy}); };
}

/// Every family of quantizers with 8 bits (fewer where it has fewer), per tensor and, marked, per channel.
void add_families(std::vector<Row>& rows, const Tensor& x, const Tensor& dy) {
  const auto add = [&](const std::string& family, bool is_weight, std::optional<std::int64_t> axis) {
    qat::AffineQuantizerOptions options{.range = qat::IntegerRange(8, qat::Signedness::kSigned),
                                        .axis = axis};
    if (family == "pact") options.range = qat::IntegerRange(8, qat::Signedness::kUnsigned);
    if (family == "affine" && !axis) return;  // above
    const auto shape = axis ? std::vector<std::int64_t>{x.size(*axis)} : std::vector<std::int64_t>{};
    const qat::ValueRange range{torch::full(shape, -3.0), torch::full(shape, 3.0)};
    const auto quantizer = qat::make_quantizer(family, options, range, is_weight ? x : Tensor());
    rows.push_back({family + (axis ? ", per channel" : ""), family + (axis ? "_per_channel" : ""),
                    learned_step(x, dy, quantizer)});
  };
  for (const auto& family : qat::activation_quantizer_names())
    add(family, false, std::nullopt);
  for (const char* family : {"dorefa", "binary", "ternary"})
    add(family, true, std::nullopt);
  for (const auto& family : qat::activation_quantizer_names()) {
    if (family != "pact") add(family, false, 0);
  }
  for (const char* family : {"binary", "ternary"})
    add(family, true, 0);
}

/// LSQ composed of operators, the gradients by autograd: what the fused passes replace.
std::function<void()> composed_lsq(const Tensor& x, const Tensor& dy) {
  const auto leaf = x.detach().requires_grad_();
  const auto scale = torch::full({}, 3.0 / 127).requires_grad_();
  return [=] {
    const auto position = torch::clamp(leaf / scale, -128, 127);
    const auto code = position + (torch::round(position) - position).detach();
    torch::autograd::grad({code * scale}, {leaf, scale}, {dy});
  };
}

qat::AffineParams params(std::int64_t channels, std::optional<std::int64_t> axis) {
  const std::vector<std::int64_t> shape =
      axis ? std::vector<std::int64_t>{channels} : std::vector<std::int64_t>{};
  return {torch::rand(shape) * 0.01 + 0.02, torch::zeros(shape, torch::kInt), qat::IntegerRange(), axis};
}

std::vector<Row> rows() {
  const std::int64_t n = 64;
  const auto x = torch::randn({n, n, n, n});
  const auto dy = torch::randn_like(x);
  const auto last = x.contiguous(torch::MemoryFormat::ChannelsLast);
  const auto dy_last = dy.contiguous(torch::MemoryFormat::ChannelsLast);
  const auto matrix = x.reshape({4096, 4096});
  const auto dy_matrix = dy.reshape({4096, 4096});
  const auto target = torch::empty_like(x);
  const auto quantizer = [](qat::AffineParams p, qat::FakeQuantizeOptions options = {}) {
    return [=](const Tensor& t) { return qat::fake_quantize(t, p, options); };
  };
  const qat::FakeQuantizeOptions relu{.activation = {0.0}};
  std::vector<Row> all = {
      {"copy_", "", [=] { target.copy_(x); }},
      {"per tensor", "per_tensor", step(x, dy, quantizer(params(1, {})))},
      {"per tensor, with ReLU", "per_tensor_relu", step(x, dy, quantizer(params(1, {}), relu))},
      {"per channel, axis 0", "per_channel_axis_0", step(x, dy, quantizer(params(n, 0)))},
      {"per channel, axis 1", "per_channel_axis_1", step(x, dy, quantizer(params(n, 1)))},
      {"per channel, axis 1, channels last", "per_channel_axis_1_channels_last",
       step(last, dy_last, quantizer(params(n, 1)))},
      {"per channel, matrix, axis 1", "per_channel_matrix_axis_1",
       step(matrix, dy_matrix, quantizer(params(4096, 1)))},
      {"torch::fake_quantize_per_tensor_affine", "torch",
       step(x, dy,
            [](const Tensor& t) { return torch::fake_quantize_per_tensor_affine(t, 0.025, 0, -128, 127); })},
  };
  add_families(all, x, dy);
  all.push_back({"lsq, composed of operators", "lsq_composed", composed_lsq(x, dy)});
  return all;
}

struct Options {
  std::string json_path;
  std::string only;
  int repeats = 15;
  std::vector<int> threads = {2, 1};
};

/// Reads the command line; nullopt if it is wrong.
std::optional<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--json") {
      options.json_path = value;
    } else if (name == "--threads") {
      options.threads = {std::max(1, std::atoi(value.c_str()))};
    } else if (name == "--repeats") {
      options.repeats = std::max(1, std::atoi(value.c_str()));
    } else if (name == "--only") {
      options.only = value;
    } else {
      return std::nullopt;
    }
  }
  if (argc % 2 == 0) return std::nullopt;
  return options;
}

/// Runs all rows in turn, prints them and returns their figures.
nlohmann::ordered_json measure(std::vector<Row>& all, int threads, int repeats) {
  at::set_num_threads(threads);
  for (auto& row : all)
    row.milliseconds.clear();
  for (int repeat = -2; repeat < repeats; ++repeat) {  // two rounds to warm up
    for (auto& row : all) {
      const auto start = std::chrono::steady_clock::now();
      row.run();
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
      if (repeat >= 0) row.milliseconds.push_back(took.count());
    }
  }
  const double floor = 2.5 * all[0].median();
  nlohmann::ordered_json json{{"elements", 16777216},
                              {"threads", threads},
                              {"repeats", repeats},
                              {"heap", "large blocks kept (mallopt)"},
                              {"memory_floor_ms", floor}};
  fmt::print("16 M floats, forward and backward, threads: {}, median of {}, large blocks kept by the heap\n",
             threads, repeats);
  fmt::print("{:42} {:>9} {:>9}\n{:42} {:9.2f} {:9.2f}\n", "", "ms", "x floor", "memory floor (2.5 copies)",
             floor, 1.0);
  for (const auto& row : all) {
    if (row.leaf.empty()) continue;
    const double ratio = row.median() / floor;
    fmt::print("{:42} {:9.2f} {:9.2f}\n", row.name, row.median(), ratio);
    if (row.leaf == "torch") {
      json["torch_fake_quantize_vs_memory_floor"] = ratio;
    } else {
      json[row.leaf] = {{"milliseconds", row.median()}, {"vs_memory_floor", ratio}};
    }
  }
  return json;
}

}  // namespace

int main(int argc, char** argv) {
#if defined(__GLIBC__)
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 2147483647);
#endif
  const auto options = parse(argc, argv);
  if (!options) {
    fmt::print(stderr, "usage: {} [--json FILE] [--threads N] [--repeats N] [--only TEXT]\n", argv[0]);
    return 2;
  }
  torch::manual_seed(1);
  auto all = rows();
  std::erase_if(all, [&](const Row& row) {
    return !row.leaf.empty() && row.name.find(options->only) == std::string::npos;
  });
  nlohmann::ordered_json json;
  for (const int threads : options->threads) {
    auto figures = measure(all, threads, options->repeats);
    if (json.is_null()) {
      json = std::move(figures);
    } else {
      json["one_thread"] = std::move(figures);
    }
  }
  if (options->json_path.empty()) return 0;
  std::ofstream file(options->json_path);
  file << json.dump(2) << "\n";
  file.close();
  if (!file) fmt::print(stderr, "cannot write {}\n", options->json_path);
  return file ? 0 : 1;
}
