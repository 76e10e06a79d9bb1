#include "schedulers/sha256.h"

#include <c10/util/Exception.h>

#include <openssl/evp.h>

namespace qat::detail {

struct Sha256::Context {
  EVP_MD_CTX* handle = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(handle); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  TORCH_CHECK(context_->handle && EVP_DigestInit_ex(context_->handle, EVP_sha256(), nullptr) == 1,
              "SHA-256 is not available from libcrypto");
}

Sha256::~Sha256() = default;

void Sha256::add(std::string_view bytes) {
  TORCH_CHECK(EVP_DigestUpdate(context_->handle, bytes.data(), bytes.size()) == 1, "SHA-256 failed");
}

std::string Sha256::bytes() {
  std::string digest(kSize, '\0');
  auto* data = reinterpret_cast<unsigned char*>(digest.data());
  TORCH_CHECK(EVP_DigestFinal_ex(context_->handle, data, nullptr) == 1, "SHA-256 failed");
  return digest;
}

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char each : bytes) {
    const auto byte = static_cast<unsigned char>(each);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace qat::detail
