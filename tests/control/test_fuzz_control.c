/* Frames from anybody, cut anywhere: what an inbox hands out is what came, and nothing is held for
 * a frame that may not come. An input is the limits of three kinds, the sizes of the pieces in
 * which the rest comes, and the rest. The same seed gives the same inputs.
 *
 * For libFuzzer: scripts/fuzz control SECONDS. */
#include "fuzz_corpus.h"

#include "control/control_wire.h"
#include "core/check.h"
#include "core/memory.h"

#define HEAD_BYTES 4
#define LIMIT_MAX 1024

/* The contents that an inbox took: frames, and a hash of all that they hold. */
typedef struct taken {
    uint32_t frames;
    uint32_t bad;
    uint64_t sum;
} taken;

static zi_control_inbox make_inbox(const unsigned char *head)
{
    return (zi_control_inbox){.from = (zi_control_sender)(head[0] % (ZI_CONTROL_RANK + 1)),
                              .records = head[1] * 4};
}

/* Feed a piece as far as the end of a frame. */
static zi_control_fed feed(zi_control_inbox *inbox, const unsigned char *data, size_t bytes,
                           size_t *used)
{
    zi_control_fed fed = ZI_CONTROL_MORE;
    for (*used = 0; fed == ZI_CONTROL_MORE && *used < bytes;) {
        size_t room = 0;
        void *at = zi_control_room(inbox, &room);
        zi_assert(room != 0);
        const size_t part = room < bytes - *used ? room : bytes - *used;
        memcpy(at, data + *used, part);
        *used += part;
        fed = zi_control_feed(inbox, part);
    }
    return fed;
}

static uint64_t sum_of(uint64_t sum, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) {
        sum = (sum ^ at[i]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

/* piece 0: all at once. */
static taken feed_all(const unsigned char *data, size_t bytes, size_t piece)
{
    zi_control_inbox inbox = make_inbox(data);
    taken t = {.frames = 0};
    for (size_t at = HEAD_BYTES; at < bytes && t.bad == 0;) {
        const size_t left = bytes - at;
        const size_t part = piece != 0 && piece < left ? piece : left;
        size_t used = 0;
        const zi_control_fed fed = feed(&inbox, data + at, part, &used);
        zi_assert(fed != ZI_CONTROL_MORE || used == part);
        zi_assert_cmp(inbox.capacity, <=, LIMIT_MAX);
        if (fed == ZI_CONTROL_WHOLE) {
            zi_assert_cmp(inbox.frame.kind, <, ZI_CONTROL_KINDS);
            zi_assert(zi_control_may_come(&inbox.frame, inbox.from, inbox.records));
            t.frames++;
            t.sum = sum_of(t.sum, &inbox.frame, sizeof inbox.frame);
            t.sum = sum_of(t.sum, inbox.payload, inbox.frame.bytes);
        }
        t.bad += fed == ZI_CONTROL_BAD;
        at += used;
    }
    if (t.bad != 0) { /* whatever comes now is refused */
        size_t used = 0;
        const zi_control_frame fine = {.kind = ZI_CONTROL_HEARTBEAT};
        zi_assert(feed(&inbox, (const void *)&fine, sizeof fine, &used) == ZI_CONTROL_BAD);
    }
    zi_control_inbox_free(&inbox);
    return t;
}

/* Frames that lie whole in the input and may come, counted by another reader. */
static taken read_all(const unsigned char *data, size_t bytes)
{
    const zi_control_inbox inbox = make_inbox(data);
    taken t = {.frames = 0};
    for (size_t at = HEAD_BYTES; bytes - at >= sizeof(zi_control_frame);) {
        zi_control_frame frame;
        memcpy(&frame, data + at, sizeof frame);
        if (!zi_control_may_come(&frame, inbox.from, inbox.records)) {
            t.bad = 1;
            break;
        }
        if (frame.bytes > bytes - at - sizeof frame) {
            break;
        }
        t.frames++;
        t.sum = sum_of(t.sum, data + at, sizeof frame + frame.bytes);
        at += sizeof frame + frame.bytes;
    }
    return t;
}

static uint32_t fuzz_one(const unsigned char *data, size_t bytes)
{
    if (bytes < HEAD_BYTES) {
        return 0;
    }
    const taken expected = read_all(data, bytes);
    const size_t pieces[] = {0, 1, (size_t)data[2] + 1, (size_t)data[3] * 8 + 1};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        const taken got = feed_all(data, bytes, pieces[i]);
        zi_assert_cmp(got.frames, ==, expected.frames);
        zi_assert_cmp(got.bad, ==, expected.bad);
        zi_assert_cmp(got.sum, ==, expected.sum);
    }
    return expected.frames;
}

#ifdef FUZZ_LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    (void)fuzz_one(data, bytes);
    return 0;
}

#else

#define CASES 20000

static bool fuzz_accepted(const unsigned char *data, size_t bytes)
{
    return fuzz_one(data, bytes) != 0;
}

/* Valid frames, one after another. */
static void make_valid(uint64_t turn, fuzz_input *input)
{
    input->bytes = HEAD_BYTES;
    for (int i = 0; i < HEAD_BYTES; i++) {
        input->data[i] = (unsigned char)test_chance(turn * 16 + (uint64_t)i, 256);
    }
    const zi_control_inbox inbox = make_inbox(input->data);
    const uint32_t count = inbox.from == ZI_CONTROL_NOBODY ? 0 : test_chance(turn * 16 + 5, 8);
    for (uint32_t i = 0; i < count; i++) {
        zi_control_frame frame = {.number = i};
        for (uint64_t k = turn * 8 + i;
             !zi_control_may_come(&frame, inbox.from, inbox.records) || test_chance(k, 8) == 0;
             k += UINT64_C(1) << 40) {
            frame.kind = (uint16_t)test_chance(k + 1, ZI_CONTROL_KINDS);
            frame.bytes = test_chance(k + 2, 4) * 48 + test_chance(k + 3, 2) * 40;
            if (test_chance(k + 4, 4) == 0) {
                frame.bytes = sizeof(zi_failure);
            }
        }
        memcpy(input->data + input->bytes, &frame, sizeof frame);
        memset(input->data + input->bytes + sizeof frame, (int)i, frame.bytes);
        input->bytes += sizeof frame + frame.bytes;
    }
}

/* The protocol: who may say what, and how much. */
TEST(frames_that_may_come)
{
    static const struct {
        zi_control_sender from;
        uint16_t kind;
        uint32_t least;
        uint32_t most;
        uint32_t step;
    } rows[] = {
        {ZI_CONTROL_NEW_SERVER, ZI_CONTROL_CHALLENGE, 32, 32, 1},
        {ZI_CONTROL_NEW_SERVER, ZI_CONTROL_WELCOME, 64, 64, 1},
        {ZI_CONTROL_NEW_SERVER, ZI_CONTROL_REFUSAL, 0, 0, 1},
        {ZI_CONTROL_NEW_RANK, ZI_CONTROL_HELLO, 96, 96, 1},
        {ZI_CONTROL_SERVER, ZI_CONTROL_HEARTBEAT, 0, 768, 48},
        {ZI_CONTROL_SERVER, ZI_CONTROL_GATHERED, 0, 1000, 1},
        {ZI_CONTROL_SERVER, ZI_CONTROL_FAILED, 296, 296, 1},
        {ZI_CONTROL_SERVER, ZI_CONTROL_NOTICE, 296, 296, 1},
        {ZI_CONTROL_SERVER, ZI_CONTROL_GOODBYE, 0, 0, 1},
        {ZI_CONTROL_RANK, ZI_CONTROL_HEARTBEAT, 0, 0, 1},
        {ZI_CONTROL_RANK, ZI_CONTROL_GATHER, 0, 1000, 1},
        {ZI_CONTROL_RANK, ZI_CONTROL_FAILED, 296, 296, 1},
        {ZI_CONTROL_RANK, ZI_CONTROL_NOTICE, 296, 296, 1},
        {ZI_CONTROL_RANK, ZI_CONTROL_GOODBYE, 0, 0, 1},
    };
    for (int from = ZI_CONTROL_NOBODY; from <= ZI_CONTROL_RANK; from++) {
        for (uint16_t kind = 0; kind < ZI_CONTROL_KINDS + 2; kind++) {
            for (uint32_t bytes = 0; bytes < 1100; bytes++) {
                const zi_control_frame frame = {.kind = kind, .bytes = bytes};
                bool may = false;
                for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                    may = may || ((int)rows[i].from == from && rows[i].kind == kind &&
                                  bytes >= rows[i].least && bytes <= rows[i].most &&
                                  (bytes - rows[i].least) % rows[i].step == 0);
                }
                CHECK_EQ(zi_control_may_come(&frame, (zi_control_sender)from, 1000), may);
            }
        }
    }
}

TEST(frames_cut_anywhere)
{
    static fuzz_input input;
    static fuzz_input another;
    uint64_t frames = 0;
    uint64_t damaged = 0;
    size_t before = 0;
    for (uint64_t i = 0; i < CASES; i++) {
        const uint64_t turn = test_seed * CASES * 4 + i;
        make_valid(turn, &input);
        frames += fuzz_one(input.data, input.bytes);
        make_valid(turn + 1, &another);
        for (uint32_t k = 0; k <= test_chance(turn, 3); k++) {
            fuzz_damage_once(turn * 4 + k, &input, &another);
        }
        damaged += fuzz_one(input.data, input.bytes);
        before = i == CASES / 10 ? fuzz_held() : before;
    }
    printf("  %" PRIu64 " frames, %" PRIu64 " of them after damage\n", frames, damaged);
    CHECK(frames > CASES * 2 && damaged > CASES / 4 && damaged < frames);
    CHECK(fuzz_held() < before + FUZZ_HELD_MAX);
}

/* Nothing is taken for a frame that is too long, before the rest comes. */
TEST(absurd_lengths)
{
    for (uint32_t bits = 0; bits < 32; bits++) {
        zi_control_inbox inbox = {.from = ZI_CONTROL_RANK, .records = 100};
        const zi_control_frame frame = {.kind = ZI_CONTROL_GATHER, .bytes = UINT32_C(1) << bits};
        const uint64_t calls = zi_memory_calls();
        size_t used = 0;
        const bool fits = frame.bytes <= 100;
        CHECK_EQ(feed(&inbox, (const void *)&frame, sizeof frame, &used),
                 fits ? ZI_CONTROL_MORE : ZI_CONTROL_BAD);
        CHECK_EQ(zi_memory_calls() - calls, fits ? 1 : 0);
        zi_control_inbox_free(&inbox);
    }
}

TEST_CALL(corpus, fuzz_replay("control", fuzz_accepted));

/* The proof is one of the key, the nonce and the name, each bit of them. */
TEST(proofs)
{
    const zi_control_key key = zi_control_key_of("a job");
    const zi_control_key other = zi_control_key_of("a job ");
    CHECK(memcmp(&key, &other, sizeof key) != 0);
    zi_control_nonce nonce = {{3, 4}};
    zi_control_name name = {.rank = 1, .size = 2, .pid = 3, .host = "node0"};
    const uint64_t proof = zi_control_proof(&key, &nonce, &name);
    CHECK(proof != zi_control_proof(&other, &nonce, &name));
    for (size_t i = 0; i < 8 * sizeof nonce; i++) {
        ((unsigned char *)&nonce)[i / 8] ^= (unsigned char)(1u << i % 8);
        CHECK(proof != zi_control_proof(&key, &nonce, &name));
        ((unsigned char *)&nonce)[i / 8] ^= (unsigned char)(1u << i % 8);
    }
    for (size_t i = 0; i < 8 * sizeof name; i++) {
        ((unsigned char *)&name)[i / 8] ^= (unsigned char)(1u << i % 8);
        CHECK(proof != zi_control_proof(&key, &nonce, &name));
        ((unsigned char *)&name)[i / 8] ^= (unsigned char)(1u << i % 8);
    }
    CHECK_EQ(proof, zi_control_proof(&key, &nonce, &name));
}

#endif
