/* Owns the moves of shards from and to every tier. Invariant: a task holds one extent at a time,
 * and gives it back before it waits for anything but the disk or its stream. */
#include "offload/shards.h"

#include <string.h>

#include "core/codec.h"
#include "core/error.h"
#include "core/sizes.h"
#include "device/stream_span.h"

/* The argument of tasks. */
typedef struct shards_work {
    const zi_shards *shards;
    zi_stream *stream;
    bool stores;
    zi_shards_move move;
} shards_work;

typedef struct values_work {
    const zi_shards *shards;
    zi_shards_values values;
} values_work;

_Static_assert(sizeof(shards_work) <= ZI_TASK_ARGUMENT_BYTES, "travels by value");
_Static_assert(sizeof(values_work) <= ZI_TASK_ARGUMENT_BYTES, "travels by value");

void zi_shards_make(zi_shards *shards, const zi_shards_desc *desc)
{
    *shards = (zi_shards){.desc = *desc};
}

static zi_extent_place shards_find(const zi_shards *shards, uint32_t flat, uint64_t element)
{
    return zi_layout_find_extent(shards->desc.layout, shards->desc.role, flat, element);
}

zi_window_range zi_shards_range(const zi_shards *shards, zi_shards_element element)
{
    const uint32_t index = shards_find(shards, element.flat, element.index).index;
    return (zi_window_range){index, index};
}

/* List the ranges after an extent: those up to `end` of its flat, then the shards of other flats.
 * Returns their number. */
static uint32_t list_ranges(const zi_shards *shards, uint32_t flat, const zi_extent_place *place,
                            uint64_t end, const uint32_t *next, uint32_t next_count,
                            zi_window_range ranges[1 + ZI_WINDOW_AHEAD])
{
    uint32_t count = 0;
    if (place->first + place->count < end) {
        ranges[count++] =
            (zi_window_range){place->index + 1, shards_find(shards, flat, end - 1).index};
    }
    for (uint32_t i = 0; i < next_count && i < ZI_WINDOW_AHEAD; i++) {
        const zi_flat *other = &shards->desc.layout->flats[next[i]];
        const uint32_t first = other->extent_first[shards->desc.role];
        const uint32_t extents =
            zi_flat_extent_count(shards->desc.layout, other, shards->desc.role);
        if (extents != 0) {
            ranges[count++] = (zi_window_range){first, first + extents - 1};
        }
    }
    return count;
}

zero_status zi_shards_acquire_before(const zi_shards *shards, zi_shards_element element,
                                     zi_window_access access, const zi_window_range *next,
                                     uint32_t next_count, zi_extent_place *place,
                                     unsigned char **memory)
{
    *place = shards_find(shards, element.flat, element.index);
    ZI_TRY(zi_window_acquire_before(shards->desc.window, place->index, access, next, next_count,
                                    memory));
    *memory += place->at;
    return ZERO_OK;
}

zero_status zi_shards_acquire(const zi_shards *shards, zi_shards_element element,
                              zi_window_access access, const uint32_t *next, uint32_t next_count,
                              zi_extent_place *place, unsigned char **memory)
{
    zi_window_range ranges[1 + ZI_WINDOW_AHEAD];
    const zi_extent_place first = shards_find(shards, element.flat, element.index);
    const uint32_t count =
        list_ranges(shards, element.flat, &first, element.end, next, next_count, ranges);
    return zi_shards_acquire_before(shards, element, access, ranges, count, place, memory);
}

zero_status zi_shards_release(const zi_shards *shards, const zi_extent_place *place, bool dirty)
{
    return zi_window_release(shards->desc.window, place->index, dirty);
}

/* Within a task: bytes between an extent and memory of the device. When this returns the extent may
 * be written or given to another. */
static zero_status shards_copy(const shards_work *work, void *target, const void *source,
                               uint64_t bytes)
{
    const zi_device *device = work->shards->desc.device;
    ZI_TRY(device->ops->copy(device->self, work->stream, target, source, bytes));
    return device->ops->drain(device->self, work->stream);
}

/* The part of a move that is in one extent, which is acquired. */
static zero_status shards_move_extent(const shards_work *work, const zi_extent_place *place,
                                      unsigned char *extent)
{
    const zi_shards_move *move = &work->move;
    const zi_shards_desc *desc = &work->shards->desc;
    const zi_codec codec = desc->layout->flats[move->flat].kept[desc->role];
    const uint64_t begin = zi_max_u64(place->first, move->first);
    const uint64_t end = zi_min_u64(place->first + place->count, move->first + move->count);
    unsigned char *memory =
        (unsigned char *)move->memory + zi_codec_bytes(codec, begin - move->first);
    const uint64_t bytes = zi_codec_bytes(codec, end - begin);
    extent += zi_codec_bytes(codec, begin - place->first);
    return work->stores ? shards_copy(work, extent, memory, bytes)
                        : shards_copy(work, memory, extent, bytes);
}

static zero_status shards_run_move(const shards_work *work)
{
    const zi_shards *shards = work->shards;
    const zi_shards_move *move = &work->move;
    const uint64_t end = move->first + move->count;
    for (uint64_t at = move->first; at < end;) {
        zi_extent_place place = shards_find(shards, move->flat, at);
        /* An extent of states has others' elements too. */
        const bool whole = work->stores && place.first == at && place.first + place.count <= end &&
                           !zi_role_is_state(shards->desc.role);
        const zi_shards_element element = {.flat = move->flat, .index = at, .end = end};
        unsigned char *extent = NULL;
        ZI_TRY(zi_shards_acquire(shards, element, whole ? ZI_WINDOW_REPLACES : ZI_WINDOW_READS,
                                 move->next, move->next_count, &place, &extent));
        ZI_TRY(shards_move_extent(work, &place, extent));
        ZI_TRY(zi_shards_release(shards, &place, work->stores));
        at = place.first + place.count;
    }
    return ZERO_OK;
}

static zero_status move_task(void *argument)
{
    const shards_work *work = argument;
    const zi_shards_desc *desc = &work->shards->desc;
    const zero_status status = shards_run_move(work);
    if (status != ZERO_OK) {
        const zero_error error = *zero_last_error();
        desc->failed(desc->user, &error);
        return zi_error_adopt(&error);
    }
    return ZERO_OK;
}

static zero_status put_move(const zi_shards *shards, zi_stream *stream, const zi_shards_move *move,
                            bool stores)
{
    const zi_device *device = shards->desc.device;
    const zi_codec codec = shards->desc.layout->flats[move->flat].kept[shards->desc.role];
    if (zi_shards_on_disk(shards)) {
        const shards_work work = {shards, stream, stores, *move};
        return device->ops->task(device->self, stream, move_task, &work, sizeof work);
    }
    unsigned char *shard = zi_shards_at(shards, move->flat, move->first);
    const uint64_t bytes = zi_codec_bytes(codec, move->count);
    return stores ? device->ops->copy(device->self, stream, shard, move->memory, bytes)
                  : device->ops->copy(device->self, stream, move->memory, shard, bytes);
}

static zero_status move_elements(const zi_shards *shards, zi_stream *stream,
                                 const zi_shards_move *move, bool stores)
{
    const zi_device *device = shards->desc.device;
    const zi_layout *layout = shards->desc.layout;
    const zi_flat *flat = &layout->flats[move->flat];
    zi_mark *mark = NULL;
    if (move->count == 0) {
        return ZERO_OK;
    }
    ZI_TRY(zi_stream_begin(device, stream, stores ? ZI_SPAN_STORE : ZI_SPAN_LOAD,
                           layout->unit_infos[flat->unit].name,
                           zi_codec_bytes(flat->kept[shards->desc.role], move->count), &mark));
    ZI_TRY(put_move(shards, stream, move, stores));
    return zi_stream_end(device, stream, mark);
}

zero_status zi_shards_load(const zi_shards *shards, zi_stream *stream, const zi_shards_move *move)
{
    return move_elements(shards, stream, move, false);
}

zero_status zi_shards_store(const zi_shards *shards, zi_stream *stream, const zi_shards_move *move)
{
    return move_elements(shards, stream, move, true);
}

/* ---- values of any type ---- */

/* How the values lie: as they are kept, where that is their type. */
static zi_codec values_codec(zi_codec kept, const zi_shards_values *values)
{
    return (zi_codec){values->dtype, kept.by_block && values->dtype == kept.dtype};
}

/* The values that are in one extent, which is acquired. */
static zero_status convert_extent(const values_work *work, const zi_extent_place *place,
                                  unsigned char *extent)
{
    const zi_shards_values *v = &work->values;
    const zi_shards_desc *desc = &work->shards->desc;
    const zi_kernels *kernels = desc->host_kernels; /* both are the host's */
    const zi_codec codec = desc->layout->flats[v->flat].kept[desc->role];
    const zero_dtype dtype = codec.dtype;
    const uint64_t begin = zi_max_u64(place->first, v->first);
    const uint64_t end = zi_min_u64(place->first + place->count, v->first + v->count);
    zi_stream *host = NULL;
    ZI_TRY(kernels->device->ops->stream_wrap(kernels->device->self, zero_stream_host(), &host));
    unsigned char *held = extent + zi_codec_bytes(codec, begin - place->first);
    unsigned char *values =
        (unsigned char *)v->values + zi_codec_bytes(values_codec(codec, v), begin - v->first);
    if (dtype == v->dtype) {
        const uint64_t bytes = zi_codec_bytes(codec, end - begin);
        memcpy(v->writes ? held : values, v->writes ? values : held, bytes);
        return ZERO_OK;
    }
    return v->writes
               ? kernels->ops->cast(kernels->self, host, held, dtype, values, v->dtype, end - begin)
               : kernels->ops->cast(kernels->self, host, values, v->dtype, held, dtype,
                                    end - begin);
}

static zero_status convert_task(void *argument)
{
    const values_work *work = argument;
    const zi_shards_values *v = &work->values;
    const uint64_t end = v->first + v->count;
    for (uint64_t at = v->first; at < end;) {
        const zi_shards_element element = {.flat = v->flat, .index = at, .end = end};
        zi_extent_place place;
        unsigned char *extent = NULL;
        ZI_TRY(zi_shards_acquire(work->shards, element, ZI_WINDOW_READS, NULL, 0, &place, &extent));
        ZI_TRY(convert_extent(work, &place, extent));
        ZI_TRY(zi_shards_release(work->shards, &place, v->writes));
        at = place.first + place.count;
    }
    return ZERO_OK;
}

zero_status zi_shards_convert(const zi_shards *shards, zi_stream *stream, const zi_shards_values *v)
{
    const zi_device *device = shards->desc.device;
    const zi_kernels *kernels = shards->desc.kernels;
    const values_work work = {shards, *v};
    const zi_codec codec = shards->desc.layout->flats[v->flat].kept[shards->desc.role];
    const zero_dtype dtype = codec.dtype;
    if (v->count == 0) {
        return ZERO_OK;
    }
    if (zi_shards_on_disk(shards)) {
        return device->ops->task(device->self, stream, convert_task, &work, sizeof work);
    }
    unsigned char *held = zi_shards_at(shards, v->flat, v->first);
    void *target = v->writes ? held : v->values;
    const void *source = v->writes ? v->values : held;
    if (dtype == v->dtype) {
        return device->ops->copy(device->self, stream, target, source,
                                 zi_codec_bytes(codec, v->count));
    }
    return kernels->ops->cast(kernels->self, stream, target, v->writes ? dtype : v->dtype, source,
                              v->writes ? v->dtype : dtype, v->count);
}

static zero_status flush_task(void *argument)
{
    zi_window *const *window = argument;
    return zi_window_flush(*window);
}

zero_status zi_shards_flush(const zi_shards *shards, zi_stream *stream)
{
    const zi_device *device = shards->desc.device;
    zi_window *window = shards->desc.window;
    return window != NULL
               ? device->ops->task(device->self, stream, flush_task, &window, sizeof window)
               : ZERO_OK;
}
