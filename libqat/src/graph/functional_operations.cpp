#include <qat/graph/graph.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace qat {
namespace {

/// "aten::add" -> "add", "qat::nn::Conv2d" -> "Conv2d".
std::string_view short_name(const GraphNode& node) {
  const std::string_view type = node.type;
  return type.substr(type.rfind(':') + 1);  // npos + 1 is 0
}

/// Operations that only look at a tensor differently, or move its elements.
bool only_moves(const GraphNode& node) {
  static const std::unordered_set<std::string_view> names = {"view",
                                                             "view_as",
                                                             "reshape",
                                                             "reshape_as",
                                                             "flatten",
                                                             "unflatten",
                                                             "ravel",
                                                             "permute",
                                                             "transpose",
                                                             "t",
                                                             "numpy_T",
                                                             "movedim",
                                                             "squeeze",
                                                             "unsqueeze",
                                                             "expand",
                                                             "expand_as",
                                                             "contiguous",
                                                             "clone",
                                                             "alias",
                                                             "detach",
                                                             "slice",
                                                             "select",
                                                             "narrow",
                                                             "index_select",
                                                             "chunk",
                                                             "split",
                                                             "tensor_split",
                                                             "unbind",
                                                             "split_with_sizes",
                                                             "flip",
                                                             "roll",
                                                             "repeat",
                                                             "dropout",
                                                             "feature_dropout",
                                                             "alpha_dropout",
                                                             "pixel_shuffle",
                                                             "pixel_unshuffle",
                                                             "channel_shuffle"};
  return node.kind == GraphNode::Kind::kOperation && names.contains(short_name(node));
}

bool is_max_pool(std::string_view name) {
  return name.starts_with("max_pool") || name.starts_with("adaptive_max_pool") ||
         name.starts_with("MaxPool") || name.starts_with("AdaptiveMaxPool");
}

/// The layer for an operation, without "qat::nn::"; "" if there is none.
std::string layer_for(const Graph& graph, const GraphNode& node) {
  static const std::unordered_map<std::string_view, std::string_view> layers = {
      {"add", "Add"},
      {"sub", "Sub"},
      {"mul", "Mul"},
      {"cat", "Cat"},
      {"matmul", "MatMul"},
      {"bmm", "MatMul"},
      {"mm", "MatMul"},
      {"relu", "ReLU"},
      {"relu6", "ReLU6"},
      {"leaky_relu", "LeakyReLU"},
      {"sigmoid", "Sigmoid"},
      {"tanh", "Tanh"},
      {"gelu", "GELU"},
      {"silu", "SiLU"},
      {"hardswish", "Hardswish"},
      {"linear", "Linear"},
      {"embedding", "Embedding"},
  };
  static const std::unordered_map<std::string_view, std::string_view> families = {
      {"conv", "Conv"},
      {"conv_transpose", "ConvTranspose"},
      {"max_pool", "MaxPool"},
      {"avg_pool", "AvgPool"},
      {"adaptive_max_pool", "AdaptiveMaxPool"},
      {"adaptive_avg_pool", "AdaptiveAvgPool"},
  };
  const auto name = short_name(node);
  if (const auto found = layers.find(name); found != layers.end()) return std::string(found->second);
  if (name.size() > 2 && name.ends_with('d')) {  // conv2d
    const auto family = families.find(name.substr(0, name.size() - 2));
    if (family != families.end()) return fmt::format("{}{}", family->second, name.substr(name.size() - 2));
  }

  const auto& input = graph.tensors[node.inputs.front()].shape;
  const auto& output = graph.tensors[node.outputs.front()].shape;
  if (name == "batch_norm" && input.size() >= 2 && input.size() <= 5) {
    return fmt::format("BatchNorm{}d", std::max<std::size_t>(input.size(), 3) - 2);
  }
  // A mean over all positions: [N, C, H, W] to [N, C] or [N, C, 1, 1].
  const bool keeps_channels =
      input.size() == 4 && output.size() >= 2 && std::equal(input.begin(), input.begin() + 2, output.begin());
  if (name == "mean" && keeps_channels && (output.size() == 2 || (output[2] == 1 && output[3] == 1))) {
    return "AdaptiveAvgPool2d";
  }
  return "";
}

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

/// The layers and model inputs that feed each node, through functional operations; each node is visited once.
std::vector<std::vector<std::string>> sources_of(const Graph& graph) {
  std::vector<std::vector<std::string>> sources(graph.nodes.size());
  for (const auto& node : graph.nodes) {
    for (const auto id : node.inputs) {
      const auto& tensor = graph.tensors[id];
      if (tensor.kind == GraphTensor::Kind::kInput) add_once(sources[node.id], tensor.name);
      if (tensor.producer < 0) continue;
      const auto& producer = graph.nodes[tensor.producer];
      if (producer.kind == GraphNode::Kind::kLayer) {
        add_once(sources[node.id], producer.path);
      } else {
        for (const auto& name : sources[producer.id])
          add_once(sources[node.id], name);
      }
    }
  }
  return sources;
}

/// The layers that read each node's result through functional operations, and "output".
std::vector<std::vector<std::string>> readers_of(const Graph& graph) {
  std::vector<std::vector<std::string>> readers(graph.nodes.size());
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    for (const auto id : node->outputs) {
      for (const auto consumer : graph.tensors[id].consumers) {
        if (graph.nodes[consumer].kind == GraphNode::Kind::kLayer) {
          add_once(readers[node->id], graph.nodes[consumer].path);
        } else {
          for (const auto& name : readers[consumer])
            add_once(readers[node->id], name);
        }
      }
      if (std::find(graph.outputs.begin(), graph.outputs.end(), id) != graph.outputs.end()) {
        add_once(readers[node->id], "output");
      }
    }
  }
  return readers;
}

}  // namespace

bool keeps_codes(const GraphNode& node) {
  const auto name = short_name(node);
  if (is_max_pool(name)) return true;
  if (node.kind == GraphNode::Kind::kOperation) return only_moves(node);
  static const std::unordered_set<std::string_view> layers = {
      "Flatten",      "Unflatten",           "Identity",     "Dropout",       "Dropout2d", "Dropout3d",
      "AlphaDropout", "FeatureAlphaDropout", "PixelShuffle", "PixelUnshuffle"};
  return layers.contains(name);
}

std::vector<FunctionalOperation> functional_operations(const Graph& graph) {
  const auto sources = sources_of(graph);
  const auto readers = readers_of(graph);
  std::vector<FunctionalOperation> operations;
  for (const auto& node : graph.nodes) {
    // An operation that nothing but parameters and constants feed computes no activation.
    if (node.kind != GraphNode::Kind::kOperation || only_moves(node) || sources[node.id].empty()) continue;
    const auto layer = layer_for(graph, node);
    operations.push_back({.node = node.id,
                          .type = node.type,
                          .after = sources[node.id],
                          .before = readers[node.id],
                          .use_instead = layer.empty() ? "" : "qat::nn::" + layer});
  }
  return operations;
}

std::string functional_report(const Graph& graph) {
  std::string report;
  for (const auto& operation : functional_operations(graph)) {
    report +=
        fmt::format("{} between {} and {}: {}\n", operation.type, fmt::join(operation.after, ", "),
                    fmt::join(operation.before, ", "),
                    operation.use_instead.empty() ? "there is no layer for it, its result is not quantized"
                                                  : fmt::format("use {}", operation.use_instead));
  }
  return report;
}

}  // namespace qat
