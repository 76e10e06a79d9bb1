#include "support/output_folder.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <regex>
#include <system_error>
#include <vector>

namespace qat::apps {
namespace {

constexpr const char* kResults[] = {"config.toml",
                                    "metrics.csv",
                                    "layers.csv",
                                    "summary.json",
                                    "report.html",
                                    "model.qat",
                                    "model.torchscript.pt",
                                    "model.torchscript.pt.sha256",
                                    "checkpoints/float.qat",
                                    "checkpoints/resume.qat"};

}  // namespace

OutputFolder::OutputFolder(std::filesystem::path path, Earlier earlier) : path_(std::move(path)) {
  std::error_code error;
  std::filesystem::create_directories(path_ / "checkpoints", error);
  TORCH_CHECK(!error, "output folder ", path_.string(), ": ", error.message());
  const auto remove = [&](const std::filesystem::path& file) {
    std::filesystem::remove(file, error);
    TORCH_CHECK(!error, "output folder ", path_.string(), ": cannot remove ", file.filename().string(),
                " of an earlier run: ", error.message());
  };
  const auto remove_matching = [&](const std::filesystem::path& folder, const std::regex& names) {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      if (std::regex_match(entry.path().filename().string(), names)) found.push_back(entry.path());
    }
    TORCH_CHECK(!error, "output folder ", folder.string(), ": ", error.message());
    std::for_each(found.begin(), found.end(), remove);
  };
  const std::regex unfinished("(model|float|resume|qat-[0-9]+)\\.qat\\.partial[0-9]+");
  remove_matching(path_, unfinished);
  remove_matching(path_,
                  std::regex("(model\\.torchscript\\.pt\\.[0-9a-f]{8}|[a-z]+\\.(toml|csv|json|html))\\.tmp"));
  remove_matching(path_ / "checkpoints", unfinished);
  if (earlier == Earlier::kKeep) return;
  for (const char* name : kResults)
    remove(path_ / name);
  remove_matching(path_ / "checkpoints", std::regex("qat-[0-9]+\\.qat"));
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
