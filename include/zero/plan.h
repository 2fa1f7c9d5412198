/** @file
 *  Every byte on a rank, computed before anything is allocated.
 *
 *  A plan needs no ranks and no memory, so it also answers "what would fit". zero_engine_create
 * makes the same plan and allocates exactly it. All ranks of a world have the same plan. One thing
 * no number of ranks tells: with ZERO_DEVICE_CUDA a plan takes ranks for processes, which need
 * scratch memory to reduce over NCCL; of ranks that are threads say options.transport =
 * ZERO_TRANSPORT_PEER. */
#ifndef ZERO_PLAN_H
#define ZERO_PLAN_H

#include "zero/export.h"
#include "zero/model.h"
#include "zero/options.h"
#include "zero/role.h"
#include "zero/status.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** A computed plan; immutable. Threads: any number may read. */
typedef struct zero_plan zero_plan;

/** One rank's bytes, padding included. */
typedef struct zero_memory {
    uint64_t bytes[ZERO_ROLE_COUNT]; /**< by zero_role, each rounded up to pages of 4096 bytes */
    uint64_t tier_bytes[ZERO_TIER_COUNT]; /**< by zero_tier; on disk with what records are padded */
    uint64_t total_bytes;                 /**< of all tiers */
} zero_memory;

/** Over how many ranks each state is split, as resolved from the options. */
typedef struct zero_sharding {
    uint32_t world;     /**< ranks */
    uint32_t param;     /**< ranks a unit's parameters are split over */
    uint32_t grad;      /**< ranks a unit's gradient is split over while it is accumulated */
    uint32_t optimizer; /**< ranks master and moments are split over */
} zero_sharding;

/** Compute the plan of `model` for `world_size` ranks (in [1, 65536]).
 *  options  NULL: all defaults.
 *  Ownership: the caller destroys it; the model is not kept.
 *  Errors: INVALID_ARGUMENT naming the option and its bounds; UNSUPPORTED when
 * options->struct_bytes is larger than this library knows and its tail is not zero; OUT_OF_MEMORY
 * with the exact shortfall when device_budget_bytes, host_budget_bytes or disk_budget_bytes is set
 * and too small. */
ZERO_API ZERO_MUST_CHECK zero_status zero_plan_create(const zero_model *model,
                                                      const zero_engine_options *options,
                                                      uint32_t world_size, zero_plan **plan);

/** Accepts NULL. */
ZERO_API void zero_plan_destroy(zero_plan *plan);

/** One rank's bytes by role. Every rank has the same. All 0 for NULL. */
ZERO_API zero_memory zero_plan_memory(const zero_plan *plan);

/** Degrees of sharding. All 0 for NULL. */
ZERO_API zero_sharding zero_plan_sharding(const zero_plan *plan);

/** The options as they will be used: every default replaced by its value. grad_dtype and wire_dtype
 * stay ZERO_DTYPE_DEFAULT (the tensor's own) in a model of several types; threads stays 0, an
 * engine's own choice. disk_directories and disk_weights are NULL, and their number 0.
 * zero_engine_options_init() for NULL. */
ZERO_API zero_engine_options zero_plan_options(const zero_plan *plan);

/** Write the plan as a table of text, one line a role, the sums of the tiers in use, and what a
 * step, a pass and a micro-step move to and from disk, to `text` (at most `text_bytes`, always
 * ended). Returns the bytes the whole table needs without the final NUL; text may be NULL. 0, and
 * an empty text, for a plan that is NULL. */
ZERO_API size_t zero_plan_print(const zero_plan *plan, char *text, size_t text_bytes);

/** A 64-bit hash of everything ranks must agree on. 0 for NULL. */
ZERO_API uint64_t zero_plan_hash(const zero_plan *plan);

ZERO_END

#endif
