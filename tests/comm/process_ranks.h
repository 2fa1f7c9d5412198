/* Ranks that are processes of this host, started as torchrun would. */
#ifndef TESTS_COMM_PROCESS_RANKS_H
#define TESTS_COMM_PROCESS_RANKS_H

#include <dirent.h>
#include <sys/prctl.h>

#include "comm/bootstrap.h"
#include "conformance.h"

/* More processes than a page of the shared file has lines for. Sanitizers see nothing across
 * processes and make each of them slow to start and end, so there only just more. */
#define MANY (UNDER_SANITIZER ? 80 : 300)

#define LONG_MS 60000

/* The work of one process; its environment says which rank it is. */
typedef void (*rank_main)(uint32_t rank, void *user);

static inline uint32_t test_port(void)
{
    return 20000 + (uint32_t)getpid() % 40000;
}

static inline const char *run_id(void)
{
    return test_text("test-%d", (int)getpid());
}

/* A variable that start_rank() puts into rank 0's environment, as far as ranks meet by it. */
static inline const char *rank_variable(void *user, const char *name)
{
    const char *values[][2] = {{"RANK", "0"},
                               {"WORLD_SIZE", test_text("%u", *(const uint32_t *)user)},
                               {"MASTER_PORT", test_text("%u", test_port())},
                               {"TORCHELASTIC_RUN_ID", run_id()}};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (strcmp(values[i][0], name) == 0) {
            return values[i][1];
        }
    }
    return NULL;
}

/* The name under which `size` ranks of this test meet. */
static inline void meeting_name(uint32_t size, char *name)
{
    zi_launch launch;
    CHECK_OK(zi_launch_parse(rank_variable, &size, &launch));
    zi_launch_host_name(&launch, name);
}

static inline void set_number(const char *name, uint32_t value)
{
    CHECK_EQ(setenv(name, test_text("%u", value), 1), 0);
}

/* Start rank `rank` of `size`. Leaves with the test, whatever happens to it. */
static inline pid_t start_rank(uint32_t rank, uint32_t size, rank_main fn, void *user)
{
    char run[32];
    snprintf(run, sizeof run, "%s", run_id());
    const uint32_t port = test_port();
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child != 0) {
        return child;
    }
    CHECK_EQ(prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
    set_number("RANK", rank);
    set_number("WORLD_SIZE", size);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", size);
    set_number("MASTER_PORT", port);
    CHECK_EQ(setenv("MASTER_ADDR", "localhost", 1), 0);
    CHECK_EQ(setenv("TORCHELASTIC_RUN_ID", run, 1), 0);
    fn(rank, user);
    exit(0);
}

/* 0 when it ended well, its exit status, or 128 + signal. */
static inline int end_of(pid_t child)
{
    int state = 0;
    CHECK(waitpid(child, &state, 0) == child);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

static inline zero_world *join(void)
{
    zero_world *world = NULL;
    CHECK_OK(zero_world_create_launched(LONG_MS, &world));
    return world;
}

/* Names of this test's run in /dev/shm. A job that was killed may have left one of the same port.
 */
static inline uint32_t names_left(void)
{
    char prefix[64];
    meeting_name(2, prefix);
    *(strrchr(prefix, '-') + 1) = '\0'; /* worlds of any size */
    DIR *folder = opendir("/dev/shm");
    CHECK(folder != NULL);
    uint32_t count = 0;
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        count += strncmp(entry->d_name, prefix + 1, strlen(prefix + 1)) == 0;
    }
    closedir(folder);
    return count;
}

/* All of them end well, and leave nothing behind. */
static inline void run_ranks(uint32_t size, rank_main fn, void *user)
{
    pid_t children[MANY];
    CHECK(size <= MANY);
    for (uint32_t i = 0; i < size; i++) {
        children[i] = start_rank(size - 1 - i, size, fn, user);
    }
    for (uint32_t i = 0; i < size; i++) {
        CHECK_EQ(end_of(children[i]), 0);
    }
    CHECK_EQ(names_left(), 0);
}

#endif
