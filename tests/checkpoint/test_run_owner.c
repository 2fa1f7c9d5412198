/* Owns the tests of a run's owner: one at a time, on file systems with locks, with locks of each
 * host alone, and with none. flock goes through this program; the linker puts it in between. */
#include "harness.h"

#include <sys/file.h>

#include "checkpoint/run_owner.h"
#include "core/clock.h"
#include "core/host.h"
#include "folders.h"
#include "zero/log.h"

#define LOCK ZI_RUN_LOCK_NAME
#define BEAT_NS UINT64_C(25000000)
#define OWNS 'o'
#define REFUSED 'r'

static bool no_locks; /* the file system has none */

int __real_flock(int file, int operation);
int __wrap_flock(int file, int operation);
int __wrap_flock(int file, int operation)
{
    errno = ENOLCK;
    return no_locks ? -1 : __real_flock(file, operation);
}

static char *run;
static uint32_t warnings;

static void count_warnings(void *user, zero_log_level level, const char *message)
{
    (void)user;
    (void)message;
    warnings += level == ZERO_LOG_WARN;
}

static void make_run(void)
{
    run = rig_folder(true);
    zi_run_beat_ns = BEAT_NS;
    zero_log_set(count_warnings, NULL);
}

/* An owner that leaves leaves nothing. */
static void remove_run(void)
{
    rig_remove(run);
}

static zi_run_owner *own(const char *path)
{
    zi_run_owner *owner = NULL;
    CHECK_OK(zi_run_owner_take(path, &owner));
    CHECK_OK(zi_run_owner_check(owner));
    return owner;
}

/* Nothing changes what the owner's file says. */
#define CHECK_REFUSED(path, says)                                              \
    do {                                                                       \
        zi_run_owner *refused_ = NULL;                                         \
        CHECK_FAILS(zi_run_owner_take(path, &refused_), ZERO_ERR_STATE, says); \
        CHECK_SAID(path);                                                      \
        CHECK(refused_ == NULL);                                               \
    } while (0)

/* A process that owns the run and lives until it is killed, or was refused. It waits for `go` where
 * that is not -1. */
typedef struct job {
    pid_t pid;
    int answers;
} job;

static job start(int go)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    job j = {fork(), ends[0]};
    CHECK(j.pid >= 0);
    if (j.pid == 0) {
        zi_run_owner *owner = NULL;
        char letter = 0;
        (void)(go >= 0 && read(go, &letter, 1));
        letter = zi_run_owner_take(run, &owner) == ZERO_OK ? OWNS : REFUSED;
        CHECK(write(ends[1], &letter, 1) == 1);
        (void)alarm(60); /* if the test has failed */
        (void)pause();
        _exit(0);
    }
    CHECK(close(ends[1]) == 0);
    return j;
}

static char answer(const job *j)
{
    char letter = 0;
    CHECK(read(j->answers, &letter, 1) == 1);
    return letter;
}

static void end(const job *j)
{
    int status = 0;
    CHECK(kill(j->pid, SIGKILL) == 0);
    CHECK(waitpid(j->pid, &status, 0) == j->pid);
    CHECK(close(j->answers) == 0);
}

/* ---- with locks ---- */

TEST(a_second_process_is_refused_with_the_owner_s_name)
{
    char host[ZI_HOST_NAME_BYTES];
    make_run();
    zi_host_name(host);
    const job first = start(-1);
    CHECK_EQ(answer(&first), OWNS);
    CHECK_REFUSED(run, test_text("process %ld on %.90s", (long)first.pid, host));
    CHECK_SAID(" since 20");
    CHECK_SAID("UTC");
    end(&first);
    /* The next one of this host need not wait. */
    const uint64_t begun = zi_clock_ns();
    zi_run_beat_ns = UINT64_C(3600000000000);
    zi_run_owner *owner = own(run);
    CHECK(zi_clock_ns() - begun < UINT64_C(10000000000));
    CHECK_EQ(warnings, 0);
    zi_run_owner_release(owner);
    remove_run();
}

TEST(a_second_engine_of_this_process_is_refused)
{
    make_run();
    zi_run_owner *owner = own(run);
    CHECK_REFUSED(run, "another engine of this process");
    CHECK_OK(zi_run_owner_check(owner));
    CHECK(zi_run_owner_has(owner, run) && zi_run_owner_has(owner, test_text("%s/.", run)));
    CHECK(!zi_run_owner_has(owner, "/"));
    zi_run_owner_release(owner);
    owner = own(run);
    zi_run_owner_release(owner);
    remove_run();
}

/* A forked child has the parent's files, and with them its locks. */
TEST(a_child_that_outlives_the_owner_holds_nothing)
{
    int ends[2];
    make_run();
    CHECK(pipe(ends) == 0);
    const pid_t first = fork();
    if (first == 0) {
        (void)own(run);
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) { /* which runs by now, and so has let go */
            const pid_t self = getpid();
            CHECK(write(ends[1], &self, sizeof self) == sizeof self);
        }
        (void)alarm(60); /* if the test has failed */
        (void)pause();
        _exit(0);
    }
    pid_t child = 0;
    CHECK(read(ends[0], &child, sizeof child) == sizeof child);
    CHECK(kill(first, SIGKILL) == 0 && waitpid(first, NULL, 0) == first);
    zi_run_owner_release(own(run));
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    remove_run();
}

TEST(a_copied_run_has_no_owner)
{
    make_run();
    char *copy = rig_folder(true);
    zi_run_beat_ns = UINT64_C(3600000000000);
    const job first = start(-1);
    CHECK_EQ(answer(&first), OWNS);
    CHECK_EQ(system(test_text("cp -a '%s'/. '%s'", run, copy)), 0);
    CHECK_EQ(rig_entries(copy), 1);
    no_locks = true; /* so nothing but the text can tell */
    zi_run_owner *owner = NULL;
    bool owned = false;
    CHECK_OK(zi_run_owner_begin(copy, &owner));
    CHECK_OK(zi_run_owner_poll(owner, &owned));
    CHECK_EQ(warnings, 0); /* it watches nobody */
    zi_run_owner_release(owner);
    no_locks = false;
    zi_run_owner_release(own(copy));
    CHECK_REFUSED(run, "process");
    end(&first);
    zi_run_owner_release(own(run));
    rig_remove(copy);
    remove_run();
}

/* ---- other hosts ---- */

/* Leave the lock of an owner of another host. */
static int leave_file(const char *host)
{
    struct stat info;
    const int file = open(test_text("%s/" LOCK, run), O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(file >= 0 && fstat(file, &info) == 0);
    const char *text = test_text("process 7 on elsewhere since 2026-01-02 03:04:05 UTC\n"
                                 "host %s file %llu mark 0123456789abcdef\n",
                                 host, (unsigned long long)info.st_ino);
    CHECK(write(file, text, strlen(text)) == (ssize_t)strlen(text));
    return file;
}

TEST(an_owner_of_another_host_that_is_dead_is_replaced)
{
    make_run();
    CHECK(close(leave_file("0123456789abcdef")) == 0);
    const uint64_t begun = zi_clock_ns();
    zi_run_owner *owner = own(run);
    CHECK(zi_clock_ns() - begun >= ZI_RUN_BEATS * BEAT_NS);
    CHECK(warnings >= 2); /* that it waits, and whom it replaces */
    zi_run_owner_release(owner);
    remove_run();
}

TEST(an_owner_of_another_host_that_lives_is_not)
{
    bool owned = true;
    zi_run_owner *owner = NULL;
    make_run();
    const int file = leave_file("0123456789abcdef");
    CHECK_OK(zi_run_owner_begin(run, &owner));
    CHECK_OK(zi_run_owner_poll(owner, &owned));
    CHECK(!owned);
    CHECK_EQ(zi_run_owner_check(owner), ZERO_OK); /* nothing of the file has changed */
    const struct timespec touched[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    CHECK(futimens(file, touched) == 0); /* whatever its clock says */
    CHECK_FAILS(zi_run_owner_poll(owner, &owned), ZERO_ERR_STATE,
                "process 7 on elsewhere since 2026");
    zi_run_owner_release(owner);
    CHECK_EQ(rig_entries(run), 1);
    /* And one that leaves meanwhile. */
    CHECK_OK(zi_run_owner_begin(run, &owner));
    CHECK_OK(zi_run_owner_poll(owner, &owned));
    CHECK(!owned && unlink(test_text("%s/" LOCK, run)) == 0 && close(file) == 0);
    CHECK_OK(zi_run_owner_poll(owner, &owned));
    CHECK(owned);
    zi_run_owner_release(owner);
    remove_run();
}

/* ---- no locks ---- */

TEST(without_locks_signs_of_life_decide)
{
    make_run();
    no_locks = true;
    zi_run_beat_ns = 4 * BEAT_NS; /* this machine may be busy */
    const job first = start(-1);
    CHECK_EQ(answer(&first), OWNS);
    CHECK_REFUSED(run, test_text("process %ld on ", (long)first.pid));
    end(&first);
    zi_run_owner_release(own(run));
    remove_run();
}

TEST(without_locks_one_of_several_owns)
{
    enum { JOBS = 4 };
    job jobs[JOBS];
    int go[2];
    make_run();
    no_locks = true;
    zi_run_beat_ns = 8 * BEAT_NS; /* this machine may be busy */
    for (int left = 0; left < 2; left++) {
        uint32_t owners = 0;
        if (left) { /* by one that is dead, which all of them find out at once */
            CHECK(close(leave_file("0123456789abcdef")) == 0);
        }
        CHECK(pipe(go) == 0);
        for (int i = 0; i < JOBS; i++) {
            jobs[i] = start(go[0]);
        }
        CHECK(write(go[1], "....", JOBS) == JOBS);
        for (int i = 0; i < JOBS; i++) {
            owners += answer(&jobs[i]) == OWNS;
        }
        CHECK_EQ(owners, 1);
        for (int i = 0; i < JOBS; i++) {
            end(&jobs[i]);
        }
        CHECK(close(go[0]) == 0 && close(go[1]) == 0);
        CHECK(unlink(test_text("%s/" LOCK, run)) == 0);
    }
    remove_run();
}

/* ---- what became of the file ---- */

TEST(an_owner_that_was_replaced_changes_nothing)
{
    make_run();
    zi_run_owner *owner = own(run);
    CHECK(close(leave_file("0123456789abcdef")) == 0);
    CHECK_FAILS(zi_run_owner_check(owner), ZERO_ERR_STATE, "process 7 on elsewhere");
    zi_run_owner_release(owner);
    CHECK_EQ(rig_entries(run), 1);
    CHECK(unlink(test_text("%s/" LOCK, run)) == 0);
    owner = own(run);
    CHECK(unlink(test_text("%s/" LOCK, run)) == 0);
    CHECK_FAILS(zi_run_owner_check(owner), ZERO_ERR_STATE, "was removed");
    zi_run_owner *other = own(run);
    CHECK_FAILS(zi_run_owner_check(owner), ZERO_ERR_STATE, "another engine of this process");
    zi_run_owner_release(owner);
    CHECK_OK(zi_run_owner_check(other));
    zi_run_owner_release(other);
    remove_run();
}

TEST(what_is_no_lock_file_is_refused)
{
    char path[96];
    make_run();
    (void)snprintf(path, sizeof path, "%s/" LOCK, run);
    CHECK(symlink("/etc/passwd", path) == 0);
    CHECK_REFUSED(run, "symbolic link");
    CHECK(unlink(path) == 0 && mkfifo(path, 0600) == 0);
    CHECK_REFUSED(run, "no regular file");
    CHECK(unlink(path) == 0);
    /* A text that is no owner's means nothing; where it is held it is shown in plain letters. */
    const int file = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(write(file, "\033]0;owned\007 \nhost", 16) == 16);
    CHECK(flock(file, LOCK_EX | LOCK_NB) == 0);
    CHECK_REFUSED(run, "?]0;owned? ");
    CHECK(close(file) == 0);
    zi_run_owner_release(own(run));
    zi_run_owner *owner = NULL;
    CHECK_FAILS(zi_run_owner_take("/nowhere", &owner), ZERO_ERR_IO, "/nowhere");
    remove_run();
}
