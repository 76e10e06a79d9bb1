#pragma once

#include <torch/types.h>

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace qat::testing {

/// Reads a file of golden numbers, from the folder QAT_GOLDEN_DIR or the source tree's tests/data/golden.
inline nlohmann::json golden_file(const std::string& name) {
  const char* folder = std::getenv("QAT_GOLDEN_DIR");
  const std::string path = (folder != nullptr ? std::string(folder) : QAT_TEST_DATA "/golden") + "/" + name;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return nlohmann::json::parse(file);
}

/// A number, or one of the texts "nan", "inf" and "-inf".
inline float golden_number(const nlohmann::json& value) {
  if (!value.is_string()) return static_cast<float>(value.get<double>());
  const auto text = value.get<std::string>();
  if (text == "nan") return std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  if (text == "inf") return infinity;
  if (text == "-inf") return -infinity;
  throw std::runtime_error("not a number: " + text);
}

/// A flat list of numbers as a float32 tensor.
inline torch::Tensor golden_tensor(const nlohmann::json& data, const std::vector<std::int64_t>& shape) {
  std::vector<float> values;
  for (const auto& value : data)
    values.push_back(golden_number(value));
  return torch::tensor(values, torch::kFloat).reshape(shape);
}

/// {"shape": [...], "data": [...]}.
inline torch::Tensor golden_tensor(const nlohmann::json& tensor) {
  return golden_tensor(tensor.at("data"), tensor.at("shape").get<std::vector<std::int64_t>>());
}

}  // namespace qat::testing
