#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace qat::detail {

/// SHA-256 of bytes that come in pieces.
class Sha256 {
 public:
  static constexpr std::size_t kSize = 32;

  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::string_view bytes);
  /// The 32 bytes of the digest; nothing may be added afterwards.
  std::string bytes();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// "00ff..": two lower-case digits for each byte.
std::string to_hex(std::string_view bytes);

}  // namespace qat::detail
