#pragma once

#include "schedulers/placement.h"
#include "schedulers/slot_contents.h"
#include <qat/schedulers/qat_config.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace qat::detail {

/// Whether a module path fits a pattern, in which `*` stands for any text; a pattern without `*` is a path.
bool fits_pattern(std::string_view pattern, std::string_view path);

/// What a configuration says of one layer, patterns resolved. Widths are those in effect: 1 for binary
/// weights, 2 for ternary ones.
const std::string& weight_family(const QATConfig& config, const std::string& path);
const std::string& activation_family(const QATConfig& config, const std::string& path);
std::int64_t weight_bits(const QATConfig& config, const std::string& path);
/// `otherwise`: for layers without a setting of their own.
std::int64_t activation_bits(const QATConfig& config, const std::string& path, std::int64_t otherwise);
bool is_skipped(const QATConfig& config, const std::string& path);

/// Whether any weight or activation may have parameters that learn.
bool has_learned_parameters(const QATConfig& config);

/// Throws: c10::ValueError if a setting names a layer that the model does not have, or the weight of a layer
/// without one, naming the layers that it may name; if a pattern fits none; if the family of a weight cannot
/// have the width that it would get.
void check_layer_settings(const LayerMap& layers, const QATConfig& config);
/// Throws: c10::ValueError if a setting names (by its path) a weight that is not quantized, or an activation
/// that has no quantizer in a slot of that layer: the message names the layer that has it, or all that may be
/// named; if input_scale is given, but no input of the model has a quantizer of its own.
void check_placed_settings(const Placement& placement, const QATConfig& config);

}  // namespace qat::detail
