/* Owns initial values by a caller's function. */
#include "core/error.h"
#include "core/sizes.h"
#include "engine/array.h"
#include "engine/guard.h"
#include "engine/shard.h"

typedef struct filler {
    zero_fill_fn fn;
    void *user;
    float *staging;
} filler;

static zero_status fill_role(zero_engine *engine, const filler *fill, uint32_t tensor,
                             zero_role role)
{
    const engine_shard shard = zi_engine_shard(engine, tensor, role);
    for (uint64_t done = 0; done < shard.count; done += ENGINE_STAGED_COUNT) {
        const uint64_t count = zi_min_u64(ENGINE_STAGED_COUNT, shard.count - done);
        fill->fn(fill->user, tensor, shard.tensor_first + done, count, fill->staging);
        ZI_TRY(zi_engine_shard_fill(engine, &shard, done, count, fill->staging, ZERO_DTYPE_F32));
    }
    return ZERO_OK;
}

/* Nothing may be reading or writing the shards. */
static zero_status settle(zero_engine *engine)
{
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_FILL, "zero_engine_fill"));
    return zi_engine_await(engine, engine->stepped);
}

static zero_status fill_all(zero_engine *engine, const filler *fill)
{
    for (uint32_t t = 0; t < engine->layout->tensor_count; t++) {
        ZI_TRY(fill_role(engine, fill, t, ZERO_ROLE_PARAM));
        ZI_TRY(fill_role(engine, fill, t, ZERO_ROLE_MASTER));
    }
    return zi_engine_flush_shards(engine);
}

static zero_status fill_engine(zero_engine *engine, zero_fill_fn fn, void *user)
{
    if (fn == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "fn is NULL; pass a function that gives initial values");
    }
    ZI_TRY(settle(engine));
    /* Gathers ahead of time read the old values; they are taken back, and nobody gathers until all
     * ranks have filled. */
    ZI_TRY(zi_params_refill_begin(engine->params));
    ZI_TRY(zero_world_barrier(engine->world));
    filler fill = {.fn = fn, .user = user};
    zero_status status = zi_engine_open_staging(engine, &fill.staging);
    if (status == ZERO_OK) {
        status = fill_all(engine, &fill);
    }
    zi_engine_close_staging(engine, fill.staging);
    ZI_TRY(status);
    return zero_world_barrier(engine->world);
}

zero_status zero_engine_fill(zero_engine *engine, zero_fill_fn fn, void *user)
{
    ZI_TRY(zi_engine_check(engine));
    return zi_engine_finish(engine, fill_engine(engine, fn, user));
}
