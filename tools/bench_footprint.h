/* The measurements of `zero bench memory`: for each mix of stage and tiers, a rank's bytes as
 * planned, as measured, and as the paper's formulas have them. */
#ifndef TOOLS_BENCH_FOOTPRINT_H
#define TOOLS_BENCH_FOOTPRINT_H

#include "memory_run.h"
#include "zero/planner.h"

#define FOOTPRINT_MIXES 10

/* One mix. Bytes are those of one rank; of measured ones, of the first rank that differs from the
 * plan, else of rank 0. */
typedef struct footprint_mix {
    const char *name; /* "3, state disk" */
    zero_stage stage;
    bool small; /* masters are REMAINDER8, moments I8 */
    zero_tier tier[ZERO_ROLE_COUNT_MAX];
    bool measured;
    zero_memory planned;
    zero_memory held; /* as allocators counted; of roles on disk, which share files, the plan's */
    uint64_t file_bytes; /* as the file system has them, a rank's share */
    bool files_told;     /* and it tells */
    uint64_t used_bytes; /* by which what is in use grew, a rank's share; 0: not told */
    double paper;        /* bytes of parameters, gradients and optimizer state; 0: no formula */
} footprint_mix;

typedef struct footprint {
    char model[128];  /* "gpt2, every dimension 1/8" */
    const char *used; /* what used_bytes are */
    zero_transformer transformer;
    uint64_t parameters;
    uint32_t ranks;
    bool bf16_sums;
    footprint_mix mixes[FOOTPRINT_MIXES];
    uint32_t mix_count;
    uint32_t figures; /* planned and measured bytes that were compared */
    uint32_t differ;  /* of these */
} footprint;

/* The tier of a role's bytes, and the memory of all: device and host. */
zero_tier footprint_tier(const footprint_mix *mix, int role);
uint64_t footprint_memory(const zero_memory *memory);

/* 16P, 4P+12P/N, 2P+14P/N, 16P/N bytes for P parameters of 16 bits on N ranks (Rajbhandari et al.,
 * "ZeRO", 2020, section 3). */
double footprint_paper(zero_stage stage, uint64_t parameters, uint32_t ranks);

/* Compare one mix's plan with all that was measured of each rank, say each difference by role and
 * tier, count, and keep the rank that is shown. */
void footprint_compare(footprint *f, footprint_mix *mix, const memory_run *run);

#endif
