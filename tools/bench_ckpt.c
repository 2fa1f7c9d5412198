/* Owns `zero bench ckpt`: saves and loads beside moving the same bytes past the page cache, in the
 * same directory and in turn, and how long training waits for a save. Invariant: nothing stays on
 * disk, and where a load does not give back the bits that were saved there is no row. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_busy.h"
#include "bench_ckpt_raw.h"
#include "offload_rank.h"

#define METRIC_SAVE "save_vs_direct"
#define METRIC_LOAD "load_vs_direct"
#define METRIC_READ "load_read_vs_needed"
#define METRIC_STALL "save_stall"
#define METRIC_CALLS "save_calls"
#define METRIC_REFLINK "save_reflink_vs_copy"
#define METRIC_LOAD_REFLINK "load_reflink_vs_write"
#define METRIC_BEHIND "step_behind_reflink_vs_copy"
#define TENSORS 4 /* of a layer, with 3, 1, 4 and 4 parts */
#define PARTS 12
#define STATE_BYTES 14 /* of a parameter: in bf16, with master and moments in f32 */
#define LOAD_RANKS 3
#define DEADLINE_MS 600000
#define NAME "bench"
/* Of state on disk, so that it lies as in files: a multiple of 48 KiB. */
#define SHARED_EXTENT_BYTES ((uint64_t)12 << 20)
/* A save in so many times as long as the disk writes at it, but not more often than that. */
#define SUSTAINED 4
#define INTERVAL_S 4.0
/* Of this time. */
#define STALL_AIM 0.005
/* So many steps share it. Long ones stage all of the state before the first update. */
static const struct {
    uint32_t steps;
    bool busy; /* backward computes on all cores; else it sleeps, as it would beside a GPU */
} stalls[] = {{4, false}, {16, false}, {4, true}, {16, true}};
#define STALLS (sizeof stalls / sizeof stalls[0])

typedef struct ckpt_bench {
    const bench_options *options;
    char run[4096]; /* a directory of its own */
    uint32_t layers;
    uint64_t part;  /* elements */
    uint64_t bytes; /* of a checkpoint's tensors */
    zero_world *world;
    zero_model *model;
    zero_engine *engine;
    raw_file raw;
    char one_rank[64]; /* names of cases, as the next two */
    char other_ranks[64];
    char stalls[STALLS][64];
    char on_disk[64];
    double save_s;     /* the last save's; 0: there was none */
    uint32_t steps;    /* of the stall's sides */
    double backward_s; /* of a step of the stall's sides */
    zi_pool *busy;     /* where backward computes: a thread for each core */
    uint64_t rounds;   /* of a layer; 0: it sleeps */
    double *calls_s;   /* of each of them: what beginning and ending its save took */
    uint32_t calls;
    bool reflink;              /* of saves and loads */
    double *behind_s;          /* by round: the step behind a save that copies */
    double *behind_reflink_s;  /* and behind one that shares */
    uint32_t behind;           /* such steps so far, two in a round */
    double rank_s[LOAD_RANKS]; /* by rank: the load, and what it read */
    uint64_t rank_bytes[LOAD_RANKS];
} ckpt_bench;

/* ---- the engine ---- */

static int describe(const ckpt_bench *b, zero_model **model)
{
    static const char *const names[TENSORS] = {"qkv", "proj", "up", "down"};
    static const uint32_t parts[TENSORS] = {3, 1, 4, 4};
    zero_tensor_desc descs[TENSORS];
    for (uint32_t i = 0; i < TENSORS; i++) {
        descs[i] = (zero_tensor_desc){
            .name = names[i], .shape = {parts[i] * b->part}, .dims = 1, .dtype = ZERO_DTYPE_BF16};
    }
    return BENCH_TRY(zero_model_create(model)) ||
           BENCH_TRY(zero_unit_add(
               *model,
               &(zero_unit_desc){
                   .name = "layer", .layers = b->layers, .tensors = descs, .tensor_count = TENSORS},
               NULL, NULL));
}

/* staging: of a save, where the engine's next steps do not wait for the disk. tier: of master and
 * moments. */
static int create(const ckpt_bench *b, zero_world *world, uint64_t staging, zero_tier tier,
                  zero_engine **engine)
{
    const char *const directory = b->run;
    zero_engine_options options = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    tuning.save_staging_bytes = staging;
    tuning.extent_bytes = tier == ZERO_TIER_DISK ? SHARED_EXTENT_BYTES : 0;
    options.tuning = &tuning;
    options.stage = ZERO_STAGE_3;
    for (int role = ZERO_ROLE_MASTER; zero_role_exists((zero_role)role) != 0; role++) {
        options.tier[role] = tier;
    }
    options.disk_directories = tier == ZERO_TIER_DISK ? &directory : NULL;
    options.disk_directory_count = tier == ZERO_TIER_DISK ? 1 : 0;
    return BENCH_TRY(zero_engine_create(world, b->model, &options, engine));
}

/* No pattern that a disk could keep in less room; 2^-7 to 2, of either sign. */
static uint32_t value_of(uint32_t tensor, int role, uint64_t i)
{
    uint64_t x = ((uint64_t)tensor << 44 ^ (uint64_t)role << 40 ^ i) * UINT64_C(0xD1342543DE82EF95);
    x = (x ^ x >> 29) * UINT64_C(0x9E3779B97F4A7C15);
    return ((uint32_t)(x >> 32) & UINT32_C(0x83ffffff)) | UINT32_C(0x3c000000);
}

typedef enum shard_action { SHARD_FILL, SHARD_CLEAR, SHARD_CHECK } shard_action;

static bool has_values(const zero_view *view, uint32_t tensor, int role, uint64_t first)
{
    const size_t element = zero_dtype_bytes(view->dtype);
    for (uint64_t i = 0; i < view->count; i++) {
        const uint32_t wanted = value_of(tensor, role, first + i) >> (element == 2 ? 16 : 0);
        if (memcmp((const char *)view->data + i * element, &wanted, element) != 0) {
            return false;
        }
    }
    return true;
}

static void fill(const zero_view *view, uint32_t tensor, int role, uint64_t first)
{
    const size_t element = zero_dtype_bytes(view->dtype);
    for (uint64_t i = 0; i < view->count; i++) {
        const uint32_t value = value_of(tensor, role, first + i) >> (element == 2 ? 16 : 0);
        memcpy((char *)view->data + i * element, &value, element);
    }
}

/* All that a rank has of the state. */
static int for_shards(const ckpt_bench *b, zero_engine *engine, shard_action action)
{
    for (uint32_t tensor = 0; tensor < b->layers * TENSORS; tensor++) {
        for (int role = 0; zero_role_exists((zero_role)role) != 0; role++) {
            uint64_t first = 0;
            zero_view view;
            if (role == ZERO_ROLE_GRAD) {
                continue;
            }
            if (BENCH_TRY(zero_shard_view(engine, tensor, (zero_role)role, &first, &view)) != 0) {
                return 1;
            }
            if (action == SHARD_FILL) {
                fill(&view, tensor, role, first);
            } else if (action == SHARD_CLEAR && view.count != 0) {
                memset(view.data, 0, view.count * zero_dtype_bytes(view.dtype));
            } else if (action == SHARD_CHECK && !has_values(&view, tensor, role, first)) {
                return bench_fail("%s of tensor %u has other bits after a load",
                                  zero_role_name((zero_role)role), tensor);
            }
        }
    }
    return 0;
}

/* ---- files ---- */

typedef int (*file_action)(const char *path);

/* A folder without folders; one that is not there has no files. */
static int for_files(const char *folder, file_action action)
{
    char path[8192];
    const struct dirent *entry;
    int failed = 0;
    DIR *opened = opendir(folder);
    while (opened != NULL && failed == 0 && (entry = readdir(opened)) != NULL) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        failed = entry->d_name[0] != '.' ? action(path) : 0;
    }
    if (opened != NULL) {
        (void)closedir(opened);
    }
    return failed;
}

static int remove_file(const char *path)
{
    return unlink(path) == 0 ? 0 : bench_fail("%s cannot be removed: %s", path, strerror(errno));
}

/* So that it is read from the disk. */
static int forget_file(const char *path)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    const bool forgotten =
        file >= 0 && fsync(file) == 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0;
    if (file >= 0) {
        (void)close(file);
    }
    return forgotten ? 0 : bench_fail("%s cannot be forgotten: %s", path, strerror(errno));
}

static int remove_checkpoint(const ckpt_bench *b)
{
    char folder[4200];
    (void)snprintf(folder, sizeof folder, "%s/" NAME, b->run);
    return for_files(folder, remove_file) != 0 || (rmdir(folder) != 0 && errno != ENOENT);
}

static int forget_checkpoint(const ckpt_bench *b)
{
    char folder[4200];
    (void)snprintf(folder, sizeof folder, "%s/" NAME, b->run);
    return for_files(folder, forget_file);
}

/* ---- sides: a save ---- */

static zero_save_options save_options(const ckpt_bench *b)
{
    zero_save_options save = zero_save_options_init();
    save.directory = b->run;
    save.name = NAME;
    save.reflink = b->reflink ? 1 : 0;
    return save;
}

static double save_side(void *argument)
{
    ckpt_bench *b = argument;
    const zero_save_options save = save_options(b);
    if (remove_checkpoint(b) != 0) {
        return -1.0;
    }
    const double begin = bench_now();
    if (BENCH_TRY(zero_save(b->engine, &save)) != 0) {
        return -1.0;
    }
    b->save_s = bench_now() - begin;
    return b->save_s;
}

static double raw_write_side(void *argument)
{
    ckpt_bench *b = argument;
    return raw_write(&b->raw);
}

/* ---- sides: loads ---- */

static double load_engine(const ckpt_bench *b, zero_engine *engine, uint64_t *read_bytes)
{
    zero_load_options load = zero_load_options_init();
    zero_load_report report = zero_load_report_init();
    load.path = b->run;
    load.reflink = b->reflink ? 1 : 0;
    const double begin = bench_now();
    if (BENCH_TRY(zero_load(engine, &load, &report)) != 0) {
        return -1.0;
    }
    *read_bytes = report.read_bytes;
    return bench_now() - begin;
}

static double load_side(void *argument)
{
    ckpt_bench *b = argument;
    uint64_t read_bytes = 0;
    return for_shards(b, b->engine, SHARD_CLEAR) != 0 || forget_checkpoint(b) != 0
               ? -1.0
               : load_engine(b, b->engine, &read_bytes);
}

static zero_status load_rank(zero_world *world, void *user)
{
    ckpt_bench *b = user;
    zero_engine *engine = NULL;
    const uint32_t rank = zero_world_rank(world);
    /* A load waits for all ranks, and some make their engine faster than others. */
    int failed =
        create(b, world, 0, ZERO_TIER_DEVICE, &engine) || BENCH_TRY(zero_world_barrier(world));
    if (failed == 0) {
        b->rank_s[rank] = load_engine(b, engine, &b->rank_bytes[rank]);
        failed = b->rank_s[rank] < 0 || for_shards(b, engine, SHARD_CHECK);
    }
    zero_engine_destroy(engine);
    return bench_rank_status(failed);
}

static double other_ranks_side(void *argument)
{
    ckpt_bench *b = argument;
    double seconds = 0;
    if (forget_checkpoint(b) != 0 ||
        BENCH_TRY(zero_world_run(LOAD_RANKS, DEADLINE_MS, load_rank, b)) != 0) {
        return -1.0;
    }
    for (int i = 0; i < LOAD_RANKS; i++) {
        seconds = b->rank_s[i] > seconds ? b->rank_s[i] : seconds;
    }
    return seconds;
}

static double raw_read_side(void *argument)
{
    ckpt_bench *b = argument;
    return raw_read(&b->raw);
}

/* ---- sides: steps ---- */

static void pass_layer(const ckpt_bench *b)
{
    if (b->rounds != 0) {
        bench_busy(b->busy, b->rounds);
    } else {
        bench_sleep(b->backward_s / b->layers);
    }
}

static int take_step(const ckpt_bench *b)
{
    const zero_stream host = zero_stream_host();
    const zero_step_params params = zero_step_params_init();
    int failed = BENCH_TRY(zero_micro_begin(b->engine, ZERO_MICRO_LAST));
    for (uint32_t unit = b->layers; unit-- > 0 && !failed;) {
        pass_layer(b);
        failed = BENCH_TRY(zero_unit_grads_acquire(b->engine, unit, host)) ||
                 BENCH_TRY(zero_unit_grads_ready(b->engine, unit, host));
    }
    return failed || BENCH_TRY(zero_micro_end(b->engine)) ||
           BENCH_TRY(zero_step(b->engine, &params, host));
}

static double take_steps(const ckpt_bench *b)
{
    zero_step_result result = zero_step_result_init();
    const double begin = bench_now();
    for (uint32_t i = 0; i < b->steps; i++) {
        if (take_step(b) != 0) {
            return -1.0;
        }
    }
    return BENCH_TRY(zero_step_wait(b->engine, &result)) != 0 ? -1.0 : bench_now() - begin;
}

/* The time of begin and end counts: end is called once the steps are over, and the disk is done. */
static double steps_with_save_side(void *argument)
{
    ckpt_bench *b = argument;
    const zero_save_options save = save_options(b);
    if (remove_checkpoint(b) != 0) {
        return -1.0;
    }
    const double begin = bench_now();
    if (BENCH_TRY(zero_save_begin(b->engine, &save)) != 0) {
        return -1.0;
    }
    const double begun = bench_now();
    if (take_steps(b) < 0) {
        return -1.0;
    }
    const double stepped = bench_now();
    if (BENCH_TRY(zero_save_end(b->engine)) != 0) {
        return -1.0;
    }
    const double end = bench_now();
    b->calls_s[b->calls++] = begun - begin + end - stepped;
    return end - begin;
}

static double steps_side(void *argument)
{
    return take_steps(argument);
}

/* ---- sides: state on disk ---- */

/* A step up to its last write; negative: it failed. */
static double take_whole_step(ckpt_bench *b)
{
    float value = 0;
    const double begin = bench_now();
    return take_steps(b) < 0 ||
                   BENCH_TRY(zero_shard_read(b->engine, 0, ZERO_ROLE_MASTER, 0, 1, &value)) != 0
               ? -1.0
               : bench_now() - begin;
}

/* A save, which counts, and a step behind it, which writes to blocks that are shared or not. */
static double save_on_disk(ckpt_bench *b, bool reflink, double *behind_s)
{
    b->reflink = reflink;
    const double seconds = save_side(b);
    const double behind = seconds < 0 ? -1.0 : take_whole_step(b);
    behind_s[b->behind++ / 2] = behind;
    return behind < 0 ? -1.0 : seconds;
}

static double save_copy_side(void *argument)
{
    ckpt_bench *b = argument;
    return save_on_disk(b, false, b->behind_s);
}

static double save_reflink_side(void *argument)
{
    ckpt_bench *b = argument;
    return save_on_disk(b, true, b->behind_reflink_s);
}

/* Load what was saved last, from the disk. */
static double load_on_disk(ckpt_bench *b, bool reflink)
{
    uint64_t read_bytes = 0;
    b->reflink = reflink;
    return forget_checkpoint(b) != 0 ? -1.0 : load_engine(b, b->engine, &read_bytes);
}

static double load_write_side(void *argument)
{
    return load_on_disk(argument, false);
}

static double load_reflink_side(void *argument)
{
    return load_on_disk(argument, true);
}

/* ---- rows ---- */

/* One side against the raw one, which is measured anew for each row: disks change their speed. */
static int measure_move(ckpt_bench *b, double (*side)(void *), double (*raw)(void *),
                        const char *metric, const char *name, bench_report *report)
{
    const bench_side sides[] = {{side, b}, {raw, b}};
    bench_stat stats[2];
    return bench_interleave(sides, 2, bench_long_repetitions(b->options), stats) ||
           bench_add_times(report, metric, name, &stats[0], &stats[1]);
}

static int measure_moves(ckpt_bench *b, bench_report *report)
{
    if (measure_move(b, save_side, raw_write_side, METRIC_SAVE, b->one_rank, report) ||
        measure_move(b, load_side, raw_read_side, METRIC_LOAD, b->one_rank, report) ||
        for_shards(b, b->engine, SHARD_CHECK) ||
        measure_move(b, other_ranks_side, raw_read_side, METRIC_LOAD, b->other_ranks, report)) {
        return 1;
    }
    uint64_t read_bytes = 0;
    for (int i = 0; i < LOAD_RANKS; i++) {
        read_bytes += b->rank_bytes[i];
    }
    const double bytes = (double)read_bytes;
    const bench_stat read = {bytes, bytes, bytes, 1};
    return bench_add(report, METRIC_READ, b->other_ranks, "bytes", &read, (double)b->bytes);
}

/* A disk sustains a save in so many steps if they take longer than it does. */
static int measure_steps(ckpt_bench *b, uint32_t stall, bench_report *report)
{
    const bench_side sides[] = {{steps_with_save_side, b}, {steps_side, b}};
    const double interval = b->save_s * SUSTAINED > INTERVAL_S || b->options->scale == BENCH_TINY
                                ? b->save_s * SUSTAINED
                                : INTERVAL_S;
    bench_stat stats[2];
    b->steps = stalls[stall].steps;
    b->backward_s = interval / b->steps;
    b->rounds = stalls[stall].busy ? bench_busy_rounds(b->busy, b->backward_s / b->layers) : 0;
    b->calls = 0;
    const int failed = bench_interleave(sides, 2, bench_long_repetitions(b->options), stats);
    b->rounds = 0;
    if (failed != 0) {
        return 1;
    }
    const bench_stat calls = bench_stat_of(b->calls_s, b->calls);
    const bench_stat aim = {.median = interval * STALL_AIM};
    const char *name = b->stalls[stall];
    return bench_add_times(report, METRIC_STALL, name, &stats[0], &stats[1]) ||
           bench_add_times(report, METRIC_CALLS, name, &calls, &aim);
}

static int measure_stall(ckpt_bench *b, uint32_t stall, bench_report *report)
{
    if (b->save_s == 0 && save_side(b) < 0) {
        return 1;
    }
    /* With the first round, which is not measured. */
    b->calls_s = calloc((size_t)bench_long_repetitions(b->options) + 1, sizeof *b->calls_s);
    if (b->calls_s == NULL) {
        return bench_fail("no memory left for times");
    }
    const int failed = measure_steps(b, stall, report);
    free(b->calls_s);
    return failed;
}

/* True if a save shares any of the state, which is on disk once a step was taken; negative: it
 * failed. */
static int shares(ckpt_bench *b)
{
    zero_save_progress progress = zero_save_progress_init();
    b->reflink = true;
    b->steps = 1;
    b->backward_s = 0;
    const zero_save_options save = save_options(b);
    if (take_whole_step(b) < 0 || remove_checkpoint(b) != 0 ||
        BENCH_TRY(zero_save_begin(b->engine, &save)) != 0) {
        return -1;
    }
    while (!progress.written) {
        bench_sleep(0.001);
        if (BENCH_TRY(zero_save_poll(b->engine, &progress)) != 0) {
            return -1;
        }
    }
    return BENCH_TRY(zero_save_end(b->engine)) != 0 ? -1 : progress.shared_bytes != 0;
}

static int measure_sharing(ckpt_bench *b, bench_report *report)
{
    const bench_side saves[] = {{save_reflink_side, b}, {save_copy_side, b}};
    const bench_side loads[] = {{load_reflink_side, b}, {load_write_side, b}};
    const uint32_t repetitions = bench_long_repetitions(b->options);
    bench_stat saved[2];
    bench_stat loaded[2];
    b->behind = 0;
    if (bench_interleave(saves, 2, repetitions, saved) != 0 ||
        bench_interleave(loads, 2, repetitions, loaded) != 0) {
        return 1;
    }
    /* Without the first round, as the saves. */
    const uint32_t rounds = b->behind / 2 - 1;
    const bench_stat reflink = bench_stat_of(b->behind_reflink_s + 1, rounds);
    const bench_stat copy = bench_stat_of(b->behind_s + 1, rounds);
    return bench_add_times(report, METRIC_REFLINK, b->on_disk, &saved[0], &saved[1]) ||
           bench_add_times(report, METRIC_LOAD_REFLINK, b->on_disk, &loaded[0], &loaded[1]) ||
           bench_add_times(report, METRIC_BEHIND, b->on_disk, &reflink, &copy);
}

/* An engine of its own, since master and moments are on disk. */
static int measure_on_disk(ckpt_bench *b, bench_report *report)
{
    const uint32_t rounds = bench_long_repetitions(b->options) + 1;
    zero_engine_destroy(b->engine);
    b->engine = NULL;
    b->behind_s = calloc((size_t)rounds * 2, sizeof *b->behind_s);
    if (b->behind_s == NULL) {
        return bench_fail("no memory left for times");
    }
    b->behind_reflink_s = b->behind_s + rounds;
    int failed = create(b, b->world, 0, ZERO_TIER_DISK, &b->engine);
    const int shared = failed != 0 ? -1 : shares(b);
    if (shared > 0) {
        failed = measure_sharing(b, report);
    } else if (shared == 0) {
        failed = bench_skip(report, METRIC_REFLINK, b->on_disk,
                            "the file system of --dir shares no blocks; XFS and Btrfs do");
    }
    free(b->behind_s);
    return failed != 0 || shared < 0;
}

static void name_cases(ckpt_bench *b)
{
    const double gb = 1e-9 * (double)b->bytes;
    (void)snprintf(b->one_rank, sizeof b->one_rank, "%.3g GB, 1 rank", gb);
    (void)snprintf(b->other_ranks, sizeof b->other_ranks, "%.3g GB of 1 rank, by %d", gb,
                   LOAD_RANKS);
    for (uint32_t i = 0; i < STALLS; i++) {
        (void)snprintf(b->stalls[i], sizeof b->stalls[i], "%.3g GB, %u steps%s", gb,
                       stalls[i].steps, stalls[i].busy ? ", busy cores" : "");
    }
    (void)snprintf(b->on_disk, sizeof b->on_disk, "%.3g GB, state on disk", gb);
}

static int measure(ckpt_bench *b, bench_report *report)
{
    const uint64_t staging = b->bytes + (b->bytes >> 3) + ((uint64_t)64 << 20);
    int failed = describe(b, &b->model) || BENCH_TRY(zero_world_create_self(&b->world)) ||
                 create(b, b->world, staging, ZERO_TIER_DEVICE, &b->engine) ||
                 for_shards(b, b->engine, SHARD_FILL) || raw_open(&b->raw, b->run, b->bytes) ||
                 BENCH_TRY(zi_pool_create(zero_world_cpus(b->world), &b->busy));
    if (failed == 0 && bench_wants(b->options, b->one_rank)) {
        failed = measure_moves(b, report);
    }
    for (uint32_t i = 0; i < STALLS && failed == 0; i++) {
        if (bench_wants(b->options, b->stalls[i])) {
            failed = measure_stall(b, i, report);
        }
    }
    return failed != 0 || (bench_wants(b->options, b->on_disk) && measure_on_disk(b, report) != 0);
}

static int leave_out(const ckpt_bench *b, const char *reason, bench_report *report)
{
    return b->options->named ? bench_fail("%s", reason)
                             : bench_skip(report, METRIC_SAVE, NULL, reason);
}

/* As bench_wants, which would say that a case runs. */
static bool wants_any(const ckpt_bench *b)
{
    const char *filter = b->options->case_filter;
    bool wants =
        filter == NULL || strstr(b->one_rank, filter) != NULL || strstr(b->on_disk, filter) != NULL;
    for (uint32_t i = 0; i < STALLS; i++) {
        wants = wants || strstr(b->stalls[i], filter) != NULL;
    }
    return wants;
}

int bench_ckpt(const bench_options *options, bench_report *report)
{
    static const uint32_t layers[] = {12, 12, 2};
    static const uint64_t parts[] = {1 << 20, 1 << 17, 1 << 10};
    ckpt_bench b = {
        .options = options, .layers = layers[options->scale], .part = parts[options->scale]};
    const offload_rank_desc place = bench_offload_desc(options);
    char reason[512];
    b.bytes = b.layers * PARTS * b.part * STATE_BYTES;
    name_cases(&b);
    if (!wants_any(&b)) {
        return 0;
    }
    if (!bench_disks_suffice(&place, 3 * b.bytes, reason, sizeof reason)) {
        return leave_out(&b, reason, report);
    }
    (void)snprintf(b.run, sizeof b.run, "%.4000s/zero-bench-ckpt-XXXXXX", place.directories[0]);
    if (mkdtemp(b.run) == NULL) {
        return bench_fail("%s cannot be made: %s", b.run, strerror(errno));
    }
    const int refused = raw_refused(b.run);
    (void)snprintf(reason, sizeof reason, "--dir %.300s takes no direct I/O: %s",
                   place.directories[0], strerror(refused));
    const int failed = refused == 0 ? measure(&b, report) : leave_out(&b, reason, report);
    zi_pool_destroy(b.busy);
    zero_engine_destroy(b.engine);
    zero_model_destroy(b.model);
    zero_world_destroy(b.world);
    raw_close(&b.raw);
    return (remove_checkpoint(&b) | for_files(b.run, remove_file) | (rmdir(b.run) != 0)) || failed;
}
