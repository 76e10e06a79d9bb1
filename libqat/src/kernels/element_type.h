#pragma once

#include <cstdint>

namespace qat::kernels {

/// The floating-point types that the kernels read and write.
enum class ElementType : std::int8_t { kFloat, kDouble, kHalf, kBFloat16 };

}  // namespace qat::kernels
