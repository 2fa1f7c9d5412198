/** @file
 *  A whole training step captured into a CUDA graph, and launched any number of times.
 *
 *      zero_capture_prepare(engine);
 *      cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal);
 *      zero_capture_begin(engine, stream);
 *      ... the hooks and kernels of one step: all its micro-steps, zero_step ...
 *      zero_capture_end(engine, stream);
 *      cudaStreamEndCapture(native, &graph);
 *      cudaGraphInstantiate(&exec, graph, 0);
 *
 *      zero_replay_begin(engine, stream);
 *      for (...) cudaGraphLaunch(exec, native);       each is a step
 *      zero_replay_end(engine, stream);
 *      ... plain steps, evaluation, views, other launches ...
 *
 *  The state between steps is on the device and is updated by launches and plain steps alike, so a
 *  launch gives the bits of a plain step. During the capture nothing runs, and it counts as no
 *  step; the other counters of zero_stats count what hooks enqueued.
 *
 *  - Captures need ZERO_DEVICE_CUDA, and worlds of one rank or with NCCL.
 *  - Ranks capture, launch and take plain steps in the same order.
 *  - An engine has one graph: another capture retires the one before.
 *  - Destroy graph and executable before the engine. With NCCL zero_engine_destroy waits for that
 *    for 10 s for each communicator, and then leaks it.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). */
#ifndef ZERO_CAPTURE_H
#define ZERO_CAPTURE_H

#include "zero/engine.h"
#include "zero/export.h"
#include "zero/status.h"
#include "zero/step.h"
#include "zero/stream.h"

ZERO_BEGIN

/** Prepare a capture: waits for all that the engine has enqueued. Until zero_capture_begin no hook
 *  is legal.
 *  - Local call, but before the engine's first micro-step collective over its world, as that is.
 *  - Errors: UNSUPPORTED on the CPU, where ranks exchange through the host, where NCCL has
 *    registered buffers (zero_path.buffers), and with a role on disk or an updater that is not the
 *    GPU; STATE inside a step or another capture. */
ZERO_API ZERO_MUST_CHECK zero_status zero_capture_prepare(zero_engine *engine);

/** Join the engine's own streams into the capture that has begun on `stream`. Hooks are then legal
 *  for one step, with this stream or others of the capture. Units have to be acquired inside it,
 *  since slots are invalidated. Calls that wait (zero_step_wait, the calls of zero/shard.h that
 *  move values, zero_engine_fill, a dynamic zero_loss_scale) are not legal.
 *  - Local call.
 *  - Errors: STATE when not prepared or when `stream` is not being captured. */
ZERO_API ZERO_MUST_CHECK zero_status zero_capture_begin(zero_engine *engine, zero_stream stream);

/** Let `stream`, on which the capture began, wait for the engine's own streams, so that
 *  cudaStreamEndCapture finds all of them joined. The step has been taken before. Between prepare
 *  and begin this call cancels the capture, and `stream` is ignored.
 *  - Local call.
 *  - Errors: STATE when there is no capture, or the step is not taken. */
ZERO_API ZERO_MUST_CHECK zero_status zero_capture_end(zero_engine *engine, zero_stream stream);

/** Let `stream` wait for all that the engine has enqueued; launches of the graph may follow on it.
 *  Until zero_replay_end no hook is legal.
 *  - Local call.
 *  - Errors: STATE inside a step or without a captured one. */
ZERO_API ZERO_MUST_CHECK zero_status zero_replay_begin(zero_engine *engine, zero_stream stream);

/** Set the hyper-parameters of the launches from now on; before, they are those of the captured
 *  zero_step. grad_weight is the captured pointer, which each launch reads.
 *  - Local call, the same on every rank. It waits for the launches on `stream` so far.
 *  - Errors: STATE outside begin and end; INVALID_ARGUMENT naming the hyper-parameter. */
ZERO_API ZERO_MUST_CHECK zero_status zero_replay_params(zero_engine *engine, zero_stream stream,
                                                        const zero_step_params *params);

/** The result of the last launch on `stream`. Waits for it.
 *  - result: as for zero_step_wait. Brings zero_stats.steps up to date, as zero_step_wait does
 *    after zero_replay_end.
 *  - Local call.
 *  - Errors: STATE outside begin and end, or before the first step of all. */
ZERO_API ZERO_MUST_CHECK zero_status zero_replay_result(zero_engine *engine, zero_stream stream,
                                                        zero_step_result *result);

/** Let the engine's streams wait for all on `stream` so far, launches included. Hooks are legal
 *  again.
 *  - Collective over the ranks that share parameters: it may begin the first gathers.
 *  - Errors: STATE without a zero_replay_begin; COMM, TIMEOUT, MISMATCH. */
ZERO_API ZERO_MUST_CHECK zero_status zero_replay_end(zero_engine *engine, zero_stream stream);

ZERO_END

#endif
