/* Owns which settings are measured, and which of them is recommended. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "io_rig.h"

/* Of the fastest: what is given up at most for fewer bytes in flight. */
#define GIVEN_UP 0.05

void io_grid_init(io_grid *grid)
{
    static const uint64_t sizes[IO_PIECE_SIZES] = {256 << 10, 512 << 10, 1 << 20, 2 << 20};
    static const uint32_t depths[IO_DEPTHS] = {4, 8, 16};
    memset(grid, 0, sizeof *grid);
    for (uint32_t i = 0; i < IO_SETTINGS; i++) {
        grid->settings[i] = (io_setting){sizes[i / IO_DEPTHS], depths[i % IO_DEPTHS]};
    }
}

/* Least seconds a GB of a mix. */
static double fastest(const io_grid *grid, uint32_t mix)
{
    double best = 0.0;
    for (uint32_t i = 0; i < IO_SETTINGS; i++) {
        const double seconds = grid->ours[mix][i].seconds_per_gb;
        best = best <= 0.0 || seconds < best ? seconds : best;
    }
    return best;
}

/* Mean over the mixes of the speed relative to the fastest. */
static double score(const io_grid *grid, uint32_t setting)
{
    double sum = 0.0;
    for (uint32_t mix = 0; mix < IO_MIXES; mix++) {
        sum += fastest(grid, mix) / grid->ours[mix][setting].seconds_per_gb;
    }
    return sum / IO_MIXES;
}

/* An engine chooses how many accesses are in flight, not how long they are. */
static bool is_an_engines(const io_setting *setting)
{
    return setting->segment_bytes == IO_ACCESS_BYTES;
}

void io_grid_recommend(io_grid *grid)
{
    double best = 0.0;
    for (uint32_t i = 0; i < IO_SETTINGS; i++) {
        const double own = is_an_engines(&grid->settings[i]) ? score(grid, i) : 0.0;
        best = own > best ? own : best;
    }
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < IO_SETTINGS; i++) {
        const io_setting *setting = &grid->settings[i];
        if (is_an_engines(setting) && setting->depth < least &&
            score(grid, i) >= best * (1.0 - GIVEN_UP)) {
            least = setting->depth;
            grid->recommended = i;
        }
    }
}

const char *io_mix_name(io_mix mix)
{
    static const char *const names[IO_MIXES] = {"read", "write", "mixed"};
    return names[mix];
}

void io_case_name(io_mix mix, const io_setting *setting, char *text, uint32_t text_bytes)
{
    (void)snprintf(text, text_bytes, "%s, %" PRIu64 " KiB x %u", io_mix_name(mix),
                   setting->segment_bytes >> 10, setting->depth);
}
