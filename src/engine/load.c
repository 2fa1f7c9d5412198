/* Owns a load: the agreement of ranks on one checkpoint, the ranges that this rank reads, and what
 * is compared at the end. Invariant: until all ranks have found all that they want, nothing of the
 * engine has changed; once something has, it ends well or the engine is poisoned. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/sized.h"
#include "core/sizes.h"
#include "engine/agree.h"
#include "engine/given.h"
#include "engine/guard.h"
#include "engine/load.h"
#include "engine/state_values.h"

void zero_load_options_init_sized(zero_load_options *options, size_t struct_bytes)
{
    const zero_load_options known = {0};
    zi_sized_init(options, struct_bytes, &known, sizeof known);
}

void zero_load_report_init_sized(zero_load_report *report, size_t struct_bytes)
{
    const zero_load_report known = {0};
    zi_sized_init(report, struct_bytes, &known, sizeof known);
}

/* ---- the checkpoint ---- */

static bool has_file(const char *folder, const char *name)
{
    char path[ZI_CHECKPOINT_PATH_BYTES];
    struct stat info;
    return zi_checkpoint_path(path, folder, name) == ZERO_OK && stat(path, &info) == 0;
}

_Static_assert(sizeof((zero_load_report *)NULL)->passed_over == ZI_CHECKPOINT_PASSED_BYTES,
               "zi_checkpoint_find writes it");

/* Find what to open: a file, a folder that has weights alone, or a checkpoint. */
static zero_status find_folder(engine_load *load, char folder[ZI_CHECKPOINT_PATH_BYTES])
{
    const char *path = load->options.path;
    struct stat info;
    if (path == NULL || path[0] == '\0') {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "path is %s; name a run's directory, a checkpoint's folder "
                "or a safetensors file",
                path == NULL ? "NULL" : "empty");
    }
    const bool is_plain =
        load->options.name == NULL && stat(path, &info) == 0 &&
        (!S_ISDIR(info.st_mode) ||
         (!has_file(path, ZI_MANIFEST_NAME) &&
          (has_file(path, "model.safetensors") || has_file(path, "model.safetensors.index.json"))));
    if (!is_plain) {
        ZI_TRY(zi_checkpoint_find(path, load->options.name, folder, load->report.passed_over));
        if (load->report.passed_over[0] != '\0' && zero_world_rank(load->engine->world) == 0) {
            zi_log(ZERO_LOG_WARN, "%s is taken: %s", folder, load->report.passed_over);
        }
        return ZERO_OK;
    }
    if (snprintf(folder, ZI_CHECKPOINT_PATH_BYTES, "%s", path) >= ZI_CHECKPOINT_PATH_BYTES) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "path \"%.60s...\" has more than %d bytes", path,
                ZI_CHECKPOINT_PATH_BYTES - 1);
    }
    return ZERO_OK;
}

static void report_manifest(engine_load *load, const zi_manifest *manifest)
{
    zero_load_report *report = &load->report;
    report->step = manifest->state.updates + manifest->state.skipped;
    report->world = manifest->world * (uint32_t)zi_max_u64(1, manifest->map.part_count);
    report->data_position = manifest->data_position;
    report->random_seed = manifest->random_seed;
    report->random_position = manifest->random_position;
    report->user_bytes_count = (uint32_t)manifest->user_bytes;
    if (report->user_bytes != NULL && manifest->user_bytes != 0) {
        memcpy(report->user_bytes, manifest->user,
               zi_min_u64(manifest->user_bytes, report->user_room));
    }
}

/* Nothing to load is an answer where it was asked for: ENOENT is of a directory's search alone. */
static bool is_none(const engine_load *load, zero_status status)
{
    return status == ZERO_ERR_INVALID_ARGUMENT && zero_last_error()->native == ENOENT &&
           load->options.if_any != 0 && load->options.name == NULL;
}

/* The files that the options name, where no source was given. */
static zero_status open_files(engine_load *load)
{
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    const zero_status found = find_folder(load, folder);
    load->none = is_none(load, found);
    if (load->none || found != ZERO_OK) {
        return load->none ? ZERO_OK : found;
    }
    return zi_checkpoint_reader_open(folder, &load->source);
}

static zero_status open_checkpoint(engine_load *load)
{
    if (load->source == NULL) {
        ZI_TRY(open_files(load));
    }
    if (load->none) {
        return ZERO_OK;
    }
    const zi_manifest *manifest = load->source->manifest;
    (void)snprintf(load->report.folder, sizeof load->report.folder, "%.*s",
                   (int)sizeof load->report.folder - 1, load->source->name);
    if (manifest == NULL && load->options.params_only == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%.160s has parameters alone; set params_only to begin a new run with them",
                load->source->name);
    }
    if (manifest != NULL) {
        report_manifest(load, manifest);
        if (zero_world_rank(load->engine->world) == 0 &&
            (load->engine->mesh == NULL || zero_world_rank(load->engine->mesh) == 0)) {
            ZI_TRY(zi_source_check_files(load->source));
        }
    }
    return ZERO_OK;
}

/* All that may be refused while the engine is as it was. */
static zero_status load_prepare(engine_load *load, const zero_load_options *options,
                                const zero_load_report *report)
{
    ZI_TRY(ZI_OPTIONS_IN(zero_load_options, options, &load->options));
    if (report != NULL) {
        zero_load_report given = zero_load_report_init();
        ZI_TRY(ZI_SIZED_IN(zero_load_report, report, &given));
        load->report.user_bytes = given.user_bytes;
        load->report.user_room = given.user_room;
    }
    ZI_TRY(zi_engine_admit(load->engine, ZI_CALL_LOAD, "zero_load"));
    ZI_TRY(zero_step_state_get(load->engine, &load->own));
    ZI_TRY(open_checkpoint(load));
    return load->none ? ZERO_OK : zi_load_match_open(load);
}

/* Ranks load one checkpoint in one way. */
static uint64_t load_hash_of(const engine_load *load)
{
    if (load->none) {
        return ZI_HASH_START; /* other ranks find none either */
    }
    const zi_manifest *manifest = load->source->manifest;
    uint64_t hash = zi_hash_u64(ZI_HASH_START, zi_manifest_model_hash(load->source->map));
    hash = zi_hash_u64(hash, (uint64_t)(load->options.refuse_overflow != 0) << 2 |
                                 (uint64_t)(load->options.params_only != 0) << 1 |
                                 (uint64_t)(load->options.partial != 0));
    hash = zi_hash_text(hash, load->options.prefix != NULL ? load->options.prefix : "");
    if (manifest != NULL) {
        hash = zi_hash_u64(hash, manifest->sums_hash);
        hash = zi_hash_u64(hash, load->report.step);
    }
    return hash;
}

/* ---- the engine's tensors ---- */

/* Values that may be shared go extent by extent: when one is written, all that was put into it so
 * far is known to be filled in. */
static zero_status fill_range(engine_load *load, const load_range *range)
{
    zero_engine *engine = load->engine;
    const engine_shard shard = zi_engine_shard(engine, range->tensor, range->role);
    const uint64_t first = range->first - shard.tensor_first;
    const engine_values given = {.values = range->values,
                                 .from = range->codec.dtype,
                                 .to = shard.dtype,
                                 .tensor = range->tensor,
                                 .first = range->first,
                                 .count = range->count};
    if (!zi_role_is_scales(range->role)) { /* no scale becomes infinite */
        zi_engine_count_overflow(engine, &load->overflow, &given, true);
    }
    const bool by_extent = load->share != NULL && shard.tier == ZERO_TIER_DISK;
    for (uint64_t done = 0; done < range->count;) {
        const uint64_t rest = range->count - done;
        const uint64_t count =
            by_extent ? zi_min_u64(rest, zi_engine_shard_extent(engine, &shard, first + done).count)
                      : rest;
        unsigned char *values = (unsigned char *)range->values + zi_codec_bytes(range->codec, done);
        ZI_TRY(zi_values_fill(engine, &shard, first + done, count, values, range->codec.dtype));
        done += count;
        zi_load_filled(load, range, done);
    }
    return ZERO_OK;
}

static zero_status take_ranges(engine_load *load)
{
    const load_range *range = NULL;
    ZI_TRY(zi_load_next(load, &range));
    while (range != NULL) {
        ZI_TRY(fill_range(load, range));
        ZI_TRY(zi_load_next(load, &range));
    }
    return ZERO_OK;
}

/* The moments of a new run. zeros: ZEROS of them, in host memory that the device reaches. */
#define ZEROS ((uint64_t)1 << 18)
static zero_status clear_moments(zero_engine *engine, float *zeros)
{
    for (uint32_t t = 0; t < engine->layout->tensor_count; t++) {
        for (uint32_t state = 0; state < ZI_STATES; state++) {
            const engine_shard shard = zi_engine_shard(engine, t, zi_state_role(state));
            for (uint64_t at = 0; zi_role_is_moment(shard.role) && at < shard.count; at += ZEROS) {
                const uint64_t count = zi_min_u64(ZEROS, shard.count - at);
                ZI_TRY(zi_values_fill(engine, &shard, at, count, zeros, ZERO_DTYPE_F32));
            }
        }
    }
    return ZERO_OK;
}

static zero_status load_tensors(engine_load *load)
{
    zero_engine *engine = load->engine;
    const zi_device *device = engine->device;
    ZI_TRY(take_ranges(load));
    if (load->options.params_only != 0) {
        float *zeros = NULL;
        ZI_TRY(device->ops->host_alloc(device->self, ZEROS * sizeof *zeros, (void **)&zeros));
        const zero_status status = clear_moments(engine, zeros);
        device->ops->host_free(device->self, zeros, ZEROS * sizeof *zeros);
        ZI_TRY(status);
    }
    return zi_engine_flush_shards(engine);
}

/* ---- what was read ---- */

/* Compare all pieces that this rank's slices have elements of. */
static zero_status check_slices(engine_load *load)
{
    for (uint32_t t = 0; t < load->engine->layout->tensor_count; t++) {
        const engine_range slice = zi_engine_slice(load->engine, t);
        for (uint32_t i = 0; i < ZI_SAVED_ROLES && load->found[t] != ZI_NO_INDEX; i++) {
            const zero_role role = zi_saved_role(i);
            load_source source;
            const zi_joined joined = zi_load_joined(load, t, load->found[t], role, &source);
            if (zi_load_dtype(load, t, role) != ZERO_DTYPE_NONE) {
                ZI_TRY(zi_joined_check(&joined, slice.first, slice.count));
            }
        }
    }
    return ZERO_OK;
}

/* Pieces that ranks have read in parts are compared by what all of them have seen. Where the parts
 * of a model do not want all of a piece, or some of it more often than the rest, that says nothing,
 * and they are read again as wholes. */
static zero_status check_balance(engine_load *load)
{
    zero_engine *engine = load->engine;
    const zi_source_counts own = zi_source_count(load->source);
    uint64_t sums[2] = {own.balance, own.coverage};
    ZI_TRY(zi_engine_add_up(engine, sums, 2));
    if (sums[0] == 0 && sums[1] == 0) {
        return ZERO_OK;
    }
    ZI_TRY(zi_engine_agree_done(engine, check_slices(load)));
    if (sums[1] != 0) {
        return ZERO_OK;
    }
    ZI_FAIL(ZERO_ERR_CORRUPT,
            "%.160s: what ranks read together differs from its sums, but no piece does when it is "
            "read again; the disk or its connection is at fault",
            load->source->name);
}

/* A scale that never changes is the engine's own. One that changes begins anew where the saved one
 * never did: that may be the 1 of f32, at which gradients in f16 underflow. */
static void choose_scaler(const engine_load *load, const zi_manifest *manifest,
                          zero_step_state *state)
{
    const zi_layout *layout = load->engine->layout;
    if (layout->tuning.loss_scale_static) {
        state->loss_scale = layout->options.loss_scale;
    } else if (!manifest->scale_dynamic) {
        state->loss_scale = layout->options.loss_scale;
        state->good_steps = 0;
        state->overflows = 0;
    }
}

/* The saved run's state, or a new one's. Of a run of which no trained tensor is found nothing is
 * gone on with but products, in any part of the model. */
static zero_status set_state(engine_load *load)
{
    zero_step_state state = zero_step_state_init();
    state.loss_scale = load->engine->layout->options.loss_scale;
    if (load->options.params_only == 0) {
        uint64_t resumes = load->resumes;
        ZI_TRY(zi_engine_add_up(load->engine, &resumes, 1));
        state = load->state;
        choose_scaler(load, load->source->manifest, &state);
        if (resumes == 0) {
            state = load->own;
        }
    }
    return zero_step_state_set(load->engine, &state);
}

static void list_overflow(engine_load *load)
{
    const engine_overflow *overflow = &load->overflow;
    zero_load_report *report = &load->report;
    const size_t used = strlen(report->list);
    report->overflowed = overflow->count;
    if (overflow->count != 0) {
        (void)snprintf(report->list + used, sizeof report->list - used,
                       "overflowed %" PRIu64 " values, first element %" PRIu64 " of %s\n",
                       overflow->count, overflow->index,
                       load->engine->layout->tensor_infos[overflow->tensor].name);
    }
}

/* Over all ranks of the engine's world; where the load is refused, over the mesh. */
static zero_status report_overflow(engine_load *load)
{
    zero_engine *engine = load->engine;
    const engine_overflow *overflow = &load->overflow;
    zero_status status = ZERO_OK;
    ZI_TRY(zi_engine_join_overflow(engine, &load->overflow));
    list_overflow(load);
    if (overflow->count != 0 && load->options.refuse_overflow != 0) {
        status = zi_error_set(
            ZERO_ERR_INVALID_ARGUMENT, 0, __FILE__, __LINE__,
            "%.100s: %" PRIu64 " finite values are beyond the range of the engine's type, first "
            "element %" PRIu64 " of tensor %" PRIu64 " \"%.60s\"; load it as bf16 or f32, or leave "
            "refuse_overflow 0 to make them infinite",
            load->source->name, overflow->count, overflow->index, overflow->tensor,
            engine->layout->tensor_infos[overflow->tensor].name);
    } else if (zero_world_rank(engine->world) == 0) {
        zi_engine_warn_overflow(engine, overflow, "zero_load");
    }
    return load->options.refuse_overflow != 0 ? zi_engine_agree_done(engine, status) : ZERO_OK;
}

/* The engine changes from here on. */
static zero_status change(engine_load *load)
{
    zero_engine *engine = load->engine;
    zero_status status = ZERO_OK;
    zi_engine_touch(engine, UINT32_MAX);
    for (uint32_t i = 0; i < ZI_SAVED_ROLES && status == ZERO_OK; i++) {
        status = zi_engine_begin_transfer(engine, zi_saved_role(i), true);
    }
    /* No rank writes while another one gathers from it. */
    ZI_TRY(zi_engine_agree_done(engine, status));
    status = zi_load_begin_share(load);
    status = status == ZERO_OK ? load_tensors(load) : status;
    zi_load_close_feed(load);
    zi_load_close_share(load);
    ZI_TRY(zi_engine_agree_done(engine, status));
    ZI_TRY(check_balance(load));
    ZI_TRY(report_overflow(load));
    return set_state(load);
}

static void close_load(engine_load *load)
{
    const zero_error error = *zero_last_error();
    zi_load_close_feed(load);
    zi_load_close_share(load);
    if (load->source != NULL) {
        load->report.read_bytes = zi_source_count(load->source).read_bytes;
    }
    zi_source_close(load->source);
    zi_free(load->found);
    zi_free(load->expected);
    (void)zi_error_adopt(&error);
}

/* Each rank's status of a step towards the load, over all ranks of the mesh. */
static zero_status load_agree(zero_engine *engine, zero_status mine, uint64_t hash)
{
    const zero_status agreed =
        zi_engine_agree_given(engine, engine->world, mine, hash, "checkpoint to load");
    return zi_engine_agree_given(engine, engine->mesh, agreed, hash, "checkpoint to load");
}

/* Nothing of the engine changes here. */
static zero_status agree_on_all(engine_load *load, const zero_load_options *options,
                                const zero_load_report *report)
{
    const zero_status prepared = load_prepare(load, options, report);
    ZI_TRY(load_agree(load->engine, prepared, prepared == ZERO_OK ? load_hash_of(load) : 0));
    if (load->none) {
        return ZERO_OK;
    }
    zero_status status = zi_load_match(load);
    status = status == ZERO_OK ? zi_load_open_feed(load) : status;
    status = status == ZERO_OK ? zi_load_open_share(load) : status;
    return load_agree(load->engine, status, 0);
}

static zero_status load_all(engine_load *load, const zero_load_options *options,
                            const zero_load_report *report)
{
    zero_engine *engine = load->engine;
    const zero_status agreed = agree_on_all(load, options, report);
    if (agreed != ZERO_OK) {
        return agreed == ZERO_ERR_COMM || agreed == ZERO_ERR_TIMEOUT
                   ? zi_engine_finish(engine, agreed)
                   : agreed;
    }
    const zero_status status = load->none ? ZERO_OK : change(load);
    return status != ZERO_OK ? zi_engine_poison(engine, status) : ZERO_OK;
}

zero_status zi_engine_load(zero_engine *engine, zi_source *source, const zero_load_options *options,
                           zero_load_report *report)
{
    engine_load *load = NULL;
    zi_engine_enter_call(engine, ZI_IN_LOAD);
    const zero_status made = zi_calloc(1, sizeof *load, (void **)&load);
    if (made != ZERO_OK) {
        zi_source_close(source);
        return load_agree(engine, made, 0);
    }
    load->engine = engine;
    load->source = source;
    load->options = zero_load_options_init();
    load->report = zero_load_report_init();
    load->own = zero_step_state_init();
    zero_status status = load_all(load, options, report);
    close_load(load);
    if (report != NULL) {
        const zero_error error = *zero_last_error();
        const zero_status told = ZI_SIZED_OUT(zero_load_report, report, &load->report);
        status = status == ZERO_OK ? told : zi_error_adopt(&error);
    }
    zi_free(load);
    return status;
}

zero_status zero_load(zero_engine *engine, const zero_load_options *options,
                      zero_load_report *report)
{
    ZI_TRY(zi_engine_check(engine));
    return zi_engine_load(engine, NULL, options, report);
}
