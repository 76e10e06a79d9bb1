#include "graph/node_text.h"

#include <torch/csrc/jit/ir/constants.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>
#include <unordered_map>
#include <vector>

namespace qat::detail {
namespace {

namespace jit = torch::jit;

}  // namespace

std::string operator_name(const jit::Node* node) {
  static const std::unordered_map<std::string, std::string> synonyms = {
      {"aten::concat", "aten::cat"},         {"aten::concatenate", "aten::cat"},
      {"aten::multiply", "aten::mul"},       {"aten::multiply_", "aten::mul_"},
      {"aten::subtract", "aten::sub"},       {"aten::subtract_", "aten::sub_"},
      {"aten::swapaxes", "aten::transpose"}, {"aten::swapdims", "aten::transpose"},
      {"aten::moveaxis", "aten::movedim"},   {"aten::linalg_matmul", "aten::matmul"},
  };
  const std::string name = node->kind().toQualString();
  if (const auto synonym = synonyms.find(name); synonym != synonyms.end()) return synonym->second;
  if (name != "aten::_convolution" && name != "aten::convolution") return name;
  const auto transposed = jit::toIValue(node->namedInput("transposed"));
  const auto weight = node->namedInput("weight")->type()->expect<c10::TensorType>()->dim();
  return fmt::format("aten::conv{}{}d", transposed && transposed->toBool() ? "_transpose" : "",
                     weight.value_or(2) - 2);
}

std::optional<std::string> constant_text(const jit::Value* value) {
  if (value->node()->kind() == c10::prim::ListConstruct) {
    std::vector<std::string> elements;
    for (const auto* element : value->node()->inputs()) {
      const auto text = constant_text(element);
      if (!text) return std::nullopt;
      elements.push_back(*text);
    }
    return fmt::format("[{}]", fmt::join(elements, ", "));
  }
  const auto constant = jit::toIValue(value);
  if (!constant) return std::nullopt;
  std::ostringstream text;
  if (constant->isTensor()) {
    text << constant->toTensor().toString() << constant->toTensor().sizes();
  } else {
    text << *constant;
  }
  return text.str();
}

}  // namespace qat::detail
