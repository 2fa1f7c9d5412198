/* Owns the ways values get in and out of shards outside a step: initial values, and views of a
 * rank's own pieces. */
#include <inttypes.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/engine_internal.h"
#include "layout/sharding.h"

/* Elements converted at a time, and their room. */
#define FILL_COUNT ((uint64_t)65536)
#define FILL_BYTES (FILL_COUNT * sizeof(float))

/* The part of a tensor that lies in elements [first, first + count) of its flat. */
typedef struct piece {
    uint64_t flat_first;   /* in the shard */
    uint64_t tensor_first; /* in the tensor */
    uint64_t count;
} piece;

static piece piece_of(const zi_layout *layout, uint32_t tensor, uint64_t first, uint64_t count)
{
    const zi_tensor_place *place = &layout->tensors[tensor];
    const uint64_t begin = zi_max_u64(first, place->offset);
    const uint64_t end =
        zi_min_u64(first + count, place->offset + layout->tensor_infos[tensor].count);
    if (begin >= end) {
        return (piece){0};
    }
    return (piece){begin - first, begin - place->offset, end - begin};
}

/* A rank's shard of one role: its memory, type, and where in the flat it begins. */
typedef struct role_shard {
    unsigned char *data; /* NULL: the role does not exist for this flat */
    zero_dtype dtype;
    uint64_t first;
    uint64_t count;
} role_shard;

static role_shard shard_of(const zero_engine *engine, uint32_t flat, zero_role role)
{
    const zi_layout *layout = engine->layout;
    const zi_flat *place = &layout->flats[flat];
    const uint32_t rank = zero_world_rank(engine->world);
    role_shard shard = {.dtype = place->dtype};
    const bool is_param = role == ZERO_ROLE_PARAM;
    const uint32_t degree = is_param ? layout->sharding.param : layout->sharding.optimizer;
    shard.count = zi_shard_count(layout, place, degree);
    shard.first = shard.count * zi_shard_index(&layout->sharding, rank, degree);
    if (is_param) {
        shard.data = engine->arena[ZERO_ROLE_PARAM] + place->param_at;
    } else if (role == ZERO_ROLE_GRAD) {
        shard.data = place->trained ? zi_grads_reduced(engine->grads, flat) : NULL;
        shard.dtype = layout->options.accum_dtype;
    } else {
        shard.data = zi_optim_state(engine->optim, flat, role);
        shard.dtype = role == ZERO_ROLE_MASTER ? ZERO_DTYPE_F32 : layout->options.moment_dtype;
    }
    return shard;
}

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

/* Round `count` elements of `dtype` in the room into a shard. */
static zero_status put(zero_engine *engine, const funnel *in, role_shard shard, uint64_t at,
                       zero_dtype dtype, uint64_t count)
{
    return engine->kernels.ops->cast(engine->kernels.self, in->host,
                                     shard.data + at * zero_dtype_bytes(shard.dtype), shard.dtype,
                                     in->room, dtype, count);
}

static zero_status take_initial(zero_engine *engine, const funnel *in, uint32_t tensor,
                                zero_role role)
{
    const zi_device *device = engine->device;
    const zi_tensor_info *info = &engine->layout->tensor_infos[tensor];
    const role_shard shard = shard_of(engine, engine->layout->tensors[tensor].flat, role);
    const piece p = piece_of(engine->layout, tensor, shard.first, shard.count);
    const unsigned char *source = info->initial;
    const size_t size = zero_dtype_bytes(info->dtype);
    for (uint64_t done = 0; shard.data != NULL && done < p.count; done += FILL_COUNT) {
        const uint64_t count = zi_min_u64(FILL_COUNT, p.count - done);
        ZI_TRY(device->ops->copy(device->self, in->host, in->room,
                                 source + (p.tensor_first + done) * size, count * size));
        ZI_TRY(put(engine, in, shard, p.flat_first + done, info->dtype, count));
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
    return ZERO_OK;
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
    const role_shard shard = shard_of(engine, engine->layout->tensors[tensor].flat, role);
    const piece p = piece_of(engine->layout, tensor, shard.first, shard.count);
    for (uint64_t done = 0; shard.data != NULL && done < p.count; done += FILL_COUNT) {
        const uint64_t count = zi_min_u64(FILL_COUNT, p.count - done);
        fill->fn(fill->user, tensor, p.tensor_first + done, count, fill->in.room);
        ZI_TRY(put(engine, &fill->in, shard, p.flat_first + done, ZERO_DTYPE_F32, count));
    }
    return ZERO_OK;
}

/* Nothing may be reading or writing the shards. */
static zero_status settle(zero_engine *engine)
{
    ZI_TRY(zi_engine_check_waits(engine));
    if (engine->micro_open || engine->step_due) {
        ZI_FAIL(ZERO_STATE, "a micro-step is open or its step is due; shards are not at rest");
    }
    const uint32_t used = zi_params_first_in_use(engine->params);
    if (used != ZI_NO_INDEX) {
        ZI_FAIL(ZERO_STATE, "unit %" PRIu32 " \"%.60s\" is still acquired; release it first", used,
                engine->layout->unit_infos[used].name);
    }
    return zi_engine_await(engine, engine->stepped);
}

static zero_status fill_all(zero_engine *engine, const filler *fill)
{
    for (uint32_t t = 0; t < engine->layout->tensor_count; t++) {
        ZI_TRY(fill_role(engine, fill, t, ZERO_ROLE_PARAM));
        ZI_TRY(fill_role(engine, fill, t, ZERO_ROLE_MASTER));
    }
    return ZERO_OK;
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

zero_status zero_shard_view(zero_engine *engine, uint32_t tensor, zero_role role, uint64_t *first,
                            zero_view *view)
{
    ZI_TRY(zi_engine_check(engine));
    ZI_TRY(zi_engine_check_tensor(engine, tensor));
    if (first == NULL || view == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "first or view is NULL");
    }
    if ((int)role < ZERO_ROLE_PARAM || (int)role > ZERO_ROLE_MOMENT2) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "role %d has no shard of a tensor; use PARAM, GRAD, MASTER, "
                "MOMENT1 or MOMENT2",
                (int)role);
    }
    if (engine->micro_open) {
        ZI_FAIL(ZERO_STATE, "a micro-step is open; shards are not at rest");
    }
    ZI_TRY(zi_engine_check_waits(engine));
    ZI_TRY(zi_engine_finish(engine, zi_engine_await(engine, engine->stepped)));
    const role_shard shard = shard_of(engine, engine->layout->tensors[tensor].flat, role);
    const piece p = piece_of(engine->layout, tensor, shard.first, shard.count);
    const bool exists = shard.data != NULL && p.count != 0;
    *first = p.tensor_first;
    *view = (zero_view){.data = exists ? shard.data + p.flat_first * zero_dtype_bytes(shard.dtype)
                                       : NULL,
                        .count = exists ? p.count : 0,
                        .dtype = shard.dtype};
    return ZERO_OK;
}
