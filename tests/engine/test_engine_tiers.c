/* Owns the tests of tiers: whatever lives where, an engine holds what was planned on each tier,
 * moves what was planned, and allocates nothing. What disks add: what is refused, what a skipped
 * step leaves alone, and what a fault in the middle of a step comes to. That no tier changes a bit
 * random programs show. */
#include "harness.h"
#include "reads.h"

#include "core/memory.h"
#include "engine/engine_internal.h"
#include "folders.h"
#include "toy.h"

#define DEV ZERO_TIER_DEVICE
#define HOST ZERO_TIER_HOST
#define DISK ZERO_TIER_DISK

/* By role: parameters, gradients, master, moment1, moment2; and what updates them where the device
 * is a GPU. */
typedef struct mix {
    zero_tier tier[ZI_SHARD_ROLES];
    zero_updater updater;
} mix;

/* A few; random programs (random_case.h) have any. */
static const mix mixes[] = {
#ifdef TOY_CUDA
    {{HOST, DEV, HOST, HOST, HOST}, 0},
    {{DEV, HOST, HOST, DEV, DEV}, 0},
    {{DEV, DEV, DEV, HOST, HOST}, 0},
    {{HOST, HOST, HOST, HOST, HOST}, 0},
    {{DEV, DEV, DISK, DISK, DISK}, 0},
    {{HOST, DEV, DISK, HOST, DEV}, 0},
    {{DEV, HOST, DEV, DISK, DISK}, 0},
    {{HOST, HOST, HOST, DEV, DISK}, 0},
    {{DEV, DEV, HOST, HOST, HOST}, ZERO_UPDATER_CPU},
    {{HOST, HOST, HOST, DEV, DEV}, ZERO_UPDATER_CPU},
    {{DEV, DEV, HOST, HOST, HOST}, ZERO_UPDATER_BOTH},
    {{DEV, DEV, DEV, HOST, HOST}, ZERO_UPDATER_BOTH},
    {{DEV, DEV, DEV, DEV, DEV}, ZERO_UPDATER_BOTH},
    {{DEV, DEV, DISK, HOST, DISK}, ZERO_UPDATER_CPU},
#else
    {{DEV, HOST, HOST, HOST, HOST}, 0}, {{DISK, DISK, DISK, DISK, DISK}, 0},
    {{HOST, DEV, DISK, HOST, DEV}, 0},  {{DISK, DEV, DEV, DISK, HOST}, 0},
    {{DEV, DISK, HOST, DEV, DISK}, 0},  {{DEV, DEV, DEV, DISK, DISK}, 0},
    {{DISK, HOST, DISK, DEV, DEV}, 0},
#endif
};
#define MIXES (sizeof mixes / sizeof mixes[0])
#define COUNTED (MIXES > 9 ? 15 : 50) /* steps whose allocations are counted */

static bool on_disk(const mix *m)
{
    bool any = false;
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        any = any || m->tier[role] == DISK;
    }
    return any;
}

/* Extents are the smallest, so that they cut flats and tensors. */
static void put_on(toy_run *run, const mix *m, bool in_memory)
{
    memcpy(run->options.tier, m->tier, sizeof m->tier);
    run->tuning.updater = m->updater;
    toy_run_disk(run, in_memory ? &rig_paths[2] : rig_paths, in_memory ? 1 : 2);
}

/* ---- memory and counts ---- */

static void check_tiers(const toy_trainer *trainer)
{
    const zero_memory plan = plan_memory(zero_engine_plan(trainer->engine));
    const zero_memory used = engine_memory(trainer->engine);
    const zero_stats stats = engine_stats(trainer->engine);
    CHECK_BYTES(&plan, &used, sizeof plan);
    CHECK_EQ(stats.device_bytes, plan.tier_bytes[DEV]);
    CHECK_EQ(stats.host_bytes, plan.tier_bytes[HOST]);
    CHECK_EQ(stats.disk_bytes, plan.tier_bytes[DISK]);
#ifndef TOY_CUDA /* else the CPU's updates have a part in it */
    CHECK_EQ(engine_disk_path(trainer->engine).window_bytes,
             plan.bytes[ZERO_ROLE_IO_WINDOW] - trainer->engine->layout->sums_bytes);
#endif
}

static zero_status count_one(toy_trainer *trainer)
{
    const mix *m = trainer->user;
    check_tiers(trainer);
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_step_or_skip(trainer, false));
    TOY_TRY(zero_world_barrier(trainer->world));
    const uint64_t before = zi_memory_calls();
    TOY_TRY(zero_world_barrier(trainer->world));
    for (int step = 0; step < COUNTED; step++) {
        TOY_TRY(toy_step(trainer));
    }
    TOY_TRY(toy_wait(trainer));
    TOY_TRY(zero_world_barrier(trainer->world));
    CHECK_EQ(zi_memory_calls() - before, 0);
    check_tiers(trainer);
    const zero_stats stats = engine_stats(trainer->engine);
    CHECK_EQ(stats.disk_write_bytes != 0, on_disk(m));
    CHECK_EQ(stats.disk_read_hits != 0, on_disk(m));
#ifdef TOY_CUDA
    const bool both = m->updater == ZERO_UPDATER_BOTH; /* that may be either one */
    CHECK(both || (stats.host_update_elements != 0) == (on_disk(m) || m->updater != 0));
    CHECK(both || (stats.update_ns != 0) == (stats.host_update_elements != 0));
#else
    CHECK_EQ(stats.host_update_elements, 0);
    CHECK(stats.update_ns > 0);
#endif
    return zero_world_barrier(trainer->world);
}

TEST(memory_is_the_plan_and_steps_allocate_nothing)
{
    rig_folders(2, 1);
    toy_run run = toy_run_wide(ZERO_DTYPE_BF16);
    for (size_t i = 0; i < MIXES; i++) {
        mix m = mixes[i];
        put_on(&run, &m, i % 2 == 0);
        CHECK_OK(toy_on_ranks(1, &run, count_one, &m));
        CHECK_OK(toy_on_ranks(3, &run, count_one, &m));
    }
}

/* ---- values in and out ---- */

/* Write every element of every role as a function of itself, read it back in odd portions. */
static zero_status write_and_read(toy_trainer *trainer, zero_role role)
{
    const toy_model *model = trainer->run->model;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        zero_shard shard;
        TOY_TRY(zero_shard_range(trainer->engine, t, role, &shard));
        unsigned char *values = calloc(shard.count + 1, sizeof(uint32_t));
        unsigned char *seen = calloc(shard.count + 1, sizeof(uint32_t));
        CHECK(values != NULL && seen != NULL);
        const size_t each = zero_dtype_bytes(shard.dtype);
        for (uint64_t e = 0; e < shard.count; e++) {
            toy_store(values, e, shard.dtype, (uint32_t)(t * 977 + shard.first + e + role));
        }
        TOY_TRY(zero_shard_write(trainer->engine, t, role, shard.first, shard.count, values));
        for (uint64_t done = 0; done < shard.count;) {
            const uint64_t portion = done % 7 * 61 + 1;
            const uint64_t count = portion < shard.count - done ? portion : shard.count - done;
            TOY_TRY(zero_shard_read(trainer->engine, t, role, shard.first + done, count,
                                    seen + done * each));
            done += count;
        }
        CHECK_BYTES(values, seen, shard.count * each);
        free(values);
        free(seen);
    }
    return ZERO_OK;
}

static zero_status values_of_roles(toy_trainer *trainer)
{
    TOY_TRY(toy_step(trainer));
    for (int role = ZERO_ROLE_PARAM; role < ZI_SHARD_ROLES; role++) {
        TOY_TRY(write_and_read(trainer, (zero_role)role));
    }
    /* Written values are those that are gathered, whatever had been gathered ahead of time. */
    toy_state state;
    TOY_TRY(toy_collect(trainer, &state));
    toy_state_free(&state);
    return ZERO_OK;
}

TEST(values_written_are_read_on_every_tier)
{
    rig_folders(2, 1);
    toy_run run = toy_run_wide(ZERO_DTYPE_BF16);
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        for (size_t i = 0; i < MIXES; i++) {
            put_on(&run, &mixes[i], i % 2 == 0);
            CHECK_OK(toy_on_ranks(ranks, &run, values_of_roles, NULL));
        }
        run.options.stage = ZERO_STAGE_1;
    }
}

/* A tensor of which each of two ranks has a part. */
#define WIDE 11

static zero_status ask_wrongly(toy_trainer *trainer)
{
    zero_shard shard;
    uint32_t room[4096];
    uint64_t first = 0;
    zero_view view;
    const mix *m = &mixes[MIXES - 1];
    const zero_role role = on_disk(m) ? ZERO_ROLE_MASTER : ZERO_ROLE_MOMENT2;
    zero_engine *engine = trainer->engine;
    TOY_TRY(zero_shard_range(engine, WIDE, role, &shard));
    CHECK(shard.count > 1);
    CHECK_EQ(shard.tier, trainer->run->options.tier[role]);
    CHECK_FAILS(zero_shard_read(engine, WIDE, role, shard.first, shard.count + 1, room),
                ZERO_ERR_INVALID_ARGUMENT, "not all here");
    CHECK_FAILS(zero_shard_read(engine, WIDE, role, shard.first + shard.count, 1, room),
                ZERO_ERR_INVALID_ARGUMENT, "not all here");
    CHECK_FAILS(zero_shard_write(engine, WIDE, role, UINT64_MAX, 2, room),
                ZERO_ERR_INVALID_ARGUMENT, "not all here");
    CHECK_FAILS(zero_shard_read(engine, WIDE, role, shard.first, 1, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "values");
    CHECK_FAILS(zero_shard_range(engine, WIDE, ZERO_ROLE_IO_WINDOW, &shard),
                ZERO_ERR_INVALID_ARGUMENT, "role 20");
    CHECK_FAILS(zero_shard_range(engine, WIDE, role, NULL), ZERO_ERR_INVALID_ARGUMENT, "shard");
    CHECK_FAILS(zero_shard_read(engine, 99999, role, 0, 1, room), ZERO_ERR_INVALID_ARGUMENT,
                "99999");
    if (on_disk(m)) {
        CHECK_FAILS(zero_shard_view(engine, WIDE, role, &first, &view), ZERO_ERR_UNSUPPORTED,
                    "zero_shard_read");
    }
    TOY_TRY(toy_micro(trainer, false));
    TOY_TRY(zero_shard_read(engine, WIDE, role, shard.first, 1, room));
    TOY_TRY(zero_shard_range(engine, WIDE, ZERO_ROLE_GRAD, &shard));
    CHECK_FAILS(zero_shard_read(engine, WIDE, ZERO_ROLE_GRAD, shard.first, 1, room), ZERO_ERR_STATE,
                "micro-step 1");
    TOY_TRY(zero_shard_range(engine, WIDE, role, &shard));
    TOY_TRY(toy_micro_begin(trainer, true));
    CHECK_FAILS(zero_shard_read(engine, WIDE, role, shard.first, 1, room), ZERO_ERR_STATE,
                "micro-step");
    TOY_TRY(zero_micro_end(engine));
    CHECK_FAILS(zero_shard_write(engine, WIDE, role, shard.first, 1, room), ZERO_ERR_STATE,
                "step is due");
    TOY_TRY(toy_update(trainer));
    TOY_TRY(zero_unit_acquire(engine, 0, ZERO_PASS_EVAL, toy_stream(), NULL));
    CHECK_FAILS(zero_shard_write(engine, WIDE, role, shard.first, 1, room), ZERO_ERR_STATE,
                "acquired");
    TOY_TRY(zero_shard_read(engine, WIDE, role, shard.first, 1, room));
    TOY_TRY(zero_unit_release(engine, 0, toy_stream()));
    return ZERO_OK;
}

TEST(wrong_questions_are_refused)
{
    rig_folders(2, 1);
    toy_run run = toy_run_wide(ZERO_DTYPE_BF16);
    put_on(&run, &mixes[MIXES - 1], true);
    CHECK_OK(toy_on_ranks(2, &run, ask_wrongly, NULL));
}

#ifdef TOY_CUDA

static zero_status capture_it(toy_trainer *trainer)
{
    CHECK_FAILS(zero_capture_prepare(trainer->engine), ZERO_ERR_UNSUPPORTED, "ZERO_UPDATER_GPU");
    return toy_step(trainer);
}

TEST(no_graph_of_what_the_cpu_does)
{
    rig_folders(2, 1);
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    put_on(&run, &(mix){{DEV, DEV, HOST, HOST, HOST}, ZERO_UPDATER_BOTH}, true);
    CHECK_OK(toy_on_ranks(1, &run, capture_it, NULL));
}

#endif

/* ---- what a step moves ---- */

/* Its state is on disk; the first such run of a test makes the folders. */
static toy_run disk_run(toy_run run)
{
    if (rig_made[0] == NULL) {
        rig_folders(2, 1);
    }
    put_on(&run, &(mix){{DEV, DEV, DISK, DISK, DISK}, 0}, true);
    return run;
}

/* The statistics while the disk is at rest: a role on disk is read in its turn, from what is in
 * memory. */
static zero_stats stats_at_rest(const toy_trainer *trainer, uint32_t tensor)
{
    zero_shard shard;
    uint32_t value = 0;
    CHECK_OK(zero_shard_range(trainer->engine, tensor, ZERO_ROLE_MOMENT1, &shard));
    CHECK(shard.count != 0);
    CHECK_OK(zero_shard_read(trainer->engine, tensor, ZERO_ROLE_MOMENT1, shard.first, 1, &value));
    return engine_stats(trainer->engine);
}

/* Numbers of the plan's lines on disks. */
typedef struct traffic {
    uint64_t step_read;
    uint64_t step_write;
    uint64_t pass_read;
    uint64_t micro_write;
} traffic;

static traffic planned(const toy_trainer *trainer)
{
    char text[4096];
    traffic t = {0};
    CHECK(zero_plan_print(zero_engine_plan(trainer->engine), text, sizeof text) < sizeof text);
    const char *line = strstr(text, "disk: a step");
    CHECK(line != NULL);
    CHECK_EQ(sscanf(line, "disk: a step reads at most %" SCNu64 " bytes and writes %" SCNu64,
                    &t.step_read, &t.step_write),
             2);
    line = strstr(text, "disk: a pass");
    CHECK(line == NULL || sscanf(line, "disk: a pass reads at most %" SCNu64, &t.pass_read) == 1);
    line = strstr(text, "disk: a micro-step");
    CHECK(line == NULL || sscanf(line, "disk: a micro-step writes %" SCNu64, &t.micro_write) == 1);
    return t;
}

/* Steps go down and up in turn: tensor 0 is where those that go down end, so looking at it between
 * two steps moves nothing. Steps 0, 2, ... go down. */
TEST(a_step_moves_what_was_planned_and_a_skipped_one_nothing)
{
    toy_trainer trainer;
    toy_run run = disk_run(toy_run_wide(ZERO_DTYPE_BF16));
    run.options.loss_scale = 1;
    run.tuning.loss_scale_static = 1;
    CHECK_OK(toy_open(&trainer, &run, NULL));
    const uint64_t reads = planned(&trainer).step_read;
    const uint64_t writes = planned(&trainer).step_write;
    CHECK(reads > writes / 2 && reads < writes);
    CHECK_OK(toy_step(&trainer));
    const zero_stats before = stats_at_rest(&trainer, 0);
    CHECK_OK(toy_step_or_skip(&trainer, trainer.step == 3));
    CHECK_OK(toy_step_or_skip(&trainer, trainer.step == 3));
    const zero_stats after = stats_at_rest(&trainer, 0);
    CHECK_EQ(after.disk_write_bytes - before.disk_write_bytes, 2 * writes);
    CHECK(after.disk_read_bytes - before.disk_read_bytes <= 2 * reads);
    CHECK(after.disk_read_bytes - before.disk_read_bytes > 2 * reads - 3 * 4096);
    CHECK_EQ(after.disk_read_hits - before.disk_read_hits, 2 * 3 + 1);
    CHECK_EQ(trainer.step, 3);
    CHECK_OK(toy_step_or_skip(&trainer, trainer.step == 3));
    const zero_stats skipped = stats_at_rest(&trainer, 0);
    CHECK_EQ(skipped.steps_skipped, 1);
    CHECK_EQ(skipped.disk_write_bytes, after.disk_write_bytes);
    CHECK_EQ(skipped.disk_read_bytes, after.disk_read_bytes);
    toy_close(&trainer);
}

#ifndef TOY_CUDA

/* Between two readings of an engine: what moved over the time, and a bound that is one of its own.
 */
TEST(a_bound_is_named_from_an_engines_counters)
{
    toy_trainer trainer;
    zero_bottleneck_report report = zero_bottleneck_report_init();
    rig_folders(2, 1);
    for (int disk = 0; disk < 2; disk++) {
        const toy_run plain = toy_run_wide(ZERO_DTYPE_BF16);
        const toy_run run = disk != 0 ? disk_run(plain) : plain;
        CHECK_OK(toy_open(&trainer, &run, NULL));
        CHECK_OK(toy_step(&trainer));
        const zero_stats before = engine_stats(trainer.engine);
        CHECK_OK(toy_step(&trainer));
        CHECK_OK(toy_evaluate(&trainer));
        const zero_stats after = engine_stats(trainer.engine);
        CHECK_OK(zero_stats_bottleneck(&before, &after, &report));
        CHECK(report.interval_ns > 0 && report.cpu_ns > 0);
        CHECK_EQ(report.link_ns, 0);
        if (disk == 0) {
            CHECK_EQ(report.bottleneck, ZERO_BOTTLENECK_CPU);
            CHECK_EQ(report.disk_read_ns + report.disk_write_ns, 0);
        } else {
            CHECK(report.bottleneck >= ZERO_BOTTLENECK_CPU &&
                  report.bottleneck <= ZERO_BOTTLENECK_DISK_WRITE);
            CHECK(report.disk_read_gb_s > 0.0 && report.disk_write_gb_s > 0.0);
        }
        toy_close(&trainer);
    }
}

#endif

/* ---- weights ---- */

/* State large enough for several stripes of 2 MiB: 3 of 4 to the first, whatever io_depth is. */
TEST(weights_decide_what_a_directory_holds)
{
    toy_trainer trainer;
    uint64_t bytes[2] = {0};
    toy_run run = disk_run(toy_run_equal(1, 8 * 262144, ZERO_DTYPE_F32));
    const uint32_t weights[] = {600, 200};
    run.options.tier[ZERO_ROLE_MOMENT1] = DEV;
    toy_run_disk(&run, rig_paths, 2);
    run.tuning.disk_weights = weights;
    run.tuning.extent_bytes = 2 << 20;
    run.tuning.io_depth = 1;
    CHECK_OK(toy_open(&trainer, &run, NULL));
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(rig_nameless(rig_paths[i], false, &bytes[i]), 1);
    }
    CHECK_EQ(bytes[0] + bytes[1], engine_stats(trainer.engine).disk_bytes);
    CHECK_EQ(bytes[0], 3 * bytes[1]);
    CHECK_OK(toy_step(&trainer));
    toy_close(&trainer);
}

/* ---- directories as one text ---- */

TEST(a_path_is_a_list_of_directories)
{
    char path[512];
    toy_trainer trainer;
    uint64_t bytes[2] = {0};
    toy_run run = disk_run(toy_run_equal(1, 8 * 262144, ZERO_DTYPE_F32));
    (void)snprintf(path, sizeof path, "%s:%s", rig_paths[0], rig_paths[1]);
    toy_run_disk(&run, NULL, 0);
    CHECK_OK(zero_option_set(&run.options, &run.tuning, "disk_path", path));
    run.tuning.extent_bytes = 2 << 20;
    CHECK_OK(toy_open(&trainer, &run, NULL));
    memset(path, 'x', sizeof path - 1); /* it was copied */
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(rig_nameless(rig_paths[i], false, &bytes[i]), 1);
    }
    CHECK_EQ(bytes[0] + bytes[1], engine_stats(trainer.engine).disk_bytes);
    CHECK_OK(toy_step(&trainer));
    toy_close(&trainer);
}

/* ---- what is refused ---- */

static void open_refused(const toy_run *run, zero_status expected, const char *text)
{
    toy_trainer trainer;
    CHECK_FAILS(toy_open(&trainer, run, NULL), expected, text);
}

TEST(directories_that_will_not_do)
{
    toy_run run = disk_run(toy_run_wide(ZERO_DTYPE_BF16));
    const char *const missing[] = {rig_paths[2], "/nonexistent/zero"};
    const char *const file[] = {"/proc/self/status"};
    const uint32_t hopeless[] = {1000, 1};
    const struct {
        const char *const *directories;
        uint32_t count;
        zero_status status;
        const char *text;
        const uint32_t *weights;
    } wrong[] = {
        {missing, 2, ZERO_ERR_IO, "/nonexistent/zero", NULL},
        {file, 1, ZERO_ERR_IO, "/proc/self/status", NULL},
        {file, 0, ZERO_ERR_INVALID_ARGUMENT, "disk_directories", NULL},
        {NULL, 1, ZERO_ERR_INVALID_ARGUMENT, "disk_directories", NULL},
        {rig_paths, 2, ZERO_ERR_INVALID_ARGUMENT, "directory 1 has the rate 1, the fastest 1000",
         hopeless},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        toy_run_disk(&run, wrong[i].directories, wrong[i].count);
        run.tuning.disk_weights = wrong[i].weights;
        open_refused(&run, wrong[i].status, wrong[i].text);
    }
}

TEST(paths_that_will_not_do)
{
    static const char *const wrong[][2] = {
        {"/nonexistent/zero", "/nonexistent/zero"},
        {"", "a directory without a name"},
        {":/tmp", "disk_path \":/tmp\" has a directory without a name"},
        {"/tmp::/tmp", "one colon between two"},
        {"/tmp:", "a directory without a name"},
        {"a:a:a:a:a:a:a:a:a:a:a:a:a:a:a:a:a", "has 17 directories; give at most 16"},
    };
    toy_run run = disk_run(toy_run_wide(ZERO_DTYPE_BF16));
    const uint32_t weights[] = {1, 1};
    toy_run_disk(&run, NULL, 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        run.options.disk_path = wrong[i][0];
        open_refused(&run, i == 0 ? ZERO_ERR_IO : ZERO_ERR_INVALID_ARGUMENT, wrong[i][1]);
    }
    run.options.disk_path = rig_paths[0];
    run.tuning.disk_weights = weights;
    open_refused(&run, ZERO_ERR_INVALID_ARGUMENT, "disk_weights");
    run.tuning.disk_weights = NULL;
    toy_run_disk(&run, rig_paths, 2);
    open_refused(&run, ZERO_ERR_INVALID_ARGUMENT,
                 "2 disk_directories are given; leave one of them out");
}

TEST(a_full_disk_is_refused_with_what_is_missing)
{
    char *folder = rig_small_disk();
    toy_run run = disk_run(toy_run_equal(4, 100000, ZERO_DTYPE_BF16));
    const char *list[] = {folder};
    run.options.disk_directories = list;
    open_refused(&run, ZERO_ERR_OUT_OF_MEMORY, folder);
    rig_small_disk_remove(folder);
}

TEST(one_directory_one_engine)
{
    toy_trainer first;
    const toy_run run = disk_run(toy_run_wide(ZERO_DTYPE_BF16));
    CHECK_OK(toy_open(&first, &run, NULL));
    char pid[32];
    (void)snprintf(pid, sizeof pid, "%d", (int)getpid());
    open_refused(&run, ZERO_ERR_STATE, pid);
    CHECK_OK(toy_step(&first));
    toy_close(&first);
}

/* One rank that cannot have its directory takes the others with it. */
static zero_status one_without(zero_world *world, void *user)
{
    toy_run run = *(const toy_run *)user;
    const char *missing[] = {"/nonexistent/zero"};
    toy_trainer trainer;
    const bool odd = zero_world_rank(world) == 1;
    run.options.disk_directories = odd ? missing : run.options.disk_directories;
    const zero_status status = toy_open(&trainer, &run, world);
    CHECK(status != ZERO_OK);
    CHECK(strstr(zero_last_error()->message, "/nonexistent/zero") != NULL);
    return status; /* the one that had no directory has the first word, whoever returns first */
}

TEST(a_rank_without_its_directory)
{
    toy_run run = disk_run(toy_run_wide(ZERO_DTYPE_BF16));
    CHECK_FAILS(zero_world_run(3, TOY_DEADLINE_MS, one_without, &run), ZERO_ERR_IO,
                "/nonexistent/zero");
}

/* ---- a fault in the middle of a step ---- */

/* All ranks' files are cut by rank 0, so that every rank meets a fault sooner or later. */
static zero_status lose_the_disk(toy_trainer *trainer)
{
    const toy_run *run = trainer->run;
    for (int i = 0; i < 3; i++) {
        TOY_TRY(toy_step(trainer));
    }
    TOY_TRY(toy_wait(trainer));
    TOY_TRY(toy_evaluate(trainer));
    TOY_TRY(zero_world_barrier(trainer->world));
    if (trainer->rank == 0) {
        uint64_t bytes = 0;
        CHECK_EQ(rig_nameless(run->options.disk_directories[0], true, &bytes), trainer->ranks);
    }
    TOY_TRY(zero_world_barrier(trainer->world));
    zero_status status = ZERO_OK;
    for (int i = 0; i < 3 && status == ZERO_OK; i++) {
        status = toy_step_or_skip(trainer, false);
    }
    CHECK(status == ZERO_ERR_CORRUPT || (trainer->ranks > 1 && status == ZERO_ERR_COMM));
    CHECK(strstr(zero_last_error()->message, run->options.disk_directories[0]) != NULL);
    CHECK_FAILS(toy_step(trainer), ZERO_ERR_POISONED, run->options.disk_directories[0]);
    return ZERO_OK;
}

TEST(a_fault_in_a_step_names_the_directory)
{
    rig_folders(2, 1);
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        toy_run run = disk_run(toy_run_wide(ZERO_DTYPE_BF16));
        run.options.disk_directories = &rig_paths[ranks % 2 == 0 ? 2 : 0];
        run.options.tier[ZERO_ROLE_PARAM] = ranks >= 2 ? DISK : DEV;
        CHECK_FAILS(toy_on_ranks(ranks, &run, lose_the_disk, NULL), ZERO_ERR_CORRUPT,
                    run.options.disk_directories[0]);
    }
}

/* A step under way when its engine goes: nothing is left in flight, and nobody waits for ever. */
static zero_status leave_early(zero_world *world, void *user)
{
    for (int i = 0; i < 5; i++) {
        toy_trainer trainer;
        TOY_TRY(toy_open(&trainer, user, world));
        TOY_TRY(toy_step(&trainer));
        TOY_TRY(toy_step(&trainer));
        toy_close(&trainer);
        TOY_TRY(zero_world_barrier(world));
    }
    return ZERO_OK;
}

TEST(engines_may_go_with_writes_under_way)
{
    toy_run run = disk_run(toy_run_wide(ZERO_DTYPE_BF16));
    CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, leave_early, &run));
    run.options.tier[ZERO_ROLE_PARAM] = DISK;
    run.options.tier[ZERO_ROLE_GRAD] = DISK;
    CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, leave_early, &run));
}

#ifndef TOY_CUDA

/* ---- reading ahead ---- */

#define UNITS 12

static uint64_t read_bytes(const toy_trainer *trainer)
{
    return engine_stats(trainer->engine).disk_read_bytes;
}

/* A unit that is at hand has the reads of the two behind it under way, or over: the I/O window
 * counts them as they are started. */
static zero_status sweep_and_count(toy_trainer *trainer)
{
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_evaluate(trainer)); /* ends with the last units in memory */
    const uint64_t before = read_bytes(trainer);
    const uint64_t all = plan_memory(zero_engine_plan(trainer->engine)).bytes[ZERO_ROLE_PARAM];
    memset(trainer->seen_set, 0, TOY_TENSORS_MAX * sizeof *trainer->seen_set);
    for (uint32_t u = 0; u < UNITS; u++) {
        TOY_TRY(zero_unit_acquire(trainer->engine, u, ZERO_PASS_EVAL, toy_stream(), NULL));
        const uint64_t least = u + 3 < UNITS ? u + 3 : UNITS;
        CHECK(read_bytes(trainer) - before >= least * (all / UNITS));
        TOY_TRY(toy_read(trainer, u));
        TOY_TRY(zero_unit_release(trainer->engine, u, toy_stream()));
    }
    CHECK_EQ(read_bytes(trainer) - before, all); /* each once */
    return ZERO_OK;
}

TEST(parameters_are_read_two_units_ahead)
{
    rig_folders(2, 1);
    toy_run run = toy_run_equal(UNITS, 5000, ZERO_DTYPE_BF16);
    put_on(&run, &(mix){{DISK, DEV, DEV, DEV, DEV}, 0}, true);
    run.tuning.extent_bytes = 16384; /* a unit is one extent */
    CHECK_OK(toy_on_ranks(1, &run, sweep_and_count, NULL));
    CHECK_OK(toy_on_ranks(2, &run, sweep_and_count, NULL));
}

/* ---- waiting ---- */

/* The second rank leaves a unit out. The first, on its way to the next, waits for the sum that
 * backward adds to; were that behind a reduction over both, and the second's next gather waiting
 * for the first, neither would go on. */
static zero_status leave_one_out(toy_trainer *trainer)
{
    for (int step = 0; step < 2; step++) {
        TOY_TRY(toy_micro(trainer, false));
        TOY_TRY(toy_micro_begin(trainer, true));
        for (uint32_t u = 0; u < UNITS; u++) {
            TOY_TRY(toy_forward(trainer, u));
        }
        for (uint32_t u = UNITS; u-- > 0;) {
            TOY_TRY(trainer->rank == 1 && u == UNITS - 3 ? ZERO_OK : toy_backward(trainer, u));
        }
        TOY_TRY(toy_micro_end(trainer));
        TOY_TRY(toy_update(trainer));
    }
    return ZERO_OK;
}

TEST(a_sum_in_a_slot_waits_for_no_other_rank)
{
    rig_folders(2, 1);
    toy_run run = toy_run_equal(UNITS, 300, ZERO_DTYPE_F32);
    put_on(&run, &(mix){{DEV, DISK, DEV, DEV, DEV}, 0}, true);
    run.tuning.accumulation = ZERO_ACCUMULATION_LOCAL;
    run.tuning.bucket_bytes = 1;
    run.tuning.grad_slots = 5;
    run.tuning.no_prefetch = 1;
    CHECK_OK(toy_on_ranks(2, &run, leave_one_out, NULL));
}

/* ---- what steps and micro-steps move ---- */

/* Check that as many bytes are written as planned, and not more are read, but for the first
 * comparison of parameters that several ranks hold. */
static zero_status count_traffic(toy_trainer *trainer)
{
    const toy_run *run = trainer->run;
    zero_shard shard;
    uint32_t value = 0;
    const traffic t = planned(trainer);
    const uint64_t one = t.pass_read / UNITS; /* for looking at it */
    zero_stats last = engine_stats(trainer->engine);
    for (int step = 0; step < 4; step++) {
        TOY_TRY(toy_step_or_skip(trainer, false));
        /* Of an extent in the middle: so the last one released is written, and all is counted. */
        TOY_TRY(zero_shard_range(trainer->engine, UNITS / 2, ZERO_ROLE_PARAM, &shard));
        TOY_TRY(zero_shard_read(trainer->engine, UNITS / 2, ZERO_ROLE_PARAM, shard.first,
                                shard.count != 0, &value));
        const zero_stats now = engine_stats(trainer->engine);
        const uint64_t micros = run->micro_steps;
        CHECK_EQ(now.disk_write_bytes - last.disk_write_bytes,
                 t.step_write + micros * t.micro_write);
        CHECK(now.disk_read_bytes - last.disk_read_bytes <= t.step_read + 2 * micros * t.pass_read +
                                                                (micros - 1) * t.micro_write + one +
                                                                (step == 0 ? t.pass_read : 0));
        last = now;
    }
    return ZERO_OK;
}

TEST(what_moves_is_what_was_planned)
{
    rig_folders(2, 1);
    static const mix far[] = {{{DISK, DEV, DEV, DEV, DEV}, 0}, {{DISK, DISK, DEV, DEV, DEV}, 0}};
    for (int i = 0; i < 2; i++) {
        toy_run run = toy_run_equal(UNITS, 5000, ZERO_DTYPE_BF16);
        put_on(&run, &far[i], true);
        run.micro_steps = 2;
        run.tuning.bucket_bytes = 1; /* a unit each */
        CHECK_OK(toy_on_ranks(1, &run, count_traffic, NULL));
        run.options.stage = ZERO_STAGE_1;
        CHECK_OK(toy_on_ranks(2, &run, count_traffic, NULL));
    }
}

#endif
