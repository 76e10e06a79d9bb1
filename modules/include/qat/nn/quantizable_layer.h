#pragma once

#include <qat/graph/layer_scope.h>
#include <qat/numerics/affine.h>
#include <qat/quantizers/quantizer.h>
#include <qat/tensor_module.h>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace qat::nn {

/// Names one slot of a layer.
struct SlotId {
  enum class Kind : std::int8_t { kInput, kWeight, kBias, kOutput };
  Kind kind = Kind::kOutput;
  std::int64_t index = 0;  ///< which data input, for kInput; else 0.

  /// The name of the child module: "input_slot", "input_slot_1", "weight_slot", "bias_slot", "output_slot".
  std::string name() const;
  bool operator==(const SlotId&) const = default;
};

/// A reference to a slot that another layer owns. Not registered: a module registered twice would be trained twice.
struct SlotLink {
  std::string path;  ///< of the slot module from the root of the model: "layer1.relu.output_slot".
  bool applies = false;  ///< true: this layer passes the tensor through it; false: the tensor arrives quantized.
  std::weak_ptr<TensorModule> target;  ///< empty after clone() and torch::load until `relink(model)`.
};

/// The quantization side of every qat::nn layer: a torch layer plus slots.
///
/// A slot is a child module: empty in FLOAT, a Recorder in RECORDING, a Quantizer in TRAINING. One tensor has one
/// quantizer: it lives in the `output` slot of the layer that makes the tensor, or in an `input` slot where functional code or
/// the model's input made it. Others reach it through a SlotLink.
class QuantizableLayer {
 public:
  virtual ~QuantizableLayer() = default;

  /// Number of data inputs (Add: 2). Layers with any number of inputs (Cat) say so by nullopt.
  virtual std::optional<std::int64_t> input_count() const { return 1; }
  /// The parameters that have slots; nullptr if the layer has none.
  virtual torch::Tensor* weight_parameter() { return nullptr; }
  virtual torch::Tensor* bias_parameter() { return nullptr; }
  /// The weight's axis of output channels: 0, and 1 for transposed convolutions.
  virtual std::int64_t weight_channel_axis() const { return 0; }
  /// The activation that this layer computes, if a quantizer can compute it in its own pass (ReLU, ReLU6, LeakyReLU).
  virtual std::optional<Activation> fusable_activation() const { return std::nullopt; }
  /// Whether the output holds only values of the input (max pooling, flatten, dropout, identity): the input's quantizer
  /// is the output's.
  virtual bool keeps_codes() const { return false; }
  /// Whether all data inputs must share one scale (Add, Sub, Cat).
  virtual bool inputs_share_scale() const { return false; }

  /// The module that this layer is.
  virtual torch::nn::Module& module() = 0;
  const torch::nn::Module& module() const { return const_cast<QuantizableLayer*>(this)->module(); }

  /// The slot's content; nullptr if empty.
  std::shared_ptr<TensorModule> slot(SlotId id) const;
  /// Fills a slot (nullptr empties it): registers the child module, moves it to the weight's device, gives it the layer's train mode.
  /// Throws: c10::ValueError if the layer has no such slot.
  void set_slot(SlotId id, std::shared_ptr<TensorModule> content);
  /// Replaces an input or output slot by a reference.
  void set_link(SlotId id, SlotLink link);
  const SlotLink* link(SlotId id) const;
  /// All occupied slots, and all links.
  std::vector<SlotId> occupied_slots() const;
  std::vector<SlotId> linked_slots() const;
  /// Empties all slots and links: the layer is a float layer again.
  void clear_slots();

  /// While held, weight and bias get no gradient from forward (RECORDING): backward() and step() run and change nothing.
  void hold_parameters(bool hold) { hold_ = hold; }
  bool holds_parameters() const { return hold_; }

 protected:
  /// Nothing to do but the float computation.
  bool is_float() const { return !active_; }
  /// Passes data input `index` through its slot or link.
  torch::Tensor slot_input(const torch::Tensor& x, std::int64_t index = 0);
  /// Passes the weight through its slot; held in RECORDING.
  torch::Tensor slot_weight(const torch::Tensor& weight);
  /// Passes the bias through its slot: int32 codes at scale_x * scale_w[c] when input and weight are quantized. `weight` is the unquantized
  /// weight.
  torch::Tensor slot_bias(const torch::Tensor& bias, const torch::Tensor& weight);
  /// Passes the output through its slot or link.
  torch::Tensor slot_output(const torch::Tensor& y);
  /// The same for a layer that is an activation: fuses it with the quantizer; `plain` computes the activation alone.
  template <class Function>
  torch::Tensor slot_activation(const torch::Tensor& x, Function&& plain);

  /// For `reset()`: registers fresh modules in place of the occupied slots, so that clone() can fill them.
  void reset_slots();
  /// For `save()` and `load()`: which slots are occupied by what, and the links, in one text attribute "slots".
  void save_slots(torch::serialize::OutputArchive& archive) const;
  void load_slots(torch::serialize::InputArchive& archive);
  /// For `pretty_print`: ", weight=int8 per channel, output=uint8" or "".
  std::string describe_slots() const;

 private:
  struct Entry {
    SlotId id;
    std::shared_ptr<TensorModule> content;
    std::optional<SlotLink> link;
  };
  std::vector<Entry> entries_;
  bool active_ = false;
  bool hold_ = false;
};

/// All layers of a model with their paths, in registration order. A layer reached by two paths stands once.
std::vector<std::pair<std::string, QuantizableLayer*>> quantizable_layers(torch::nn::Module& model);

/// Points every link to the module at its path. Call after `clone()` and `torch::load`, with the same root as when the
/// slots were filled; the scheduler calls it itself.
/// Throws: c10::Error naming layer and path if there is no such slot.
void relink(torch::nn::Module& model);

}  // namespace qat::nn
