/* Owns the striping of blocks over files. Invariant: every byte has one place, and the places in a
 * file run from 0 to its size without a gap. */
#include "storage/stripe.h"

#include <stdbool.h>
#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/sizes.h"

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    while (b != 0) {
        const uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

uint32_t zi_stripe_weigh(const uint32_t *rates, uint32_t file_count, uint16_t *weights)
{
    uint32_t divisor = 0;
    uint32_t fastest = 0;
    for (uint32_t i = 0; i < file_count; i++) {
        divisor = common_divisor(divisor, rates[i]);
        fastest = rates[i] > fastest ? rates[i] : fastest;
    }
    const bool reduces = divisor != 0 && fastest / divisor <= ZI_STRIPE_WEIGHT_MAX;
    for (uint32_t i = 0; i < file_count; i++) {
        const uint64_t scaled =
            fastest == 0 ? 0 : ((uint64_t)rates[i] * ZI_STRIPE_WEIGHT_MAX + fastest / 2) / fastest;
        weights[i] = (uint16_t)(reduces ? rates[i] / divisor : scaled);
        if (weights[i] == 0) {
            return i;
        }
    }
    return file_count;
}

static zero_status set_weights(zi_stripe_map *map, const uint32_t *rates)
{
    uint32_t same[ZI_STRIPE_FILES_MAX];
    uint32_t fastest = 0;
    for (uint32_t i = 0; i < map->file_count; i++) {
        same[i] = 1;
        fastest = rates != NULL && rates[i] > fastest ? rates[i] : fastest;
    }
    const uint32_t slow =
        zi_stripe_weigh(rates != NULL ? rates : same, map->file_count, map->weight);
    if (slow < map->file_count) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "directory %u has the rate %u, the fastest %u: leave it out, it would hold up "
                "the others",
                slow, rates != NULL ? rates[slow] : 1, fastest);
    }
    for (uint32_t i = 0; i < map->file_count; i++) {
        map->cycle += map->weight[i];
    }
    return ZERO_OK;
}

/* Each block goes to the file that is furthest behind its share, so that a file's blocks lie spread
 * over the cycle. */
static void stripe_cycle(zi_stripe_map *map)
{
    int64_t behind[ZI_STRIPE_FILES_MAX] = {0};
    uint16_t placed[ZI_STRIPE_FILES_MAX] = {0};
    for (uint32_t block = 0; block < map->cycle; block++) {
        uint32_t chosen = 0;
        for (uint32_t i = 0; i < map->file_count; i++) {
            behind[i] += map->weight[i];
            chosen = behind[i] > behind[chosen] ? i : chosen;
        }
        behind[chosen] -= map->cycle;
        map->file[block] = (uint8_t)chosen;
        map->before[block] = placed[chosen]++;
    }
}

zero_status zi_stripe_init(zi_stripe_map *map, uint64_t bytes, uint64_t unit_bytes,
                           const uint32_t *rates, uint32_t file_count)
{
    zi_assert(unit_bytes != 0 && file_count >= 1 && file_count <= ZI_STRIPE_FILES_MAX);
    memset(map, 0, sizeof *map);
    map->bytes = bytes;
    map->unit_bytes = unit_bytes;
    map->file_count = file_count;
    ZI_TRY(set_weights(map, rates));
    stripe_cycle(map);
    return ZERO_OK;
}

zi_stripe_place zi_stripe_find(const zi_stripe_map *map, uint64_t offset)
{
    zi_assert_cmp(offset, <, map->bytes);
    if (map->file_count == 1) {
        return (zi_stripe_place){0, offset, map->bytes - offset};
    }
    const uint64_t block = offset / map->unit_bytes;
    const uint64_t within = offset % map->unit_bytes;
    const uint32_t position = (uint32_t)(block % map->cycle);
    const uint32_t file = map->file[position];
    const uint64_t block_of_file = block / map->cycle * map->weight[file] + map->before[position];
    return (zi_stripe_place){file, block_of_file * map->unit_bytes + within,
                             zi_min_u64(map->unit_bytes - within, map->bytes - offset)};
}

uint64_t zi_stripe_file_bytes(const zi_stripe_map *map, uint32_t file)
{
    if (map->file_count == 1) {
        return map->bytes;
    }
    const uint64_t whole = map->bytes / map->unit_bytes;
    uint64_t blocks = whole / map->cycle * map->weight[file];
    const uint32_t rest = (uint32_t)(whole % map->cycle);
    for (uint32_t block = 0; block < rest; block++) {
        blocks += map->file[block] == file;
    }
    const uint64_t tail = map->file[rest] == file ? map->bytes % map->unit_bytes : 0;
    return blocks * map->unit_bytes + tail;
}
