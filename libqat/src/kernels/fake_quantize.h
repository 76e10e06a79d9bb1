#pragma once

#include "kernels/channel_view.h"
#include "kernels/element_type.h"
#include "kernels/instruction_set.h"
#include <qat/numerics/affine.h>

#include <cstdint>

namespace qat::kernels {

enum class FakeQuantizeTask : std::int8_t {
  kForward,         ///< x -> out: real values, type of x.
  kForwardMask,     ///< x -> out, mask: the same, and where the gradient will pass. Not if is_leaky.
  kBackward,        ///< x, dy -> out: gradient of x, type of x.
  kBackwardOfMask,  ///< mask, dy -> out: the same from the mask, which takes a quarter of the memory of x.
  kCodes,           ///< x -> out: int32 codes.
};

/// One fused pass over a dense tensor. `T` is the type of the arithmetic: double for kDouble, else float.
/// Activations with slope 0 (ReLU, ReLU6) cost nothing: rounding is monotonic, so they only narrow the codes
/// to [low, high], and the gradient passes for slope_from < x <= slope_to.
template <class T>
struct FakeQuantizeJob {
  FakeQuantizeTask task = FakeQuantizeTask::kForward;
  ElementType element = ElementType::kFloat;
  Rounding rounding = Rounding::kHalfToEven;
  bool clipped = true;  ///< the gradient passes only where the code before clamping lies in [qmin, qmax].
  ChannelView view;
  const T* scale = nullptr;       ///< one for each channel of the view.
  const T* zero_point = nullptr;  ///< integers, one for each channel.
  const T* low = nullptr;         ///< the lowest and highest code in use, one for each channel.
  const T* high = nullptr;
  T qmin = 0;
  T qmax = 0;
  bool is_leaky =
      false;  ///< the activation needs arithmetic: negative_slope and upper are used, else the three below.
  T negative_slope = 1;
  T upper = 0;
  T slope_from = 0;
  T slope_to = 0;
  const void* x = nullptr;
  const void* dy = nullptr;
  void* out = nullptr;
  std::uint8_t* mask = nullptr;  ///< one byte an element, 0 or 1, in the order of x.
};

/// Does the elements [begin, end). Returns whether a NaN was met (kCodes only; its code is unspecified).
/// Elements are independent: the bits do not depend on how the tensor is cut, nor on the instruction set.
bool run_fake_quantize(const FakeQuantizeJob<float>& job, std::int64_t begin, std::int64_t end,
                       InstructionSet set);
bool run_fake_quantize(const FakeQuantizeJob<double>& job, std::int64_t begin, std::int64_t end,
                       InstructionSet set);

}  // namespace qat::kernels
