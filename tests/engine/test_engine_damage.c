/* Owns the tests of damage to what is on disk: a bit that flips, a sector of zeros, a file that is
 * cut short, in every role and on every way from a disk. Whatever is damaged, a run has the bits of
 * one without or ends with CORRUPT, naming directory, role, unit and place; and nothing that was
 * made of damaged bytes reaches a parameter. Where checksums are turned off the same damage is not
 * noticed, so that the tests can fail.
 *
 * An engine's files have no names, so they are reached by /proc/self/fd. */
#include "harness.h"
#include "reads.h"

#include <pthread.h>

#include "engine/engine_internal.h"
#include "engine/guard.h"
#include "engine/shard.h"
#include "folders.h"
#include "toy.h"

#define PAGE 4096
#define UNITS 6
#define COUNT 2048 /* elements of a unit: whole pages of any type */
#define STEPS 2    /* before the damage, and after it */

typedef enum damage_kind { FLIP_A_BIT, ZERO_A_SECTOR, CUT_SHORT } damage_kind;

static char *folder;

/* ---- the file ---- */

/* The open file without a name in a folder; there is one. */
static int live_file(const char *path)
{
    char real[4096];
    int found = -1;
    DIR *fds = opendir("/proc/self/fd");
    CHECK(fds != NULL && realpath(path, real) != NULL);
    for (const struct dirent *entry = readdir(fds); entry != NULL; entry = readdir(fds)) {
        char target[4096] = "";
        struct stat info;
        const int fd = atoi(entry->d_name);
        if (readlinkat(dirfd(fds), entry->d_name, target, sizeof target - 1) > 0 &&
            strncmp(target, real, strlen(real)) == 0 && fstat(fd, &info) == 0 &&
            S_ISREG(info.st_mode) && info.st_nlink == 0) {
            CHECK_EQ(found, -1);
            found = fd;
        }
    }
    (void)closedir(fds);
    CHECK(found >= 0);
    return found;
}

static uint64_t live_bytes(void)
{
    struct stat info;
    CHECK(fstat(live_file(folder), &info) == 0);
    return (uint64_t)info.st_size;
}

/* Returns whether that changed anything. */
static bool damage(const char *path, damage_kind kind, uint64_t page)
{
    static _Alignas(PAGE) unsigned char bytes[PAGE];
    const int fd = live_file(path);
    if (kind == CUT_SHORT) {
        CHECK(ftruncate(fd, (off_t)(page * PAGE)) == 0);
        return true;
    }
    CHECK_EQ(pread(fd, bytes, PAGE, (off_t)(page * PAGE)), PAGE);
    const size_t at = page * 523 % PAGE;
    bool changes = kind == FLIP_A_BIT;
    if (kind == FLIP_A_BIT) {
        bytes[at] ^= (unsigned char)(1u << page % 8);
    } else {
        for (size_t i = at / 512 * 512; i < at / 512 * 512 + 512; i++) {
            changes = changes || bytes[i] != 0;
            bytes[i] = 0;
        }
    }
    CHECK_EQ(pwrite(fd, bytes, PAGE, (off_t)(page * PAGE)), PAGE);
    return changes;
}

/* ---- runs ---- */

/* A run with these roles on disk, in records so small that the I/O window has a few of many. */
static toy_run run_on_disk(toy_run run, uint32_t roles)
{
    for (int role = 0; role < ZI_TIER_ROLES; role++) {
        run.options.tier[role] = (roles >> role & 1u) != 0 ? ZERO_TIER_DISK : ZERO_TIER_DEVICE;
    }
    toy_run_disk(&run, (const char *const *)&folder, 1);
    run.tuning.bucket_bytes = 1;
    run.tuning.param_slots = 2;
    run.params.max_norm = 0;
    run.micro_steps = 2; /* so that sums on disk are read again */
    return run;
}

static toy_run small_run(uint32_t roles)
{
    return run_on_disk(toy_run_equal(UNITS, COUNT, ZERO_DTYPE_BF16), roles);
}

static zero_status end_step(toy_trainer *trainer)
{
    while (trainer->micro < trainer->run->micro_steps) {
        TOY_TRY(toy_micro(trainer, trainer->micro + 1 == trainer->run->micro_steps));
    }
    TOY_TRY(toy_update(trainer));
    return toy_wait(trainer);
}

static zero_status take_steps(toy_trainer *trainer, uint64_t last)
{
    while (trainer->step < last) {
        TOY_TRY(end_step(trainer));
    }
    return ZERO_OK;
}

/* Until all is written that a step writes. */
static zero_status come_to_rest(toy_trainer *trainer)
{
    TOY_TRY(zi_engine_await(trainer->engine, trainer->engine->stepped));
    return zi_engine_flush_shards(trainer->engine);
}

/* As far as the damage. Sums are read by the second micro-step, and are worth nothing after. */
static void go_to_damage(toy_trainer *trainer)
{
    CHECK_OK(take_steps(trainer, STEPS));
    if (trainer->run->options.tier[ZERO_ROLE_GRAD] == ZERO_TIER_DISK) {
        CHECK_OK(toy_micro(trainer, false));
    }
    CHECK_OK(come_to_rest(trainer));
}

/* Parameters where the device has them; the caller frees them. */
static unsigned char *param_arena(toy_trainer *trainer)
{
    zero_engine *engine = trainer->engine;
    (void)zi_engine_await(engine, engine->stepped); /* or what it failed with */
    const uint64_t bytes = zi_role_arena_bytes(engine->layout, ZERO_ROLE_PARAM);
    unsigned char *copy = malloc(bytes + 1);
    CHECK(copy != NULL);
    memcpy(copy, toy_fetch(engine->arena[ZERO_ROLE_PARAM], bytes), bytes);
    return copy;
}

/* A run without damage: its end, and parameters after each step from the damage on. */
typedef struct undamaged {
    toy_state state;
    uint64_t param_bytes; /* 0: they are not on the device */
    unsigned char *params[STEPS + 1];
} undamaged;

static void run_undamaged(const toy_run *run, undamaged *out)
{
    toy_trainer trainer;
    memset(out, 0, sizeof *out);
    CHECK_OK(toy_open(&trainer, run, NULL));
    CHECK_OK(take_steps(&trainer, STEPS));
    out->param_bytes = run->options.tier[ZERO_ROLE_PARAM] == ZERO_TIER_DISK
                           ? 0
                           : zi_role_arena_bytes(trainer.engine->layout, ZERO_ROLE_PARAM);
    for (int s = 0; s <= STEPS && out->param_bytes != 0; s++) {
        CHECK_OK(take_steps(&trainer, (uint64_t)(STEPS + s)));
        CHECK_OK(come_to_rest(&trainer));
        out->params[s] = param_arena(&trainer);
    }
    CHECK_OK(take_steps(&trainer, 2 * STEPS));
    CHECK_OK(toy_collect(&trainer, &out->state));
    toy_close(&trainer);
}

static void free_undamaged(undamaged *u)
{
    toy_state_free(&u->state);
    for (int s = 0; s <= STEPS; s++) {
        free(u->params[s]);
    }
}

/* Every parameter is one that a step without damage made. On a GPU nothing says when copies are
 * over that a failed stream had begun. */
static void check_params(const undamaged *u, toy_trainer *trainer)
{
    if (u->param_bytes == 0 || toy_device() != ZERO_DEVICE_CPU) {
        return;
    }
    unsigned char *now = param_arena(trainer);
    for (uint64_t at = 0; at < u->param_bytes; at += 2) {
        bool known = false;
        for (int s = 0; s <= STEPS; s++) {
            known = known || memcmp(now + at, u->params[s] + at, 2) == 0;
        }
        if (!known) {
            TEST_FAIL("byte %" PRIu64 " of the parameters is of no undamaged step", at);
        }
    }
    free(now);
}

typedef struct tally {
    uint32_t corrupt; /* runs that ended so */
    uint32_t same;    /* that had the bits of one without damage */
    uint32_t other;   /* that had others, without a word */
} tally;

/* The page is damaged after some steps, and then there are more. name: what the message is to say
 * beside the directory; NULL: anything. */
static void run_damaged(const toy_run *run, undamaged *u, damage_kind kind, uint64_t page,
                        const char *name, tally *sum)
{
    toy_trainer trainer;
    toy_state state;
    memset(&state, 0, sizeof state);
    CHECK_OK(toy_open(&trainer, run, NULL));
    go_to_damage(&trainer);
    const bool changed = damage(folder, kind, page);
    zero_status status = take_steps(&trainer, 2 * STEPS);
    status = status == ZERO_OK ? toy_collect(&trainer, &state) : status;
    if (status == ZERO_OK) {
        const bool same = memcmp(state.bits[ZERO_ROLE_PARAM], u->state.bits[ZERO_ROLE_PARAM],
                                 state.element_count * sizeof(uint32_t)) == 0;
        sum->same += same;
        sum->other += !same;
        CHECK(same || run->tuning.disk_unchecked);
        CHECK(same || changed);
        if (!run->tuning.disk_unchecked) {
            toy_state_same(run->model, &u->state, &state, "without and with damage");
        }
    } else {
        const zero_error error = *zero_last_error();
        const char *message = error.message;
        CHECK(changed);
        CHECK_EQ(status, ZERO_ERR_CORRUPT);
        CHECK(strstr(message, folder) != NULL && strstr(message, "of the file") != NULL);
        /* Writing behind the end makes a file of holes of it. */
        CHECK(strstr(message, "not what was written") != NULL ||
              (kind == CUT_SHORT && strstr(message, "cut short") != NULL));
        if (name != NULL && strstr(message, name) == NULL) {
            TEST_FAIL("no \"%s\" in: %s", name, message);
        }
        check_params(u, &trainer);
        CHECK_FAILS(toy_step(&trainer), ZERO_ERR_POISONED, folder);
        sum->corrupt++;
    }
    toy_state_free(&state);
    toy_close(&trainer);
}

/* ---- by name ---- */

/* Of a file that holds one role, in ranges and extents of a page: which unit a page is of. */
static void name_page(zero_role role, uint64_t page, char *text, size_t text_bytes)
{
    const uint64_t each = COUNT * (role == ZERO_ROLE_PARAM ? 2 : 4);
    const uint64_t unit = page * PAGE / each;
    (void)snprintf(text, text_bytes,
                   "%s of unit %" PRIu64 " \"layer%" PRIu64 "\": %u bytes at %" PRIu64 " of",
                   zero_role_name(role), unit, unit, PAGE, page * PAGE);
}

static void damage_one_role(zero_role role, damage_kind kind, bool unchecked)
{
    undamaged u;
    tally sum = {0};
    folder = rig_folder(true);
    toy_run run = small_run(1u << role);
    run.tuning.disk_unchecked = unchecked;
    run_undamaged(&run, &u);
    const uint64_t pages = UNITS * (uint64_t)COUNT * (role == ZERO_ROLE_PARAM ? 2 : 4) / PAGE;
    for (uint64_t page = 0; page < pages; page++) {
        char name[128];
        /* Of every unit, whose pages are one or two. Without checksums few pages show anything. */
        if (!unchecked && !IN_SAMPLE(page + page / 2 + role + kind)) {
            continue;
        }
        name_page(role, page, name, sizeof name);
        run_damaged(&run, &u, kind, page, kind == CUT_SHORT ? zero_role_name(role) : name, &sum);
    }
    printf("  %s: %u corrupt, %u same, %u other\n", zero_role_name(role), sum.corrupt, sum.same,
           sum.other);
    if (unchecked) {
        CHECK_EQ(sum.corrupt, 0);
        CHECK(sum.other != 0);
    } else {
        CHECK(sum.corrupt != 0);
        CHECK_EQ(sum.other, 0);
    }
    free_undamaged(&u);
    rig_remove(folder);
}

static void damage_every_role(damage_kind kind, bool unchecked)
{
    /* Without checksums the toy itself sees that a parameter is another than in forward. */
    for (int role = unchecked ? ZERO_ROLE_GRAD : ZERO_ROLE_PARAM; role < ZI_TIER_ROLES; role++) {
        damage_one_role((zero_role)role, kind, unchecked);
    }
}

TEST_CALL(a_flipped_bit_is_named, damage_every_role(FLIP_A_BIT, false));
TEST_CALL(a_sector_of_zeros_is_named, damage_every_role(ZERO_A_SECTOR, false));
TEST_CALL(a_file_cut_short_is_named, damage_every_role(CUT_SHORT, false));

TEST(without_checksums_it_goes_unnoticed)
{
    damage_every_role(FLIP_A_BIT, true);
    damage_every_role(ZERO_A_SECTOR, true);
}

/* ---- everywhere ---- */

/* Every page in turn, of whatever is on disk. */
static void damage_every_page(const toy_run *run, tally *sum)
{
    undamaged u;
    const uint64_t pages = toy_planned(run, 1).tier_bytes[ZERO_TIER_DISK] / PAGE;
    run_undamaged(run, &u);
    for (uint64_t page = 0; page < pages; page++) {
        if (IN_SMALL_SAMPLE(page)) {
            run_damaged(run, &u, (damage_kind)(page % 3), page, NULL, sum);
        }
    }
    printf("  %" PRIu64 " pages: %u corrupt, %u same, %u other\n", pages, sum->corrupt, sum->same,
           sum->other);
    CHECK_EQ(sum->other, 0);
    CHECK(sum->corrupt > (sum->corrupt + sum->same) / 5);
    free_undamaged(&u);
}

TEST(all_roles_on_disk)
{
    tally sum = {0};
    folder = rig_folder(true);
    toy_run run = small_run(0x1f);
    damage_every_page(&run, &sum);
    rig_remove(folder);
}

/* Both places of a range: of speculative updates that are kept, and of what is updated again. */
TEST(steps_that_begin_during_backward)
{
    folder = rig_folder(true);
    for (int clipped = 0; clipped < 2; clipped++) {
        tally sum = {0};
        toy_run run = small_run(0x1c);
        run.tuning.speculative_step = 1;
        run.predicted = true;
        run.params.max_norm = clipped != 0 ? 1e-3f : 0;
        damage_every_page(&run, &sum);
    }
    rig_remove(folder);
}

/* Records of many blocks, which several threads compare, striped over two directories. */
TEST(large_records_on_two_disks)
{
    char *folders[2] = {rig_folder(true), rig_folder(true)};
    for (int second = 0; second < 2; second++) {
        folder = folders[second];
        toy_run run = run_on_disk(toy_run_equal(4, 700000, ZERO_DTYPE_F32), 0x18);
        run.options.threads = 3;
        toy_run_disk(&run, (const char *const *)folders, 2);
        run.tuning.extent_bytes = 4 << 20;
        toy_trainer trainer;
        CHECK_OK(toy_open(&trainer, &run, NULL));
        CHECK_OK(take_steps(&trainer, 1));
        CHECK_OK(come_to_rest(&trainer));
        CHECK(damage(folder, FLIP_A_BIT, 1707));
        CHECK_EQ(take_steps(&trainer, 4), ZERO_ERR_CORRUPT);
        const char *message = zero_last_error()->message;
        CHECK(strstr(message, folder) != NULL);
        CHECK(strstr(message, "65536 bytes at 6946816 of the file") != NULL); /* block 106 */
        CHECK(strstr(message, " of unit ") != NULL);
        toy_close(&trainer);
    }
    rig_remove(folders[0]);
    rig_remove(folders[1]);
}

/* ---- whoever reads ---- */

TEST(values_that_are_asked_for)
{
    for (int role = 0; role < ZI_TIER_ROLES; role++) {
        folder = rig_folder(true);
        toy_run run = small_run(1u << role);
        toy_trainer trainer;
        uint32_t values[COUNT];
        CHECK_OK(toy_open(&trainer, &run, NULL));
        CHECK_OK(take_steps(&trainer, STEPS));
        CHECK_OK(come_to_rest(&trainer));
        zero_status status = ZERO_OK;
        for (uint64_t page = 0; page < live_bytes() / PAGE; page++) {
            (void)damage(folder, FLIP_A_BIT, page);
        }
        for (uint32_t t = 0; t < UNITS && status == ZERO_OK; t++) {
            status = zero_shard_read(trainer.engine, t, (zero_role)role, 0, COUNT, values);
        }
        CHECK_FAILS(status, ZERO_ERR_CORRUPT, zero_role_name((zero_role)role));
        CHECK_FAILS(zero_shard_write(trainer.engine, 0, (zero_role)role, 0, COUNT, values),
                    ZERO_ERR_POISONED, folder);
        toy_close(&trainer);
        rig_remove(folder);
    }
}

TEST(passes_that_only_look)
{
    folder = rig_folder(true);
    toy_run run = small_run(1);
    toy_trainer trainer;
    CHECK_OK(toy_open(&trainer, &run, NULL));
    CHECK_OK(come_to_rest(&trainer));
    for (uint64_t page = 0; page < live_bytes() / PAGE; page++) {
        CHECK(damage(folder, FLIP_A_BIT, page));
    }
    CHECK_FAILS(toy_evaluate(&trainer), ZERO_ERR_CORRUPT, "param of unit ");
    CHECK_FAILS(toy_evaluate(&trainer), ZERO_ERR_POISONED, "param of unit ");
    toy_close(&trainer);
    rig_remove(folder);
}

static pthread_barrier_t settled;

/* Each rank has a disk of its own, and after some steps rank 1's has a wrong bit in a page. */
static zero_status open_and_damage(toy_trainer *trainer, toy_run *run, zero_world *world,
                                   uint64_t page)
{
    const uint32_t rank = zero_world_rank(world);
    run->options.disk_directories = &rig_paths[rank];
    TOY_TRY(toy_open(trainer, run, world));
    TOY_TRY(take_steps(trainer, STEPS));
    TOY_TRY(come_to_rest(trainer));
    TOY_TRY(zero_world_barrier(world));
    CHECK(rank != 1 || damage(rig_paths[1], FLIP_A_BIT, page));
    return ZERO_OK;
}

/* One rank's disk: the others get its message, and nobody goes on. */
static zero_status lose_one_disk(zero_world *world, void *user)
{
    toy_run run = *(const toy_run *)user;
    toy_trainer trainer;
    const uint32_t rank = zero_world_rank(world);
    TOY_TRY(open_and_damage(&trainer, &run, world, 1));
    const zero_status status = take_steps(&trainer, 2 * STEPS);
    CHECK_EQ(status, rank == 1 ? ZERO_ERR_CORRUPT : ZERO_ERR_COMM);
    CHECK(strstr(zero_last_error()->message, "not what was written") != NULL);
    CHECK(strstr(zero_last_error()->message, rig_paths[1]) != NULL);
    CHECK_FAILS(take_steps(&trainer, 2 * STEPS), ZERO_ERR_POISONED, rig_paths[1]);
    toy_settle(); /* before any rank's memory goes: zero_engine_destroy */
    (void)pthread_barrier_wait(&settled);
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(the_other_ranks_are_told)
{
    CHECK_EQ(pthread_barrier_init(&settled, NULL, 3), 0);
    const toy_run large = toy_run_equal(UNITS, 3 * COUNT, ZERO_DTYPE_BF16);
    rig_folders(0, 3);
    for (int role = 0; role < ZI_TIER_ROLES; role++) {
        /* Sums are not worth anything between steps. */
        toy_run run = run_on_disk(large, role == ZERO_ROLE_GRAD ? 0x1f : 1u << role);
        CHECK_EQ(zero_world_run(3, TOY_DEADLINE_MS, lose_one_disk, &run), ZERO_ERR_CORRUPT);
    }
    CHECK_EQ(pthread_barrier_destroy(&settled), 0);
}

/* A unit of rank 1 that is read ahead, while its host is elsewhere: the others do not wait for it
 * until their deadline. */
static zero_status lose_what_is_ahead(zero_world *world, void *user)
{
    toy_run run = *(const toy_run *)user;
    toy_trainer trainer;
    const uint32_t rank = zero_world_rank(world);
    TOY_TRY(open_and_damage(&trainer, &run, world, UNITS - 1));
    if (rank == 1) {
        for (uint32_t unit = 0; unit + 1 < UNITS; unit++) {
            TOY_TRY(toy_acquire(&trainer, unit, ZERO_PASS_EVAL));
            TOY_TRY(toy_release(&trainer, unit, ZERO_PASS_EVAL));
        }
    } else {
        CHECK_FAILS(toy_evaluate(&trainer), ZERO_ERR_COMM, rig_paths[1]);
    }
    toy_settle();
    (void)pthread_barrier_wait(&settled);
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(nobody_waits_for_a_unit_that_is_lost_ahead)
{
    CHECK_EQ(pthread_barrier_init(&settled, NULL, 3), 0);
    toy_run run = run_on_disk(toy_run_equal(UNITS, 3 * COUNT, ZERO_DTYPE_BF16), 1);
    run.tuning.param_slots = 3;
    run.tuning.look_ahead = 2;
    rig_folders(0, 3);
    CHECK_EQ(zero_world_run(3, TOY_DEADLINE_MS, lose_what_is_ahead, &run), ZERO_ERR_CORRUPT);
    CHECK_EQ(pthread_barrier_destroy(&settled), 0);
}

/* ---- what is evicted ---- */

static void damage_evicted(toy_run *run, damage_kind kind, uint64_t page)
{
    toy_trainer trainer;
    toy_state before;
    toy_state after;
    CHECK_OK(toy_open(&trainer, run, NULL));
    CHECK_OK(take_steps(&trainer, STEPS));
    CHECK_OK(toy_collect(&trainer, &before));
    CHECK_OK(zero_engine_evict(trainer.engine, ZERO_EVICT_STATE, ZERO_TIER_DISK));
    const uint64_t pages = live_bytes() / PAGE;
    CHECK_EQ(pages % 3, 0);
    page = page * pages / 12; /* so that all three roles come */
    const zero_role role = (zero_role)(ZERO_ROLE_MASTER + page / (pages / 3));
    const bool changed = damage(folder, kind, page);
    const zero_status status = zero_engine_restore(trainer.engine);
    if (run->tuning.disk_unchecked && kind != CUT_SHORT) {
        CHECK_EQ(status, ZERO_OK);
        CHECK_OK(toy_collect(&trainer, &after));
        const uint64_t bytes = after.element_count * sizeof(uint32_t);
        CHECK_EQ(memcmp(before.bits[role], after.bits[role], bytes) != 0, changed);
        toy_state_free(&after);
    } else if (changed) {
        const char *message = zero_last_error()->message;
        CHECK_EQ(status, ZERO_ERR_CORRUPT);
        CHECK(strstr(message, folder) != NULL && strstr(message, "of the file") != NULL);
        CHECK(kind == CUT_SHORT || strstr(message, zero_role_name(role)) != NULL);
        CHECK(kind == CUT_SHORT || strstr(message, " of unit") != NULL);
        CHECK_FAILS(zero_engine_restore(trainer.engine), ZERO_ERR_POISONED, folder);
        CHECK_FAILS(toy_evaluate(&trainer), ZERO_ERR_POISONED, folder);
    }
    toy_state_free(&before);
    toy_close(&trainer);
}

TEST(what_is_evicted_is_compared_too)
{
    folder = rig_folder(true);
    toy_run run = run_on_disk(toy_run_equal(4, 100 * 1024, ZERO_DTYPE_BF16), 0);
    for (int unchecked = 0; unchecked < 2; unchecked++) {
        run.tuning.disk_unchecked = unchecked;
        for (uint64_t page = 0; page < 12; page++) {
            for (int kind = FLIP_A_BIT; kind <= CUT_SHORT; kind++) {
                if (IN_SMALL_SAMPLE(page + (uint64_t)kind)) {
                    damage_evicted(&run, (damage_kind)kind, page);
                }
            }
        }
    }
    rig_remove(folder);
}

TEST(the_option_is_a_flag)
{
    folder = rig_folder(true);
    toy_run run = small_run(0x1c);
    run.tuning.disk_unchecked = 2;
    toy_trainer trainer;
    CHECK_FAILS(toy_open(&trainer, &run, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "tuning.disk_unchecked 2");
    run.tuning.disk_unchecked = 0;
    CHECK_OK(toy_open(&trainer, &run, NULL));
    CHECK_OK(take_steps(&trainer, STEPS));
    CHECK(engine_stats(trainer.engine).disk_check_ns != 0);
    toy_close(&trainer);
    run.tuning.disk_unchecked = 1;
    CHECK_OK(toy_open(&trainer, &run, NULL));
    CHECK_OK(take_steps(&trainer, STEPS));
    CHECK_EQ(engine_stats(trainer.engine).disk_check_ns, 0);
    toy_close(&trainer);
    rig_remove(folder);
}
