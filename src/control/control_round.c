/* Owns the records of a gather. A result is sent from where the records came to lie. Two such
 * places take turns: a rank that sends its next record has read the last result, so when a place's
 * turn comes again all ranks have read what was there. */
#include "control/control_round.h"

#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"

/* Ranks that a FAILED names. */
#define NAMED 6

zero_status zi_control_round_create(uint32_t rank, uint32_t size, uint32_t deadline_ms,
                                    zi_control_round **out)
{
    zi_control_round *round = NULL;
    const uint32_t most = zi_control_record_max(size);
    const size_t records = rank == 0 ? size : 1;
    ZI_TRY(zi_calloc(1, sizeof *round + size * sizeof round->ranks[0], (void **)&round));
    round->rank = rank;
    round->size = size;
    round->record_max = most;
    round->deadline_ms = deadline_ms;
    round->number = 1;
    *out = round;
    for (int i = 0; i < (rank == 0 ? 2 : 1); i++) {
        ZI_TRY(
            zi_calloc(sizeof(zi_control_frame) + records * most, 1, (void **)&round->results[i]));
    }
    return ZERO_OK;
}

void zi_control_round_destroy(zi_control_round *round)
{
    if (round != NULL) {
        zi_control_inbox_free(&round->kept);
        zi_free(round->results[0]);
        zi_free(round->results[1]);
        zi_free(round);
    }
}

const zi_control_frame *zi_control_round_begin(zi_control_round *round, const void *record,
                                               uint32_t bytes)
{
    const zi_control_frame frame = {
        .bytes = bytes, .kind = ZI_CONTROL_GATHER, .number = round->number};
    if (round->rank == 0) {
        const bool taken = zi_control_round_take(round, 0, &frame, record);
        zi_assert(taken);
        return NULL;
    }
    memcpy(round->results[0], &frame, sizeof frame);
    if (bytes != 0) {
        memcpy(round->results[0] + sizeof frame, record, bytes);
    }
    return (const void *)round->results[0];
}

bool zi_control_round_take(zi_control_round *round, uint32_t rank, const zi_control_frame *frame,
                           const void *record)
{
    unsigned char *records = round->results[round->number % 2] + sizeof *frame;
    if (frame->number != round->number || round->ranks[rank].sent) {
        return false;
    }
    if (frame->bytes != 0) {
        memcpy(records + (size_t)rank * round->record_max, record, frame->bytes);
    }
    round->ranks[rank].length = frame->bytes;
    round->ranks[rank].sent = true;
    if (round->until_ns == 0) {
        round->until_ns = zi_deadline_in_ms(round->deadline_ms);
    }
    return true;
}

static void set_answer(zi_control_round *round, const unsigned char *records, uint32_t bytes)
{
    round->records = records;
    round->record_bytes = bytes / round->size;
    round->number++;
}

/* Lay the records end to end, filled up with zeros to the size of the longest. */
static const zi_control_frame *answer(zi_control_round *round)
{
    unsigned char *result = round->results[round->number % 2];
    unsigned char *records = result + sizeof(zi_control_frame);
    uint32_t most = 0;
    for (uint32_t i = 0; i < round->size; i++) {
        most = (uint32_t)zi_max_u64(most, round->ranks[i].length);
    }
    for (uint32_t i = 0; i < round->size; i++) {
        unsigned char *to = records + (size_t)i * most;
        const uint32_t length = round->ranks[i].length;
        memmove(to, records + (size_t)i * round->record_max, length);
        memset(to + length, 0, most - length);
        round->ranks[i].sent = false;
    }
    zi_control_frame *frame = (void *)result;
    *frame = (zi_control_frame){
        .bytes = round->size * most, .kind = ZI_CONTROL_GATHERED, .number = round->number};
    round->until_ns = 0;
    set_answer(round, records, frame->bytes);
    return frame;
}

/* Name the ranks that have gone, COMM, or that have not come in time, TIMEOUT. */
static void control_round_fail(zi_control_round *round, zero_status status)
{
    char list[16 * NAMED] = "";
    char text[sizeof list + 32];
    size_t used = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < round->size; i++) {
        const zi_control_round_rank *rank = &round->ranks[i];
        if (rank->sent || (status == ZERO_ERR_COMM && rank->presence != ZI_CONTROL_GONE)) {
            continue;
        }
        if (count++ < NAMED) {
            used +=
                (size_t)snprintf(list + used, sizeof list - used, "%s %u", used != 0 ? "," : "", i);
        }
    }
    const int chars = snprintf(text, sizeof text, "rank%s%s", count > 1 ? "s" : "", list);
    if (count > NAMED) {
        (void)snprintf(text + chars, sizeof text - (size_t)chars, " and %u more", count - NAMED);
    }
    (void)zi_error_set(status, 0, __FILE__, __LINE__, "%s", text);
    round->failed = zi_failure_of_all(zero_last_error());
}

const zi_control_frame *zi_control_round_settle(zi_control_round *round)
{
    uint32_t sent = 0;
    bool gone = false;
    for (uint32_t i = 0; i < round->size; i++) {
        const zi_control_round_rank *rank = &round->ranks[i];
        sent += rank->sent;
        gone = gone || (!rank->sent && rank->presence == ZI_CONTROL_GONE);
    }
    if (sent == round->size) {
        return answer(round);
    }
    if (sent != 0 && (gone || zi_clock_ns() >= round->until_ns)) {
        control_round_fail(round, gone ? ZERO_ERR_COMM : ZERO_ERR_TIMEOUT);
    }
    return NULL;
}

bool zi_control_round_keep(zi_control_round *round, zi_control_inbox *inbox)
{
    const zi_control_inbox before = round->kept;
    if (inbox->frame.number != round->number || inbox->frame.bytes % round->size != 0) {
        return false;
    }
    round->kept = *inbox;
    inbox->payload = before.payload;
    inbox->capacity = before.capacity;
    set_answer(round, round->kept.payload, inbox->frame.bytes);
    return true;
}
