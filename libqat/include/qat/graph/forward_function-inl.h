#pragma once

#include <torch/nn/pimpl.h>

#include <tuple>
#include <type_traits>
#include <utility>

namespace qat {
namespace detail {

inline std::vector<torch::Tensor> to_vector(torch::Tensor output) {
  return {std::move(output)};
}
inline std::vector<torch::Tensor> to_vector(std::vector<torch::Tensor> outputs) {
  return outputs;
}
template <class... Tensors>
std::vector<torch::Tensor> to_vector(std::tuple<Tensors...> outputs) {
  return std::apply([](auto&&... each) { return std::vector<torch::Tensor>{each...}; }, std::move(outputs));
}

template <class Module>
std::vector<torch::Tensor> call_forward(Module& module, const std::vector<torch::Tensor>& x) {
  const auto wrong_count = [&](const char* expected) {
    TORCH_CHECK_VALUE(false, "forward_function: ", module.name(), "::forward takes ", expected,
                      " tensors, got ", x.size());
  };
  if constexpr (requires { module.forward(x[0]); }) {
    if (x.size() == 1) return to_vector(module.forward(x[0]));
  }
  if constexpr (requires { module.forward(x[0], x[1]); }) {
    if (x.size() == 2) return to_vector(module.forward(x[0], x[1]));
  }
  if constexpr (requires { module.forward(x[0], x[1], x[2]); }) {
    if (x.size() == 3) return to_vector(module.forward(x[0], x[1], x[2]));
  }
  if constexpr (requires { module.forward(x); }) {
    return to_vector(module.forward(x));
  }
  wrong_count("another number of");
  return {};
}

}  // namespace detail

template <class ModulePointer>
ForwardFunction forward_function(ModulePointer model) {
  if constexpr (requires { model.ptr(); }) {
    return forward_function(model.ptr());  // a constant holder gives a constant module, a pointer does not
  } else {
    return [model](const std::vector<torch::Tensor>& x) { return detail::call_forward(*model, x); };
  }
}

}  // namespace qat
