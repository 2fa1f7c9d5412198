/* The copies between the toy's formulas and the engine's memory: the toy works on copies of what it
 * reads and writes. With TOY_CUDA the engine's memory is a GPU's: the toy copies on a stream of its
 * own and waits for that stream only, so nothing else is ordered by the toy. */
#ifndef TESTS_ENGINE_TOY_DEVICE_H
#define TESTS_ENGINE_TOY_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zero/zero.h"

/* The device that engines of this program are made for. */
zero_device toy_device(void);
/* Engines are made for the CPU from here on, or no longer: what a program for GPUs compares with.
 */
void toy_device_on_cpu(bool on_cpu);
/* The calling thread's stream, for hooks. */
zero_stream toy_stream(void);
/* With TOY_CUDA it has so many; toy_stream() is the first until it takes another one. Nothing
 * orders them. */
#define TOY_STREAMS 3
void toy_stream_take(uint32_t index);
/* All that is on the calling thread's GPU is over. */
void toy_settle(void);
/* One float of the memory that engines of this program are made for. */
float *toy_scalar_open(float value);
void toy_scalar_close(float *scalar);

/* Memory in use where engines of this program live: the process's resident memory, or a GPU's. */
uint64_t toy_device_bytes(void);

/* A copy of `bytes` bytes of the engine's memory as the host sees them after all on toy_stream() so
 * far; good until the thread's next call. */
void *toy_fetch(void *data, size_t bytes);
/* Copy what toy_fetch gave, changed, back to where it came from. */
void toy_put(void *data, const void *host, size_t bytes);

/* CUDA's double, in programs that are linked with it (toy_fake.c), else nothing: it begins anew and
 * draws what runs next from this seed; and whether it has seen no fault since then. */
void toy_double_begin(uint64_t seed);
bool toy_double_is_well(void);
extern struct toy_double {
    void (*begin)(uint64_t seed);
    bool (*is_well)(void);
} toy_double;

/* A world of `ranks` of the ranks that toy_nccl_world_run has made, on a communicator that is lent
 * under this name and given back once all have destroyed the world. (toy_nccl.c) */
zero_world *toy_nccl_join(const char *name, uint32_t ranks, uint32_t rank, void **lent);
void toy_nccl_leave(void *lent);

#endif
