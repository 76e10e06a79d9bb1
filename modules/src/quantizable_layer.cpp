#include <qat/nn/quantizable_layer.h>
#include <qat/numerics/affine_params.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/quantizers/bias_quantizer.h>
#include <qat/recorders/recorder.h>

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

namespace qat::nn {
namespace {

/// The identity in y. It makes y depend on a parameter that gets no gradient: while parameters are held, a
/// loss can be differentiated although nothing is trained.
struct Anchor : torch::autograd::Function<Anchor> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& y,
                               const torch::Tensor&) {
    // Not y itself: autograd would make a view of it, which functional code could not change in place.
    return y.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0], torch::Tensor()};
  }
};

/// " [-1.27, 1.28]": the smallest and the largest value over the channels.
std::string range_text(const torch::Tensor& low, const torch::Tensor& high) {
  std::ostringstream text;
  text << std::setprecision(3) << " [" << low.min().item<double>() << ", " << high.max().item<double>()
       << "]";
  return text.str();
}

/// The real values of the lowest and highest code; nothing if there are none yet, or they follow the tensor.
std::string range_text(const AffineQuantizer& quantizer) {
  if (!quantizer.has_range()) return "";
  const torch::NoGradGuard no_grad;
  const auto buffers = quantizer.named_buffers();
  const auto scale = buffers["scale"].to(torch::kDouble);
  const auto zero_point = buffers["zero_point"];
  const auto& range = quantizer.options().range;
  return range_text((range.qmin() - zero_point) * scale, (range.qmax() - zero_point) * scale);
}

std::string range_text(const Recorder& recorder) {
  if (recorder.recorded() == 0) return "";
  const auto range = recorder.range();
  return range_text(range.min, range.max);
}

std::string short_text(const TensorModule& content) {
  if (const auto* affine = dynamic_cast<const AffineQuantizer*>(&content)) {
    return affine->options().range.to_string() + (affine->options().axis ? " per channel" : "") +
           range_text(*affine);
  }
  if (const auto* recorder = dynamic_cast<const Recorder*>(&content)) {
    return to_string(recorder->options().kind) + (recorder->options().axis ? " per channel" : "") +
           range_text(*recorder);
  }
  if (dynamic_cast<const BiasQuantizer*>(&content)) return "int32";
  std::ostringstream text;
  content.pretty_print(text);
  return text.str();
}

/// "input", "input_1", "weight", "bias", "output".
std::string short_name(SlotId id) {
  std::string name = id.name();
  name.erase(name.find("_slot"), 5);
  return name;
}

/// f(); a refusal of a value names the layer.
template <class Function>
torch::Tensor naming(const QuantizableLayer& layer, const Function& f) {
  try {
    return f();
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, layer.describe(), ": ", error.what_without_backtrace());
  }
}

// The order in which forward uses the slots.
constexpr auto kOrderOfUse = [](const auto& a, const auto& b) {
  return std::pair(a.id.kind, a.id.index) < std::pair(b.id.kind, b.id.index);
};

}  // namespace

std::string SlotId::name() const {
  switch (kind) {
    case Kind::kInput:
      return index == 0 ? "input_slot" : "input_slot_" + std::to_string(index);
    case Kind::kWeight:
      return "weight_slot";
    case Kind::kBias:
      return "bias_slot";
    case Kind::kOutput:
      break;
  }
  return "output_slot";
}

QuantizableLayer::QuantizableLayer(const QuantizableLayer& other) {
  *this = other;
}

QuantizableLayer& QuantizableLayer::operator=(const QuantizableLayer& other) {
  entries_ = other.entries_;
  hold_ = other.hold_;
  path_ = other.path_;
  for (Entry& entry : entries_) {
    if (entry.link) entry.link->target.reset();
  }
  return *this;
}

std::string QuantizableLayer::describe() const {
  std::string name = module().name();
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return path_.empty() ? name : name + " '" + path_ + "'";
}

void QuantizableLayer::set_bias_parameter(const torch::Tensor&) {
  TORCH_CHECK_VALUE(false, describe(), ": this layer cannot have a bias");
}

void QuantizableLayer::set_form(const LayerForm& form, const Parameters&) {
  TORCH_CHECK_VALUE(form == LayerForm(), describe(),
                    ": the file says that batch norm folding changed this layer, which it cannot do");
}

const QuantizableLayer::Entry* QuantizableLayer::find(SlotId id) const {
  const auto entry =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& each) { return each.id == id; });
  return entry == entries_.end() ? nullptr : &*entry;
}

void QuantizableLayer::erase(SlotId id) {
  const Entry* entry = find(id);
  if (!entry) return;
  if (entry->content) module().unregister_module(id.name());
  entries_.erase(entries_.begin() + (entry - entries_.data()));
}

void QuantizableLayer::check_slot_exists(SlotId id) const {
  auto* self = const_cast<QuantizableLayer*>(this);
  bool exists = id.index == 0;
  switch (id.kind) {
    case SlotId::Kind::kInput:
      exists = id.index >= 0 && id.index < input_count().value_or(id.index + 1);
      break;
    case SlotId::Kind::kWeight:
      exists = exists && self->weight_parameter();
      break;
    case SlotId::Kind::kBias:
      exists = exists && self->bias_parameter() && self->bias_parameter()->defined();
      break;
    case SlotId::Kind::kOutput:
      break;
  }
  TORCH_CHECK_VALUE(exists, describe(), " has no ", id.name());
}

std::shared_ptr<TensorModule> QuantizableLayer::slot(SlotId id) const {
  const Entry* entry = find(id);
  return entry ? entry->content : nullptr;
}

void QuantizableLayer::set_slot(SlotId id, std::shared_ptr<TensorModule> content) {
  check_slot_exists(id);
  erase(id);
  if (!content) return;
  const auto parameters = module().parameters(/*recurse=*/false);
  if (!parameters.empty()) content->to(parameters.front().device());
  content->train(module().is_training());
  module().register_module(id.name(), content);
  entries_.push_back({id, std::move(content), std::nullopt});
}

void QuantizableLayer::set_link(SlotId id, SlotLink link) {
  check_slot_exists(id);
  TORCH_CHECK_VALUE(id.kind == SlotId::Kind::kInput || id.kind == SlotId::Kind::kOutput, describe(),
                    ": expected an input or output slot for a link, got ", id.name());
  erase(id);
  entries_.push_back({id, nullptr, std::move(link)});
}

const SlotLink* QuantizableLayer::link(SlotId id) const {
  const Entry* entry = find(id);
  return entry && entry->link ? &*entry->link : nullptr;
}

std::vector<SlotId> QuantizableLayer::occupied_slots() const {
  std::vector<SlotId> ids;
  for (const Entry& entry : entries_) {
    if (entry.content) ids.push_back(entry.id);
  }
  return ids;
}

std::vector<SlotId> QuantizableLayer::linked_slots() const {
  std::vector<SlotId> ids;
  for (const Entry& entry : entries_) {
    if (entry.link) ids.push_back(entry.id);
  }
  return ids;
}

void QuantizableLayer::clear_slots() {
  while (!entries_.empty())
    erase(entries_.back().id);
}

void QuantizableLayer::hold_parameters(bool hold) {
  hold_ = hold;
  if (!hold) return;
  for (torch::Tensor& parameter : module().parameters(/*recurse=*/false))
    parameter.mutable_grad().reset();
}

std::shared_ptr<TensorModule> QuantizableLayer::resolve(const Entry& entry) const {
  if (entry.content) return entry.content;
  auto target = entry.link->target.lock();
  TORCH_CHECK(target, describe(), ": ", entry.id.name(), " refers to '", entry.link->path,
              "', which is not connected; after clone() or torch::load call qat::nn::relink(model)");
  return target;
}

Quantizer* QuantizableLayer::output_quantizer() const {
  const Entry* entry = find({SlotId::Kind::kOutput});
  if (!entry || (entry->link && !entry->link->applies)) return nullptr;
  return dynamic_cast<Quantizer*>(resolve(*entry).get());
}

torch::Tensor QuantizableLayer::slot_input(const torch::Tensor& x, std::int64_t index) const {
  const Entry* entry = find({SlotId::Kind::kInput, index});
  if (!entry) return x;
  const auto content = resolve(*entry);
  return entry->link && !entry->link->applies ? x : content->forward(x);
}

torch::Tensor QuantizableLayer::slot_weight(const torch::Tensor& weight) const {
  const Entry* entry = find({SlotId::Kind::kWeight});
  return entry ? entry->content->forward(held(weight)) : held(weight);
}

QuantizableLayer::Parameters QuantizableLayer::slot_parameters(const torch::Tensor& weight,
                                                               const torch::Tensor& bias) const {
  const Entry* entry = bias.defined() ? find({SlotId::Kind::kBias}) : nullptr;
  if (!entry) return {slot_weight(weight), held(bias)};
  auto* bias_quantizer = dynamic_cast<BiasQuantizer*>(entry->content.get());
  if (!bias_quantizer) return {slot_weight(weight), entry->content->forward(held(bias))};

  auto* weight_quantizer = dynamic_cast<Quantizer*>(slot({SlotId::Kind::kWeight}).get());
  if (!weight_quantizer || !input_quantizer()) return {slot_weight(weight), held(bias)};
  const auto quantized = weight_quantizer->forward_with_scale(held(weight));
  const auto scale = bias_scale(quantized.scale, bias.size(0));
  return {quantized.values, naming(*this, [&] { return bias_quantizer->forward(held(bias), scale); })};
}

std::shared_ptr<Quantizer> QuantizableLayer::input_quantizer() const {
  const Entry* input = find({SlotId::Kind::kInput});
  return input ? std::dynamic_pointer_cast<Quantizer>(resolve(*input)) : nullptr;
}

torch::Tensor QuantizableLayer::bias_scale(const torch::Tensor& weight_scale, std::int64_t channels) const {
  auto scale = accumulator_scale(input_quantizer()->scale({}), weight_scale);
  // The weight of a transposed convolution has the channels of one group on its axis: each group repeats the
  // scales.
  if (scale.dim() == 1 && scale.size(0) != channels) scale = scale.repeat({channels / scale.size(0)});
  return scale;
}

torch::Tensor QuantizableLayer::bias_codes() const {
  auto* self = const_cast<QuantizableLayer*>(this);
  const torch::Tensor* bias = self->bias_parameter();
  auto* bias_quantizer = dynamic_cast<BiasQuantizer*>(slot({SlotId::Kind::kBias}).get());
  auto* weight_quantizer = dynamic_cast<Quantizer*>(slot({SlotId::Kind::kWeight}).get());
  if (!bias || !bias->defined() || !bias_quantizer || !weight_quantizer || !input_quantizer()) return {};
  const torch::NoGradGuard no_grad;
  const auto weight_scale = weight_quantizer->scale(self->weight_parameter()->detach());
  const auto scale = bias_scale(weight_scale, bias->size(0));
  return naming(*this, [&] { return bias_quantizer->codes(*bias, scale); });
}

torch::Tensor QuantizableLayer::slot_output(const torch::Tensor& y) const {
  torch::Tensor result = y;
  if (const Entry* entry = find({SlotId::Kind::kOutput})) {
    const auto content = resolve(*entry);
    if (!entry->link || entry->link->applies) result = content->forward(y);
  }
  if (!hold_ || result.requires_grad() || !torch::GradMode::is_enabled() || !result.is_floating_point())
    return result;
  const auto parameters = module().parameters(/*recurse=*/false);
  const auto trained =
      std::find_if(parameters.begin(), parameters.end(), [](const auto& p) { return p.requires_grad(); });
  return trained == parameters.end() ? result : Anchor::apply(result, *trained);
}

torch::Tensor QuantizableLayer::held(const torch::Tensor& parameter) const {
  return hold_ && parameter.defined() ? parameter.detach() : parameter;
}

void QuantizableLayer::reset_slots() {
  for (Entry& entry : entries_) {
    if (!entry.content) continue;
    entry.content = make_tensor_module(entry.content->config());
    entry.content->train(module().is_training());
    module().register_module(entry.id.name(), entry.content);
  }
}

std::string QuantizableLayer::describe_slots() const {
  std::string text;
  auto entries = entries_;
  std::sort(entries.begin(), entries.end(), kOrderOfUse);
  for (const Entry& entry : entries) {
    text +=
        ", " + short_name(entry.id) + "=" + (entry.content ? short_text(*entry.content) : entry.link->path);
  }
  return text;
}

void QuantizableLayer::print_layer(std::ostream& stream, const std::string& twin) const {
  const std::string prefix = "torch::";
  std::string text = twin.starts_with(prefix) ? "qat::" + twin.substr(prefix.size()) : twin;
  std::string slots = describe_slots();
  if (!slots.empty() && text.ends_with("()")) slots.erase(0, 2);
  stream << text.insert(text.size() - 1, slots);
}

std::vector<std::pair<std::string, QuantizableLayer*>> quantizable_layers(torch::nn::Module& model) {
  std::vector<std::pair<std::string, QuantizableLayer*>> layers;
  std::unordered_set<QuantizableLayer*> seen;
  const auto visit = [&](const std::string& path, torch::nn::Module& module) {
    auto* layer = dynamic_cast<QuantizableLayer*>(&module);
    if (!layer || !seen.insert(layer).second) return;
    layer->set_path(path);
    layers.emplace_back(path, layer);
  };
  visit("", model);
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    visit(item.key(), *item.value());
  return layers;
}

void relink(torch::nn::Module& model) {
  std::unordered_map<std::string, std::shared_ptr<TensorModule>> slots;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (auto slot = std::dynamic_pointer_cast<TensorModule>(item.value()))
      slots.emplace(item.key(), std::move(slot));
  }
  for (const auto& [path, layer] : quantizable_layers(model)) {
    for (const SlotId id : layer->linked_slots()) {
      SlotLink link = *layer->link(id);
      const auto target = slots.find(link.path);
      TORCH_CHECK(target != slots.end(), "qat::nn::relink: ", layer->describe(), " refers to '", link.path,
                  "', which is no slot of this model; pass the root module with which the slots were filled");
      link.target = target->second;
      layer->set_link(id, std::move(link));
    }
  }
}

}  // namespace qat::nn
