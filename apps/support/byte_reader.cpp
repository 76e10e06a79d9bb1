#include "support/byte_reader.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <zlib.h>

namespace qat::apps {
namespace {

gzFile as_gz(void* file) {
  return static_cast<gzFile>(file);
}

}  // namespace

void ByteReader::Close::operator()(void* file) const {
  gzclose(as_gz(file));
}

ByteReader::ByteReader(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code error;
  const auto status = std::filesystem::status(path_, error);
  TORCH_CHECK(std::filesystem::exists(status), "qat::apps::ByteReader: file ", path_.string(),
              " does not exist");
  TORCH_CHECK(std::filesystem::is_regular_file(status), "qat::apps::ByteReader: expected ", path_.string(),
              " to be a file, got ", std::filesystem::is_directory(status) ? "a folder" : "something else");
  file_size_ = std::filesystem::file_size(path_, error);
  TORCH_CHECK(!error, "qat::apps::ByteReader: cannot read the size of ", path_.string(), ": ",
              error.message());
  errno = 0;
  file_.reset(gzopen(path_.c_str(), "rb"));
  TORCH_CHECK(file_ != nullptr, "qat::apps::ByteReader: cannot open ", path_.string(), ": ",
              std::strerror(errno));
  gzbuffer(as_gz(file_.get()), 1U << 18);
  compressed_ = gzdirect(as_gz(file_.get())) == 0;
}

size_t ByteReader::read(void* target, size_t count) {
  constexpr size_t kMostAtOnce = size_t{1} << 30;  // gzread() counts in int
  size_t done = 0;
  while (done < count && defect_.empty()) {
    const auto wanted = static_cast<unsigned>(std::min(count - done, kMostAtOnce));
    const int got = gzread(as_gz(file_.get()), static_cast<char*>(target) + done, wanted);
    if (got > 0) done += static_cast<size_t>(got);
    if (got == static_cast<int>(wanted)) continue;
    int code = Z_OK;
    const char* text = gzerror(as_gz(file_.get()), &code);
    if (code == Z_BUF_ERROR) {
      defect_ = "the gzip stream is cut short";
    } else if (code == Z_ERRNO) {
      defect_ = std::string("the file cannot be read: ") + std::strerror(errno);
    } else if (code != Z_OK && code != Z_STREAM_END) {
      defect_ = std::string("the gzip stream is damaged: ") + text;
    }
    break;
  }
  position_ += done;
  return done;
}

}  // namespace qat::apps
