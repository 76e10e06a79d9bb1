#pragma once

#include <qat/tensor_module.h>

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string_view>

namespace qat {

/// The value of "type" in `Recorder::config()`.
inline constexpr std::string_view kRecorderType = "Recorder";

/// Builds an empty recorder from the object that `Recorder::config()` writes.
/// Throws: c10::ValueError if a key is missing or its value is not allowed.
std::shared_ptr<TensorModule> make_recorder(const nlohmann::json& config);

}  // namespace qat
