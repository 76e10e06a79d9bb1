#pragma once

#include <qat/graph/capture.h>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <map>
#include <string>
#include <vector>

namespace qat {

struct TorchScriptOptions {
  /// Text entries stored in the file beside the code (extra files): input shape, mean, std, version.
  std::map<std::string, std::string> metadata;
};

/// Writes the model as it runs in eval mode: fake-quantizers as ATen operators with the same values, no
/// recorder operations, parameters under their module paths (state_dict keys equal the C++ names), any batch
/// size. The model is traced with the example inputs and once more with another batch size (first dimension
/// of every input); integer constants that differ are baked sizes: refused, naming the operator and the layer
/// before it. The file is written to a temporary name, read back, compared with the model on the example
/// inputs and on the other batch size (equal bits), then renamed. The model is as before afterwards. Throws:
/// c10::Error naming the file if it cannot be written; naming the difference if the file read back disagrees.
void export_torchscript(torch::nn::Module& model, const ForwardFunction& forward,
                        const std::vector<torch::Tensor>& example_inputs, const std::string& path,
                        const TorchScriptOptions& options = {});

}  // namespace qat
