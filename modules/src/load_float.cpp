#include <qat/export/safetensors.h>
#include <qat/nn/load_float.h>

#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/types.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <caffe2/serialize/inline_container.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

namespace qat::nn {
namespace {

using Tensors = std::map<std::string, torch::Tensor>;

/// Whether a name leads into a slot: "relu.output_slot.scale".
bool is_in_slot(const std::string& name) {
  std::istringstream parts(name);
  for (std::string part; std::getline(parts, part, '.');) {
    for (const std::string_view slot : {"input_slot", "weight_slot", "bias_slot", "output_slot"}) {
      if (part.starts_with(slot)) return true;
    }
  }
  return false;
}

Tensors from_script(const std::string& path) {
  const auto module = torch::jit::load(path, torch::kCPU);
  Tensors tensors;
  for (const auto& parameter : module.named_parameters())
    tensors[parameter.name] = parameter.value;
  for (const auto& buffer : module.named_buffers())
    tensors[buffer.name] = buffer.value;
  return tensors;
}

/// A dictionary of names and tensors.
Tensors from_pickle(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
  // LibTorch reads dictionaries, but not the OrderedDict with attributes that state_dict() gives.
  const char* const hint = "; expected what torch.save(dict(model.state_dict()), path) writes";
  c10::IValue value;
  try {
    value = torch::jit::pickle_load(bytes);
  } catch (const std::exception&) {
    TORCH_CHECK(false, "load_float: ", path, " holds Python objects that LibTorch cannot read", hint);
  }
  Tensors tensors;
  TORCH_CHECK(value.isGenericDict(), "load_float: ", path, " holds no dictionary", hint);
  for (const auto& entry : value.toGenericDict()) {
    TORCH_CHECK(entry.key().isString() && entry.value().isTensor(), "load_float: ", path,
                " holds a dictionary with other things than names and tensors", hint);
    tensors[entry.key().toStringRef()] = entry.value().toTensor();
  }
  return tensors;
}

Tensors read_tensors(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string start(10, '\0');
  stream.read(start.data(), static_cast<std::streamsize>(start.size()));
  TORCH_CHECK(stream.gcount() > 0 && !std::filesystem::is_directory(path), "load_float: ", path,
              " cannot be read, or is empty");
  if (!start.starts_with("PK")) {
    TORCH_CHECK(start[8] == '{', "load_float: ", path,
                " is none of the files that can be read: a TorchScript file or torch archive, what "
                "torch.save(dict(model.state_dict()), path) writes, safetensors");
    return load_safetensors(path).tensors;
  }
  try {
    caffe2::serialize::PyTorchStreamReader archive(path);
    return archive.hasRecord("constants.pkl") ? from_script(path) : from_pickle(path);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    TORCH_CHECK(false,
                text.starts_with("load_float") ? "" : "load_float: " + path + " cannot be read: ", text);
  }
}

Tensors tensors_of(const torch::nn::Module& model) {
  Tensors tensors;
  for (const auto& parameter : model.named_parameters())
    tensors[parameter.key()] = parameter.value();
  for (const auto& buffer : model.named_buffers())
    tensors[buffer.key()] = buffer.value();
  std::erase_if(tensors, [](const auto& tensor) { return is_in_slot(tensor.first); });
  return tensors;
}

Tensors with_names_of_model(Tensors read, const std::string& prefix) {
  Tensors tensors;
  for (auto& [name, tensor] : read) {
    const bool begins = !prefix.empty() && name.starts_with(prefix);
    auto own = begins ? name.substr(prefix.size()) : name;
    if (!is_in_slot(own)) tensors.emplace(std::move(own), std::move(tensor));
  }
  return tensors;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

std::string LoadFloatReport::to_text() const {
  std::string text = fmt::format("loaded {}: {}", loaded.size(), fmt::join(loaded, ", "));
  if (!only_in_file.empty()) text += fmt::format("\nonly in the file: {}", fmt::join(only_in_file, ", "));
  if (!only_in_model.empty()) text += fmt::format("\nonly in the model: {}", fmt::join(only_in_model, ", "));
  for (const auto& [name, in_file, in_model] : other_shape) {
    text += fmt::format("\n{} has shape {} in the file, {} in the model", name, shape_text(in_file),
                        shape_text(in_model));
  }
  return text;
}

LoadFloatReport load_float(const std::string& path, torch::nn::Module& model,
                           const LoadFloatOptions& options) {
  const torch::NoGradGuard no_grad;
  const Tensors read = with_names_of_model(read_tensors(path), options.remove_prefix);
  Tensors own = tensors_of(model);
  LoadFloatReport report;
  for (const auto& [name, tensor] : read) {
    const auto found = own.find(name);
    if (found == own.end()) {
      report.only_in_file.push_back(name);
    } else if (found->second.sizes() != tensor.sizes()) {
      report.other_shape.push_back({name, tensor.sizes().vec(), found->second.sizes().vec()});
    } else {
      report.loaded.push_back(name);
    }
  }
  for (const auto& [name, tensor] : own) {
    if (!read.contains(name) && !name.ends_with("num_batches_tracked")) report.only_in_model.push_back(name);
  }
  TORCH_CHECK_VALUE(!report.loaded.empty(), "load_float: ", path,
                    " has no tensor that the model has: ", report.to_text(),
                    "\nnames that differ by a prefix can be matched with remove_prefix");
  TORCH_CHECK_VALUE(options.allow_partial || report.is_complete(), "load_float: ", path,
                    " does not fit the model, nothing was loaded (allow_partial loads what fits):\n",
                    report.to_text());
  for (const std::string& name : report.loaded)
    own.at(name).copy_(read.at(name));
  return report;
}

}  // namespace qat::nn
