// OURO_HD: marks functions that run on host and device. OURO_ROLLED: keeps a loop over steps a loop, because
// each copy of a step's call costs time to compile and saves none. Used by kernels, flows and the traits
// of collectives.
#pragma once
#if defined(__CUDACC__)
#define OURO_HD __host__ __device__ __forceinline__
#else
#define OURO_HD inline
#endif
#if defined(__CUDA_ARCH__)
#define OURO_ROLLED _Pragma("unroll 1")
#else
#define OURO_ROLLED
#endif
