#pragma once

#include <qat/numerics/integer_range.h>
#include <qat/tensor_module.h>

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string_view>

namespace qat {

/// The values of "type" in the quantizers' `config()`.
inline constexpr std::string_view kAffineQuantizerType = "AffineQuantizer";
inline constexpr std::string_view kBiasQuantizerType = "BiasQuantizer";
inline constexpr std::string_view kParametricQuantizerType = "ParametricQuantizer";
inline constexpr std::string_view kLearnedStepQuantizerType = "LearnedStepQuantizer";
inline constexpr std::string_view kLowBitWeightQuantizerType = "LowBitWeightQuantizer";

/// The codes that the keys "bits", "signed" and "narrow" describe.
IntegerRange integer_range_of(const nlohmann::json& config);

/// Build a quantizer from the object that its `config()` writes.
/// Throws: c10::ValueError if a key is missing or its value is not allowed.
std::shared_ptr<TensorModule> make_affine_quantizer(const nlohmann::json& config);
std::shared_ptr<TensorModule> make_bias_quantizer(const nlohmann::json& config);
std::shared_ptr<TensorModule> make_parametric_quantizer(const nlohmann::json& config);
std::shared_ptr<TensorModule> make_learned_step_quantizer(const nlohmann::json& config);
std::shared_ptr<TensorModule> make_low_bit_weight_quantizer(const nlohmann::json& config);

}  // namespace qat
