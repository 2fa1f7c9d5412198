/* One rank of a model whose optimizer state is on disk: its slice of some layers, gradients that
 * are known, steps that are timed up to the last write, and a check of what they came to.
 *
 * The model is a GPT of 128 layers of width 25600, 1.007e12 parameters in its matrices, over 512
 * ranks at stage 3: a rank holds a 512th of every layer's four matrices, 15.36e6 parameters a layer
 * and 1.966e9 in all. Of the 512 ranks this is one, alone in its world with its slices as the whole
 * model: the optimizer's part of a step is that of such a rank, to the byte; gathers and reductions
 * are none. */
#ifndef TOOLS_OFFLOAD_RANK_H
#define TOOLS_OFFLOAD_RANK_H

#include <stdbool.h>
#include <stdint.h>

#include "bench.h"
#include "zero/zero.h"

#define OFFLOAD_LAYERS 128
#define OFFLOAD_RANKS 512
#define OFFLOAD_WIDTH 25600

typedef struct offload_rank_desc {
    uint32_t layers;
    uint64_t unit; /* a layer's matrices have 3, 1, 4 and 4 times so many elements in this slice */
    zero_dtype master; /* DEFAULT: f32 */
    zero_dtype moments;
    bool overlap;   /* steps may be predicted */
    bool unchecked; /* no checksums */
    zero_tier tier; /* of master and moments */
    const char *const *directories;
    uint32_t directory_count;
    const uint32_t *disk_weights; /* NULL: the engine's choice */
    uint32_t threads;             /* 0: the engine's choice */
    uint64_t extent_bytes;        /* 0: the engine's choice */
} offload_rank_desc;

/* Elements of `unit` in such a rank: 25600 * 25600 / 512. */
#define OFFLOAD_UNIT ((uint64_t)OFFLOAD_WIDTH * OFFLOAD_WIDTH / OFFLOAD_RANKS)

/* The types of its state in words: those of moments, and of masters that are not f32. */
#define OFFLOAD_TYPES_TEXT 48
const char *offload_rank_types(const offload_rank_desc *desc, char text[OFFLOAD_TYPES_TEXT]);

/* The rank that the line of `zero bench` asks for. */
offload_rank_desc bench_offload_desc(const bench_options *options);

/* False, with the reason, where a directory's disk has no room for its share of the bytes. */
bool bench_disks_suffice(const offload_rank_desc *desc, uint64_t bytes, char *reason,
                         size_t reason_bytes);

typedef struct offload_rank offload_rank;

/* How a step is taken. */
typedef struct offload_way {
    double backward_s; /* that backward takes beyond making gradients, asleep, as beside a GPU */
    bool predicted;
} offload_way;

/* After backward, which takes no longer than it must. */
#define OFFLOAD_AT_ONCE ((const offload_way){0})

/* The time and the traffic of a step. */
typedef struct offload_step {
    double
        backward_s; /* before it; the disk had nothing to do then, unless the step was predicted */
    double seconds; /* from the end of backward until the last write is done */
    uint64_t bytes; /* read and written */
    zero_bottleneck_report bottleneck;
} offload_step;

/* Its plan, without memory or disk: bytes by tier. 0, or 1 after bench_fail; so for all below. */
int offload_rank_plan(const offload_rank_desc *desc, zero_memory *memory);

int offload_rank_open(const offload_rank_desc *desc, offload_rank **rank);

/* Accepts NULL; the disk is free again. */
void offload_rank_close(offload_rank *rank);

/* Make all gradients, then take the step. */
int offload_rank_step(offload_rank *rank, const offload_way *way, offload_step *step);

/* Speculative steps so far that were updated during backward, and not again. */
uint64_t offload_rank_overlapped(const offload_rank *rank);

/* Parameters and state after the steps so far have the bits of a rank's that has them on the
 * device, in samples from all over the model. */
int offload_rank_check(offload_rank *rank);

#endif
