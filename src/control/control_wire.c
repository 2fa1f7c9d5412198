/* Owns the frames of the control plane as bytes. Invariant: nothing is allocated for a frame whose
 * kind or size may not come. Pure: no file and no clock. */
#include "control/control_wire.h"

#include <string.h>

#include "core/memory.h"
#include "core/sizes.h"

#define RECORDS_BYTES ((uint64_t)16 << 20)
#define RECORD_MOST ((uint64_t)64 << 10)
#define RECORD_LEAST ((uint64_t)256)

static uint64_t rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32) + v[3];
    v[2] += v[1];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

/* SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed hash for messages of any size. */
static uint64_t sip(const zi_control_key *key, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t v[4] = {
        key->word[0] ^ UINT64_C(0x736f6d6570736575), key->word[1] ^ UINT64_C(0x646f72616e646f6d),
        key->word[0] ^ UINT64_C(0x6c7967656e657261), key->word[1] ^ UINT64_C(0x7465646279746573)};
    for (size_t done = 0; done <= bytes; done += 8) {
        uint64_t word = 0;
        const size_t left = bytes - done;
        for (size_t i = 0; i < (left < 8 ? left : 8); i++) {
            word |= (uint64_t)at[done + i] << (8 * i);
        }
        word |= left < 8 ? (uint64_t)bytes << 56 : 0;
        v[3] ^= word;
        sip_round(v);
        sip_round(v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++) {
        sip_round(v);
    }
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

zi_control_key zi_control_key_of(const char *text)
{
    static const zi_control_key first = {{1, ZI_CONTROL_MAGIC}};
    static const zi_control_key second = {{2, ZI_CONTROL_MAGIC}};
    const size_t bytes = strlen(text);
    return (zi_control_key){{sip(&first, text, bytes), sip(&second, text, bytes)}};
}

uint64_t zi_control_proof(const zi_control_key *key, const zi_control_nonce *nonce,
                          const zi_control_name *name)
{
    unsigned char text[sizeof *nonce + sizeof *name];
    memcpy(text, nonce, sizeof *nonce);
    memcpy(text + sizeof *nonce, name, sizeof *name);
    return sip(key, text, sizeof text);
}

uint32_t zi_control_record_max(uint32_t size)
{
    const uint64_t share = zi_min_u64(RECORDS_BYTES / size, RECORD_MOST);
    return (uint32_t)zi_max_u64(share, RECORD_LEAST);
}

bool zi_control_may_come(const zi_control_frame *frame, zi_control_sender from, uint64_t records)
{
    const bool server = from == ZI_CONTROL_SERVER;
    const bool rank = from == ZI_CONTROL_RANK;
    switch (frame->kind) {
    case ZI_CONTROL_CHALLENGE:
        return from == ZI_CONTROL_NEW_SERVER && frame->bytes == sizeof(zi_control_challenge);
    case ZI_CONTROL_HELLO:
        return from == ZI_CONTROL_NEW_RANK && frame->bytes == sizeof(zi_control_hello);
    case ZI_CONTROL_WELCOME:
        return from == ZI_CONTROL_NEW_SERVER && frame->bytes == sizeof(zi_control_welcome);
    case ZI_CONTROL_REFUSAL:
        return from == ZI_CONTROL_NEW_SERVER && frame->bytes == 0;
    case ZI_CONTROL_HEARTBEAT:
        return (rank && frame->bytes == 0) ||
               (server && frame->bytes % sizeof(zi_control_silent) == 0 &&
                frame->bytes <= ZI_CONTROL_SILENT_MAX * sizeof(zi_control_silent));
    case ZI_CONTROL_GATHER:
        return rank && frame->bytes <= records;
    case ZI_CONTROL_GATHERED:
        return server && frame->bytes <= records;
    case ZI_CONTROL_FAILED:
    case ZI_CONTROL_NOTICE:
        return (server || rank) && frame->bytes == sizeof(zi_failure);
    case ZI_CONTROL_GOODBYE:
        return (server || rank) && frame->bytes == 0;
    default:
        return false;
    }
}

/* True if the frame whose header has come may come, and there is memory for the rest. */
static bool control_wire_admit(zi_control_inbox *inbox)
{
    if (!zi_control_may_come(&inbox->frame, inbox->from, inbox->records)) {
        return false;
    }
    if (inbox->frame.bytes > inbox->capacity) {
        zi_control_inbox_free(inbox);
        if (zi_calloc(inbox->frame.bytes, 1, (void **)&inbox->payload) != ZERO_OK) {
            return false;
        }
        inbox->capacity = inbox->frame.bytes;
    }
    return true;
}

void *zi_control_room(zi_control_inbox *inbox, size_t *bytes)
{
    const size_t head = sizeof inbox->frame;
    if (inbox->got >= head && inbox->got == head + inbox->frame.bytes) {
        inbox->got = 0;
    }
    if (inbox->got < head) {
        *bytes = head - inbox->got;
        return (unsigned char *)&inbox->frame + inbox->got;
    }
    *bytes = head + inbox->frame.bytes - inbox->got;
    return inbox->payload + (inbox->got - head);
}

zi_control_fed zi_control_feed(zi_control_inbox *inbox, size_t bytes)
{
    const size_t head = sizeof inbox->frame;
    inbox->got += bytes;
    if (inbox->got < head) {
        return ZI_CONTROL_MORE;
    }
    if (inbox->got == head && !control_wire_admit(inbox)) {
        inbox->from = ZI_CONTROL_NOBODY;
        inbox->got = 0;
        return ZI_CONTROL_BAD;
    }
    return inbox->got == head + inbox->frame.bytes ? ZI_CONTROL_WHOLE : ZI_CONTROL_MORE;
}

zi_failure zi_control_failure_of(const zi_control_inbox *inbox)
{
    zi_failure failure;
    memcpy(&failure, inbox->payload, sizeof failure);
    zi_failure_received(&failure);
    return failure;
}

void zi_control_inbox_free(zi_control_inbox *inbox)
{
    zi_free(inbox->payload);
    inbox->payload = NULL;
    inbox->capacity = 0;
}
