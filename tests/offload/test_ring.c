/* Owns the tests of the ring over a small store: walks find what the one before wrote, read and
 * write no byte too many, and stop at the first fault with nothing in flight. */
#include "harness.h"

#include "offload/ring.h"
#include "storage/faulty_backend.h"
#include "storage/storage_rig.h"

#define RANGES 11

typedef struct rig {
    zi_range ranges[RANGES];
    uint64_t round[RANGES]; /* what a record holds; 0: zeros */
    uint64_t bytes;         /* of all records */
    uint32_t slot_count;
    char *folder;
    zi_store *store;
    unsigned char *memory;
    uint64_t *sums;
    zi_ring *ring;
} rig;

static void open_rig_at(rig *r, uint32_t slot_count, bool in_memory, faulty *faults,
                        uint32_t io_depth)
{
    memset(r, 0, sizeof *r);
    for (uint32_t i = 0; i < RANGES; i++) {
        r->ranges[i] = (zi_range){.at = r->bytes, .bytes = PAGE * (1 + i * 5 % 3)};
        r->bytes += r->ranges[i].bytes;
    }
    r->slot_count = slot_count;
    r->folder = rig_folder(in_memory);
    const char *folder = r->folder;
    r->store = rig_store(&folder, 1, 2 * r->bytes);
    r->memory = rig_memory(slot_count * 3 * PAGE);
    r->sums = calloc(2 * zi_range_sum_count(r->ranges, RANGES), sizeof *r->sums);
    CHECK(r->sums != NULL);
    zi_io_backend backend;
    if (faults != NULL) {
        faulty_open(faults, r->store, &backend);
    }
    const zi_ring_desc desc = {.ranges = r->ranges,
                               .range_count = RANGES,
                               .slot_count = slot_count,
                               .slot_bytes = 3 * PAGE,
                               .memory = r->memory,
                               .io_depth = io_depth,
                               .draft_at = r->bytes,
                               .store = r->store,
                               .sums = r->sums,
                               .backend = faults != NULL ? &backend : NULL};
    CHECK_OK(zi_ring_create(&desc, &r->ring));
}

static void open_rig(rig *r, uint32_t slot_count, bool in_memory, faulty *faults)
{
    open_rig_at(r, slot_count, in_memory, faults, 0);
}

static void close_rig(rig *r)
{
    zi_ring_quiet(r->ring);
    zi_ring_destroy(r->ring);
    zi_store_destroy(r->store);
    free(r->sums);
    CHECK(munmap(r->memory, r->slot_count * 3 * PAGE) == 0);
    rig_remove(r->folder);
}

static void check_record(const rig *r, uint32_t range, const unsigned char *memory)
{
    const zi_range *place = &r->ranges[range];
    if (r->round[range] != 0) {
        rig_check(memory, place->at, place->bytes, r->round[range]);
        return;
    }
    for (uint64_t i = 0; i < place->bytes; i++) {
        CHECK_EQ(memory[i], 0);
    }
}

/* Look at every record on the way, and write the next round where asked. */
static zero_status walk(rig *r, uint32_t first, uint32_t last, bool writes)
{
    zero_status status = zi_ring_aim(r->ring, first, last);
    for (uint32_t range = first; status == ZERO_OK; first < last ? range++ : range--) {
        unsigned char *memory = NULL;
        status = zi_ring_at(r->ring, range, writes, &memory);
        if (status == ZERO_OK) {
            check_record(r, range, memory);
        }
        if (status == ZERO_OK && writes) {
            rig_fill(memory, r->ranges[range].at, r->ranges[range].bytes, ++r->round[range]);
        }
        if (range == last) {
            break;
        }
    }
    return status == ZERO_OK ? zi_ring_rest(r->ring) : status;
}

static zero_status walk_all(rig *r, bool down)
{
    return walk(r, down ? RANGES - 1 : 0, down ? 0 : RANGES - 1, true);
}

/* Bytes of the records that a walk in this direction comes to last. */
static uint64_t last_bytes(const rig *r, bool down, uint32_t count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        bytes += r->ranges[down ? i : RANGES - 1 - i].bytes;
    }
    return bytes;
}

static void zig_zag(uint32_t slot_count, bool in_memory)
{
    rig r;
    open_rig(&r, slot_count, in_memory, NULL);
    zi_ring_counts expected = {0};
    for (uint32_t step = 0; step < 9; step++) {
        const bool down = step % 2 == 1;
        CHECK_OK(walk_all(&r, down));
        expected.write_bytes += r.bytes;
        if (step != 0) { /* what was never written is not read */
            expected.read_bytes += r.bytes - last_bytes(&r, !down, slot_count);
            expected.hits += slot_count;
        }
        const zi_ring_counts counts = zi_ring_count(r.ring);
        CHECK_EQ(counts.read_bytes, expected.read_bytes);
        CHECK_EQ(counts.write_bytes, expected.write_bytes);
        CHECK_EQ(counts.hits, expected.hits);
    }
    close_rig(&r);
}

TEST(a_walk_back_begins_with_what_is_there)
{
    for (int in_memory = 0; in_memory < 2; in_memory++) {
        zig_zag(3, in_memory == 1);
        zig_zag(4, in_memory == 1);
        zig_zag(RANGES, in_memory == 1);
    }
}

TEST(a_walk_the_same_way_reads_all_again)
{
    rig r;
    open_rig(&r, 4, false, NULL);
    CHECK_OK(walk_all(&r, false));
    CHECK_OK(walk_all(&r, false));
    const zi_ring_counts counts = zi_ring_count(r.ring);
    CHECK_EQ(counts.read_bytes, r.bytes);
    CHECK_EQ(counts.hits, 0);
    close_rig(&r);
}

TEST(a_short_walk_reads_its_own_records_only)
{
    rig r;
    open_rig(&r, 4, false, NULL);
    CHECK_OK(walk_all(&r, false));
    CHECK_OK(walk(&r, 2, 4, false));
    zi_ring_counts counts = zi_ring_count(r.ring);
    CHECK_EQ(counts.read_bytes, r.ranges[2].bytes + r.ranges[3].bytes + r.ranges[4].bytes);
    CHECK_EQ(counts.write_bytes, r.bytes);
    CHECK_OK(walk(&r, 3, 3, false));
    CHECK_EQ(zi_ring_count(r.ring).hits, counts.hits + 1);
    CHECK_OK(walk(&r, 4, 3, true));
    counts = zi_ring_count(r.ring);
    CHECK_EQ(counts.write_bytes, r.bytes + r.ranges[3].bytes + r.ranges[4].bytes);
    CHECK_OK(walk_all(&r, true));
    close_rig(&r);
}

/* As filling does: one short walk after the other through the same records. */
TEST(walks_that_go_on_write_a_record_once)
{
    rig r;
    open_rig(&r, 3, false, NULL);
    for (uint32_t i = 0; i < 4 * RANGES; i++) {
        unsigned char *memory = NULL;
        CHECK_OK(zi_ring_aim(r.ring, i / 4, i / 4));
        CHECK_OK(zi_ring_at(r.ring, i / 4, true, &memory));
        memory[i % 4] = (unsigned char)i;
    }
    CHECK_OK(zi_ring_rest(r.ring));
    CHECK_EQ(zi_ring_count(r.ring).write_bytes, r.bytes);
    CHECK_EQ(zi_ring_count(r.ring).read_bytes, 0);
    for (uint32_t i = 0; i < 4 * RANGES; i++) {
        unsigned char *memory = NULL;
        CHECK_OK(zi_ring_at(r.ring, i / 4, false, &memory));
        CHECK_EQ(memory[i % 4], i);
    }
    close_rig(&r);
}

/* Only some records of a walk are ever asked for. */
TEST(records_may_be_passed_by)
{
    rig r;
    open_rig(&r, 3, false, NULL);
    CHECK_OK(walk_all(&r, false));
    for (int step = 0; step < 6; step++) {
        const bool down = step % 2 == 0;
        CHECK_OK(zi_ring_aim(r.ring, down ? RANGES - 1 : 0, down ? 0 : RANGES - 1));
        for (uint32_t i = 0; i < RANGES; i += 1 + (uint32_t)step) {
            const uint32_t range = down ? RANGES - 1 - i : i;
            unsigned char *memory = NULL;
            CHECK_OK(zi_ring_at(r.ring, range, true, &memory));
            check_record(&r, range, memory);
            rig_fill(memory, r.ranges[range].at, r.ranges[range].bytes, ++r.round[range]);
        }
        CHECK_OK(zi_ring_rest(r.ring));
    }
    CHECK_OK(walk_all(&r, true));
    close_rig(&r);
}

/* A walk over records that were never written reads nothing, one that only looks writes nothing; a
 * disk that is late is waited for. */
TEST(waits_are_counted_by_what_was_waited_for)
{
    static faulty faults;
    faults = (faulty){.late = true, .hold_file = -1};
    rig r;
    open_rig(&r, 3, true, &faults);
    CHECK_OK(walk_all(&r, false));
    const zi_ring_counts written = zi_ring_count(r.ring);
    CHECK_EQ(written.read_wait_ns, 0);
    CHECK(written.write_wait_ns > 0);
    CHECK_OK(walk(&r, RANGES - 1, 0, false));
    const zi_ring_counts read = zi_ring_count(r.ring);
    CHECK(read.read_wait_ns > 0);
    CHECK_EQ(read.write_wait_ns, written.write_wait_ns);
    close_rig(&r);
}

TEST(io_depth_bounds_what_is_in_flight)
{
    for (uint32_t depth = 0; depth <= 2; depth++) {
        static faulty faults;
        faults = (faulty){.late = true, .hold_file = -1};
        rig r;
        open_rig_at(&r, 5, true, &faults, depth);
        CHECK_OK(walk_all(&r, false));
        CHECK_OK(walk_all(&r, true));
        CHECK(depth == 0 ? faults.file_out_max > 2 : faults.file_out_max == depth);
        close_rig(&r);
    }
}

TEST(what_can_be_mended_is)
{
    for (uint64_t seed = 0; seed < 6; seed++) {
        static faulty faults;
        faults =
            (faulty){.percent = 30, .shuffle = true, .hold_file = -1, .seed = test_seed + seed};
        rig r;
        open_rig(&r, 3 + (uint32_t)seed % 3, true, &faults);
        for (int step = 0; step < 8; step++) {
            CHECK_OK(walk_all(&r, step % 2 == 1));
        }
        CHECK(faults.faults > 0);
        close_rig(&r);
    }
}

/* The n-th access fails, for every n of three walks. */
TEST(the_first_fault_ends_a_walk)
{
    bool ended = false;
    int failures = 0;
    for (int nth = 1; !ended; nth++) {
        static faulty faults;
        faults = (faulty){.nth = nth, .kind = FAULTY_ERRNO + EIO, .hold_file = -1};
        rig r;
        open_rig(&r, 3, true, &faults);
        zero_status status = ZERO_OK;
        for (int step = 0; step < 3 && status == ZERO_OK; step++) {
            status = walk_all(&r, step % 2 == 1);
        }
        ended = faults.segments < nth;
        CHECK_EQ(status, ended ? ZERO_OK : ZERO_IO);
        failures += !ended;
        if (!ended) {
            CHECK(strstr(zero_last_error()->message, r.folder) != NULL);
            CHECK(strstr(zero_last_error()->message, strerror(EIO)) != NULL);
        }
        close_rig(&r);
    }
    /* Every record written three times, and read but for the hits. */
    CHECK_EQ(failures, 3 * RANGES + 2 * (RANGES - 3));
}

/* ---- drafts ---- */

/* Draft some records in any order, some twice, look at some, and keep all or drop all. */
static void draft_some(rig *r, uint64_t seed, bool keeps)
{
    uint64_t before[RANGES];
    memcpy(before, r->round, sizeof before);
    CHECK_OK(zi_ring_draft(r->ring));
    CHECK_OK(zi_ring_aim(r->ring, RANGES - 1, 0));
    for (uint64_t turn = 0; turn < 2 * RANGES; turn++) {
        const uint32_t range = test_chance(seed * 1000 + turn, RANGES);
        const bool writes = test_chance(seed * 1000 + turn + 100, 3) != 0;
        unsigned char *memory = NULL;
        CHECK_OK(zi_ring_at(r->ring, range, writes, &memory));
        check_record(r, range, memory);
        if (writes) {
            r->round[range] = before[range] + 2 + turn;
            rig_fill(memory, r->ranges[range].at, r->ranges[range].bytes, r->round[range]);
        }
    }
    if (keeps) {
        CHECK_OK(zi_ring_keep(r->ring));
    } else {
        zi_ring_drop(r->ring); /* with the last one at hand */
        memcpy(r->round, before, sizeof before);
    }
}

/* Over a disk that answers late and in any order, so that drops find accesses in flight. */
TEST(drafts_are_kept_or_were_never_made)
{
    for (uint64_t seed = 0; seed < 40; seed++) {
        static faulty faults;
        faults = (faulty){.shuffle = true, .late = true, .hold_file = -1, .seed = test_seed + seed};
        rig r;
        open_rig(&r, 3 + (uint32_t)seed % 3, true, &faults);
        for (uint64_t round = 0; round < 6; round++) {
            draft_some(&r, test_seed * 4096 + seed * 8 + round,
                       test_chance(seed * 1000 + round, 2) == 0);
            if (test_chance(seed * 1000 + round + 50, 2) == 0) {
                CHECK_OK(walk_all(&r, round % 2 == 0));
            }
        }
        CHECK_OK(walk(&r, 0, RANGES - 1, false));
        close_rig(&r);
    }
}

TEST(a_draft_moves_as_much_as_a_record)
{
    rig r;
    open_rig(&r, 3, true, NULL);
    CHECK_OK(walk_all(&r, false));
    const zi_ring_counts before = zi_ring_count(r.ring);
    CHECK_OK(zi_ring_draft(r.ring));
    CHECK_OK(walk_all(&r, true));
    CHECK_OK(zi_ring_keep(r.ring));
    const zi_ring_counts after = zi_ring_count(r.ring);
    CHECK_EQ(after.write_bytes - before.write_bytes, r.bytes);
    CHECK_EQ(after.read_bytes - before.read_bytes, r.bytes - last_bytes(&r, false, 3));
    CHECK_OK(walk(&r, 0, RANGES - 1, false));
    close_rig(&r);
}

/* ---- damage ---- */

/* A bit of the store flips. */
static void flip(const rig *r, uint64_t at)
{
    static _Alignas(4096) unsigned char page[PAGE];
    const int fd = zi_store_fd(r->store, 0);
    CHECK_EQ(pread(fd, page, PAGE, (off_t)(at / PAGE * PAGE)), PAGE);
    page[at % PAGE] ^= 1;
    CHECK_EQ(pwrite(fd, page, PAGE, (off_t)(at / PAGE * PAGE)), PAGE);
}

/* Asked for once or again, whoever was read ahead; until it is written anew. */
TEST(what_is_damaged_is_given_to_nobody)
{
    for (uint32_t bad = 0; bad < RANGES; bad++) {
        rig r;
        char text[64];
        unsigned char *memory = NULL;
        open_rig(&r, 3, true, NULL);
        CHECK_OK(walk_all(&r, bad >= 3)); /* so that it is not in memory */
        const zi_range *place = &r.ranges[bad];
        const uint64_t at = place->at + (bad * 997 + 5) % place->bytes;
        flip(&r, at);
        (void)snprintf(text, sizeof text, "record %u: %" PRIu64 " bytes at %" PRIu64 " of", bad,
                       place->bytes, place->at);
        CHECK_FAILS(walk(&r, 0, RANGES - 1, false), ZERO_CORRUPT, text);
        CHECK(strstr(zero_last_error()->message, r.folder) != NULL);
        CHECK_FAILS(zi_ring_at(r.ring, bad, false, &memory), ZERO_CORRUPT, text);
        CHECK_FAILS(zi_ring_at(r.ring, bad, true, &memory), ZERO_CORRUPT, text);
        CHECK_OK(zi_ring_replace(r.ring, bad, &memory));
        rig_fill(memory, place->at, place->bytes, ++r.round[bad]);
        CHECK_OK(walk_all(&r, false));
        CHECK_OK(walk_all(&r, false));
        CHECK(zi_ring_count(r.ring).check_ns != 0);
        close_rig(&r);
    }
}

/* A draft that is damaged harms nobody who drops it, nor does what it replaces one who keeps it. */
TEST(a_record_and_its_draft_have_checksums_of_their_own)
{
    for (int of_draft = 0; of_draft < 2; of_draft++) {
        for (int keeps = 0; keeps < 2; keeps++) {
            rig r;
            uint64_t before[RANGES];
            open_rig(&r, 3, true, NULL);
            CHECK_OK(walk_all(&r, false));
            memcpy(before, r.round, sizeof before);
            CHECK_OK(zi_ring_draft(r.ring));
            CHECK_OK(walk_all(&r, true));
            flip(&r, r.ranges[8].at + (of_draft ? r.bytes : 0));
            if (keeps) {
                CHECK_OK(zi_ring_keep(r.ring));
            } else {
                zi_ring_drop(r.ring);
                memcpy(r.round, before, sizeof before);
            }
            const zero_status status = walk(&r, 0, RANGES - 1, false);
            CHECK_EQ(status, of_draft == keeps ? ZERO_CORRUPT : ZERO_OK);
            close_rig(&r);
        }
    }
}

/* What was to be read ahead and could not be is read again, and not taken for the record. */
TEST(reads_that_nobody_waited_for_are_made_again)
{
    for (int nth = 1; nth <= 4; nth++) {
        static faulty faults;
        rig r;
        faults = (faulty){.hold_file = -1};
        open_rig(&r, 3, true, &faults);
        CHECK_OK(walk_all(&r, false));
        faults.nth = faults.segments + nth;
        faults.kind = FAULTY_ERRNO + EIO;
        CHECK_OK(zi_ring_aim(r.ring, 0, RANGES - 1)); /* three reads */
        zi_ring_quiet(r.ring);
        CHECK_EQ(faults.faults, nth <= 3);
        faults.nth = -1;
        CHECK_OK(walk(&r, 0, RANGES - 1, false));
        close_rig(&r);
    }
}

/* ---- records that come in no walk's order ---- */

/* Records 0, 7, 3, ... with two named ahead each time: when one is at hand, the reads of those
 * named have been started. */
TEST(named_records_are_read_before_their_turn)
{
    static const uint32_t order[] = {0, 7, 3, 10, 1, 5};
    enum { COUNT = sizeof order / sizeof order[0], AHEAD = 2 };
    rig r;
    open_rig(&r, 4, true, NULL);
    CHECK_OK(walk_all(&r, false));
    CHECK_OK(walk_all(&r, true)); /* 3, 2, 1 and 0 are in memory */
    const uint64_t before = zi_ring_count(r.ring).read_bytes;
    for (uint32_t i = 0; i < COUNT; i++) {
        unsigned char *memory = NULL;
        const uint32_t left = COUNT - 1 - i < AHEAD ? COUNT - 1 - i : AHEAD;
        uint64_t started = 0;
        zi_ring_expect(r.ring, &order[i + 1], left);
        CHECK_OK(zi_ring_at(r.ring, order[i], false, &memory));
        check_record(&r, order[i], memory);
        for (uint32_t k = 1; k <= i + left; k++) {
            const bool kept = order[k] == 3 || order[k] == 1; /* named while still there */
            started += kept ? 0 : r.ranges[order[k]].bytes;
        }
        CHECK_EQ(zi_ring_count(r.ring).read_bytes - before, started);
    }
    close_rig(&r);
}

/* A record that is overwritten is neither read nor is what comes behind it, and holds what was
 * written last, whether it is still in memory or not. */
TEST(replaced_records_are_not_read)
{
    rig r;
    open_rig(&r, 3, true, NULL);
    for (uint32_t round = 1; round <= 3; round++) {
        for (uint32_t i = 0; i < RANGES; i++) {
            unsigned char *memory = NULL;
            CHECK_OK(zi_ring_replace(r.ring, i, &memory));
            rig_fill(memory, r.ranges[i].at, r.ranges[i].bytes, ++r.round[i]);
        }
        CHECK_OK(zi_ring_rest(r.ring));
        CHECK_EQ(zi_ring_count(r.ring).read_bytes, 0);
        CHECK_EQ(zi_ring_count(r.ring).write_bytes, round * r.bytes);
    }
    CHECK_OK(walk(&r, 0, RANGES - 1, false));
    CHECK_EQ(zi_ring_count(r.ring).read_bytes, r.bytes);
    close_rig(&r);
}

TEST_MAIN()
