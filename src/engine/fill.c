/* Owns initial values: from the model's buffers or the caller's function into shards. */
#include <inttypes.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/engine_internal.h"

/* Elements converted at a time, and their room. */
#define FILL_COUNT ((uint64_t)65536)
#define FILL_BYTES (FILL_COUNT * sizeof(float))

/* Where values wait on their way into shards: the room is host memory that the device reaches. */
typedef struct funnel {
    zi_stream *host;
    float *room;
} funnel;

static zero_status open_funnel(zero_engine *engine, funnel *in)
{
    const zi_device *device = engine->device;
    ZI_TRY(device->ops->stream_wrap(device->self, zero_stream_host(), &in->host));
    return device->ops->host_alloc(device->self, FILL_BYTES, (void **)&in->room);
}

static void close_funnel(zero_engine *engine, funnel *in)
{
    engine->device->ops->host_free(engine->device->self, in->room, FILL_BYTES);
}

static zero_status take_initial(zero_engine *engine, const funnel *in, uint32_t tensor,
                                zero_role role)
{
    const zi_device *device = engine->device;
    const zi_tensor_info *info = &engine->layout->tensor_infos[tensor];
    const engine_shard shard = zi_engine_shard(engine, tensor, role);
    const unsigned char *source = info->initial;
    const size_t size = zero_dtype_bytes(info->dtype);
    for (uint64_t done = 0; done < shard.count; done += FILL_COUNT) {
        const uint64_t count = zi_min_u64(FILL_COUNT, shard.count - done);
        ZI_TRY(device->ops->copy(device->self, in->host, in->room,
                                 source + (shard.tensor_first + done) * size, count * size));
        ZI_TRY(zi_engine_shard_fill(engine, &shard, done, count, in->room, info->dtype));
    }
    return ZERO_OK;
}

static zero_status take_all(zero_engine *engine, const funnel *in)
{
    for (uint32_t t = 0; t < engine->layout->tensor_count; t++) {
        if (engine->layout->tensor_infos[t].initial != NULL) {
            ZI_TRY(take_initial(engine, in, t, ZERO_ROLE_PARAM));
            ZI_TRY(take_initial(engine, in, t, ZERO_ROLE_MASTER));
        }
    }
    return zi_engine_shards_rest(engine);
}

zero_status zi_engine_take_initial(zero_engine *engine)
{
    funnel in = {0};
    zero_status status = open_funnel(engine, &in);
    if (status == ZERO_OK) {
        status = take_all(engine, &in);
    }
    close_funnel(engine, &in);
    return status;
}

typedef struct filler {
    zero_fill_fn fn;
    void *user;
    funnel in;
} filler;

static zero_status fill_role(zero_engine *engine, const filler *fill, uint32_t tensor,
                             zero_role role)
{
    const engine_shard shard = zi_engine_shard(engine, tensor, role);
    for (uint64_t done = 0; done < shard.count; done += FILL_COUNT) {
        const uint64_t count = zi_min_u64(FILL_COUNT, shard.count - done);
        fill->fn(fill->user, tensor, shard.tensor_first + done, count, fill->in.room);
        ZI_TRY(zi_engine_shard_fill(engine, &shard, done, count, fill->in.room, ZERO_DTYPE_F32));
    }
    return ZERO_OK;
}

/* Nothing may be reading or writing the shards. */
static zero_status settle(zero_engine *engine)
{
    ZI_TRY(zi_engine_check_waits(engine));
    ZI_TRY(zi_engine_check_loaded(engine));
    ZI_TRY(zi_engine_check_rest(engine));
    ZI_TRY(zi_engine_check_unused(engine));
    return zi_engine_await(engine, engine->stepped);
}

static zero_status fill_all(zero_engine *engine, const filler *fill)
{
    for (uint32_t t = 0; t < engine->layout->tensor_count; t++) {
        ZI_TRY(fill_role(engine, fill, t, ZERO_ROLE_PARAM));
        ZI_TRY(fill_role(engine, fill, t, ZERO_ROLE_MASTER));
    }
    return zi_engine_shards_rest(engine);
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
    zero_status status = open_funnel(engine, &fill.in);
    if (status == ZERO_OK) {
        status = fill_all(engine, &fill);
    }
    close_funnel(engine, &fill.in);
    ZI_TRY(status);
    return zero_world_barrier(engine->world);
}

zero_status zero_engine_fill(zero_engine *engine, zero_fill_fn fn, void *user)
{
    ZI_TRY(zi_engine_check(engine));
    return zi_engine_finish(engine, fill_engine(engine, fn, user));
}
