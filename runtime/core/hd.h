// OURO_HD: marks functions that run on host and device. Used by kernels and by the traits of collectives.
#pragma once
#if defined(__CUDACC__)
#define OURO_HD __host__ __device__ __forceinline__
#else
#define OURO_HD inline
#endif
