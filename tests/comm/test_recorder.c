/* comm: the flight recorder keeps the newest batches of a group and what became of each; what is
 * overwritten is said to be gone; a reader on another thread never sees parts of two batches; and
 * a group's batches are there with their terms and times in order. */
#include "conformance.h"

#include <pthread.h>

#include "comm/recorder.h"

static zi_recorder *open_recorder(void)
{
    zi_recorder *recorder = calloc(1, sizeof *recorder);
    CHECK(recorder != NULL);
    return recorder;
}

/* All that is told apart of the batch is its number. */
static uint64_t enqueue(zi_recorder *recorder, uint64_t number)
{
    const zi_record batch = {.terms = {number, ~number},
                             .bytes = number * 3,
                             .collectives = (uint32_t)(number % 1000),
                             .hash = (uint32_t)number};
    return zi_recorder_enqueue(recorder, &batch);
}

static void check_batch(const zi_record *record, uint64_t number)
{
    CHECK_EQ(record->number, number);
    CHECK_EQ(record->terms[0], number);
    CHECK_EQ(record->terms[1], ~number);
    CHECK_EQ(record->bytes, number * 3);
    CHECK_EQ(record->collectives, number % 1000);
    CHECK_EQ(record->hash, (uint32_t)number);
}

TEST(a_batch_moves_on)
{
    zi_recorder *recorder = open_recorder();
    zi_record record;
    CHECK(!zi_recorder_read(recorder, 0, &record));
    CHECK_EQ(enqueue(recorder, 0), 0);
    CHECK(zi_recorder_read(recorder, 0, &record));
    check_batch(&record, 0);
    CHECK_EQ(record.state, ZI_RECORD_ENQUEUED);
    CHECK(record.enqueued_ns != 0 && record.started_ns == 0 && record.ended_ns == 0);
    zi_recorder_start(recorder, 0);
    zi_recorder_end(recorder, 0, ZI_RECORD_DONE);
    zi_recorder_end(recorder, 0, ZI_RECORD_FAILED); /* it has ended already */
    CHECK(zi_recorder_read(recorder, 0, &record));
    CHECK_EQ(record.state, ZI_RECORD_DONE);
    CHECK(record.enqueued_ns <= record.started_ns && record.started_ns <= record.ended_ns);
    CHECK_EQ(atomic_load(&recorder->done), 1);
    CHECK_EQ(enqueue(recorder, 1), 1);
    zi_recorder_end(recorder, 1, ZI_RECORD_CAPTURED);
    CHECK(zi_recorder_read(recorder, 1, &record));
    CHECK_EQ(record.state, ZI_RECORD_CAPTURED);
    CHECK_EQ(record.started_ns, 0);
    CHECK_EQ(atomic_load(&recorder->done), 1);
    free(recorder);
}

TEST(the_ring_wraps)
{
    zi_recorder *recorder = open_recorder();
    zi_record record;
    const uint64_t count = 2 * ZI_RECORDS + 7;
    for (uint64_t i = 0; i < count; i++) {
        CHECK_EQ(enqueue(recorder, i), i);
        CHECK_EQ(zi_recorder_last(recorder), i);
    }
    for (uint64_t i = 0; i < count; i++) {
        const bool there = zi_recorder_read(recorder, i, &record);
        CHECK_EQ(there, i + ZI_RECORDS >= count);
        if (there) {
            check_batch(&record, i);
        }
    }
    CHECK(!zi_recorder_read(recorder, count, &record));
    /* One that is overwritten ends: the batch in its place stays as it is. */
    zi_recorder_start(recorder, ZI_RECORDS);
    zi_recorder_end(recorder, ZI_RECORDS, ZI_RECORD_DONE);
    CHECK(zi_recorder_read(recorder, 2 * ZI_RECORDS, &record));
    CHECK_EQ(record.state, ZI_RECORD_ENQUEUED);
    CHECK_EQ(atomic_load(&recorder->done), ZI_RECORDS + 1);
    free(recorder);
}

#define CONCURRENT 200000

static void *write_many(void *argument)
{
    zi_recorder *recorder = argument;
    for (uint64_t i = 0; i < CONCURRENT; i++) {
        (void)enqueue(recorder, i);
        zi_recorder_start(recorder, i);
        zi_recorder_end(recorder, i, ZI_RECORD_DONE);
    }
    return NULL;
}

TEST(another_thread_reads)
{
    zi_recorder *recorder = open_recorder();
    pthread_t writer;
    uint64_t read = 0;
    CHECK_EQ(pthread_create(&writer, NULL, write_many, recorder), 0);
    while (atomic_load(&recorder->enqueued) < CONCURRENT) {
        const uint64_t enqueued = atomic_load(&recorder->enqueued);
        for (uint64_t i = enqueued > 4 ? enqueued - 4 : 0; i <= enqueued; i++) {
            zi_record record;
            if (zi_recorder_read(recorder, i, &record)) {
                check_batch(&record, i);
                CHECK(record.state != ZI_RECORD_DONE || record.ended_ns >= record.started_ns);
                read++;
            }
        }
    }
    CHECK_EQ(pthread_join(writer, NULL), 0);
    CHECK(read != 0);
    free(recorder);
}

#define BATCHES 10

static zero_status run_batches(zero_world *world, void *user)
{
    const conf_shape shape = {ZI_ALL_REDUCE, ZERO_DTYPE_F32, ZERO_DTYPE_F32, 100, 0, false, 0, 1};
    conf test = {0};
    (void)user;
    conf_open_all(&test, world, 100, "noted");
    const zi_recorder *recorder = &test.group->recorder;
    uint64_t last_ns = 0;
    for (uint64_t i = 0; i < BATCHES; i++) {
        const zi_collective job = conf_prepare(&test, &shape);
        const zi_collective_terms terms = zi_collective_terms_of(&job);
        zi_record record;
        CHECK_OK(zi_group_submit(test.group, test.host, &job, 1));
        CHECK(zi_recorder_read(recorder, i, &record));
        CHECK_EQ(record.state, ZI_RECORD_DONE);
        CHECK_BYTES(record.terms, &terms, sizeof terms);
        CHECK_EQ(record.bytes, 100 * sizeof(float));
        CHECK(last_ns <= record.enqueued_ns && record.enqueued_ns <= record.started_ns &&
              record.started_ns <= record.ended_ns);
        last_ns = record.ended_ns;
    }
    CHECK_EQ(atomic_load(&recorder->done), BATCHES);
    conf_close(&test);
    return ZERO_OK;
}

TEST(a_group_records_its_batches)
{
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        CHECK_OK(zero_world_run(ranks, 5000, run_batches, NULL));
    }
}

/* The time that it adds to a batch: most of it is three readings of the clock. */
TEST(a_batch_is_recorded_in_little_time)
{
    enum { TURNS = 50, ROUNDS = 10000 };
    zi_recorder *recorder = open_recorder();
    uint64_t best_ns = UINT64_MAX;
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        const uint64_t start_ns = zi_clock_ns();
        for (uint64_t i = turn * ROUNDS; i < (turn + 1) * ROUNDS; i++) {
            (void)enqueue(recorder, i);
            zi_recorder_start(recorder, i);
            zi_recorder_end(recorder, i, ZI_RECORD_DONE);
        }
        const uint64_t ns = (zi_clock_ns() - start_ns) / ROUNDS;
        best_ns = ns < best_ns ? ns : best_ns;
    }
    printf("        a batch costs %" PRIu64 " ns\n", best_ns);
    CHECK(best_ns < (UNDER_SANITIZER ? 20000 : 1000));
    free(recorder);
}
