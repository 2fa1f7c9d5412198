/* `zero bench calibrate`: what this machine holds and moves, as the fields of a zero_cluster. Parts
 * add samples under a field's name; the field's value is their median. Functions that can fail
 * return 1 after bench_fail. */
#ifndef TOOLS_BENCH_CALIBRATE_H
#define TOOLS_BENCH_CALIBRATE_H

#include "bench.h"
#include "zero/planner.h"

#define CALIBRATE_FIELDS_MAX 32
#define CALIBRATE_SAMPLES_MAX 32
#define CALIBRATE_RANKS_MAX 256
#define CALIBRATE_HEAD_WIDTH 64
#define CALIBRATE_WIDTH_MAX 16384
#define CALIBRATE_TOKENS_MAX 16384

/* Of one field. None and no reason: it is not about this machine. */
typedef struct calibrate_field {
    uint32_t count;
    double samples[CALIBRATE_SAMPLES_MAX];
    const char *missing; /* why there are none; static text */
} calibrate_field;

typedef struct calibration {
    bench_scale scale;
    uint32_t repetitions; /* samples of what is timed */
    uint32_t ranks;
    uint32_t gpus;   /* which ranks have in turn; 0: ranks compute on CPUs */
    uint32_t width;  /* of the block whose products are measured; 0: by the scale */
    uint32_t tokens; /* of a rank, likewise */
    const char *directories[BENCH_DIRECTORIES_MAX];
    uint32_t directory_count;
    calibrate_field fields[CALIBRATE_FIELDS_MAX]; /* in the order of zero_cluster_field_at */
} calibration;

/* field: a name of zero_cluster's, as in zero/cluster.h. */
void calibrate_add(calibration *all, const char *field, double value);
void calibrate_miss(calibration *all, const char *field, const char *reason);

/* Memory, copies, collectives and matrix products, of ranks that are threads of this process. */
int calibrate_ranks(calibration *all);

/* GPUs that CUDA can use. 0 in a build without. */
uint32_t calibrate_gpu_count(void);
/* Make it the calling thread's. */
int calibrate_gpu_use(uint32_t gpu);
/* Of the first GPU: all of its memory, and what CUDA and others have taken of it. */
int calibrate_gpu_memory(double *bytes, double *taken);

/* Directories as the disks of the node. */
int calibrate_disks(calibration *all);

/* One rank's matrix products. */
typedef struct calibrate_product calibrate_product;

/* NULL when memory is out, and in a build without OpenBLAS, where `missing` says so. */
calibrate_product *calibrate_product_create(const calibration *all, const char **missing);
void calibrate_product_destroy(calibrate_product *product); /* accepts NULL */

typedef enum calibrate_shape {
    CALIBRATE_SQUARE, /* large square matrices: what the machine reaches */
    CALIBRATE_BLOCK,  /* all products of a GPT block, forward and backward */
    CALIBRATE_HEADS   /* those of its attention, by one thread, counted without a causal mask */
} calibrate_shape;

/* Operations of a run. */
double calibrate_product_flops(const calibrate_product *product, calibrate_shape shape);

/* Share `share` of `shares` that run at the same time, each with its own rows. */
void calibrate_product_run(const calibrate_product *product, calibrate_shape shape, uint32_t share,
                           uint32_t shares);

#endif
