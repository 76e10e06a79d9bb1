#pragma once

#include <qat/nn/nn.h>
#include <qat/nn/packed_weights.h>

#include <cstdint>

namespace qat::testing {

/// The bytes of all packed weights of a net.
inline std::int64_t payload(nn::Sequential& net) {
  std::int64_t bytes = 0;
  for (const auto& [path, packed] : nn::pack_weights(*net))
    bytes += packed.payload_bytes();
  return bytes;
}

}  // namespace qat::testing
