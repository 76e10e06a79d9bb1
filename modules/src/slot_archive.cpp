#include <qat/nn/quantizable_layer.h>

#include <torch/serialize/archive.h>

#include <nlohmann/json.hpp>

namespace qat::nn {
namespace {

constexpr const char* kAttribute = "slots";

SlotId parse_slot_name(const std::string& name) {
  for (const auto kind :
       {SlotId::Kind::kInput, SlotId::Kind::kWeight, SlotId::Kind::kBias, SlotId::Kind::kOutput}) {
    if (SlotId{kind}.name() == name) return {kind};
  }
  const std::string numbered = SlotId{SlotId::Kind::kInput}.name() + "_";
  TORCH_CHECK_VALUE(name.starts_with(numbered) &&
                        name.find_first_not_of("0123456789", numbered.size()) == std::string::npos &&
                        name.size() > numbered.size() && name.size() < numbered.size() + 9,
                    "expected the name of a slot, got '", name, "'");
  return {SlotId::Kind::kInput, std::stoll(name.substr(numbered.size()))};
}

}  // namespace

void QuantizableLayer::save_slots(torch::serialize::OutputArchive& archive) const {
  if (is_float() && form() == LayerForm()) return;
  auto slots = nlohmann::json::array();
  for (const Entry& entry : entries_) {
    if (entry.content) {
      slots.push_back(
          {{"slot", entry.id.name()}, {"config", nlohmann::json::parse(entry.content->config())}});
    } else {
      slots.push_back(
          {{"slot", entry.id.name()}, {"path", entry.link->path}, {"applies", entry.link->applies}});
    }
  }
  const LayerForm now = form();
  nlohmann::json state = {{"slots", slots}, {"held", hold_}, {"folded", now.folded}};
  if (now.scale_and_shift) state["scale_and_shift"] = true;
  if (now.frozen_statistics) state["frozen_statistics"] = true;
  archive.write(kAttribute, c10::IValue(state.dump()));
}

void QuantizableLayer::load_slots(torch::serialize::InputArchive& archive) {
  c10::IValue attribute;
  auto state = nlohmann::json::object();
  if (archive.try_read(kAttribute, attribute)) {
    TORCH_CHECK_VALUE(attribute.isString(), describe(),
                      ": expected the attribute 'slots' of the file to be text");
    state = nlohmann::json::parse(attribute.toStringRef(), nullptr, /*allow_exceptions=*/false);
    TORCH_CHECK_VALUE(state.is_object(), describe(), ": the attribute 'slots' of the file is no JSON object");
  }
  const std::vector<Entry> before = entries_;
  const auto content = [&](SlotId id, const nlohmann::json& config) {
    for (const Entry& entry : before) {
      if (entry.id == id && entry.content && nlohmann::json::parse(entry.content->config()) == config)
        return entry.content;
    }
    return make_tensor_module(config.dump());
  };
  clear_slots();
  try {
    set_form({.folded = state.value("folded", false),
              .scale_and_shift = state.value("scale_and_shift", false),
              .frozen_statistics = state.value("frozen_statistics", false)});
    hold_parameters(state.value("held", false));
    for (const auto& each : state.value("slots", nlohmann::json::array())) {
      const SlotId id = parse_slot_name(each.at("slot").get<std::string>());
      if (each.contains("config")) {
        set_slot(id, content(id, each.at("config")));
      } else {
        set_link(id, {each.at("path").get<std::string>(), each.at("applies").get<bool>()});
      }
    }
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, describe(), ": the attribute 'slots' of the file is damaged: ", error.what());
  }
}

QuantizableLayer::Structure QuantizableLayer::structure() const {
  Structure structure;
  structure.entries = entries_;
  structure.holds = hold_;
  structure.form = form();
  const auto parameters = module().named_parameters(/*recurse=*/false);
  if (const auto* weight = parameters.find("weight")) structure.weight = *weight;
  if (const auto* bias = parameters.find("bias")) structure.bias = *bias;
  return structure;
}

void QuantizableLayer::set_structure(const Structure& structure) {
  clear_slots();
  set_form(structure.form, {structure.weight, structure.bias});
  hold_ = structure.holds;
  for (const Entry& entry : structure.entries) {
    if (entry.content) module().register_module(entry.id.name(), entry.content);
    entries_.push_back(entry);
  }
}

}  // namespace qat::nn
