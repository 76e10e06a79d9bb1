#pragma once

/// Marks a function that the CPU loops and the CUDA kernels both compile. The only macro of the project: a
/// language extension cannot be spelled otherwise.
#if defined(__CUDACC__)
#define QAT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define QAT_HOST_DEVICE inline
#endif
