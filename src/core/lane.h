/* How lane functions are declared: pure functions of one element or one value that C kernels and
 * CUDA kernels compile from the same header, so that both give the same bits. A header of lane
 * functions keeps to what C11 and C++17 share, and to operations that IEEE 754 rounds correctly. */
#ifndef ZI_CORE_LANE_H
#define ZI_CORE_LANE_H

#if defined(__CUDACC__)
#define ZI_LANE static __forceinline__ __host__ __device__
#else
#define ZI_LANE static inline
#endif

#endif
