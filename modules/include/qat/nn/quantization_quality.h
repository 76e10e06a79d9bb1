#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace qat::nn {

/// How well a quantizer represents the tensors that passed it.
struct SlotQuality {
  std::string layer;  ///< path.
  std::string slot;   ///< "weight_slot", "output_slot", ...: the one that holds the quantizer.
  std::int64_t bits = 0;
  /// Quantization signal-to-noise ratio 10 log10(sum x^2 / sum (q(x) - x)^2), in dB; infinite without any
  /// error, NaN if nothing but zeros (or nothing at all) passed. Each bit gives about 6 dB.
  double qsnr_db = 0;
  double clipped = 0;            ///< share of the elements whose rounded code lies outside the range.
  std::int64_t levels = 0;       ///< codes that there are.
  std::int64_t used_levels = 0;  ///< codes that occurred; the others are dead.
};

/// Runs `forward` once in eval mode, without gradients, and measures every quantizer in a slot on what passes
/// it (after the activation that it computes, if any). Quantizers that nothing passed stand with zeros and
/// NaN. NaN and infinite elements do not count. Changes nothing: slots, modes and gradients are as before,
/// also if forward throws. In RECORDING and FLOAT the result is empty.
std::vector<SlotQuality> measure_quantization(torch::nn::Module& model, const std::function<void()>& forward);

}  // namespace qat::nn
