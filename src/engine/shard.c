/* Owns access to a rank's shards between steps: where each is, views of it, and copies of values
 * from and to any tier. A task copies values on disk, for optimizer state on the step stream, which
 * owns the window; other values are copied in the call. */
#include "zero/shard.h"

#include <inttypes.h>

#include "core/error.h"
#include "core/sizes.h"
#include "engine/given.h"
#include "engine/guard.h"
#include "engine/shard.h"
#include "engine/tiers.h"
#include "layout/sharding.h"
#include "zero/evict.h"

/* Find the shard of the flat; false where the role has none of it. */
static bool locate(const zero_engine *engine, engine_shard *shard)
{
    const zi_layout *layout = engine->layout;
    const zi_flat *flat = &layout->flats[shard->flat];
    if (shard->role == ZERO_ROLE_PARAM) {
        const bool disk = shard->tier == ZERO_TIER_DISK;
        shard->dtype = flat->dtype;
        shard->data = disk ? NULL : engine->arena[ZERO_ROLE_PARAM] + flat->at[ZERO_ROLE_PARAM];
        return true;
    }
    if (shard->role == ZERO_ROLE_GRAD) {
        shard->dtype = layout->tuning.accum_dtype;
        if (flat->trained) {
            shard->data = zi_grads_reduced(engine->grads, shard->flat);
            shard->part_first = zi_grads_part_first(engine->grads, shard->flat);
        }
        return flat->trained;
    }
    shard->data = zi_optim_state(engine->optim, shard->flat, shard->role);
    shard->dtype = flat->kept[shard->role].dtype;
    return !zi_codec_is_none(flat->kept[shard->role]);
}

const zero_sharding *zi_engine_sharding(const zi_layout *layout, uint32_t tensor)
{
    return zi_flat_sharding(layout, &layout->flats[layout->tensors[tensor].flat]);
}

uint32_t zi_engine_degree(const zi_layout *layout, uint32_t tensor, zero_role role)
{
    const zero_sharding *s = zi_engine_sharding(layout, tensor);
    return role == ZERO_ROLE_PARAM ? s->param : s->optimizer;
}

engine_part zi_engine_part(const zi_layout *layout, uint32_t tensor, uint32_t degree,
                           uint32_t index)
{
    const zi_tensor_place *place = &layout->tensors[tensor];
    const uint64_t whole = zi_shard_count(layout, &layout->flats[place->flat], degree);
    const uint64_t first = whole * index;
    const uint64_t begin = zi_max_u64(first, place->offset);
    const uint64_t end =
        zi_min_u64(first + whole, place->offset + layout->tensor_infos[tensor].count);
    if (begin >= end) {
        return (engine_part){0};
    }
    return (engine_part){.at = begin - first, .first = begin - place->offset, .count = end - begin};
}

engine_part zi_engine_slice(const zero_engine *engine, uint32_t tensor)
{
    const zi_layout *layout = engine->layout;
    return zi_engine_part(layout, tensor, layout->world,
                          zi_shard_index(zi_engine_sharding(layout, tensor),
                                         zero_world_rank(engine->world), layout->world));
}

engine_shard zi_engine_shard(const zero_engine *engine, uint32_t tensor, zero_role role)
{
    const zi_layout *layout = engine->layout;
    engine_shard shard = {
        .flat = layout->tensors[tensor].flat, .role = role, .tier = zi_role_tier(layout, role)};
    const uint32_t degree = zi_engine_degree(layout, tensor, role);
    if (locate(engine, &shard)) {
        const engine_part part =
            zi_engine_part(layout, tensor, degree,
                           zi_shard_index(zi_engine_sharding(layout, tensor),
                                          zero_world_rank(engine->world), degree));
        shard.at = part.at;
        shard.tensor_first = part.first;
        shard.count = part.count;
    }
    return shard;
}

/* Address of element `first` of the shard's part of the tensor; not for roles on disk. */
static unsigned char *shard_element(const engine_shard *shard, uint64_t first)
{
    return shard->data + (shard->at + first) * zero_dtype_bytes(shard->dtype);
}

/* Arguments of the task that moves values of an offloaded role. */
typedef struct offload_values {
    zero_engine *engine;
    zi_optim_move move; /* first: in the role's shard of the flat */
} offload_values;

_Static_assert(sizeof(offload_values) <= ZI_TASK_ARGUMENT_BYTES, "travels by value");

/* Move the values that are in one acquired extent. */
static zero_status shard_move_extent(const offload_values *work, const zi_extent_place *place,
                                     unsigned char *extent)
{
    const zi_optim_move *move = &work->move;
    const zi_layout *layout = work->engine->layout;
    const zi_kernels *kernels = zi_engine_host_kernels(work->engine); /* both are the host's */
    const zi_device *device = kernels->device;
    const zi_flat *flat = &layout->flats[move->flat];
    const zero_dtype dtype = flat->kept[move->role].dtype;
    const uint64_t begin = zi_max_u64(place->first, move->first);
    const uint64_t end = zi_min_u64(place->first + place->count, move->first + move->count);
    zi_stream *stream = NULL;
    ZI_TRY(device->ops->stream_wrap(device->self, zero_stream_host(), &stream));
    unsigned char *held = extent + (begin - place->first) * zero_dtype_bytes(dtype);
    unsigned char *values =
        (unsigned char *)move->values + (begin - move->first) * zero_dtype_bytes(move->dtype);
    return move->writes ? kernels->ops->cast(kernels->self, stream, held, dtype, values,
                                             move->dtype, end - begin)
                        : kernels->ops->cast(kernels->self, stream, values, move->dtype, held,
                                             dtype, end - begin);
}

static zero_status move_offloaded(void *argument)
{
    const offload_values *work = argument;
    const zi_optim_move *move = &work->move;
    zi_offload *offload = work->engine->offload[move->role];
    const uint64_t end = move->first + move->count;
    for (uint64_t at = move->first; at < end;) {
        const zi_offload_element element = {.flat = move->flat, .index = at, .end = end};
        zi_extent_place place;
        unsigned char *extent = NULL;
        ZI_TRY(zi_offload_acquire(offload, element, ZI_WINDOW_READS, NULL, 0, &place, &extent));
        ZI_TRY(shard_move_extent(work, &place, extent));
        ZI_TRY(zi_offload_release(offload, &place, move->writes));
        at = place.first + place.count;
    }
    return ZERO_OK;
}

zero_status zi_engine_await_stream(zero_engine *engine, zi_stream *stream)
{
    const zi_device *device = engine->device;
    ZI_TRY(device->ops->event_record(device->self, engine->stepped, stream));
    return zi_engine_await(engine, engine->stepped);
}

/* Move values of a role on disk, and block until they are moved. */
static zero_status shard_move_on_disk(zero_engine *engine, const engine_shard *shard,
                                      const zi_optim_move *values)
{
    const zi_device *device = engine->device;
    zi_optim_move move = *values;
    move.flat = shard->flat;
    move.role = shard->role;
    move.first += shard->at;
    if (shard->role >= ZI_OFFLOAD_ROLES) {
        ZI_TRY(zi_optim_enqueue_move(engine->optim, &move));
        return zi_engine_await_stream(engine, engine->step_stream);
    }
    move.first += shard->part_first;
    const offload_values work = {.engine = engine, .move = move};
    zi_stream *stream = zi_engine_offload_stream(engine, shard->role);
    if (move.count != 0) {
        ZI_TRY(device->ops->task(device->self, stream, move_offloaded, &work, sizeof work));
    }
    return zi_engine_await_stream(engine, stream);
}

void *zi_engine_shard_in_place(const zero_engine *engine, const engine_shard *shard, uint64_t first)
{
    const bool in_place = shard->tier != ZERO_TIER_DISK && engine->device->ops->host_memory;
    return in_place ? shard_element(shard, first) : NULL;
}

zero_status zi_engine_shard_fill(zero_engine *engine, const engine_shard *shard, uint64_t first,
                                 uint64_t count, void *values, zero_dtype dtype)
{
    const zi_device *device = engine->device;
    const zi_kernels *kernels = &engine->kernels;
    if (shard->tier == ZERO_TIER_DISK) {
        const zi_optim_move move = {
            .first = first, .count = count, .values = values, .dtype = dtype, .writes = true};
        return shard_move_on_disk(engine, shard, &move);
    }
    zi_stream *host = NULL;
    ZI_TRY(device->ops->stream_wrap(device->self, zero_stream_host(), &host));
    return kernels->ops->cast(kernels->self, host, shard_element(shard, first), shard->dtype,
                              values, dtype, count);
}

zero_status zi_engine_flush_shards(zero_engine *engine)
{
    for (int i = 0; i < ZI_OFFLOAD_ROLES; i++) {
        if (engine->offload[i] != NULL) {
            zi_stream *stream = zi_engine_offload_stream(engine, (zero_role)i);
            ZI_TRY(zi_offload_flush(engine->offload[i], stream));
            ZI_TRY(zi_engine_await_stream(engine, stream));
        }
    }
    if (engine->window == NULL) {
        return ZERO_OK;
    }
    ZI_TRY(zi_optim_flush(engine->optim));
    return zi_engine_await_stream(engine, engine->step_stream);
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
    *out = (zero_shard){.first = shard.tensor_first,
                        .count = shard.count,
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
    *first = shard.tensor_first;
    *view = (zero_view){.data = shard.count != 0 ? shard_element(&shard, 0) : NULL,
                        .count = shard.count,
                        .dtype = shard.dtype};
    return ZERO_OK;
}

static zero_status check_range(const zero_engine *engine, uint32_t tensor,
                               const engine_shard *shard, uint64_t first, uint64_t count)
{
    const uint64_t end = shard->tensor_first + shard->count;
    if (count != 0 && (first < shard->tensor_first || first > end || count > end - first)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "elements [%" PRIu64 ", +%" PRIu64 ") of %s of tensor %" PRIu32
                " \"%.60s\" are not all here; this rank has [%" PRIu64 ", +%" PRIu64 ")",
                first, count, zero_role_name(shard->role), tensor,
                engine->layout->tensor_infos[tensor].name, shard->tensor_first, shard->count);
    }
    return ZERO_OK;
}

/* Copy elements from move->first on between the shard, which nothing else uses, and values of the
 * role's own type. */
static zero_status move_values(zero_engine *engine, const engine_shard *shard,
                               const zi_optim_move *move)
{
    const zi_device *device = engine->device;
    if (shard->tier == ZERO_TIER_DISK) {
        ZI_TRY(shard_move_on_disk(engine, shard, move));
        return move->writes ? zi_engine_flush_shards(engine) : ZERO_OK;
    }
    zi_stream *host = NULL;
    ZI_TRY(device->ops->stream_wrap(device->self, zero_stream_host(), &host));
    const uint64_t bytes = move->count * zero_dtype_bytes(shard->dtype);
    void *data = shard_element(shard, move->first);
    return move->writes ? device->ops->copy(device->self, host, data, move->values, bytes)
                        : device->ops->copy(device->self, host, move->values, data, bytes);
}

zero_status zi_engine_shard_read(zero_engine *engine, const engine_shard *shard, uint64_t first,
                                 uint64_t count, void *values)
{
    const zi_optim_move move = {
        .first = first, .count = count, .values = values, .dtype = shard->dtype};
    return move_values(engine, shard, &move);
}

zero_status zi_engine_shard_stage(zero_engine *engine, const engine_shard *shard, uint64_t first,
                                  uint64_t count, void *values)
{
    const zi_device *device = engine->device;
    zi_stream *stream = engine->step_stream;
    if (shard->tier != ZERO_TIER_DISK) {
        return device->ops->copy(device->self, stream, values, shard_element(shard, first),
                                 count * zero_dtype_bytes(shard->dtype));
    }
    if (shard->role >= ZI_OFFLOAD_ROLES) {
        const zi_optim_move move = {.flat = shard->flat,
                                    .role = shard->role,
                                    .first = shard->at + first,
                                    .count = count,
                                    .values = values,
                                    .dtype = shard->dtype};
        return zi_optim_enqueue_move(engine->optim, &move);
    }
    const zi_offload_move load = {
        .flat = shard->flat, .first = shard->at + first, .count = count, .memory = values};
    return zi_offload_load(engine->offload[shard->role], stream, &load);
}

engine_extent zi_engine_shard_extent(const zero_engine *engine, const engine_shard *shard,
                                     uint64_t first)
{
    const zi_layout *layout = engine->layout;
    const uint64_t size = zero_dtype_bytes(shard->dtype);
    const uint64_t element = shard->at + first;
    if (shard->role < ZI_OFFLOAD_ROLES) {
        const zi_extent_place place =
            zi_layout_find_extent(layout, shard->role, shard->flat, element);
        const uint64_t before = element - place.first;
        return (engine_extent){place.index, before * size, place.count - before};
    }
    const zi_chunk *chunk = &layout->chunks[zi_layout_find_chunk(layout, shard->flat, element)];
    const uint64_t before = element - chunk->first;
    return (engine_extent){chunk->extent, chunk->at[zi_role_state(shard->role)] + before * size,
                           chunk->count - before};
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

/* The window of a role on disk, or of what the state has there; NULL: there is none. */
static zi_window *window_of(const zero_engine *engine, zero_role role)
{
    if (role >= ZI_OFFLOAD_ROLES) {
        return engine->window;
    }
    return engine->offload[role] != NULL ? zi_offload_window(engine->offload[role]) : NULL;
}

/* The stream's own thread may wait for the window, also where the stream has failed. */
static zero_status put_source(zero_engine *engine, zi_stream *stream, zi_window *window,
                              const zi_io_source *source)
{
    const zi_device *device = engine->device;
    const window_source work = {window, source};
    if (window == NULL) {
        return ZERO_OK;
    }
    ZI_TRY(device->ops->task_always(device->self, stream, set_source, &work, sizeof work));
    return zi_engine_await_stream(engine, stream);
}

zero_status zi_engine_shard_set_sources(zero_engine *engine, const zi_io_source *state,
                                        const zi_io_source *param)
{
    const zero_status first =
        put_source(engine, engine->step_stream, window_of(engine, ZERO_ROLE_MASTER), state);
    const zero_status second = put_source(engine, zi_engine_offload_stream(engine, ZERO_ROLE_PARAM),
                                          window_of(engine, ZERO_ROLE_PARAM), param);
    return first != ZERO_OK ? first : second;
}

engine_stored zi_engine_shard_stored(const zero_engine *engine, const engine_shard *shard,
                                     uint64_t first)
{
    uint64_t at = 0;
    if (shard->tier != ZERO_TIER_DISK) {
        return (engine_stored){.file = -1};
    }
    const engine_extent extent = zi_engine_shard_extent(engine, shard, first);
    if (!zi_window_find(window_of(engine, shard->role), extent.index, &at)) {
        return (engine_stored){.file = -1};
    }
    const zi_stripe_place lies = zi_stripe_find(zi_store_map(engine->store), at + extent.at);
    return (engine_stored){
        .file = zi_store_fd(engine->store, lies.file),
        .at = lies.offset,
        .bytes = zi_min_u64(lies.bytes, extent.count * zero_dtype_bytes(shard->dtype))};
}

zero_status zi_engine_begin_transfer(zero_engine *engine, zero_role role, bool writes)
{
    ZI_TRY(zi_engine_await(engine, engine->stepped));
    /* Units that were gathered ahead become stale, on all ranks, since all make the call. */
    return writes && role == ZERO_ROLE_PARAM ? zi_params_refill_begin(engine->params) : ZERO_OK;
}

static zero_status transfer(zero_engine *engine, uint32_t tensor, zero_role role,
                            const zi_optim_move *given)
{
    const engine_shard shard = zi_engine_shard(engine, tensor, role);
    zi_optim_move move = *given;
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
    move.first -= shard.tensor_first;
    move.dtype = shard.dtype;
    return move_values(engine, &shard, &move);
}

zero_status zero_shard_read(zero_engine *engine, uint32_t tensor, zero_role role, uint64_t first,
                            uint64_t count, void *values)
{
    ZI_TRY(shard_check(engine, tensor, role));
    const zi_optim_move move = {.first = first, .count = count, .values = values};
    return zi_engine_finish(engine, transfer(engine, tensor, role, &move));
}

zero_status zero_shard_write(zero_engine *engine, uint32_t tensor, zero_role role, uint64_t first,
                             uint64_t count, const void *values)
{
    ZI_TRY(shard_check(engine, tensor, role));
    const union {
        const void *given;
        void *plain; /* a move's values go either way; these are only read */
    } source = {values};
    const zi_optim_move move = {
        .first = first, .count = count, .values = source.plain, .writes = true};
    return zi_engine_finish(engine, transfer(engine, tensor, role, &move));
}
