#include "support/saved_model.h"

#include <qat/schedulers/checkpoint.h>

#include <torch/script.h>

#include <fstream>

#include "support/digest_file.h"
#include "support/models.h"

namespace qat::apps {
namespace {

/// TorchScript files are zip archives.
bool is_zip(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  char magic[2] = {};
  file.read(magic, sizeof(magic));
  return file && magic[0] == 'P' && magic[1] == 'K';
}

SavedModel load_torchscript(const std::filesystem::path& path, torch::Device device) {
  std::unordered_map<std::string, std::string> entries;
  for (const auto& [key, value] : ModelDescription().to_entries())
    entries[key] = "";
  torch::jit::Module module;
  try {
    module = torch::jit::load(path.string(), device, entries);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, path.string(), ": a zip archive, but no readable TorchScript model: ",
                std::string(error.what_without_backtrace()).substr(0, 200));
  }
  module.eval();
  std::map<std::string, std::string> found;
  for (const auto& [key, value] : entries)
    if (!value.empty()) found[key] = value;
  return {"torchscript", ModelDescription::from_entries(found, path.string()), "",
          [module](const torch::Tensor& x) mutable { return module.forward({x}).toTensor(); }};
}

SavedModel load_qat_file(const std::filesystem::path& path, torch::Device device) {
  const auto info = read_checkpoint_info(path.string());
  const auto description = ModelDescription::from_entries(info.entries, path.string());
  const auto model = make_model(description.config.model, description.input_shape, description.classes);
  load_checkpoint(path.string(), *model.module);
  model.module->to(device);
  model.module->eval();
  return {"checkpoint", description, info.digest, model};
}

}  // namespace

SavedModel load_saved_model(const std::filesystem::path& path, torch::Device device) {
  TORCH_CHECK(std::filesystem::is_regular_file(path), path.string(), ": no such file");
  const auto digest = check_digest(path);
  if (!is_zip(path)) return load_qat_file(path, device);
  auto model = load_torchscript(path, device);
  model.digest = digest;
  return model;
}

}  // namespace qat::apps
