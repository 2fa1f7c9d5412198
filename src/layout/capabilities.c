/* Owns what the options that name a backend's parts mean: the one file of this folder that knows
 * their names. A plan has no device to ask, so what is said here is compared with the device when
 * an engine opens it (engine/backend.c). */
#include <inttypes.h>

#include "core/error.h"
#include "layout/layout.h"

/* The first option that NCCL alone has, or NULL. */
static const char *hint_given(const zero_tuning *tuning)
{
    return tuning->nccl_min_ctas != 0        ? "nccl_min_ctas"
           : tuning->nccl_max_ctas != 0      ? "nccl_max_ctas"
           : tuning->nccl_traffic_class != 0 ? "nccl_traffic_class"
           : tuning->nccl_net_name != NULL   ? "nccl_net_name"
                                             : NULL;
}

static zero_status check_hints(const zero_engine_options *o, bool nccl)
{
    const zero_tuning *tuning = o->tuning;
    const char *given = hint_given(tuning);
    if (given != NULL && (o->device != ZERO_DEVICE_CUDA || !nccl)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.%s is given, device %d and transport %d; it is for ZERO_DEVICE_CUDA over "
                "NCCL: leave it at 0",
                given, (int)o->device, (int)tuning->transport);
    }
    if (tuning->nccl_max_ctas != 0 && tuning->nccl_min_ctas > tuning->nccl_max_ctas) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.nccl_min_ctas is %" PRIu32 " and nccl_max_ctas %" PRIu32
                "; the first is at most the second",
                tuning->nccl_min_ctas, tuning->nccl_max_ctas);
    }
    return ZERO_OK;
}

/* Check that the device's memory can come from the caller's functions. */
static zero_status check_memory_source(const zero_engine_options *o)
{
    if ((o->device_alloc != NULL) != (o->device_free != NULL)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "options.%s is given and options.%s NULL; give both, or neither",
                o->device_alloc != NULL ? "device_alloc" : "device_free",
                o->device_alloc != NULL ? "device_free" : "device_alloc");
    }
    if (o->device_alloc != NULL && o->device != ZERO_DEVICE_CUDA) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "options.device_alloc is given and options.device is %d; it is for "
                "ZERO_DEVICE_CUDA: on the CPU ranks read one another's shards in memory that the "
                "library shares between them",
                (int)o->device);
    }
    if (o->device_alloc != NULL && o->tuning->nccl_memory != ZERO_NCCL_MEMORY_NONE) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "options.device_alloc is given and tuning.nccl_memory is %d; memory that NCCL "
                "registers is NCCL's own (ncclMemAlloc): leave one of them out",
                (int)o->tuning->nccl_memory);
    }
    return ZERO_OK;
}

zero_status zi_options_check_backend(const zero_engine_options *o)
{
    const bool nccl = o->tuning->transport == ZERO_TRANSPORT_DEFAULT ||
                      o->tuning->transport == ZERO_TRANSPORT_NCCL;
    if (o->tuning->transport != ZERO_TRANSPORT_DEFAULT && o->device != ZERO_DEVICE_CUDA) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.transport is %d and options.device %d; it is for ZERO_DEVICE_CUDA",
                (int)o->tuning->transport, (int)o->device);
    }
    if (o->tuning->nccl_memory != ZERO_NCCL_MEMORY_NONE &&
        (o->device != ZERO_DEVICE_CUDA || !nccl)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.nccl_memory is %d, device %d and transport %d; it is for ZERO_DEVICE_CUDA "
                "over NCCL: leave it at ZERO_NCCL_MEMORY_NONE",
                (int)o->tuning->nccl_memory, (int)o->device, (int)o->tuning->transport);
    }
    ZI_TRY(check_hints(o, nccl));
    ZI_TRY(check_memory_source(o));
    if (o->tuning->nccl_zero_cta != 0 && o->tuning->nccl_memory == ZERO_NCCL_MEMORY_NONE) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.nccl_zero_cta is 1 and nccl_memory %d; NCCL gathers without CTAs from "
                "windows only: set nccl_memory to ZERO_NCCL_MEMORY_REGISTERED",
                (int)o->tuning->nccl_memory);
    }
    for (int role = 0; role < ZERO_ROLE_MASTER; role++) {
        if (o->tuning->nccl_memory != ZERO_NCCL_MEMORY_NONE && o->tier[role] > ZERO_TIER_DEVICE) {
            ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                    "options.tier of %s is %s and nccl_memory %d; NCCL knows only what is on the "
                    "device: leave one of them at its default",
                    zero_role_name((zero_role)role), zero_tier_name(o->tier[role]),
                    (int)o->tuning->nccl_memory);
        }
    }
    return ZERO_OK;
}

/* Choose the transport between GPUs, and check that it can do what is asked of NCCL. */
static zero_status resolve_transport(zi_layout *layout, bool threads)
{
    zero_tuning *tuning = &layout->tuning;
    const uint32_t world = layout->world;
    if (layout->options.device == ZERO_DEVICE_CUDA && world > 1 &&
        tuning->transport == ZERO_TRANSPORT_DEFAULT) {
        tuning->transport = threads ? ZERO_TRANSPORT_PEER : ZERO_TRANSPORT_NCCL;
    }
    if (tuning->nccl_memory != ZERO_NCCL_MEMORY_NONE &&
        (world == 1 || tuning->transport == ZERO_TRANSPORT_PEER)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.nccl_memory is %d, and NCCL has nothing to do in a world of %s; leave it "
                "at ZERO_NCCL_MEMORY_NONE, or start a process for each GPU",
                (int)tuning->nccl_memory, world == 1 ? "one rank" : "threads");
    }
    if (hint_given(tuning) != NULL && (world == 1 || tuning->transport == ZERO_TRANSPORT_PEER)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.%s is given, and NCCL has nothing to do in a world of %s; leave it at 0, "
                "or start a process for each GPU",
                hint_given(tuning), world == 1 ? "one rank" : "threads");
    }
    return ZERO_OK;
}

zero_status zi_layout_resolve_backend(zi_layout *layout, bool threads, const zi_capabilities *given)
{
    const zero_tuning *tuning = &layout->tuning;
    ZI_TRY(resolve_transport(layout, threads));
    const zi_capabilities named = {
        .host_memory = layout->options.device == ZERO_DEVICE_CPU,
        .lent_scratch = tuning->transport == ZERO_TRANSPORT_NCCL,
        .copy_engines = tuning->nccl_zero_cta != 0,
        .registered = tuning->nccl_memory != ZERO_NCCL_MEMORY_NONE,
        .hints = {.ctas_min = tuning->nccl_min_ctas,
                  .ctas_max = tuning->nccl_max_ctas,
                  .traffic_class = tuning->nccl_traffic_class,
                  .network = tuning->nccl_net_name},
    };
    layout->can = given != NULL ? *given : named;
    if (tuning->updater != ZERO_UPDATER_DEFAULT && layout->can.host_memory) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.updater is %d and options.device %d; it is for ZERO_DEVICE_CUDA",
                (int)tuning->updater, (int)layout->options.device);
    }
    return ZERO_OK;
}
