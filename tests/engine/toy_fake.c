/* Puts programs of this folder on the CUDA runtime's double: how it orders what may run is drawn
 * anew for every test, and a test that leaves a fault behind has failed. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fake_cuda.h"
#include "toy.h"

static void check_faults(void)
{
    if (!fake_cuda_check()) {
        fflush(NULL);
        _exit(1);
    }
}

static void begin_random(uint64_t seed)
{
    fake_cuda_start(FAKE_CUDA_RANDOM, seed);
}

__attribute__((constructor)) static void start(void)
{
    const char *mode = getenv("FAKE_CUDA_MODE");
    const char *seed = getenv("FAKE_CUDA_SEED");
    const uint64_t usual =
        getenv("TEST_LONG") != NULL ? 1 : 2; /* 1 guards memory, and takes longer */
    fake_cuda_start(mode != NULL ? (fake_cuda_mode)atoi(mode) : FAKE_CUDA_AT_SYNC,
                    seed != NULL ? strtoull(seed, NULL, 10) : usual);
    (void)atexit(check_faults);
    toy_samples_ways = true;
    toy_double = (struct toy_double){begin_random, fake_cuda_check};
}
