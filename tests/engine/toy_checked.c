/* Puts engines of programs of this folder on a checked device (tests/fake): the CPU's, or with
 * CHECKED_OWN_MEMORY in the environment one whose memory is not the host's, so that the engine
 * moves everything as to and from a GPU. The toy's stream is one of the caller's own, what it reads
 * and writes is checked too, and a program that leaves a fault behind has failed. The linker hands
 * the functions below that are wrapped to this file (--wrap). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "checked_device.h"
#include "comm/world.h"
#include "engine/backend.h"
#include "toy.h"

#define OWN_MEMORY (getenv("CHECKED_OWN_MEMORY") != NULL)

static zero_status create_device(void *self, zi_device *device)
{
    (void)self;
    TOY_TRY(zi_cpu_device_create(device));
    checked_device(device, OWN_MEMORY);
    return ZERO_OK;
}

static zero_status create_kernels(void *self, const zi_device *device, zi_pool *pool,
                                  zi_kernels *kernels)
{
    (void)self;
    TOY_TRY(zi_cpu_kernels_create(checked_device_inner(device), pool, kernels));
    checked_kernels(kernels, device);
    return ZERO_OK;
}

static zero_status create_host_kernels(void *self, const zi_device *device, zi_pool *pool,
                                       zi_kernels *kernels)
{
    (void)self;
    TOY_TRY(zi_cpu_kernels_create(device, pool, kernels));
    checked_kernels(kernels, NULL);
    return ZERO_OK;
}

extern __typeof__(zero_engine_create) __wrap_zero_engine_create;

zero_status __wrap_zero_engine_create(zero_world *world, const zero_model *model,
                                      const zero_engine_options *options, zero_engine **engine)
{
    const zi_backend backend = {.can = {.host_memory = !OWN_MEMORY},
                                .device_create = create_device,
                                .kernels_create = create_kernels,
                                .host_kernels_create = create_host_kernels,
                                .transport = &zi_world_transport,
                                .mesh_transport = &zi_world_transport};
    if (world != NULL) {
        checked_comm(world->comm);
    }
    return zi_engine_create_with(world, model, options, &backend, engine);
}

/* ---- the caller's stream: one of each thread, destroyed with it ---- */

static pthread_key_t stream_key;

static void close_stream(void *native)
{
    checked_caller_close((zero_stream){.native = native});
}

extern __typeof__(toy_stream) __real_toy_stream, __wrap_toy_stream;
extern __typeof__(toy_fetch) __real_toy_fetch, __wrap_toy_fetch;
extern __typeof__(toy_put) __real_toy_put, __wrap_toy_put;

zero_stream __wrap_toy_stream(void)
{
    void *native = pthread_getspecific(stream_key);
    if (native == NULL) {
        native = checked_caller_open().native;
        TOY_CHECK(pthread_setspecific(stream_key, native) == 0, "no memory");
    }
    return (zero_stream){.native = native};
}

/* A kernel that only reads, or only writes, and that the host waits for. */
static zero_status run_nothing(void *argument)
{
    (void)argument;
    return ZERO_OK;
}

static void use(const void *data, size_t bytes, bool write)
{
    const race_range range = {data, bytes, write};
    checked_caller_put(toy_stream(), run_nothing, &range, sizeof range, &range, 1);
    checked_caller_wait(toy_stream());
}

void *__wrap_toy_fetch(void *data, size_t bytes)
{
    use(data, bytes, false);
    return __real_toy_fetch(data, bytes);
}

void __wrap_toy_put(void *data, const void *host, size_t bytes)
{
    use(data, bytes, true);
    __real_toy_put(data, host, bytes);
}

extern __typeof__(zero_engine_destroy) __real_zero_engine_destroy, __wrap_zero_engine_destroy;

/* A GPU's events may be destroyed before their last record has run, the CPU's may not. */
void __wrap_zero_engine_destroy(zero_engine *engine)
{
    checked_caller_wait(toy_stream());
    __real_zero_engine_destroy(engine);
}

static void check_faults(void)
{
    if (!race_check()) {
        fflush(NULL);
        _exit(1);
    }
}

__attribute__((constructor)) static void start(void)
{
    TOY_CHECK(pthread_key_create(&stream_key, close_stream) == 0, "no key");
    checked_start(NULL);
    (void)atexit(check_faults);
}
