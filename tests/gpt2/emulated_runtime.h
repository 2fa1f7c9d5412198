/* The calls that a test can have the double of the CUDA runtime and of cuBLASLt refuse. Set while
 * no other thread calls it. */
#ifndef TESTS_GPT2_EMULATED_RUNTIME_H
#define TESTS_GPT2_EMULATED_RUNTIME_H

#include <stdbool.h>
#include <stdint.h>

/* cublasLtEpilogue_t has a bit in its values for each thing that is done. */
typedef struct emulated_limits {
    uint32_t no_epilogue[3]; /* cublasLtEpilogue_t that there are no algorithms for; 0: none */
    uint32_t malloc;         /* the cudaMalloc, counted from 1, with which memory ends; 0: never */
} emulated_limits;
extern emulated_limits emulated_limit;

#endif
