/* Owns the moves between a shelf and memory of the device. Invariant: the ring of a shelf on disk
 * is used by tasks of the shelf's stream alone. */
#include "offload/shelf.h"

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"

struct zi_shelf {
    zi_shelf_desc desc;
    zi_ring *ring; /* NULL: on the host */
};

/* What tasks are given. */
typedef struct shelf_work {
    zi_shelf *shelf;
    zi_shelf_move move;
} shelf_work;

_Static_assert(sizeof(shelf_work) <= ZI_TASK_ARGUMENT_BYTES, "travels by value");

static zero_status make_ring(zi_shelf *shelf)
{
    const zi_shelf_place *place = shelf->desc.place;
    const zi_ring_desc ring = {.ranges = place->records,
                               .range_count = place->record_count,
                               .slot_count = place->ring_slots,
                               .slot_bytes = place->record_bytes_max,
                               .memory = shelf->desc.ring_memory,
                               .io_depth = shelf->desc.io_depth,
                               .store = shelf->desc.store,
                               .sums = shelf->desc.sums,
                               .pool = shelf->desc.pool,
                               .layout = shelf->desc.layout,
                               .role = shelf->desc.role,
                               .backend = shelf->desc.backend};
    return place->ring_slots != 0 ? zi_ring_create(&ring, &shelf->ring) : ZERO_OK;
}

zero_status zi_shelf_create(const zi_shelf_desc *desc, zi_shelf **out)
{
    *out = NULL;
    zi_shelf *shelf = NULL;
    ZI_TRY(zi_calloc(1, sizeof *shelf, (void **)&shelf));
    shelf->desc = *desc;
    const zero_status status = make_ring(shelf);
    if (status != ZERO_OK) {
        zi_shelf_destroy(shelf);
        return status;
    }
    *out = shelf;
    return ZERO_OK;
}

void zi_shelf_destroy(zi_shelf *shelf)
{
    if (shelf != NULL) {
        zi_ring_destroy(shelf->ring);
        zi_free(shelf);
    }
}

unsigned char *zi_shelf_memory(const zi_shelf *shelf, uint32_t record)
{
    return shelf->desc.arena != NULL ? shelf->desc.arena + shelf->desc.place->records[record].at
                                     : NULL;
}

void zi_shelf_go_on(const zi_shelf *shelf, zi_shelf_move *move, bool down)
{
    const uint32_t left = down ? move->record : shelf->desc.place->record_count - 1 - move->record;
    move->next_count = left < ZI_RING_AHEAD ? left : ZI_RING_AHEAD;
    for (uint32_t i = 0; i < move->next_count; i++) {
        move->next[i] = down ? move->record - 1 - i : move->record + 1 + i;
    }
}

zero_status zi_shelf_at(zi_shelf *shelf, uint32_t record, bool writes, unsigned char **memory)
{
    zi_ring_expect(shelf->ring, NULL, 0);
    return zi_ring_at(shelf->ring, record, writes, memory);
}

/* For a task: whether there is nothing to move after all. */
static bool is_spared(const zi_shelf_move *move)
{
    return move->unless != NULL && *move->unless != 0;
}

/* Within a task: bytes between a record and memory of the device. When this returns the record may
 * be written or lent to another. */
static zero_status copy(const zi_shelf *shelf, void *target, const void *source, uint64_t bytes)
{
    const zi_device *device = shelf->desc.device;
    zi_stream *stream = shelf->desc.stream;
    ZI_TRY(device->ops->copy(device->self, stream, target, source, bytes));
    return device->ops->drain(device->self, stream);
}

static zero_status run_load(void *argument)
{
    const shelf_work *work = argument;
    const zi_shelf_move *move = &work->move;
    unsigned char *record = NULL;
    if (is_spared(move)) {
        return ZERO_OK;
    }
    zi_ring_expect(work->shelf->ring, move->next, move->next_count);
    ZI_TRY(zi_ring_at(work->shelf->ring, move->record, false, &record));
    return copy(work->shelf, move->memory, record + move->at, move->bytes);
}

static zero_status run_store(void *argument)
{
    const shelf_work *work = argument;
    const zi_shelf_move *move = &work->move;
    zi_shelf *shelf = work->shelf;
    unsigned char *record = NULL;
    if (is_spared(move)) {
        return ZERO_OK;
    }
    ZI_TRY(move->replaces ? zi_ring_replace(shelf->ring, move->record, &record)
                          : zi_shelf_at(shelf, move->record, true, &record));
    return copy(shelf, record + move->at, move->memory, move->bytes);
}

static zero_status enqueue(zi_shelf *shelf, zi_task_fn fn, const shelf_work *work)
{
    const zi_device *device = shelf->desc.device;
    return device->ops->task(device->self, shelf->desc.stream, fn, work, sizeof *work);
}

/* Either way; a record of nothing has nothing to move. */
static zero_status move_bytes(zi_shelf *shelf, const zi_shelf_move *move, bool stores)
{
    const zi_device *device = shelf->desc.device;
    if (move->bytes == 0) {
        return ZERO_OK;
    }
    zi_assert_cmp(move->record, <, shelf->desc.place->record_count);
    zi_assert_cmp(move->at + move->bytes, <=, shelf->desc.place->records[move->record].bytes);
    if (shelf->ring != NULL) {
        const shelf_work work = {.shelf = shelf, .move = *move};
        return enqueue(shelf, stores ? run_store : run_load, &work);
    }
    unsigned char *place = zi_shelf_memory(shelf, move->record) + move->at;
    return stores ? device->ops->copy(device->self, shelf->desc.stream, place, move->memory,
                                      move->bytes)
                  : device->ops->copy(device->self, shelf->desc.stream, move->memory, place,
                                      move->bytes);
}

zero_status zi_shelf_load(zi_shelf *shelf, const zi_shelf_move *move)
{
    return move_bytes(shelf, move, false);
}

zero_status zi_shelf_store(zi_shelf *shelf, const zi_shelf_move *move)
{
    return move_bytes(shelf, move, true);
}

static zero_status rest(void *argument)
{
    const shelf_work *work = argument;
    return zi_ring_rest(work->shelf->ring);
}

zero_status zi_shelf_rest(zi_shelf *shelf)
{
    const shelf_work work = {.shelf = shelf};
    return shelf->ring != NULL ? enqueue(shelf, rest, &work) : ZERO_OK;
}

static zero_status quiet(void *argument)
{
    const shelf_work *work = argument;
    zi_ring_quiet(work->shelf->ring);
    return ZERO_OK;
}

zero_status zi_shelf_quiet(zi_shelf *shelf)
{
    const zi_device *device = shelf->desc.device;
    const shelf_work work = {.shelf = shelf};
    return shelf->ring != NULL ? device->ops->task_always(device->self, shelf->desc.stream, quiet,
                                                          &work, sizeof work)
                               : ZERO_OK;
}

const zi_ring *zi_shelf_ring(const zi_shelf *shelf)
{
    return shelf->ring;
}

zi_ring_counts zi_shelf_count(const zi_shelf *shelf)
{
    return shelf->ring != NULL ? zi_ring_count(shelf->ring) : (zi_ring_counts){0};
}
