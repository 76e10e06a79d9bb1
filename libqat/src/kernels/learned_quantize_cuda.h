#pragma once

#include "kernels/device_pass.h"

#include <cstdint>

namespace qat::kernels {

// Each call starts its kernels on the stream of the current GPU and returns at once; cudaGetLastError tells
// whether they could be started. Values and gradients of x have the bits of the CPU's. (The values of a
// uniform grid: see launch_forward.)

/// x -> out: values of a power-of-two grid, type of x.
void launch_power_of_two(const DevicePass& pass, const PowerOfTwoTables& tables, DeviceStream stream);

/// Float64 numbers that launch_gradient needs in `workspace` for a tensor.
std::int64_t gradient_workspace(const ChannelView& view);

/// x, dy -> out: gradient of x, type of x; and sums[k * channels + channel], float32: for scale, lower,
/// upper, or for xmin, xmax. The sums are float64 until the end, in an order that the tensor's size and
/// layout alone decide.
void launch_gradient(const DevicePass& pass, const UniformTables& tables, double* workspace, float* sums,
                     DeviceStream stream);
void launch_gradient(const DevicePass& pass, const PowerOfTwoTables& tables, double* workspace, float* sums,
                     DeviceStream stream);

}  // namespace qat::kernels
