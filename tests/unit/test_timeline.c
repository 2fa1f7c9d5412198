/* core: timelines keep the newest spans, count what is lost, and write JSON whatever names hold;
 * clocks of hosts are compared within the bounds that exchanges give. */
#include "harness.h"

#include <stdlib.h>

#include "core/memory.h"
#include "engine/tracing.h"
#include "format/json.h"
#include "format/timeline_file.h"

#define MARKS 8

static uint64_t clock_ns;

static uint64_t tell(void *user)
{
    (void)user;
    return clock_ns;
}

static const char *no_unit(const void *user, uint32_t unit)
{
    (void)user;
    (void)unit;
    return "";
}

static zi_timeline *open_timeline(void)
{
    static const int host;
    const zi_timeline_desc desc = {
        .marks = MARKS, .now = tell, .unit_name = no_unit, .host = &host};
    zi_timeline *timeline = NULL;
    CHECK_OK(zi_timeline_create(&desc, &timeline));
    return timeline;
}

static void add(zi_timeline *timeline, uint32_t track, const char *name, uint64_t begin_ns,
                uint64_t end_ns)
{
    zi_mark *mark = zi_timeline_mark(timeline, track, ZI_SPAN_UPDATE, name, 0);
    CHECK(mark != NULL);
    mark->begin_ns = begin_ns;
    mark->end_ns = end_ns;
}

/* The file's text; the caller frees it. */
static char *written(const zi_timeline *timeline)
{
    static const zi_timeline_file file = {
        .version = "1", .rank = 3, .world = 4, .parts = 1, .clock_offset_ns = -5};
    char path[] = "/tmp/test_timeline.XXXXXX";
    const int fd = mkstemp(path);
    CHECK(fd >= 0);
    CHECK_OK(zi_timeline_write(timeline, &file, path));
    char *text = calloc(1, 65536);
    CHECK(text != NULL && read(fd, text, 65535) > 0);
    (void)close(fd);
    (void)unlink(path);
    return text;
}

static void check_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        TEST_FAIL("not in the file: %s\n%s", part, text);
    }
}

TEST(a_file_says_all_of_a_span)
{
    zi_timeline *timeline = open_timeline();
    const int key = 0;
    const uint32_t track = zi_timeline_track(timeline, &key, "gather stream");
    CHECK_EQ(track, 1);
    CHECK_EQ(zi_timeline_track(timeline, &key, "another name"), 1);
    zi_mark *mark = zi_timeline_mark(timeline, track, ZI_SPAN_GATHER, "h.0", 4096);
    mark->batch = (zi_span_batch){"gather", 2, 4, 17};
    mark->begin_ns = 1234567;
    mark->end_ns = 2000067;
    char *text = written(timeline);
    check_has(text, "{\"ph\":\"X\",\"pid\":4,\"tid\":2,\"ts\":1234.567,\"dur\":765.500,\"cat\":"
                    "\"gather\",\"name\":\"gather h.0\",\"args\":{\"of\":\"h.0\",\"bytes\":4096,"
                    "\"group\":\"gather\",\"leader\":2,\"ranks\":4,\"batch\":17}}");
    check_has(text, "\"rank\":3,\"world\":4,\"part\":0,\"parts\":1,\"clock_offset_ns\":-5,"
                    "\"clock_error_ns\":0,\"lost\":0}");
    check_has(text, "\"name\":\"thread_name\",\"args\":{\"name\":\"gather stream\"}");
    free(text);
    zi_timeline_destroy(timeline);
}

TEST(names_are_escaped)
{
    zi_timeline *timeline = open_timeline();
    /* A quote, a backslash, a line's end, UTF-8 of 2 and 4 bytes, and what is none: a byte alone, a
     * sequence cut short, a slash in two bytes, a surrogate. */
    add(timeline, 0, "\"\\\n\xc3\xa9\xf0\x9f\x98\x80|\xff|\xe2\x82|\xc0\xaf|\xed\xa0\x80", 1, 2);
    char *text = written(timeline);
    check_has(text, "\"update \\\"\\\\\\n\xc3\xa9\xf0\x9f\x98\x80|\xc3\xbf|\xc3\xa2\xc2\x82|"
                    "\xc3\x80\xc2\xaf|\xc3\xad\xc2\xa0\xc2\x80\"");
    free(text);
    zi_timeline_destroy(timeline);
}

TEST(the_newest_are_kept_and_the_rest_is_counted)
{
    zi_timeline *timeline = open_timeline();
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"};
    for (uint32_t i = 0; i < 10; i++) {
        add(timeline, 0, names[i], 10 * i + 10, 10 * i + 15);
    }
    char *text = written(timeline);
    check_has(text, "\"lost\":2");
    CHECK(strstr(text, "update b") == NULL);
    check_has(text, "update c");
    check_has(text, "update j");
    free(text);
    zi_timeline_destroy(timeline);
}

/* A span that a stream has not come to keeps its place, and is in no file. */
TEST(pending_spans_keep_their_place)
{
    zi_timeline *timeline = open_timeline();
    zi_mark *pending = zi_timeline_mark(timeline, 0, ZI_SPAN_LOAD, "pending", 0);
    for (uint32_t i = 1; i < MARKS; i++) {
        add(timeline, 0, "other", 10 * i, 10 * i + 5);
    }
    CHECK(zi_timeline_mark(timeline, 0, ZI_SPAN_LOAD, "lost", 0) == NULL);
    add(timeline, 0, "next", 200, 201);
    zi_timestamp_set(&pending->begin_ns, 100);
    char *text = written(timeline);
    CHECK(strstr(text, "pending") == NULL);
    check_has(text, "\"lost\":3");
    free(text);
    zi_timestamp_set(&pending->end_ns, 110);
    text = written(timeline);
    check_has(text, "load pending");
    check_has(text, "\"lost\":2"); /* one overwritten, one refused */
    free(text);
    zi_timeline_destroy(timeline);
}

TEST(spans_are_written_in_order_and_nest)
{
    zi_timeline *timeline = open_timeline();
    add(timeline, 0, "inner", 1000, 2000);
    add(timeline, 0, "outer", 1000, 5000);
    add(timeline, 0, "late", 4990, 90000); /* a GPU's times are some microseconds apart */
    add(timeline, 0, "wrong", 50000, 190000);
    char *text = written(timeline);
    const char *outer = strstr(text, "update outer");
    const char *inner = strstr(text, "update inner");
    CHECK(outer != NULL && inner != NULL && outer < inner);
    check_has(text, "\"ts\":5.000,\"dur\":85.000,\"cat\":\"update\",\"name\":\"update late\"");
    check_has(text, "\"ts\":50.000,\"dur\":140.000"); /* not made to fit */
    free(text);
    zi_timeline_destroy(timeline);
}

TEST(spans_of_the_calling_thread)
{
    zi_timeline *timeline = open_timeline();
    clock_ns = 7000;
    zi_span_begin(timeline, ZI_SPAN_STEP, "");
    clock_ns = 9000;
    zi_span_end(timeline);
    zi_span_begin(NULL, ZI_SPAN_STEP, "");
    zi_span_end(NULL);
    char *text = written(timeline);
    check_has(text, "\"tid\":1,\"ts\":7.000,\"dur\":2.000,\"cat\":\"step\",\"name\":\"step\","
                    "\"args\":{}}");
    free(text);
    zi_timeline_destroy(timeline);
}

TEST(a_file_that_cannot_be_written)
{
    zi_timeline *timeline = open_timeline();
    const zi_timeline_file file = {.version = "1", .parts = 1};
    CHECK_FAILS(zi_timeline_write(timeline, &file, "/nowhere/at/all"), ZERO_ERR_IO,
                "/nowhere/at/all");
    CHECK_FAILS(zi_timeline_write(timeline, &file, "/dev/full"), ZERO_ERR_IO, "/dev/full");
    zi_timeline_destroy(timeline);
}

static void *refuse(size_t bytes)
{
    (void)bytes;
    return NULL;
}

TEST(a_file_that_memory_lacks_for_is_empty)
{
    zi_timeline *timeline = open_timeline();
    const zi_timeline_file file = {.version = "1", .parts = 1};
    char path[] = "/tmp/test_timeline.XXXXXX";
    const int fd = mkstemp(path);
    CHECK(fd >= 0);
    add(timeline, 0, "span", 1, 2);
    json_set_alloc_funcs(refuse, free);
    CHECK_FAILS(zi_timeline_write(timeline, &file, path), ZERO_ERR_OUT_OF_MEMORY, "memory");
    json_set_alloc_funcs(malloc, free);
    CHECK_EQ(lseek(fd, 0, SEEK_END), 0);
    (void)close(fd);
    (void)unlink(path);
    zi_timeline_destroy(timeline);
}

/* Two clocks, one ahead of the other; a rank may be late for a round, and learns late that it is
 * over. */
TEST(clocks_are_compared_within_bounds)
{
    const int64_t ahead_ns = -123456789;
    zi_clock_round own[4];
    zi_clock_round other[4];
    uint64_t true_ns = UINT64_C(1) << 50;
    uint64_t error_ns = 0;
    uint64_t random = test_seed;
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t late[4];
        for (uint32_t k = 0; k < 4; k++) {
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
            late[k] = (random >> 40) % 50000;
        }
        const uint64_t met_ns = true_ns + (late[0] > late[1] ? late[0] : late[1]);
        own[i] = (zi_clock_round){true_ns + late[0] + (uint64_t)ahead_ns,
                                  met_ns + late[2] + (uint64_t)ahead_ns};
        other[i] = (zi_clock_round){true_ns + late[1], met_ns + late[3]};
        true_ns += 1000000;
    }
    const int64_t offset_ns = zi_clock_offset(own, other, 4, &error_ns);
    const int64_t off_ns = offset_ns - ahead_ns;
    CHECK((uint64_t)(off_ns < 0 ? -off_ns : off_ns) <= error_ns);
    CHECK(error_ns <= 100000);
}
