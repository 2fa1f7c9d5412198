/* What an engine runs on: a bundle that is injected at create. zero_engine_create chooses one by
 * the options; a simulator or a test brings its own. Nothing else asks for a name: differences are
 * capabilities, which the layout is computed from before a device is opened. */
#ifndef ZI_ENGINE_BACKEND_H
#define ZI_ENGINE_BACKEND_H

#include "comm/comm.h"
#include "core/capabilities.h"
#include "core/thread.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "layout/layout.h"
#include "storage/storage.h"
#include "zero/engine.h"

typedef struct zi_backend {
    zi_capabilities can; /* the same on all ranks; host_memory is the device's own */
    void *self;          /* for the functions below; outlives the engine */
    /* The engine's own device. queued: its streams need threads that issue, for tasks that wait for
     * other ranks. NULL: the world's device, which is the CPU's. */
    zero_status (*device_create)(void *self, bool queued, zi_device *device);
    /* What works on the device's memory. pool: the engine's threads, borrowed; NULL where the host
     * has no part in what streams do. */
    zero_status (*kernels_create)(void *self, const zi_device *device, zi_pool *pool,
                                  zi_kernels *kernels);
    /* The same for what tasks do to memory of the host, where the device has its own. device: the
     * world's. Not called elsewhere. */
    zero_status (*host_kernels_create)(void *self, const zi_device *device, zi_pool *pool,
                                       zi_kernels *kernels);
    const zi_transport *transport;
    const zi_transport *mesh_transport; /* over options.model_parallel; not read without */
    const zi_storage *storage;          /* NULL: files */
} zi_backend;

/* What the options, as the caller gave them, name: the default transport is chosen for each of the
 * worlds by itself. mesh: options.model_parallel, or NULL. UNSUPPORTED where a world's ranks cannot
 * have it. Local. */
zero_status zi_backend_choose(const zero_world *world, const zero_world *mesh,
                              const zi_layout *layout, const zero_engine_options *options,
                              zi_backend *out);

/* zero_engine_create on a backend, which is copied. NULL: as zi_backend_choose. */
zero_status zi_engine_create_with(zero_world *world, const zero_model *model,
                                  const zero_engine_options *options, const zi_backend *backend,
                                  zero_engine **engine);

#endif
