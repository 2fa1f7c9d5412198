/** @file
 *  How a model is sharded, in which types, and with how much memory. Zero is the default everywhere
 *  but in `stage`, which counts ZeRO's stages. What only a few runs need to set is in
 *  zero/tuning.h; docs/options.md lists both. */
#ifndef ZERO_OPTIONS_H
#define ZERO_OPTIONS_H

#include "zero/dtype.h"
#include "zero/export.h"
#include "zero/role.h"
#include "zero/tuning.h"
#include "zero/world.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** The states that are split over the ranks (Rajbhandari et al., "ZeRO", 2020, section 5). A value
 *  is the stage's number, so that a bare 0 to 3 means it too; any other is refused. */
typedef enum zero_stage {
    ZERO_STAGE_0 = 0, /**< nothing: plain data parallelism */
    ZERO_STAGE_1 = 1, /**< optimizer state */
    ZERO_STAGE_2 = 2, /**< optimizer state and gradients */
    ZERO_STAGE_3 = 3  /**< optimizer state, gradients and parameters */
} zero_stage;

/** The update of an element. zero/step.h has each one's formula and numbers. */
typedef enum zero_optimizer {
    ZERO_OPTIMIZER_DEFAULT = 0,  /**< AdamW */
    ZERO_OPTIMIZER_ADAMW = 1,    /**< two moments: Loshchilov and Hutter, "Decoupled weight decay
                                    regularization", 2019, algorithm 2 */
    ZERO_OPTIMIZER_CALLBACK = 2, /**< the caller's own, see zero_update_fn; not on a GPU */
    ZERO_OPTIMIZER_LION = 3,     /**< one moment: Chen et al., "Symbolic discovery of optimization
                                    algorithms", 2023, algorithm 2 */
    ZERO_OPTIMIZER_SGD = 4,      /**< one moment: SGD with momentum, as PyTorch's torch.optim.SGD */
    ZERO_OPTIMIZER_LAMB = 5,     /**< two moments, rates by tensor: You et al., "Large batch
                                    optimization for deep learning", 2019, algorithm 2. Refused with
                                    a role on disk and with several parts of a model
                                    (docs/decisions/133) */
    ZERO_OPTIMIZER_LARS = 6      /**< one moment, rates by tensor: You et al., "Large batch training
                                    of convolutional networks", 2017, algorithm 1. Likewise */
} zero_optimizer;

/** Hyper-parameter groups (zero_tensor_desc.group), at most. */
#define ZERO_STEP_GROUPS 64

/** The device that holds shards and slots, and computes with them. */
typedef enum zero_device {
    ZERO_DEVICE_DEFAULT = 0, /**< the CPU */
    ZERO_DEVICE_CPU = 1,     /**< host memory, threads of the library */
    ZERO_DEVICE_CUDA = 2     /**< the GPU that is current (cudaSetDevice) on the thread that
                                creates the engine; see zero/cuda.h */
} zero_device;

/** Some elements of a tensor, for the caller's own element-wise optimizer. All pointers are host
 *  memory, fp32, `count` elements, valid during the call only. The library fills it; it grows at
 *  its end. */
typedef struct zero_update_range {
    size_t struct_bytes; /**< bytes that the library has filled */
    uint32_t tensor;     /**< index in the model */
    uint64_t first;      /**< index of the first element in the tensor */
    size_t count;        /**< elements, at most 4096 */
    uint64_t step;       /**< number of this update, from 1; skipped steps do not count */
    uint32_t group;      /**< hyper-parameter group of the tensor */
    uint32_t flags;      /**< zero_tensor_flags of the tensor */
    float *param;        /**< in: value; out: updated value */
    const float *grad;   /**< mean gradient, unscaled and clipped */
    float *moment1;      /**< in and out; NULL when update_states < 1 */
    float *moment2;      /**< in and out; NULL when update_states < 2 */
} zero_update_range;

/** The caller's own element-wise optimizer. Called from several of the engine's threads at once, on
 *  ranges that do not overlap. It may depend on its arguments and read-only state only; otherwise
 *  the result depends on how the model is sharded. It must return (zero/engine.h, Callbacks). */
typedef void (*zero_update_fn)(void *user, const zero_update_range *range);

/** Memory of a GPU for an engine: `bytes` bytes on GPU `device`, a number of cudaGetDevice, which
 * is current during the call. NULL: there is none, and the call that needed it is OUT_OF_MEMORY.
 *  - bytes: a multiple of 4096, at least one. Asked for once for each role on the device; the sum
 *    is the plan's bytes of ZERO_TIER_DEVICE.
 *  - The pointer is a multiple of 256 and lies in memory of that GPU, else it is given back and
 *    the call is INVALID_ARGUMENT. What it holds does not matter. Work that is on the GPU's streams
 *    already may still use it: the engine waits for all of that before it writes. Where ranks are
 *    threads their GPUs read it too, so it comes from cudaMalloc then, not from mapped segments.
 *  - Ownership: the engine's until zero_device_free_fn. It must not be moved or freed before.
 *  - Threads: the one that calls zero_engine_create or zero_engine_restore, in that call. Ranks
 * that are threads call at once. It must return, and must not call the engine (zero/engine.h,
 *    Callbacks). */
typedef void *(*zero_device_alloc_fn)(void *user, size_t bytes, int32_t device);

/** Take back what zero_device_alloc_fn gave, with the same bytes and device. The engine's work on
 * it has ended, and it can be used on any stream at once.
 *  - Threads: the one that calls zero_engine_destroy, zero_engine_evict, or a create or restore
 * that fails, in that call. Each pointer once, also after errors. `device` is current unless the
 * GPU has failed. */
typedef void (*zero_device_free_fn)(void *user, void *pointer, size_t bytes, int32_t device);

/** Options of a plan and an engine: what users set. Everything else is in zero_tuning, with
 *  defaults that fit most runs. Fill with zero_engine_options_init(), then assign; or zero all of
 * it and say the stage, since 0 is stage 0. It grows at its end; fields that an older caller's
 * struct lacks are 0. */
typedef struct zero_engine_options {
    size_t struct_bytes; /**< set by zero_engine_options_init(); tells the library the caller's
                            version. 0, as all of zero_tuning and of the options of saves, loads
                            and simulations may be: the first release's */

    zero_stage stage;     /**< zero_engine_options_init() sets ZERO_STAGE_3 */
    uint32_t shard_group; /**< ranks that parameters are split over at stage 3 (hybrid when
                             smaller than the world; replicas across). Divides the world. At
                             stages 1 and 2 the default of tuning's grad_group and
                             optimizer_group. 0: the whole world */
    zero_device device;   /**< default: the CPU */

    zero_dtype grad_dtype;   /**< type that backward writes. Default: the tensor's own type */
    zero_dtype master_dtype; /**< F32; REMAINDER16 or REMAINDER8: what a bf16 parameter leaves of
                                its master, which its update reads with it (docs/small-states.md);
                                or NONE: update low-precision parameters in place with stochastic
                                rounding. fp32 parameters are their own master, f16 ones have no
                                remainder. Default: F32 */
    zero_dtype moment_dtype; /**< F32, BF16 (stochastic rounding), or I8: codes of 8 bits with a
                                scale for 32 neighbours (the same; not with CALLBACK). Default:
                                F32 */

    zero_optimizer optimizer; /**< of all groups that group_optimizer leaves open. Default: AdamW */
    uint32_t update_states;   /**< moments that update uses, in [0, 2]; CALLBACK only */
    zero_update_fn update;    /**< the update; required by ZERO_OPTIMIZER_CALLBACK */
    void *update_user;        /**< handed to update */

    zero_tier tier[ZERO_ROLE_COUNT_MAX]; /**< by zero_role, where its bytes live. Any mix of those
                                            with shards, PARAM to MOMENT2; 0 for all others. Scales
                                            lie where their moments do. With
                                            tuning's nccl_memory PARAM and GRAD stay on the device.
                                            Default: DEVICE */
    const char *const *disk_directories; /**< existing directories for roles on disk, striped over
                                            all of them by tuning's disk_weights. Ranks may
                                            share them; two on one file system share its disk.
                                            Needed with a role on disk, and for
                                            zero_engine_evict to ZERO_TIER_DISK. Read while the
                                            engine is created; relative paths are resolved when
                                            they are used */
    uint32_t disk_directory_count;       /**< at most 16 */

    uint32_t threads; /**< threads of this rank's CPU kernels, in [1, 256]. 0: zero_world_cpus, at
                         most 256 */

    uint64_t device_budget_bytes; /**< refuse a plan that needs more per rank. 0: no budget */
    uint64_t host_budget_bytes;   /**< the same of host memory for roles on that tier and the I/O
                                     window. 0: no budget */
    uint64_t disk_budget_bytes;   /**< the same of disk. 0: no budget */

    uint64_t seed; /**< key of stochastic rounding. Default 0 */

    float loss_scale; /**< first loss scale. 0: 65536 when a trained parameter or grad_dtype is
                         F16, else 1 (off) */

    zero_world *model_parallel; /**< the ranks that train on the same samples and hold the other
                                   parts of the model (tensor x pipeline); the engine's world is
                                   then the ranks that hold this part. Norm, clipping, skipping
                                   and the loss scale are decided over both worlds, alike on all
                                   ranks of the mesh. All its ranks have the same rank in engine
                                   worlds of one size. Any backend. It outlives the engine.
                                   NULL, or one rank: the model is in one part. Default NULL */

    const zero_tuning *tuning; /**< NULL: all defaults. Read before the call returns */

    zero_device_alloc_fn device_alloc; /**< takes the GPU's memory from the caller, for example from
                                          a pool that other parts of the program share. With
                                          device_free; ZERO_DEVICE_CUDA only, and not with tuning's
                                          nccl_memory, whose memory is NCCL's. NULL: cudaMalloc */
    zero_device_free_fn device_free;   /**< gives it back */
    void *device_memory_user;          /**< handed to both */

    const char
        *disk_path; /**< disk_directories as one text, separated by ':' as in PATH, for command
                       lines and files (zero/option.h). Copied while the engine is created.
                       Not with disk_directories or tuning's disk_weights. Default NULL */

    zero_optimizer group_optimizer[ZERO_STEP_GROUPS]; /**< by zero_tensor_desc.group: what updates
                                                         the group's tensors. DEFAULT: `optimizer`
                                                       */
} zero_engine_options;

/** Set every field to its default: stage 3, and 0 in all others. For languages without C's inline
 *  functions; in C call zero_engine_options_init(). Never fails.
 *  - options: out; NULL: nothing is done.
 *  - struct_bytes: size of the caller's struct; no more is written. Fields that this library does
 *    not know become 0. Less than sizeof(size_t): nothing is done.
 *  - Local call.
 *  - Threads: any. */
ZERO_API void zero_engine_options_init_sized(zero_engine_options *options, size_t struct_bytes);

/** Options with every field at its default: stage 3, and 0 in all others. */
static inline zero_engine_options zero_engine_options_init(void)
{
    zero_engine_options options;
    zero_engine_options_init_sized(&options, sizeof options);
    return options;
}

ZERO_END

#endif
