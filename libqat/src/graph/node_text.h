#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <string>

namespace qat::detail {

/// The operator's name; convolutions by kind and dimensions, "aten::conv2d"; synonyms by the usual name.
std::string operator_name(const torch::jit::Node* node);

/// The text of an argument made of constants only; of a constant tensor its type and shape.
std::optional<std::string> constant_text(const torch::jit::Value* value);

}  // namespace qat::detail
