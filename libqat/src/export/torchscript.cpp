#include "graph/model_state_guard.h"
#include "graph/trace.h"
#include <qat/export/torchscript.h>

#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>
#include <utility>

namespace qat {
namespace {

constexpr const char* kWho = "export_torchscript";

/// A file beside the target that vanishes unless it is kept.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& target)
      : target_(target), path_(target.string() + fmt::format(".{:08x}.tmp", std::random_device{}())) {}
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void rename_to_target() const {
    std::error_code error;
    std::filesystem::rename(path_, target_, error);
    TORCH_CHECK(!error, kWho, ": cannot write ", target_.string(), ": ", error.message());
  }

 private:
  std::filesystem::path target_;
  std::filesystem::path path_;
};

/// One sample more: the first one again. Tensors without dimensions stay.
std::vector<torch::Tensor> with_larger_batch(const std::vector<torch::Tensor>& inputs) {
  std::vector<torch::Tensor> larger;
  for (const auto& input : inputs) {
    TORCH_CHECK_VALUE(input.defined(), kWho, ": example input ", larger.size(), " is undefined");
    if (input.dim() == 0) {
      larger.push_back(input);
      continue;
    }
    TORCH_CHECK_VALUE(input.size(0) > 0, kWho, ": expected at least one sample, got example input ",
                      larger.size(), " of shape ", input.sizes());
    larger.push_back(torch::cat({input, input.narrow(0, 0, 1)}));
  }
  return larger;
}

/// Refuses traces of two batch sizes that do not hold the same operators with the same constants.
void refuse_baked_sizes(const detail::Trace& trace, const detail::Trace& larger) {
  const auto live = [](const detail::Trace& of) {
    const auto flags = of.live_nodes();
    std::vector<const detail::TraceNode*> nodes;
    for (std::size_t i = 0; i < flags.size(); ++i) {
      if (flags[i]) nodes.push_back(&of.nodes[i]);
    }
    return nodes;
  };
  const auto nodes = live(trace);
  const auto others = live(larger);
  const auto place = [&](const detail::TraceNode& node) {
    const auto path = trace.last_layer_path(node);
    return node.layer >= 0 ? " in " + path : path.empty() ? " at the model's input" : " after " + path;
  };
  std::string baked;
  for (std::size_t i = 0; i < std::min(nodes.size(), others.size()); ++i) {
    TORCH_CHECK(nodes[i]->op == others[i]->op && nodes[i]->constants.size() == others[i]->constants.size(),
                kWho, ": the model runs ", nodes[i]->op, place(*nodes[i]), " at one batch size and ",
                others[i]->op, " at another; its forward must not branch on the batch size");
    for (std::size_t j = 0; j < nodes[i]->constants.size(); ++j) {
      const auto& [argument, value] = nodes[i]->constants[j];
      const auto& other = others[i]->constants[j].value;
      if (value == other) continue;
      baked += fmt::format("\n  {}{}: {} is {}, with one sample more {}", nodes[i]->op, place(*nodes[i]),
                           argument, value, other);
    }
  }
  TORCH_CHECK(baked.empty(), kWho, ": the batch size is baked into", baked,
              "\nwrite -1 for the batch dimension, or flatten(1)");
  TORCH_CHECK(nodes.size() == others.size(), kWho, ": the model runs ", nodes.size(),
              " operators at one batch size and ", others.size(),
              " at another; its forward must not branch on the batch size");
}

void write(const detail::Trace& trace, const TorchScriptOptions& options, const std::filesystem::path& file,
           const std::string& path) {
  TORCH_CHECK(!std::filesystem::is_directory(path), kWho, ": cannot write ", path, ": it is a folder");
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  TORCH_CHECK(stream.good(), kWho, ": cannot write ", path, ": ", std::strerror(errno));
  trace.module.save(stream, {options.metadata.begin(), options.metadata.end()});
  stream.close();
  TORCH_CHECK(stream.good(), kWho, ": cannot write ", path, ": ", std::strerror(errno));
}

/// Equal bits; NaN equals NaN.
void compare(const torch::Tensor& live, const torch::Tensor& loaded, const std::string& what) {
  TORCH_CHECK(live.sizes() == loaded.sizes() && live.scalar_type() == loaded.scalar_type(), what, " is ",
              loaded.toString(), loaded.sizes(), ", the model gives ", live.toString(), live.sizes());
  const auto same =
      ((live == loaded) & (live.signbit() == loaded.signbit())) | (live.isnan() & loaded.isnan());
  const auto different = same.numel() - same.sum().item<std::int64_t>();
  TORCH_CHECK(different == 0, what, " differs from the model's in ", different, " of ", same.numel(),
              " elements, by up to ",
              (live.to(torch::kDouble) - loaded.to(torch::kDouble)).abs().nan_to_num().max().item<double>());
}

/// Runs the file that was written beside the model.
void check_file(const std::filesystem::path& file, const std::string& path, const ForwardFunction& forward,
                const std::vector<torch::Tensor>& inputs) {
  const torch::jit::GraphOptimizerEnabledGuard no_fusion(false);
  auto loaded = torch::jit::load(file.string());
  const auto clones = [&] {
    std::vector<torch::Tensor> copies;
    for (const auto& input : inputs)
      copies.push_back(input.detach().clone());
    return copies;
  };
  const auto expected = forward(clones());
  const auto copies = clones();
  const auto result = loaded.forward(std::vector<c10::IValue>(copies.begin(), copies.end()));
  std::vector<torch::Tensor> outputs;
  if (result.isTensor()) {
    outputs.push_back(result.toTensor());
  } else {
    for (const auto& element : result.toTupleRef().elements())
      outputs.push_back(element.toTensor());
  }
  TORCH_CHECK(outputs.size() == expected.size(), kWho, ": ", path, " read back gives ", outputs.size(),
              " outputs, the model gives ", expected.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    compare(expected[i], outputs[i], fmt::format("{}: output {} of {} read back", kWho, i, path));
  }
}

}  // namespace

void export_torchscript(torch::nn::Module& model, const ForwardFunction& forward,
                        const std::vector<torch::Tensor>& example_inputs, const std::string& path,
                        const TorchScriptOptions& options) {
  detail::refuse_nested(kWho);
  const auto larger_inputs = with_larger_batch(example_inputs);
  const detail::ModelStateGuard guard(model, example_inputs);
  const auto trace = detail::trace_model(model, forward, example_inputs, {.who = kWho});
  refuse_baked_sizes(trace, detail::trace_model(model, forward, larger_inputs, {.who = kWho}));

  const TemporaryFile file(path);
  write(trace, options, file.path(), path);
  check_file(file.path(), path, forward, example_inputs);
  check_file(file.path(), path, forward, larger_inputs);
  file.rename_to_target();
}

}  // namespace qat
