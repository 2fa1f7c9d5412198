/* Owns the tests of failures that are shared: the first stays, and all of it arrives. */
#include "harness.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "core/failure.h"

static zero_error error_of(zero_status status, const char *file, const char *message)
{
    zero_error error = {.status = status, .native = 28, .line = 77, .file = file, .of_other = 1};
    (void)snprintf(error.message, sizeof error.message, "%s", message);
    return error;
}

TEST(the_first_failure_stays)
{
    zi_failure failure = {0};
    const zero_error first = error_of(ZERO_ERR_IO, "store.c", "the disk is full");
    const zero_error second = error_of(ZERO_ERR_DEVICE, "cuda.c", "the GPU is lost");
    CHECK(!zi_failure_is_set(&failure));
    CHECK(zi_failure_set(&failure, 3, &first));
    CHECK(!zi_failure_set(&failure, 1, &second));
    CHECK(zi_failure_is_set(&failure));
    const zero_error own = zi_failure_error(&failure, 3);
    CHECK_EQ(own.status, ZERO_ERR_IO);
    CHECK_EQ(own.native, 28);
    CHECK_EQ(own.line, 77);
    CHECK_EQ(own.of_other, 1);
    CHECK(strcmp(own.file, "store.c") == 0);
    CHECK(strcmp(own.message, "the disk is full") == 0);
    CHECK(strcmp(zi_failure_error(&failure, 0).message, "rank 3: the disk is full") == 0);
}

TEST(a_failure_of_no_rank_names_none)
{
    zi_failure failure = {0};
    const zero_error error = error_of(ZERO_ERR_TIMEOUT, NULL, "nobody came");
    CHECK(zi_failure_set(&failure, ZI_FAILURE_NO_RANK, &error));
    CHECK(strcmp(zi_failure_error(&failure, 5).message, "nobody came") == 0);
    CHECK(strcmp(zi_failure_error(&failure, 5).file, "") == 0);
}

/* A failure that a process has set is there after it has ended and its memory is unmapped. */
TEST(another_process_names_its_file)
{
    zi_failure *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    const pid_t child = fork();
    if (child == 0) {
        char name[16]; /* a constant of its own */
        (void)snprintf(name, sizeof name, "file%d.c", 7);
        const zero_error error = error_of(ZERO_ERR_CORRUPT, name, "a wrong bit");
        (void)zi_failure_set(shared, 1, &error);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    CHECK(zi_failure_is_set(shared));
    const zero_error error = zi_failure_error(shared, 0);
    CHECK_EQ(munmap(shared, sizeof *shared), 0);
    CHECK(strcmp(error.file, "file7.c") == 0);
    CHECK(strcmp(error.message, "rank 1: a wrong bit") == 0);
}

/* A name that is too long is cut, and more files than are kept have no name; nothing else is lost.
 */
TEST(names_have_a_limit)
{
    for (int i = 0; i < 200; i++) {
        zi_failure failure = {0};
        char name[80];
        (void)snprintf(name, sizeof name, "%d-a-name-of-more-than-forty-bytes-that-no-file-has.c",
                       i);
        const zero_error error = error_of(ZERO_ERR_IO, name, "full");
        CHECK(zi_failure_set(&failure, 0, &error));
        const zero_error got = zi_failure_error(&failure, 0);
        CHECK(got.file[0] == '\0' || strncmp(got.file, name, ZI_FAILURE_FILE_BYTES - 1) == 0);
        CHECK_EQ(got.line, 77);
        CHECK(strcmp(got.message, "full") == 0);
    }
}
