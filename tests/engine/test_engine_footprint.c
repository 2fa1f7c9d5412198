/* Owns the property of plans that everything else rests on: planned bytes are measured bytes, for
 * every role and tier, after create, within a step, while roles are evicted, and after the restore.
 * Models, ways to split them, types, tiers and tuning are drawn at random. Memory is what was asked
 * of the system's allocator (pages_held.h), disks are files as the file system has them; both are
 * compared with the plan, and so is what the engine itself says of either.
 *
 * `--cases N` draws so many instead of the few that every run takes, `--case K` the K-th alone;
 * with
 * `--seed N` others. */
#include "harness.h"
#include "reads.h"

#include <pthread.h>

#include "engine/engine_internal.h"
#include "folders.h"
#include "mesh_threads.h"
#include "pages_held.h"
#include "random_case.h"
#include "toy.h"

#define CASES 120
#define PAGE UINT64_C(4096)

typedef random_case sample;

static uint64_t held_before;
static pthread_barrier_t barrier; /* of all ranks of all parts */

#define FAIL_CASE(s, ...)                             \
    do {                                              \
        fprintf(stderr, "%s\n", random_case_text(s)); \
        TEST_FAIL(__VA_ARGS__);                       \
    } while (0)

#define SAME(s, when, what, planned, measured)                                                 \
    do {                                                                                       \
        const uint64_t planned_ = (planned);                                                   \
        const uint64_t measured_ = (measured);                                                 \
        if (planned_ != measured_) {                                                           \
            FAIL_CASE((s), "%s, %s: planned %" PRIu64 " bytes, measured %" PRIu64, when, what, \
                      planned_, measured_);                                                    \
        }                                                                                      \
    } while (0)

/* ---- measuring ---- */

/* The plan of a rank, and so the values expected of it now. */
typedef struct expected {
    zero_memory memory;
    uint64_t pages[ZERO_ROLE_COUNT_MAX]; /* a role's, in memory */
    uint64_t sums;                       /* of the I/O window's: in pages of their own */
} expected;

static expected expect(const toy_trainer *trainer)
{
    expected e = {.memory = plan_memory(zero_engine_plan(trainer->engine)),
                  .sums = trainer->engine->layout->sums_bytes};
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        const bool shard = role < ZI_SHARD_ROLES;
        const bool disk =
            shard && zi_role_tier(trainer->engine->layout, (zero_role)role) == ZERO_TIER_DISK;
        e.pages[role] = disk ? 0 : e.memory.bytes[role];
    }
    e.pages[ZERO_ROLE_IO_WINDOW] -= e.sums;
    return e;
}

/* The same while roles are evicted: state is on another tier meanwhile, the rest is nowhere. */
static void expect_evicted(const toy_trainer *trainer, const sample *s, expected *e)
{
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        const zero_tier tier = zi_role_tier(trainer->engine->layout, (zero_role)role);
        const bool kept = (ZERO_EVICT_STATE & ZERO_ROLE_BIT(role)) != 0;
        if ((s->evicted & ZERO_ROLE_BIT(role)) == 0 || tier == ZERO_TIER_DISK ||
            (kept && tier == s->evicted_to)) {
            continue;
        }
        const uint64_t bytes = e->pages[role];
        e->memory.tier_bytes[tier] -= bytes;
        e->memory.tier_bytes[s->evicted_to] += kept ? bytes : 0;
        e->memory.bytes[role] -= kept ? 0 : bytes;
        e->memory.total_bytes -= kept ? 0 : bytes;
        e->pages[role] = 0;
    }
}

static uint64_t file_bytes(void)
{
    uint64_t all = 0;
    for (int i = 0; i < RANDOM_DIRECTORIES; i++) {
        uint64_t bytes = 0;
        (void)rig_nameless(rig_paths[i], false, &bytes);
        all += bytes;
    }
    return all;
}

/* The bytes that all ranks of all parts take of a tier; each has its part's plan. */
static uint64_t over_ranks(uint64_t *sums, uint64_t own)
{
    (void)__atomic_add_fetch(sums, own, __ATOMIC_RELAXED);
    (void)pthread_barrier_wait(&barrier);
    const uint64_t all = __atomic_load_n(sums, __ATOMIC_RELAXED);
    (void)pthread_barrier_wait(&barrier);
    (void)__atomic_sub_fetch(sums, own, __ATOMIC_RELAXED);
    (void)pthread_barrier_wait(&barrier);
    return all;
}

/* By role, as this rank's addresses have it. */
static void measure_roles(const sample *s, const toy_trainer *trainer, const expected *e,
                          const char *when)
{
    const zero_memory told = engine_memory(trainer->engine);
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        const char *name = zero_role_name((zero_role)role);
        SAME(s, when, name, e->pages[role], pages_of(trainer->engine->arena[role]));
        SAME(s, when, name, e->memory.bytes[role], told.bytes[role]);
    }
    SAME(s, when, "checksums", e->sums, pages_of(trainer->engine->sums));
    for (int tier = ZERO_TIER_DEVICE; tier < ZERO_TIER_COUNT; tier++) {
        SAME(s, when, zero_tier_name((zero_tier)tier), e->memory.tier_bytes[tier],
             told.tier_bytes[tier]);
    }
    SAME(s, when, "all tiers", e->memory.total_bytes, told.total_bytes);
}

/* By tier: all that was asked of the system, of all ranks, is what all their plans say. What steps
 * tell the host is in a block of one size for every engine, which is no role's. */
static void measure(sample *s, const toy_trainer *trainer, const expected *e, const char *when)
{
    static uint64_t sums[2];
    const uint64_t *tiers = e->memory.tier_bytes;
    const uint64_t block = pages_of(trainer->engine->host);
    SAME(s, when, "block of results", (sizeof(engine_host) + PAGE - 1) / PAGE * PAGE, block);
    measure_roles(s, trainer, e, when);
    const uint64_t memory =
        over_ranks(&sums[0], tiers[ZERO_TIER_DEVICE] + tiers[ZERO_TIER_HOST] + block);
    const uint64_t disk = over_ranks(&sums[1], tiers[ZERO_TIER_DISK]);
    SAME(s, when, "memory of all ranks", memory, pages_held() - held_before);
    SAME(s, when, "files of all ranks", disk, file_bytes());
    (void)pthread_barrier_wait(&barrier);
}

/* Roles on disk share files, cut into extents of whole pages: together they take what the files
 * have, but for less than a page an extent. A role's bytes end at a page too. */
static void measure_disk(const sample *s, const toy_trainer *trainer, const expected *e)
{
    const zi_layout *layout = trainer->engine->layout;
    uint64_t extents = layout->state.extent_count;
    uint64_t roles = 0;
    extents *= s->run.tuning.speculative_step != 0 ? 2 : 1;
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        extents += role < ZI_OFFLOAD_ROLES ? layout->offload[role].extent_count : 0;
        roles += trainer->run->options.tier[role] == ZERO_TIER_DISK ? e->memory.bytes[role] : 0;
    }
    const uint64_t files = e->memory.tier_bytes[ZERO_TIER_DISK];
    if (roles + extents * PAGE < files || roles > files + ZI_SHARD_ROLES * PAGE) {
        FAIL_CASE(s,
                  "roles on disk have %" PRIu64 " bytes, files %" PRIu64 " in %" PRIu64 " extents",
                  roles, files, extents);
    }
}

static void measure_stats(const sample *s, const toy_trainer *trainer, const expected *e,
                          const char *when)
{
    const zero_stats stats = engine_stats(trainer->engine);
    const uint64_t *tiers = e->memory.tier_bytes;
    SAME(s, when, "device, counted", tiers[ZERO_TIER_DEVICE], stats.device_bytes);
    SAME(s, when, "device, counted at most", tiers[ZERO_TIER_DEVICE], stats.device_peak_bytes);
    SAME(s, when, "host, counted", tiers[ZERO_TIER_HOST], stats.host_bytes);
    SAME(s, when, "disk, counted", tiers[ZERO_TIER_DISK], stats.disk_bytes);
}

/* ---- one case ---- */

/* Roles that this engine cannot evict are refused and nothing has changed. */
static zero_status evict_and_restore(sample *s, toy_trainer *trainer, const expected *whole)
{
    expected e = *whole;
    const zero_status status = s->evicted != 0
                                   ? zero_engine_evict(trainer->engine, s->evicted, s->evicted_to)
                                   : ZERO_ERR_UNSUPPORTED;
    if (status != ZERO_OK && status != ZERO_ERR_UNSUPPORTED) {
        return status;
    }
    if (status == ZERO_OK) {
        expect_evicted(trainer, s, &e);
        measure(s, trainer, &e, "evicted");
        TOY_TRY(zero_engine_restore(trainer->engine));
    }
    measure(s, trainer, whole, "restored");
    return ZERO_OK;
}

static zero_status train(sample *s, toy_trainer *trainer)
{
    const expected e = expect(trainer);
    const uint32_t micros = trainer->run->micro_steps;
    measure(s, trainer, &e, "created");
    measure_stats(s, trainer, &e, "created");
    measure_disk(s, trainer, &e);
    for (uint32_t m = 0; m < micros; m++) {
        TOY_TRY(toy_micro(trainer, m + 1 == micros));
        measure(s, trainer, &e, "after a micro-step");
    }
    TOY_TRY(toy_update(trainer));
    TOY_TRY(toy_wait(trainer));
    TOY_TRY(toy_evaluate(trainer));
    measure(s, trainer, &e, "after a step");
    TOY_TRY(evict_and_restore(s, trainer, &e));
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_wait(trainer));
    measure(s, trainer, &e, "after two steps");
    measure_stats(s, trainer, &e, "after two steps");
    return ZERO_OK;
}

static zero_status take_rank(const mesh_rank *at, void *user)
{
    sample *s = user;
    toy_trainer trainer;
    toy_run run = s->run;
    run.model = &s->models[at->part];
    run.options.model_parallel = s->parts > 1 ? at->parts : NULL;
    run.options.disk_directories = rig_paths + at->part; /* both parts have a rank 0 */
    (void)pthread_barrier_wait(&barrier);                /* all have joined */
    if (at->data == 0 && at->part == 0) {
        held_before = pages_held();
    }
    (void)pthread_barrier_wait(&barrier);
    zero_status status = toy_open(&trainer, &run, at->world);
    if (s->refused) {
        if (status == ZERO_OK) {
            FAIL_CASE(s, "the plan is refused and the engine is made");
        }
        return ZERO_OK;
    }
    if (status == ZERO_OK) {
        status = train(s, &trainer);
    }
    if (status != ZERO_OK) {
        FAIL_CASE(s, "rank %u of part %u: %s: %s", at->data, at->part, zero_status_name(status),
                  zero_last_error()->message);
    }
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(planned_bytes_are_measured_bytes)
{
    uint32_t measured = 0;
    uint32_t refused = 0;
    rig_folders(1, 1);
    pages_watch();
    uint64_t first = 0;
    const uint64_t count = test_cases(CASES, &first);
    for (uint64_t i = first; i < first + count; i++) {
        static sample s;
        test_case_begins(i);
        random_case_draw(&s, i);
        (void)pthread_barrier_init(&barrier, NULL, s.ranks * s.parts);
        if (test_case_is_chosen()) {
            printf("%s\n", random_case_text(&s));
        }
        CHECK_OK(run_mesh(s.ranks, s.parts, take_rank, &s));
        SAME(&s, "destroyed", "memory", 0, pages_held());
        SAME(&s, "destroyed", "files", 0, file_bytes());
        measured += !s.refused;
        refused += s.refused;
        (void)pthread_barrier_destroy(&barrier);
        random_case_close(&s);
    }
    printf("  %u cases measured, %u refused\n", measured, refused);
    CHECK(count < CASES || measured >= count / 4 * 3);
}
