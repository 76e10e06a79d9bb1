#include "schedulers/checkpoint_file.h"
#include "schedulers/optimizer_archive.h"
#include "schedulers/sha256.h"
#include "schedulers/slot_contents.h"
#include <qat/nn/quantizable_layer.h>
#include <qat/schedulers/checkpoint.h>
#include <qat/version.h>

#include <torch/serialize/archive.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

namespace qat {
namespace {

using Json = nlohmann::ordered_json;

std::map<std::string, torch::Tensor> all_tensors(const torch::nn::Module& model) {
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& item : model.named_parameters())
    tensors[item.key()] = item.value();
  for (const auto& item : model.named_buffers())
    tensors[item.key()] = item.value();
  std::erase_if(tensors, [](const auto& item) { return !item.second.defined(); });
  return tensors;
}

// "Float[4, 3]"
std::string describe(const torch::Tensor& tensor) {
  return fmt::format("{}[{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes().vec(), ", "));
}

// What a model is made of, without its numbers.
struct Structure {
  std::map<std::string, std::string> tensors;  // path -> type and shape; slots aside
  std::set<std::string> slotted;               // layers with slots
  std::set<std::string> folded;                // layers that folding changed
};

Structure structure_of(torch::nn::Module& model) {
  Structure structure;
  std::vector<std::string> slots;
  for (const auto& [path, layer] : nn::quantizable_layers(model)) {
    if (layer->is_folded()) structure.folded.insert(path);
    for (const nn::SlotId id : layer->occupied_slots()) {
      structure.slotted.insert(path);
      slots.push_back(detail::slot_path({path, id}) + ".");
    }
  }
  for (const auto& [name, tensor] : all_tensors(model)) {
    const bool in_slot = std::any_of(slots.begin(), slots.end(),
                                     [&](const std::string& slot) { return name.starts_with(slot); });
    if (!in_slot) structure.tensors[name] = describe(tensor);
  }
  return structure;
}

Json to_json(const Structure& structure) {
  return {{"tensors", structure.tensors}, {"slotted", structure.slotted}, {"folded", structure.folded}};
}

// Throws naming every difference that loading cannot bridge.
void check_structure(const std::string& path, const Structure& file, torch::nn::Module& model) {
  const Structure mine = structure_of(model);
  const auto may_differ = [&](const std::string& name) {
    const std::size_t dot = name.rfind('.');
    const std::string layer = dot == std::string::npos ? "" : name.substr(0, dot);
    return file.folded.contains(layer) || mine.folded.contains(layer);
  };
  std::vector<std::string> differences;
  for (const auto& [name, text] : file.tensors) {
    const auto found = mine.tensors.find(name);
    if (found == mine.tensors.end()) {
      if (!may_differ(name)) differences.push_back(fmt::format("{} {} is in the file only", name, text));
    } else if (found->second != text) {
      differences.push_back(fmt::format("{} is {} in the file, {} in the model", name, text, found->second));
    }
  }
  for (const auto& [name, text] : mine.tensors) {
    if (file.tensors.contains(name) || may_differ(name)) continue;
    differences.push_back(fmt::format("{} {} is in the model only", name, text));
  }
  const detail::LayerMap layers = detail::layer_map(model);
  for (const std::string& layer : file.slotted) {
    if (!layers.contains(layer))
      differences.push_back(fmt::format("{} has slots in the file, but is no qat::nn layer", layer));
  }
  TORCH_CHECK(differences.empty(), "checkpoint ", path, " does not fit the model ", model.name(), ": ",
              fmt::format("{}", fmt::join(differences, "; ")));
}

struct Header {
  CheckpointInfo info;
  Structure structure;
  std::optional<detail::SavedOptimizer> optimizer;  // without its archive
  std::size_t optimizer_bytes = 0;                  // of the archive, at the end of the payload
};

Header parse_header(const std::string& path, const std::string& text) {
  try {
    const Json json = Json::parse(text);
    Header header;
    header.info.entries = json.at("entries").get<std::map<std::string, std::string>>();
    header.info.digest = json.at("digest").get<std::string>();
    const Json& structure = json.at("structure");
    structure.at("tensors").get_to(header.structure.tensors);
    structure.at("slotted").get_to(header.structure.slotted);
    structure.at("folded").get_to(header.structure.folded);
    if (const auto found = json.find("optimizer"); found != json.end()) {
      header.optimizer.emplace();
      found->at("type").get_to(header.optimizer->type);
      found->at("groups").get_to(header.optimizer->groups);
      const Json& bytes = found->at("bytes");
      TORCH_CHECK(bytes.is_number_unsigned(), "checkpoint ", path, ": its header speaks of an optimizer of ",
                  bytes.dump(), " bytes");
      bytes.get_to(header.optimizer_bytes);
    }
    return header;
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK(false, "checkpoint ", path, ": its header cannot be read: ", error.what());
  }
}

struct Parts {
  Header header;        // with the optimizer's archive
  std::string archive;  // of the model
};

Parts read_parts(const std::string& path) {
  detail::CheckpointFile file = detail::read_checkpoint_file(path);
  Parts parts{parse_header(path, file.header), std::move(file.payload)};
  if (!parts.header.optimizer) return parts;
  const std::size_t bytes = parts.header.optimizer_bytes;
  TORCH_CHECK(bytes <= parts.archive.size(), "checkpoint ", path, ": its header speaks of ", bytes,
              " bytes of an optimizer, found ", parts.archive.size());
  const std::size_t of_model = parts.archive.size() - bytes;
  parts.header.optimizer->archive = parts.archive.substr(of_model);
  parts.archive = parts.archive.substr(0, of_model);
  return parts;
}

std::string archive_of(const torch::nn::Module& model) {
  torch::serialize::OutputArchive archive;
  model.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
}

void load_archive(torch::nn::Module& model, const std::string& bytes) {
  const torch::NoGradGuard no_grad;
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(), torch::kCPU);
  model.load(archive);
  nn::relink(model);
}

}  // namespace

std::string model_digest(const torch::nn::Module& model) {
  detail::Sha256 sha;
  for (const auto& [name, tensor] : all_tensors(model)) {
    const torch::Tensor values = tensor.detach().cpu().contiguous();
    sha.add(fmt::format("{} {}\n", name, describe(values)));
    sha.add({static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
  }
  return detail::to_hex(sha.bytes());
}

CheckpointInfo save_checkpoint(const std::string& path, torch::nn::Module& model,
                               const std::map<std::string, std::string>& entries,
                               const torch::optim::Optimizer* optimizer) {
  CheckpointInfo info{entries, model_digest(model)};
  Json header = {{"version", version()},
                 {"digest", info.digest},
                 {"entries", entries},
                 {"structure", to_json(structure_of(model))}};
  std::string payload = archive_of(model);
  if (optimizer) {
    const auto saved = detail::save_optimizer(*optimizer, model);
    header["optimizer"] = {{"type", saved.type}, {"groups", saved.groups}, {"bytes", saved.archive.size()}};
    payload += saved.archive;
  }
  detail::write_checkpoint_file(path, {header.dump(), std::move(payload)});
  return info;
}

CheckpointInfo read_checkpoint_info(const std::string& path) {
  return read_parts(path).header.info;
}

void load_optimizer(const std::string& path, torch::nn::Module& model, torch::optim::Optimizer& optimizer) {
  const Parts parts = read_parts(path);
  TORCH_CHECK_VALUE(parts.header.optimizer, "checkpoint ", path, ": it holds no optimizer");
  detail::load_optimizer(*parts.header.optimizer, model, optimizer);
}

CheckpointInfo load_checkpoint(const std::string& path, torch::nn::Module& model) {
  const auto [header, archive] = read_parts(path);
  check_structure(path, header.structure, model);
  const auto layers = nn::quantizable_layers(model);
  std::vector<nn::QuantizableLayer::Structure> structures;
  for (const auto& [name, layer] : layers)
    structures.push_back(layer->structure());
  const std::string before = archive_of(model);
  try {
    load_archive(model, archive);
    const std::string digest = model_digest(model);
    TORCH_CHECK(digest == header.info.digest, "checkpoint ", path, ": the loaded tensors have the digest ",
                digest, ", the file says ", header.info.digest);
  } catch (...) {
    // The very modules and parameters that an optimizer may know; then their values.
    for (std::size_t i = 0; i < layers.size(); ++i)
      layers[i].second->set_structure(structures[i]);
    load_archive(model, before);
    throw;
  }
  return header.info;
}

}  // namespace qat
