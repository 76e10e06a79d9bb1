#pragma once

#include <qat/graph/capture.h>

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace qat::apps {

/// A classifier for small images, with float weights drawn from LibTorch's generator.
struct Model {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  /// Takes one tensor, images `[N, channels, height, width]`; gives one, logits `[N, classes]`.
  ForwardFunction forward;

  /// The logits of a batch of images.
  torch::Tensor operator()(const torch::Tensor& images) const { return forward({images})[0]; }
};

/// The names that `make_model` knows.
///
/// * mlp: three linear layers, 256 and 128 hidden units.
/// * lenet: two 5x5 convolutions, three linear layers.
/// * cnn: three 3x3 convolutions (32, 64, 64 channels) with BatchNorm, one linear layer.
/// * resnet8, resnet20: residual networks of 16, 32, 64 channels with one or three blocks each.
/// * mobilenet: depthwise and pointwise convolutions with ReLU6.
const std::vector<std::string>& model_names();

/// Builds a model of qat::nn layers for images of `sample_shape` (channels, height, width).
///
/// Throws: c10::ValueError for an unknown name (listing the names), for a shape that is not three positive
/// numbers, for images too small for the model (each side at least 12), and for fewer than two classes.
Model make_model(std::string_view name, const std::vector<std::int64_t>& sample_shape, std::int64_t classes);

}  // namespace qat::apps
