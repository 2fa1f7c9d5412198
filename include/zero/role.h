/** @file
 *  What a rank holds bytes for, and where they live. */
#ifndef ZERO_ROLE_H
#define ZERO_ROLE_H

#include "zero/export.h"
#include <stdint.h>

ZERO_BEGIN

/** What bytes are held for; the rows of a plan. */
typedef enum zero_role {
    ZERO_ROLE_PARAM = 0,        /**< parameter shards */
    ZERO_ROLE_GRAD = 1,         /**< gradient shards */
    ZERO_ROLE_MASTER = 2,       /**< fp32 copies of low-precision parameters */
    ZERO_ROLE_MOMENT1 = 3,      /**< first moments */
    ZERO_ROLE_MOMENT2 = 4,      /**< second moments */
    ZERO_ROLE_PARAM_SLOT = 5,   /**< slots that units are gathered to; staging buffers, where PARAM
                                   is offloaded */
    ZERO_ROLE_GRAD_SLOT = 6,    /**< slots that backward writes gradients to, wire copies included;
                                   staging buffers, where GRAD is offloaded */
    ZERO_ROLE_STEP = 7,         /**< norms, the step's decision, a table of tensors */
    ZERO_ROLE_SCRATCH = 8,      /**< reductions between GPUs, over NCCL only: at most 36
                                   MiB, unless NCCL adds (ZERO_REDUCTION_NATIVE) */
    ZERO_ROLE_IO_WINDOW = 9,    /**< host memory that extents on disk are read to and written from,
                                   and their checksums */
    ZERO_ROLE_SAVE_STAGING = 10 /**< host memory that a save copies state to
                                   (tuning.save_staging_bytes) */
} zero_role;

/** Number of rows of a plan. */
#define ZERO_ROLE_COUNT 11

/** Entries for roles in the arrays of public structs; fixed for ever. */
#define ZERO_ROLE_COUNT_MAX 32

/** 1 for a role that a rank has shards of, which has a tier to choose: PARAM, GRAD, MASTER, MOMENT1
 *  and MOMENT2. Later optimizers' states have later numbers. 0 for all others. */
ZERO_API int32_t zero_role_is_shard(zero_role role);

/** A row's name: "param", "grad", "master", "moment1", "moment2", "param slots", "grad slots",
 *  "step", "scratch", "io window", "save staging". Never NULL. */
ZERO_API const char *zero_role_name(zero_role role);

/** Where a role's bytes live. No tier changes a bit of any result. */
typedef enum zero_tier {
    ZERO_TIER_DEFAULT = 0, /**< unset: the device */
    ZERO_TIER_DEVICE = 1,  /**< memory of options.device */
    ZERO_TIER_HOST = 2,    /**< host memory that the device reaches; on the CPU the same as
                              DEVICE, counted apart */
    ZERO_TIER_DISK = 3     /**< files in options.disk_directories */
} zero_tier;

/** Values of zero_tier. */
#define ZERO_TIER_COUNT 4

/** Entries for tiers in the arrays of public structs; fixed for ever. */
#define ZERO_TIER_COUNT_MAX 8

/** "default", "device", "host", "disk". Never NULL. */
ZERO_API const char *zero_tier_name(zero_tier tier);

ZERO_END

#endif
