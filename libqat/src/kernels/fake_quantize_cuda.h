#pragma once

#include "kernels/device_pass.h"

#include <cstdint>

namespace qat::kernels {

// Each call starts one kernel on the stream of the current GPU and returns at once; cudaGetLastError tells
// whether it could be started. Bits are those of run_fake_quantize.

/// x -> out: real values, type of x. Also those of a uniform grid.
void launch_forward(const DevicePass& pass, const AffineTables& tables, DeviceStream stream);

/// x -> out: int32 codes; *has_nan, an int32 in the GPU's memory, becomes 1 if x holds a NaN, which gets the
/// code 0.
void launch_codes(const DevicePass& pass, const AffineTables& tables, std::int32_t* has_nan,
                  DeviceStream stream);

/// x, dy -> out: gradient of x, type of x. `clipped`: it passes only where the code before clamping lies in
/// [low, high].
void launch_backward(const DevicePass& pass, const AffineTables& tables, bool clipped, DeviceStream stream);

}  // namespace qat::kernels
