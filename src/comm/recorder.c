/* Owns the ring of a group's newest batches. Invariants: what is read of a record was written for
 * one batch; a state only ever moves on, and only that of the batch it is about. */
#include "comm/recorder.h"

#include <stddef.h>

#include "core/clock.h"

#define STATE_BITS 3
#define STATE_MASK ((UINT64_C(1) << STATE_BITS) - 1)

_Static_assert(ZI_RECORD_STATE_COUNT <= STATE_MASK, "a state fits the key");

const char *zi_record_state_text(zi_record_state state)
{
#define ZI_RECORD_ROW(name, text) text,
    static const char *const texts[] = {ZI_RECORD_STATES(ZI_RECORD_ROW)};
#undef ZI_RECORD_ROW
    return texts[state];
}

/* Never 0. */
static uint64_t key_of(uint64_t number, zi_record_state state)
{
    return (number + 1) << STATE_BITS | (uint64_t)state;
}

static void recorder_put(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

static uint64_t recorder_get(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

/* A reader that sees any of the new words sees a key that is not the old one. */
uint64_t zi_recorder_enqueue(zi_recorder *recorder, const zi_record *batch)
{
    const uint64_t number = atomic_load_explicit(&recorder->enqueued, memory_order_relaxed);
    zi_record_entry *entry = &recorder->entries[number % ZI_RECORDS];
    recorder_put(&entry->key, 0);
    recorder_put(&entry->terms[0], batch->terms[0]);
    recorder_put(&entry->terms[1], batch->terms[1]);
    recorder_put(&entry->bytes, batch->bytes);
    recorder_put(&entry->counts, (uint64_t)batch->hash << 32 | batch->collectives);
    recorder_put(&entry->enqueued_ns, zi_clock_ns());
    recorder_put(&entry->started_ns, 0);
    recorder_put(&entry->ended_ns, 0);
    recorder_put(&entry->key, key_of(number, ZI_RECORD_ENQUEUED));
    recorder_put(&recorder->enqueued, number + 1);
    return number;
}

/* The record of a batch that has not ended; NULL: it has, or is overwritten. A time that is put
 * just when it is overwritten is not read: the new batch's state says that it has none. */
static zi_record_entry *find_open(zi_recorder *recorder, uint64_t number, uint64_t *key)
{
    zi_record_entry *entry = &recorder->entries[number % ZI_RECORDS];
    *key = recorder_get(&entry->key);
    return *key == key_of(number, ZI_RECORD_ENQUEUED) || *key == key_of(number, ZI_RECORD_STARTED)
               ? entry
               : NULL;
}

void zi_recorder_start(zi_recorder *recorder, uint64_t number)
{
    uint64_t key = 0;
    zi_record_entry *entry = find_open(recorder, number, &key);
    if (entry != NULL && key == key_of(number, ZI_RECORD_ENQUEUED)) {
        recorder_put(&entry->started_ns, zi_clock_ns());
        (void)atomic_compare_exchange_strong(&entry->key, &key, key_of(number, ZI_RECORD_STARTED));
    }
}

void zi_recorder_end(zi_recorder *recorder, uint64_t number, zi_record_state state)
{
    uint64_t key = 0;
    zi_record_entry *entry = find_open(recorder, number, &key);
    if (entry != NULL) {
        recorder_put(&entry->ended_ns, zi_clock_ns());
        (void)atomic_compare_exchange_strong(&entry->key, &key, key_of(number, state));
    }
    if (state == ZI_RECORD_DONE && recorder_get(&recorder->done) <= number) {
        recorder_put(&recorder->done, number + 1);
    }
}

bool zi_recorder_read(const zi_recorder *recorder, uint64_t number, zi_record *out)
{
    const zi_record_entry *entry = &recorder->entries[number % ZI_RECORDS];
    const uint64_t key = recorder_get(&entry->key);
    const uint64_t counts = recorder_get(&entry->counts);
    *out = (zi_record){
        .number = number,
        .terms = {recorder_get(&entry->terms[0]), recorder_get(&entry->terms[1])},
        .bytes = recorder_get(&entry->bytes),
        .collectives = (uint32_t)counts,
        .hash = (uint32_t)(counts >> 32),
        .enqueued_ns = recorder_get(&entry->enqueued_ns),
        .started_ns = recorder_get(&entry->started_ns),
        .ended_ns = recorder_get(&entry->ended_ns),
    };
    /* The times belong to the state that is there afterwards, or to one that comes next. */
    const uint64_t after = recorder_get(&entry->key);
    out->state = (zi_record_state)(key & STATE_MASK);
    if (out->state == ZI_RECORD_ENQUEUED) {
        out->started_ns = 0;
    }
    if (out->state == ZI_RECORD_ENQUEUED || out->state == ZI_RECORD_STARTED) {
        out->ended_ns = 0;
    }
    return key >> STATE_BITS == number + 1 && after >> STATE_BITS == number + 1;
}
