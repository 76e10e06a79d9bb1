#include "support/output_folder.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <regex>
#include <system_error>

namespace qat::apps {
namespace {

constexpr const char* kResults[] = {
    "config.toml",          "metrics.csv", "layers.csv",           "summary.json",
    "report.html",          "model.qat",   "model.torchscript.pt", "model.torchscript.pt.sha256",
    "checkpoints/float.qat"};

}  // namespace

OutputFolder::OutputFolder(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code error;
  std::filesystem::create_directories(path_ / "checkpoints", error);
  TORCH_CHECK(!error, "output folder ", path_.string(), ": ", error.message());
  for (const char* name : kResults) {
    std::filesystem::remove(path_ / name, error);
    TORCH_CHECK(!error, "output folder ", path_.string(), ": cannot remove ", name,
                " of an earlier run: ", error.message());
  }
  static const std::regex ours("qat-[0-9]+\\.qat");
  for (const auto& entry : std::filesystem::directory_iterator(path_ / "checkpoints", error)) {
    const auto name = entry.path().filename().string();
    if (std::regex_match(name, ours) && !error) std::filesystem::remove(entry.path(), error);
  }
  TORCH_CHECK(!error, "output folder ", path_.string(),
              ": cannot remove a checkpoint of an earlier run: ", error.message());
}

std::string OutputFolder::quantized_checkpoint(std::int64_t epoch) {
  return "checkpoints/qat-" + std::to_string(epoch) + ".qat";
}

void OutputFolder::write(std::string_view name, std::string_view content) const {
  const auto target = file(name);
  auto temporary = target;
  temporary += ".tmp";
  std::error_code error;
  {
    errno = 0;
    std::ofstream out(temporary, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    if (!out) error = {errno != 0 ? errno : EIO, std::generic_category()};
  }
  if (!error) std::filesystem::rename(temporary, target, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    TORCH_CHECK(false, target.string(), ": cannot write: ", error.message());
  }
}

}  // namespace qat::apps
