/* Owns `zero ckpt export`: parameters in the public layout of safetensors. Invariant: files have
 * their names only once all of them are on the disk, and the index comes last. */
#include "ckpt.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/codec.h"
#include "core/memory.h"
#include "core/sizes.h"

#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"
#define PART_SUFFIX ".part"
enum { FILE_NAME_BYTES = 64 };

typedef struct export_job {
    const ckpt_line *line;
    const char *folder; /* OUT */
    zi_source *reader;
    ckpt_whole whole;
    zi_checkpoint_tensor *tensors; /* as they are exported: parameters alone */
    uint32_t *shard_first;         /* of each file, its first tensor; one more at the end */
    uint32_t shard_count;
    uint64_t bytes; /* of tensors */
    ckpt_overflow overflow;
    json_t *index; /* {tensor: file} */
} export_job;

/* ---- what is exported ---- */

static int choose(export_job *job, uint32_t i)
{
    const zi_checkpoint_tensor *source = &job->whole.tensors[i];
    zi_checkpoint_tensor *target = &job->tensors[i];
    zero_role role = job->line->role;
    if (job->line->best) {
        role = ckpt_has_role(source, ZERO_ROLE_MASTER) ? ZERO_ROLE_MASTER : ZERO_ROLE_PARAM;
    }
    if (!ckpt_has_role(source, (int)role)) {
        return bench_fail("tensor \"%.127s\" has no %s%s", source->name, zero_role_name(role),
                          role == ZERO_ROLE_MASTER ? "; --role best takes the parameter then"
                                                   : "; its type is none of f32, bf16 and f16");
    }
    *target = *source;
    if (target->cut_every == 0) { /* weights alone have no cuts */
        target->cut_every = zi_align_up(source->count + 1, ZI_GRANULE);
        target->cut_first = target->cut_every;
    }
    for (int r = 0; r < ZI_SHARD_ROLES; r++) {
        target->role[r] = (zi_checkpoint_place){.dtype = ZERO_DTYPE_NONE};
    }
    const zero_dtype saved = source->role[role].dtype;
    target->role[ZERO_ROLE_PARAM].dtype = job->line->type != ZERO_DTYPE_DEFAULT ? job->line->type
                                          : zi_dtype_is_small(saved)            ? ZERO_DTYPE_F32
                                                                                : saved;
    return 0;
}

/* Files of at most --shard-bytes, but for a tensor that is larger alone. */
static void cut_files(export_job *job)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < job->whole.count; i++) {
        const zi_checkpoint_tensor *tensor = &job->tensors[i];
        const uint64_t bytes = ckpt_tensor_bytes(tensor, ZERO_ROLE_PARAM);
        const uint32_t first = job->shard_count > 0 ? job->shard_first[job->shard_count - 1] : 0;
        if (job->shard_count == 0 || (used > 0 && used + bytes > job->line->shard_bytes) ||
            i - first == ZI_CHECKPOINT_FILE_TENSORS) {
            job->shard_first[job->shard_count++] = i;
            used = 0;
        }
        used += bytes;
        job->bytes += bytes;
    }
    job->shard_first[job->shard_count] = job->whole.count;
}

static int plan_files(export_job *job)
{
    if (ckpt_whole_make(job->reader, &job->whole) != 0) {
        return 1;
    }
    const uint32_t count = job->whole.count;
    if (count == 0) {
        return bench_fail("%s has no tensors", job->line->words[0]);
    }
    job->tensors = calloc(count, sizeof *job->tensors);
    job->shard_first = calloc((size_t)count + 1, sizeof *job->shard_first);
    if (job->tensors == NULL || job->shard_first == NULL) {
        return bench_fail("no memory for %" PRIu32 " tensors", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (choose(job, i) != 0) {
            return 1;
        }
    }
    cut_files(job);
    return 0;
}

/* ---- files ---- */

static const char *shard_name(const export_job *job, uint32_t shard, char name[FILE_NAME_BYTES])
{
    (void)snprintf(name, FILE_NAME_BYTES, SINGLE_NAME);
    if (job->shard_count > 1) {
        (void)snprintf(name, FILE_NAME_BYTES, "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors",
                       shard + 1, job->shard_count);
    }
    return name;
}

/* The file under its name for the time being; what an export left there that did not end goes. */
static int create_part(const char *folder, const char *name, ckpt_file *file)
{
    char part[FILE_NAME_BYTES + sizeof PART_SUFFIX];
    char path[ZI_CHECKPOINT_PATH_BYTES];
    (void)snprintf(part, sizeof part, "%s" PART_SUFFIX, name);
    file->descriptor = -1;
    if (CKPT_TRY(zi_checkpoint_path(path, folder, part)) != 0) {
        return 1;
    }
    (void)unlink(path);
    return ckpt_file_create(file, folder, part);
}

static int give_name(const char *folder, const char *name)
{
    char from[ZI_CHECKPOINT_PATH_BYTES];
    char to[ZI_CHECKPOINT_PATH_BYTES];
    char part[FILE_NAME_BYTES + sizeof PART_SUFFIX];
    (void)snprintf(part, sizeof part, "%s" PART_SUFFIX, name);
    if (CKPT_TRY(zi_checkpoint_path(from, folder, part)) != 0 ||
        CKPT_TRY(zi_checkpoint_path(to, folder, name)) != 0) {
        return 1;
    }
    return rename(from, to) == 0 ? 0 : bench_fail("%s cannot be made: %s", to, strerror(errno));
}

/* The tensors of a file, as a map of it alone gives them their places. */
static int write_shard(export_job *job, zi_checkpoint_map *map, uint32_t first,
                       const ckpt_file *file)
{
    char *header = NULL;
    if (CKPT_TRY(zi_checkpoint_header(map, 0, &header)) != 0) {
        return 1;
    }
    int failed = ckpt_file_write(file, 0, header, map->files[0].data_at);
    for (uint32_t i = 0; i < map->tensor_count && failed == 0; i++) {
        const ckpt_copy copy = {.reader = job->reader,
                                .tensor = job->whole.heads[first + i],
                                .from = {.role = job->line->role, .best = job->line->best},
                                .target = &map->tensors[i],
                                .to = ZERO_ROLE_PARAM,
                                .file = file,
                                .overflow = &job->overflow};
        failed = ckpt_copy_tensor(&copy);
    }
    zi_free(header);
    return failed;
}

static int export_shard(export_job *job, uint32_t shard)
{
    const uint32_t first = job->shard_first[shard];
    zi_checkpoint_map map = {.tensors = &job->tensors[first],
                             .tensor_count = job->shard_first[shard + 1] - first};
    char name[FILE_NAME_BYTES];
    ckpt_file file;
    (void)shard_name(job, shard, name);
    if (create_part(job->folder, name, &file) != 0) {
        return 1;
    }
    int failed = CKPT_TRY(zi_checkpoint_map_make(&map));
    failed = failed || write_shard(job, &map, first, &file);
    failed = failed || ckpt_file_close(&file);
    ckpt_file_drop(&file);
    zi_checkpoint_map_free(&map);
    for (uint32_t i = 0; i < map.tensor_count && failed == 0; i++) {
        failed = json_object_set_new(job->index, map.tensors[i].name, json_string(name)) != 0 &&
                 bench_fail("no memory for the index");
    }
    return failed;
}

static int export_index(export_job *job)
{
    ckpt_file file;
    if (create_part(job->folder, INDEX_NAME, &file) != 0) {
        return 1;
    }
    json_t *json = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)job->bytes,
                             "weight_map", job->index);
    char *text = json_dumps(json, JSON_INDENT(2));
    int failed = text == NULL ? bench_fail("no memory for the index")
                              : ckpt_file_write(&file, 0, text, strlen(text));
    failed = failed || ckpt_file_close(&file);
    ckpt_file_drop(&file);
    free(text);
    json_decref(json);
    return failed || give_name(job->folder, INDEX_NAME);
}

static void remove_parts(const export_job *job)
{
    char path[ZI_CHECKPOINT_PATH_BYTES];
    char part[FILE_NAME_BYTES + sizeof PART_SUFFIX];
    char name[FILE_NAME_BYTES];
    for (uint32_t i = 0; i < job->shard_count; i++) {
        (void)snprintf(part, sizeof part, "%s" PART_SUFFIX, shard_name(job, i, name));
        if (zi_checkpoint_path(path, job->folder, part) == ZERO_OK) {
            (void)unlink(path);
        }
    }
}

/* Files have no names yet. */
static int check_overflow(const export_job *job)
{
    const ckpt_overflow *overflow = &job->overflow;
    const char *type = zero_dtype_name(job->line->type);
    char found[320];
    if (overflow->count == 0) {
        return 0;
    }
    (void)snprintf(found, sizeof found,
                   "%" PRIu64 " finite values are beyond the range of %s, first element %" PRIu64
                   " of \"%.127s\"",
                   overflow->count, type, overflow->index, overflow->tensor);
    if (job->line->strict) {
        return bench_fail("%s; nothing was exported", found);
    }
    (void)fprintf(stderr, "zero ckpt export: warning: %s; they are infinite in %s\n", found,
                  job->folder);
    return 0;
}

static int write_all(export_job *job)
{
    char name[FILE_NAME_BYTES];
    int failed = 0;
    for (uint32_t i = 0; i < job->shard_count && failed == 0; i++) {
        failed = export_shard(job, i);
    }
    if (failed != 0 || check_overflow(job) != 0) {
        remove_parts(job);
        return 1;
    }
    for (uint32_t i = 0; i < job->shard_count; i++) {
        if (give_name(job->folder, shard_name(job, i, name)) != 0) {
            return 1;
        }
    }
    return job->shard_count > 1 ? export_index(job) : 0;
}

/* ---- the folder ---- */

/* Weights that are there already would be taken for a part of these. */
static int make_folder(const char *folder)
{
    static const char *const names[] = {SINGLE_NAME, INDEX_NAME};
    char path[ZI_CHECKPOINT_PATH_BYTES];
    struct stat kind;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        return bench_fail("%s cannot be made: %s", folder, strerror(errno));
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (CKPT_TRY(zi_checkpoint_path(path, folder, names[i])) != 0) {
            return 1;
        }
        if (lstat(path, &kind) == 0) {
            return bench_fail("%s is there already; name another folder, or remove it", path);
        }
    }
    return 0;
}

int ckpt_export(const ckpt_line *line)
{
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    char amount[CKPT_TEXT_BYTES];
    export_job job = {.line = line, .folder = line->words[1], .index = json_object()};
    int failed = ckpt_open(line->words[0], folder, &job.reader);
    if (failed == 0) {
        failed = plan_files(&job) || make_folder(job.folder) || write_all(&job);
    }
    if (failed == 0) {
        printf("%s: %s of %" PRIu32 " tensors in %" PRIu32 " %s\n", job.folder,
               ckpt_amount(job.bytes, amount), job.whole.count, job.shard_count,
               job.shard_count == 1 ? "file" : "files and their index");
    }
    zi_source_close(job.reader);
    json_decref(job.index);
    ckpt_whole_free(&job.whole);
    free(job.tensors);
    free(job.shard_first);
    return ckpt_flush() || failed;
}
