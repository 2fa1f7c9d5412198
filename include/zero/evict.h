/** @file
 *  Giving memory back between steps, for example to generate text.
 *
 *      zero_engine_evict(engine, ZERO_EVICT_ALL, ZERO_TIER_DISK);
 *      ... eval passes, shards of parameters, other libraries ...
 *      zero_engine_restore(engine);
 *      ... the next step, with the bits it would have had ...
 *
 *  The memory of the named roles goes back to the system: its pages on the CPU, device memory on a
 *  GPU. Parameters and their slots stay, so eval passes (zero/unit.h) work meanwhile. MASTER,
 *  MOMENT1 and MOMENT2 are kept on another tier until the restore. GRAD, GRAD_SLOT and IO_WINDOW
 *  hold nothing that later steps need, so they are not kept. */
#ifndef ZERO_EVICT_H
#define ZERO_EVICT_H

#include "zero/engine.h"
#include "zero/export.h"
#include "zero/role.h"
#include "zero/status.h"
#include <stdint.h>

ZERO_BEGIN

/** A role in a set of roles. */
#define ZERO_ROLE_BIT(role) (UINT32_C(1) << (uint32_t)(role))

/** Master copies and moments: all states of optimizers, also those that a later library has. */
#define ZERO_EVICT_STATE (ZERO_ROLE_BIT(ZERO_ROLE_SHARDS_MAX) - ZERO_ROLE_BIT(ZERO_ROLE_MASTER))

/** All roles that can be evicted. */
#define ZERO_EVICT_ALL                                                                       \
    (ZERO_EVICT_STATE | ZERO_ROLE_BIT(ZERO_ROLE_GRAD) | ZERO_ROLE_BIT(ZERO_ROLE_GRAD_SLOT) | \
     ZERO_ROLE_BIT(ZERO_ROLE_IO_WINDOW))

/** Give the memory of roles back until zero_engine_restore. Waits for the step under way.
 *  - roles: a set of ZERO_ROLE_BIT of optimizers' states (MASTER to MOMENT2), GRAD, GRAD_SLOT and
 *    IO_WINDOW, not empty. Roles without bytes, on disk already, or on the tier that they would
 *    be evicted to stay as they are.
 *  - tier: where masters and moments are kept. ZERO_TIER_HOST is ordinary host memory, for
 *    ZERO_DEVICE_CUDA only. ZERO_TIER_DISK is files in options.disk_directories, reserved before
 *    any memory is given back, and accessed by direct I/O where the file system has it.
 *  - Local call, between steps, with no unit acquired. Ranks may evict different roles, but
 *    gradients are reduced over all ranks: every rank has to restore before any can finish its next
 *    micro-step.
 *  - Until the restore the hooks of micro-steps, zero_step, zero_engine_fill, captures and launches
 *    are STATE errors. So are views, reads, writes, imports and exports (zero/shard.h) of these
 *    roles, and of roles on disk where IO_WINDOW is among them. If GRAD was among them,
 *    zero_shard_read and zero_shard_view of GRAD are STATE errors until the next zero_step.
 *  - On a GPU the call retires a captured step, whose graph holds addresses: destroy that graph
 *    before, capture again after.
 *  - Memory: a few tables, and for DISK 8 bytes for each 64 KiB that is kept there, for its
 *    checksums (tuning.disk_unchecked); on a GPU for DISK 16 MiB of host memory during the call.
 *  - Errors, all of which leave the engine as it was: INVALID_ARGUMENT. STATE when roles are
 *    evicted already, inside a step, or where another engine of this rank number has a directory.
 *    UNSUPPORTED for GRAD and GRAD_SLOT with tuning.nccl_memory, or where gradients are on disk or,
 *    for a GPU, on the host; and for IO_WINDOW where parameters or gradients are on disk.
 *    OUT_OF_MEMORY and IO where the bytes cannot be kept. An earlier step's failure is reported
 *    here too, and poisons the engine. */
ZERO_API ZERO_MUST_CHECK zero_status zero_engine_evict(zero_engine *engine, uint32_t roles,
                                                       zero_tier tier);

/** Allocate the memory again and copy back what was kept on another tier.
 *  - Local call.
 *  - Memory: what the eviction gave back.
 *  - Errors: STATE when nothing is evicted. OUT_OF_MEMORY, and other failures to allocate, after
 *    which all is still evicted and the call may be made again. IO, CORRUPT and DEVICE when what
 *    was kept cannot be read back, after which the engine is poisoned. */
ZERO_API ZERO_MUST_CHECK zero_status zero_engine_restore(zero_engine *engine);

ZERO_END

#endif
