/** @file
 *  What only a few runs need to set: how much is held ahead, what is exchanged in which type, how
 *  disks and GPUs are driven. Zero is the default everywhere. */
#ifndef ZERO_TUNING_H
#define ZERO_TUNING_H

#include "zero/dtype.h"
#include "zero/export.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** How gradients of several ranks are added. */
typedef enum zero_reduction {
    ZERO_REDUCTION_DEFAULT = 0, /**< the backend's own; on one host always the same as EXACT */
    ZERO_REDUCTION_EXACT = 1 /**< in rank order, in fp32: the same bits on every run and backend */
} zero_reduction;

/** Where the gradients of several micro-steps are added. */
typedef enum zero_accumulation {
    ZERO_ACCUMULATION_DEFAULT = 0, /**< at the degree of sharding the stage gives to gradients */
    ZERO_ACCUMULATION_LOCAL = 1 /**< whole gradients on every rank, reduced once, at the boundary:
                                     less traffic, more memory */
} zero_accumulation;

/** What carries bytes between GPUs of ranks that are processes. Ranks that are threads of one
 *  process read one another's memory, and host memory is not concerned. */
typedef enum zero_transport {
    ZERO_TRANSPORT_DEFAULT = 0, /**< NCCL; nothing where it is not needed */
    ZERO_TRANSPORT_NCCL = 1,    /**< NCCL 2.19 or later, loaded as libnccl.so.2; needs a GPU for
                                   each rank */
    ZERO_TRANSPORT_HOST = 2,    /**< through host memory, and MPI between hosts: slow, any number of
                                   ranks on a GPU */
    ZERO_TRANSPORT_PEER = 3     /**< the GPUs themselves; ranks are threads of one process. What an
                                   engine of such ranks makes of the default; for plans of them,
                                   since a plan takes the default for NCCL */
} zero_transport;

/** How NCCL gets at the memory that gathers and reductions read and write. Only for ranks that are
 *  processes over NCCL: elsewhere anything but NONE is refused, and so is what the NCCL that is
 *  loaded cannot do. Memory from NCCL's allocator is the plan's bytes; NCCL rounds each role's up
 *  to pages of the GPU, at most a few MiB each, as cudaMalloc does. */
typedef enum zero_nccl_memory {
    ZERO_NCCL_MEMORY_NONE = 0,       /**< NCCL copies through buffers of its own where it must */
    ZERO_NCCL_MEMORY_REGISTERED = 1, /**< from ncclMemAlloc, registered once with each communicator
                                        that uses it (ncclCommRegister); steps cannot be captured
                                        (zero/capture.h) */
    ZERO_NCCL_MEMORY_SYMMETRIC = 2   /**< the same memory as windows (ncclCommWindowRegister), those
                                        that all ranks use at equal offsets as symmetric ones; NCCL
                                        2.27 or later, GPUs that map one another's memory. Units of
                                        similar size then take slots in turn, so that at most
                                        param_slots neighbours of them can be held at once */
} zero_nccl_memory;

/** What updates state in host memory where the device is a GPU. The bits are the same. */
typedef enum zero_updater {
    ZERO_UPDATER_DEFAULT = 0, /**< the GPU; the CPU what is on disk */
    ZERO_UPDATER_GPU = 1,     /**< the GPU's kernels, which reach the state over the bus */
    ZERO_UPDATER_CPU = 2,     /**< the CPU's; only gradients and parameters go over the bus */
    ZERO_UPDATER_BOTH = 3     /**< the GPU units from the first on and the CPU units from the last
                                 on, until they meet: each as many as it is fast */
} zero_updater;

/** Tuning of a plan and an engine, zero_engine_options.tuning. Fill with zero_tuning_init(), then
 *  assign. It grows at its end; what an older caller's struct does not have is 0. */
typedef struct zero_tuning {
    size_t struct_bytes; /**< set by zero_tuning_init(); tells the library the caller's version */

    uint32_t grad_group;      /**< ranks that a gradient is split over; a multiple of
                                 options.shard_group. 0: as the stage says, at most shard_group
                                 where that is given */
    uint32_t optimizer_group; /**< the same for optimizer state; a multiple of grad_group. 0:
                                 likewise */

    zero_dtype wire_dtype;    /**< what ranks exchange when gradients are reduced. Default:
                                 grad_dtype */
    zero_dtype accum_dtype;   /**< sums over ranks and micro-steps, F32 or BF16. Default: F32 */
    zero_reduction reduction; /**< default: the backend's own */
    zero_accumulation accumulation; /**< default: sharded as the stage says */

    uint32_t param_slots; /**< slots per class of unit sizes that gathers go to, in [1, 64].
                             Default 3. Costs one unit of memory each */
    uint32_t
        grad_slots; /**< slots per class of bucket sizes for gradients, in [1, 64]. Default 2 */
    uint32_t look_ahead; /**< units gathered ahead of the one in use, in [1, 63]; no_prefetch turns
                            it off. Default 1 */
    int32_t no_prefetch; /**< 1: gather a unit only when it is acquired. Default 0 */
    uint64_t bucket_bytes; /**< neighbouring units share a bucket until it has this many bytes of
                              gradient; 1 gives every unit its own, as one that others tie to
                              has anyway. Default 1 MiB */

    int32_t loss_scale_static;  /**< 1: never change it. Default 0; where options.loss_scale 0 is
                                   off there is nothing to change */
    uint32_t loss_scale_window; /**< good steps before it doubles. Default 2000 */
    uint32_t
        loss_scale_hysteresis; /**< overflows in a row from which on each halves it. Default 1 */
    float loss_scale_min;      /**< floor; a first scale below it is not raised. Default 1 */

    zero_transport transport;     /**< for ZERO_DEVICE_CUDA. Default: NCCL between processes */
    zero_nccl_memory nccl_memory; /**< default: none is registered */
    int32_t nccl_zero_cta; /**< 1: ask NCCL to gather parameters without the GPU's multiprocessors
                              where it can, by its copy engines (NCCL_CTA_POLICY_ZERO). Needs NCCL
                              2.28 or later and ZERO_NCCL_MEMORY_SYMMETRIC, without which it would
                              have no effect. Default 0 */
    zero_updater updater;  /**< for ZERO_DEVICE_CUDA; pieces that the CPU updates have at most
                              extent_bytes of state. Default: DEFAULT */

    uint64_t extent_bytes; /**< state on disk that is moved at once, a multiple of 4096, in
                             [4096, 2^40]. Default 8 MiB or, where host_budget_bytes is too small
                             for that, the next half that it suffices for, down to 256 KiB */
    uint32_t io_window; /**< ranges of optimizer state in memory at once: read, updated and written;
                           in [3, 64]. Each costs extent_bytes of host memory. PARAM and GRAD on
                           disk each have a window of one more, of such extents. Default 4, or 3
                           where host_budget_bytes is too small for that */
    uint32_t io_depth; /**< accesses of at most 2 MiB in flight for each directory, in [1, 1024]; at
                          most 1024 in all. Default 16 */
    const uint32_t *disk_weights; /**< disk_directory_count relative bandwidths, in any unit: state
                                     is striped over the directories in proportion, so that they end
                                     together. Each above 0 and at least about a 128th of the
                                     largest. Read while the engine is created. NULL: as
                                     measured then, by writing and reading 128 MiB on each disk,
                                     which takes 32 MiB of host memory and about 1.5 s a disk at
                                     most; all the same where that is not worth it: for less than
                                     1 GiB on disk, or one disk. zero_engine_disk_path tells */
    int32_t speculative_step; /**< 1: a step that was predicted (zero_step_predict) is updated while
                             backward runs. Needs MASTER, MOMENT1 and MOMENT2 on disk, which keeps
                             them twice, and host memory for this rank's part of the parameters.
                             Default 0 */
    int32_t disk_unchecked; /**< 1: believe what disks give back. By default all that is on disk has
                               checksums in host memory, 8 bytes for 64 KiB, planned with the I/O
                               window; bytes that are not what was written are ZERO_CORRUPT and are
                               not used. Ranks may differ. Default 0 */

    int32_t poison_released; /**< 1: check that parameters are used only while their unit is
                                acquired. zero_tensor_data then gives a copy in a place of the
                                unit's own, at every stage and on one rank too, which is NaN before
                                the first acquire and after the last release. A pointer that is used
                                too long gives NaN instead of a right or another unit's value. The
                                same on every rank; for debugging: it takes the memory of all
                                parameters once more and a copy at each acquire. Default 0 */
} zero_tuning;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_tuning_init_sized(zero_tuning *tuning, size_t struct_bytes);

/** Tuning with every field at its default, 0. */
static inline zero_tuning zero_tuning_init(void)
{
    zero_tuning tuning;
    zero_tuning_init_sized(&tuning, sizeof tuning);
    return tuning;
}

ZERO_END

#endif
