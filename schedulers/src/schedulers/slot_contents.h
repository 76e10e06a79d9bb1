#pragma once

#include "schedulers/placement.h"
#include <qat/nn/quantizable_layer.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/recorders/recorder.h>
#include <qat/schedulers/qat_config.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace qat::detail {

/// The layers of a model by path.
using LayerMap = std::map<std::string, nn::QuantizableLayer*>;
LayerMap layer_map(torch::nn::Module& model);

/// Whether a group is the model's inputs and input_scale says what their codes are.
bool has_given_scale(const ScaleGroup& group, const QATConfig& config);

/// Puts a recorder into each slot of the placement (biases have none), and a quantizer into the slot that
/// owns a given scale.
void fill_with_recorders(const Placement& placement, const LayerMap& layers, const QATConfig& config);

/// Makes the slot that holds a quantizer the owner of its scale group: one that was set by hand is kept,
/// wherever in the group it is. Throws: c10::ValueError if slots of one group hold two of them.
void let_set_quantizers_own(Placement& placement, const LayerMap& layers);

/// Replaces the recorders by quantizers of their ranges, sets links, quantizes biases. A scale group gets the
/// joint range of its members. Throws: c10::Error naming all slots that recorded nothing; c10::ValueError
/// naming a slot whose data is negative, where unsigned codes without zero point are asked for; nothing is
/// changed then.
void fill_with_quantizers(const Placement& placement, const LayerMap& layers, const QATConfig& config);

/// "features.0.weight_slot".
std::string slot_path(const PlacedSlot& slot);

}  // namespace qat::detail
