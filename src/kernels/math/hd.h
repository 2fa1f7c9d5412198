/* What lets one header serve C and CUDA. */
#ifndef ZI_KERNELS_MATH_HD_H
#define ZI_KERNELS_MATH_HD_H

#if defined(__CUDACC__)
#define ZI_HD static inline __host__ __device__
#else
#define ZI_HD static inline
#endif

#endif
