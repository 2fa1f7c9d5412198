/* Owns what an engine makes of its options: each is checked and has its default by the table, and
 * those that do not go together are refused here. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sized.h"
#include "layout/layout.h"
#include "layout/option_table.h"
#include "layout/sharding.h"

/* Both structs of the caller, older or newer, over the defaults. */
zero_status zi_options_take(const zero_engine_options *in, zero_engine_options *out,
                            zero_tuning *tuning)
{
    *out = zero_engine_options_init();
    *tuning = zero_tuning_init();
    if (in != NULL) {
        ZI_TRY(ZI_OPTIONS_IN(zero_engine_options, in, out));
    }
    if (out->tuning != NULL) {
        ZI_TRY(ZI_OPTIONS_IN(zero_tuning, out->tuning, tuning));
    }
    out->tuning = tuning;
    return ZERO_OK;
}

/* ---- each option by itself ---- */

static zero_status check_choice(const zero_option *option, const void *field)
{
    const uint64_t value = zi_option_whole(option, field);
    char names[128];
    if (value < option->choice_count && option->choices[value] != NULL) {
        return ZERO_OK;
    }
    zi_option_choices(option, names, sizeof names);
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s.%s %" PRId32 " is not one of %s",
            zi_option_struct(option), option->name, (int32_t)(uint32_t)value, names);
}

static zero_status check_real(const zero_option *option, const void *field)
{
    float value = 0.0f;
    memcpy(&value, field, sizeof value);
    if (!isfinite(value) || value < 0.0f) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s.%s %g is not finite and >= 0",
                zi_option_struct(option), option->name, (double)value);
    }
    return ZERO_OK;
}

static zero_status options_check_whole(const zero_option *option, const void *field)
{
    const uint64_t value = zi_option_whole(option, field);
    if (!zi_option_in_bounds(option, value)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s.%s %" PRIu64 " is not in [%" PRIu64 ", %" PRIu64 "]",
                zi_option_struct(option), option->name, value, option->low, option->high);
    }
    return ZERO_OK;
}

static zero_status check_tiers_named(const zero_tier *tier)
{
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        const bool shard = role < ZI_SHARD_ROLES;
        if ((uint32_t)tier[role] >= (shard ? ZERO_TIER_COUNT : 1u)) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "options.tier of %s is %d (role %d), %s",
                    zero_role_name((zero_role)role), (int)tier[role], role,
                    shard ? "not a zero_tier" : "and only shards have one to choose; leave it 0");
        }
    }
    return ZERO_OK;
}

static zero_status options_check_groups(const zero_option *option, const zero_optimizer *optimizer)
{
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS; g++) {
        if ((uint32_t)optimizer[g] >= option->choice_count) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "options.group_optimizer of group %" PRIu32 " is %d, not a zero_optimizer", g,
                    (int)optimizer[g]);
        }
    }
    return ZERO_OK;
}

static zero_status check_option(const zero_option *option, const void *field)
{
    switch (option->kind) {
    case ZERO_OPTION_FLAG:
    case ZERO_OPTION_COUNT:
    case ZERO_OPTION_BYTES:
    case ZERO_OPTION_NUMBER:
        return options_check_whole(option, field);
    case ZERO_OPTION_REAL:
        return check_real(option, field);
    case ZERO_OPTION_CHOICE:
        return check_choice(option, field);
    case ZERO_OPTION_TIERS:
        return check_tiers_named(field);
    case ZERO_OPTION_GROUPS:
        return options_check_groups(option, field);
    case ZERO_OPTION_POINTER:
    case ZERO_OPTION_TEXT:
        break;
    }
    return ZERO_OK;
}

/* Put the value that 0 stands for into a field that is 0. */
static void put_default(const zero_option *option, void *field)
{
    if (option->value == 0) {
        return;
    }
    if (option->kind == ZERO_OPTION_REAL) {
        float *real = field;
        *real = *real == 0.0f ? (float)option->value : *real;
    } else if (option->kind == ZERO_OPTION_TIERS) {
        zero_tier *tier = field;
        for (int role = 0; role < ZI_SHARD_ROLES; role++) {
            tier[role] = tier[role] == ZERO_TIER_DEFAULT ? (zero_tier)option->value : tier[role];
        }
    } else if (zi_option_whole(option, field) == 0) {
        zi_option_put(option, field, option->value);
    }
}

/* ---- options that do not go together ---- */

static zero_status options_check_optimizer(const zero_engine_options *o)
{
    bool own = o->optimizer == ZERO_OPTIMIZER_CALLBACK;
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS; g++) {
        own = own || o->group_optimizer[g] == ZERO_OPTIMIZER_CALLBACK;
    }
    if (own && o->update == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "options.update is NULL; ZERO_OPTIMIZER_CALLBACK needs it");
    }
    if (own && o->moment_dtype == ZERO_DTYPE_I8) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "options.moment_dtype is i8, and ZERO_OPTIMIZER_CALLBACK updates tensors, of whose "
                "moments nobody knows which codes suit them; use bf16 or f32");
    }
    if (!own && (o->update != NULL || o->update_states != 0)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "options.update and update_states are for "
                "ZERO_OPTIMIZER_CALLBACK; optimizer is %d, and no group_optimizer is that",
                (int)o->optimizer);
    }
    return ZERO_OK;
}

static zero_status check_updater(const zero_engine_options *o)
{
    bool disk = false;
    for (int role = ZERO_ROLE_MASTER; role < ZI_SHARD_ROLES; role++) {
        disk = disk || o->tier[role] == ZERO_TIER_DISK;
    }
    if (disk &&
        (o->tuning->updater == ZERO_UPDATER_GPU || o->tuning->updater == ZERO_UPDATER_BOTH)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.updater is %d, but state on disk is updated by the CPU; use "
                "ZERO_UPDATER_CPU, or ZERO_TIER_HOST for the roles on disk",
                (int)o->tuning->updater);
    }
    const bool offloaded =
        o->tier[ZERO_ROLE_PARAM] > ZERO_TIER_DEVICE || o->tier[ZERO_ROLE_GRAD] > ZERO_TIER_DEVICE;
    if (offloaded && o->tuning->updater == ZERO_UPDATER_BOTH) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.updater is %d, but parameters or gradients that are not on the device come "
                "to it a unit at a time; use ZERO_UPDATER_GPU or ZERO_UPDATER_CPU",
                (int)o->tuning->updater);
    }
    return ZERO_OK;
}

/* Packed elements are added up by kernels that decode them, sums of hosts where there are any. */
static zero_status check_wire(const zero_engine_options *o)
{
    const zero_tuning *t = o->tuning;
    const bool hosts = t->host_wire_dtype != ZERO_DTYPE_DEFAULT;
    if (t->reduction == ZERO_REDUCTION_NATIVE && t->wire_dtype == ZERO_DTYPE_INT8_BLOCK) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.wire_dtype is int8, and with ZERO_REDUCTION_NATIVE the transport's library "
                "adds up, which knows no such type; use ZERO_REDUCTION_DEFAULT, or bf16");
    }
    if (hosts && t->reduction != ZERO_REDUCTION_DEFAULT) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.host_wire_dtype is %s, and with tuning.reduction %d hosts make no sums of "
                "their own; use ZERO_REDUCTION_DEFAULT, or leave host_wire_dtype out",
                zero_dtype_name(t->host_wire_dtype), (int)t->reduction);
    }
    return ZERO_OK;
}

static zero_status check_disks(const zero_engine_options *o)
{
    if (o->disk_path != NULL && (o->disk_directories != NULL || o->disk_directory_count != 0)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "options.disk_path is \"%.200s\" and %" PRIu32
                " disk_directories are given; leave one of them out",
                o->disk_path, o->disk_directory_count);
    }
    if (o->tuning->disk_weights != NULL && o->disk_directory_count == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.disk_weights is %p and disk_directory_count 0; give a weight for each of "
                "disk_directories, or none",
                (const void *)o->tuning->disk_weights);
    }
    for (uint32_t i = 0; o->tuning->disk_weights != NULL && i < o->disk_directory_count; i++) {
        if (o->tuning->disk_weights[i] == 0) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "tuning.disk_weights[%" PRIu32 "] is 0; leave that directory out, or give its "
                    "bandwidth",
                    i);
        }
    }
    return ZERO_OK;
}

/* Speculative updates are written where old state is kept, which only a disk has the room for. */
static zero_status check_speculative(const zero_engine_options *o)
{
    for (int role = ZERO_ROLE_MASTER; o->tuning->speculative_step && role < ZI_SHARD_ROLES;
         role++) {
        if (o->tier[role] != ZERO_TIER_DISK) {
            ZI_FAIL(
                ZERO_ERR_INVALID_ARGUMENT,
                "tuning.speculative_step is 1 and tier of %s %s; put all states of optimizers on "
                "ZERO_TIER_DISK, or leave speculative_step at 0",
                zero_role_name((zero_role)role), zero_tier_name(o->tier[role]));
        }
    }
    return ZERO_OK;
}

/* Scales lie where their moments do, whatever these options say: they may have been resolved once,
 * and been given another tier for moments since. */
static void take_scale_tiers(zero_engine_options *o)
{
    for (int scales = ZERO_ROLE_SCALE1; scales <= ZERO_ROLE_SCALE2; scales++) {
        o->tier[scales] = o->tier[zi_role_of_scales((zero_role)scales)];
    }
}

static zero_status check_together(const zero_engine_options *o)
{
    ZI_TRY(options_check_optimizer(o));
    ZI_TRY(check_updater(o));
    ZI_TRY(check_speculative(o));
    ZI_TRY(check_wire(o));
    ZI_TRY(check_disks(o));
    if (o->tuning->extent_bytes % ZI_PAGE_BYTES != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.extent_bytes %" PRIu64 " is not a multiple of %zu", o->tuning->extent_bytes,
                ZI_PAGE_BYTES);
    }
    return zi_options_check_backend(o);
}

zero_status zi_options_resolve(const zero_engine_options *in, zero_engine_options *out,
                               zero_tuning *tuning)
{
    const zero_option *option = NULL;
    ZI_TRY(zi_options_take(in, out, tuning));
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        ZI_TRY(check_option(option, zi_option_field(option, out, tuning)));
    }
    take_scale_tiers(out);
    ZI_TRY(check_together(out));
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        put_default(option, zi_option_field(option, out, tuning));
    }
    return ZERO_OK;
}
