/* Owns access to a rank's shards between steps: which elements of a tensor each has, views of them,
 * and copies of values. What is on disk moves on its role's stream, all else in the call. */
#include "zero/shard.h"

#include <inttypes.h>

#include "core/codec.h"
#include "core/error.h"
#include "core/sizes.h"
#include "engine/given.h"
#include "engine/guard.h"
#include "engine/shard.h"
#include "engine/tiers.h"
#include "layout/sharding.h"
#include "zero/evict.h"

const zero_sharding *zi_engine_sharding(const zi_layout *layout, uint32_t tensor)
{
    return zi_flat_sharding(layout, &layout->flats[layout->tensors[tensor].flat]);
}

uint32_t zi_engine_degree(const zi_layout *layout, uint32_t tensor, zero_role role)
{
    const zero_sharding *s = zi_engine_sharding(layout, tensor);
    return role == ZERO_ROLE_PARAM ? s->param : s->optimizer;
}

engine_range zi_engine_range(const zi_layout *layout, uint32_t tensor, uint32_t degree,
                             uint32_t index)
{
    const zi_tensor_place *place = &layout->tensors[tensor];
    const uint64_t whole = zi_shard_count(layout, &layout->flats[place->flat], degree);
    const uint64_t first = whole * index;
    const uint64_t begin = zi_max_u64(first, place->offset);
    const uint64_t end =
        zi_min_u64(first + whole, place->offset + layout->tensor_infos[tensor].count);
    if (begin >= end) {
        return (engine_range){0};
    }
    return (engine_range){
        .at = begin - first, .first = begin - place->offset, .count = end - begin};
}

engine_range zi_engine_slice(const zero_engine *engine, uint32_t tensor)
{
    const zi_layout *layout = engine->layout;
    return zi_engine_range(layout, tensor, layout->world,
                           zi_shard_index(zi_engine_sharding(layout, tensor),
                                          zero_world_rank(engine->world), layout->world));
}

engine_shard zi_engine_shard(const zero_engine *engine, uint32_t tensor, zero_role role)
{
    const zi_layout *layout = engine->layout;
    const zi_flat *flat = &layout->flats[layout->tensors[tensor].flat];
    const uint32_t degree = zi_engine_degree(layout, tensor, role);
    engine_shard shard = {.flat = layout->tensors[tensor].flat,
                          .role = role,
                          .dtype = flat->kept[role].dtype,
                          .codec = flat->kept[role],
                          .tier = zi_role_tier(layout, role)};
    if (!zi_codec_is_none(flat->kept[role])) {
        const engine_range range =
            zi_engine_range(layout, tensor, degree,
                            zi_shard_index(zi_engine_sharding(layout, tensor),
                                           zero_world_rank(engine->world), degree));
        /* Of gradients, what was reduced is in the optimizer shard. */
        const uint64_t before =
            role == ZERO_ROLE_GRAD ? zi_grads_shard_first(engine->grads, shard.flat) : 0;
        shard.at = range.at + before;
        shard.tensor_first = range.first;
        shard.count = range.count;
    }
    return shard;
}

/* Address of element `first` of the shard's part of the tensor; NULL on disk. */
static unsigned char *shard_element(const zero_engine *engine, const engine_shard *shard,
                                    uint64_t first)
{
    return zi_shards_at(&engine->shards[shard->role], shard->flat, shard->at + first);
}

zero_status zi_engine_await_stream(zero_engine *engine, zi_stream *stream)
{
    const zi_device *device = engine->device;
    ZI_TRY(device->ops->event_record(device->self, engine->stepped, stream));
    return zi_engine_await(engine, engine->stepped);
}

/* Move values, from move.first of the shard's part of the tensor on; blocks. Nothing else uses the
 * shard. */
static zero_status move_values(zero_engine *engine, const engine_shard *shard,
                               zi_shards_values move)
{
    const zi_device *device = engine->device;
    const zi_shards *shards = &engine->shards[shard->role];
    zi_stream *stream = zi_engine_role_stream(engine, shard->role);
    move.flat = shard->flat;
    move.first += shard->at;
    if (zi_shards_on_disk(shards)) {
        ZI_TRY(zi_shards_convert(shards, stream, &move));
        return zi_engine_await_stream(engine, stream);
    }
    ZI_TRY(device->ops->stream_wrap(device->self, zero_stream_host(), &stream));
    return zi_shards_convert(shards, stream, &move);
}

void *zi_engine_shard_in_place(const zero_engine *engine, const engine_shard *shard, uint64_t first)
{
    return engine->device->ops->host_memory ? shard_element(engine, shard, first) : NULL;
}

zero_status zi_engine_shard_fill(zero_engine *engine, const engine_shard *shard, uint64_t first,
                                 uint64_t count, void *values, zero_dtype dtype)
{
    return move_values(
        engine, shard,
        (zi_shards_values){
            .first = first, .count = count, .values = values, .dtype = dtype, .writes = true});
}

zero_status zi_engine_flush_shards(zero_engine *engine)
{
    for (int i = 0; i < ZI_SHARD_ROLES; i++) {
        if (zi_shards_on_disk(&engine->shards[i])) {
            zi_stream *stream = zi_engine_role_stream(engine, (zero_role)i);
            ZI_TRY(zi_shards_flush(&engine->shards[i], stream));
            ZI_TRY(zi_engine_await_stream(engine, stream));
        }
    }
    return ZERO_OK;
}

static zero_status shard_check(const zero_engine *engine, uint32_t tensor, zero_role role)
{
    ZI_TRY(zi_engine_check(engine));
    ZI_TRY(zi_engine_check_tensor(engine, tensor));
    return zi_engine_check_role(role);
}

zero_status zero_shard_range(const zero_engine *engine, uint32_t tensor, zero_role role,
                             zero_shard *out)
{
    ZI_TRY(shard_check(engine, tensor, role));
    if (out == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "shard is NULL; pass the address of a zero_shard");
    }
    const engine_shard shard = zi_engine_shard(engine, tensor, role);
    *out = (zero_shard){.first = zi_codec_values(shard.codec, shard.tensor_first),
                        .count = zi_codec_values(shard.codec, shard.count),
                        .dtype = shard.dtype,
                        .tier = shard.tier};
    return ZERO_OK;
}

zero_status zero_shard_view(zero_engine *engine, uint32_t tensor, zero_role role, uint64_t *first,
                            zero_view *view)
{
    ZI_TRY(shard_check(engine, tensor, role));
    if (first == NULL || view == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "first or view is NULL");
    }
    ZI_TRY(zi_engine_admit_role(engine, ZI_CALL_SHARD_READ, "zero_shard_view", role));
    const engine_shard shard = zi_engine_shard(engine, tensor, role);
    if (shard.tier == ZERO_TIER_DISK) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "%s is on disk and has no address; use zero_shard_read and zero_shard_write",
                zero_role_name(role));
    }
    ZI_TRY(zi_engine_finish(engine, zi_engine_await(engine, engine->stepped)));
    zi_engine_touch(engine, ZERO_ROLE_BIT(role)); /* the caller may write */
    *first = zi_codec_values(shard.codec, shard.tensor_first);
    *view = (zero_view){.data = shard.count != 0 ? shard_element(engine, &shard, 0) : NULL,
                        .count = zi_codec_values(shard.codec, shard.count),
                        .dtype = shard.dtype};
    return ZERO_OK;
}

static zero_status check_range(const zero_engine *engine, uint32_t tensor,
                               const engine_shard *shard, uint64_t first, uint64_t count)
{
    const uint64_t own_first = zi_codec_values(shard->codec, shard->tensor_first);
    const uint64_t own_count = zi_codec_values(shard->codec, shard->count);
    const uint64_t end = own_first + own_count;
    if (count != 0 && (first < own_first || first > end || count > end - first)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "elements [%" PRIu64 ", +%" PRIu64 ") of %s of tensor %" PRIu32
                " \"%.60s\" are not all here; this rank has [%" PRIu64 ", +%" PRIu64 ")",
                first, count, zero_role_name(shard->role), tensor,
                engine->layout->tensor_infos[tensor].name, own_first, own_count);
    }
    return ZERO_OK;
}

zero_status zi_engine_shard_read(zero_engine *engine, const engine_shard *shard, uint64_t first,
                                 uint64_t count, void *values)
{
    return move_values(
        engine, shard,
        (zi_shards_values){
            .first = first, .count = count, .values = values, .dtype = shard->dtype});
}

zero_status zi_engine_shard_stage(zero_engine *engine, const engine_shard *shard, uint64_t first,
                                  uint64_t count, void *values)
{
    const zi_shards_move load = {
        .flat = shard->flat, .first = shard->at + first, .count = count, .memory = values};
    return zi_shards_load(&engine->shards[shard->role], engine->step_stream, &load);
}

engine_extent zi_engine_shard_extent(const zero_engine *engine, const engine_shard *shard,
                                     uint64_t first)
{
    const uint64_t element = shard->at + first;
    const zi_extent_place place =
        zi_layout_find_extent(engine->layout, shard->role, shard->flat, element);
    const uint64_t before = element - place.first;
    return (engine_extent){place.index, place.at + zi_codec_bytes(shard->codec, before),
                           place.count - before};
}

/* Arguments of the task that sets a window's source. */
typedef struct window_source {
    zi_window *window;
    const zi_io_source *source;
} window_source;

static zero_status set_source(void *argument)
{
    const window_source *work = argument;
    zi_window_set_source(work->window, work->source);
    return ZERO_OK;
}

/* The stream's own thread may wait for the window, also where the stream has failed. */
static zero_status put_source(zero_engine *engine, zero_role role, const zi_io_source *source)
{
    const zi_device *device = engine->device;
    zi_stream *stream = zi_engine_role_stream(engine, role);
    const window_source work = {engine->windows[role], source};
    if (work.window == NULL) {
        return ZERO_OK;
    }
    ZI_TRY(device->ops->task_always(device->self, stream, set_source, &work, sizeof work));
    return zi_engine_await_stream(engine, stream);
}

zero_status zi_engine_shard_set_sources(zero_engine *engine, const zi_io_source *state,
                                        const zi_io_source *param)
{
    const zero_status first = put_source(engine, ZERO_ROLE_MASTER, state);
    const zero_status second = put_source(engine, ZERO_ROLE_PARAM, param);
    return first != ZERO_OK ? first : second;
}

engine_stored zi_engine_shard_stored(const zero_engine *engine, const engine_shard *shard,
                                     uint64_t first)
{
    uint64_t at = 0;
    const zi_shards *shards = &engine->shards[shard->role];
    if (!zi_shards_on_disk(shards)) {
        return (engine_stored){.file = -1};
    }
    const engine_extent extent = zi_engine_shard_extent(engine, shard, first);
    if (!zi_window_find(shards->desc.window, extent.index, &at)) {
        return (engine_stored){.file = -1};
    }
    const zi_stripe_place lies = zi_stripe_find(zi_store_map(engine->store), at + extent.at);
    return (engine_stored){.file = zi_store_fd(engine->store, lies.file),
                           .at = lies.offset,
                           .bytes =
                               zi_min_u64(lies.bytes, zi_codec_bytes(shard->codec, extent.count))};
}

zero_status zi_engine_begin_transfer(zero_engine *engine, zero_role role, bool writes)
{
    ZI_TRY(zi_engine_await(engine, engine->stepped));
    /* Units that were gathered ahead become stale, on all ranks, since all make the call. */
    return writes && role == ZERO_ROLE_PARAM ? zi_params_refill_begin(engine->params) : ZERO_OK;
}

static zero_status transfer(zero_engine *engine, uint32_t tensor, zero_role role,
                            zi_shards_values move)
{
    const engine_shard shard = zi_engine_shard(engine, tensor, role);
    ZI_TRY(check_range(engine, tensor, &shard, move.first, move.count));
    if (move.values == NULL && move.count != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "values is NULL; %" PRIu64 " elements need a place",
                move.count);
    }
    ZI_TRY(move.writes ? zi_engine_admit_role(engine, ZI_CALL_SHARD_WRITE, "zero_shard_write", role)
                       : zi_engine_admit_role(engine, ZI_CALL_SHARD_READ, "zero_shard_read", role));
    ZI_TRY(zi_engine_begin_transfer(engine, role, move.writes));
    if (move.writes) {
        zi_engine_note_given(engine, tensor, role, 0);
    }
    if (move.count == 0) {
        return ZERO_OK;
    }
    const uint64_t each = shard.codec.by_block ? ZERO_CODE_BLOCK : 1;
    move.first = move.first * each - shard.tensor_first;
    move.count = zi_min_u64(move.count * each, shard.count - move.first);
    move.dtype = shard.dtype;
    ZI_TRY(move_values(engine, &shard, move));
    return move.writes && shard.tier == ZERO_TIER_DISK ? zi_engine_flush_shards(engine) : ZERO_OK;
}

zero_status zero_shard_read(zero_engine *engine, uint32_t tensor, zero_role role, uint64_t first,
                            uint64_t count, void *values)
{
    ZI_TRY(shard_check(engine, tensor, role));
    const zi_shards_values move = {.first = first, .count = count, .values = values};
    return zi_engine_finish(engine, transfer(engine, tensor, role, move));
}

zero_status zero_shard_write(zero_engine *engine, uint32_t tensor, zero_role role, uint64_t first,
                             uint64_t count, const void *values)
{
    ZI_TRY(shard_check(engine, tensor, role));
    const union {
        const void *given;
        void *plain; /* a move's values go either way; these are only read */
    } source = {values};
    const zi_shards_values move = {
        .first = first, .count = count, .values = source.plain, .writes = true};
    return zi_engine_finish(engine, transfer(engine, tensor, role, move));
}
