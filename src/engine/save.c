/* Owns a save from its beginning to its commit: what ranks agree on, the folder that rank 0 makes
 * and renames, and the memory that the copy passes through. A save that fails leaves the engine as
 * it was; only ranks that cannot reach one another poison it. */
#include "zero/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_folder.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/sized.h"
#include "core/sizes.h"
#include "engine/agree.h"
#include "engine/guard.h"
#include "engine/input.h"
#include "engine/replicas.h"
#include "engine/save.h"

/* How long ranks wait before they tell one another that they still do. */
#define ROUND_NS UINT64_C(100000000)

void zero_save_options_init_sized(zero_save_options *options, size_t struct_bytes)
{
    const zero_save_options known = {0};
    zi_sized_init(options, struct_bytes, &known, sizeof known);
}

void zero_save_progress_init_sized(zero_save_progress *progress, size_t struct_bytes)
{
    const zero_save_progress known = {0};
    zi_sized_init(progress, struct_bytes, &known, sizeof known);
}

/* ---- what is asked for ---- */

static zero_status check_user(const zero_checkpoint_user *user)
{
    if (user->bytes_count != 0 && user->bytes == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "user.bytes is NULL and bytes_count %" PRIu64 "; set it to 0, or give the bytes",
                user->bytes_count);
    }
    if (user->bytes_count > ZI_MANIFEST_USER_BYTES_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "user.bytes_count %" PRIu64 " is more than the %" PRIu64 " that a checkpoint keeps",
                user->bytes_count, ZI_MANIFEST_USER_BYTES_MAX);
    }
    for (size_t i = 0; i < sizeof user->reserved / sizeof user->reserved[0]; i++) {
        if (user->reserved[i] != 0) {
            ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                    "user.reserved[%zu] is %" PRIu64 "; this library knows nothing but 0 there", i,
                    user->reserved[i]);
        }
    }
    return ZERO_OK;
}

static zero_status save_check_options(const zero_save_options *options)
{
    if (options->directory == NULL || options->directory[0] == '\0') {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "directory is %s; name the run's, such as \"run\"",
                options->directory == NULL ? "NULL" : "empty");
    }
    ZI_TRY(options->name != NULL ? zi_checkpoint_check_name(options->name) : ZERO_OK);
    return check_user(&options->user);
}

/* The groups' optimizers and, where they are given, the last step's numbers. */
static zero_status take_groups(const zero_engine *engine, const zero_step_params *params,
                               zi_manifest *manifest)
{
    zi_step_input input;
    const float *weight = NULL;
    ZI_TRY(zi_engine_take_input(engine, params, &input, &weight));
    memcpy(manifest->groups, input.groups, sizeof manifest->groups);
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS && params != NULL; g++) {
        manifest->group_count =
            (engine->layout->groups >> g & 1) != 0 ? g + 1 : manifest->group_count;
    }
    return ZERO_OK;
}

/* Keep the caller's texts and bytes, which are the caller's again when a save has begun. */
static zero_status keep_texts(engine_save *save, const zero_save_options *options)
{
    char step[64];
    const zero_step_state *state = &save->manifest.state;
    zi_checkpoint_step_name(step, sizeof step, state->updates + state->skipped);
    const char *name = options->name != NULL ? options->name : step;
    const size_t directory_bytes = strlen(options->directory) + 1;
    const size_t name_bytes = strlen(name) + 1;
    const size_t part_bytes = directory_bytes + name_bytes + sizeof ".part";
    const size_t user_bytes = (size_t)options->user.bytes_count;
    ZI_TRY(zi_calloc(directory_bytes + name_bytes + part_bytes + user_bytes, 1,
                     (void **)&save->directory));
    save->name = save->directory + directory_bytes;
    save->part = save->name + name_bytes;
    save->user = save->part + part_bytes;
    memcpy(save->directory, options->directory, directory_bytes);
    memcpy(save->name, name, name_bytes);
    (void)snprintf(save->part, part_bytes, "%s/%s.part", options->directory, name);
    if (user_bytes != 0) {
        memcpy(save->user, options->user.bytes, user_bytes);
    }
    return ZERO_OK;
}

static zero_status save_describe(engine_save *save, const zero_save_options *options)
{
    const zero_engine *engine = save->engine;
    zi_manifest *manifest = &save->manifest;
    manifest->world = zero_world_size(engine->world);
    manifest->seed = engine->layout->options.seed;
    manifest->data_position = options->user.data_position;
    manifest->random_seed = options->user.random_seed;
    manifest->random_position = options->user.random_position;
    manifest->state = zero_step_state_init();
    ZI_TRY(zero_step_state_get(save->engine, &manifest->state));
    manifest->scale_dynamic = !engine->layout->tuning.loss_scale_static;
    ZI_TRY(take_groups(engine, options->params, manifest));
    ZI_TRY(keep_texts(save, options));
    manifest->user = save->user;
    manifest->user_bytes = options->user.bytes_count;
    ZI_TRY(zi_save_make_map(engine, options->params_only != 0, &manifest->map, &save->tensors));
    manifest->model_hash = zi_manifest_model_hash(&manifest->map);
    save->keep = options->keep;
    save->weights = options->params_only != 0;
    save->reflink = options->reflink != 0 && engine->store != NULL;
    save->bytes = zi_save_own_bytes(save);
    save->block_bytes = zi_min_u64(
        zi_align_up(zi_max_u64(save->bytes, ZI_WRITER_BLOCK_BYTES_MIN), ZI_CHECKPOINT_ALIGN),
        ZI_WRITER_BLOCK_BYTES);
    return ZERO_OK;
}

/* Hash the inputs that must be equal on all ranks; save_hash_of_part: on the ranks of a part, the
 * last step's numbers included. */
static uint64_t save_hash_of(const engine_save *save, const zero_save_options *options)
{
    uint64_t hash = zi_hash_text(ZI_HASH_START, save->directory);
    hash = zi_hash_text(hash, save->name);
    return zi_hash_u64(hash, (uint64_t)options->keep << 4 | (uint64_t)(options->reflink != 0) << 3 |
                                 (uint64_t)(options->params_only != 0) << 2 |
                                 (uint64_t)(options->replace != 0) << 1 |
                                 (uint64_t)(options->refuse_busy != 0));
}

static uint64_t save_hash_of_part(const engine_save *save, const zero_save_options *options)
{
    return zi_hash_bytes(save_hash_of(save, options), save->manifest.groups,
                         sizeof save->manifest.groups);
}

/* ---- beginning ---- */

static uint64_t own_ring_bytes(const engine_save *save)
{
    return zi_checkpoint_writer_ring_bytes(save->block_bytes, ZI_WRITER_RING_BLOCKS);
}

/* Memory and threads for this rank's slices. */
static zero_status make_writer(engine_save *save)
{
    const zero_engine *engine = save->engine;
    const zi_device *device = engine->device;
    ZI_TRY(zi_save_make_sums(save));
    zi_checkpoint_writer_desc desc = {.folder = save->part,
                                      .map = &save->manifest.map,
                                      .sums = save->sums,
                                      .add = zi_save_add_block,
                                      .user = save,
                                      .block_bytes = save->block_bytes,
                                      .made = zi_save_leads(engine) ? &save->whole->map : NULL,
                                      .ring = engine->arena[ZERO_ROLE_SAVE_STAGING],
                                      .ring_bytes = engine->arena_bytes[ZERO_ROLE_SAVE_STAGING]};
    ZI_TRY(device->ops->event_create(device->self, &save->copied));
    if (desc.ring == NULL) {
        desc.ring_bytes = own_ring_bytes(save);
        ZI_TRY(device->ops->host_alloc(device->self, desc.ring_bytes, (void **)&save->ring));
        desc.ring = save->ring;
    }
    return zi_checkpoint_writer_create(&desc, &save->writer);
}

/* Rank 0 of the mesh: remove what is there of it, unless it may be another owner's by now. The last
 * error stays. */
static void save_discard(const engine_save *save)
{
    if (save->run != NULL) {
        const zero_error error = *zero_last_error();
        if (zi_save_check_owner(save) == ZERO_OK) {
            zi_checkpoint_discard(save->directory, save->name);
        }
        (void)zi_error_adopt(&error);
    }
}

/* Rank 0 of the mesh: the folder and its files, those of all parts. */
static zero_status make_folder(engine_save *save, bool replace)
{
    char part[ZI_CHECKPOINT_PATH_BYTES];
    if (!zi_save_leads(save->engine)) {
        return ZERO_OK;
    }
    zi_manifest *whole = save->whole;
    ZI_TRY(
        zi_calloc(whole->map.file_count, sizeof *whole->header_hash, (void **)&whole->header_hash));
    ZI_TRY(zi_checkpoint_begin(save->directory, save->name, replace, part));
    whole->weights = save->weights;
    whole->commit = zi_save_next_commit(save);
    const zero_status status = zi_checkpoint_files_make(part, &whole->map, whole->header_hash);
    if (status != ZERO_OK) {
        save_discard(save);
    }
    return status;
}

/* Free all of a save, of which no task is left. The last error stays. Accepts NULL. */
static void free_save(engine_save *save)
{
    if (save == NULL) {
        return;
    }
    const zi_device *device = save->engine->device;
    const zero_error error = *zero_last_error();
    zi_checkpoint_writer_destroy(save->writer);
    zi_save_leave(save);
    zi_checkpoint_sums_destroy(save->sums);
    device->ops->event_destroy(device->self, save->copied);
    if (save->ring != NULL) {
        device->ops->host_free(device->self, save->ring, own_ring_bytes(save));
    }
    zi_save_free_parts(save);
    zi_checkpoint_map_free(&save->manifest.map);
    zi_free(save->manifest.map.tensors);
    zi_free(save->manifest.header_hash);
    zi_free(save->tensors);
    zi_free(save->directory);
    zi_free(save);
    (void)zi_error_adopt(&error);
}

/* Failures of one rank that leave the ranks in step leave the engine usable. */
static zero_status save_leave(zero_engine *engine, zero_status status)
{
    return status == ZERO_ERR_COMM || status == ZERO_ERR_TIMEOUT ? zi_engine_finish(engine, status)
                                                                 : status;
}

/* Put what is to be shared on the disk. No update needs blocks of the file system any more when
 * rank 0 reserves the files, so that those which sharing gives back suffice for the updates to
 * come. */
static zero_status save_settle(const engine_save *save)
{
    if (!save->reflink) {
        return ZERO_OK;
    }
    ZI_TRY(zi_engine_begin_transfer(save->engine, ZERO_ROLE_PARAM, false));
    return zi_engine_flush_shards(save->engine);
}

/* Make what the copy needs, on all ranks or on none. */
static zero_status save_prepare(engine_save *save, bool replace)
{
    zero_engine *engine = save->engine;
    save->whole = zi_save_leads(engine) ? &save->manifest : NULL;
    ZI_TRY(zi_engine_agree_done(engine, zi_save_join_parts(save)));
    ZI_TRY(zi_engine_agree_done(engine, save_settle(save)));
    zero_status owns = zi_save_own(save);
    owns = owns == ZERO_OK ? make_folder(save, replace) : owns;
    ZI_TRY(zi_engine_agree_done(engine, owns));
    const zero_status status = zi_engine_agree_done(engine, make_writer(save));
    if (status != ZERO_OK) {
        save_discard(save);
    }
    return status;
}

static zero_status take_options(const zero_engine *engine, const zero_save_options *given,
                                zero_save_options *options)
{
    ZI_TRY(ZI_OPTIONS_IN(zero_save_options, given, options));
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_SAVE, "zero_save_begin"));
    if (engine->save != NULL && options->refuse_busy != 0) {
        ZI_FAIL(ZERO_ERR_STATE,
                "zero_save_begin: the save of \"%.100s\" is under way; end it with zero_save_end, "
                "or set refuse_busy to 0 to wait for it",
                engine->save->name);
    }
    return save_check_options(options);
}

/* A save of what the caller asks for. *save: its caller frees it, also after a failure. */
static zero_status make_save(zero_engine *engine, const zero_save_options *given,
                             zero_save_options *options, engine_save **save)
{
    ZI_TRY(take_options(engine, given, options));
    ZI_TRY(zi_calloc(1, sizeof **save, (void **)save));
    (*save)->engine = engine;
    return save_describe(*save, options);
}

/* Each exchange tells all ranks of a failure of any of them, so all begin or none does. */
static zero_status save_begin(zero_engine *engine, const zero_save_options *given,
                              engine_save **save)
{
    zero_save_options options = zero_save_options_init();
    const zero_status checked = make_save(engine, given, &options, save);
    const uint64_t of_part = checked == ZERO_OK ? save_hash_of_part(*save, &options) : 0;
    const uint64_t of_all = checked == ZERO_OK ? save_hash_of(*save, &options) : 0;
    const zero_status agreed =
        zi_engine_agree_given(engine, engine->world, checked, of_part, "options of a save");
    ZI_TRY(zi_engine_agree_given(engine, engine->mesh, agreed, of_all, "options of a save"));
    ZI_TRY(zero_save_end(engine)); /* of the one before, where it is still under way */
    zi_engine_enter_call(engine, ZI_IN_SAVE);
    ZI_TRY(zi_engine_compare_replicas(engine));
    return save_prepare(*save, options.replace != 0);
}

static zero_status begin_save(zero_engine *engine, const zero_save_options *options,
                              bool waited_for)
{
    engine_save *save = NULL;
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_SAVE);
    const zero_status status = save_begin(engine, options, &save);
    if (status != ZERO_OK) {
        free_save(save);
        return save_leave(engine, status);
    }
    save->waited_for = waited_for;
    engine->save = save;
    return zi_engine_finish(engine, zi_save_stage(save));
}

zero_status zero_save_begin(zero_engine *engine, const zero_save_options *options)
{
    return begin_save(engine, options, false);
}

zero_status zero_save_poll(const zero_engine *engine, zero_save_progress *progress)
{
    zero_save_progress found = {0};
    ZI_TRY(zi_engine_check_given(engine));
    engine_save *save = engine->save;
    if (save != NULL) {
        const zi_checkpoint_writer_counts counts = zi_checkpoint_writer_count(save->writer);
        found.active = 1;
        found.written = counts.over;
        found.result = counts.result;
        found.bytes = save->bytes;
        found.staged_bytes = counts.staged_bytes;
        found.written_bytes = counts.written_bytes;
        found.shared_bytes = counts.shared_bytes;
        found.staged_ns = __atomic_load_n(&save->staged_ns, __ATOMIC_RELAXED);
    }
    return ZI_SIZED_OUT(zero_save_progress, progress, &found);
}

/* ---- ending ---- */

static zero_status commit_manifest(engine_save *save)
{
    zi_manifest *manifest = save->whole;
    char *text = NULL;
    size_t bytes = 0;
    ZI_TRY(zi_checkpoint_sums_hash(save->part, &manifest->map, &manifest->sums_hash));
    ZI_TRY(zi_manifest_write(manifest, &text, &bytes));
    const zi_checkpoint_text written = {text, bytes, save->weights};
    zero_status status = zi_save_check_owner(save);
    status =
        status == ZERO_OK ? zi_checkpoint_commit(save->directory, save->name, &written) : status;
    zi_free(text);
    return status;
}

/* Rank 0 of the mesh: make it whole. What is durable stays so, also where older ones cannot be
 * removed. */
static zero_status save_commit(engine_save *save)
{
    if (!zi_save_leads(save->engine)) {
        return ZERO_OK;
    }
    ZI_TRY(commit_manifest(save));
    if (save->keep != 0) {
        zi_save_prune(save);
    }
    return ZERO_OK;
}

/* Ranks wait for the slowest one's disk in rounds, so that no deadline passes meanwhile. */
static zero_status await_writers(const engine_save *save)
{
    zero_engine *engine = save->engine;
    uint64_t left = 0;
    do {
        left = zi_checkpoint_writer_wait(save->writer, ROUND_NS) ? 0 : 1;
        ZI_TRY(zi_engine_add_up(engine, &left, 1));
    } while (left != 0);
    return zi_engine_await(engine, save->copied);
}

static zero_status save_end(engine_save *save)
{
    zero_engine *engine = save->engine;
    zero_status status = zi_engine_agree_done(engine, zi_checkpoint_writer_result(save->writer));
    status = status == ZERO_OK ? zi_engine_agree_done(engine, save_commit(save)) : status;
    if (status != ZERO_OK) {
        save_discard(save);
    }
    engine->save = NULL;
    free_save(save);
    return status;
}

zero_status zero_save_end(zero_engine *engine)
{
    ZI_TRY(zi_engine_check(engine));
    if (engine->save == NULL) {
        return ZERO_OK;
    }
    zi_engine_enter_call(engine, ZI_IN_SAVE_END);
    ZI_TRY(zi_engine_finish(engine, await_writers(engine->save)));
    return save_leave(engine, save_end(engine->save));
}

zero_status zero_save(zero_engine *engine, const zero_save_options *options)
{
    ZI_TRY(begin_save(engine, options, true));
    return zero_save_end(engine);
}

void zi_save_abandon(zero_engine *engine)
{
    if (engine->save != NULL) {
        zi_checkpoint_writer_stop(engine->save->writer, NULL);
    }
}

void zi_save_close(zero_engine *engine)
{
    zi_save_await_prune(engine);
    if (engine->save != NULL) {
        save_discard(engine->save);
        free_save(engine->save);
        engine->save = NULL;
    }
    zi_save_leave_all(engine);
}
