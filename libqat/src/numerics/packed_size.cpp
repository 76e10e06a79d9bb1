#include <qat/numerics/packed_size.h>

#include <c10/util/Exception.h>

namespace qat {

std::int64_t packed_code_bytes(std::int64_t count, std::int64_t bits) {
  TORCH_CHECK_VALUE(bits >= 1 && bits <= 16, "qat::packed_code_bytes: expected 1 to 16 bits, got ", bits);
  TORCH_CHECK_VALUE(count >= 0 && count <= kMaxPackedCount, "qat::packed_code_bytes: expected 0 to ",
                    kMaxPackedCount, " codes, got ", count);
  return (count * bits + 7) / 8;
}

}  // namespace qat
