#pragma once

#include <qat/graph/graph.h>
#include <qat/nn/quantizable_layer.h>
#include <qat/schedulers/qat_config.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace qat::detail {

/// What the placement needs to know of a qat::nn layer.
struct LayerTraits {
  bool keeps_codes = false;  ///< its output holds values of its input: pooling by maximum, flatten, identity.
  bool inputs_share_scale = false;  ///< Add, Sub, Cat.
  bool joins = false;               ///< its output holds the codes of all its inputs: Cat.
  bool is_activation = false;       ///< a quantizer can compute it in its own pass.
  bool scales_and_shifts = false;   ///< a BatchNorm folded into itself: a multiply-add for each channel.
  bool has_weight = false;
  bool has_bias = false;
};

/// The traits of all layers of a model, by module path.
std::map<std::string, LayerTraits> layer_traits(torch::nn::Module& model);

/// A slot, by the path of its layer.
struct PlacedSlot {
  std::string layer;
  nn::SlotId id;
  bool operator==(const PlacedSlot&) const = default;
};

/// A slot that refers to another one's content.
struct PlacedLink {
  PlacedSlot from;
  PlacedSlot to;
  bool applies =
      false;  ///< the layer passes the tensor through the other's quantizer; else it arrives quantized.
  bool operator==(const PlacedLink&) const = default;
};

/// Activations that share one scale, by the slots at which they are recorded, so that their joint range is
/// known. The first slot owns the quantizer later, the others link to it.
struct ScaleGroup {
  std::vector<PlacedSlot> slots;
  std::int64_t bits = 8;  ///< as configured: the width, or the most where it learns.
  std::vector<PlacedSlot> joined =
      {};                       ///< outputs of Cat: they hold the codes of `slots`, without a quantizer.
  bool never_negative = false;  ///< the graph shows it: all are made by ReLU, ReLU6 or Sigmoid.
  bool is_model_input = false;  ///< all are inputs of the model, or views of them.
  std::string family = "affine";

  const PlacedSlot& owner() const { return slots.front(); }
};

/// Which slot of which layer gets what.
struct Placement {
  std::vector<ScaleGroup> activations;  ///< most have one member.
  std::vector<PlacedSlot> weights;
  std::vector<PlacedSlot> biases;
  std::vector<PlacedLink> links;  ///< of the readers that are in no group.
};

/// Decides what is quantized where. Linear in the size of the graph.
///
/// A layer is quantized if record_layers names its class (or is empty) and it is not skipped (skip_layers
/// too); then its weight, its bias and each tensor that it reads are. A BatchNorm is only where it scales and
/// shifts; its scale and shift never are: they are part of what rescales its output. One tensor has one
/// quantizer (but see below): in the output slot of the layer that made it (looked for through nodes that
/// keep codes), or, for the model's inputs and the results of functional code, in the input slot of its first
/// reader. Not quantized: a layer's output that goes nowhere but into a fusable activation (the activation's
/// output is, if a quantized layer reads it), integer tensors, what no quantized layer reads (unless
/// recorder_position says so), the model's outputs for their own sake. Operands of Add, Sub and Cat share one
/// scale, transitively; Cat's output has it too. Operands of Add and Sub are as wide as residual_bits says;
/// layers with a weight that would read fewer bits narrow such a tensor, by a quantizer in the input slot of
/// the first of them. Skipped: a layer of a class in skip_inputs_layers with no layer of such a class
/// upstream, correspondingly outputs.
///
/// `traits`: the model's layers; a layer node that is not there (and each functional operation) has no slots.
/// `folded`: paths of BatchNorms that are or will be the identity.
/// Throws: c10::Error naming a layer that is called more than once and would need a slot; if no layer is
/// quantized.
Placement place_quantizers(const Graph& graph, const std::map<std::string, LayerTraits>& traits,
                           const QATConfig& config, const std::set<std::string>& folded = {});

/// The class name that configurations use: "qat::nn::Conv2d" (or "Conv2dImpl") -> "Conv2d".
std::string class_name(const std::string& type);

}  // namespace qat::detail
