/* Owns `zero ckpt import` and `zero ckpt reshard`: checkpoints that are made of files instead of an
 * engine, and committed as a save is. */
#include "ckpt.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/run_owner.h"
#include "core/codec.h"
#include "core/memory.h"
#include "core/sizes.h"

typedef struct write_job {
    zi_source *reader;
    ckpt_whole whole;
    const char *copied; /* the folder whose files hold the same bytes; NULL: none */
    char run[ZI_CHECKPOINT_PATH_BYTES];
    const char *name; /* behind run, in OUT */
    char part[ZI_CHECKPOINT_PATH_BYTES];
    zi_run_owner *owner; /* this program, of run */
    zi_manifest manifest;
    uint64_t *sums;
} write_job;

/* ---- one checkpoint ---- */

/* OUT's last part is the checkpoint's name, what is before it the run's directory. */
static int split_path(const char *path, write_job *job)
{
    const char *slash = strrchr(path, '/');
    const size_t length = slash == NULL ? 0 : (size_t)(slash - path);
    if (length >= sizeof job->run) {
        return bench_fail("%.80s..: the path is too long", path);
    }
    (void)snprintf(job->run, sizeof job->run, "%.*s", (int)length, path);
    if (length == 0) {
        (void)snprintf(job->run, sizeof job->run, "%s", slash == NULL ? "." : "/");
    }
    job->name = slash == NULL ? path : slash + 1;
    return CKPT_TRY(zi_checkpoint_check_name(job->name));
}

/* The tensors that a file has. */
static int write_tensors(const write_job *job, uint32_t index, const ckpt_file *file)
{
    const zi_checkpoint_file *of = &job->manifest.map.files[index];
    for (uint32_t i = of->first_tensor; i < of->tensor_end; i++) {
        const zi_checkpoint_tensor *tensor = &job->manifest.map.tensors[i];
        const ckpt_copy copy = {.reader = job->reader,
                                .tensor = job->whole.heads[i],
                                .from = {.role = of->role},
                                .target = tensor,
                                .to = of->role,
                                .file = job->copied == NULL ? file : NULL,
                                .sums = job->sums};
        if (ckpt_has_role(tensor, (int)of->role) && ckpt_copy_tensor(&copy) != 0) {
            return 1;
        }
    }
    return 0;
}

static int write_file(write_job *job, uint32_t index)
{
    const zi_checkpoint_file *of = &job->manifest.map.files[index];
    char *header = NULL;
    ckpt_file file;
    if (CKPT_TRY(zi_checkpoint_header(&job->manifest.map, index, &header)) != 0) {
        return 1;
    }
    job->manifest.header_hash[index] = zi_checkpoint_hash(header, of->data_at);
    int failed = ckpt_file_create(&file, job->part, of->name);
    if (failed == 0 && job->copied != NULL) {
        failed = ckpt_file_copy(&file, job->copied, of->name);
    } else if (failed == 0) {
        failed = ckpt_file_write(&file, 0, header, of->data_at);
    }
    failed = failed || write_tensors(job, index, &file) || ckpt_file_close(&file);
    ckpt_file_drop(&file);
    zi_free(header);
    return failed;
}

static int write_sums(write_job *job)
{
    const uint64_t bytes = job->manifest.map.piece_count * sizeof *job->sums;
    ckpt_file file;
    job->manifest.sums_hash = zi_checkpoint_hash(job->sums, bytes);
    const int failed = ckpt_file_create(&file, job->part, ZI_SUMS_NAME) ||
                       ckpt_file_write(&file, 0, job->sums, bytes) || ckpt_file_close(&file);
    ckpt_file_drop(&file);
    return failed;
}

static int commit(const write_job *job)
{
    char *text = NULL;
    size_t bytes = 0;
    if (CKPT_TRY(zi_manifest_write(&job->manifest, &text, &bytes)) != 0) {
        return 1;
    }
    const zi_checkpoint_text written = {text, bytes, job->manifest.weights};
    const int failed = CKPT_TRY(zi_run_owner_check(job->owner)) ||
                       CKPT_TRY(zi_checkpoint_commit(job->run, job->name, &written));
    zi_free(text);
    return failed;
}

static int write_files(write_job *job)
{
    for (uint32_t i = 0; i < job->manifest.map.file_count; i++) {
        if (write_file(job, i) != 0) {
            return 1;
        }
    }
    return write_sums(job) || commit(job);
}

/* The run's directory, owned, with the folder to write into. */
static int begin(write_job *job)
{
    const int failed = CKPT_TRY(zi_checkpoint_make_run(job->run)) ||
                       CKPT_TRY(zi_run_owner_take(job->run, &job->owner)) ||
                       CKPT_TRY(zi_checkpoint_commits(job->run, &job->manifest.commit)) ||
                       CKPT_TRY(zi_checkpoint_begin(job->run, job->name, false, job->part));
    job->manifest.commit++;
    return failed;
}

/* The manifest's tensors have all but their places. OUT appears in one moment or not at all. */
static int write_checkpoint(write_job *job)
{
    zi_checkpoint_map *map = &job->manifest.map;
    if (CKPT_TRY(zi_checkpoint_map_make(map)) != 0) {
        return 1;
    }
    job->manifest.model_hash = zi_manifest_model_hash(map);
    job->sums = calloc(map->piece_count + 1, sizeof *job->sums);
    job->manifest.header_hash = calloc(map->file_count + 1, sizeof(uint64_t));
    int failed = job->sums == NULL || job->manifest.header_hash == NULL
                     ? bench_fail("no memory for %" PRIu64 " sums", map->piece_count)
                     : begin(job);
    if (failed == 0) {
        failed = write_files(job);
        if (failed != 0 && zi_run_owner_check(job->owner) == ZERO_OK) {
            zi_checkpoint_discard(job->run, job->name);
        }
    }
    zi_run_owner_release(job->owner);
    free(job->sums);
    free(job->manifest.header_hash);
    zi_checkpoint_map_free(map);
    return failed;
}

/* The reader's tensors as whole ones, for the caller to change. */
static int take_tensors(write_job *job)
{
    const int failed = ckpt_whole_make(job->reader, &job->whole);
    job->manifest.map =
        (zi_checkpoint_map){.tensors = job->whole.tensors, .tensor_count = job->whole.count};
    return failed;
}

static void say_done(const ckpt_line *line, const write_job *job)
{
    char amount[CKPT_TEXT_BYTES];
    const zi_source_counts counts = zi_source_count(job->reader);
    printf("%s: a checkpoint of %" PRIu32 " tensors, %s read\n", line->words[1],
           job->manifest.map.tensor_count, ckpt_amount(counts.read_bytes, amount));
}

/* ---- import ---- */

/* One cut: nobody has saved them by slices, or only boxes of them. */
static void cut_nowhere(write_job *job)
{
    for (uint32_t i = 0; i < job->manifest.map.tensor_count; i++) {
        zi_checkpoint_tensor *tensor = &job->manifest.map.tensors[i];
        tensor->cut_every = zi_align_up(tensor->count + 1, ZI_GRANULE);
        tensor->cut_first = tensor->cut_every;
    }
}

/* Tensors of other types are no parameters: buffers of positions or masks. They are left out where
 * the line says so, and else refused. */
static int check_types(const ckpt_line *line, write_job *job)
{
    ckpt_whole *whole = &job->whole;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < whole->count; i++) {
        if (ckpt_has_role(&whole->tensors[i], ZERO_ROLE_PARAM)) {
            whole->heads[kept] = whole->heads[i];
            whole->tensors[kept++] = whole->tensors[i];
        } else if (line->skip_others) {
            printf("left out: %s\n", whole->tensors[i].name);
        } else {
            return bench_fail("%s: tensor \"%.127s\": its type is none of f32, bf16 and f16; "
                              "--skip-others leaves such tensors out",
                              line->words[0], whole->tensors[i].name);
        }
    }
    whole->count = kept;
    job->manifest.map.tensor_count = kept;
    return kept != 0 ? 0
                     : bench_fail("%s: no tensor is of f32, bf16 or f16, so there is nothing to "
                                  "import",
                                  line->words[0]);
}

int ckpt_import(const ckpt_line *line)
{
    static write_job job; /* it has two paths, as the next */
    job = (write_job){.manifest.state = zero_step_state_init(), .manifest.weights = true};
    int failed = split_path(line->words[1], &job) ||
                 CKPT_TRY(zi_checkpoint_reader_open(line->words[0], &job.reader));
    if (failed == 0 && job.reader->manifest != NULL) {
        failed = bench_fail("%s is a checkpoint already", line->words[0]);
    }
    failed = failed || take_tensors(&job) || check_types(line, &job);
    if (failed == 0) {
        cut_nowhere(&job);
        failed = write_checkpoint(&job);
    }
    if (failed == 0) {
        say_done(line, &job);
    }
    ckpt_whole_free(&job.whole);
    zi_source_close(job.reader);
    return ckpt_flush() || failed;
}

/* ---- reshard ---- */

/* Find where a flat's tensors end, padding between them included: `*end` elements from its
 * beginning. The manifest does not name flats. A tensor is of the flat before it if it was cut as
 * if it began where that one's tensors end; two small flats that look like one are cut as one,
 * which changes no more than where sums end. */
static uint32_t flat_end(const zi_checkpoint_map *map, uint32_t first, uint64_t *end)
{
    const zi_checkpoint_tensor *head = &map->tensors[first];
    uint32_t i = first + 1;
    *end = head->count;
    for (; i < map->tensor_count; i++) {
        const zi_checkpoint_tensor *tensor = &map->tensors[i];
        const uint64_t at = zi_align_up(*end, ZI_GRANULE);
        if (tensor->cut_every != head->cut_every ||
            tensor->cut_first != head->cut_every - at % head->cut_every ||
            tensor->role[ZERO_ROLE_PARAM].dtype != head->role[ZERO_ROLE_PARAM].dtype ||
            ((tensor->flags ^ head->flags) & ZERO_TENSOR_FROZEN) != 0) {
            break;
        }
        *end = at + tensor->count;
    }
    return i;
}

/* A flat is as many equal slices as there are ranks. */
static void cut_for(zi_checkpoint_map *map, uint64_t world)
{
    for (uint32_t first = 0; first < map->tensor_count;) {
        uint64_t end = 0;
        uint64_t at = 0;
        const uint32_t next = flat_end(map, first, &end); /* of cuts that are not changed yet */
        const uint64_t slice =
            zi_max_u64(zi_align_up(zi_div_up(end, world), ZI_GRANULE), ZI_GRANULE);
        for (uint32_t i = first; i < next; i++) {
            map->tensors[i].cut_every = slice;
            map->tensors[i].cut_first = slice - at % slice;
            at = zi_align_up(at + map->tensors[i].count, ZI_GRANULE);
        }
        first = next;
    }
}

/* Each group goes on with the numbers of the parts that have tensors of it, which must be alike. */
static int join_numbers(write_job *job, const zi_manifest *old)
{
    const zi_manifest_part *of_group[ZERO_STEP_GROUPS] = {NULL};
    zi_manifest *joined = &job->manifest;
    for (uint32_t i = 0; i < old->map.tensor_count; i++) {
        const zi_checkpoint_tensor *tensor = &old->map.tensors[i];
        const zi_manifest_part *part = &old->parts[tensor->part];
        const uint32_t g = tensor->group;
        if ((tensor->flags & ZERO_TENSOR_FROZEN) != 0) {
            continue;
        }
        of_group[g] = of_group[g] != NULL ? of_group[g] : part;
        if (of_group[g]->groups[g].kind != part->groups[g].kind ||
            memcmp(of_group[g]->carried[g], part->carried[g], sizeof part->carried[g]) != 0) {
            return bench_fail("group %" PRIu32 " has \"%.127s\" of part %" PRIu32
                              " and tensors of part %" PRIu32
                              ", which were trained with other betas or another optimizer",
                              g, tensor->name, tensor->part, (uint32_t)(of_group[g] - old->parts));
        }
        memcpy(joined->state.carried[g], part->carried[g], sizeof part->carried[g]);
        joined->groups[g] = of_group[g]->groups[g];
        if (g < of_group[g]->group_count) {
            joined->group_count = g < joined->group_count ? joined->group_count : g + 1;
        }
    }
    return 0;
}

static int reshard(const ckpt_line *line, write_job *job, const zi_manifest *old)
{
    if (old == NULL) {
        return bench_fail("%s has weights alone; `zero ckpt import` makes a checkpoint of them",
                          job->copied);
    }
    job->manifest = *old;
    job->manifest.map = (zi_checkpoint_map){0};
    job->manifest.parts = NULL;
    job->manifest.world = (uint32_t)line->world;
    if (take_tensors(job) != 0 || CKPT_TRY(zi_source_check_files(job->reader)) != 0) {
        return 1;
    }
    if (old->parts != NULL) { /* other files: boxes become whole tensors */
        job->copied = NULL;
        cut_nowhere(job);
        if (join_numbers(job, old) != 0) {
            return 1;
        }
    }
    cut_for(&job->manifest.map, line->world);
    return write_checkpoint(job);
}

int ckpt_reshard(const ckpt_line *line)
{
    static char folder[ZI_CHECKPOINT_PATH_BYTES];
    static write_job job;
    job = (write_job){.copied = folder};
    if (line->world == 0) {
        return bench_fail("for how many ranks? --world N");
    }
    const int failed = split_path(line->words[1], &job) ||
                       ckpt_open(line->words[0], folder, &job.reader) ||
                       reshard(line, &job, job.reader->manifest);
    if (failed == 0) {
        say_done(line, &job);
    }
    ckpt_whole_free(&job.whole);
    zi_source_close(job.reader);
    return ckpt_flush() || failed;
}
