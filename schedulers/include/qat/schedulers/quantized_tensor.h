#pragma once

#include <cstdint>
#include <string>

namespace qat {

/// A tensor that a model quantizes, as budgets count it.
struct QuantizedTensor {
  enum class Kind : std::int8_t { kWeight, kActivation };
  std::string layer;  ///< its path: "features.0".
  std::string slot;   ///< where at the layer the tensor is: "weight_slot", "input_slot", "output_slot".
  Kind kind = Kind::kWeight;  ///< activations: of one sample.
  std::int64_t bits = 0;      ///< of a code, now.
  std::int64_t elements = 0;
  std::int64_t bytes =
      0;  ///< codes, filled up to whole bytes; weights: with scales, zero points, int32 biases.
};

}  // namespace qat
