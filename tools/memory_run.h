/* Engines of all ranks of one case, in process, and the memory that they hold: as planned, as their
 * allocators count it, and as the system sees it. */
#ifndef TOOLS_MEMORY_RUN_H
#define TOOLS_MEMORY_RUN_H

#include "bench_target.h"
#include "zero/zero.h"

/* Of one rank, after the steps. */
typedef struct memory_rank {
    zero_memory held;
    uint64_t device_peak_bytes; /* as its allocator counted */
} memory_rank;

typedef struct memory_run {
    const bench_target *target;
    const zero_model *model;
    const zero_engine_options *options; /* of memory_run_options */
    uint32_t ranks;
    /* The fields from here on are measured. */
    zero_memory planned;  /* of one rank, from a plan made apart from the engines */
    memory_rank *by_rank; /* the caller's array of `ranks` */
    uint64_t used_bytes;  /* by which what is in use grew at most, of all ranks; 0: not told */
    uint64_t file_bytes;  /* of all ranks' files in the options' directories */
    bool files_told;      /* the system says which files a process has open */
} memory_run;

/* Options of an engine on a target, with *tuning as theirs. */
zero_engine_options memory_run_options(const bench_target *target, zero_tuning *tuning);

/* Make the plan, then engines of all ranks that take two steps, in which every unit is used forward
 * and backward. Returns 0, or 1 after bench_fail. */
int memory_run_plan(memory_run *run);
int memory_run_measure(memory_run *run);

#endif
