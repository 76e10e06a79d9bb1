#include "schedulers/sha256.h"
#include <qat/schedulers/file_digest.h>

#include <c10/util/Exception.h>

#include <fstream>
#include <vector>

namespace qat {

std::string file_digest(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file.is_open(), path, ": cannot be read");
  detail::Sha256 sha;
  std::vector<char> part(1 << 16);
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())) || file.gcount() > 0)
    sha.add({part.data(), static_cast<std::size_t>(file.gcount())});
  TORCH_CHECK(!file.bad(), path, ": cannot be read to its end");
  return detail::to_hex(sha.bytes());
}

}  // namespace qat
