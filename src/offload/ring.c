/* Owns the slots of a ring. Invariant: a record is in at most one slot; a slot's memory is touched
 * only while nothing is in flight for it; the slot given to a record is the one whose own is
 * farthest from the walk, so what is read and written follows from the walks alone. */
#include "offload/ring.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/checksum.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"

/* Of whose bytes something is said. */
#define NAME_BYTES 120

typedef struct ring_slot {
    zi_io_op op;
    unsigned char *memory;
    uint32_t range; /* ZI_NO_INDEX: none */
    bool busy;      /* op was started and not waited for */
    bool fetched;   /* for a turn that has not come yet */
    uint64_t
        *unchecked; /* checksums that what is read into it is to be compared with; NULL: none */
} ring_slot;

/* Where a record is in the store. */
typedef struct ring_record {
    bool written;       /* the store holds it */
    bool beside;        /* it has changed places with its draft */
    bool drafted;       /* the store holds its draft */
    uint64_t sum_first; /* of the ring's checksums, those of the place that is not beside */
} ring_record;

struct zi_ring {
    const zi_range *ranges;
    uint32_t range_count;
    uint32_t slot_count;
    uint64_t slot_bytes;
    uint32_t io_depth;
    const zi_store *store;
    uint64_t *sums;
    uint64_t draft_sums; /* of these, the first of a draft */
    zi_pool *pool;
    const zi_layout *layout;
    zero_role role;
    zi_io *queue;         /* NULL: suspended */
    zi_io_report report;  /* of the queue, or the one before it was suspended */
    ring_record *records; /* by range */
    uint64_t draft_at;
    bool drafting;
    ring_slot *slots;
    ring_slot *held;  /* the record at hand; NULL: none */
    bool dirty;       /* it is to be written */
    uint32_t current; /* where the walk stands */
    uint32_t last;    /* where it ends */
    bool named;       /* no walk: `next` come after the one at hand */
    uint32_t next[ZI_RING_AHEAD];
    uint32_t next_count;
    atomic_uint_fast64_t read_bytes;
    atomic_uint_fast64_t write_bytes;
    atomic_uint_fast64_t hits;
    atomic_uint_fast64_t wait_ns[ZI_IO_KINDS];
    atomic_uint_fast64_t check_ns;
};

static zero_status open_queue(zi_ring *ring, unsigned char *memory,
                              const struct zi_io_backend *backend)
{
    const zi_io_region region = {memory, ring->slot_count * ring->slot_bytes};
    const zi_io_options options = {.store = ring->store,
                                   .regions = &region,
                                   .region_count = 1,
                                   .file_depth = ring->io_depth,
                                   .backend = backend};
    ZI_TRY(zi_io_create(&options, &ring->queue));
    ring->report = *zi_io_report_of(ring->queue);
    return ZERO_OK;
}

/* No record is in any. */
static void empty_slots(zi_ring *ring, unsigned char *memory)
{
    for (uint32_t i = 0; i < ring->slot_count; i++) {
        ring->slots[i] = (ring_slot){.memory = memory + i * ring->slot_bytes, .range = ZI_NO_INDEX};
    }
}

/* Where each record's checksums begin; those of drafts are behind all others. */
static void place_sums(zi_ring *ring)
{
    uint64_t first = 0;
    for (uint32_t i = 0; i < ring->range_count; i++) {
        ring->records[i].sum_first = first;
        first += zi_checksum_count(ring->ranges[i].bytes);
    }
    ring->draft_sums = first;
}

static zero_status build(zi_ring *ring, const zi_ring_desc *desc)
{
    ZI_TRY(open_queue(ring, desc->memory, desc->backend));
    ZI_TRY(zi_calloc(ring->range_count, sizeof *ring->records, (void **)&ring->records));
    ZI_TRY(zi_calloc(ring->slot_count, sizeof *ring->slots, (void **)&ring->slots));
    empty_slots(ring, desc->memory);
    place_sums(ring);
    return ZERO_OK;
}

zero_status zi_ring_create(const zi_ring_desc *desc, zi_ring **out)
{
    *out = NULL;
    zi_ring *ring = NULL;
    zi_assert(desc->slot_count >= 3 || desc->slot_count >= desc->range_count);
    ZI_TRY(zi_calloc(1, sizeof *ring, (void **)&ring));
    ring->ranges = desc->ranges;
    ring->range_count = desc->range_count;
    ring->slot_count = desc->slot_count;
    ring->slot_bytes = desc->slot_bytes;
    ring->io_depth = desc->io_depth;
    ring->draft_at = desc->draft_at;
    ring->store = desc->store;
    ring->sums = desc->sums;
    ring->pool = desc->pool;
    ring->layout = desc->layout;
    ring->role = desc->role;
    const zero_status status = build(ring, desc);
    if (status != ZERO_OK) {
        zi_ring_destroy(ring);
        return status;
    }
    *out = ring;
    return ZERO_OK;
}

void zi_ring_destroy(zi_ring *ring)
{
    if (ring != NULL) {
        zi_io_destroy(ring->queue);
        zi_free(ring->slots);
        zi_free(ring->records);
        zi_free(ring);
    }
}

static void count(atomic_uint_fast64_t *counter, uint64_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

static ring_slot *slot_of(zi_ring *ring, uint32_t range)
{
    for (uint32_t i = 0; i < ring->slot_count; i++) {
        if (ring->slots[i].range == range) {
            return &ring->slots[i];
        }
    }
    return NULL;
}

/* Records from where the walk stands to `range`; negative: the walk does not come to it. */
static int64_t ahead(const zi_ring *ring, uint32_t range)
{
    for (uint32_t i = 0; ring->named && i < ring->next_count; i++) {
        if (ring->next[i] == range) {
            return i + 1;
        }
    }
    if (ring->named) {
        return range == ring->current ? 0 : -1;
    }
    const int64_t way = (int64_t)range - ring->current;
    const int64_t end = (int64_t)ring->last - ring->current;
    const int64_t forward = end < 0 ? -way : way;
    return forward <= (end < 0 ? -end : end) ? forward : -1;
}

/* Whether the walk comes to the record before the slots have gone round. */
static bool is_wanted(const zi_ring *ring, uint32_t range)
{
    const int64_t steps = ahead(ring, range);
    return steps >= 0 && steps < ring->slot_count;
}

/* The slot to give to another record: an empty one, or the farthest from the walk. */
static ring_slot *spare(zi_ring *ring)
{
    ring_slot *best = NULL;
    uint64_t farthest = 0;
    for (uint32_t i = 0; i < ring->slot_count; i++) {
        ring_slot *slot = &ring->slots[i];
        if (slot == ring->held || (slot->range != ZI_NO_INDEX && is_wanted(ring, slot->range))) {
            continue;
        }
        const int64_t way = (int64_t)slot->range - ring->current;
        const uint64_t far =
            slot->range == ZI_NO_INDEX ? UINT64_MAX : (uint64_t)(way < 0 ? -way : way);
        if (best == NULL || far > farthest) {
            best = slot;
            farthest = far;
        }
    }
    zi_assert(best != NULL);
    return best;
}

static zi_extent extent_of(const ring_slot *slot)
{
    return (zi_extent){slot->memory, slot->op.offset, slot->op.bytes};
}

/* Whose bytes of the slot's last transfer are. */
static void name(const zi_ring *ring, const ring_slot *slot, uint64_t at, uint64_t bytes,
                 char text[NAME_BYTES])
{
    if (ring->layout != NULL && slot->range != ZI_NO_INDEX) {
        zi_layout_name_bytes(ring->layout, ring->role, slot->range, at - slot->op.offset, bytes,
                             text, NAME_BYTES);
    } else {
        (void)snprintf(text, NAME_BYTES, "record %" PRIu32, slot->range);
    }
}

/* The slot's transfer failed: say of whose bytes. */
static zero_status failed(const zi_ring *ring, const ring_slot *slot)
{
    const zero_error *error = zero_last_error();
    char what[NAME_BYTES];
    name(ring, slot, slot->op.failed_offset, slot->op.failed_bytes, what);
    ZI_FAIL_NATIVE(error->status, error->native, "%s: %s", what, error->message);
}

/* Compare what was read into the slot with its checksums, once. */
static zero_status check(zi_ring *ring, ring_slot *slot)
{
    const zi_extent extent = extent_of(slot);
    zi_extent bad;
    if (slot->unchecked == NULL) {
        return ZERO_OK;
    }
    const uint64_t start_ns = zi_clock_ns();
    const bool differs = zi_checksum_differs(ring->pool, &extent, slot->unchecked, &bad);
    count(&ring->check_ns, zi_clock_ns() - start_ns);
    slot->unchecked = NULL;
    if (!differs) {
        return ZERO_OK;
    }
    char what[NAME_BYTES];
    name(ring, slot, bad.at, bad.bytes, what);
    return zi_store_damaged(ring->store, bad.at, bad.bytes, what);
}

/* Checksums of where the slot's record is in the store; NULL: the ring has none. */
static uint64_t *sums_of(const zi_ring *ring, const ring_slot *slot, bool beside)
{
    const uint64_t first = ring->records[slot->range].sum_first + (beside ? ring->draft_sums : 0);
    return ring->sums != NULL ? ring->sums + first : NULL;
}

/* Block until nothing is in flight for the slot. */
static zero_status settle(zi_ring *ring, ring_slot *slot)
{
    if (!slot->busy) {
        return ZERO_OK;
    }
    const uint64_t start_ns = slot->op.phase == ZI_IO_RUNNING ? zi_clock_ns() : 0;
    const zero_status status = zi_io_wait(ring->queue, &slot->op);
    if (start_ns != 0) {
        count(&ring->wait_ns[slot->op.kind], zi_clock_ns() - start_ns);
    }
    slot->busy = false;
    return status == ZERO_OK ? ZERO_OK : failed(ring, slot);
}

/* `draft`: of the slot's record its draft. */
static zero_status start(zi_ring *ring, ring_slot *slot, zi_io_kind kind, bool draft)
{
    const zi_range *range = &ring->ranges[slot->range];
    const bool beside = ring->records[slot->range].beside != draft;
    slot->op = (zi_io_op){.kind = kind,
                          .memory = slot->memory,
                          .offset = range->at + (beside ? ring->draft_at : 0),
                          .bytes = range->bytes};
    uint64_t *sums = sums_of(ring, slot, beside);
    slot->unchecked = kind == ZI_IO_READ ? sums : NULL;
    ZI_TRY(zi_io_start(ring->queue, &slot->op));
    slot->busy = true;
    if (sums != NULL && kind == ZI_IO_WRITE) { /* while the disk takes it: both only read it */
        const zi_extent extent = extent_of(slot);
        const uint64_t start_ns = zi_clock_ns();
        zi_checksum_make(ring->pool, &extent, sums);
        count(&ring->check_ns, zi_clock_ns() - start_ns);
    }
    count(kind == ZI_IO_READ ? &ring->read_bytes : &ring->write_bytes, range->bytes);
    return ZERO_OK;
}

/* Give the slot to a record, and read it. */
static zero_status fetch(zi_ring *ring, ring_slot *slot, uint32_t range)
{
    slot->range = range;
    slot->fetched = true;
    slot->unchecked = NULL;
    const ring_record *record = &ring->records[range];
    if (!record->written && !record->drafted) {
        memset(slot->memory, 0, ring->ranges[range].bytes);
        return ZERO_OK;
    }
    return start(ring, slot, ZI_IO_READ, record->drafted);
}

/* The record that comes `steps` after the one the walk stands at; ZI_NO_INDEX: none. */
static uint32_t coming(const zi_ring *ring, uint32_t steps)
{
    if (ring->named && steps != 0) {
        return steps <= ring->next_count ? ring->next[steps - 1] : ZI_NO_INDEX;
    }
    if (ring->last < ring->current) {
        return steps <= ring->current ? ring->current - steps : ZI_NO_INDEX;
    }
    return ring->current + steps;
}

/* Fetch what the walk comes to next, as far as slots are free without waiting. */
static zero_status look_ahead(zi_ring *ring)
{
    zi_io_poll(ring->queue);
    for (uint32_t i = 0; i < ring->slot_count; i++) {
        const uint32_t range = coming(ring, i);
        if (range >= ring->range_count || !is_wanted(ring, range)) {
            break;
        }
        if (slot_of(ring, range) != NULL) {
            continue;
        }
        ring_slot *slot = spare(ring);
        if (slot->busy && slot->op.phase == ZI_IO_RUNNING) {
            break;
        }
        ZI_TRY(settle(ring, slot));
        ZI_TRY(fetch(ring, slot, range));
    }
    return ZERO_OK;
}

static zero_status give_back(zi_ring *ring)
{
    ring_slot *slot = ring->held;
    ring->held = NULL;
    if (slot == NULL || !ring->dirty) {
        return ZERO_OK;
    }
    ring->dirty = false;
    ring_record *record = &ring->records[slot->range];
    record->drafted = ring->drafting;
    record->written = record->written || !ring->drafting;
    return start(ring, slot, ZI_IO_WRITE, ring->drafting);
}

zero_status zi_ring_aim(zi_ring *ring, uint32_t first, uint32_t last)
{
    zi_assert(first < ring->range_count && last < ring->range_count);
    if (!ring->dirty || ring->held->range != first) { /* else it would be written twice */
        ZI_TRY(give_back(ring));
    }
    ring->named = false;
    ring->current = first;
    ring->last = last;
    return look_ahead(ring);
}

void zi_ring_expect(zi_ring *ring, const uint32_t *next, uint32_t count)
{
    zi_assert_cmp(count, <=, ZI_RING_AHEAD);
    ring->named = true;
    ring->next_count = count;
    for (uint32_t i = 0; i < count; i++) {
        ring->next[i] = next[i];
    }
}

/* Wait for the record that is to be the one at hand, and see that it is whole. */
static zero_status receive(zi_ring *ring, ring_slot *slot)
{
    /* Before the wait, so that the reads that follow are under way meanwhile. */
    ZI_TRY(look_ahead(ring));
    ZI_TRY(settle(ring, slot));
    ZI_TRY(look_ahead(ring)); /* the disk goes on while this is compared */
    return check(ring, slot);
}

/* Make the record the one at hand. */
static zero_status move_to(zi_ring *ring, uint32_t range)
{
    ZI_TRY(give_back(ring));
    ring->current = range;
    ring_slot *slot = slot_of(ring, range);
    if (slot == NULL) {
        slot = spare(ring);
        ZI_TRY(settle(ring, slot));
        ZI_TRY(fetch(ring, slot, range));
    }
    ring->held = slot;
    count(&ring->hits, slot->fetched ? 0 : 1);
    slot->fetched = false;
    const zero_status status = receive(ring, slot);
    if (status != ZERO_OK) { /* nobody is ever given what it holds */
        ring->held = NULL;
        slot->range = ZI_NO_INDEX;
    }
    return status;
}

zero_status zi_ring_at(zi_ring *ring, uint32_t range, bool writes, unsigned char **memory)
{
    zi_assert_cmp(range, <, ring->range_count);
    if (ring->held == NULL || ring->held->range != range) {
        ZI_TRY(move_to(ring, range));
    }
    ring->dirty = ring->dirty || writes;
    *memory = ring->held->memory;
    return look_ahead(ring);
}

zero_status zi_ring_replace(zi_ring *ring, uint32_t range, unsigned char **memory)
{
    zi_assert_cmp(range, <, ring->range_count);
    zi_io_poll(ring->queue);
    if (ring->held == NULL || ring->held->range != range) {
        ZI_TRY(give_back(ring));
        ring->current = range;
        ring_slot *slot = slot_of(ring, range);
        slot = slot != NULL ? slot : spare(ring);
        ZI_TRY(settle(ring, slot));
        slot->range = range;
        slot->fetched = false;
        slot->unchecked = NULL;
        ring->held = slot;
    }
    ring->dirty = true;
    *memory = ring->held->memory;
    return ZERO_OK;
}

zero_status zi_ring_rest(zi_ring *ring)
{
    ZI_TRY(give_back(ring));
    for (uint32_t i = 0; i < ring->slot_count; i++) {
        if (ring->slots[i].op.kind == ZI_IO_WRITE) {
            ZI_TRY(settle(ring, &ring->slots[i]));
        }
    }
    return ZERO_OK;
}

zero_status zi_ring_draft(zi_ring *ring)
{
    zi_assert(ring->draft_at != 0 && !ring->drafting);
    ZI_TRY(give_back(ring));
    ring->drafting = true;
    return ZERO_OK;
}

zero_status zi_ring_keep(zi_ring *ring)
{
    zi_assert(ring->drafting);
    ZI_TRY(give_back(ring));
    ring->drafting = false;
    for (uint32_t i = 0; i < ring->range_count; i++) {
        ring_record *record = &ring->records[i];
        record->written = record->written || record->drafted;
        record->beside = record->beside != record->drafted;
        record->drafted = false;
    }
    return ZERO_OK;
}

void zi_ring_drop(zi_ring *ring)
{
    zi_assert(ring->drafting);
    for (uint32_t i = 0; i < ring->slot_count; i++) {
        ring_slot *slot = &ring->slots[i];
        const bool drafted = slot->range != ZI_NO_INDEX && ring->records[slot->range].drafted;
        if (drafted || (slot == ring->held && ring->dirty)) {
            slot->range = ZI_NO_INDEX;
        }
    }
    for (uint32_t i = 0; i < ring->range_count; i++) {
        ring->records[i].drafted = false;
    }
    ring->held = NULL;
    ring->dirty = false;
    ring->drafting = false;
}

void zi_ring_quiet(zi_ring *ring)
{
    for (uint32_t i = 0; i < ring->slot_count; i++) {
        ring_slot *slot = &ring->slots[i];
        if (settle(ring, slot) != ZERO_OK && slot != ring->held) {
            slot->range = ZI_NO_INDEX; /* it is to be read again */
        }
    }
}

void zi_ring_suspend(zi_ring *ring)
{
    zi_assert(ring->held == NULL);
    for (uint32_t i = 0; i < ring->slot_count; i++) {
        zi_assert(!ring->slots[i].busy);
    }
    zi_io_destroy(ring->queue);
    ring->queue = NULL;
}

zero_status zi_ring_resume(zi_ring *ring, unsigned char *memory)
{
    zi_assert(ring->queue == NULL);
    ZI_TRY(open_queue(ring, memory, NULL));
    empty_slots(ring, memory);
    return ZERO_OK;
}

static uint64_t load(const atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

zi_ring_counts zi_ring_count(const zi_ring *ring)
{
    return (zi_ring_counts){.read_bytes = load(&ring->read_bytes),
                            .write_bytes = load(&ring->write_bytes),
                            .hits = load(&ring->hits),
                            .read_wait_ns = load(&ring->wait_ns[ZI_IO_READ]),
                            .write_wait_ns = load(&ring->wait_ns[ZI_IO_WRITE]),
                            .check_ns = load(&ring->check_ns)};
}

const zi_io_report *zi_ring_report(const zi_ring *ring)
{
    return &ring->report;
}
