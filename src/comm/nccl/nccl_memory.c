/* Owns memory from ncclMemAlloc, its registration with a communicator, and the CTA policy that
 * needs it. Invariants: what was asked for is in effect or an error, although NCCL itself returns
 * success, without a handle, where it cannot register; all members register the same arenas in the
 * same order. */
#include "comm/nccl/nccl_memory.h"

#include "comm/nccl/nccl_state.h"
#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "device/cuda/cuda_device.h"

#define VERSION_FORMAT "%d.%d.%d"
#define VERSION_VALUES(v) (v) / 10000, (v) / 100 % 100, (v) % 100

/* A feature that a version of NCCL brought. */
typedef struct feature {
    const char *option; /* that asks for it */
    int version;
    bool built; /* this build's headers have it */
} feature;

static zero_status check_feature(const feature *f)
{
    const zi_nccl_api *api = NULL;
    int version = 0;
    ZI_TRY(zi_nccl_api_get(&api, &version));
    if (!f->built) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "%s needs NCCL " VERSION_FORMAT " and the library was built with the headers "
                "of " VERSION_FORMAT "; build it with newer ones (-Dnccl_include)",
                f->option, VERSION_VALUES(f->version), VERSION_VALUES(NCCL_VERSION_CODE));
    }
    if (version < f->version) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "%s needs NCCL " VERSION_FORMAT " or later, and " VERSION_FORMAT " is loaded; "
                "install a newer one, or leave the option at 0",
                f->option, VERSION_VALUES(f->version), VERSION_VALUES(version));
    }
    return ZERO_OK;
}

zero_status zi_nccl_options_check(const zi_capabilities *asked)
{
    const zi_nccl_api *api = NULL;
    int version = 0;
    const feature policy = {"tuning.nccl_zero_cta", ZI_NCCL_VERSION_WINDOWS, ZI_NCCL_HAS_ZERO_CTA};
    const feature traffic = {"tuning.nccl_traffic_class", ZI_NCCL_VERSION_TRAFFIC,
                             ZI_NCCL_HAS_TRAFFIC};
    if (asked->copy_engines) {
        ZI_TRY(check_feature(&policy));
    }
    if (asked->hints.traffic_class != 0) {
        ZI_TRY(check_feature(&traffic));
    }
    return asked->registered ? zi_nccl_api_get(&api, &version) : ZERO_OK;
}

/* ---- the allocator ---- */

zero_status zi_nccl_memory_alloc(const zi_device *device, size_t bytes, void **out)
{
    const zi_nccl_api *api = NULL;
    int version = 0;
    zi_stream *host = NULL;
    *out = NULL;
    ZI_TRY(zi_nccl_api_get(&api, &version));
    ZI_TRY(device->ops->stream_wrap(device->self, zero_stream_host(), &host));
    const ncclResult_t result = api->mem_alloc(out, bytes);
    if (result != ncclSuccess) {
        /* NCCL has one number for all that CUDA refuses; here it is most likely memory. */
        *out = NULL;
        ZI_FAIL_NATIVE(result == ncclUnhandledCudaError ? ZERO_ERR_OUT_OF_MEMORY : ZERO_ERR_DEVICE,
                       (int)result, "ncclMemAlloc of %zu bytes: %s: %.110s", bytes,
                       api->get_error_string(result), api->get_last_error(NULL));
    }
    const zero_status status = device->ops->fill(device->self, host, *out, 0, bytes);
    if (status != ZERO_OK) {
        (void)api->mem_free(*out);
        *out = NULL;
    }
    return status;
}

void zi_nccl_memory_free(void *pointer)
{
    const zi_nccl_api *api = NULL;
    int version = 0;
    if (pointer != NULL && zi_nccl_api_get(&api, &version) == ZERO_OK) {
        (void)api->mem_free(pointer);
    }
}

/* ---- communicators ---- */

void zi_nccl_configure(const zi_group_desc *desc, ncclConfig_t *config)
{
    const zi_transport_hints *hints = &desc->hints;
    if (hints->ctas_min != 0) {
        config->minCTAs = (int)hints->ctas_min;
    }
    if (hints->ctas_max != 0) {
        config->maxCTAs = (int)hints->ctas_max;
    }
    if (hints->network != NULL) {
        config->netName = hints->network;
    }
#if ZI_NCCL_HAS_TRAFFIC
    if (hints->traffic_class != 0) {
        config->trafficClass = (int)hints->traffic_class;
    }
#endif
#if ZI_NCCL_HAS_ZERO_CTA
    if (desc->copy_engines) {
        config->CTAPolicy = NCCL_CTA_POLICY_ZERO;
    }
#endif
}

/* Register what becomes a window, or a buffer; the handle is NULL where NCCL makes neither. */
static zero_status nccl_memory_register_memory(zi_nccl_group *group, const zi_group_memory *memory,
                                               zi_nccl_registration *entry)
{
    const zi_nccl_handle *handle = group->handle;
    const zi_nccl_api *api = handle->api;
    const char *call = handle->windows ? "ncclCommWindowRegister" : "ncclCommRegister";
    const int flags = memory->symmetric ? ZI_NCCL_WIN_COLL_SYMMETRIC : 0;
    ZI_TRY(zi_nccl_enter(group, call));
    const ncclResult_t result =
        handle->windows
            ? api->comm_window_register(handle->comm, memory->pointer, memory->bytes,
                                        &entry->handle, flags)
            : api->comm_register(handle->comm, memory->pointer, memory->bytes, &entry->handle);
    zi_nccl_leave(group);
    /* Success may mean that the call has begun where the communicator is not blocking. */
    const bool begun = result == ncclSuccess && !handle->blocking;
    return zi_nccl_wait(group, begun ? ncclInProgress : result, call);
}

/* NCCL gives no window where it can make none, or, in 2.28, registers the buffer and gives that in
 * its place. A window is what kernels read, on the GPU; a registration is the host's. */
static zero_status is_window(const void *handle, bool *found)
{
    struct cudaPointerAttributes attributes = {.type = cudaMemoryTypeHost};
    if (handle != NULL) {
        ZI_TRY(zi_cuda_check(cudaPointerGetAttributes(&attributes, handle),
                             "cudaPointerGetAttributes"));
    }
    *found = attributes.type == cudaMemoryTypeDevice;
    return ZERO_OK;
}

/* *found := true if NCCL makes a window of the memory, with the communicator over all ranks. */
static zero_status try_window(zi_nccl_group *base, void *pointer, bool *found)
{
    const zi_group_memory memory = {pointer, ZI_PAGE_BYTES, true};
    zi_nccl_registration entry = {.handle = NULL};
    *found = false;
    if (base->version < ZI_NCCL_VERSION_WINDOWS ||
        base->handle->api->comm_window_register == NULL) {
        return ZERO_OK;
    }
    base->handle->windows = true;
    ZI_TRY(nccl_memory_register_memory(base, &memory, &entry));
    ZI_TRY(is_window(entry.handle, found));
    if (entry.handle == NULL) {
        return ZERO_OK;
    }
    ZI_TRY(zi_nccl_enter(base, "ncclCommWindowDeregister"));
    const ncclResult_t result = zi_nccl_deregister(base->handle, &entry);
    zi_nccl_leave(base);
    return zi_nccl_wait(base, result, "ncclCommWindowDeregister");
}

/* Windows where every rank got one. */
static zero_status compare_windows(zi_nccl_group *base, zi_group *coordination, bool found)
{
    const uint32_t mine = found ? 1 : 0;
    uint32_t *all = NULL;
    ZI_TRY(zi_calloc(base->base.size, sizeof *all, (void **)&all));
    const zero_status status = zi_group_gather(coordination, 0, &mine, all, sizeof mine);
    base->agreed = status == ZERO_OK;
    base->handle->windows = base->agreed;
    for (uint32_t i = 0; i < base->base.size; i++) {
        base->handle->windows = base->handle->windows && all[i] != 0;
    }
    zi_free(all);
    return status;
}

/* A rank whose NCCL_WIN_ENABLE is 0 gets no window at once, while NCCL waits for it on the others:
 * some are late for the window, and some for the comparison. */
static zero_status explain(zero_status status)
{
    if (status == ZERO_ERR_TIMEOUT) {
        const zero_error error = *zero_last_error();
        ZI_FAIL(status, "set NCCL_WIN_ENABLE alike on all ranks: %.200s", error.message);
    }
    return status;
}

zero_status zi_nccl_agree_memory(zi_nccl_group *base, zi_group *coordination, void *memory)
{
    bool found = false;
    if (base->agreed) {
        return ZERO_OK;
    }
    if (explain(try_window(base, memory, &found)) != ZERO_OK) {
        return zi_nccl_break_off(base);
    }
    return explain(compare_windows(base, coordination, found));
}

/* Check that what is asked for is in effect. */
static zero_status nccl_memory_check_handle(const zi_nccl_group *group,
                                            const zi_nccl_registration *entry)
{
    bool found = true;
    if (group->handle->windows) {
        ZI_TRY(is_window(entry->handle, &found));
    }
    if (entry->handle == NULL || !found) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "group %s: NCCL " VERSION_FORMAT " registers no memory here; unset "
                "NCCL_LOCAL_REGISTER and NCCL_WIN_ENABLE, or leave tuning.nccl_memory at "
                "ZERO_NCCL_MEMORY_NONE",
                group->base.name, VERSION_VALUES(group->version));
    }
    return ZERO_OK;
}

zero_status zi_nccl_register(zi_nccl_group *group, const zi_group_desc *desc)
{
    zi_nccl_handle *handle = group->handle;
    const uint32_t count = desc->registered ? desc->memory_count : 0;
    zi_assert_cmp(count, <=, ZI_GROUP_MEMORIES);
    for (uint32_t i = 0; i < count; i++) {
        zi_nccl_registration *entry = &handle->registered[i];
        entry->symmetric = handle->windows && desc->memory[i].symmetric;
        ZI_TRY(nccl_memory_register_memory(group, &desc->memory[i], entry));
        ZI_TRY(nccl_memory_check_handle(group, entry));
        handle->registered_count++;
    }
    return ZERO_OK;
}
