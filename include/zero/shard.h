/** @file
 *  A tensor's state between steps: this rank's shard of it on any tier, and whole tensors in the
 *  caller's arrays. */
#ifndef ZERO_SHARD_H
#define ZERO_SHARD_H

#include "zero/array.h"
#include "zero/dtype.h"
#include "zero/engine.h"
#include "zero/export.h"
#include "zero/role.h"
#include "zero/status.h"
#include <stdint.h>

ZERO_BEGIN

/** A rank's shard of a tensor in one role. The struct's size never changes. */
typedef struct zero_shard {
    uint64_t first;       /**< index in the tensor of its first element */
    uint64_t count;       /**< elements; 0 where this rank has none */
    zero_dtype dtype;     /**< of the role */
    zero_tier tier;       /**< of the shard */
    uint64_t reserved[5]; /**< 0 */
} zero_shard;

/** Which elements of a tensor this rank's shard has. It stays the same for the engine's life.
 *  - role: PARAM, GRAD (as reduced by the last zero_step or zero_step_discard: the sum, before the
 *    divisor and with the loss scale in it), MASTER, MOMENT1, MOMENT2, or SCALE1 and SCALE2, whose
 *    elements are those scales: element i is of elements 32 i to 32 i + 31 of the tensor.
 *  - Local call, no waiting.
 *  - Errors: INVALID_ARGUMENT. */
ZERO_API ZERO_MUST_CHECK zero_status zero_shard_range(const zero_engine *engine, uint32_t tensor,
                                                      zero_role role, zero_shard *shard);

/** A pointer to this rank's shard of a tensor.
 *  - role: as in zero_shard_range.
 *  - first: out, index in the tensor of the shard's first element; a multiple of 256.
 *  - view: out, the shard in device memory or, for a role on the host tier, in host memory that the
 *    device reaches, as it is kept: of a remainder or of codes the bits (zero/dtype.h). It begins
 *    at a multiple of 256 bytes, that of scales of 16. Where this rank has none, count is 0 and
 *    data NULL. Who writes a parameter that has a remainder writes the remainder, too.
 *  - Local call. It waits for the step under way.
 *  - Ownership: the engine's memory. It may be read until the next hook, and written before the
 *    next micro-step, for example with a checkpoint's values.
 *  - Errors: INVALID_ARGUMENT; STATE as in zero_shard_read; UNSUPPORTED for a role on disk, for
 *    which there are zero_shard_read and zero_shard_write. */
ZERO_API ZERO_MUST_CHECK zero_status zero_shard_view(zero_engine *engine, uint32_t tensor,
                                                     zero_role role, uint64_t *first,
                                                     zero_view *view);

/** Copy elements [first, first + count) of a tensor's state, on any tier, to host memory.
 *  - role: as in zero_shard_range.
 *  - first, count: inside this rank's shard; count may be 0.
 *  - values: out, count elements of the role's type, as it is kept; host memory.
 *  - Local call. It waits for the step under way and for the values.
 *  - Errors: INVALID_ARGUMENT; STATE inside a micro-step, while a step is due, for GRAD between a
 *    step's micro-steps, and while the role is evicted, for GRAD until the next step after that
 *    (zero/evict.h); IO naming the directory, after which the engine is poisoned. */
ZERO_API ZERO_MUST_CHECK zero_status zero_shard_read(zero_engine *engine, uint32_t tensor,
                                                     zero_role role, uint64_t first, uint64_t count,
                                                     void *values);

/** Copy host memory to elements [first, first + count) of a tensor's state, on any tier.
 *  - role: as in zero_shard_range. For PARAM every rank makes the call at least once before any
 *    rank's next hook, with a count of 0 where it has nothing to write: units that were gathered
 *    ahead of time are then gathered again.
 *  - first, count, values: as in zero_shard_read.
 *  - Local call. It waits for the step under way and until the values are stored. Before the
 *    engine's first micro-step every rank that has elements of the tensor in this role makes it,
 *    with a count of 0 where it has nothing to write: the first zero_micro_begin is MISMATCH where
 *    one did not, or where ranks that hold the same shard wrote different values.
 *  - Errors: those of zero_shard_read; STATE while a unit is acquired. */
ZERO_API ZERO_MUST_CHECK zero_status zero_shard_write(zero_engine *engine, uint32_t tensor,
                                                      zero_role role, uint64_t first,
                                                      uint64_t count, const void *values);

/** Gather a whole tensor into the caller's array, for example for a checkpoint in its own format.
 *  - tensor, role: the same on every rank. role is PARAM, MASTER, MOMENT1, MOMENT2 (of small states
 *    the values, not their bits) or GRAD (as in
 *    zero_shard_range). MASTER of a tensor without a master copy is its PARAM, so MASTER gives the
 *    most exact parameters of any model.
 *  - array: host memory; values are rounded to nearest even to its type, and DEFAULT is the
 *    parameter's type. Where finite values become infinite, the log gets a warning with their
 *    number. NULL: this rank wants no copy and only takes part.
 *  - Collective over the world. It blocks until the array is written.
 *  - Memory: up to 2 MiB of host memory during the call, and 72 bytes for each rank.
 *  - Errors: INVALID_ARGUMENT, also where ranks ask for different tensors or roles, or another rank
 *    was refused; STATE as in zero_shard_read. After OUT_OF_MEMORY, IO, COMM and TIMEOUT the engine
 *    is poisoned. */
ZERO_API ZERO_MUST_CHECK zero_status zero_tensor_export(zero_engine *engine, uint32_t tensor,
                                                        zero_role role, const zero_array *array);

/** Set this rank's shard of a tensor's state from an array of the whole tensor.
 *  - role: as in zero_tensor_export. To replace low-precision parameters import PARAM and MASTER,
 *    since the next step rounds the master to the parameter; where the master is a remainder, one
 *    of them sets both. Moments in codes get their scales with them.
 *  - array: host memory. This rank's shard of it is read, and rounded to nearest even, and a sample
 *    of at most 4096 elements. Where finite values become infinite, the log gets a warning with
 *    their number.
 *  - Local call; it blocks until the values are stored. As with zero_shard_write, every rank has to
 *    import PARAM before the next hook of any. What is imported before the first micro-step is
 *    compared by the first zero_micro_begin, as with zero_shard_write.
 *  - Memory: 256 KiB of host memory during the call.
 *  - Errors: INVALID_ARGUMENT; STATE as in zero_shard_write. After OUT_OF_MEMORY and IO the engine
 *    is poisoned. */
ZERO_API ZERO_MUST_CHECK zero_status zero_tensor_import(zero_engine *engine, uint32_t tensor,
                                                        zero_role role, const zero_array *array);

ZERO_END

#endif
