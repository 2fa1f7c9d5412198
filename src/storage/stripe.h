/* The place of a byte of a store: blocks of one size, striped over files by weight. Pure
 * arithmetic.
 *
 *   rates 2, 1:     block   0  1  2 | 3  4  5 | 6 ...      a cycle is three blocks
 *                   file    0  1  0 | 0  1  0 | 0
 *                   of it   0  0  1 | 2  1  3 | 4          block of that file
 */
#ifndef ZI_STORAGE_STRIPE_H
#define ZI_STORAGE_STRIPE_H

#include <stdint.h>

#include "zero/status.h"

#define ZI_STRIPE_FILES_MAX 16
/* Of the fastest file when the rates do not reduce to small numbers: within 1 % of them. */
#define ZI_STRIPE_WEIGHT_MAX 64
#define ZI_STRIPE_CYCLE_MAX (ZI_STRIPE_FILES_MAX * ZI_STRIPE_WEIGHT_MAX)

typedef struct zi_stripe_map {
    uint64_t bytes;      /* of the store */
    uint64_t unit_bytes; /* of a block; the last one may be shorter */
    uint32_t file_count;
    uint32_t cycle; /* blocks after which the pattern repeats */
    uint16_t weight[ZI_STRIPE_FILES_MAX];
    uint8_t file[ZI_STRIPE_CYCLE_MAX];    /* of a block of the cycle */
    uint16_t before[ZI_STRIPE_CYCLE_MAX]; /* blocks of the same file before it in the cycle */
} zi_stripe_map;

typedef struct zi_stripe_place {
    uint32_t file;
    uint64_t offset; /* in the file */
    uint64_t bytes;  /* that lie together from there on */
} zi_stripe_place;

/* Turn rates into weights: divided by their common divisor, and scaled to ZI_STRIPE_WEIGHT_MAX for
 * the fastest file where that is still too much. Returns the first file whose rate is 0, or so low
 * that one block a cycle is too many for it; file_count where there is none. */
uint32_t zi_stripe_weigh(const uint32_t *rates, uint32_t file_count, uint16_t *weights);

/* file_count in [1, ZI_STRIPE_FILES_MAX], unit_bytes not 0. rates: how fast each file is, in any
 * unit; NULL: all the same. INVALID_ARGUMENT where zi_stripe_weigh names a file. */
zero_status zi_stripe_init(zi_stripe_map *map, uint64_t bytes, uint64_t unit_bytes,
                           const uint32_t *rates, uint32_t file_count);

/* offset below map->bytes. */
zi_stripe_place zi_stripe_find(const zi_stripe_map *map, uint64_t offset);

/* The bytes of the store in one file. The files' bytes add up to map->bytes. */
uint64_t zi_stripe_file_bytes(const zi_stripe_map *map, uint32_t file);

#endif
