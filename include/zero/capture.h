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
 *  What the engine keeps between steps lives on the device and goes on over launches and plain
 * steps alike, so a launch gives the same bits as a plain step would. In the capture nothing runs,
 * and it counts as no step; the counters of zero_stats count what hooks enqueued, besides the
 * steps. For a device of ZERO_DEVICE_CUDA, in worlds of one rank or with NCCL; ranks capture,
 * launch and take plain steps in the same order. One graph an engine: another capture retires the
 * one before. Destroy graph and executable before the engine: with NCCL destroying the engine waits
 * for that, until the deadline, and what it then leaves with NCCL is lost. */
#ifndef ZERO_CAPTURE_H
#define ZERO_CAPTURE_H

#include "zero/engine.h"
#include "zero/export.h"
#include "zero/status.h"
#include "zero/step.h"
#include "zero/stream.h"

ZERO_BEGIN

/** Make ready for a capture: waits for all that the engine has enqueued. Outside any capture and
 *  any step. Until zero_capture_begin no hook is legal.
 *  - Local call.
 *  - Errors: UNSUPPORTED on the CPU, where ranks meet on the host or NCCL knows registered buffers,
 *    and with a role on disk or an updater that is not the GPU; STATE inside a step. */
ZERO_API ZERO_MUST_CHECK zero_status zero_capture_prepare(zero_engine *engine);

/** The capture on `stream` has begun: take the engine's own streams into it. Hooks are then legal
 *  for one step, with this stream or others of the capture. Units must be acquired inside it: what
 *  was in slots before is gone. Calls that wait (zero_step_wait, the calls of zero/shard.h that
 *  move values, zero_engine_fill, a dynamic zero_loss_scale) are not legal.
 *  - Local call.
 *  - Errors: STATE when not prepared or when `stream` is not being captured. */
ZERO_API ZERO_MUST_CHECK zero_status zero_capture_begin(zero_engine *engine, zero_stream stream);

/** The step is taken: let `stream`, on which the capture began, wait for the engine's own, so that
 *  cudaStreamEndCapture finds all of them joined. Between prepare and begin it gives the capture up
 *  and `stream` is ignored.
 *  - Local call.
 *  - Errors: STATE when there is no capture, or the step is not taken. */
ZERO_API ZERO_MUST_CHECK zero_status zero_capture_end(zero_engine *engine, zero_stream stream);

/** What `stream` does next comes after all that the engine has enqueued: launches of the graph may
 *  follow on it. Until zero_replay_end no hook is legal.
 *  - Local call.
 *  - Errors: STATE inside a step or without a captured one. */
ZERO_API ZERO_MUST_CHECK zero_status zero_replay_begin(zero_engine *engine, zero_stream stream);

/** Set the hyper-parameters of the launches from now on; before, they are those of the captured
 *  zero_step. grad_weight is the one that was captured: each launch reads what is there then. Waits
 *  for the launches on `stream` so far.
 *  - Local call, the same on every rank.
 *  - Errors: STATE outside begin and end; INVALID_ARGUMENT naming the hyper-parameter. */
ZERO_API ZERO_MUST_CHECK zero_status zero_replay_params(zero_engine *engine, zero_stream stream,
                                                        const zero_step_params *params);

/** What the last launch on `stream` came to; waits for it.
 *  - result: as for zero_step_wait. Brings zero_stats.steps up to date, as zero_step_wait does
 *    after zero_replay_end.
 *  - Local call.
 *  - Errors: STATE outside begin and end, or before the first step of all. */
ZERO_API ZERO_MUST_CHECK zero_status zero_replay_result(zero_engine *engine, zero_stream stream,
                                                        zero_step_result *result);

/** What the engine enqueues from now on comes after all on `stream` so far, launches included.
 *  Hooks are legal again. Gathers ahead, so a collective in the sense of zero_step.
 *  - Errors: STATE without a zero_replay_begin; COMM, TIMEOUT, MISMATCH. */
ZERO_API ZERO_MUST_CHECK zero_status zero_replay_end(zero_engine *engine, zero_stream stream);

ZERO_END

#endif
