#pragma once

#include "kernels/element_type.h"
#include "kernels/half.h"

namespace qat::kernels {

/// Calls function(E()) with the type of the elements.
template <class Function>
void with_element(ElementType element, const Function& function) {
  switch (element) {
    case ElementType::kFloat:
      return function(0.0F);
    case ElementType::kDouble:
      return function(0.0);
    case ElementType::kHalf:
      return function(Half{});
    case ElementType::kBFloat16:
      return function(BFloat16{});
  }
}

}  // namespace qat::kernels
