/* The bundle of functions that an engine runs on, injected at create. zero_engine_create chooses
 * one by the options; a simulator or a test injects its own. Nothing else asks for a name: backends
 * differ by capabilities, from which the layout is computed before a device is opened. */
#ifndef ZI_ENGINE_BACKEND_H
#define ZI_ENGINE_BACKEND_H

#include "comm/comm.h"
#include "core/capabilities.h"
#include "core/private_api.h"
#include "core/thread.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "layout/layout.h"
#include "storage/storage.h"
#include "zero/engine.h"

typedef struct zi_backend {
    zi_capabilities can; /* the same on all ranks; host_memory is the device's own */
    void *self;          /* for the functions below; outlives the engine */
    /* The engine's own device. NULL: the world's device, which is the CPU's. */
    zero_status (*device_create)(void *self, zi_device *device);
    /* The kernels for the device's memory. pool: the engine's threads, borrowed; NULL if the host
     * takes no part in the work of streams. */
    zero_status (*kernels_create)(void *self, const zi_device *device, zi_pool *pool,
                                  zi_kernels *kernels);
    /* The kernels for tasks on host memory; called only if the device has memory of its own.
     * device: the world's. */
    zero_status (*host_kernels_create)(void *self, const zi_device *device, zi_pool *pool,
                                       zi_kernels *kernels);
    const zi_transport *transport;
    const zi_transport *mesh_transport; /* over options.model_parallel; not read without */
    const zi_storage *storage;          /* NULL: files */
} zi_backend;

/* The backend that the caller's options name. A default transport is chosen for each world by
 * itself. mesh: options.model_parallel, or NULL. UNSUPPORTED where a world's ranks cannot use it.
 * Local. */
zero_status zi_backend_choose(const zero_world *world, const zero_world *mesh,
                              const zi_layout *layout, const zero_engine_options *options,
                              zi_backend *out);

/* zero_engine_create on a backend, which is copied. NULL: as zi_backend_choose. */
ZI_PRIVATE_API zero_status zi_engine_create_with(zero_world *world, const zero_model *model,
                                                 const zero_engine_options *options,
                                                 const zi_backend *backend, zero_engine **engine);

#endif
