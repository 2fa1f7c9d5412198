/* Owns the tests of what `zero bench memory` calls a failure: any byte, of any rank, by its role
 * and tier. */
#include "harness.h"

#include "bench_footprint.h"
#include "core/role.h"

#define RANKS 3

static char said[1024];

int bench_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
    return 1;
}

/* Ranks that hold what was planned, with master and moments on disk. */
typedef struct rig {
    footprint footprint;
    footprint_mix mix;
    memory_run run;
    memory_rank ranks[RANKS];
} rig;

static uint32_t roles; /* that exist, counted by make_rig */

static rig make_rig(void)
{
    rig r = {.mix = {.name = "3, state disk", .stage = ZERO_STAGE_3},
             .run = {.ranks = RANKS, .files_told = true, .used_bytes = 3000}};
    zero_memory *planned = &r.run.planned;
    *planned = zero_memory_init();
    roles = 0;
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        const bool disk = zi_role_is_state((zero_role)role);
        if (role < ZI_SHARD_ROLES) {
            r.mix.tier[role] = disk ? ZERO_TIER_DISK : ZERO_TIER_DEVICE;
        }
        if (zero_role_exists((zero_role)role) == 0) {
            continue;
        }
        roles++;
        planned->bytes[role] = 4096 * (uint64_t)roles;
        planned->tier_bytes[footprint_tier(&r.mix, role)] += planned->bytes[role];
    }
    for (int rank = 0; rank < RANKS; rank++) {
        r.ranks[rank].held = *planned;
        r.ranks[rank].device_peak_bytes = planned->tier_bytes[ZERO_TIER_DEVICE];
    }
    r.run.file_bytes = RANKS * planned->tier_bytes[ZERO_TIER_DISK];
    said[0] = '\0';
    return r;
}

static void compare(rig *r)
{
    r->run.by_rank = r->ranks;
    footprint_compare(&r->footprint, &r->mix, &r->run);
}

TEST(what_is_as_planned_is_no_failure)
{
    rig r = make_rig();
    compare(&r);
    CHECK_EQ(r.footprint.differ, 0);
    /* Of each rank the roles that are not on disk, two tiers, and the peak; and the files. */
    CHECK_EQ(r.footprint.figures, RANKS * (roles - ZI_STATES + 2 + 1) + 1);
    CHECK(r.mix.measured && said[0] == '\0');
    CHECK_EQ(r.mix.used_bytes, 1000);
    CHECK_EQ(r.mix.file_bytes, r.run.planned.tier_bytes[ZERO_TIER_DISK]);
}

TEST(a_role_that_differs_on_one_rank_is_named)
{
    rig r = make_rig();
    r.ranks[2].held.bytes[ZERO_ROLE_GRAD_SLOT] += 1;
    compare(&r);
    CHECK_EQ(r.footprint.differ, 1);
    CHECK(strstr(said, "stage 3, state disk, rank 2, grad slots on device: 36864 bytes planned, "
                       "36865 measured") != NULL);
    CHECK_EQ(r.mix.held.bytes[ZERO_ROLE_GRAD_SLOT], 36865); /* that rank is shown */
}

TEST(tiers_peaks_and_files_are_compared_too)
{
    rig r = make_rig();
    r.ranks[1].held.tier_bytes[ZERO_TIER_HOST] -= 1;
    compare(&r);
    CHECK(strstr(said, "rank 1, all roles on host") != NULL);
    r = make_rig();
    r.ranks[0].device_peak_bytes += 4096;
    compare(&r);
    CHECK(strstr(said, "rank 0, the peak of all roles on device") != NULL);
    r = make_rig();
    r.run.file_bytes -= 4096;
    compare(&r);
    CHECK_EQ(r.footprint.differ, 1);
    CHECK(strstr(said, "files on disk") != NULL);
    r.run.files_told = false; /* nothing to compare with */
    r.footprint.differ = 0;
    compare(&r);
    CHECK_EQ(r.footprint.differ, 0);
}

/* The paper's table: 7.5e9 parameters on 64 ranks. */
TEST(the_papers_formulas_give_its_table)
{
    static const double published[] = {120.0, 31.4, 16.6, 1.88};
    for (int stage = 0; stage <= 3; stage++) {
        const double gb = 1e-9 * footprint_paper((zero_stage)stage, 7500000000, 64);
        CHECK_NEAR(gb, published[stage], 0.05);
    }
}
