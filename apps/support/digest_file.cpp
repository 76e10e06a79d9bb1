#include "support/digest_file.h"

#include <qat/schedulers/file_digest.h>

#include <c10/util/Exception.h>

#include <fstream>

namespace qat::apps {

std::filesystem::path digest_path(const std::filesystem::path& file) {
  auto path = file;
  path += ".sha256";
  return path;
}

void write_digest(const OutputFolder& folder, const std::string& name) {
  folder.write(digest_path(name).string(), file_digest(folder.file(name).string()) + "  " + name + "\n");
}

std::string check_digest(const std::filesystem::path& file) {
  const auto path = digest_path(file);
  if (!std::filesystem::exists(path)) return "";
  std::ifstream stream(path);
  std::string expected;
  stream >> expected;
  TORCH_CHECK(expected.size() == 64, path.string(),
              ": expected a line of sha256sum (64 hex digits, name), got '", expected.substr(0, 80),
              "'; export or copy the model again, or remove this file to load the model unchecked");
  const auto found = file_digest(file.string());
  TORCH_CHECK(found == expected, file.string(), ": damaged: expected the SHA-256 ", expected, " of ",
              path.string(), ", found ", found, "; export or copy the file again");
  return found;
}

}  // namespace qat::apps
