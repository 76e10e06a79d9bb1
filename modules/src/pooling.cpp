#include <qat/nn/pooling.h>

#include <torch/nn/functional/pooling.h>

namespace qat::nn {

namespace F = torch::nn::functional;

torch::Tensor MaxPool1dImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) {
    return F::detail::max_pool1d(x, options.kernel_size(), options.stride(), options.padding(),
                                 options.dilation(), options.ceil_mode());
  });
}

std::tuple<torch::Tensor, torch::Tensor> MaxPool1dImpl::forward_with_indices(const torch::Tensor& input) {
  torch::Tensor indices;
  auto values = pass(input, [&](const torch::Tensor& x) {
    auto result =
        F::detail::max_pool1d_with_indices(x, options.kernel_size(), options.stride(), options.padding(),
                                           options.dilation(), options.ceil_mode());
    indices = std::get<1>(result);
    return std::get<0>(result);
  });
  return {std::move(values), std::move(indices)};
}

torch::Tensor MaxPool2dImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) {
    return F::detail::max_pool2d(x, options.kernel_size(), options.stride(), options.padding(),
                                 options.dilation(), options.ceil_mode());
  });
}

std::tuple<torch::Tensor, torch::Tensor> MaxPool2dImpl::forward_with_indices(const torch::Tensor& input) {
  torch::Tensor indices;
  auto values = pass(input, [&](const torch::Tensor& x) {
    auto result =
        F::detail::max_pool2d_with_indices(x, options.kernel_size(), options.stride(), options.padding(),
                                           options.dilation(), options.ceil_mode());
    indices = std::get<1>(result);
    return std::get<0>(result);
  });
  return {std::move(values), std::move(indices)};
}

torch::Tensor MaxPool3dImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) {
    return F::detail::max_pool3d(x, options.kernel_size(), options.stride(), options.padding(),
                                 options.dilation(), options.ceil_mode());
  });
}

std::tuple<torch::Tensor, torch::Tensor> MaxPool3dImpl::forward_with_indices(const torch::Tensor& input) {
  torch::Tensor indices;
  auto values = pass(input, [&](const torch::Tensor& x) {
    auto result =
        F::detail::max_pool3d_with_indices(x, options.kernel_size(), options.stride(), options.padding(),
                                           options.dilation(), options.ceil_mode());
    indices = std::get<1>(result);
    return std::get<0>(result);
  });
  return {std::move(values), std::move(indices)};
}

torch::Tensor AdaptiveMaxPool1dImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) {
    return F::detail::adaptive_max_pool1d(x, options.output_size());
  });
}

std::tuple<torch::Tensor, torch::Tensor> AdaptiveMaxPool1dImpl::forward_with_indices(
    const torch::Tensor& input) {
  torch::Tensor indices;
  auto values = pass(input, [&](const torch::Tensor& x) {
    auto result = F::detail::adaptive_max_pool1d_with_indices(x, options.output_size());
    indices = std::get<1>(result);
    return std::get<0>(result);
  });
  return {std::move(values), std::move(indices)};
}

torch::Tensor AdaptiveMaxPool2dImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) {
    return F::detail::adaptive_max_pool2d(x, options.output_size());
  });
}

std::tuple<torch::Tensor, torch::Tensor> AdaptiveMaxPool2dImpl::forward_with_indices(
    const torch::Tensor& input) {
  torch::Tensor indices;
  auto values = pass(input, [&](const torch::Tensor& x) {
    auto result = F::detail::adaptive_max_pool2d_with_indices(x, options.output_size());
    indices = std::get<1>(result);
    return std::get<0>(result);
  });
  return {std::move(values), std::move(indices)};
}

torch::Tensor AdaptiveMaxPool3dImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) {
    return F::detail::adaptive_max_pool3d(x, options.output_size());
  });
}

std::tuple<torch::Tensor, torch::Tensor> AdaptiveMaxPool3dImpl::forward_with_indices(
    const torch::Tensor& input) {
  torch::Tensor indices;
  auto values = pass(input, [&](const torch::Tensor& x) {
    auto result = F::detail::adaptive_max_pool3d_with_indices(x, options.output_size());
    indices = std::get<1>(result);
    return std::get<0>(result);
  });
  return {std::move(values), std::move(indices)};
}

torch::Tensor AvgPool1dImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) {
    return F::detail::avg_pool1d(x, options.kernel_size(), options.stride(), options.padding(),
                                 options.ceil_mode(), options.count_include_pad());
  });
}

torch::Tensor AvgPool2dImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) {
    return F::detail::avg_pool2d(x, options.kernel_size(), options.stride(), options.padding(),
                                 options.ceil_mode(), options.count_include_pad(),
                                 options.divisor_override());
  });
}

torch::Tensor AvgPool3dImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) {
    return F::detail::avg_pool3d(x, options.kernel_size(), options.stride(), options.padding(),
                                 options.ceil_mode(), options.count_include_pad(),
                                 options.divisor_override());
  });
}

torch::Tensor AdaptiveAvgPool1dImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) {
    return F::detail::adaptive_avg_pool1d(x, options.output_size());
  });
}

torch::Tensor AdaptiveAvgPool2dImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) {
    return F::detail::adaptive_avg_pool2d(x, options.output_size());
  });
}

torch::Tensor AdaptiveAvgPool3dImpl::forward(const torch::Tensor& input) {
  return pass(input, [&](const torch::Tensor& x) {
    return F::detail::adaptive_avg_pool3d(x, options.output_size());
  });
}

}  // namespace qat::nn
