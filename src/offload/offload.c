/* Owns the moves between offloaded shards and memory of the device. Invariant: a task holds one
 * extent at a time, and gives it back before it waits for anything but the disk or its stream. */
#include "offload/offload.h"

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "device/stream_span.h"

struct zi_offload {
    zi_offload_desc desc;
    zi_window *window; /* NULL: on the host */
};

/* What tasks are given. */
typedef struct offload_work {
    zi_offload *offload;
    zi_stream *stream;
    bool stores;
    zi_offload_move move;
} offload_work;

_Static_assert(sizeof(offload_work) <= ZI_TASK_ARGUMENT_BYTES, "travels by value");

static zero_status offload_make_window(zi_offload *offload)
{
    const zi_offload_desc *desc = &offload->desc;
    const zi_offload_place *place = &desc->layout->offload[desc->role];
    const zi_window_desc window = {.extents = place->extents,
                                   .extent_count = place->extent_count,
                                   .slot_count = place->window_slots,
                                   .slot_bytes = place->extent_bytes_max,
                                   .memory = desc->window_memory,
                                   .io_depth = desc->layout->tuning.io_depth,
                                   .shared = true,
                                   .store = desc->store,
                                   .sums = desc->sums,
                                   .pool = desc->pool,
                                   .layout = desc->layout,
                                   .role = desc->role,
                                   .timeline = desc->device->timeline,
                                   .backend = desc->backend};
    return place->window_slots != 0 ? zi_window_create(&window, &offload->window) : ZERO_OK;
}

zero_status zi_offload_create(const zi_offload_desc *desc, zi_offload **out)
{
    *out = NULL;
    zi_offload *offload = NULL;
    ZI_TRY(zi_calloc(1, sizeof *offload, (void **)&offload));
    offload->desc = *desc;
    const zero_status status = offload_make_window(offload);
    if (status != ZERO_OK) {
        zi_offload_destroy(offload);
        return status;
    }
    *out = offload;
    return ZERO_OK;
}

void zi_offload_destroy(zi_offload *offload)
{
    if (offload != NULL) {
        zi_window_destroy(offload->window);
        zi_free(offload);
    }
}

static zi_extent_place offload_find(const zi_offload *offload, uint32_t flat, uint64_t element)
{
    return zi_layout_find_extent(offload->desc.layout, offload->desc.role, flat, element);
}

zi_window_run zi_offload_run(const zi_offload *offload, zi_offload_element element)
{
    const uint32_t index = offload_find(offload, element.flat, element.index).index;
    return (zi_window_run){index, index};
}

/* What comes after an extent: those up to `end` of its flat, then the shards of other flats.
 * Returns how many runs these are. */
static uint32_t list_runs(const zi_offload *offload, uint32_t flat, const zi_extent_place *place,
                          uint64_t end, const uint32_t *next, uint32_t next_count,
                          zi_window_run runs[1 + ZI_WINDOW_AHEAD])
{
    uint32_t count = 0;
    if (place->first + place->count < end) {
        runs[count++] =
            (zi_window_run){place->index + 1, offload_find(offload, flat, end - 1).index};
    }
    for (uint32_t i = 0; i < next_count && i < ZI_WINDOW_AHEAD; i++) {
        const zi_flat *other = &offload->desc.layout->flats[next[i]];
        const uint32_t first = other->extent_first[offload->desc.role];
        const uint32_t extents =
            zi_flat_extent_count(offload->desc.layout, other, offload->desc.role);
        if (extents != 0) {
            runs[count++] = (zi_window_run){first, first + extents - 1};
        }
    }
    return count;
}

zero_status zi_offload_acquire_before(zi_offload *offload, zi_offload_element element,
                                      zi_window_access access, const zi_window_run *next,
                                      uint32_t next_count, zi_extent_place *place,
                                      unsigned char **memory)
{
    *place = offload_find(offload, element.flat, element.index);
    return zi_window_acquire_before(offload->window, place->index, access, next, next_count,
                                    memory);
}

zero_status zi_offload_acquire(zi_offload *offload, zi_offload_element element,
                               zi_window_access access, const uint32_t *next, uint32_t next_count,
                               zi_extent_place *place, unsigned char **memory)
{
    zi_window_run runs[1 + ZI_WINDOW_AHEAD];
    *place = offload_find(offload, element.flat, element.index);
    const uint32_t count =
        list_runs(offload, element.flat, place, element.end, next, next_count, runs);
    return zi_window_acquire_before(offload->window, place->index, access, runs, count, memory);
}

zero_status zi_offload_release(zi_offload *offload, const zi_extent_place *place, bool dirty)
{
    return zi_window_release(offload->window, place->index, dirty);
}

/* Within a task: bytes between an extent and memory of the device. When this returns the extent may
 * be written or given to another. */
static zero_status offload_copy(const offload_work *work, void *target, const void *source,
                                uint64_t bytes)
{
    const zi_device *device = work->offload->desc.device;
    ZI_TRY(device->ops->copy(device->self, work->stream, target, source, bytes));
    return device->ops->drain(device->self, work->stream);
}

/* The part of a move that is in one extent, which is acquired. */
static zero_status offload_move_extent(const offload_work *work, const zi_extent_place *place,
                                       unsigned char *extent)
{
    const zi_offload_move *move = &work->move;
    const zi_offload_desc *desc = &work->offload->desc;
    const zi_codec codec = desc->layout->flats[move->flat].kept[desc->role];
    const uint64_t begin = zi_max_u64(place->first, move->first);
    const uint64_t end = zi_min_u64(place->first + place->count, move->first + move->count);
    unsigned char *memory =
        (unsigned char *)move->memory + zi_codec_offset(codec, begin - move->first);
    const uint64_t bytes = zi_codec_bytes(codec, end - begin);
    extent += zi_codec_offset(codec, begin - place->first);
    return work->stores ? offload_copy(work, extent, memory, bytes)
                        : offload_copy(work, memory, extent, bytes);
}

static zero_status offload_run_move(const offload_work *work)
{
    zi_offload *offload = work->offload;
    const zi_offload_move *move = &work->move;
    const uint64_t end = move->first + move->count;
    for (uint64_t at = move->first; at < end;) {
        zi_extent_place place = offload_find(offload, move->flat, at);
        const bool whole = work->stores && place.first == at && place.first + place.count <= end;
        const zi_offload_element element = {.flat = move->flat, .index = at, .end = end};
        unsigned char *extent = NULL;
        ZI_TRY(zi_offload_acquire(offload, element, whole ? ZI_WINDOW_REPLACES : ZI_WINDOW_READS,
                                  move->next, move->next_count, &place, &extent));
        ZI_TRY(offload_move_extent(work, &place, extent));
        ZI_TRY(zi_offload_release(offload, &place, work->stores));
        at = place.first + place.count;
    }
    return ZERO_OK;
}

static zero_status move_task(void *argument)
{
    const offload_work *work = argument;
    const zi_offload_desc *desc = &work->offload->desc;
    const zero_status status = offload_run_move(work);
    if (status != ZERO_OK) {
        const zero_error error = *zero_last_error();
        desc->failed(desc->user, &error);
        return zi_error_adopt(&error);
    }
    return ZERO_OK;
}

static zero_status enqueue(zi_offload *offload, zi_stream *stream, zi_task_fn fn,
                           const offload_work *work)
{
    const zi_device *device = offload->desc.device;
    return device->ops->task(device->self, stream, fn, work, sizeof *work);
}

static zero_status put_move(zi_offload *offload, zi_stream *stream, const zi_offload_move *move,
                            bool stores)
{
    const zi_device *device = offload->desc.device;
    const zi_flat *flat = &offload->desc.layout->flats[move->flat];
    if (offload->window != NULL) {
        const offload_work work = {offload, stream, stores, *move};
        return enqueue(offload, stream, move_task, &work);
    }
    const zi_codec codec = flat->kept[offload->desc.role];
    unsigned char *shard =
        offload->desc.arena + flat->at[offload->desc.role] + zi_codec_offset(codec, move->first);
    const uint64_t bytes = zi_codec_bytes(codec, move->count);
    return stores ? device->ops->copy(device->self, stream, shard, move->memory, bytes)
                  : device->ops->copy(device->self, stream, move->memory, shard, bytes);
}

static zero_status move_elements(zi_offload *offload, zi_stream *stream,
                                 const zi_offload_move *move, bool stores)
{
    const zi_device *device = offload->desc.device;
    const zi_layout *layout = offload->desc.layout;
    const zi_flat *flat = &layout->flats[move->flat];
    zi_mark *mark = NULL;
    if (move->count == 0) {
        return ZERO_OK;
    }
    ZI_TRY(zi_stream_begin(device, stream, stores ? ZI_SPAN_STORE : ZI_SPAN_LOAD,
                           layout->unit_infos[flat->unit].name,
                           zi_codec_bytes(flat->kept[offload->desc.role], move->count), &mark));
    ZI_TRY(put_move(offload, stream, move, stores));
    return zi_stream_end(device, stream, mark);
}

zero_status zi_offload_load(zi_offload *offload, zi_stream *stream, const zi_offload_move *move)
{
    return move_elements(offload, stream, move, false);
}

zero_status zi_offload_store(zi_offload *offload, zi_stream *stream, const zi_offload_move *move)
{
    return move_elements(offload, stream, move, true);
}

static zero_status offload_flush(void *argument)
{
    const offload_work *work = argument;
    return zi_window_flush(work->offload->window);
}

zero_status zi_offload_flush(zi_offload *offload, zi_stream *stream)
{
    const offload_work work = {.offload = offload};
    return offload->window != NULL ? enqueue(offload, stream, offload_flush, &work) : ZERO_OK;
}

zi_window *zi_offload_window(const zi_offload *offload)
{
    return offload->window;
}
