/** @file
 *  What a rank holds bytes for, and where they live. */
#ifndef ZERO_ROLE_H
#define ZERO_ROLE_H

#include "zero/export.h"
#include <stdint.h>

ZERO_BEGIN

/** The purpose that bytes are held for; the rows of a plan. A rank has shards of the roles below
 *  ZERO_ROLE_SHARDS_MAX, each with a tier to choose. The roles from there on are memory beside
 *  shards. Not every number is a role: states of later optimizers get those before PARAM_SLOT. */
typedef enum zero_role {
    ZERO_ROLE_PARAM = 0,   /**< parameter shards */
    ZERO_ROLE_GRAD = 1,    /**< gradient shards */
    ZERO_ROLE_MASTER = 2,  /**< states of optimizers: fp32 copies of low-precision parameters, or
                              what those leave of them (options.master_dtype) */
    ZERO_ROLE_MOMENT1 = 3, /**< first moments */
    ZERO_ROLE_MOMENT2 = 4, /**< second moments */
    ZERO_ROLE_SCALE1 = 5,  /**< scales of first moments in 8-bit codes, on their tier */
    ZERO_ROLE_SCALE2 = 6,  /**< the same of second moments */
    ZERO_ROLE_PARAM_SLOT = 16,  /**< slots that units are gathered to; staging buffers, where PARAM
                                   is offloaded */
    ZERO_ROLE_GRAD_SLOT = 17,   /**< slots that backward writes gradients to, wire copies included;
                                   staging buffers, where GRAD is offloaded */
    ZERO_ROLE_STEP = 18,        /**< norms, the step's decision, a table of tensors */
    ZERO_ROLE_SCRATCH = 19,     /**< reductions between GPUs, over NCCL only: at most 36
                                   MiB, unless NCCL adds (ZERO_REDUCTION_NATIVE) */
    ZERO_ROLE_IO_WINDOW = 20,   /**< host memory that extents on disk are read to and written from,
                                   and their checksums */
    ZERO_ROLE_SAVE_STAGING = 21 /**< host memory that a save copies state to
                                   (tuning.save_staging_bytes) */
} zero_role;

/** Roles with smaller numbers have shards; fixed for ever. */
#define ZERO_ROLE_SHARDS_MAX 16

/** Entries for roles in the arrays of public structs; fixed for ever. */
#define ZERO_ROLE_COUNT_MAX 32

/** 1 for a number that is a role's, 0 for all others. Who lists roles tries all numbers below
 *  ZERO_ROLE_COUNT_MAX, or for those with shards below ZERO_ROLE_SHARDS_MAX, and so lists also
 *  what a later library has. */
ZERO_API int32_t zero_role_exists(zero_role role);

/** A row's name: "param", "grad", "master", "moment1", "moment2", "scale1", "scale2",
 *  "param slots", "grad slots", "step", "scratch", "io window", "save staging"; "unknown" for no
 * role. Never NULL. */
ZERO_API const char *zero_role_name(zero_role role);

/** The memory or disk that a role's bytes live on. No tier changes a bit of any result. */
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
