#include <qat/graph/graph.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace qat {
namespace {

std::string shape_text(const GraphTensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape, ", "));
}

/// "features.3", "features.3#1" for its second call, "aten::add".
std::string title(const GraphNode& node) {
  if (node.kind == GraphNode::Kind::kOperation || node.path.empty()) return node.type;
  return node.call > 0 ? fmt::format("{}#{} {}", node.path, node.call, node.type)
                       : fmt::format("{} {}", node.path, node.type);
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char character : text) {
    if (character == '"' || character == '\\') result += '\\';
    result += character;
  }
  return result + "\"";
}

}  // namespace

const GraphNode* Graph::find_layer(const std::string& path, std::int64_t call) const {
  for (const auto& node : nodes) {
    if (node.kind == GraphNode::Kind::kLayer && node.path == path && node.call == call) return &node;
  }
  return nullptr;
}

std::string Graph::to_text() const {
  const auto list = [&](const std::vector<std::int64_t>& ids) {
    std::vector<std::string> texts;
    for (const auto id : ids)
      texts.push_back(fmt::format("%{}{}", id, shape_text(tensors[id])));
    return fmt::format("{}", fmt::join(texts, ", "));
  };
  std::string text;
  for (const auto& node : nodes) {
    text += fmt::format("{} {}({}) -> {}\n", node.id, title(node), list(node.inputs), list(node.outputs));
  }
  return text;
}

std::string Graph::to_dot() const {
  std::string dot = "digraph model {\n  rankdir=LR;\n  node [shape=box];\n";
  for (const auto& tensor : tensors) {
    if (tensor.producer >= 0) continue;
    dot += fmt::format("  t{} [shape=ellipse, label={}];\n", tensor.id, quoted(tensor.name));
  }
  for (const auto& node : nodes) {
    dot += fmt::format("  n{} [label={}{}];\n", node.id, quoted(title(node)),
                       node.kind == GraphNode::Kind::kOperation ? ", style=dashed" : "");
  }
  const auto edge = [&](std::int64_t id, const std::string& reader) {
    const auto& tensor = tensors[id];
    const bool made = tensor.producer >= 0;
    dot += fmt::format("  {}{} -> {} [label={}];\n", made ? 'n' : 't', made ? tensor.producer : id, reader,
                       quoted(shape_text(tensor)));
  };
  for (const auto& node : nodes) {
    for (const auto input : node.inputs)
      edge(input, fmt::format("n{}", node.id));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto name = fmt::format("output{}", i);
    dot += fmt::format("  {} [shape=ellipse];\n", name);
    edge(outputs[i], name);
  }
  return dot + "}\n";
}

}  // namespace qat
