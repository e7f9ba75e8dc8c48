// OURO_HD: marks what runs on host and device alike. Used by runtime/flow and kernels/arith.
#pragma once
#if defined(__CUDACC__)
#define OURO_HD __host__ __device__ __forceinline__
#else
#define OURO_HD inline
#endif
