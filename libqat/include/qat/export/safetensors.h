#pragma once

#include <torch/types.h>

#include <map>
#include <string>

namespace qat {

/// What a .safetensors file holds.
struct Safetensors {
  std::map<std::string, torch::Tensor> tensors;
  std::map<std::string, std::string> metadata;  ///< texts beside them.
};

/// Writes tensors in the safetensors format (https://github.com/huggingface/safetensors, "Format"): eight
/// bytes with the length of a JSON header, the header with name, type, shape and place of each tensor, then
/// their bytes, little-endian and row-major. Readable from Python, Rust and JavaScript. Names are sorted, the
/// header is padded to a multiple of 8 bytes. Types: float64, float32, half, bfloat16, int64, int32, int16,
/// int8, uint8, bool; any device, any strides. The file is written under a temporary name and renamed.
/// Throws: c10::ValueError naming a tensor that is undefined, sparse or of another type, or called
/// "__metadata__"; c10::Error naming the file if it cannot be written.
void save_safetensors(const std::string& path, const std::map<std::string, torch::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

/// Reads such a file; the tensors are on the CPU. Nothing in the file is trusted: c10::Error names file and
/// tensor where lengths, offsets, shapes, types or the JSON are not as the format says, or bytes overlap or
/// are left over.
Safetensors load_safetensors(const std::string& path);

}  // namespace qat
