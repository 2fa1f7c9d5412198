/** @file
 *  Every byte on a rank, computed before anything is allocated.
 *
 *  A plan needs no ranks and no memory, so it also answers "what would fit?". zero_engine_create
 *  makes the same plan and allocates exactly that. All ranks of a world have the same plan. With
 *  ZERO_DEVICE_CUDA a plan assumes that ranks are processes, which need scratch memory to reduce
 *  over NCCL. If ranks are threads, set tuning.transport to ZERO_TRANSPORT_PEER. */
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

/** One rank's bytes, padding included. Grows at its end. */
typedef struct zero_memory {
    size_t struct_bytes; /**< set by zero_memory_init() */
    uint64_t
        bytes[ZERO_ROLE_COUNT_MAX]; /**< by zero_role, each rounded up to pages of 4096 bytes */
    uint64_t tier_bytes[ZERO_TIER_COUNT_MAX]; /**< by zero_tier; on disk with the padding of
                                                 extents */
    uint64_t total_bytes;                     /**< of all tiers */
} zero_memory;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_memory_init_sized(zero_memory *memory, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_memory zero_memory_init(void)
{
    zero_memory memory;
    zero_memory_init_sized(&memory, sizeof memory);
    return memory;
}

/** Over how many ranks each state is split, as resolved from the options; a unit with a shard_group
 *  of its own has other degrees. Grows at its end. */
typedef struct zero_sharding {
    size_t struct_bytes; /**< set by zero_sharding_init() */
    uint32_t world;      /**< ranks */
    uint32_t param;      /**< ranks a unit's parameters are split over */
    uint32_t grad;       /**< ranks a unit's gradient is split over while it is accumulated */
    uint32_t optimizer;  /**< ranks master and moments are split over */
} zero_sharding;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_sharding_init_sized(zero_sharding *sharding, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_sharding zero_sharding_init(void)
{
    zero_sharding sharding;
    zero_sharding_init_sized(&sharding, sizeof sharding);
    return sharding;
}

/** Compute the plan of `model` for `world_size` ranks (in [1, 65536]).
 *  - options: NULL: all defaults.
 *  - Ownership: the caller destroys it; the model is not kept.
 *  - Errors: INVALID_ARGUMENT naming the option and its bounds; UNSUPPORTED when
 *    options->struct_bytes is larger than this library knows and its tail is not zero;
 *    OUT_OF_MEMORY with the exact shortfall when device_budget_bytes, host_budget_bytes or
 *    disk_budget_bytes is set and too small. */
ZERO_API ZERO_MUST_CHECK zero_status zero_plan_create(const zero_model *model,
                                                      const zero_engine_options *options,
                                                      uint32_t world_size, zero_plan **plan);

/** Accepts NULL. */
ZERO_API void zero_plan_destroy(zero_plan *plan);

/** One rank's bytes by role. Every rank has the same.
 *  - memory: in: struct_bytes, of zero_memory_init(); out: the rest, as far as the struct goes.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_plan_memory(const zero_plan *plan, zero_memory *memory);

/** Degrees of sharding.
 *  - sharding: in: struct_bytes, of zero_sharding_init(); out: the rest, as far as the struct goes.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_plan_sharding(const zero_plan *plan,
                                                        zero_sharding *sharding);

/** The options as they will be used: every default replaced by its value. grad_dtype stays
 *  ZERO_DTYPE_DEFAULT (the tensor's own) in a model of several types; threads stays 0, an engine's
 *  own choice. disk_directories is NULL, and their number 0. tuning is NULL: zero_plan_tuning.
 *  - options: in: struct_bytes, of zero_engine_options_init(); out: the rest, as far as the struct
 *    goes.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_plan_options(const zero_plan *plan,
                                                       zero_engine_options *options);

/** The tuning as it will be used. wire_dtype stays ZERO_DTYPE_DEFAULT where none was given, since
 *  gradients and their sums then go in types of their own; disk_weights is NULL.
 *  - tuning: in: struct_bytes, of zero_tuning_init(); out: the rest, as far as the struct goes.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_plan_tuning(const zero_plan *plan, zero_tuning *tuning);

/** Print the plan as a table: a line for each role, the sums of the tiers in use, and what a step,
 *  a pass and a micro-step move to and from disk. Returns the bytes that the whole table needs,
 *  without the final NUL; 0, with an empty text, when plan is NULL.
 *  - text: out, at most text_bytes, NUL at its end; or NULL.
 *  - Local call.
 *  - Threads: any. */
ZERO_API size_t zero_plan_print(const zero_plan *plan, char *text, size_t text_bytes);

/** Print every option and tuning as it will be used: a line for each name and value, without
 *  pointers. Returns and takes what zero_plan_print does. */
ZERO_API size_t zero_plan_print_options(const zero_plan *plan, char *text, size_t text_bytes);

/** A 64-bit hash of everything ranks must agree on. 0 for NULL. */
ZERO_API uint64_t zero_plan_hash(const zero_plan *plan);

ZERO_END

#endif
