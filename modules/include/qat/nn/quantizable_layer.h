#pragma once

#include <qat/graph/layer_scope.h>
#include <qat/numerics/affine.h>
#include <qat/quantizers/quantizer.h>
#include <qat/tensor_module.h>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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

/// A reference to a slot that another layer owns. Not registered: a module registered twice would be trained
/// twice.
struct SlotLink {
  std::string path;  ///< of the slot module from the root of the model: "layer1.relu.output_slot".
  bool applies =
      false;  ///< true: this layer passes the tensor through it; false: the tensor arrives quantized.
  std::weak_ptr<TensorModule> target = {};  ///< empty after clone() and torch::load until `relink(model)`.
};

/// What surgery made of a layer; by default it is as it was built.
struct LayerForm {
  bool folded = false;             ///< a BatchNorm is the identity, a convolution got a bias.
  bool scale_and_shift = false;    ///< a BatchNorm computes weight * x + bias.
  bool frozen_statistics = false;  ///< a BatchNorm normalizes by its running statistics in train mode too.
  bool operator==(const LayerForm&) const = default;
};

/// The quantization side of every qat::nn layer: a torch layer plus slots.
///
/// A slot is a child module: empty in FLOAT, a Recorder in RECORDING, a Quantizer in TRAINING. One tensor has
/// one quantizer: it lives in the `output` slot of the layer that makes the tensor, or in an `input` slot
/// where functional code or the model's input made it. Others reach it through a SlotLink.
///
/// Not thread-safe while slots change; `forward` itself changes nothing but what torch's twin changes and
/// what a recorder records.
class QuantizableLayer {
  struct Entry {
    SlotId id;
    std::shared_ptr<TensorModule> content;  ///< nullptr for a link
    std::optional<SlotLink> link;
  };

 public:
  QuantizableLayer() = default;
  /// A copy is a clone in the making: its links keep their paths and lose their targets, see `relink(model)`.
  QuantizableLayer(const QuantizableLayer& other);
  QuantizableLayer& operator=(const QuantizableLayer& other);
  virtual ~QuantizableLayer() = default;

  /// Number of data inputs (Add: 2). Layers with any number of inputs (Cat) say so by nullopt.
  virtual std::optional<std::int64_t> input_count() const { return 1; }
  /// The parameters that have slots; nullptr if the layer has none.
  virtual torch::Tensor* weight_parameter() { return nullptr; }
  virtual torch::Tensor* bias_parameter() { return nullptr; }
  /// The weight's axis of output channels: 0, and 1 for transposed convolutions.
  virtual std::int64_t weight_channel_axis() const { return 0; }
  /// Whether the layer computes with zeros around its input (a convolution with padding; padding modes that
  /// repeat values of the input are none).
  virtual bool pads_with_zeros() const { return false; }
  /// The activation that this layer computes, if a quantizer can compute it in its own pass (ReLU, ReLU6,
  /// LeakyReLU).
  virtual std::optional<Activation> fusable_activation() const { return std::nullopt; }
  /// Whether the output holds only values of the input (max pooling, flatten, dropout, identity): the input's
  /// quantizer is the output's.
  virtual bool keeps_codes() const { return false; }
  /// Whether all data inputs must share one scale (Add, Sub, Cat).
  virtual bool inputs_share_scale() const { return false; }

  /// Gives a layer without bias one (batch norm folding needs it), or overwrites the bias it has, in place.
  /// Shape: [output channels]. A new bias is a trainable parameter with the weight's type and device.
  /// Modifies: options.bias. Throws: c10::ValueError if the layer cannot have a bias or the shape differs.
  virtual void set_bias_parameter(const torch::Tensor& bias);
  virtual LayerForm form() const { return {}; }
  /// Whether folding changed the structure: which parameters there are.
  bool is_folded() const { return form().folded || form().scale_and_shift; }

  /// The module that this layer is.
  virtual torch::nn::Module& module() = 0;
  const torch::nn::Module& module() const { return const_cast<QuantizableLayer*>(this)->module(); }

  /// The slot's content; nullptr if empty.
  std::shared_ptr<TensorModule> slot(SlotId id) const;
  /// Fills a slot (nullptr empties it): registers the child module, moves it to the weight's device, gives it
  /// the layer's train mode. Throws: c10::ValueError if the layer has no such slot.
  void set_slot(SlotId id, std::shared_ptr<TensorModule> content);
  /// Replaces an input or output slot by a reference.
  void set_link(SlotId id, SlotLink link);
  const SlotLink* link(SlotId id) const;
  /// All occupied slots, and all links.
  std::vector<SlotId> occupied_slots() const;
  std::vector<SlotId> linked_slots() const;
  /// Empties all slots and links: the layer is a float layer again.
  void clear_slots();

  /// While held, the layer's own parameters get no gradient from forward (RECORDING): backward() and step()
  /// run and change nothing. Gradients that lie in the parameters from before are cleared. Inputs get their
  /// gradients as ever.
  void hold_parameters(bool hold);
  bool holds_parameters() const { return hold_; }

  /// The int32 codes of the bias at scale_x * scale_w, [C]; undefined unless bias, weight and input are
  /// quantized. Throws: c10::ValueError naming the layer if a code leaves int32.
  torch::Tensor bias_codes() const;

  /// What `load()` can replace: the modules in the slots, the links, and the tensors of weight and bias.
  class Structure {
    friend class QuantizableLayer;
    std::vector<Entry> entries;
    bool holds = false;
    LayerForm form;
    torch::Tensor weight;
    torch::Tensor bias;
  };
  Structure structure() const;
  /// Brings back the very modules and tensors that `structure()` saw, with the values that they have now.
  void set_structure(const Structure& structure);

  /// For messages: class and, once `quantizable_layers` has seen the model, path: "qat::nn::Conv2d
  /// 'features.0'".
  std::string describe() const;
  void set_path(std::string path) { path_ = std::move(path); }

 protected:
  /// Nothing to do but the float computation.
  bool is_float() const { return entries_.empty() && !hold_; }
  /// Passes data input `index` through its slot or link.
  torch::Tensor slot_input(const torch::Tensor& x, std::int64_t index = 0) const;
  /// Passes the weight through its slot; held in RECORDING.
  torch::Tensor slot_weight(const torch::Tensor& weight) const;
  /// What a layer computes with.
  struct Parameters {
    torch::Tensor weight;
    torch::Tensor bias;
  };
  /// Passes weight and bias (may be undefined) through their slots; held in RECORDING. The bias: int32 codes
  /// at scale_x * scale_w[c] if input and weight are quantized, else it stays float.
  Parameters slot_parameters(const torch::Tensor& weight, const torch::Tensor& bias) const;
  /// Passes the output through its slot or link. While parameters are held, a float layer's first output
  /// still requires a gradient, so that backward() runs.
  torch::Tensor slot_output(const torch::Tensor& y) const;
  /// The forward of a layer without parameters: input slot, `compute`, output slot. If the layer is an
  /// activation that a quantizer in the output slot can compute, both are one pass and `compute` is not
  /// called.
  template <class Function>
  torch::Tensor pass(const torch::Tensor& input, const Function& compute) const {
    const LayerScope scope(module(), {input});
    if (is_float()) return scope.output(compute(input));
    const torch::Tensor x = slot_input(input);
    const auto activation = fusable_activation();
    Quantizer* quantizer = activation && x.is_floating_point() ? output_quantizer() : nullptr;
    return scope.output(quantizer ? quantizer->forward(x, *activation) : slot_output(compute(x)));
  }
  /// The same with two data inputs.
  template <class Function>
  torch::Tensor pass(const torch::Tensor& a, const torch::Tensor& b, const Function& compute) const {
    const LayerScope scope(module(), {a, b});
    if (is_float()) return scope.output(compute(a, b));
    return scope.output(slot_output(compute(slot_input(a, 0), slot_input(b, 1))));
  }
  /// The parameter, without its gradient while parameters are held. May be undefined.
  torch::Tensor held(const torch::Tensor& parameter) const;

  /// For `reset()`: registers fresh modules in place of the occupied slots, so that clone() can fill them.
  void reset_slots();
  /// For `save()` and `load()`: which slots are occupied by what, and the links, in one text attribute
  /// "slots"; absent for a float layer, whose file is that of its torch twin. Loading creates missing slots
  /// and removes surplus ones. A slot whose content has the `config()` of the file keeps its module, and so
  /// the parameters that an optimizer knows: their values are loaded in place.
  void save_slots(torch::serialize::OutputArchive& archive) const;
  void load_slots(torch::serialize::InputArchive& archive);
  /// For `load()`: brings the layer into the saved form. Parameters that come (back) are those of `kept`
  /// where it has them, else new ones. Throws: c10::ValueError for a form that such a layer cannot have.
  virtual void set_form(const LayerForm& form, const Parameters& kept = {});
  /// For `pretty_print`: ", weight=int8 narrow per channel, output=uint8 [0, 25.5]" or "". Waits for a GPU.
  std::string describe_slots() const;
  /// Prints the text of the torch twin ("torch::nn::ReLU()") as the layer's own, with its slots.
  void print_layer(std::ostream& stream, const std::string& twin) const;

 private:
  const Entry* find(SlotId id) const;
  void erase(SlotId id);
  void check_slot_exists(SlotId id) const;
  /// The slot's content or the link's target. Throws: c10::Error if the link has none.
  std::shared_ptr<TensorModule> resolve(const Entry& entry) const;
  /// The quantizer of the first data input, its own or linked; nullptr if there is none.
  std::shared_ptr<Quantizer> input_quantizer() const;
  /// scale_x * scale_w for each of the bias's channels; the input is quantized.
  torch::Tensor bias_scale(const torch::Tensor& weight_scale, std::int64_t channels) const;
  /// The quantizer that the output passes through, if any.
  Quantizer* output_quantizer() const;

  std::vector<Entry> entries_;
  bool hold_ = false;
  std::string path_;
};

/// All layers of a model with their paths, in registration order. A layer reached by two paths stands once.
/// The layers note their paths for messages.
std::vector<std::pair<std::string, QuantizableLayer*>> quantizable_layers(torch::nn::Module& model);

/// Points every link to the module at its path. Call after `clone()` and `torch::load`, with the same root as
/// when the slots were filled; the scheduler calls it itself. Throws: c10::Error naming layer and path if
/// there is no such slot.
void relink(torch::nn::Module& model);

}  // namespace qat::nn
