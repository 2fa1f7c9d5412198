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
#include "format/json_text.h"
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

static void manifest_put_name(zi_json_out *out, const char *name)
{
    zi_json_put(out, ",\n\"");
    zi_json_put(out, name);
    zi_json_put(out, "\": ");
}

static void put_number(zi_json_out *out, const char *name, uint64_t number)
{
    manifest_put_name(out, name);
    zi_json_put_number(out, number);
}

static void put_quoted(zi_json_out *out, const char *name, uint64_t number)
{
    manifest_put_name(out, name);
    zi_json_put_quoted(out, number);
}

static void put_hash(zi_json_out *out, const char *name, uint64_t hash)
{
    manifest_put_name(out, name);
    zi_json_put_hash(out, hash);
}

static void manifest_put_group(zi_json_out *out, const zi_hyper *hyper, const double *carried,
                               bool has_numbers)
{
    const zi_optimizer *optimizer = zi_optimizer_of(hyper->kind);
    zi_json_put(out, "{\"optimizer\": ");
    zi_json_put_text(out, optimizer->name);
    for (int i = 0; i < ZI_CARRIED; i++) {
        zi_json_put(out, i == 0 ? ", \"carried\": [" : ", ");
        zi_json_put_real(out, carried[i]);
    }
    zi_json_put(out, "]");
    for (uint32_t i = 0; i < optimizer->number_count && has_numbers; i++) {
        zi_json_put(out, ", \"");
        zi_json_put(out, optimizer->numbers[i].name);
        zi_json_put(out, "\": ");
        zi_json_put_float(out, hyper->number[i]);
    }
    zi_json_put(out, "}");
}

/* All groups: their optimizers and what these carry on, and the numbers of the first group_count.
 */
static void put_groups(zi_json_out *out, const zi_hyper *groups, uint32_t group_count,
                       const double carried[][ZERO_STEP_CARRIED])
{
    manifest_put_name(out, "groups");
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS; g++) {
        zi_json_put(out, g == 0 ? "[\n" : ",\n");
        manifest_put_group(out, &groups[g], carried[g], g < group_count);
    }
    zi_json_put(out, "]");
}

static void manifest_put_parts(zi_json_out *out, const zi_manifest *manifest)
{
    manifest_put_name(out, "parts");
    zi_json_put(out, "[");
    for (uint32_t i = 0; i < manifest->map.part_count; i++) {
        const zi_manifest_part *part = &manifest->parts[i];
        zi_json_put(out, i == 0 ? "\n{\"part\": " : "},\n{\"part\": ");
        zi_json_put_number(out, i);
        put_groups(out, part->groups, part->group_count, part->carried);
    }
    zi_json_put(out, "}]");
}

static void put_user(zi_json_out *out, const zi_manifest *manifest)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *bytes = manifest->user;
    manifest_put_name(out, "user");
    zi_json_put(out, "\"");
    for (uint64_t i = 0; i < manifest->user_bytes; i++) {
        const char pair[] = {digits[bytes[i] >> 4], digits[bytes[i] & 15], '\0'};
        zi_json_put(out, pair);
    }
    zi_json_put(out, "\"");
}

static void put_sums(zi_json_out *out, const zi_manifest *manifest)
{
    manifest_put_name(out, "sums");
    zi_json_put(out, "{\"name\": \"" ZI_SUMS_NAME "\", \"pieces\": ");
    zi_json_put_number(out, manifest->map.piece_count);
    zi_json_put(out, ", \"piece_elements\": ");
    zi_json_put_number(out, ZI_PIECE_COUNT);
    zi_json_put(out, ", \"xxh3\": ");
    zi_json_put_hash(out, manifest->sums_hash);
    zi_json_put(out, "}");
}

static void put_files(zi_json_out *out, const zi_manifest *manifest)
{
    manifest_put_name(out, "files");
    zi_json_put(out, "[");
    for (uint32_t i = 0; i < manifest->map.file_count; i++) {
        const zi_checkpoint_file *file = &manifest->map.files[i];
        zi_json_put(out, i == 0 ? "\n{\"name\": " : ",\n{\"name\": ");
        zi_json_put_text(out, file->name);
        zi_json_put(out, ", \"role\": ");
        zi_json_put_text(out, zero_role_name(file->role));
        zi_json_put(out, ", \"data_at\": ");
        zi_json_put_number(out, file->data_at);
        zi_json_put(out, ", \"bytes\": ");
        zi_json_put_number(out, file->bytes);
        zi_json_put(out, ", \"header_xxh3\": ");
        zi_json_put_hash(out, manifest->header_hash[i]);
        zi_json_put(out, "}");
    }
    zi_json_put(out, "]");
}

/* "param": ["f32", file, at, first_piece] */
static void put_places(zi_json_out *out, const zi_checkpoint_tensor *tensor)
{
    const char *before = "";
    for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
        const zi_checkpoint_place *place = &tensor->role[role];
        if (role == ZERO_ROLE_GRAD || zero_dtype_bytes(place->dtype) == 0) {
            continue;
        }
        zi_json_put(out, before);
        zi_json_put_text(out, zero_role_name(role));
        zi_json_put(out, ": [");
        zi_json_put_text(out, zero_dtype_name(place->dtype));
        zi_json_put(out, ", ");
        zi_json_put_number(out, place->file);
        zi_json_put(out, ", ");
        zi_json_put_number(out, place->at);
        zi_json_put(out, ", ");
        zi_json_put_number(out, place->first_piece);
        zi_json_put(out, "]");
        before = ", ";
    }
}

/* "name": [2, 3] */
static void put_extents(zi_json_out *out, const char *name, uint32_t dims, const uint64_t *extents)
{
    zi_json_put(out, ", \"");
    zi_json_put(out, name);
    zi_json_put(out, "\": [");
    for (uint32_t d = 0; d < dims; d++) {
        zi_json_put(out, d == 0 ? "" : ", ");
        zi_json_put_number(out, extents[d]);
    }
    zi_json_put(out, "]");
}

static void put_tensors(zi_json_out *out, const zi_checkpoint_map *map)
{
    manifest_put_name(out, "tensors");
    zi_json_put(out, "[");
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        const zi_checkpoint_tensor *tensor = &map->tensors[i];
        zi_json_put(out, i == 0 ? "\n{\"name\": " : ",\n{\"name\": ");
        zi_json_put_text(out, tensor->name);
        if (map->part_count > 1) {
            zi_json_put(out, ", \"part\": ");
            zi_json_put_number(out, tensor->part);
        }
        put_extents(out, "shape", tensor->dims, tensor->shape);
        if (tensor->is_box) {
            put_extents(out, "global_shape", tensor->dims, tensor->global_shape);
            put_extents(out, "box_first", tensor->dims, tensor->box_first);
        }
        zi_json_put(out, ", \"flags\": ");
        zi_json_put_number(out, tensor->flags);
        zi_json_put(out, ", \"group\": ");
        zi_json_put_number(out, tensor->group);
        zi_json_put(out, ", \"cuts\": [");
        zi_json_put_number(out, tensor->cut_first);
        zi_json_put(out, ", ");
        zi_json_put_number(out, tensor->cut_every);
        zi_json_put(out, "], \"places\": {");
        put_places(out, tensor);
        zi_json_put(out, "}}");
    }
    zi_json_put(out, "]");
}

/* All but the last member. */
static void put_body(zi_json_out *out, const zi_manifest *manifest)
{
    zi_json_put(out, "{\n\"format\": \"" ZI_MANIFEST_FORMAT "\",\n\"version\": ");
    zi_json_put_number(out, manifest->map.part_count > 1 ? ZI_MANIFEST_VERSION_PARTS
                                                         : ZI_MANIFEST_VERSION);
    put_quoted(out, "updates", manifest->state.updates);
    put_quoted(out, "skipped", manifest->state.skipped);
    put_quoted(out, "commit", manifest->commit);
    manifest_put_name(out, "kind");
    zi_json_put_text(out, manifest->weights ? "weights" : "full");
    manifest_put_name(out, "byte_order");
    zi_json_put_text(out, "little");
    put_number(out, "world", manifest->world);
    put_quoted(out, "seed", manifest->seed);
    put_hash(out, "model_hash", manifest->model_hash);
    manifest_put_name(out, "loss_scale");
    zi_json_put_float(out, manifest->state.loss_scale);
    manifest_put_name(out, "loss_scale_dynamic");
    zi_json_put(out, manifest->scale_dynamic ? "true" : "false");
    put_number(out, "good_steps", manifest->state.good_steps);
    put_number(out, "overflows", manifest->state.overflows);
    put_groups(out, manifest->groups, manifest->group_count, manifest->state.carried);
    if (manifest->map.part_count > 1) {
        manifest_put_parts(out, manifest);
    }
    put_quoted(out, "data_position", manifest->data_position);
    put_quoted(out, "random_seed", manifest->random_seed);
    put_quoted(out, "random_position", manifest->random_position);
    put_user(out, manifest);
    put_sums(out, manifest);
    put_files(out, manifest);
    put_tensors(out, &manifest->map);
}

static void put_tail(zi_json_out *out, uint64_t hash)
{
    zi_json_put(out, TAIL_BEGIN);
    zi_json_put_hash(out, hash);
    zi_json_put(out, TAIL_END);
}

zero_status zi_manifest_write(const zi_manifest *manifest, char **text, size_t *bytes)
{
    zi_json_out out = {0};
    *text = NULL;
    put_body(&out, manifest);
    ZI_TRY(zi_calloc(1, out.bytes + TAIL_BYTES + 1, (void **)text));
    out = (zi_json_out){.text = *text};
    put_body(&out, manifest);
    put_tail(&out, zi_checkpoint_hash(*text, out.bytes));
    *bytes = out.bytes;
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
    char tail[TAIL_BYTES];
    zi_json_out out = {.text = tail};
    const size_t body = text->bytes - TAIL_BYTES;
    if (!is_manifest(text)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s is not a checkpoint's: it does not say "
                "\"" ZI_MANIFEST_FORMAT "\"",
                text->path);
    }
    if (text->bytes > TAIL_BYTES) {
        put_tail(&out, zi_checkpoint_hash(text->text, body));
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
    if (text->version < ZI_MANIFEST_VERSION || text->version > ZI_MANIFEST_VERSION_PARTS) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "%s has version %" PRIu64 " of the format; this library knows %d and %d, link a "
                "newer one",
                text->path, text->version, ZI_MANIFEST_VERSION, ZI_MANIFEST_VERSION_PARTS);
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
