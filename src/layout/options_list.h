/* Every option of an engine, once. Defaults, bounds and their messages, what ranks compare, the
 * plan's list of options, command lines (zero/option.h) and docs/options.md are all made from this.
 *
 * X(where, field, kind, low, high, value, ranks, fallback, text)
 *   where     options or tuning: the struct that has the field
 *   kind      how it is read and checked, see zero_option_kind; CHOICE, TIERS and GROUPS name their
 *             values
 *   low, high bounds of a value that is not 0; of REAL they are not used
 *   value     what 0 stands for; 0: itself, or what depends on the model, the world or the machine
 *   ranks     SAME or OWN: whether all ranks must give the same
 *   fallback  the default in words
 *   text      one line for people; the header says the rest */
#ifndef ZI_LAYOUT_OPTIONS_LIST_H
#define ZI_LAYOUT_OPTIONS_LIST_H

#define ZI_U32_MAX 4294967295u
#define ZI_ANY UINT64_MAX

#define ZI_OPTIONS_LIST(X)                                                                         \
    X(options, stage, CHOICE(stages), 0, 0, 0, SAME, "3",                                          \
      "what is split over the ranks: ZeRO's stage")                                                \
    X(options, shard_group, COUNT, 1, ZI_U32_MAX, 0, SAME, "the whole world",                      \
      "ranks that parameters are split over at stage 3; divides the world")                        \
    X(options, device, CHOICE(devices), 0, 0, ZERO_DEVICE_CPU, SAME, "cpu",                        \
      "where shards and slots live, and what computes with them")                                  \
    X(options, grad_dtype, CHOICE(float_types), 0, 0, 0, SAME, "the tensor's own",                 \
      "type that backward writes gradients in")                                                    \
    X(options, master_dtype, CHOICE(master_types), 0, 0, ZERO_DTYPE_F32, SAME, "f32",              \
      "type of the masters of low-precision parameters; none: updated in place")                   \
    X(options, moment_dtype, CHOICE(moment_types), 0, 0, ZERO_DTYPE_F32, SAME, "f32",              \
      "type of the optimizer's moments")                                                           \
    X(options, optimizer, CHOICE(optimizers), 0, 0, ZERO_OPTIMIZER_ADAMW, SAME, "adamw",           \
      "the element-wise update of tensors whose group has no other")                               \
    X(options, update_states, COUNT, 1, 2, 0, SAME, "0", "moments that a callback optimizer uses") \
    X(options, update, POINTER, 0, 0, 0, OWN, "none", "the callback optimizer's function")         \
    X(options, update_user, POINTER, 0, 0, 0, OWN, "none", "what that function is handed")         \
    X(options, tier, TIERS(tiers), 0, 0, ZERO_TIER_DEVICE, SAME, "device",                         \
      "by role, where its bytes live: param=disk,grad=host")                                       \
    X(options, disk_directories, POINTER, 0, 0, 0, OWN, "none", "where roles on disk lie")         \
    X(options, disk_directory_count, COUNT, 1, 16, 0, OWN, "0", "number of disk_directories")      \
    X(options, threads, COUNT, 1, 256, 0, OWN, "zero_world_cpus, at most 256",                     \
      "threads of this rank's CPU kernels")                                                        \
    X(options, device_budget_bytes, BYTES, 1, ZI_ANY, 0, OWN, "none",                              \
      "refuse a plan that needs more device memory per rank")                                      \
    X(options, host_budget_bytes, BYTES, 1, ZI_ANY, 0, OWN, "none",                                \
      "refuse a plan that needs more host memory per rank")                                        \
    X(options, disk_budget_bytes, BYTES, 1, ZI_ANY, 0, OWN, "none",                                \
      "refuse a plan that needs more disk per rank")                                               \
    X(options, seed, NUMBER, 0, ZI_ANY, 0, SAME, "0", "key of stochastic rounding")                \
    X(options, loss_scale, REAL, 0, 0, 0, SAME, "65536 with f16, else 1",                          \
      "first loss scale; 1 is off")                                                                \
    X(options, model_parallel, POINTER, 0, 0, 0, OWN, "none",                                      \
      "world of the ranks that hold the other parts of the model")                                 \
    X(options, tuning, POINTER, 0, 0, 0, OWN, "all defaults", "the options below")                 \
    X(options, device_alloc, POINTER, 0, 0, 0, OWN, "cudaMalloc",                                  \
      "the caller's function that takes a GPU's memory")                                           \
    X(options, device_free, POINTER, 0, 0, 0, OWN, "cudaFree",                                     \
      "the caller's function that gives it back")                                                  \
    X(options, device_memory_user, POINTER, 0, 0, 0, OWN, "none",                                  \
      "what those two functions are handed")                                                       \
    X(options, disk_path, TEXT, 0, 0, 0, OWN, "none",                                              \
      "where roles on disk lie, as one text: /a:/b")                                               \
    X(options, group_optimizer, GROUPS(optimizers), 0, 0, 0, SAME, "optimizer",                    \
      "by hyper-parameter group, what updates its tensors: 1=lion,2=sgd")

#define ZI_TUNING_LIST(X)                                                                         \
    X(tuning, grad_group, COUNT, 1, ZI_U32_MAX, 0, SAME, "as the stage says",                     \
      "ranks that gradients are split over; a multiple of shard_group")                           \
    X(tuning, optimizer_group, COUNT, 1, ZI_U32_MAX, 0, SAME, "as the stage says",                \
      "ranks that optimizer state is split over; a multiple of grad_group")                       \
    X(tuning, wire_dtype, CHOICE(wire_types), 0, 0, 0, SAME,                                      \
      "a gradient's own, a sum's accum_dtype",                                                    \
      "type that ranks exchange gradients and their sums in")                                     \
    X(tuning, gather_dtype, CHOICE(gather_types), 0, 0, 0, SAME, "their own",                     \
      "type that ranks exchange parameters in when they gather them")                             \
    X(tuning, accum_dtype, CHOICE(sum_types), 0, 0, ZERO_DTYPE_F32, SAME, "f32",                  \
      "type of the sums of gradients over ranks and micro-steps")                                 \
    X(tuning, reduction, CHOICE(reductions), 0, 0, 0, SAME, "default",                            \
      "how gradients of several ranks are added")                                                 \
    X(tuning, accumulation, CHOICE(accumulations), 0, 0, 0, SAME, "sharded as the stage says",    \
      "where the gradients of several micro-steps are added")                                     \
    X(tuning, param_slots, COUNT, 1, 64, 3, SAME, "3",                                            \
      "slots per class of unit sizes that parameters are gathered to")                            \
    X(tuning, grad_slots, COUNT, 1, 64, 2, SAME, "2",                                             \
      "slots per class of bucket sizes that gradients are written to")                            \
    X(tuning, look_ahead, COUNT, 1, 63, 1, SAME, "1", "units gathered ahead of the one in use")   \
    X(tuning, no_prefetch, FLAG, 0, 1, 0, SAME, "0", "1: gather a unit only when it is acquired") \
    X(tuning, bucket_bytes, BYTES, 1, ZI_ANY, UINT64_C(1) << 20, SAME, "1M",                      \
      "gradients of neighbouring units that are reduced together")                                \
    X(tuning, loss_scale_static, FLAG, 0, 1, 0, SAME, "0", "1: never change the loss scale")      \
    X(tuning, loss_scale_window, COUNT, 1, ZI_U32_MAX, 2000, SAME, "2000",                        \
      "good steps before the loss scale doubles")                                                 \
    X(tuning, loss_scale_hysteresis, COUNT, 1, ZI_U32_MAX, 1, SAME, "1",                          \
      "overflows in a row from which on each halves the loss scale")                              \
    X(tuning, loss_scale_min, REAL, 0, 0, 1, SAME, "1", "floor of the loss scale")                \
    X(tuning, transport, CHOICE(transports), 0, 0, 0, SAME, "nccl between processes",             \
      "what carries bytes between GPUs")                                                          \
    X(tuning, nccl_memory, CHOICE(nccl_memories), 0, 0, 0, SAME, "none",                          \
      "how NCCL gets at the memory of collectives")                                               \
    X(tuning, nccl_zero_cta, FLAG, 0, 1, 0, SAME, "0", "1: ask NCCL to gather by copy engines")   \
    X(tuning, updater, CHOICE(updaters), 0, 0, 0, SAME, "the GPU; the CPU what is on disk",       \
      "what updates a GPU's state in host memory")                                                \
    X(tuning, extent_bytes, BYTES, 4096, UINT64_C(1) << 40, UINT64_C(8) << 20, SAME,              \
      "8M, less where host_budget_bytes is small",                                                \
      "state on disk that is moved at once; a multiple of 4096")                                  \
    X(tuning, io_window, COUNT, 3, 64, 4, SAME, "4, or 3 where host_budget_bytes is small",       \
      "extents in memory at once")                                                                \
    X(tuning, io_depth, COUNT, 1, 1024, 16, OWN, "16", "accesses in flight for each directory")   \
    X(tuning, disk_weights, POINTER, 0, 0, 0, OWN, "as measured",                                 \
      "relative bandwidths of disk_directories")                                                  \
    X(tuning, speculative_step, FLAG, 0, 1, 0, SAME, "0",                                         \
      "1: a step that was predicted is updated during backward")                                  \
    X(tuning, disk_unchecked, FLAG, 0, 1, 0, OWN, "0", "1: no checksums of what is on disk")      \
    X(tuning, poison_released, FLAG, 0, 1, 0, SAME, "0",                                          \
      "1: released parameters read as NaN; for debugging")                                        \
    X(tuning, trace_events, COUNT, 4096, 16777216, 0, SAME, "0, no timeline",                     \
      "newest spans that a timeline keeps for zero_engine_trace")                                 \
    X(tuning, save_staging_bytes, BYTES, UINT64_C(32) << 20, UINT64_C(1) << 50, 0, SAME,          \
      "0, 32M while a save is under way", "host memory that a save copies this rank's state to")  \
    X(tuning, hang_directory, TEXT, 0, 0, 0, OWN, "none",                                         \
      "where a rank writes its last collectives when one fails")                                  \
    X(tuning, left_out_at_once, FLAG, 0, 1, 0, SAME, "0",                                         \
      "1: a unit that backward goes past in the recorded order is left out then")                 \
    X(tuning, nccl_min_ctas, COUNT, 1, 64, 0, SAME, "NCCL's choice",                              \
      "fewest thread blocks of a collective of NCCL")                                             \
    X(tuning, nccl_max_ctas, COUNT, 1, 64, 0, SAME, "NCCL's choice",                              \
      "most thread blocks of a collective of NCCL")                                               \
    X(tuning, nccl_traffic_class, COUNT, 1, 255, 0, SAME, "NCCL's choice",                        \
      "class of what NCCL sends over the network")                                                \
    X(tuning, nccl_net_name, POINTER, 0, 0, 0, OWN, "NCCL's choice",                              \
      "name of the network that NCCL uses")                                                       \
    X(tuning, broadcast_initial, FLAG, 0, 1, 0, SAME, "0",                                        \
      "1: all ranks begin with rank 0's initial values")                                          \
    X(tuning, host_overcommit, FLAG, 0, 1, 0, SAME, "0",                                          \
      "1: do not refuse a plan that is larger than the host's memory or its limit")               \
    X(tuning, check_added, FLAG, 0, 1, 0, SAME, "0",                                              \
      "1: a warning if the first gradients are assigned instead of added; for debugging")         \
    X(tuning, host_wire_dtype, CHOICE(host_wire_types), 0, 0, 0, SAME, "as wire_dtype says",      \
      "type that hosts exchange sums of gradients in")                                            \
    X(tuning, encoded_views, FLAG, 0, 1, 0, SAME, "0",                                            \
      "1: acquired parameters are codes and scales of gather_dtype")

#endif
