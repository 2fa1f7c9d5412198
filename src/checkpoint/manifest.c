/* Owns writing manifests, and what can be said of one without a reader of JSON: whether its text is
 * as it was written, and how far its run was. Invariant: the first four lines and the last member
 * are laid out as here in every version of the format. */
#include "checkpoint/manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint/checkpoint_boxes.h"
#include "checkpoint/checkpoint_file.h"
#include "checkpoint/manifest_text.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "format/json.h"
#include "optimizer/optimizer_table.h"

#define TAIL_BEGIN ",\n\"xxh3\": "
#define TAIL_END "\n}\n"
/* The place of TAIL_END behind TAIL_BEGIN and the hash, 16 digits in quotes. */
#define TAIL_END_AT (sizeof TAIL_BEGIN - 1 + 18)
#define TAIL_BYTES (TAIL_END_AT + sizeof TAIL_END - 1)

uint64_t zi_manifest_model_hash(const zi_checkpoint_map *map)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        const zi_box box = zi_box_of(&map->tensors[i]);
        uint64_t hash = zi_hash_text(ZI_HASH_START, map->tensors[i].name);
        uint64_t offset = 0;
        hash = zi_hash_u64(hash, box.dims);
        for (uint32_t d = 0; d < box.dims; d++) {
            hash = zi_hash_u64(hash, box.global[d]);
            offset |= box.first[d];
        }
        sum += offset == 0 ? hash ^ hash >> 32 : 0;
    }
    return sum;
}

/* ---- members ---- */

static json_t *group_json(const zi_hyper *hyper, const double *carried, bool has_numbers)
{
    const zi_optimizer *optimizer = zi_optimizer_of(hyper->kind);
    json_t *group = json_object();
    json_t *reals = json_array();
    for (int i = 0; i < ZI_CARRIED; i++) {
        zi_json_append(&reals, json_real(carried[i]));
    }
    zi_json_set(&group, "optimizer", json_string(optimizer->name));
    zi_json_set(&group, "carried", reals);
    for (uint32_t i = 0; i < optimizer->number_count && has_numbers; i++) {
        zi_json_set(&group, optimizer->numbers[i].name, json_real((double)hyper->number[i]));
    }
    return group;
}

/* All groups: their optimizers and what these carry on, and the numbers of the first group_count.
 */
static json_t *groups_json(const zi_hyper *groups, uint32_t group_count,
                           const double carried[][ZERO_STEP_CARRIED])
{
    json_t *array = json_array();
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS; g++) {
        zi_json_append(&array, group_json(&groups[g], carried[g], g < group_count));
    }
    return array;
}

static json_t *part_json(const zi_manifest_part *part, uint32_t number)
{
    json_t *json = json_object();
    zi_json_set(&json, "part", zi_json_of_number(number));
    zi_json_set(&json, "groups", groups_json(part->groups, part->group_count, part->carried));
    return json;
}

static json_t *user_json(const zi_manifest *manifest)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *bytes = manifest->user;
    char *text = NULL;
    if (zi_calloc((size_t)manifest->user_bytes + 1, 2, (void **)&text) != ZERO_OK) {
        return NULL;
    }
    for (uint64_t i = 0; i < manifest->user_bytes; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    json_t *json = json_string(text);
    zi_free(text);
    return json;
}

static json_t *sums_json(const zi_manifest *manifest)
{
    json_t *sums = json_object();
    zi_json_set(&sums, "name", json_string(ZI_SUMS_NAME));
    zi_json_set(&sums, "pieces", zi_json_of_number(manifest->map.piece_count));
    zi_json_set(&sums, "piece_elements", zi_json_of_number(ZI_PIECE_COUNT));
    zi_json_set(&sums, "xxh3", zi_json_of_hash(manifest->sums_hash));
    return sums;
}

static json_t *file_json(const zi_checkpoint_file *file, uint64_t header_hash)
{
    json_t *json = json_object();
    zi_json_set(&json, "name", json_string(file->name));
    zi_json_set(&json, "role", json_string(zero_role_name(file->role)));
    zi_json_set(&json, "data_at", zi_json_of_number(file->data_at));
    zi_json_set(&json, "bytes", zi_json_of_number(file->bytes));
    zi_json_set(&json, "header_xxh3", zi_json_of_hash(header_hash));
    return json;
}

/* "param": ["f32", file, at, first_piece] */
static json_t *places_json(const zi_checkpoint_tensor *tensor)
{
    json_t *places = json_object();
    for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
        const zi_checkpoint_place *place = &tensor->role[role];
        if (role == ZERO_ROLE_GRAD || zero_dtype_bytes(place->dtype) == 0) {
            continue;
        }
        json_t *entry = json_array();
        zi_json_append(&entry, json_string(zero_dtype_name(place->dtype)));
        zi_json_append(&entry, zi_json_of_number(place->file));
        zi_json_append(&entry, zi_json_of_number(place->at));
        zi_json_append(&entry, zi_json_of_number(place->first_piece));
        zi_json_set(&places, zero_role_name(role), entry);
    }
    return places;
}

static json_t *tensor_json(const zi_checkpoint_map *map, const zi_checkpoint_tensor *tensor)
{
    json_t *json = json_object();
    zi_json_set(&json, "name", json_string(tensor->name));
    if (map->part_count > 1) {
        zi_json_set(&json, "part", zi_json_of_number(tensor->part));
    }
    zi_json_set(&json, "shape", zi_json_of_numbers(tensor->shape, tensor->dims));
    if (tensor->is_box) {
        zi_json_set(&json, "global_shape", zi_json_of_numbers(tensor->global_shape, tensor->dims));
        zi_json_set(&json, "box_first", zi_json_of_numbers(tensor->box_first, tensor->dims));
    }
    zi_json_set(&json, "flags", zi_json_of_number(tensor->flags));
    zi_json_set(&json, "group", zi_json_of_number(tensor->group));
    const uint64_t cuts[] = {tensor->cut_first, tensor->cut_every};
    zi_json_set(&json, "cuts", zi_json_of_numbers(cuts, 2));
    zi_json_set(&json, "places", places_json(tensor));
    return json;
}

static int version_of(const zi_checkpoint_map *map)
{
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
            if (zi_dtype_is_small(map->tensors[i].role[role].dtype)) {
                return ZI_MANIFEST_VERSION_SMALL;
            }
        }
    }
    return map->part_count > 1 ? ZI_MANIFEST_VERSION_PARTS : ZI_MANIFEST_VERSION;
}

/* How far a run was, and the numbers of its step. */
static void put_state(zi_json_writer *json, const zi_manifest *manifest)
{
    const zero_step_state *state = &manifest->state;
    zi_json_member(json, "format", json_string(ZI_MANIFEST_FORMAT));
    zi_json_member(json, "version", zi_json_of_number((uint64_t)version_of(&manifest->map)));
    zi_json_member(json, "updates", zi_json_of_digits(state->updates));
    zi_json_member(json, "skipped", zi_json_of_digits(state->skipped));
    zi_json_member(json, "commit", zi_json_of_digits(manifest->commit));
    zi_json_member(json, "kind", json_string(manifest->weights ? "weights" : "full"));
    zi_json_member(json, "byte_order", json_string("little"));
    zi_json_member(json, "world", zi_json_of_number(manifest->world));
    zi_json_member(json, "seed", zi_json_of_digits(manifest->seed));
    zi_json_member(json, "model_hash", zi_json_of_hash(manifest->model_hash));
    zi_json_member(json, "loss_scale", json_real((double)state->loss_scale));
    zi_json_member(json, "loss_scale_dynamic", json_boolean(manifest->scale_dynamic));
    zi_json_member(json, "good_steps", zi_json_of_number(state->good_steps));
    zi_json_member(json, "overflows", zi_json_of_number(state->overflows));
    zi_json_list(json, "groups");
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS; g++) {
        zi_json_entry(
            json, group_json(&manifest->groups[g], state->carried[g], g < manifest->group_count));
    }
}

static void put_members(zi_json_writer *json, const zi_manifest *manifest)
{
    const zi_checkpoint_map *map = &manifest->map;
    put_state(json, manifest);
    if (map->part_count > 1) {
        zi_json_list(json, "parts");
    }
    for (uint32_t i = 0; i < map->part_count && map->part_count > 1; i++) {
        zi_json_entry(json, part_json(&manifest->parts[i], i));
    }
    zi_json_member(json, "data_position", zi_json_of_digits(manifest->data_position));
    zi_json_member(json, "random_seed", zi_json_of_digits(manifest->random_seed));
    zi_json_member(json, "random_position", zi_json_of_digits(manifest->random_position));
    zi_json_member(json, "user", user_json(manifest));
    zi_json_member(json, "sums", sums_json(manifest));
    zi_json_list(json, "files");
    for (uint32_t i = 0; i < map->file_count; i++) {
        zi_json_entry(json, file_json(&map->files[i], manifest->header_hash[i]));
    }
    zi_json_list(json, "tensors");
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        zi_json_entry(json, tensor_json(map, &map->tensors[i]));
    }
}

/* The last member of a manifest whose text before it is `body`; with a NUL. */
static void put_tail(char tail[TAIL_BYTES + 1], const char *body, size_t bytes)
{
    (void)snprintf(tail, TAIL_BYTES + 1, TAIL_BEGIN "\"%016" PRIx64 "\"" TAIL_END,
                   zi_checkpoint_hash(body, bytes));
}

zero_status zi_manifest_write(const zi_manifest *manifest, char **text, size_t *bytes)
{
    zi_json_writer json;
    zi_json_begin(&json, 0);
    put_members(&json, manifest);
    zi_json_member(&json, "xxh3",
                   zi_json_of_hash(0)); /* of what is ahead of it, when it is there */
    ZI_TRY(zi_json_end(&json, text, bytes));
    const size_t body = *bytes - TAIL_BYTES;
    put_tail(*text + body, *text, body);
    return ZERO_OK;
}

/* ---- reading without JSON ---- */

static zero_status refuse_missing(const char *folder)
{
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "%.180s has no " ZI_MANIFEST_NAME
            "; its save did not end, or it is no checkpoint: name another",
            folder);
}

static zero_status load_text(const char *folder, zi_manifest_text *text)
{
    zi_regular_file file;
    ZI_TRY(zi_checkpoint_path(text->path, folder, ZI_MANIFEST_NAME));
    zero_status status = zi_checkpoint_open(&file, text->path);
    if (status == ZERO_ERR_IO &&
        (zero_last_error()->native == ENOENT || zero_last_error()->native == ENOTDIR)) {
        return refuse_missing(folder);
    }
    if (status == ZERO_OK && file.bytes > ZI_MANIFEST_BYTES_MAX) {
        status = zi_error_set(ZERO_ERR_INVALID_ARGUMENT, 0, __FILE__, __LINE__,
                              "%s has more than 4 GiB; a manifest has less", text->path);
    }
    text->bytes = (size_t)file.bytes;
    if (status == ZERO_OK) {
        status = zi_calloc(1, text->bytes + 1, (void **)&text->text);
    }
    if (status == ZERO_OK) {
        status = zi_regular_file_read(&file, 0, text->text, &text->bytes);
    }
    zi_regular_file_close(&file);
    return status;
}

static bool holds(const zi_manifest_text *text, size_t at, const char *what)
{
    const size_t bytes = strlen(what);
    return text->bytes >= at + bytes && memcmp(text->text + at, what, bytes) == 0;
}

/* It begins or ends as a manifest does. One of the two is enough, since a wrong bit may be in the
 * other: then the file is a damaged manifest, and no stranger's. */
static bool is_manifest(const zi_manifest_text *text)
{
    return holds(text, 0, "{\n\"format\": \"libzero") ||
           (text->bytes > TAIL_BYTES && holds(text, text->bytes - TAIL_BYTES, TAIL_BEGIN) &&
            holds(text, text->bytes - TAIL_BYTES + TAIL_END_AT, TAIL_END));
}

static zero_status manifest_check_hash(const zi_manifest_text *text)
{
    char tail[TAIL_BYTES + 1];
    const size_t body = text->bytes - TAIL_BYTES;
    if (!is_manifest(text)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s is not a checkpoint's: it does not say "
                "\"" ZI_MANIFEST_FORMAT "\"",
                text->path);
    }
    if (text->bytes > TAIL_BYTES) {
        put_tail(tail, text->text, body);
    }
    if (text->bytes <= TAIL_BYTES || memcmp(text->text + body, tail, TAIL_BYTES) != 0) {
        ZI_FAIL(ZERO_ERR_CORRUPT,
                "%s is damaged: its %zu bytes do not have the XXH3 that its end says; load another "
                "checkpoint",
                text->path, text->bytes);
    }
    return ZERO_OK;
}

/* Decimal digits, then `end`. */
static bool manifest_take_number(const char **at, const char *end, uint64_t *number)
{
    const char *const begin = *at;
    const size_t bytes = strlen(end);
    uint64_t value = 0;
    for (; **at >= '0' && **at <= '9'; ++*at) {
        if (!zi_mul_u64(value, 10, &value) || !zi_add_u64(value, (uint64_t)(**at - '0'), &value)) {
            return false;
        }
    }
    const bool found = *at != begin && strncmp(*at, end, bytes) == 0;
    *at += found ? bytes : 0;
    *number = value;
    return found;
}

/* Go behind what is there. */
static bool manifest_take(const char **at, const char *with)
{
    const size_t bytes = strlen(with);
    const bool found = strncmp(*at, with, bytes) == 0;
    *at += found ? bytes : 0;
    return found;
}

/* The two lines behind the first ones. */
static zero_status read_kind(zi_manifest_text *text, const char *at)
{
    zi_manifest_head *head = &text->head;
    if (!manifest_take(&at, "\"commit\": \"") ||
        !manifest_take_number(&at, "\",\n\"kind\": \"", &head->commit) ||
        !(manifest_take(&at, "full\"") || (head->weights = manifest_take(&at, "weights\"")))) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s: its first lines have no \"commit\" and \"kind\"",
                text->path);
    }
    return ZERO_OK;
}

/* The first lines; the text ends with a NUL. */
static zero_status read_head(zi_manifest_text *text)
{
    static const char format[] = "{\n\"format\": \"" ZI_MANIFEST_FORMAT "\",\n\"version\": ";
    const char *at = text->text + sizeof format - 1;
    zi_manifest_head *head = &text->head;
    uint64_t skipped = 0;
    *head = (zi_manifest_head){0};
    if (!holds(text, 0, format) ||
        !manifest_take_number(&at, ",\n\"updates\": \"", &text->version)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s: its first lines are not those of a checkpoint",
                text->path);
    }
    if (text->version < ZI_MANIFEST_VERSION || text->version > ZI_MANIFEST_VERSION_SMALL) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "%s has version %" PRIu64 " of the format; this library knows %d to %d, link a "
                "newer one",
                text->path, text->version, ZI_MANIFEST_VERSION, ZI_MANIFEST_VERSION_SMALL);
    }
    if (!manifest_take_number(&at, "\",\n\"skipped\": \"", &head->step) ||
        !manifest_take_number(&at, "\",\n", &skipped) ||
        !zi_add_u64(head->step, skipped, &head->step)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: its first lines have no \"updates\" and \"skipped\"", text->path);
    }
    return read_kind(text, at);
}

zero_status zi_manifest_text_load(zi_manifest_text *text, const char *folder)
{
    text->text = NULL;
    ZI_TRY(load_text(folder, text));
    ZI_TRY(manifest_check_hash(text));
    return read_head(text);
}

static zero_status check_file(const char *folder, const char *name, uint64_t bytes)
{
    char path[ZI_CHECKPOINT_PATH_BYTES];
    struct stat info;
    ZI_TRY(zi_checkpoint_path(path, folder, name));
    if (lstat(path, &info) != 0) {
        const int code = errno;
        if (code == ENOENT) {
            ZI_FAIL(ZERO_ERR_CORRUPT, "%s is not there; load another checkpoint", path);
        }
        ZI_FAIL_NATIVE(ZERO_ERR_IO, code, "%s: %s", path, strerror(code));
    }
    if (!S_ISREG(info.st_mode)) {
        ZI_FAIL(ZERO_ERR_CORRUPT, "%s is no regular file; load another checkpoint", path);
    }
    if ((uint64_t)info.st_size != bytes) {
        ZI_FAIL(ZERO_ERR_CORRUPT, "%s has %" PRIu64 " bytes instead of %" PRIu64, path,
                (uint64_t)info.st_size, bytes);
    }
    return ZERO_OK;
}

/* Go behind the next place that has it. */
static bool take_next(const char **at, const char *with)
{
    const char *found = strstr(*at, with);
    *at = found != NULL ? found + strlen(with) : *at;
    return found != NULL;
}

/* Check the files of a manifest that is laid out as this library writes it; one that is laid out in
 * another way is believed. */
static zero_status manifest_check_files(const char *folder, const zi_manifest_text *text)
{
    const char *at = text->text;
    uint64_t number = 0;
    if (!take_next(&at, ",\n\"sums\": {\"name\": \"" ZI_SUMS_NAME "\", \"pieces\": ") ||
        !manifest_take_number(&at, ",", &number)) {
        return ZERO_OK;
    }
    ZI_TRY(check_file(folder, ZI_SUMS_NAME, number * sizeof(uint64_t)));
    bool more = take_next(&at, ",\n\"files\": [");
    while (more && manifest_take(&at, "\n{\"name\": \"")) {
        char name[256];
        const size_t length = strcspn(at, "\"/");
        (void)snprintf(name, sizeof name, "%.*s", (int)zi_min_u64(length, sizeof name), at);
        more = at[length] == '"' && take_next(&at, "\"bytes\": ") &&
               manifest_take_number(&at, ",", &number);
        ZI_TRY(more ? check_file(folder, name, number) : ZERO_OK);
        more = more && take_next(&at, "}") && manifest_take(&at, ",");
    }
    return ZERO_OK;
}

zero_status zi_manifest_read_head(const char *folder, bool files, zi_manifest_head *head)
{
    zi_manifest_text text;
    zero_status status = zi_manifest_text_load(&text, folder);
    *head = status == ZERO_OK ? text.head : (zi_manifest_head){0};
    status = status == ZERO_OK && files ? manifest_check_files(folder, &text) : status;
    zi_free(text.text);
    return status;
}

uint64_t zi_manifest_commit(const char *folder)
{
    char first[512];
    zi_regular_file file;
    zi_manifest_text text = {.text = first, .bytes = sizeof first - 1};
    if (zi_checkpoint_path(text.path, folder, ZI_MANIFEST_NAME) != ZERO_OK) {
        return 0;
    }
    const bool read = zi_checkpoint_open(&file, text.path) == ZERO_OK &&
                      zi_regular_file_read(&file, 0, first, &text.bytes) == ZERO_OK;
    zi_regular_file_close(&file);
    first[read ? text.bytes : 0] = '\0';
    return read && read_head(&text) == ZERO_OK ? text.head.commit : 0;
}
