/* Calls on an engine by one name and one argument each, for tests of which of them are refused: an
 * acquire is released again, saves and loads are of run_directory (saved_runs.h). */
#ifndef TESTS_ENGINE_ENGINE_CALLS_H
#define TESTS_ENGINE_ENGINE_CALLS_H

#include "saved_runs.h"
#include "zero/evict.h"

/* The tier that roles are evicted to. */
#ifdef TOY_CUDA
#define ELSEWHERE ZERO_TIER_HOST
#else
#define ELSEWHERE ZERO_TIER_DISK
#endif

static inline zero_status acquire(zero_engine *engine, zero_pass pass)
{
    TOY_TRY(zero_unit_acquire(engine, 0, pass, toy_stream(), NULL));
    return zero_unit_release(engine, 0, toy_stream());
}

#define CALL(name, call)                                       \
    static inline zero_status call_##name(zero_engine *engine) \
    {                                                          \
        return call;                                           \
    }

CALL(begin, zero_micro_begin(engine, ZERO_MICRO_EARLIER))
CALL(begin_last, zero_micro_begin(engine, ZERO_MICRO_LAST))
CALL(forward, acquire(engine, ZERO_PASS_FORWARD))
CALL(backward, acquire(engine, ZERO_PASS_BACKWARD))
CALL(eval, acquire(engine, ZERO_PASS_EVAL))

CALL(step, zero_step(engine, NULL, toy_stream()))
CALL(abandon, zero_micro_abandon(engine, toy_stream()))
CALL(norm, zero_grad_norm(engine, NULL, toy_stream(), (double[]){0}))
CALL(fill, zero_engine_fill(engine, toy_fill, NULL))

static inline zero_status call_save(zero_engine *engine)
{
    const zero_save_options options = run_save_options("table");
    return zero_save(engine, &options);
}

/* Of what call_save has saved. */
static inline zero_status call_load(zero_engine *engine)
{
    const zero_load_options options = run_load_options(NULL);
    return zero_load(engine, &options, NULL);
}

CALL(evict, zero_engine_evict(engine, ZERO_EVICT_ALL, ELSEWHERE))

#endif
