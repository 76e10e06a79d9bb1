#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "support/run_config.h"

namespace qat {
struct QATConfig;
}
namespace torch::nn {
class Module;
}

/// The part of a RunConfig that speaks of quantizers.
namespace qat::apps {

/// The families that can quantize weights and activations: what --quantizer takes.
std::vector<std::string> families_of_both();
/// For a family that the setting `key` does not take but another one does, what to do: "dorefa quantizes
/// weights only; use --weight-quantizer dorefa". "" for everything else.
std::string family_advice(std::string_view key, std::string_view family);

/// The families in effect: those of one side, where they are given, else --quantizer.
const std::string& weight_family(const RunConfig& config);
const std::string& activation_family(const RunConfig& config);
/// "weights 4, activations 8 bits"; "up to 4" where a width learns.
std::string widths_text(const RunConfig& config);
/// The same with the families: "weights lsq 4, activations pact 8 bits".
std::string quantizers_text(const RunConfig& config);

/// Throws: UsageError for widths and budgets that the families cannot have, naming the options.
void check_quantization(const RunConfig& config);
/// Throws: UsageError if --layer-weight-bits names a path without a weight in the model, listing those with
/// one.
void check_layer_paths(const RunConfig& config, torch::nn::Module& model);

/// The configuration of the scheduler. Throws: UsageError, as `naming_options`, for what it refuses.
QATConfig scheduler_config(const RunConfig& config);
/// Runs `work`, which builds or checks a scheduler. Throws: UsageError, naming options instead of fields of
/// QATConfig, if the scheduler refuses its configuration.
void naming_options(const std::function<void()>& work);

}  // namespace qat::apps
