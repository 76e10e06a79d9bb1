#pragma once

#include <torch/nn/module.h>

#include <iosfwd>

namespace qat::detail {

/// ", d=0.25, xmax=[0.5 to 2]": the module's own parameters, those of several channels by their extremes.
void print_parameters(std::ostream& stream, const torch::nn::Module& module);

}  // namespace qat::detail
