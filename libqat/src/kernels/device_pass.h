#pragma once

#include "kernels/channel_view.h"
#include "kernels/element_type.h"
#include <qat/numerics/rounding.h>

#include <cmath>
#include <cstdint>

struct CUstream_st;

namespace qat::kernels {

/// The stream of a GPU on which a kernel runs: cudaStream_t.
using DeviceStream = CUstream_st*;

/// One pass over a dense tensor on a GPU. All pointers, also those of the tables below, point into the GPU's
/// memory; their numbers are not checked, for that would wait for the GPU. The arithmetic is double for
/// kDouble, else float.
struct DevicePass {
  ElementType element = ElementType::kFloat;
  ChannelView view;
  double negative_slope = 1.0;  ///< see qat::Activation.
  double upper = HUGE_VAL;
  const void* x = nullptr;
  const void* dy = nullptr;
  void* out = nullptr;
};

/// The codes of each channel: real = scale * (code - zero_point), code in [low, high].
struct AffineTables {
  const float* scale = nullptr;
  const std::int32_t* zero_point = nullptr;
  const std::int32_t* low = nullptr;  ///< nullptr: qmin for all channels.
  const std::int32_t* high = nullptr;
  std::int32_t qmin = 0;
  std::int32_t qmax = 0;
  Rounding rounding = Rounding::kHalfToEven;
};

/// A uniform grid with ends that learn; see UniformCell.
struct UniformTables {
  AffineTables codes;
  const float* lower = nullptr;
  const float* upper = nullptr;
};

/// A power-of-two grid; see PowerOfTwoCell.
struct PowerOfTwoTables {
  const float* xmin = nullptr;
  const float* xmax = nullptr;
  bool is_signed = true;
  bool with_zero = true;
};

}  // namespace qat::kernels
