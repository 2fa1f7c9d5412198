/* Owns the file of a rank's last collectives: what it says, and where it is written when one of
 * them fails. Invariant: nothing here waits for a rank, a stream or a lock, so it works while the
 * engine hangs; what is read of a group may move on meanwhile and is read once. */
#include "engine/collectives_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/host.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/groups.h"
#include "format/json.h"
#include "format/whole_file.h"
#include "zero/version.h"

#define FORMAT_VERSION 1
/* Batches of a group that have ended and are written; of the others all are that are recorded. */
#define ENDED_WRITTEN 64
/* The engine's groups, and the coordination group of either world. */
#define GROUPS (ENGINE_GROUPS + 2)
#define PATH_BYTES 4096
/* Files of one rank and process that a directory holds at most. */
#define FILES_MAX 16

typedef struct group_copy {
    const zi_group *group;   /* NULL: there is none */
    const zero_world *world; /* that its members are ranks of */
    uint64_t enqueued;
    uint64_t done;
    uint32_t count;
    zi_record records[ZI_RECORDS];
} group_copy;

typedef struct file_copy {
    const zero_engine *engine;
    const zero_error *error; /* that made it; NULL: somebody asked */
    uint64_t written_ns;
    uint64_t written_at_ns; /* since 1970: ties the times of hosts together */
    char host[ZI_HOST_NAME_BYTES];
    group_copy groups[GROUPS];
} file_copy;

/* ---- what it says ---- */

static bool is_written(const group_copy *copy, const zi_record *record)
{
    return record->number + ENDED_WRITTEN >= copy->enqueued ||
           record->state == ZI_RECORD_ENQUEUED || record->state == ZI_RECORD_STARTED;
}

/* The count of done batches is read first: a batch below it that is not recorded as done any more
 * has been overwritten. */
static void copy_group(const zi_group *group, const zero_world *world, group_copy *copy)
{
    const zi_recorder *recorder = &group->recorder;
    copy->group = group;
    copy->world = world;
    copy->done = atomic_load_explicit(&recorder->done, memory_order_acquire);
    copy->enqueued = atomic_load_explicit(&recorder->enqueued, memory_order_acquire);
    uint64_t number = copy->enqueued - zi_min_u64(copy->enqueued, ZI_RECORDS);
    for (; number < copy->enqueued; number++) {
        zi_record *record = &copy->records[copy->count];
        copy->count += zi_recorder_read(recorder, number, record) && is_written(copy, record);
    }
}

static void copy_all(const zero_engine *engine, const zero_error *error, file_copy *copy)
{
    struct timespec now;
    copy->engine = engine;
    copy->error = error;
    zi_host_name(copy->host);
    for (uint32_t i = 0; i < ENGINE_GROUPS; i++) {
        const zi_group *group = zi_engine_group_at(engine, i);
        if (group != NULL) {
            copy_group(group, group == engine->groups.mesh ? engine->mesh : engine->world,
                       &copy->groups[i]);
        }
    }
    copy_group(engine->world->coordination, engine->world, &copy->groups[ENGINE_GROUPS]);
    if (engine->mesh != NULL) {
        copy_group(engine->mesh->coordination, engine->mesh, &copy->groups[ENGINE_GROUPS + 1]);
    }
    (void)clock_gettime(CLOCK_REALTIME, &now);
    copy->written_at_ns = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
    copy->written_ns = zi_clock_ns(); /* no time in it is later, but for batches under way */
}

static json_t *time_json(uint64_t ns)
{
    return ns != 0 ? zi_json_of_number(ns) : json_null();
}

/* The first collective of a batch.
 * - layout: has the names of its units; NULL: it is a world's own, about no unit. */
static void set_terms(json_t **batch, const zi_layout *layout, const zi_record *record)
{
    zi_collective_terms terms;
    char text[ZI_COLLECTIVE_TEXT_BYTES] = "an empty batch";
    memcpy(&terms, record->terms, sizeof terms);
    if (record->collectives != 0) {
        const zi_collective_kind kind = (zi_collective_kind)terms.kind;
        (void)zi_collective_terms_text(&terms, text, sizeof text);
        zi_json_set(batch, "kind", json_string(zi_collective_kind_name(kind)));
        zi_json_set(batch, "dtype", json_string(zero_dtype_name((zero_dtype)terms.send_dtype)));
        zi_json_set(batch, "count", zi_json_of_number(terms.count));
    }
    if (record->collectives != 0 && (terms.flags & ZI_COLLECTIVE_LAST) != 0) {
        zi_json_set(batch, "last", json_true());
    }
    if (record->collectives != 0 && layout != NULL && terms.tag < layout->unit_count) {
        zi_json_set(batch, "unit", zi_json_of_number(terms.tag));
        zi_json_set(batch, "of", zi_json_of_text(layout->unit_infos[terms.tag].name));
    }
    zi_json_set(batch, "text", zi_json_of_text(text));
}

static json_t *batch_json(const zi_layout *layout, const zi_record *record)
{
    json_t *batch = json_object();
    zi_json_set(&batch, "batch", zi_json_of_number(record->number));
    zi_json_set(&batch, "state", json_string(zi_record_state_text(record->state)));
    set_terms(&batch, layout, record);
    zi_json_set(&batch, "collectives", zi_json_of_number(record->collectives));
    zi_json_set(&batch, "bytes", zi_json_of_number(record->bytes));
    zi_json_set(&batch, "hash", zi_json_of_number(record->hash)); /* it has 32 bits */
    zi_json_set(&batch, "enqueued_ns", time_json(record->enqueued_ns));
    zi_json_set(&batch, "started_ns", time_json(record->started_ns));
    zi_json_set(&batch, "ended_ns", time_json(record->ended_ns));
    return batch;
}

/* A number for a rank of a part of the model, among all. */
static uint64_t collectives_file_process(const zero_engine *engine, uint32_t part, uint32_t rank)
{
    return (uint64_t)part * zero_world_size(engine->world) + rank;
}

static json_t *members_json(const zero_engine *engine, const group_copy *copy)
{
    const zi_group *group = copy->group;
    json_t *members = json_array();
    for (uint32_t i = 0; i < group->size; i++) {
        const uint32_t member = group->members != NULL ? group->members[i] : i;
        zi_json_append(
            &members,
            zi_json_of_number(
                copy->world == engine->mesh
                    ? collectives_file_process(engine, member, zero_world_rank(engine->world))
                    : collectives_file_process(engine, zero_world_rank(engine->mesh), member)));
    }
    return members;
}

static json_t *copy_json(const zero_engine *engine, const group_copy *copy)
{
    json_t *group = json_object();
    json_t *batches = json_array();
    const zi_layout *layout = copy->group->members != NULL ? engine->layout : NULL;
    for (uint32_t i = 0; i < copy->count; i++) {
        zi_json_append(&batches, batch_json(layout, &copy->records[i]));
    }
    zi_json_set(&group, "name", zi_json_of_text(copy->group->name));
    zi_json_set(&group, "members", members_json(engine, copy));
    zi_json_set(&group, "enqueued", zi_json_of_number(copy->enqueued));
    zi_json_set(&group, "done", zi_json_of_number(copy->done));
    zi_json_set(&group, "batches", batches);
    return group;
}

static void put_copy(zi_json_writer *json, const file_copy *copy)
{
    const zero_engine *engine = copy->engine;
    const zero_world *mesh = engine->mesh;
    const zero_error *error = copy->error;
    zi_json_member(json, "format", json_string("libzero collectives"));
    zi_json_member(json, "version", zi_json_of_number(FORMAT_VERSION));
    zi_json_member(json, "producer", json_string(zero_version()));
    zi_json_member(json, "host", zi_json_of_text(copy->host));
    zi_json_member(json, "pid", zi_json_of_number((uint64_t)getpid()));
    zi_json_member(json, "rank", zi_json_of_number(zero_world_rank(engine->world)));
    zi_json_member(json, "world", zi_json_of_number(zero_world_size(engine->world)));
    zi_json_member(json, "part", zi_json_of_number(zero_world_rank(mesh)));
    zi_json_member(json, "parts", zi_json_of_number(mesh != NULL ? zero_world_size(mesh) : 1));
    zi_json_member(json, "written_at_ns", zi_json_of_number(copy->written_at_ns));
    zi_json_member(json, "written_ns", zi_json_of_number(copy->written_ns));
    zi_json_member(json, "status",
                   json_string(error != NULL ? zero_status_name(error->status) : "OK"));
    zi_json_member(json, "error", zi_json_of_text(error != NULL ? error->message : ""));
    zi_json_list(json, "groups");
    for (uint32_t i = 0; i < GROUPS; i++) {
        if (copy->groups[i].group != NULL) {
            zi_json_entry(json, copy_json(engine, &copy->groups[i]));
        }
    }
}

static zero_status write_copy(const file_copy *copy, const char *path)
{
    zi_json_writer json;
    char *text = NULL;
    size_t bytes = 0;
    zi_json_begin(&json, JSON_COMPACT);
    put_copy(&json, copy);
    ZI_TRY(zi_json_end(&json, &text, &bytes));
    const zero_status status = zi_whole_file_replace(path, text, bytes);
    zi_free(text);
    return status;
}

static zero_status write_file(const zero_engine *engine, const zero_error *error, const char *path)
{
    file_copy *copy = NULL;
    ZI_TRY(zi_calloc(1, sizeof *copy, (void **)&copy));
    copy_all(engine, error, copy);
    const zero_status status = write_copy(copy, path);
    zi_free(copy);
    return status;
}

/* ---- where it is ---- */

/* A name that no file in the directory has: another engine of this rank, or an earlier run, may
 * have left one. */
static zero_status name_file(const zero_engine *engine, char path[PATH_BYTES])
{
    struct stat kind;
    char host[ZI_HOST_NAME_BYTES];
    char part[24] = "";
    zi_host_name(host);
    for (char *at = host; *at != '\0'; at++) {
        *at = *at == '/' ? '_' : *at;
    }
    if (engine->mesh != NULL) {
        (void)snprintf(part, sizeof part, "-part%" PRIu32, zero_world_rank(engine->mesh));
    }
    for (uint32_t i = 1; i <= FILES_MAX; i++) {
        char again[16] = "";
        if (i > 1) {
            (void)snprintf(again, sizeof again, "-%" PRIu32, i);
        }
        const int length =
            snprintf(path, PATH_BYTES, "%s/collectives-%.64s-rank%" PRIu32 "%s-pid%ld%s.json",
                     engine->hang_directory, host, zero_world_rank(engine->world), part,
                     (long)getpid(), again);
        if (length < 0 || length >= PATH_BYTES) {
            ZI_FAIL(ZERO_ERR_IO, "tuning.hang_directory \"%.60s...\" is too long for a path",
                    engine->hang_directory);
        }
        if (lstat(path, &kind) != 0 && errno == ENOENT) {
            return ZERO_OK;
        }
    }
    ZI_FAIL(ZERO_ERR_IO,
            "tuning.hang_directory \"%.100s\" has %d files of this rank; remove old ones",
            engine->hang_directory, FILES_MAX);
}

zero_status zi_engine_keep_hang_directory(zero_engine *engine, const zero_engine_options *options)
{
    zero_engine_options resolved;
    zero_tuning tuning;
    struct stat kind;
    ZI_TRY(zi_options_resolve(options, &resolved, &tuning));
    const char *directory = tuning.hang_directory;
    if (directory == NULL) {
        return ZERO_OK;
    }
    if (stat(directory, &kind) != 0 || !S_ISDIR(kind.st_mode) || access(directory, W_OK) != 0) {
        ZI_FAIL(
            ZERO_ERR_INVALID_ARGUMENT,
            "tuning.hang_directory \"%.100s\" is no directory that this rank may write to; make "
            "it, or leave the option NULL",
            directory);
    }
    const size_t bytes = strlen(directory) + 1;
    ZI_TRY(zi_calloc(1, bytes, (void **)&engine->hang_directory));
    memcpy(engine->hang_directory, directory, bytes);
    return ZERO_OK;
}

zero_status zi_engine_write_collectives(const zero_engine *engine, const char *path)
{
    char named[PATH_BYTES];
    if (path == NULL && engine->hang_directory == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "path is NULL and the engine has no tuning.hang_directory; give a file, or create "
                "the engine with that option");
    }
    if (path == NULL) {
        ZI_TRY(name_file(engine, named));
    }
    return write_file(engine, NULL, path != NULL ? path : named);
}

/* Add to a message, of which as much gives way as has no room. */
static void collectives_file_append(zero_error *error, const char *text)
{
    const size_t room = sizeof error->message - 1;
    const size_t added = zi_min_u64(strlen(text), room);
    const size_t kept = zi_min_u64(strlen(error->message), room - added);
    memcpy(error->message + kept, text, added);
    error->message[kept + added] = '\0';
}

/* A path that leaves too little of the message is cut to its name. */
static void append_path(zero_error *error, const char *path)
{
    char text[PATH_BYTES + 64];
    const char *name = strrchr(path, '/') + 1;
    const bool whole = strlen(path) <= sizeof error->message / 2;
    (void)snprintf(text, sizeof text, "; collectives: %s%s", whole ? path : name,
                   whole ? "" : " in tuning.hang_directory");
    collectives_file_append(error, text);
}

void zi_engine_report_hang(const zero_engine *engine, zero_error *error)
{
    static const char hint[] = "; tuning.hang_directory keeps what led to this";
    const zero_error found = *error;
    const bool collective = error->status == ZERO_ERR_TIMEOUT || error->status == ZERO_ERR_MISMATCH;
    char path[PATH_BYTES];
    if (engine->hang_directory == NULL) {
        if (collective && strlen(error->message) + sizeof hint <= sizeof error->message) {
            collectives_file_append(error, hint);
        }
        return;
    }
    if (!collective && error->status != ZERO_ERR_COMM) {
        return;
    }
    zero_status status = name_file(engine, path);
    status = status == ZERO_OK ? write_file(engine, &found, path) : status;
    if (status == ZERO_OK) {
        append_path(error, path);
    } else {
        char text[160];
        (void)snprintf(text, sizeof text, "; its collectives are lost: %.120s",
                       zero_last_error()->message);
        collectives_file_append(error, text);
    }
}
