#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace qat::nn {

struct LoadFloatOptions {
  /// Loads what matches and reports the rest; false: any difference is refused. No match at all is refused
  /// too.
  bool allow_partial = false;
  /// What names in the file begin with and the model's do not, such as "module."; names without it stay as
  /// they are.
  std::string remove_prefix = {};
};

/// What became of the tensors of a file and of a model, by name.
struct LoadFloatReport {
  struct Difference {
    std::string name;
    std::vector<std::int64_t> in_file;  ///< shape.
    std::vector<std::int64_t> in_model;
  };
  std::vector<std::string> loaded;
  std::vector<std::string> only_in_file;
  std::vector<std::string> only_in_model;
  std::vector<Difference> other_shape;

  bool is_complete() const { return only_in_file.empty() && only_in_model.empty() && other_shape.empty(); }
  /// A line for each kind: "loaded 4: conv.weight, ...".
  std::string to_text() const;
};

/// Loads the parameters and buffers of a float network into a model of torch and qat::nn layers, by name:
/// "conv1.weight", "bn.running_mean". The file is recognized by what it holds:
/// * what torch::save(module, path) or torch::jit::save wrote in C++, torch.jit.save in Python;
/// * what torch.save(dict(model.state_dict()), path) wrote in Python (a plain dictionary: LibTorch cannot
/// read others);
/// * safetensors.
/// Slots are no part of it: names in them are ignored on both sides, and stay as they are in a quantized
/// model. Values are converted to the type and device of the model's tensors, which stay the same tensors. A
/// file may lack `num_batches_tracked`. All or nothing: on any error the model is as it was. Throws:
/// c10::Error naming the file if it cannot be read or is of none of these kinds; c10::ValueError listing all
/// differences if there are any (unless `allow_partial`), or if nothing matches.
LoadFloatReport load_float(const std::string& path, torch::nn::Module& model,
                           const LoadFloatOptions& options = {});

}  // namespace qat::nn
