/* Owns the bounds and defaults of the engine's options. */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "layout/layout.h"
#include "layout/sharding.h"

/* The caller's struct may be older (shorter) or newer (longer, if the rest says nothing). */
zero_status zi_options_take(const zero_engine_options *in, zero_engine_options *out)
{
    *out = zero_engine_options_init();
    if (in == NULL) {
        return ZERO_OK;
    }
    if (in->struct_bytes < sizeof in->struct_bytes || in->struct_bytes > 4096) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "options.struct_bytes is %zu; fill the options with "
                "zero_engine_options_init()",
                in->struct_bytes);
    }
    const size_t known = sizeof *out;
    const unsigned char *bytes = (const unsigned char *)in;
    for (size_t i = known; i < in->struct_bytes; i++) {
        if (bytes[i] != 0) {
            ZI_FAIL(ZERO_UNSUPPORTED,
                    "options has %zu bytes and sets one beyond the %zu this "
                    "library knows; link a newer library",
                    in->struct_bytes, known);
        }
    }
    memcpy(out, in, in->struct_bytes < known ? in->struct_bytes : known);
    return ZERO_OK;
}

static zero_status check_range(const char *field, uint64_t value, uint64_t low, uint64_t high)
{
    if (value < low || value > high) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "options.%s %" PRIu64 " is not in [%" PRIu64 ", %" PRIu64 "]", field, value, low,
                high);
    }
    return ZERO_OK;
}

/* value as a flag: 0 or 1. */
static zero_status check_flag(const char *field, int32_t value)
{
    return check_range(field, (uint64_t)(uint32_t)value, 0, 1);
}

/* allowed: bit d is set when dtype d is. */
static zero_status check_dtype(const char *field, zero_dtype dtype, unsigned allowed)
{
    if ((unsigned)dtype > ZERO_DTYPE_NONE || ((1u << dtype) & allowed) == 0) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "options.%s %s (%d) is not a type this role can have", field,
                zero_dtype_name(dtype), (int)dtype);
    }
    return ZERO_OK;
}

static zero_status check_dtypes(const zero_engine_options *o)
{
    const unsigned unset = 1u << ZERO_DTYPE_DEFAULT;
    const unsigned f32 = 1u << ZERO_DTYPE_F32;
    const unsigned bf16 = 1u << ZERO_DTYPE_BF16;
    const unsigned f16 = 1u << ZERO_DTYPE_F16;
    ZI_TRY(check_dtype("grad_dtype", o->grad_dtype, unset | f32 | bf16 | f16));
    ZI_TRY(check_dtype("wire_dtype", o->wire_dtype, unset | f32 | bf16 | f16));
    ZI_TRY(check_dtype("accum_dtype", o->accum_dtype, unset | f32 | bf16));
    ZI_TRY(check_dtype("master_dtype", o->master_dtype, unset | f32 | 1u << ZERO_DTYPE_NONE));
    return check_dtype("moment_dtype", o->moment_dtype, unset | f32 | bf16);
}

static zero_status check_optimizer(const zero_engine_options *o)
{
    ZI_TRY(check_range("optimizer", (uint64_t)o->optimizer, 0, ZERO_OPTIMIZER_CALLBACK));
    ZI_TRY(check_range("update_states", o->update_states, 0, 2));
    const bool own = o->optimizer == ZERO_OPTIMIZER_CALLBACK;
    if (own && o->update == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "options.update is NULL; ZERO_OPTIMIZER_CALLBACK needs it");
    }
    if (!own && (o->update != NULL || o->update_states != 0)) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "options.update and update_states are for "
                "ZERO_OPTIMIZER_CALLBACK; optimizer is %d",
                (int)o->optimizer);
    }
    return ZERO_OK;
}

static zero_status check_scaling(const zero_engine_options *o)
{
    if (!isfinite(o->loss_scale) || o->loss_scale < 0.0f) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "options.loss_scale %g is not finite and >= 0",
                (double)o->loss_scale);
    }
    if (!isfinite(o->loss_scale_min) || o->loss_scale_min < 0.0f) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "options.loss_scale_min %g is not finite and >= 0",
                (double)o->loss_scale_min);
    }
    if (!isfinite(o->grad_divisor) || o->grad_divisor < 0.0f) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "options.grad_divisor %g is not finite and >= 0",
                (double)o->grad_divisor);
    }
    return check_flag("loss_scale_static", o->loss_scale_static);
}

static zero_status check_transport(const zero_engine_options *o)
{
    ZI_TRY(check_range("transport", (uint64_t)o->transport, 0, ZERO_TRANSPORT_PEER));
    if (o->transport != ZERO_TRANSPORT_DEFAULT && o->device != ZERO_DEVICE_CUDA) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "options.transport is %d and options.device %d; it is for ZERO_DEVICE_CUDA",
                (int)o->transport, (int)o->device);
    }
    return ZERO_OK;
}

static zero_status check_nccl(const zero_engine_options *o)
{
    ZI_TRY(check_range("nccl_memory", (uint64_t)o->nccl_memory, 0, ZERO_NCCL_MEMORY_SYMMETRIC));
    ZI_TRY(check_flag("nccl_zero_cta", o->nccl_zero_cta));
    const bool nccl = o->transport == ZERO_TRANSPORT_DEFAULT || o->transport == ZERO_TRANSPORT_NCCL;
    if (o->nccl_memory != ZERO_NCCL_MEMORY_NONE && (o->device != ZERO_DEVICE_CUDA || !nccl)) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "options.nccl_memory is %d, device %d and transport %d; it is for ZERO_DEVICE_CUDA "
                "over NCCL: leave it at ZERO_NCCL_MEMORY_NONE",
                (int)o->nccl_memory, (int)o->device, (int)o->transport);
    }
    if (o->nccl_zero_cta != 0 && o->nccl_memory != ZERO_NCCL_MEMORY_SYMMETRIC) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "options.nccl_zero_cta is 1 and nccl_memory %d; NCCL gathers without CTAs from "
                "symmetric memory only: set nccl_memory to ZERO_NCCL_MEMORY_SYMMETRIC",
                (int)o->nccl_memory);
    }
    return ZERO_OK;
}

static zero_status check_tier(const zero_engine_options *o, zero_role role)
{
    const zero_tier tier = o->tier[role];
    if ((uint32_t)tier >= ZERO_TIER_COUNT) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "options.tier of %s is %d, not a zero_tier",
                zero_role_name(role), (int)tier);
    }
    if (role < ZERO_ROLE_MASTER && tier > ZERO_TIER_DEVICE &&
        o->nccl_memory != ZERO_NCCL_MEMORY_NONE) {
        ZI_FAIL(ZERO_UNSUPPORTED,
                "options.tier of %s is %s and nccl_memory %d; NCCL knows only what is on the "
                "device: leave one of them at its default",
                zero_role_name(role), zero_tier_name(tier), (int)o->nccl_memory);
    }
    return ZERO_OK;
}

static zero_status check_updater(const zero_engine_options *o)
{
    bool disk = false;
    for (int role = ZERO_ROLE_MASTER; role < ZERO_SHARD_ROLES; role++) {
        disk = disk || o->tier[role] == ZERO_TIER_DISK;
    }
    ZI_TRY(check_range("updater", (uint64_t)o->updater, 0, ZERO_UPDATER_BOTH));
    if (o->updater != ZERO_UPDATER_DEFAULT && o->device != ZERO_DEVICE_CUDA) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "options.updater is %d and options.device %d; it is for ZERO_DEVICE_CUDA",
                (int)o->updater, (int)o->device);
    }
    if (disk && (o->updater == ZERO_UPDATER_GPU || o->updater == ZERO_UPDATER_BOTH)) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "options.updater is %d, but state on disk is updated by the CPU; use "
                "ZERO_UPDATER_CPU, or ZERO_TIER_HOST for the roles on disk",
                (int)o->updater);
    }
    const bool far =
        o->tier[ZERO_ROLE_PARAM] > ZERO_TIER_DEVICE || o->tier[ZERO_ROLE_GRAD] > ZERO_TIER_DEVICE;
    if (far && o->updater == ZERO_UPDATER_BOTH) {
        ZI_FAIL(
            ZERO_INVALID_ARGUMENT,
            "options.updater is %d, but parameters or gradients that are not on the device come "
            "to it a unit at a time; use ZERO_UPDATER_GPU or ZERO_UPDATER_CPU",
            (int)o->updater);
    }
    return ZERO_OK;
}

static zero_status check_disks(const zero_engine_options *o)
{
    ZI_TRY(check_range("disk_directory_count", o->disk_directory_count, 0, 16));
    if (o->disk_weights != NULL && o->disk_directory_count == 0) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "options.disk_weights is %p and disk_directory_count 0; give a weight for each of "
                "disk_directories, or none",
                (const void *)o->disk_weights);
    }
    for (uint32_t i = 0; o->disk_weights != NULL && i < o->disk_directory_count; i++) {
        if (o->disk_weights[i] == 0) {
            ZI_FAIL(ZERO_INVALID_ARGUMENT,
                    "options.disk_weights[%" PRIu32 "] is 0; leave that directory out, or give its "
                    "bandwidth",
                    i);
        }
    }
    return o->io_depth != 0 ? check_range("io_depth", o->io_depth, 1, 1024) : ZERO_OK;
}

/* Drafts are written where old state is kept, which only a disk has the room for. */
static zero_status check_overlap(const zero_engine_options *o)
{
    ZI_TRY(check_flag("overlap_step", o->overlap_step));
    for (int role = ZERO_ROLE_MASTER; o->overlap_step && role < ZERO_SHARD_ROLES; role++) {
        if (o->tier[role] != ZERO_TIER_DISK) {
            ZI_FAIL(ZERO_INVALID_ARGUMENT,
                    "options.overlap_step is 1 and tier of %s %s; put master, moment1 and moment2 "
                    "on ZERO_TIER_DISK, or leave overlap_step at 0",
                    zero_role_name((zero_role)role), zero_tier_name(o->tier[role]));
        }
    }
    return ZERO_OK;
}

static zero_status check_tiers(const zero_engine_options *o)
{
    ZI_TRY(check_updater(o));
    ZI_TRY(check_overlap(o));
    ZI_TRY(check_flag("disk_unchecked", o->disk_unchecked));
    for (int role = 0; role < ZERO_SHARD_ROLES; role++) {
        ZI_TRY(check_tier(o, (zero_role)role));
    }
    ZI_TRY(check_disks(o));
    if (o->range_bytes != 0) {
        ZI_TRY(check_range("range_bytes", o->range_bytes, ZI_PAGE_BYTES, UINT64_C(1) << 40));
    }
    if (o->range_bytes % ZI_PAGE_BYTES != 0) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "options.range_bytes %" PRIu64 " is not a multiple of %zu",
                o->range_bytes, ZI_PAGE_BYTES);
    }
    return o->ring_depth != 0 ? check_range("ring_depth", o->ring_depth, 3, 64) : ZERO_OK;
}

static zero_status check(const zero_engine_options *o)
{
    ZI_TRY(check_range("reduction", (uint64_t)o->reduction, 0, ZERO_REDUCTION_EXACT));
    ZI_TRY(check_range("accumulation", (uint64_t)o->accumulation, 0, ZERO_ACCUMULATION_LOCAL));
    ZI_TRY(check_dtypes(o));
    ZI_TRY(check_optimizer(o));
    ZI_TRY(check_range("device", (uint64_t)o->device, 0, ZERO_DEVICE_CUDA));
    ZI_TRY(check_transport(o));
    ZI_TRY(check_nccl(o));
    ZI_TRY(check_tiers(o));
    ZI_TRY(check_range("param_slots", o->param_slots, 0, 64));
    ZI_TRY(check_range("grad_slots", o->grad_slots, 0, 64));
    ZI_TRY(check_range("look_ahead", o->look_ahead, 0, 63));
    ZI_TRY(check_range("threads", o->threads, 0, 256));
    ZI_TRY(check_flag("no_prefetch", o->no_prefetch));
    ZI_TRY(check_flag("poison_released", o->poison_released));
    return check_scaling(o);
}

#define ZI_DEFAULT(field, value)  \
    do {                          \
        if (out->field == 0) {    \
            out->field = (value); \
        }                         \
    } while (0)

zero_status zi_options_resolve(const zero_engine_options *in, zero_engine_options *out)
{
    ZI_TRY(zi_options_take(in, out));
    ZI_TRY(check(out));
    out->struct_bytes = sizeof *out;
    ZI_DEFAULT(device, ZERO_DEVICE_CPU);
    ZI_DEFAULT(accum_dtype, ZERO_DTYPE_F32);
    ZI_DEFAULT(master_dtype, ZERO_DTYPE_F32);
    ZI_DEFAULT(moment_dtype, ZERO_DTYPE_F32);
    ZI_DEFAULT(optimizer, ZERO_OPTIMIZER_ADAMW);
    ZI_DEFAULT(param_slots, 3);
    ZI_DEFAULT(grad_slots, 2);
    ZI_DEFAULT(look_ahead, 1);
    ZI_DEFAULT(bucket_bytes, UINT64_C(1) << 20);
    for (int role = 0; role < ZERO_SHARD_ROLES; role++) {
        ZI_DEFAULT(tier[role], ZERO_TIER_DEVICE);
    }
    ZI_DEFAULT(range_bytes, UINT64_C(8) << 20);
    ZI_DEFAULT(ring_depth, 4);
    ZI_DEFAULT(io_depth, 16);
    ZI_DEFAULT(loss_scale_window, 2000);
    ZI_DEFAULT(loss_scale_hysteresis, 1);
    if (out->loss_scale_min == 0.0f) {
        out->loss_scale_min = 1.0f;
    }
    return ZERO_OK;
}
