/* Owns the tests of failures that ranks share: the cause counts, and all of it arrives. */
#include "harness.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "core/failure.h"

static zero_error error_of(zero_status status, const char *file, const char *message)
{
    zero_error error = {.status = status, .native = 28, .line = 77, .file = file};
    (void)snprintf(error.message, sizeof error.message, "%s", message);
    return error;
}

static zi_failure abort_of(uint32_t rank, zero_status status, const char *file, const char *message)
{
    const zero_error error = error_of(status, file, message);
    return zi_failure_of_abort(rank, &error);
}

static bool set(zi_failure_cell *cell, zi_failure failure)
{
    return zi_failure_set(cell, &failure);
}

static zero_error error_in(const zi_failure_cell *cell, uint32_t own)
{
    zi_failure failure;
    CHECK(zi_failure_get(cell, &failure));
    return zi_failure_error(&failure, own);
}

TEST(the_first_failure_stays)
{
    zi_failure_cell cell = {0};
    CHECK(!zi_failure_get(&cell, NULL));
    CHECK(set(&cell, abort_of(3, ZERO_ERR_IO, "store.c", "the disk is full")));
    CHECK(!set(&cell, abort_of(1, ZERO_ERR_DEVICE, "cuda.c", "the GPU is lost")));
    const zero_error own = error_in(&cell, 3);
    CHECK_EQ(own.status, ZERO_ERR_IO);
    CHECK_EQ(own.native, 28);
    CHECK_EQ(own.line, 77);
    CHECK_EQ(own.of_other, 0);
    CHECK(strcmp(own.file, "store.c") == 0);
    CHECK(strcmp(own.message, "the disk is full") == 0);
    const zero_error other = error_in(&cell, 0);
    CHECK_EQ(other.status, ZERO_ERR_COMM);
    CHECK_EQ(other.native, 28);
    CHECK_EQ(other.line, 77);
    CHECK_EQ(other.of_other, 2);
    CHECK(strcmp(other.file, "store.c") == 0);
    CHECK(strcmp(other.message, "rank 3: the disk is full") == 0);
}

/* Whoever comes first: a rank that fails because of another names that rank, and the one that found
 * the cause counts. */
TEST(a_bystander_never_wins)
{
    zi_failure_cell cell = {0};
    const zi_failure cause = abort_of(3, ZERO_ERR_IO, "store.c", "the disk is full");
    const zero_error heard = zi_failure_error(&cause, 1);
    const zi_failure passed_on = zi_failure_of_abort(1, &heard);
    CHECK_EQ(passed_on.rank, 3);
    CHECK_EQ(passed_on.line, 77);
    CHECK(strcmp(passed_on.file, "store.c") == 0);
    CHECK(strcmp(passed_on.message, "the disk is full") == 0);
    CHECK(set(&cell, passed_on));
    CHECK(!set(&cell, abort_of(2, ZERO_ERR_POISONED, "guard.c", "an earlier call failed")));
    CHECK_EQ(error_in(&cell, 3).status, ZERO_ERR_COMM);
    CHECK(set(&cell, cause));
    CHECK(!set(&cell, passed_on));
    CHECK_EQ(error_in(&cell, 3).status, ZERO_ERR_IO);
    CHECK_EQ(error_in(&cell, 3).of_other, 0);
    zi_failure_cell late = {0};
    CHECK(set(&late, cause));
    CHECK(!set(&late, passed_on));
}

/* A rank that is missing is nearer to the cause than those that heard of it, and the reason why it
 * is missing nearer still. */
TEST(a_reason_wins_over_an_absence)
{
    zi_failure_cell cell = {0};
    CHECK(set(&cell, abort_of(2, ZERO_ERR_POISONED, "guard.c", "an earlier call failed")));
    CHECK(set(&cell, abort_of(0, ZERO_ERR_TIMEOUT, "peer.c", "rank 1 did not arrive")));
    CHECK(!set(&cell, abort_of(3, ZERO_ERR_COMM, "watch.c", "rank 1 has left")));
    CHECK_EQ(error_in(&cell, 0).status, ZERO_ERR_TIMEOUT);
    CHECK(set(&cell, abort_of(1, ZERO_ERR_IO, "store.c", "the disk is full")));
    CHECK_EQ(error_in(&cell, 1).status, ZERO_ERR_IO);
}

TEST(a_difference_is_one_of_all_ranks)
{
    const zi_failure failure = abort_of(2, ZERO_ERR_MISMATCH, "agree.c", "4 here, 5 there");
    CHECK_EQ(zi_failure_error(&failure, 0).status, ZERO_ERR_MISMATCH);
}

TEST(a_failure_of_all_names_none)
{
    const zero_error error = error_of(ZERO_ERR_TIMEOUT, NULL, "nobody came");
    const zi_failure failure = zi_failure_of_all(&error);
    const zero_error got = zi_failure_error(&failure, 5);
    CHECK_EQ(got.status, ZERO_ERR_TIMEOUT);
    CHECK_EQ(got.of_other, 0);
    CHECK(strcmp(got.message, "nobody came") == 0);
    CHECK(strcmp(got.file, "") == 0);
}

TEST(an_error_without_a_text_has_that_of_its_status)
{
    const zi_failure failure = abort_of(1, ZERO_ERR_IO, "a.c", "");
    CHECK(strcmp(failure.message, zero_status_text(ZERO_ERR_IO)) == 0);
}

/* Bytes of another host are what they are. */
TEST(whatever_is_received_is_a_failure)
{
    zi_failure failure;
    memset(&failure, 'x', sizeof failure);
    zi_failure_received(&failure);
    CHECK_EQ(strlen(failure.message), sizeof failure.message - 1);
    CHECK_EQ(strlen(failure.file), sizeof failure.file - 1);
    CHECK(strncmp(zi_failure_error(&failure, 0).message, "rank 2021161080: xxx", 20) == 0);
    memset(&failure, 0, sizeof failure);
    zi_failure_received(&failure);
    CHECK_EQ(failure.status, ZERO_ERR_COMM);
    CHECK_EQ(failure.others, ZERO_ERR_COMM);
}

/* A failure that a process has set is there after it has ended and its memory is unmapped. */
TEST(another_process_names_its_file)
{
    zi_failure_cell *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    const pid_t child = fork();
    if (child == 0) {
        char name[16]; /* a constant of its own */
        (void)snprintf(name, sizeof name, "file%d.c", 7);
        (void)set(shared, abort_of(1, ZERO_ERR_CORRUPT, name, "a wrong bit"));
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    const zero_error error = error_in(shared, 0);
    CHECK_EQ(munmap(shared, sizeof *shared), 0);
    CHECK(strcmp(error.file, "file7.c") == 0);
    CHECK(strcmp(error.message, "rank 1: a wrong bit") == 0);
}

/* A name that is too long is cut, and more files than are kept have no name; nothing else is lost.
 */
TEST(names_have_a_limit)
{
    for (int i = 0; i < 200; i++) {
        zi_failure_cell cell = {0};
        char name[80];
        (void)snprintf(name, sizeof name, "%d-a-name-of-more-than-forty-bytes-that-no-file-has.c",
                       i);
        CHECK(set(&cell, abort_of(0, ZERO_ERR_IO, name, "full")));
        const zero_error got = error_in(&cell, 0);
        CHECK(got.file[0] == '\0' || strncmp(got.file, name, ZI_FAILURE_FILE_BYTES - 1) == 0);
        CHECK_EQ(got.line, 77);
        CHECK(strcmp(got.message, "full") == 0);
    }
}

/* Of ranks that report at once, the one that found something itself counts, whichever is first. */
TEST(causes_go_before_what_follows_from_them)
{
    zi_failure told[4] = {{0}};
    CHECK_EQ(zi_failure_first_cause(told, sizeof told[0], 4), 4);
    (void)zi_error_set(ZERO_ERR_COMM, 0, "a.c", 1, "rank 3: gone");
    told[0] = zi_failure_tell(ZERO_ERR_COMM);
    CHECK_EQ(zi_failure_first_cause(told, sizeof told[0], 4), 0);
    (void)zi_error_set(ZERO_ERR_CORRUPT, 5, "a.c", 9, "sums.bin differs");
    told[3] = zi_failure_tell(ZERO_ERR_CORRUPT);
    CHECK_EQ(zi_failure_hear(&told[3], "", 3), ZERO_ERR_CORRUPT);
    CHECK(strcmp(zero_last_error()->message, "rank 3: sums.bin differs") == 0);
    CHECK(strcmp(zero_last_error()->file, "a.c") == 0);
    CHECK_EQ(zero_last_error()->line, 9);
    CHECK_EQ(zero_last_error()->native, 5);
    CHECK_EQ(zero_last_error()->of_other, 1);
    told[1] = zi_failure_tell(ZERO_ERR_CORRUPT);
    CHECK_EQ(zi_failure_first_cause(told, sizeof told[0], 4), 3);
    CHECK_EQ(zi_failure_of_abort(7, zero_last_error()).rank, 3);
    CHECK_EQ(zi_failure_hear(&told[3], "model-parallel ", 2), ZERO_ERR_CORRUPT);
    const zi_failure of_mesh = zi_failure_of_abort(7, zero_last_error());
    CHECK_EQ(of_mesh.rank, 7); /* the rank that it names is none of this world */
    CHECK(strcmp(of_mesh.message, "model-parallel rank 2: sums.bin differs") == 0);
}
