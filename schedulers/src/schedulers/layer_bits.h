#pragma once

#include "schedulers/placement.h"
#include "schedulers/slot_contents.h"
#include <qat/schedulers/qat_config.h>

namespace qat::detail {

/// Throws: c10::ValueError if the configuration gives a width to a layer that the model does not have, or to
/// the weight of a layer without one, naming the layers that it may name.
void check_layer_bits(const LayerMap& layers, const QATConfig& config);
/// Throws: c10::ValueError if the configuration gives a width to a weight that is not quantized, or to an
/// activation that has no quantizer in a slot of that layer: the message names the layer that has it, or all
/// that may be named.
void check_placed_bits(const Placement& placement, const QATConfig& config);

}  // namespace qat::detail
