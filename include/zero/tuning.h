/** @file
 *  Options that only a few runs need: how far to prefetch, the types that ranks exchange, how disks
 *  and GPUs are driven. Zero is the default everywhere. */
#ifndef ZERO_TUNING_H
#define ZERO_TUNING_H

#include "zero/dtype.h"
#include "zero/export.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** How gradients of several ranks are added. docs/tuning.md has what each sends between hosts. */
typedef enum zero_reduction {
    ZERO_REDUCTION_DEFAULT = 0, /**< in fp32 and a fixed order: the ranks of each host, whose sum is
                                   sent in accum_dtype or, where it is given, wire_dtype, then the
                                   hosts. The same as EXACT on one host, and where hosts have
                                   different numbers of ranks */
    ZERO_REDUCTION_EXACT = 1, /**< in rank order, in fp32, rounded once: the same bits on every run,
                                 backend and number of hosts. Sends more between hosts */
    ZERO_REDUCTION_NATIVE = 2 /**< by NCCL's or MPI's reduce-scatter and all-reduce, in wire_dtype
                                 or, without it, accum_dtype, rounded and ordered as these do; the
                                 switches that they know may add. MPI adds fp32 alone: the rest is
                                 as DEFAULT, as is all where ranks read one another's memory. Over
                                 NCCL it takes a gradient slot more and larger scratch memory */
} zero_reduction;

/** The degree at which the gradients of several micro-steps are added. */
typedef enum zero_accumulation {
    ZERO_ACCUMULATION_DEFAULT = 0, /**< at the degree of sharding the stage gives to gradients */
    ZERO_ACCUMULATION_LOCAL = 1 /**< whole gradients on every rank, reduced once, at the boundary:
                                   less traffic, more memory */
} zero_accumulation;

/** The transport between GPUs of ranks that are processes. Ranks that are threads of one process
 *  read one another's memory. Host memory is not affected. */
typedef enum zero_transport {
    ZERO_TRANSPORT_DEFAULT = 0, /**< NCCL; nothing where it is not needed */
    ZERO_TRANSPORT_NCCL = 1, /**< NCCL 2.22 or later, loaded as libnccl.so.2; needs a GPU for each
                                rank */
    ZERO_TRANSPORT_HOST = 2, /**< through host memory, and MPI between hosts: slow, any number of
                                ranks on a GPU */
    ZERO_TRANSPORT_PEER = 3  /**< the GPUs read one another's memory; ranks are threads of one
                                process. An engine of such ranks chooses it by default; a plan
                                cannot know, so set it there */
} zero_transport;

/** How NCCL reaches the memory that gathers and reductions read and write. Only for ranks that are
 *  processes over NCCL; elsewhere anything but NONE is refused, and so is what the loaded NCCL
 *  lacks. The plan counts this memory; like cudaMalloc, NCCL rounds each role up to pages of the
 *  GPU, by at most a few MiB. */
typedef enum zero_nccl_memory {
    ZERO_NCCL_MEMORY_NONE = 0,       /**< NCCL copies through buffers of its own where it must */
    ZERO_NCCL_MEMORY_REGISTERED = 1, /**< from ncclMemAlloc, registered with each communicator that
                                        uses it: as windows (ncclCommWindowRegister) where NCCL is
                                        2.28 or later and the GPUs of all ranks map one another's
                                        memory, symmetric ones where all ranks use equal offsets;
                                        else as buffers (ncclCommRegister), and then steps cannot
                                        be captured (zero/capture.h). The ranks agree, and
                                        zero_engine_path says which it is. Units of similar size
                                        use the slots round-robin, so at most param_slots
                                        consecutive ones can be acquired at once */
} zero_nccl_memory;

/** The processor that updates state in host memory where the device is a GPU. The bits are the
 *  same. */
typedef enum zero_updater {
    ZERO_UPDATER_DEFAULT = 0, /**< the GPU; the CPU what is on disk */
    ZERO_UPDATER_GPU = 1,     /**< the GPU's, in staging buffers that its copy engines fill */
    ZERO_UPDATER_CPU = 2,     /**< the CPU's; only gradients and parameters go over the bus */
    ZERO_UPDATER_BOTH = 3 /**< the GPU updates units from the first on, the CPU from the last on,
                             until none is left: each as many as it is fast */
} zero_updater;

/** Tuning of a plan and an engine, zero_engine_options.tuning. Fill with zero_tuning_init(), then
 *  assign. It grows at its end; fields that an older caller's struct lacks are 0. */
typedef struct zero_tuning {
    size_t struct_bytes; /**< set by zero_tuning_init(); tells the library the caller's version */

    uint32_t grad_group;      /**< ranks that a gradient is split over; a multiple of
                                 options.shard_group. 0: as the stage says, at most shard_group
                                 where that is given */
    uint32_t optimizer_group; /**< the same for optimizer state; a multiple of grad_group. 0:
                                 likewise */

    zero_dtype wire_dtype;    /**< type that ranks exchange when gradients are reduced. Sums in it
                                 are rounded to it; in F16 they are divided by a power of two
                                 before, so that no finite mean overflows. INT8_BLOCK: 1.02 bytes an
                                 element, rounded stochastically; sums are made in fp32. Default: a
                                 gradient of one micro-step goes in its own type, a sum in
                                 accum_dtype */
    zero_dtype gather_dtype;  /**< type that ranks exchange when they gather parameters. Ranks round
                                 once, to nearest, what they send, and compute all with the same
                                 values, in the tensor's type. Before a unit is used, of parameters
                                 that are split over ranks: BF16 or F16 those in fp32; MXFP8 or
                                 INT8_BLOCK all, in 1.03 or 1.02 bytes an element; the shards keep
                                 all their bits. After an update, of parameters that are split over
                                 fewer ranks than optimizer state, as at stages 1 and 2: MXFP8 or
                                 INT8_BLOCK those with masters in fp32, whose shards then have the
                                 rounded values and whose masters keep all bits. The first step that
                                 is skipped rounds what was filled, the next change no bit. Tensors
                                 in fp32, each its own master, go as they are after an update.
                                 UNSUPPORTED for other masters of bf16 and f16, and where only fp32
                                 is gathered so. Nothing is rounded that crosses no ranks.
                                 Default: their own type */
    zero_dtype accum_dtype;   /**< sums over ranks and micro-steps, F32 or BF16. Default: F32 */
    zero_reduction reduction; /**< default: the backend's own */
    zero_accumulation accumulation; /**< default: sharded as the stage says */

    uint32_t param_slots; /**< slots per class of unit sizes that gathers go to, in [1, 64].
                             Default 3. Costs one unit of memory each */
    uint32_t
        grad_slots; /**< slots per class of bucket sizes for gradients, in [1, 64]. Default 2 */
    uint32_t look_ahead;   /**< units gathered ahead of the one in use, in [1, 63]; no_prefetch
                              turns it off. Default 1 */
    int32_t no_prefetch;   /**< 1: gather a unit only when it is acquired. Default 0 */
    uint64_t bucket_bytes; /**< neighbouring units share a bucket until it has this many bytes of
                              gradient; 1 gives every unit its own, as one that others tie to
                              has anyway. Default 1 MiB */

    int32_t loss_scale_static;      /**< 1: never change the loss scale. Default 0; without loss
                                       scaling it has no effect */
    uint32_t loss_scale_window;     /**< steps without overflow before it doubles. Default 2000 */
    uint32_t loss_scale_hysteresis; /**< overflows in a row from which on each halves it. Default
                                       1 */
    float loss_scale_min; /**< floor of the loss scale; a first scale below it is not raised.
                             Default 1 */

    zero_transport transport;     /**< for ZERO_DEVICE_CUDA. Default: NCCL between processes */
    zero_nccl_memory nccl_memory; /**< default: none is registered */
    int32_t nccl_zero_cta; /**< 1: ask NCCL to gather parameters by copy engines instead of the
                              GPU's multiprocessors (NCCL_CTA_POLICY_ZERO). Needs NCCL 2.28 or
                              later and windows, see ZERO_NCCL_MEMORY_REGISTERED. Default 0 */
    zero_updater updater;  /**< for ZERO_DEVICE_CUDA; the CPU updates at most extent_bytes of
                              state at once. Default: DEFAULT */

    uint64_t extent_bytes; /**< largest extent, the bytes on disk that are moved at once: a
                              multiple of 4096 in [4096, 2^40]. Default 8 MiB, halved until the
                              windows fit into host_budget_bytes, down to 256 KiB */
    uint32_t io_window;    /**< extents of optimizer state in host memory at once, being read,
                              updated or written; in [3, 64]. PARAM and GRAD on disk have
                              windows of their own, of one extent more. Default 4, or 3 if
                              host_budget_bytes is too small for that */
    uint32_t io_depth; /**< accesses of at most 2 MiB in flight for each directory, in [1, 1024];
                          at most 1024 in all. Default 16 */
    const uint32_t *disk_weights; /**< disk_directory_count stripe weights: relative bandwidths of
                                     the directories, in any unit, each at least about a 128th
                                     of the largest. Read while the engine is created. NULL:
                                     bandwidths are measured then, by writing and reading 128
                                     MiB on each disk, which takes 32 MiB of host memory and at
                                     most about 1.5 s a disk. For less than 1 GiB on disk, or
                                     one disk, stripes are equal and nothing is measured.
                                     zero_engine_disk_path reports them */
    int32_t speculative_step;     /**< 1: a predicted step (zero_step_predict) is computed
                                     speculatively during backward. Needs MASTER, MOMENT1 and
                                     MOMENT2 on disk, which then holds them twice, and host
                                     memory for this rank's shard of the parameters. Default 0 */
    int32_t disk_unchecked;       /**< 1: no checksums. By default checksums of all that is on
                                     disk are in host memory, 8 bytes for 64 KiB, planned with
                                     the I/O window. Bytes that differ from what was written are
                                     ZERO_ERR_CORRUPT and are not used. Ranks may differ.
                                     Default 0 */

    int32_t poison_released; /**< 1, for debugging: parameters read as NaN unless their unit is
                                acquired, at every stage and on any number of ranks. Views are
                                then of two copies that each unit has for itself and takes in
                                turn, so a pointer of an earlier acquire reads NaN too. This takes
                                the memory of all parameters twice more and a copy at each
                                acquire. Default 0 */

    uint32_t trace_events; /**< spans that the engine's timeline keeps, the newest, for
                              zero_engine_trace: in [4096, 16777216], 64 bytes of host memory
                              each. A step of n units has about 12 n. Default 0: no timeline */

    uint64_t save_staging_bytes; /**< host memory, at least 32 MiB, that zero_save_begin copies
                                    this rank's share of the state to. Where it holds all of that,
                                    steps wait for the copy alone, else for the disk too. It is
                                    taken by zero_engine_create and planned as SAVE_STAGING.
                                    Default 0: at most 32 MiB, taken while a save is under way
                                    only, and not planned */

    const char *hang_directory; /**< an existing directory, where a rank writes its last collectives
                                   when one of them fails, for `zero trace hang`; the error's
                                   message names the file. Read while the engine is created. Ranks
                                   may differ. NULL: nothing is written, and the messages of TIMEOUT
                                   and MISMATCH name this option */

    int32_t left_out_at_once; /**< 1: a unit that backward goes past in the recorded order, before
                                 the first step in the order of its description, counts as left
                                 out then, and its gradient can no longer be acquired; so does one
                                 whose parameters alone were acquired there, once backward goes on
                                 to another unit. So ranks that leave units out put the collectives
                                 of all groups on their streams in one order, however few
                                 connections to their GPU those share. Default 0: only when gradient
                                 slots run out */

    /* Settings of NCCL for each of the engine's communicators. For ZERO_DEVICE_CUDA over NCCL;
     * without any of them NCCL chooses by itself, or by its environment variables. */
    uint32_t nccl_min_ctas;      /**< fewest thread blocks of a collective, in [1, 64]: minCTAs */
    uint32_t nccl_max_ctas;      /**< most, in [1, 64], each of which takes a multiprocessor from
                                    the trainer while it waits: maxCTAs */
    uint32_t nccl_traffic_class; /**< of what goes over the network, in [1, 255]: trafficClass.
                                    Needs NCCL 2.27 */
    const char *nccl_net_name;   /**< network of NCCL's own or of a plugin, such as "IB" or
                                    "Socket": netName. Read while the engine is created */

    int32_t broadcast_initial; /**< 1: initial values are rank 0's on all ranks of the engine's
                                  world: zero_engine_create reads only its `initial` arrays, and
                                  zero_engine_fill calls only its function. Elements pass between
                                  ranks as two floats each, and no rank holds more than 16384 of
                                  them besides its shards. Default 0: each rank takes its own, and
                                  ranks that differ are told */

    int32_t host_overcommit; /**< 1: zero_engine_create takes memory even where the plans of the
                                ranks that share a host or a cgroup are together larger than what
                                it has left, so the kernel may swap, throttle or kill them.
                                Default 0: OUT_OF_MEMORY with the shortfall */

    int32_t check_added; /**< 1, for debugging: the engine's first micro-step finds gradients that
                            are assigned instead of added, or cleared first, and names the first
                            such tensor in a warning by rank 0 (zero/log.h). The first element of
                            each tensor's gradient is then 5.0e33 (F16: 30576) while it is acquired,
                            and counts as 0 in that micro-step; each release waits for its stream.
                            Host memory of a byte a tensor is held until the micro-step ends. A
                            micro-step that is captured is not checked. Default 0 */

    zero_dtype host_wire_dtype; /**< type that hosts exchange sums of gradients in: INT8_BLOCK, 1.02
                                   bytes an element, or INT4_BLOCK, 0.52, rounded stochastically.
                                   The ranks of a host add up before, in wire_dtype; where they
                                   cannot, as in a group with one rank of each host, each rank
                                   sends in this type. On one host it changes nothing. An
                                   all-reduce, as of stage 0, brings complete sums back in
                                   accum_dtype. Not with
                                   ZERO_REDUCTION_EXACT or NATIVE. Default: as wire_dtype says */

    int32_t encoded_views; /**< 1, experimental: while a unit is acquired its parameters are codes
                              and scales of gather_dtype, which zero_tensor_encoded gives
                              (zero/encoded.h); zero_tensor_data is refused. Slots are about half as
                              large as with bf16, and gathers decode nothing. For stage 3,
                              gather_dtype MXFP8 or INT8_BLOCK, and parameters in the device's
                              memory. Default 0 */
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
