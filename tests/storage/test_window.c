/* Owns the tests of the window over a small store: walks find what the one before wrote, read and
 * write no byte too many, and stop at the first fault with nothing in flight. */
#include "harness.h"

#include <pthread.h>

#include "offload/window.h"
#include "storage/faulty_backend.h"
#include "storage/storage_rig.h"

#define EXTENTS 11

/* True if windows are made for several threads, and over memory that holds all extents. */
static bool shares;
static bool in_place;

typedef struct rig {
    zi_extent extents[EXTENTS];
    uint64_t round[EXTENTS]; /* content of an extent; 0: zeros */
    uint64_t bytes;          /* of all extents */
    uint32_t buffer_count;
    char *folder;
    zi_store *store;
    unsigned char *memory;
    uint64_t memory_bytes;
    uint64_t *sums;
    zi_window *window;
    uint32_t held; /* acquired; ZI_NO_INDEX: none */
    bool dirty;
    zi_window_range next[ZI_WINDOW_AHEAD];
    uint32_t next_count;
    bool named;
} rig;

static void open_rig_at(rig *r, uint32_t buffer_count, bool in_memory, faulty *faults,
                        uint32_t io_depth)
{
    memset(r, 0, sizeof *r);
    for (uint32_t i = 0; i < EXTENTS; i++) {
        r->extents[i] = (zi_extent){.at = r->bytes, .bytes = PAGE * (1 + i * 5 % 3)};
        r->bytes += r->extents[i].bytes;
    }
    r->buffer_count = buffer_count;
    r->held = ZI_NO_INDEX;
    r->folder = rig_folder(in_memory);
    const char *folder = r->folder;
    r->store = rig_store(&folder, 1, 2 * r->bytes);
    r->memory_bytes = in_place ? r->bytes : buffer_count * 3 * PAGE;
    r->memory = rig_memory(r->memory_bytes);
    r->sums = calloc(2 * zi_extent_sum_count(r->extents, EXTENTS), sizeof *r->sums);
    CHECK(r->sums != NULL);
    zi_io_backend backend;
    if (faults != NULL) {
        faulty_open(faults, r->store, &backend);
    }
    const zi_window_desc desc = {.extents = r->extents,
                                 .extent_count = EXTENTS,
                                 .buffer_count = buffer_count,
                                 .buffer_bytes = 3 * PAGE,
                                 .memory = r->memory,
                                 .in_place = in_place,
                                 .io_depth = io_depth,
                                 .shared = shares,
                                 .speculative_at = r->bytes,
                                 .store = r->store,
                                 .sums = r->sums,
                                 .backend = faults != NULL ? &backend : NULL};
    CHECK_OK(zi_window_create(&desc, &r->window));
}

static void open_rig(rig *r, uint32_t buffer_count, bool in_memory, faulty *faults)
{
    open_rig_at(r, buffer_count, in_memory, faults, 0);
}

/* The next call releases what the one before acquired. */
static zero_status give_back(rig *r)
{
    const uint32_t held = r->held;
    r->held = ZI_NO_INDEX;
    return held != ZI_NO_INDEX ? zi_window_release(r->window, held, r->dirty) : ZERO_OK;
}

static zero_status prefetch(rig *r, uint32_t first, uint32_t last)
{
    const zero_status status = give_back(r);
    r->named = false;
    return status == ZERO_OK ? zi_window_walk(r->window, first, last) : status;
}

static void name(rig *r, const uint32_t *next, uint32_t count)
{
    r->named = true;
    r->next_count = count;
    for (uint32_t i = 0; i < count; i++) {
        r->next[i] = (zi_window_range){next[i], next[i]};
    }
}

static zero_status acquire_as(rig *r, uint32_t extent, bool writes, zi_window_access access,
                              unsigned char **memory)
{
    zero_status status = give_back(r);
    if (status == ZERO_OK && r->named) {
        status =
            zi_window_acquire_before(r->window, extent, access, r->next, r->next_count, memory);
    } else if (status == ZERO_OK) {
        status = zi_window_acquire(r->window, extent, access, memory);
    }
    if (status == ZERO_OK) {
        r->held = extent;
        r->dirty = writes;
    }
    return status;
}

static zero_status acquire(rig *r, uint32_t extent, bool writes, unsigned char **memory)
{
    return acquire_as(r, extent, writes, ZI_WINDOW_READS, memory);
}

static zero_status replace(rig *r, uint32_t extent, unsigned char **memory)
{
    return acquire_as(r, extent, true, ZI_WINDOW_REPLACES, memory);
}

static zero_status flush(rig *r)
{
    const zero_status status = give_back(r);
    return status == ZERO_OK ? zi_window_flush(r->window) : status;
}

static zero_status speculate(rig *r)
{
    const zero_status status = give_back(r);
    return status == ZERO_OK ? zi_window_speculate(r->window) : status;
}

static zero_status commit(rig *r)
{
    const zero_status status = give_back(r);
    return status == ZERO_OK ? zi_window_commit(r->window) : status;
}

static void discard(rig *r)
{
    CHECK_OK(give_back(r));
    zi_window_discard(r->window);
}

static void drain(rig *r)
{
    CHECK_OK(give_back(r));
    zi_window_drain(r->window);
}

static void close_rig(rig *r)
{
    zi_window_drain(r->window);
    zi_window_destroy(r->window);
    zi_store_destroy(r->store);
    free(r->sums);
    CHECK(munmap(r->memory, r->memory_bytes) == 0);
    rig_remove(r->folder);
}

static void check_extent(const rig *r, uint32_t extent, const unsigned char *memory)
{
    const zi_extent *place = &r->extents[extent];
    if (r->round[extent] != 0) {
        rig_check(memory, place->at, place->bytes, r->round[extent]);
        return;
    }
    for (uint64_t i = 0; i < place->bytes; i++) {
        CHECK_EQ(memory[i], 0);
    }
}

/* Look at every extent on the way, and write the next round where asked. */
static zero_status walk(rig *r, uint32_t first, uint32_t last, bool writes)
{
    zero_status status = prefetch(r, first, last);
    for (uint32_t extent = first; status == ZERO_OK; first < last ? extent++ : extent--) {
        unsigned char *memory = NULL;
        status = acquire(r, extent, writes, &memory);
        if (status == ZERO_OK) {
            check_extent(r, extent, memory);
        }
        if (status == ZERO_OK && writes) {
            rig_fill(memory, r->extents[extent].at, r->extents[extent].bytes, ++r->round[extent]);
        }
        if (extent == last) {
            break;
        }
    }
    return status == ZERO_OK ? flush(r) : status;
}

static zero_status walk_all(rig *r, bool down)
{
    return walk(r, down ? EXTENTS - 1 : 0, down ? 0 : EXTENTS - 1, true);
}

/* Bytes of the extents that a walk in this direction comes to last. */
static uint64_t last_bytes(const rig *r, bool down, uint32_t count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        bytes += r->extents[down ? i : EXTENTS - 1 - i].bytes;
    }
    return bytes;
}

static void zig_zag(uint32_t buffer_count, bool in_memory)
{
    rig r;
    open_rig(&r, buffer_count, in_memory, NULL);
    zi_window_counts expected = {0};
    for (uint32_t step = 0; step < 9; step++) {
        const bool down = step % 2 == 1;
        CHECK_OK(walk_all(&r, down));
        expected.write_bytes += r.bytes;
        if (step != 0) { /* an extent never written is not read */
            expected.read_bytes += r.bytes - last_bytes(&r, !down, buffer_count);
            expected.hits += buffer_count;
        }
        const zi_window_counts counts = zi_window_count(r.window);
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
        zig_zag(EXTENTS, in_memory == 1);
    }
}

TEST(a_walk_the_same_way_reads_all_again)
{
    rig r;
    open_rig(&r, 4, false, NULL);
    CHECK_OK(walk_all(&r, false));
    CHECK_OK(walk_all(&r, false));
    const zi_window_counts counts = zi_window_count(r.window);
    CHECK_EQ(counts.read_bytes, r.bytes);
    CHECK_EQ(counts.hits, 0);
    close_rig(&r);
}

TEST(a_short_walk_reads_its_own_extents_only)
{
    rig r;
    open_rig(&r, 4, false, NULL);
    CHECK_OK(walk_all(&r, false));
    CHECK_OK(walk(&r, 2, 4, false));
    zi_window_counts counts = zi_window_count(r.window);
    CHECK_EQ(counts.read_bytes, r.extents[2].bytes + r.extents[3].bytes + r.extents[4].bytes);
    CHECK_EQ(counts.write_bytes, r.bytes);
    CHECK_OK(walk(&r, 3, 3, false));
    CHECK_EQ(zi_window_count(r.window).hits, counts.hits + 1);
    CHECK_OK(walk(&r, 4, 3, true));
    counts = zi_window_count(r.window);
    CHECK_EQ(counts.write_bytes, r.bytes + r.extents[3].bytes + r.extents[4].bytes);
    CHECK_OK(walk_all(&r, true));
    close_rig(&r);
}

/* As filling does: one short walk after the other through the same extents. */
TEST(walks_that_go_on_write_an_extent_once)
{
    rig r;
    open_rig(&r, 3, false, NULL);
    for (uint32_t i = 0; i < 4 * EXTENTS; i++) {
        unsigned char *memory = NULL;
        CHECK_OK(prefetch(&r, i / 4, i / 4));
        CHECK_OK(acquire(&r, i / 4, true, &memory));
        memory[i % 4] = (unsigned char)i;
    }
    CHECK_OK(flush(&r));
    CHECK_EQ(zi_window_count(r.window).write_bytes, r.bytes);
    CHECK_EQ(zi_window_count(r.window).read_bytes, 0);
    for (uint32_t i = 0; i < 4 * EXTENTS; i++) {
        unsigned char *memory = NULL;
        CHECK_OK(acquire(&r, i / 4, false, &memory));
        CHECK_EQ(memory[i % 4], i);
    }
    close_rig(&r);
}

/* Only some extents of a walk are ever asked for. */
TEST(extents_may_be_passed_by)
{
    rig r;
    open_rig(&r, 3, false, NULL);
    CHECK_OK(walk_all(&r, false));
    for (int step = 0; step < 6; step++) {
        const bool down = step % 2 == 0;
        CHECK_OK(prefetch(&r, down ? EXTENTS - 1 : 0, down ? 0 : EXTENTS - 1));
        for (uint32_t i = 0; i < EXTENTS; i += 1 + (uint32_t)step) {
            const uint32_t extent = down ? EXTENTS - 1 - i : i;
            unsigned char *memory = NULL;
            CHECK_OK(acquire(&r, extent, true, &memory));
            check_extent(&r, extent, memory);
            rig_fill(memory, r.extents[extent].at, r.extents[extent].bytes, ++r.round[extent]);
        }
        CHECK_OK(flush(&r));
    }
    CHECK_OK(walk_all(&r, true));
    close_rig(&r);
}

/* A walk over extents that were never written reads nothing, one that only looks writes nothing; a
 * disk that is late is waited for. */
TEST(waits_are_counted_by_what_was_waited_for)
{
    static faulty faults;
    faults = (faulty){.late = true, .hold_file = -1};
    rig r;
    open_rig(&r, 3, true, &faults);
    CHECK_OK(walk_all(&r, false));
    const zi_window_counts written = zi_window_count(r.window);
    CHECK_EQ(written.read_wait_ns, 0);
    CHECK(written.write_wait_ns > 0);
    CHECK_OK(walk(&r, EXTENTS - 1, 0, false));
    const zi_window_counts read = zi_window_count(r.window);
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
        CHECK_EQ(status, ended ? ZERO_OK : ZERO_ERR_IO);
        failures += !ended;
        if (!ended) {
            CHECK(strstr(zero_last_error()->message, r.folder) != NULL);
            CHECK(strstr(zero_last_error()->message, strerror(EIO)) != NULL);
        }
        close_rig(&r);
    }
    /* Every extent written three times, and read but for the hits. */
    CHECK_EQ(failures, 3 * EXTENTS + 2 * (EXTENTS - 3));
}

/* ---- speculative updates ---- */

/* Write some extents speculatively in any order, some twice, look at some, and commit or discard
 * all. */
static void write_some(rig *r, uint64_t seed, bool keeps)
{
    uint64_t before[EXTENTS];
    memcpy(before, r->round, sizeof before);
    CHECK_OK(speculate(r));
    CHECK_OK(prefetch(r, EXTENTS - 1, 0));
    for (uint64_t turn = 0; turn < 2 * EXTENTS; turn++) {
        const uint32_t extent = test_chance(seed * 1000 + turn, EXTENTS);
        const bool writes = test_chance(seed * 1000 + turn + 100, 3) != 0;
        unsigned char *memory = NULL;
        CHECK_OK(acquire(r, extent, writes, &memory));
        check_extent(r, extent, memory);
        if (writes) {
            r->round[extent] = before[extent] + 2 + turn;
            rig_fill(memory, r->extents[extent].at, r->extents[extent].bytes, r->round[extent]);
        }
    }
    if (keeps) {
        CHECK_OK(commit(r));
    } else {
        discard(r); /* with the last one at hand */
        memcpy(r->round, before, sizeof before);
    }
}

/* Over a disk that answers late and in any order, so that drops find accesses in flight. */
TEST(speculative_writes_are_committed_or_were_never_made)
{
    for (uint64_t seed = 0; seed < 40; seed++) {
        static faulty faults;
        faults = (faulty){.shuffle = true, .late = true, .hold_file = -1, .seed = test_seed + seed};
        rig r;
        open_rig(&r, 3 + (uint32_t)seed % 3, true, &faults);
        for (uint64_t round = 0; round < 6; round++) {
            write_some(&r, test_seed * 4096 + seed * 8 + round,
                       test_chance(seed * 1000 + round, 2) == 0);
            if (test_chance(seed * 1000 + round + 50, 2) == 0) {
                CHECK_OK(walk_all(&r, round % 2 == 0));
            }
        }
        CHECK_OK(walk(&r, 0, EXTENTS - 1, false));
        close_rig(&r);
    }
}

TEST(a_speculative_write_moves_as_much_as_an_extent)
{
    rig r;
    open_rig(&r, 3, true, NULL);
    CHECK_OK(walk_all(&r, false));
    const zi_window_counts before = zi_window_count(r.window);
    CHECK_OK(speculate(&r));
    CHECK_OK(walk_all(&r, true));
    CHECK_OK(commit(&r));
    const zi_window_counts after = zi_window_count(r.window);
    CHECK_EQ(after.write_bytes - before.write_bytes, r.bytes);
    CHECK_EQ(after.read_bytes - before.read_bytes, r.bytes - last_bytes(&r, false, 3));
    CHECK_OK(walk(&r, 0, EXTENTS - 1, false));
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
    for (uint32_t bad = 0; bad < EXTENTS; bad++) {
        rig r;
        char text[64];
        unsigned char *memory = NULL;
        open_rig(&r, 3, true, NULL);
        CHECK_OK(walk_all(&r, bad >= 3)); /* so that it is not in memory */
        const zi_extent *place = &r.extents[bad];
        const uint64_t at = place->at + (bad * 997 + 5) % place->bytes;
        flip(&r, at);
        (void)snprintf(text, sizeof text, "extent %u: %" PRIu64 " bytes at %" PRIu64 " of", bad,
                       place->bytes, place->at);
        CHECK_FAILS(walk(&r, 0, EXTENTS - 1, false), ZERO_ERR_CORRUPT, text);
        CHECK(strstr(zero_last_error()->message, r.folder) != NULL);
        CHECK_FAILS(acquire(&r, bad, false, &memory), ZERO_ERR_CORRUPT, text);
        CHECK_FAILS(acquire(&r, bad, true, &memory), ZERO_ERR_CORRUPT, text);
        CHECK_OK(replace(&r, bad, &memory));
        rig_fill(memory, place->at, place->bytes, ++r.round[bad]);
        CHECK_OK(walk_all(&r, false));
        CHECK_OK(walk_all(&r, false));
        CHECK(zi_window_count(r.window).check_ns != 0);
        close_rig(&r);
    }
}

/* A speculative update that is damaged harms nobody who drops it, nor does what it replaces one who
 * keeps it. */
TEST(an_extent_and_its_speculative_copy_have_checksums_of_their_own)
{
    for (int of_copy = 0; of_copy < 2; of_copy++) {
        for (int keeps = 0; keeps < 2; keeps++) {
            rig r;
            uint64_t before[EXTENTS];
            open_rig(&r, 3, true, NULL);
            CHECK_OK(walk_all(&r, false));
            memcpy(before, r.round, sizeof before);
            CHECK_OK(speculate(&r));
            CHECK_OK(walk_all(&r, true));
            flip(&r, r.extents[8].at + (of_copy ? r.bytes : 0));
            if (keeps) {
                CHECK_OK(commit(&r));
            } else {
                discard(&r);
                memcpy(r.round, before, sizeof before);
            }
            const zero_status status = walk(&r, 0, EXTENTS - 1, false);
            CHECK_EQ(status, of_copy == keeps ? ZERO_ERR_CORRUPT : ZERO_OK);
            close_rig(&r);
        }
    }
}

/* A read ahead that failed is made again, and its bytes are not taken for the extent. */
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
        CHECK_OK(prefetch(&r, 0, EXTENTS - 1)); /* three reads */
        drain(&r);
        CHECK_EQ(faults.faults, nth <= 3);
        faults.nth = -1;
        CHECK_OK(walk(&r, 0, EXTENTS - 1, false));
        close_rig(&r);
    }
}

/* ---- extents that come in no walk's order ---- */

/* Extents 0, 7, 3, ... with two named ahead each time: when one is at hand, the reads of those
 * named have been started. */
TEST(named_extents_are_read_before_their_turn)
{
    static const uint32_t order[] = {0, 7, 3, 10, 1, 5};
    enum { COUNT = sizeof order / sizeof order[0], AHEAD = 2 };
    rig r;
    open_rig(&r, 4, true, NULL);
    CHECK_OK(walk_all(&r, false));
    CHECK_OK(walk_all(&r, true)); /* 3, 2, 1 and 0 are in memory */
    const uint64_t before = zi_window_count(r.window).read_bytes;
    for (uint32_t i = 0; i < COUNT; i++) {
        unsigned char *memory = NULL;
        const uint32_t left = COUNT - 1 - i < AHEAD ? COUNT - 1 - i : AHEAD;
        uint64_t started = 0;
        name(&r, &order[i + 1], left);
        CHECK_OK(acquire(&r, order[i], false, &memory));
        check_extent(&r, order[i], memory);
        for (uint32_t k = 1; k <= i + left; k++) {
            const bool kept = order[k] == 3 || order[k] == 1; /* named while still there */
            started += kept ? 0 : r.extents[order[k]].bytes;
        }
        CHECK_EQ(zi_window_count(r.window).read_bytes - before, started);
    }
    close_rig(&r);
}

/* An extent that is overwritten is neither read nor is what comes behind it, and holds what was
 * written last, whether it is still in memory or not. */
TEST(replaced_extents_are_not_read)
{
    rig r;
    open_rig(&r, 3, true, NULL);
    for (uint32_t round = 1; round <= 3; round++) {
        for (uint32_t i = 0; i < EXTENTS; i++) {
            unsigned char *memory = NULL;
            CHECK_OK(replace(&r, i, &memory));
            rig_fill(memory, r.extents[i].at, r.extents[i].bytes, ++r.round[i]);
        }
        CHECK_OK(flush(&r));
        CHECK_EQ(zi_window_count(r.window).read_bytes, 0);
        CHECK_EQ(zi_window_count(r.window).write_bytes, round * r.bytes);
    }
    CHECK_OK(walk(&r, 0, EXTENTS - 1, false));
    CHECK_EQ(zi_window_count(r.window).read_bytes, r.bytes);
    close_rig(&r);
}

/* Each extent is written from where it is and read back to there, where the memory is another one
 * too; walks read and write no byte more than with buffers. */
TEST(extents_in_place)
{
    rig r;
    in_place = true;
    zig_zag(3, true);
    open_rig(&r, 3, false, NULL);
    in_place = false;
    for (uint32_t i = 0; i < EXTENTS; i++) {
        unsigned char *memory = NULL;
        rig_fill(r.memory + r.extents[i].at, r.extents[i].at, r.extents[i].bytes, ++r.round[i]);
        CHECK_OK(replace(&r, i, &memory));
        CHECK(memory == r.memory + r.extents[i].at);
    }
    CHECK_OK(flush(&r));
    zi_window_suspend(r.window);
    CHECK(munmap(r.memory, r.memory_bytes) == 0);
    r.memory = rig_memory(r.memory_bytes);
    CHECK_OK(zi_window_resume(r.window, r.memory));
    CHECK_OK(walk(&r, 0, EXTENTS - 1, false));
    for (uint32_t i = 0; i < EXTENTS; i++) {
        check_extent(&r, i, r.memory + r.extents[i].at);
    }
    CHECK_EQ(zi_window_count(r.window).read_bytes, r.bytes);
    CHECK_EQ(zi_window_count(r.window).write_bytes, r.bytes);
    close_rig(&r);
}

/* ---- two threads ---- */

#define TURNS 400

typedef struct reader {
    rig *r;
    uint32_t first; /* of its extents */
    uint32_t end;
    uint64_t salt;
    uint64_t round[EXTENTS];
} reader;

/* Acquires its extents in any order, names some that are not its own, and writes most of them. */
static void *use_own(void *user)
{
    reader *own = user;
    rig *r = own->r;
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        const uint64_t salt = own->salt + turn;
        const uint32_t extent = own->first + test_chance(salt, own->end - own->first);
        const zi_window_range next[2] = {{test_chance(salt + 1, EXTENTS), 0},
                                         {EXTENTS - 1, test_chance(salt + 2, EXTENTS)}};
        const bool replaces = test_chance(salt + 3, 4) == 0;
        const zi_extent *place = &r->extents[extent];
        unsigned char *memory = NULL;
        CHECK_OK(zi_window_acquire_before(
            r->window, extent, replaces ? ZI_WINDOW_REPLACES : ZI_WINDOW_READS, next, 2, &memory));
        if (!replaces && own->round[extent] != 0) {
            rig_check(memory, place->at, place->bytes, own->round[extent]);
        }
        const bool dirty = replaces || test_chance(salt + 4, 2) == 0;
        if (dirty) {
            rig_fill(memory, place->at, place->bytes, ++own->round[extent]);
        }
        CHECK_OK(zi_window_release(r->window, extent, dirty));
    }
    return NULL;
}

/* Each holds one of three buffers at most, so neither ever finds none; over a disk that answers
 * late and in any order, and the machine's best. */
TEST(two_threads_share_a_window)
{
    for (uint64_t seed = 0; seed < 8; seed++) {
        static faulty faults;
        faults = (faulty){.shuffle = true, .late = true, .hold_file = -1, .seed = test_seed + seed};
        rig r;
        shares = true;
        open_rig(&r, 3 + (uint32_t)seed % 3, true, seed % 2 == 0 ? &faults : NULL);
        shares = false;
        reader readers[2] = {{.r = &r, .end = EXTENTS / 2, .salt = seed * 100000},
                             {.r = &r, .first = EXTENTS / 2, .end = EXTENTS, .salt = seed * 70001}};
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, use_own, &readers[0]), 0);
        (void)use_own(&readers[1]);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_OK(zi_window_flush(r.window));
        for (uint32_t i = 0; i < EXTENTS; i++) {
            r.round[i] = readers[i >= EXTENTS / 2].round[i];
        }
        CHECK_OK(walk(&r, 0, EXTENTS - 1, false));
        close_rig(&r);
    }
}

/* Both may read one extent at once. */
TEST(an_extent_is_read_by_two_at_once)
{
    rig r;
    unsigned char *one = NULL;
    unsigned char *other = NULL;
    open_rig(&r, 3, false, NULL);
    CHECK_OK(walk_all(&r, false));
    CHECK_OK(zi_window_acquire(r.window, 4, ZI_WINDOW_READS, &one));
    CHECK_OK(zi_window_acquire(r.window, 4, ZI_WINDOW_READS, &other));
    CHECK(one == other);
    CHECK_OK(zi_window_release(r.window, 4, false));
    CHECK_OK(zi_window_acquire(r.window, 9, ZI_WINDOW_READS, &other));
    check_extent(&r, 4, one);
    CHECK_OK(zi_window_release(r.window, 4, false));
    CHECK_OK(zi_window_release(r.window, 9, false));
    close_rig(&r);
}
