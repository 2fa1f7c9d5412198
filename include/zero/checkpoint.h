/** @file
 *  Checkpoints: the whole state of a run in a folder, and back at any world size.
 *
 *      zero_save_options save = zero_save_options_init();
 *      save.directory = "run";
 *      save.keep = 3;
 *      zero_save_begin(engine, &save);      // after a step; training goes on
 *      ... the next steps ...
 *      zero_save_end(engine);               // durable, or why not; the one before stays then
 *
 *      zero_load_options load = zero_load_options_init();
 *      load.path = "run";                   // its newest whole checkpoint
 *      zero_load(engine, &load, NULL);      // a new engine: other ranks, stage, types or tiers
 *
 *  A checkpoint is a folder of safetensors files, one for each role (parameters, masters, first and
 *  second moments) and a manifest; docs/checkpoint-format.md has every byte. Its parameter files
 *  are readable by any program that knows safetensors.
 *
 *  With options.model_parallel all ranks of the mesh save one checkpoint, which has all parts'
 *  boxes. Engines of any other mesh, or of the whole model, load what they need of it.
 *
 *  Each rank writes its own slice of every file, at a place that follows from the model alone. A
 *  checkpoint becomes visible under its name in one moment, when all of it is on the disk. What is
 *  torn or damaged is refused, with the file's name. One job at a time saves to a directory. */
#ifndef ZERO_CHECKPOINT_H
#define ZERO_CHECKPOINT_H

#include "zero/engine.h"
#include "zero/export.h"
#include "zero/status.h"
#include "zero/step.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** The caller's own numbers and bytes in a checkpoint. The library keeps them and reads none. */
typedef struct zero_checkpoint_user {
    uint64_t data_position;   /**< of the next step's data, in any unit */
    uint64_t random_seed;     /**< of the caller's own random numbers */
    uint64_t random_position; /**< how many of them were used */
    const void *bytes;        /**< anything else; NULL where bytes_count is 0 */
    uint64_t bytes_count;     /**< at most 1 MiB */
    uint64_t reserved[4];     /**< 0 */
} zero_checkpoint_user;

/** The content and the place of a save. It grows at its end. */
typedef struct zero_save_options {
    size_t struct_bytes;   /**< set by zero_save_options_init() */
    const char *directory; /**< of the run: it has one folder for each checkpoint. Made if its
                              parent exists. On a file system that all ranks see. From its first
                              save on until it is destroyed the engine owns it: another job's or
                              engine's save there is STATE, naming the owner. With params_only it
                              is owned until the save is over */
    const char *name;      /**< of the folder: letters, digits, '-', '_', '.'. NULL: "step-" and the
                              number of steps so far in eight digits */
    int32_t replace;       /**< 1: a checkpoint of this name is replaced in one moment. 0: it is an
                              error */
    int32_t refuse_busy;   /**< 1: STATE while another save is under way. 0: wait for that one */
    uint32_t keep;         /**< once this one is durable, keep so many of its kind (params_only, or
                              not) in the directory: those that were committed last, this one
                              included. A thread removes the others until the next save begins
                              or the engine is destroyed. 0: all */
    int32_t params_only; /**< 1: parameters as they are, and nothing else: weights, which zero_load
                            takes with its params_only. They are not the run's newest: load them by
                            name. 0: all of the state */
    const zero_step_params *params; /**< the last step's, to be kept with it; NULL: none. zero_load
                                       does not use them */
    zero_checkpoint_user user;      /**< rank 0's is kept, of the first part */
    int32_t reflink;  /**< 1: pages of state on disk are shared with the checkpoint's files, and not
                         written again, where the file system can (XFS, Btrfs), the run's directory
                         is on it, and they lie alike in the store and in the file: a tensor's part
                         of 256 KiB or more that begins at a page of both. For that set
                         tuning.extent_bytes to a multiple of 48 KiB, such as 12 MiB. All else is
                         copied, and the log says so where the file system refuses. The next update
                         writes to other blocks of the disk: it needs as many bytes free as were
                         shared. These are free when the save ends; where others take them, the
                         update fails with IO. 0: all is copied */
    int32_t reserved; /**< 0 */
} zero_save_options;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_save_options_init_sized(zero_save_options *options, size_t struct_bytes);

/** Nothing set but the size. */
static inline zero_save_options zero_save_options_init(void)
{
    zero_save_options options;
    zero_save_options_init_sized(&options, sizeof options);
    return options;
}

/** How far a save is, on this rank. It grows at its end. */
typedef struct zero_save_progress {
    size_t struct_bytes;   /**< set by zero_save_progress_init() */
    int32_t active;        /**< 1: from zero_save_begin until zero_save_end */
    int32_t written;       /**< 1: this rank has nothing more to write, or has failed: zero_save_end
                              waits for other ranks only */
    uint64_t bytes;        /**< that this rank writes in all */
    uint64_t staged_bytes; /**< of these, copied out of the engine: the next step may overwrite
                              them */
    uint64_t written_bytes; /**< of these, given to the file system */
    uint64_t staged_ns;     /**< how long the engine's step stream worked on copies so far */
    zero_status result;     /**< of this rank's slices so far: ZERO_OK, or how it has failed.
                               zero_save_end says why, and speaks for all ranks */
    int32_t reserved;       /**< 0 */
    uint64_t shared_bytes;  /**< of written_bytes, those that share blocks of the file system with
                               state on disk: see reflink */
} zero_save_progress;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_save_progress_init_sized(zero_save_progress *progress, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_save_progress zero_save_progress_init(void)
{
    zero_save_progress progress;
    zero_save_progress_init_sized(&progress, sizeof progress);
    return progress;
}

/** Begin to save the state after the last step. It returns once all ranks agree on the folder; the
 *  copy is enqueued, and later calls on the engine do not change what is saved.
 *
 *  The state is copied to staging memory of the host, and threads write it from there. Copies run
 *  on the engine's step stream: forward and backward go on meanwhile, and the next zero_step's
 *  update waits for them. tuning.save_staging_bytes is the memory: where it holds this rank's share
 *  of the state, the update waits for copies alone, else for the disk as well. Plans have it as
 *  the role SAVE_STAGING. On a GPU whose streams have no thread that issues (no disk tier, no
 *  updates on the CPU, NCCL) the call returns once all is copied.
 *
 *  With options.model_parallel tensors of one name in several parts are boxes of one: they have one
 *  global_shape and no element in common. Copies that `replica` numbers are not written, copy 0 is.
 *  - Collective over the world and options.model_parallel: between steps, every rank with the same
 *    options but `user`. `params` may differ between parts, which are saved with their own.
 *  - Errors: INVALID_ARGUMENT, also for parts that do not fit together, naming both; STATE inside
 *    a micro-step, while a step is due, while roles are evicted, and with refuse_busy; STATE where
 *    the name is taken, and where the directory has another owner: a process that is named, on
 *    another host perhaps. One of another host that may be dead is watched for 20 s; IO with the
 *    path. No rank saves then, and the engine is as it was. */
ZERO_API ZERO_MUST_CHECK zero_status zero_save_begin(zero_engine *engine,
                                                     const zero_save_options *options);

/** How far this rank is. Local call, no waiting.
 *  - progress: in: struct_bytes; out: the rest, as far as the struct goes.
 *  - Errors: INVALID_ARGUMENT. */
ZERO_API ZERO_MUST_CHECK zero_status zero_save_poll(const zero_engine *engine,
                                                    zero_save_progress *progress);

/** Wait until the save is durable: all files, the manifest and the folder's name are on the disk.
 *  - Collective over the world and options.model_parallel, any time after zero_save_begin. Where no
 *    save is under way it returns at once.
 *  - Errors: IO with the path where a rank could not write, for example because the disk is full;
 *    the other ranks get IO that names it. The checkpoint is not there then, the ones before are,
 *    and training goes on. COMM, TIMEOUT. */
ZERO_API ZERO_MUST_CHECK zero_status zero_save_end(zero_engine *engine);

/** zero_save_begin and zero_save_end. Large tensors in host memory are written from where they are,
 *  without staging. */
ZERO_API ZERO_MUST_CHECK zero_status zero_save(zero_engine *engine,
                                               const zero_save_options *options);

/** The source and the content of a load. It grows at its end. */
typedef struct zero_load_options {
    size_t struct_bytes; /**< set by zero_load_options_init() */
    const char *path;    /**< a run's directory or a checkpoint's folder. For parameters only also a
                            safetensors file, its index, or a folder with model.safetensors */
    const char *name;    /**< which checkpoint of a run's directory; NULL: the whole one that was
                            committed last, other than weights alone if there is one. Where the
                            last one is not whole, report and log say why */
    const char *prefix;  /**< that the file's names of tensors have ahead of the model's, for
                            example "transformer."; NULL: nothing */
    int32_t params_only; /**< 1: parameters and masters. Moments and the step's state become those
                            of a new run */
    int32_t partial;     /**< 1: tensors that are missing or do not match stay as they are, and
                            those that the engine does not have are ignored; the report lists all.
                            The moments of one hyper-parameter group are of the same updates:
                            where some of its trained tensors are loaded and others are not, give
                            these another group, or set params_only. Where no trained tensor is
                            loaded, the step's state stays the engine's own.
                            0: any of them is an error, and nothing is loaded */
    int32_t reflink;     /**< 1: state on disk shares pages with the checkpoint's files, and is not
                            written, where the file system can and it lies alike, as
                            zero_save_options.reflink says. It is read and compared with its sums
                            all the same. The first update writes to other blocks of the disk. The
                            store's own are free until then; where others take them, the update
                            fails with IO. 0: all is written */
    int32_t refuse_overflow; /**< 1: finite values that are beyond the range of the engine's type
                                are an error, INVALID_ARGUMENT, once all is read; the engine is
                                poisoned then. 0: they become infinite, and rank 0 logs a warning
                                with their number and the first of them */
    int32_t if_any;   /**< 1: where path is a run's directory without a whole checkpoint, or is not
                         there, the call is OK and nothing changes; the report's folder is empty.
                         For jobs that are started again by the same command. Not with a name, and
                         a checkpoint that is there but damaged is an error as ever. 0: an error */
    int32_t reserved; /**< 0 */
} zero_load_options;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_load_options_init_sized(zero_load_options *options, size_t struct_bytes);

/** Nothing set but the size. */
static inline zero_load_options zero_load_options_init(void)
{
    zero_load_options options;
    zero_load_options_init_sized(&options, sizeof options);
    return options;
}

/** The outcome of a load. It grows at its end. */
typedef struct zero_load_report {
    size_t struct_bytes;  /**< set by zero_load_report_init() */
    uint64_t step;        /**< steps of the saved run, skipped ones included */
    uint64_t read_bytes;  /**< that this rank read */
    uint32_t world;       /**< ranks that saved; 0: weights alone */
    uint32_t loaded;      /**< tensors that were found in every role that the engine has of them */
    uint32_t missing;     /**< tensors of the engine of which anything is not there */
    uint32_t unexpected;  /**< tensors there that no part of the engine's model has */
    uint32_t mismatching; /**< tensors of another shape; of boxes, of another global shape */
    uint32_t user_bytes_count; /**< of the caller's bytes; more than user_room were cut off */
    uint64_t data_position;    /**< as in zero_checkpoint_user */
    uint64_t random_seed;      /**< likewise */
    uint64_t random_position;  /**< likewise */
    void *user_bytes;          /**< in: where the caller's bytes go; NULL: nowhere */
    uint64_t user_room;        /**< in: bytes there */
    char list[2048];       /**< missing, unexpected and mismatching tensors by name, a line each, as
                              many as fit; then what overflowed */
    char folder[1024];     /**< that was loaded, as far as it fits */
    uint64_t shared_bytes; /**< of state on disk, those that share blocks of the file system with
                              the checkpoint: see reflink */
    char passed_over[256]; /**< of a run's directory without a name: why the checkpoint that was
                              committed last was not taken; empty where it was */
    uint64_t overflowed;   /**< finite values that became infinite, on all ranks of the engine's
                              world: see refuse_overflow */
} zero_load_report;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_load_report_init_sized(zero_load_report *report, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_load_report zero_load_report_init(void)
{
    zero_load_report report;
    zero_load_report_init_sized(&report, sizeof report);
    return report;
}

/** Set the engine's state from a checkpoint, whatever world, stage, types, tiers and model-parallel
 *  parts it was saved with. Each rank reads the ranges that it holds by four threads, through at
 *  most 57 MiB of host memory, and past the page cache what no other rank reads
 *  (docs/checkpoints.md). Of a box of a tensor it reads ranges of elements from the boxes that were
 *  saved; ranges that are less than 4096 bytes apart are read with what is between them.
 *
 *  Values of another type are rounded to nearest even. PARAM is read from the saved parameter where
 *  the types are equal, else from the most exact copy there is: master, then parameter. MASTER
 *  likewise the other way around. States in remainders or codes (docs/small-states.md) are loaded
 *  as they are into an engine of the same kinds, codes of boxes into the same boxes. Else values go
 *  through fp32, PARAM and MASTER from the saved master, and moments are rounded to the nearest
 *  codes. The loss scale goes on as it was saved, unless the engine's own never changes, or changes
 *  where the saved one never did: then it is options.loss_scale.
 *  - report: NULL, or in: struct_bytes, user_bytes and user_room; out: the rest. Filled in as far
 *    as possible also when tensors do not match.
 *  - Collective over the world and options.model_parallel, between steps; every rank with the same
 *    options.
 *  - Errors: INVALID_ARGUMENT that lists the first missing, unexpected and mismatching tensors, for
 *    a path that has no whole checkpoint, for one that only has parameters without params_only,
 *    where a group would have tensors whose moments are of different updates or betas, and for
 *    another options.seed than the saved one where both runs round stochastically, unless the load
 *    is partial or of parameters only; with refuse_overflow for values out of range;
 *    CORRUPT naming file, tensor and offset; IO; UNSUPPORTED for a newer format;
 *    STATE as for zero_shard_write. Until tensors are read the engine is as it was; after
 *    a later failure it is poisoned, so that nobody trains on half a state. */
ZERO_API ZERO_MUST_CHECK zero_status zero_load(zero_engine *engine,
                                               const zero_load_options *options,
                                               zero_load_report *report);

ZERO_END

#endif
