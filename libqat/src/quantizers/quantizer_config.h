#pragma once

#include <qat/tensor_module.h>

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string_view>

namespace qat {

/// The values of "type" in the quantizers' `config()`.
inline constexpr std::string_view kAffineQuantizerType = "AffineQuantizer";
inline constexpr std::string_view kBiasQuantizerType = "BiasQuantizer";

/// Build a quantizer from the object that its `config()` writes.
/// Throws: c10::ValueError if a key is missing or its value is not allowed.
std::shared_ptr<TensorModule> make_affine_quantizer(const nlohmann::json& config);
std::shared_ptr<TensorModule> make_bias_quantizer(const nlohmann::json& config);

}  // namespace qat
