/* Owns the comparison of planned and measured bytes. */
#include <inttypes.h>

#include "bench_footprint.h"

zero_tier footprint_tier(const footprint_mix *mix, int role)
{
    return role == ZERO_ROLE_IO_WINDOW || role == ZERO_ROLE_SAVE_STAGING ? ZERO_TIER_HOST
           : role < ZERO_ROLE_SHARDS_MAX                                 ? mix->tier[role]
                                                                         : ZERO_TIER_DEVICE;
}

uint64_t footprint_memory(const zero_memory *memory)
{
    return memory->tier_bytes[ZERO_TIER_DEVICE] + memory->tier_bytes[ZERO_TIER_HOST];
}

double footprint_paper(zero_stage stage, uint64_t parameters, uint32_t ranks)
{
    static const double whole[] = {16, 4, 2, 0};
    static const double split[] = {0, 12, 14, 16};
    const double p = (double)parameters;
    return whole[stage] * p + split[stage] * p / ranks;
}

static bool same(footprint *f, const footprint_mix *mix, uint32_t rank, const char *what,
                 zero_tier tier, uint64_t planned, uint64_t measured)
{
    f->figures++;
    if (planned == measured) {
        return true;
    }
    f->differ++;
    (void)bench_fail("stage %s, rank %" PRIu32 ", %s on %s: %" PRIu64 " bytes planned, %" PRIu64
                     " measured",
                     mix->name, rank, what, zero_tier_name(tier), planned, measured);
    return false;
}

static bool same_rank(footprint *f, const footprint_mix *mix, uint32_t rank,
                      const memory_rank *measured)
{
    const zero_memory *planned = &mix->planned;
    bool all = true;
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        const zero_tier tier = footprint_tier(mix, role);
        if (tier != ZERO_TIER_DISK && planned->bytes[role] + measured->held.bytes[role] != 0) {
            all = same(f, mix, rank, zero_role_name((zero_role)role), tier, planned->bytes[role],
                       measured->held.bytes[role]) &&
                  all;
        }
    }
    for (int tier = ZERO_TIER_DEVICE; tier <= ZERO_TIER_HOST; tier++) {
        all = same(f, mix, rank, "all roles", (zero_tier)tier, planned->tier_bytes[tier],
                   measured->held.tier_bytes[tier]) &&
              all;
    }
    return same(f, mix, rank, "the peak of all roles", ZERO_TIER_DEVICE,
                planned->tier_bytes[ZERO_TIER_DEVICE], measured->device_peak_bytes) &&
           all;
}

void footprint_compare(footprint *f, footprint_mix *mix, const memory_run *run)
{
    const memory_rank *shown = NULL;
    mix->planned = run->planned;
    mix->files_told = run->files_told;
    mix->file_bytes = run->file_bytes / run->ranks;
    mix->used_bytes = run->used_bytes / run->ranks;
    for (uint32_t rank = 0; rank < run->ranks; rank++) {
        const bool equal = same_rank(f, mix, rank, &run->by_rank[rank]);
        shown = shown == NULL && !equal ? &run->by_rank[rank] : shown;
    }
    mix->held = shown != NULL ? shown->held : run->by_rank[0].held;
    const uint64_t files = run->planned.tier_bytes[ZERO_TIER_DISK] * run->ranks;
    if (run->files_told && files + run->file_bytes != 0) {
        (void)same(f, mix, 0, "and up, files", ZERO_TIER_DISK, files, run->file_bytes);
    }
    mix->measured = true;
}
