#include "quantizers/print_parameters.h"

#include <torch/types.h>

#include <ostream>

namespace qat::detail {

void print_parameters(std::ostream& stream, const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters()) {
    const auto& v = parameter.value();
    stream << ", " << parameter.key() << "=";
    if (v.dim() == 0) {
      stream << v.item<float>();
    } else {
      stream << "[" << v.min().item<float>() << " to " << v.max().item<float>() << "]";
    }
  }
}

}  // namespace qat::detail
