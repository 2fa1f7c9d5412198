/* Owns the tests of giving memory back between steps: training goes on with the bits it would have
 * had, the memory really falls, what the engine says it holds is what it holds, and whatever fails
 * on the way there or back costs nothing that is to be kept. */
#include "harness.h"
#include "reads.h"

#include "comm/host/host_comm.h"
#include "comm/world.h"
#include "core/fault.h"
#include "engine/engine_internal.h"
#include "folders.h"
#include "toy.h"

#define DEADLINE_MS 60000

#define DEV ZERO_TIER_DEVICE
#define HOST ZERO_TIER_HOST
#define DISK ZERO_TIER_DISK
#define BIT(role) ZERO_ROLE_BIT(ZERO_ROLE_##role)
#define OWN ZERO_UPDATER_DEFAULT

/* The roles that are evicted, to which tier, and the tiers of the state. */
typedef struct evict_case {
    uint32_t roles;
    zero_tier tier;
    zero_tier state[3]; /* master, moment1, moment2 */
    zero_updater updater;
} evict_case;

#ifdef TOY_CUDA
static const evict_case pauses[] = {
    {ZERO_EVICT_ALL, HOST, {DEV, DEV, DEV}, OWN},
    {ZERO_EVICT_ALL, DISK, {DEV, DEV, DEV}, OWN},
    {ZERO_EVICT_ALL, DISK, {HOST, DEV, HOST}, OWN},
    {ZERO_EVICT_STATE, HOST, {HOST, HOST, DEV}, OWN},
    {BIT(MOMENT1) | BIT(GRAD), HOST, {DEV, DEV, DEV}, OWN},
    {BIT(GRAD) | BIT(GRAD_SLOT) | BIT(IO_WINDOW), HOST, {DEV, DEV, DEV}, OWN},
    /* The I/O window's memory is nothing but the bounce buffers of the CPU's updates. */
    {ZERO_EVICT_ALL, DISK, {HOST, DEV, HOST}, ZERO_UPDATER_CPU},
};
#define ELSEWHERE HOST
#else
static const evict_case pauses[] = {
    {ZERO_EVICT_ALL, DISK, {DEV, DEV, DEV}, OWN},
    {ZERO_EVICT_ALL, DISK, {DISK, DISK, DISK}, OWN},
    {ZERO_EVICT_ALL, DISK, {HOST, DISK, DEV}, OWN},
    {ZERO_EVICT_STATE, DISK, {DEV, DEV, DISK}, OWN},
    {BIT(MOMENT2) | BIT(GRAD_SLOT), DISK, {DEV, DEV, DEV}, OWN},
    {BIT(GRAD) | BIT(IO_WINDOW), DISK, {DISK, DEV, DEV}, OWN},
};
#define ELSEWHERE DISK
#endif
#define PAUSES (sizeof pauses / sizeof pauses[0])

/* ---- where disks are: one in memory, one of the build's ---- */

static void put_on(toy_run *run, const evict_case *p)
{
    for (int i = 0; i < 3; i++) {
        run->options.tier[ZERO_ROLE_MASTER + i] = p->state[i];
    }
    run->tuning.updater = p->updater;
    run->options.disk_directories = rig_paths;
    run->options.disk_directory_count = 2;
    /* The smallest, so that the I/O window is evicted smaller than what passes through it. */
    run->tuning.extent_bytes = 4096;
    run->tuning.io_window = 3;
}

/* True if what is evicted is all that moves to disk: faults of steps are others' to test. */
static bool evicts_on_an_idle_disk(const evict_case *p)
{
    return p->tier == DISK && (p->roles & ZERO_EVICT_STATE) != 0 && p->state[0] != DISK &&
           p->state[1] != DISK && p->state[2] != DISK;
}

/* ---- what is held ---- */

static zero_tier tier_of(const evict_case *p, int role)
{
    if (role == ZERO_ROLE_IO_WINDOW) {
        return HOST;
    }
    return role >= ZERO_ROLE_MASTER && role <= ZERO_ROLE_MOMENT2 ? p->state[role - ZERO_ROLE_MASTER]
                                                                 : DEV;
}

/* `full` as it is to be while evicted. Of the I/O window, checksums of what is on disk stay. */
static zero_memory held_while_evicted(const toy_trainer *trainer, const zero_memory *full,
                                      const evict_case *p)
{
    zero_memory memory = *full;
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        const zero_tier tier = tier_of(p, role);
        const bool state = (ZERO_EVICT_STATE & (1u << role)) != 0;
        if ((p->roles & (1u << role)) == 0 || tier == DISK || (state && tier == p->tier)) {
            continue;
        }
        const uint64_t kept = role == ZERO_ROLE_IO_WINDOW ? trainer->engine->layout->sums_bytes : 0;
        memory.tier_bytes[tier] -= full->bytes[role] - kept;
        if (state) {
            memory.tier_bytes[p->tier] += full->bytes[role];
        } else {
            memory.bytes[role] = kept;
            memory.total_bytes -= full->bytes[role] - kept;
        }
    }
    return memory;
}

static void check_memory(const toy_trainer *trainer, const zero_memory *expected)
{
    const zero_memory held = engine_memory(trainer->engine);
    const zero_stats stats = engine_stats(trainer->engine);
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        if (held.bytes[role] != expected->bytes[role]) {
            TEST_FAIL("%s: %" PRIu64 " bytes instead of %" PRIu64, zero_role_name((zero_role)role),
                      held.bytes[role], expected->bytes[role]);
        }
    }
    CHECK_BYTES(held.tier_bytes, expected->tier_bytes, sizeof held.tier_bytes);
    CHECK_EQ(held.total_bytes, expected->total_bytes);
    CHECK_EQ(stats.device_bytes, held.tier_bytes[DEV]);
    CHECK_EQ(stats.host_bytes, held.tier_bytes[HOST]);
    CHECK_EQ(stats.disk_bytes, held.tier_bytes[DISK]);
}

/* ---- what is legal ---- */

static toy_run evict_run(const toy_model *model)
{
    toy_run run = toy_run_init(model);
    put_on(&run, &pauses[0]);
    return run;
}

static zero_status on_ranks(uint32_t ranks, zero_rank_fn fn)
{
    toy_model model;
    toy_model_mixed(&model, ZERO_DTYPE_BF16);
    toy_run run = evict_run(&model);
    const zero_status status = zero_world_run(ranks, DEADLINE_MS, fn, &run);
    toy_model_close(&model);
    return status;
}

static zero_status ask_wrongly(zero_world *world, void *user)
{
    const uint32_t all = ZERO_EVICT_ALL;
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, user, world));
    zero_engine *engine = trainer.engine;
    CHECK_FAILS(zero_engine_evict(NULL, all, ELSEWHERE), ZERO_ERR_INVALID_ARGUMENT, "engine");
    CHECK_FAILS(zero_engine_restore(NULL), ZERO_ERR_INVALID_ARGUMENT, "engine");
    CHECK_FAILS(zero_engine_restore(engine), ZERO_ERR_STATE, "zero_engine_evict");
    CHECK_FAILS(zero_engine_evict(engine, 0, ELSEWHERE), ZERO_ERR_INVALID_ARGUMENT, "empty");
    CHECK_FAILS(zero_engine_evict(engine, all | BIT(PARAM), ELSEWHERE), ZERO_ERR_INVALID_ARGUMENT,
                "0x1: param");
    CHECK_FAILS(zero_engine_evict(engine, BIT(PARAM_SLOT) | BIT(STEP), ELSEWHERE),
                ZERO_ERR_INVALID_ARGUMENT, "param slots, step");
    CHECK_FAILS(zero_engine_evict(engine, UINT32_C(1) << 31, ELSEWHERE), ZERO_ERR_INVALID_ARGUMENT,
                "0x80000000");
    CHECK_FAILS(zero_engine_evict(engine, all, DEV), ZERO_ERR_INVALID_ARGUMENT, "device");
    CHECK_FAILS(zero_engine_evict(engine, all, ZERO_TIER_DEFAULT), ZERO_ERR_INVALID_ARGUMENT,
                "default");
    CHECK_FAILS(zero_engine_evict(engine, all, (zero_tier)7), ZERO_ERR_INVALID_ARGUMENT, "tier 7");
    if (toy_device() == ZERO_DEVICE_CPU) {
        CHECK_FAILS(zero_engine_evict(engine, all, HOST), ZERO_ERR_INVALID_ARGUMENT,
                    "free nothing");
    }
    TOY_TRY(toy_micro_begin(&trainer, false));
    CHECK_FAILS(zero_engine_evict(engine, all, ELSEWHERE), ZERO_ERR_STATE, "zero_step");
    TOY_TRY(toy_micro_end(&trainer));
    CHECK_FAILS(zero_engine_evict(engine, all, ELSEWHERE), ZERO_ERR_STATE, "zero_step");
    TOY_TRY(toy_micro(&trainer, true));
    CHECK_FAILS(zero_engine_evict(engine, all, ELSEWHERE), ZERO_ERR_STATE, "zero_step");
    TOY_TRY(toy_update(&trainer));
    TOY_TRY(zero_unit_acquire(engine, 0, ZERO_PASS_EVAL, toy_stream(), NULL));
    CHECK_FAILS(zero_engine_evict(engine, all, ELSEWHERE), ZERO_ERR_STATE, "acquired");
    TOY_TRY(zero_unit_release(engine, 0, toy_stream()));
    TOY_TRY(toy_step(&trainer));
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(wrong_questions_are_refused)
{
    rig_folders(1, 1);
    CHECK_OK(on_ranks(2, ask_wrongly));
}

/* Reading one element of each role, and writing it back where that is legal at all. */
static void check_reads(zero_engine *engine, const bool legal[ZI_SHARD_ROLES], const char *text)
{
    for (int role = 0; role < ZI_TIER_ROLES; role++) {
        zero_shard shard;
        uint32_t value = 0;
        uint64_t first = 0;
        zero_view view;
        CHECK_OK(zero_shard_range(engine, 0, (zero_role)role, &shard));
        CHECK(shard.count != 0);
        if (legal[role]) {
            CHECK_OK(zero_shard_read(engine, 0, (zero_role)role, shard.first, 1, &value));
            CHECK_OK(zero_shard_write(engine, 0, (zero_role)role, shard.first, 1, &value));
            continue;
        }
        CHECK_FAILS(zero_shard_read(engine, 0, (zero_role)role, shard.first, 1, &value),
                    ZERO_ERR_STATE, text);
        CHECK_FAILS(zero_shard_write(engine, 0, (zero_role)role, shard.first, 1, &value),
                    ZERO_ERR_STATE, text);
        CHECK_FAILS(zero_shard_view(engine, 0, (zero_role)role, &first, &view), ZERO_ERR_STATE,
                    text);
    }
}

static void check_refusals(zero_engine *engine)
{
    const zero_step_params params = zero_step_params_init();
    static const char remedy[] = "zero_engine_restore";
    CHECK_FAILS(zero_micro_begin(engine, ZERO_MICRO_LAST), ZERO_ERR_STATE, remedy);
    CHECK_FAILS(zero_step(engine, &params, toy_stream()), ZERO_ERR_STATE, remedy);
    CHECK_FAILS(zero_engine_fill(engine, toy_fill, NULL), ZERO_ERR_STATE, remedy);
    CHECK_FAILS(zero_capture_prepare(engine), ZERO_ERR_STATE, remedy);
    CHECK_FAILS(zero_replay_begin(engine, toy_stream()), ZERO_ERR_STATE, remedy);
    CHECK_FAILS(zero_engine_evict(engine, ZERO_EVICT_ALL, ELSEWHERE), ZERO_ERR_STATE, remedy);
    CHECK_FAILS(zero_engine_evict(engine, BIT(MOMENT1), ELSEWHERE), ZERO_ERR_STATE, "moment1");
    CHECK_FAILS(zero_unit_acquire(engine, 0, ZERO_PASS_FORWARD, toy_stream(), NULL), ZERO_ERR_STATE,
                "forward");
    CHECK_FAILS(zero_unit_grads_acquire(engine, 0, toy_stream()), ZERO_ERR_STATE, remedy);
}

static zero_status use_while_evicted(zero_world *world, void *user)
{
    static const bool none[ZI_SHARD_ROLES] = {true};
    static const bool some[ZI_SHARD_ROLES] = {true, true, true, false, true, true, true};
    static const bool no_grad[ZI_SHARD_ROLES] = {true, false, true, true, true, true, true};
    static const bool all[ZI_SHARD_ROLES] = {true, true, true, true, true, true, true};
    toy_trainer trainer;
    zero_step_result result = zero_step_result_init();
    TOY_TRY(toy_open(&trainer, user, world));
    zero_engine *engine = trainer.engine;
    TOY_TRY(toy_step(&trainer));
    TOY_TRY(zero_engine_evict(engine, ZERO_EVICT_ALL, ELSEWHERE));
    check_refusals(engine);
    check_reads(engine, none, "zero_engine_restore");
    TOY_TRY(zero_step_wait(engine, &result)); /* of the step before */
    CHECK_EQ(result.step, 1);
    TOY_TRY(toy_evaluate(&trainer));
    TOY_TRY(zero_engine_restore(engine));
    CHECK_FAILS(zero_engine_restore(engine), ZERO_ERR_STATE, "zero_engine_evict");
    check_reads(engine, no_grad, "next zero_step");
    TOY_TRY(toy_evaluate(&trainer)); /* written values are gathered anew on every rank */
    TOY_TRY(toy_step(&trainer));
    check_reads(engine, all, "");
    /* Some roles only: twice, so that what was not among them stays what it was. */
    TOY_TRY(zero_engine_evict(engine, BIT(MOMENT1), ELSEWHERE));
    check_reads(engine, some, "moment1");
    check_refusals(engine);
    TOY_TRY(zero_engine_restore(engine));
    check_reads(engine, all, "");
    TOY_TRY(zero_engine_evict(engine, ZERO_EVICT_ALL, ELSEWHERE));
    toy_close(&trainer); /* while evicted */
    return ZERO_OK;
}

TEST(what_is_legal_while_evicted)
{
    rig_folders(1, 1);
    /* One rank has a part of tensor 0 in each role; the other ranks' are found by the same code. */
    CHECK_OK(on_ranks(1, use_while_evicted));
}

/* ---- what fails ---- */

/* Evict and restore, failing the nth event of a kind for every n. A failed eviction leaves a state
 * to train on with, a failed restore one to try again from. */
static zero_status pause_with_faults(toy_trainer *trainer, const evict_case *p, zi_fault_kind kind,
                                     uint64_t *all)
{
    const zero_memory full = engine_memory(trainer->engine);
    const zero_memory less = held_while_evicted(trainer, &full, p);
    const zero_status expected = kind == ZI_FAULT_IO ? ZERO_ERR_IO : ZERO_ERR_OUT_OF_MEMORY;
    uint64_t faults = 0;
    for (uint64_t n = 1;; n++) {
        zi_fault_arm(kind, n);
        const zero_status status = zero_engine_evict(trainer->engine, p->roles, p->tier);
        zi_fault_arm(kind, 0);
        if (status == ZERO_OK) {
            break;
        }
        CHECK_EQ(status, expected);
        check_memory(trainer, &full);
        faults++;
        if (n % 3 == 1) {
            TOY_TRY(toy_step(trainer));
        }
    }
    check_memory(trainer, &less);
    for (uint64_t n = 1; kind == ZI_FAULT_ALLOC; n++) {
        zi_fault_arm(kind, n);
        const zero_status status = zero_engine_restore(trainer->engine);
        zi_fault_arm(kind, 0);
        if (status == ZERO_OK) {
            break;
        }
        CHECK_EQ(status, expected);
        check_memory(trainer, &less);
        faults++;
    }
    TOY_TRY(kind == ZI_FAULT_ALLOC ? ZERO_OK : zero_engine_restore(trainer->engine));
    check_memory(trainer, &full);
    CHECK(faults != 0 || kind == ZI_FAULT_ALLOC); /* a GPU's memory alone is taken by no allocator
                                                     that is told to fail */
    *all += faults;
    return ZERO_OK;
}

/* As many steps as the faults made, without any. */
static zero_status compare_to_plain(const toy_trainer *trainer, const toy_state *state)
{
    toy_run plain = *trainer->run;
    toy_state expected;
    plain.steps = (uint32_t)trainer->step;
    TOY_TRY(toy_train_collect(&plain, trainer->world, &expected));
    toy_state_same(plain.model, &expected, state, "without and with faults");
    toy_state_free(&expected);
    return ZERO_OK;
}

static void check_faults(zi_fault_kind kind)
{
    toy_model model;
    zero_world *world = NULL;
    uint64_t faults = 0;
    rig_folders(1, 1);
    toy_model_mixed(&model, ZERO_DTYPE_BF16);
    CHECK_OK(zero_world_create_self(&world));
    for (size_t i = 0; i < PAUSES; i++) {
        if (kind == ZI_FAULT_IO && !evicts_on_an_idle_disk(&pauses[i])) {
            continue;
        }
        toy_run run = toy_run_init(&model);
        toy_trainer trainer;
        toy_state state;
        put_on(&run, &pauses[i]);
        CHECK_OK(toy_open(&trainer, &run, world));
        CHECK_OK(toy_step(&trainer));
        CHECK_OK(pause_with_faults(&trainer, &pauses[i], kind, &faults));
        CHECK_OK(toy_step(&trainer));
        CHECK_OK(toy_collect(&trainer, &state));
        /* Two engines of one rank would want the same place on disk. */
        zero_engine_destroy(trainer.engine);
        trainer.engine = NULL;
        CHECK_OK(compare_to_plain(&trainer, &state));
        toy_state_free(&state);
        toy_close(&trainer);
    }
    CHECK(faults != 0);
    zero_world_destroy(world);
    toy_model_close(&model);
}

TEST(every_allocation_may_fail)
{
    check_faults(ZI_FAULT_ALLOC);
}

TEST(every_write_may_fail)
{
    check_faults(ZI_FAULT_IO);
}

/* Lose evicted roles. They cannot be read: nobody trains on. */
static zero_status lose_what_was_evicted(zero_world *world, void *user)
{
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, user, world));
    TOY_TRY(toy_step(&trainer));
    TOY_TRY(zero_engine_evict(trainer.engine, ZERO_EVICT_ALL, DISK));
    TOY_TRY(zero_world_barrier(world));
    if (trainer.rank == 0) {
        zi_fault_arm(ZI_FAULT_IO, 1);
        CHECK_FAILS(zero_engine_restore(trainer.engine), ZERO_ERR_IO, "zero-storage");
        CHECK(strstr(zero_last_error()->message, "master of unit") != NULL);
        zi_fault_arm(ZI_FAULT_IO, 0);
        CHECK_FAILS(zero_engine_restore(trainer.engine), ZERO_ERR_POISONED, "zero-storage");
        CHECK_FAILS(toy_step(&trainer), ZERO_ERR_POISONED, "zero-storage");
    } else {
        /* This rank gets back what it has evicted, but nobody reduces with it. */
        CHECK_FAILS(zero_world_barrier(world), ZERO_ERR_COMM, "zero-storage");
        TOY_TRY(zero_engine_restore(trainer.engine));
        CHECK_FAILS(toy_step(&trainer), ZERO_ERR_COMM, "zero-storage");
    }
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(a_fault_in_a_restore_names_the_directory)
{
    rig_folders(1, 1);
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        CHECK_FAILS(on_ranks(ranks, lose_what_was_evicted), ZERO_ERR_IO, "zero-storage");
    }
}

#define UNITS 4

/* Flip a bit where a unit begins in a role. */
static void damage_a_unit(const engine_evicted *evicted, zero_role role, uint32_t unit)
{
    static _Alignas(ZI_STORAGE_ALIGN) unsigned char bytes[ZI_STORAGE_ALIGN];
    const uint32_t before = (role - ZERO_ROLE_MASTER) * UNITS + unit;
    const off_t at = (off_t)(evicted->kept_bytes / (3 * UNITS) * before);
    const int fd = zi_store_fd(evicted->store, 0);
    CHECK_EQ(pread(fd, bytes, sizeof bytes, at), sizeof bytes);
    bytes[0] ^= 1;
    CHECK_EQ(pwrite(fd, bytes, sizeof bytes, at), sizeof bytes);
}

/* Roles of more extents than are moved at once, whose units begin within them: on a GPU through
 * bounce buffers, or in place. */
static void check_long_roles(const toy_run *run, zero_world *world, zero_role role, uint32_t unit)
{
    toy_trainer trainer;
    toy_state before;
    toy_state after;
    char name[64];
    CHECK_OK(toy_open(&trainer, run, world));
    CHECK_OK(toy_step(&trainer));
    CHECK_OK(toy_collect(&trainer, &before));
    CHECK_OK(zero_engine_evict(trainer.engine, ZERO_EVICT_STATE, DISK));
    CHECK_OK(zero_engine_restore(trainer.engine));
    CHECK_OK(toy_collect(&trainer, &after));
    toy_state_same(run->model, &before, &after, "before and after an eviction");
    CHECK_OK(zero_engine_evict(trainer.engine, ZERO_EVICT_STATE, DISK));
    damage_a_unit(&trainer.engine->evicted, role, unit);
    (void)snprintf(name, sizeof name, "%s of unit %u ", zero_role_name(role), unit);
    CHECK_FAILS(zero_engine_restore(trainer.engine), ZERO_ERR_CORRUPT, name);
    CHECK_FAILS(toy_step(&trainer), ZERO_ERR_POISONED, name);
    toy_state_free(&before);
    toy_state_free(&after);
    toy_close(&trainer);
}

TEST(long_roles_come_back_and_damage_is_named)
{
    /* On a GPU the disk reaches one of the roles. */
    static const evict_case p = {
        ZERO_EVICT_STATE, DISK, {DEV, ELSEWHERE == HOST ? HOST : DEV, DEV}, OWN};
    toy_model model;
    zero_world *world = NULL;
    rig_folders(1, 1);
    toy_model_equal(&model, UNITS, 1600 * 1024, ZERO_DTYPE_BF16);
    CHECK_OK(zero_world_create_self(&world));
    toy_run run = toy_run_init(&model);
    put_on(&run, &p);
    run.options.disk_directory_count = 1;
    for (uint32_t unit = 1; unit < UNITS; unit++) {
        if (IN_SMALL_SAMPLE(unit)) {
            check_long_roles(&run, world, (zero_role)(ZERO_ROLE_MASTER + unit - 1), unit);
        }
    }
    zero_world_destroy(world);
    toy_model_close(&model);
}

/* A rank that has no place to evict goes on as it was, and so do the others. */
static zero_status one_without(zero_world *world, void *user)
{
    toy_run run = *(const toy_run *)user;
    const char *missing[] = {"/nonexistent/zero"};
    toy_trainer trainer;
    toy_state state;
    const bool odd = zero_world_rank(world) == 1;
    run.options.disk_directories = odd ? missing : run.options.disk_directories;
    run.options.disk_directory_count = odd ? 1 : run.options.disk_directory_count;
    TOY_TRY(toy_open(&trainer, &run, world));
    TOY_TRY(toy_step(&trainer));
    const zero_status status = zero_engine_evict(trainer.engine, ZERO_EVICT_ALL, DISK);
    CHECK_EQ(status, odd ? ZERO_ERR_IO : ZERO_OK);
    CHECK(!odd || strstr(zero_last_error()->message, "/nonexistent/zero") != NULL);
    TOY_TRY(toy_evaluate(&trainer));
    TOY_TRY(odd ? ZERO_OK : zero_engine_restore(trainer.engine));
    TOY_TRY(toy_step(&trainer));
    TOY_TRY(toy_collect(&trainer, &state));
    TOY_TRY(compare_to_plain(&trainer, &state));
    toy_state_free(&state);
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(a_rank_without_its_directory)
{
    rig_folders(1, 1);
    CHECK_OK(on_ranks(3, one_without));
}

static void check_refused(const toy_run *run, uint32_t roles, zero_status expected,
                          const char *text)
{
    zero_world *world = NULL;
    toy_trainer trainer;
    CHECK_OK(zero_world_create_self(&world));
    CHECK_OK(toy_open(&trainer, run, world));
    CHECK_OK(toy_step(&trainer));
    const zero_memory full = engine_memory(trainer.engine);
    CHECK_FAILS(zero_engine_evict(trainer.engine, roles, DISK), expected, text);
    check_memory(&trainer, &full);
    CHECK_OK(toy_step(&trainer));
    toy_close(&trainer);
    zero_world_destroy(world);
}

TEST(directories_that_will_not_do)
{
    toy_model model;
    zero_world *world = NULL;
    toy_trainer first;
    rig_folders(1, 1);
    toy_model_mixed(&model, ZERO_DTYPE_BF16);
    toy_run run = evict_run(&model);
    /* One that another engine of this rank number has. */
    CHECK_OK(zero_world_create_self(&world));
    CHECK_OK(toy_open(&first, &run, world));
    CHECK_OK(zero_engine_evict(first.engine, ZERO_EVICT_ALL, DISK));
    char pid[32];
    (void)snprintf(pid, sizeof pid, "%d", (int)getpid());
    check_refused(&run, ZERO_EVICT_ALL, ZERO_ERR_STATE, pid);
    CHECK_OK(zero_engine_restore(first.engine));
    toy_close(&first);
    /* None: needed where something is evicted. */
    run.options.disk_directory_count = 0;
    check_refused(&run, ZERO_EVICT_ALL, ZERO_ERR_INVALID_ARGUMENT, "disk_directories");
    CHECK_OK(toy_open(&first, &run, world));
    CHECK_OK(zero_engine_evict(first.engine, BIT(GRAD) | BIT(GRAD_SLOT), DISK));
    CHECK_OK(zero_engine_restore(first.engine));
    CHECK_OK(toy_step(&first));
    toy_close(&first);
    zero_world_destroy(world);
    toy_model_close(&model);
}

TEST(a_full_disk_is_refused_with_what_is_missing)
{
    toy_model model;
    char *folder = rig_small_disk();
    toy_model_equal(&model, 4, 50000, ZERO_DTYPE_BF16);
    toy_run run = evict_run(&model);
    const char *list[] = {folder};
    run.options.disk_directories = list;
    run.options.disk_directory_count = 1;
    check_refused(&run, ZERO_EVICT_ALL, ZERO_ERR_OUT_OF_MEMORY, folder);
    rig_small_disk_remove(folder);
    toy_model_close(&model);
}

/* ---- what falls ---- */

#define LARGE_BYTES (UINT64_C(32) << 20)

/* Memory in use falls by the bytes of the roles and comes back. */
static zero_status check_falls(zero_world *world, const toy_run *run, const uint32_t roles)
{
    zero_engine *engine = NULL;
    TOY_TRY(zero_engine_create(world, run->model->model, TOY_OPTIONS(run), &engine));
    TOY_TRY(zero_world_barrier(world));
    const zero_memory full = engine_memory(engine);
    uint64_t given = 0;
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        given += (roles & (1u << role)) != 0 ? full.bytes[role] : 0;
    }
    CHECK(given >= LARGE_BYTES);
    const uint64_t before = toy_device_bytes();
    TOY_TRY(zero_engine_evict(engine, roles, ELSEWHERE));
    const uint64_t during = toy_device_bytes();
    TOY_TRY(zero_engine_restore(engine));
    const uint64_t after = toy_device_bytes();
    printf("  roles of %" PRIu64 " bytes: %" PRIu64 " in use, %" PRIu64 " evicted, %" PRIu64
           " restored\n",
           given, before, during, after);
    CHECK(before > during && before - during >= given / 100 * 95);
    CHECK(after > during && after - during >= given / 100 * 95);
    TOY_TRY(zero_world_barrier(world));
    zero_engine_destroy(engine);
    return ZERO_OK;
}

/* Each role has some 34 MiB. */
static toy_run large_run(const toy_model *model)
{
    toy_run run = evict_run(model);
    run.options.stage = ZERO_STAGE_0;
    return run;
}

TEST(memory_in_use_falls)
{
    toy_model model;
    zero_world *world = NULL;
#ifdef __SANITIZE_THREAD__
    SKIP("ThreadSanitizer keeps a shadow of what was evicted");
#endif
    rig_folders(1, 1);
    toy_model_equal(&model, 4, 2200000, ZERO_DTYPE_BF16);
    const toy_run run = large_run(&model);
    CHECK_OK(zero_world_create_self(&world));
    CHECK_OK(check_falls(world, &run, ZERO_EVICT_ALL));
    CHECK_OK(check_falls(world, &run, BIT(MOMENT1)));
    CHECK_OK(check_falls(world, &run, BIT(GRAD)));
    zero_world_destroy(world);
    toy_model_close(&model);
}

#ifndef TOY_CUDA

/* ---- processes ---- */

/* Ranks of one host that map each other's gradients. */
static void be_a_rank(uint32_t rank, uint32_t ranks, const char *name, zero_rank_fn fn, void *user)
{
    zi_process_rank place = {.rank = rank, .size = ranks};
    zi_comm *comm = NULL;
    zero_world *world = NULL;
    (void)snprintf(place.name, sizeof place.name, "%s", name);
    CHECK_OK(zi_process_comm_create(&place, DEADLINE_MS, &comm));
    CHECK_OK(zi_world_create(comm, &world));
    CHECK_OK(fn(world, user));
    zero_world_destroy(world);
}

static void run_processes(uint32_t ranks, zero_rank_fn fn, void *user)
{
    char name[64];
    (void)snprintf(name, sizeof name, "/zero-evict-%d", (int)getpid());
    fflush(NULL);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (fork() == 0) {
            alarm(100);
            be_a_rank(rank, ranks, name, fn, user);
            fflush(NULL);
            _exit(0); /* the folders are the parent's to remove */
        }
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        int state = 0;
        CHECK(wait(&state) > 0);
        CHECK_EQ(state, 0);
    }
}

/* How state on disk is reached can be asked at any time. */
static void check_path(const toy_trainer *trainer, const zero_disk_path *expected)
{
    const zero_disk_path path = engine_disk_path(trainer->engine);
    CHECK_EQ(path.backend, expected->backend);
    CHECK_EQ(path.window_bytes, expected->window_bytes);
    CHECK(strcmp(path.text, expected->text) == 0);
}

/* Evict, evaluate, restore. */
static zero_status take_a_pause(toy_trainer *trainer, const evict_case *p)
{
    const zero_memory full = engine_memory(trainer->engine);
    const zero_memory less = held_while_evicted(trainer, &full, p);
    const zero_disk_path path = engine_disk_path(trainer->engine);
    zero_shard shard;
    uint32_t values[4096];
    TOY_TRY(zero_engine_evict(trainer->engine, p->roles, p->tier));
    check_memory(trainer, &less);
    check_path(trainer, &path);
    TOY_TRY(toy_evaluate(trainer));
    TOY_TRY(zero_shard_range(trainer->engine, 0, ZERO_ROLE_PARAM, &shard));
    CHECK(shard.count <= 4096);
    TOY_TRY(zero_shard_read(trainer->engine, 0, ZERO_ROLE_PARAM, shard.first, shard.count, values));
    TOY_TRY(zero_engine_restore(trainer->engine));
    check_memory(trainer, &full);
    check_path(trainer, &path);
    return ZERO_OK;
}

static zero_status train_with_pauses(const toy_run *run, zero_world *world, const evict_case *p,
                                     toy_state *state)
{
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, run, world));
    for (uint32_t step = 0; step < run->steps; step++) {
        if (step % 3 != 2) {
            TOY_TRY(take_a_pause(&trainer, p));
        }
        TOY_TRY(toy_step(&trainer));
    }
    TOY_TRY(toy_collect(&trainer, state));
    toy_close(&trainer);
    return ZERO_OK;
}

static zero_status compare_pauses(zero_world *world, const toy_run *run, void *user)
{
    const uint32_t *turn = user;
    toy_state plain;
    const size_t i = (*turn + run->options.stage) % PAUSES;
    TOY_TRY(toy_train_collect(run, world, &plain));
    toy_run paused = *run;
    toy_state state;
    char what[64];
    put_on(&paused, &pauses[i]);
    TOY_TRY(train_with_pauses(&paused, world, &pauses[i], &state));
    (void)snprintf(what, sizeof what, "without and with pause %zu", i);
    toy_state_same(run->model, &plain, &state, what);
    toy_state_free(&state);
    toy_state_free(&plain);
    return ZERO_OK;
}

static zero_status compare_in_processes(zero_world *world, void *user)
{
    static const zero_stage stages[] = {ZERO_STAGE_0, ZERO_STAGE_1, ZERO_STAGE_2, ZERO_STAGE_3};
    for (uint32_t s = 0; s < 4; s++) {
        toy_run run = *(const toy_run *)user;
        uint32_t turn = s;
        run.options.stage = stages[s];
        TOY_TRY(compare_pauses(world, &run, &turn));
    }
    return ZERO_OK;
}

REAL_TEST(same_bits_in_processes)
{
    toy_model model;
    rig_folders(1, 1);
    toy_model_mixed(&model, ZERO_DTYPE_BF16);
    toy_run run = toy_run_init(&model);
    run.steps = 4;
    run_processes(2, compare_in_processes, &run);
    toy_model_close(&model);
}

static zero_status fall_in_processes(zero_world *world, void *user)
{
    TOY_TRY(check_falls(world, user, BIT(GRAD)));
    return check_falls(world, user, ZERO_EVICT_ALL);
}

REAL_TEST(memory_in_use_falls_in_processes)
{
    toy_model model;
#ifdef __SANITIZE_THREAD__
    SKIP("ThreadSanitizer keeps a shadow of what was evicted");
#endif
    rig_folders(1, 1);
    toy_model_equal(&model, 4, 2200000, ZERO_DTYPE_BF16);
    toy_run run = large_run(&model);
    run_processes(2, fall_in_processes, &run);
    toy_model_close(&model);
}

#endif
