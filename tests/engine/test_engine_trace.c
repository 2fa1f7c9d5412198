/* Owns the tests of timelines: a file has every span of a run with its unit and bytes, spans of a
 * track nest, disks and groups are there, what is overwritten is counted, and a trained state has
 * the same bits with a timeline and without. */
#include "harness.h"
#include "reads.h"

#include "core/clock.h"
#include "core/memory.h"
#include "device/stream_span.h"
#include "engine/engine_internal.h"
#include "folders.h"
#include "toy.h"

#define UNITS 6
#define COUNT 3000 /* elements of a unit */
#define STEPS 4
#define RANKS 2
#define EVENTS_MAX 20000
#define TRACKS_MAX 130

typedef struct event {
    char category[24];
    char of[48];
    char group[24];
    unsigned track;
    uint64_t begin_ns;
    uint64_t end_ns;
    uint64_t bytes;
    uint64_t batch;
} event;

typedef struct file {
    event *events; /* EVENTS_MAX */
    uint32_t count;
    uint64_t lost;
    char tracks[TRACKS_MAX][48];
} file;

/* ---- reading, one event a line ---- */

static const char *behind(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    return at != NULL ? at + strlen(key) : NULL;
}

static uint64_t number(const char *line, const char *key)
{
    const char *at = behind(line, key);
    return at != NULL ? strtoull(at, NULL, 10) : 0;
}

/* Microseconds with three digits behind the point. */
static uint64_t time_ns(const char *line, const char *key)
{
    const char *at = behind(line, key);
    char *point = NULL;
    CHECK(at != NULL);
    const uint64_t us = strtoull(at, &point, 10);
    CHECK(*point == '.');
    return us * 1000 + strtoull(point + 1, NULL, 10);
}

static void text(const char *line, const char *key, char *out, size_t bytes)
{
    const char *at = behind(line, key);
    const size_t length = at != NULL ? strcspn(at, "\"") : 0;
    CHECK(length < bytes);
    memcpy(out, at != NULL ? at : "", length);
    out[length] = '\0';
}

static void read_line(file *f, const char *line)
{
    if (strstr(line, "\"thread_name\"") != NULL) {
        const uint64_t track = number(line, "\"tid\":");
        CHECK(track < TRACKS_MAX);
        text(line, "\"args\":{\"name\":\"", f->tracks[track], sizeof f->tracks[track]);
    } else if (strstr(line, "\"ph\":\"X\"") != NULL) {
        CHECK(f->count < EVENTS_MAX);
        event *e = &f->events[f->count++];
        e->track = (unsigned)number(line, "\"tid\":");
        e->begin_ns = time_ns(line, "\"ts\":");
        e->end_ns = e->begin_ns + time_ns(line, "\"dur\":");
        e->bytes = number(line, "\"bytes\":");
        e->batch = number(line, "\"batch\":");
        text(line, "\"cat\":\"", e->category, sizeof e->category);
        text(line, "\"of\":\"", e->of, sizeof e->of);
        text(line, "\"group\":\"", e->group, sizeof e->group);
    } else if (strstr(line, "\"lost\":") != NULL) {
        f->lost = number(line, "\"lost\":");
    }
}

/* The engine's timeline, through a file that is gone again. */
static file take(zero_engine *engine)
{
    char path[] = "./zero-trace-XXXXXX";
    char line[1024];
    file f = {.events = calloc(EVENTS_MAX, sizeof(event))};
    const int fd = mkstemp(path);
    CHECK(fd >= 0 && f.events != NULL);
    CHECK_OK(zero_engine_trace(engine, path));
    FILE *in = fdopen(fd, "r");
    CHECK(in != NULL);
    while (fgets(line, sizeof line, in) != NULL) {
        read_line(&f, line);
    }
    (void)fclose(in);
    (void)unlink(path);
    return f;
}

/* Spans of a track are in order, and each ends before its outer one does. */
static void check_nests(const file *f)
{
    uint64_t ends[32];
    uint32_t depth = 0;
    for (uint32_t i = 0; i < f->count; i++) {
        const event *e = &f->events[i];
        const event *last = i != 0 ? &f->events[i - 1] : e;
        depth = last->track == e->track ? depth : 0;
        CHECK(last->track != e->track || last->begin_ns <= e->begin_ns);
        while (depth != 0 && ends[depth - 1] <= e->begin_ns) {
            depth--;
        }
        if (depth != 0 && e->end_ns > ends[depth - 1]) {
            TEST_FAIL("%s %s on \"%s\" from %" PRIu64 " to %" PRIu64 " outlasts %" PRIu64,
                      e->category, e->of, f->tracks[e->track], e->begin_ns, e->end_ns,
                      ends[depth - 1]);
        }
        CHECK(depth < 32);
        ends[depth++] = e->end_ns;
        CHECK(f->tracks[e->track][0] != '\0');
    }
}

/* Spans of a category, on a track and of a unit where these are given; the bytes of each. */
static uint64_t spans(const file *f, const char *category, const char *track, const char *of,
                      uint64_t bytes)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < f->count; i++) {
        const event *e = &f->events[i];
        if (strcmp(e->category, category) == 0 &&
            (track == NULL || strncmp(f->tracks[e->track], track, strlen(track)) == 0) &&
            (of == NULL || strcmp(e->of, of) == 0)) {
            if (bytes != 0) {
                CHECK_EQ(e->bytes, bytes);
            }
            count++;
        }
    }
    return count;
}

static uint64_t bytes_of(const file *f, const char *category)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < f->count; i++) {
        bytes += strcmp(f->events[i].category, category) == 0 ? f->events[i].bytes : 0;
    }
    return bytes;
}

/* Bytes of spans that are not over: extents that are read ahead for the next step, and what nobody
 * has waited for on a stream of the caller's. */
static uint64_t pending(const zi_timeline *timeline, uint64_t *count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < timeline->desc.marks; i++) {
        const bool is = timeline->marks[i].end_ns == 0;
        bytes += is ? timeline->marks[i].bytes : 0;
        *count += is;
    }
    return bytes;
}

/* ---- what a run leaves ---- */

static toy_run traced_run(void)
{
    toy_run run = toy_run_equal(UNITS, COUNT, ZERO_DTYPE_F32);
    run.tuning.trace_events = 16384;
    run.tuning.bucket_bytes = 4096; /* a bucket for each unit */
    run.steps = STEPS;
    return run;
}

static zero_status check_training(toy_trainer *trainer)
{
    TOY_TRY(toy_train(trainer));
    TOY_TRY(toy_wait(trainer));
    const zero_stats stats = engine_stats(trainer->engine);
    const file f = take(trainer->engine);
    uint64_t left = 0;
    (void)pending(trainer->engine->timeline, &left);
    check_nests(&f);
    CHECK_EQ(f.lost, left);
    CHECK(left <= (toy_device() == ZERO_DEVICE_CUDA ? 1 : 0));
    /* Every call of the caller's, and each by its unit. */
    CHECK_EQ(spans(&f, "step", "calling thread", NULL, 0), STEPS);
    CHECK_EQ(spans(&f, "micro begin", "calling thread", NULL, 0), STEPS);
    CHECK_EQ(spans(&f, "acquire", "calling thread", NULL, 0), 2 * UNITS * STEPS);
    CHECK_EQ(spans(&f, "release", "calling thread", "layer2", 0), 2 * STEPS);
    /* The counts of the statistics, with the bytes of a unit, which is padded to shards. */
    CHECK_EQ(spans(&f, "gather", "gather stream", NULL, 0), stats.gathers);
    CHECK_EQ(bytes_of(&f, "reduce"), stats.reduce_bytes);
    for (uint32_t u = 0; u < UNITS; u++) {
        const char *name = trainer->run->model->units[u].name;
        const uint64_t bytes = stats.reduce_bytes / stats.reduces;
        CHECK(bytes >= COUNT * sizeof(float));
        CHECK(spans(&f, "gather", "gather stream", name, bytes) >= STEPS);
        CHECK_EQ(spans(&f, "reduce", "reduce stream", name, bytes), STEPS);
        CHECK_EQ(spans(&f, "update", "step stream", name, 0), STEPS);
    }
    CHECK_EQ(spans(&f, "decide", "step stream", NULL, 0), STEPS);
    free(f.events);
    return ZERO_OK;
}

TEST(a_file_has_all_of_a_run)
{
    const toy_run run = traced_run();
    CHECK_OK(toy_on_ranks(RANKS, &run, check_training, NULL));
}

/* Batches of a group have the same numbers on all ranks. */
static zero_status keep_file(toy_trainer *trainer)
{
    file *files = trainer->user;
    TOY_TRY(toy_train(trainer));
    TOY_TRY(toy_wait(trainer));
    files[trainer->rank] = take(trainer->engine);
    return ZERO_OK;
}

TEST(batches_have_the_same_numbers_on_all_ranks)
{
    const toy_run run = traced_run();
    file files[RANKS];
    uint64_t compared = 0;
    CHECK_OK(toy_on_ranks(RANKS, &run, keep_file, files));
    for (uint32_t i = 0; i < files[0].count; i++) {
        const event *e = &files[0].events[i];
        for (uint32_t k = 0; k < files[1].count && e->group[0] != '\0'; k++) {
            const event *other = &files[1].events[k];
            if (strcmp(e->group, other->group) == 0 && e->batch == other->batch) {
                CHECK(strcmp(e->of, other->of) == 0);
                /* A collective ends on no rank before it has begun on all. */
                CHECK(toy_device() == ZERO_DEVICE_CUDA || e->end_ns >= other->begin_ns);
                compared++;
            }
        }
    }
    CHECK(compared >= (uint64_t)STEPS * UNITS * 2);
    free(files[0].events);
    free(files[1].events);
}

/* ---- disks ---- */

static zero_status check_disk(toy_trainer *trainer)
{
    TOY_TRY(toy_train(trainer));
    TOY_TRY(toy_wait(trainer));
    const file f = take(trainer->engine);
    const zero_stats stats = engine_stats(trainer->engine);
    uint64_t left = 0;
    const uint64_t left_bytes = pending(trainer->engine->timeline, &left);
    check_nests(&f);
    CHECK_EQ(f.lost, left);
    CHECK(spans(&f, "load", "gather stream", NULL, 0) != 0);
    CHECK(spans(&f, "read", "disk: ", "optimizer state", 0) != 0);
    CHECK(spans(&f, "write", "disk: ", "param", 0) != 0);
    CHECK_EQ(bytes_of(&f, "read") + left_bytes, stats.disk_read_bytes);
    CHECK_EQ(bytes_of(&f, "write"), stats.disk_write_bytes);
    free(f.events);
    return ZERO_OK;
}

TEST(transfers_of_disks)
{
    rig_folders(1, 0);
    toy_run run = traced_run();
    run.steps = 2;
    toy_run_disk(&run, rig_paths, 1);
    toy_run_tiers(&run, ZERO_ROLE_PARAM, ZERO_TIER_DISK);
    CHECK_OK(toy_on_ranks(RANKS, &run, check_disk, NULL));
}

/* ---- the ring ---- */

static zero_status check_overflow(toy_trainer *trainer)
{
    uint64_t calls = 0;
    const zi_timeline *timeline = trainer->engine->timeline;
    for (uint32_t i = 0; atomic_load(&timeline->head) < 6000; i++) {
        TOY_TRY(toy_step(trainer));
        calls = i == 5 ? zi_memory_calls() : calls;
    }
    TOY_TRY(toy_wait(trainer));
    CHECK_EQ(zi_memory_calls(), calls); /* the notes of a step allocate nothing */
    const file f = take(trainer->engine);
    check_nests(&f);
    CHECK(f.count <= 4096 && f.count > 4000);
    CHECK_EQ(f.lost, atomic_load(&timeline->head) - f.count);
    /* The newest are there: the last step is. */
    uint64_t last_ns = 0;
    for (uint32_t i = 0; i < f.count; i++) {
        last_ns = f.events[i].end_ns > last_ns ? f.events[i].end_ns : last_ns;
    }
    CHECK(zi_clock_ns() - last_ns < UINT64_C(10000000000));
    free(f.events);
    return ZERO_OK;
}

TEST(a_full_ring_forgets_the_oldest)
{
    toy_run run = traced_run();
    run.tuning.trace_events = 4096;
    CHECK_OK(toy_on_ranks(1, &run, check_overflow, NULL));
}

static zero_status check_off(toy_trainer *trainer)
{
    const zero_engine *engine = trainer->engine;
    TOY_TRY(toy_step(trainer));
    CHECK(engine->timeline == NULL && engine->device->timeline == NULL);
    CHECK_FAILS(zero_engine_trace(trainer->engine, "./no-such-trace"), ZERO_ERR_STATE,
                "trace_events");
    CHECK(access("./no-such-trace", F_OK) != 0);
    return ZERO_OK;
}

TEST(no_timeline_unless_it_is_asked_for)
{
    toy_run run = traced_run();
    run.tuning.trace_events = 0;
    CHECK_OK(toy_on_ranks(1, &run, check_off, NULL));
    run.tuning.trace_events = 7;
    toy_trainer trainer;
    CHECK_FAILS(toy_open(&trainer, &run, NULL), ZERO_ERR_INVALID_ARGUMENT, "trace_events");
}

static zero_status check_refusals(toy_trainer *trainer)
{
    CHECK_FAILS(zero_engine_trace(trainer->engine, NULL), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_engine_trace(trainer->engine, "./no/such/folder"), ZERO_ERR_IO, "./no/such");
    TOY_TRY(toy_step(trainer));
    trainer->engine->state = ZI_ENGINE_POISONED;
    const file f = take(trainer->engine); /* spans before a failure can be seen */
    CHECK_EQ(spans(&f, "step", "calling thread", NULL, 0), 1);
    free(f.events);
    return ZERO_OK;
}

TEST(a_file_that_cannot_be_made)
{
    const toy_run run = traced_run();
    CHECK_OK(toy_on_ranks(1, &run, check_refusals, NULL));
}

/* ---- what it does not change ---- */

static zero_status compare_bits(zero_world *world, const toy_run *run, void *user)
{
    toy_run traced = *run;
    toy_state plain;
    (void)user;
    traced.tuning.trace_events = 4096;
    TOY_TRY(toy_train_collect(run, world, &plain));
    TOY_TRY(toy_train_same(&traced, world, toy_step, &plain, "with a timeline"));
    toy_state_free(&plain);
    return ZERO_OK;
}

TEST(a_timeline_changes_no_bit)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    run.micro_steps = 2;
    CHECK_OK(toy_run_ways(RANKS, TOY_DEADLINE_MS, &run, compare_bits, NULL));
}

/* A span on a stream costs two entries of its queue, or two events; one of the caller's two
 * readings of the clock. The bounds are for busy machines. */
static zero_status check_cost(toy_trainer *trainer)
{
    const zero_engine *engine = trainer->engine;
    const zi_device *device = engine->device;
    enum { SPANS = 2000 };
    uint64_t best_ns = UINT64_MAX;
    for (uint32_t round = 0; round < 5; round++) {
        const uint64_t start_ns = zi_clock_ns();
        for (uint32_t i = 0; i < SPANS; i++) {
            zi_mark *mark = NULL;
            TOY_TRY(zi_stream_begin(device, engine->step_stream, ZI_SPAN_UPDATE, "", 0, &mark));
            TOY_TRY(zi_stream_end(device, engine->step_stream, mark));
        }
        const uint64_t took_ns = (zi_clock_ns() - start_ns) / SPANS;
        best_ns = took_ns < best_ns ? took_ns : best_ns;
    }
    CHECK(best_ns < 50000);
    const uint64_t start_ns = zi_clock_ns();
    for (uint32_t i = 0; i < SPANS; i++) {
        zi_span_begin(engine->timeline, ZI_SPAN_STEP, "");
        zi_span_end(engine->timeline);
    }
    const uint64_t host_ns = (zi_clock_ns() - start_ns) / SPANS;
    printf("        a span costs %" PRIu64 " ns on a stream, %" PRIu64 " ns on the host\n", best_ns,
           host_ns);
    CHECK(host_ns < 10000);
    return ZERO_OK;
}

TEST(a_span_costs_little)
{
    const toy_run run = traced_run();
    CHECK_OK(toy_on_ranks(1, &run, check_cost, NULL));
}
