/* The test harness: one header, one program per suite.
 *
 *   TEST(name) { CHECK_EQ(1 + 1, 2); }      registers itself; runs in a process of its own, with a
 * deadline SKIP("why");                             ends the test, counted as skipped, the reason
 * printed TEST_MAIN()                              once per program
 *
 * Arguments: a substring selects tests; --seed N sets test_seed (printed). Environment:
 * TEST_TIMEOUT in seconds per test (default 120, with sanitizers 360). Checks survive release
 * builds and print both sides. The last line is "N passed, N failed, N skipped". Checks may be used
 * from any thread of the test; the first that fails ends the process. */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef ON_MACHINE
#include "machine.h"
#endif
#include "sanitizer.h"
#include "zero/status.h"

typedef struct test_case {
    const char *name;
    void (*run)(void);
    struct test_case *next;
} test_case;

static test_case *test_first;
static test_case **test_last = &test_first;
static uint64_t test_seed = 1;

#define TEST(test_name)                                                                \
    static void test_run_##test_name(void);                                            \
    static test_case test_case_##test_name = {#test_name, test_run_##test_name, NULL}; \
    __attribute__((constructor)) static void test_register_##test_name(void)           \
    {                                                                                  \
        *test_last = &test_case_##test_name;                                           \
        test_last = &test_case_##test_name.next;                                       \
    }                                                                                  \
    static void test_run_##test_name(void)

/* A test that is one call: a row, where tests differ in their arguments only. */
#define TEST_CALL(test_name, ...) \
    TEST(test_name)               \
    {                             \
        __VA_ARGS__;              \
    }                             \
    _Static_assert(true, #test_name)

#define TEST_FAIL(...)                                    \
    do {                                                  \
        fprintf(stderr, "  %s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__);                     \
        fprintf(stderr, "\n");                            \
        fflush(NULL);                                     \
        _exit(1);                                         \
    } while (0)

#define CHECK(condition)                           \
    do {                                           \
        if (!(condition)) {                        \
            TEST_FAIL("not true: %s", #condition); \
        }                                          \
    } while (0)

#define CHECK_EQ(left, right)                                                              \
    do {                                                                                   \
        const uint64_t left_ = (uint64_t)(left);                                           \
        const uint64_t right_ = (uint64_t)(right);                                         \
        if (left_ != right_) {                                                             \
            TEST_FAIL("%s == %s: %" PRIu64 " and %" PRIu64, #left, #right, left_, right_); \
        }                                                                                  \
    } while (0)

/* Doubles, compared exactly: equal values, or both NaN. */
#define CHECK_SAME(left, right)                                                        \
    do {                                                                               \
        const double left_ = (double)(left);                                           \
        const double right_ = (double)(right);                                         \
        if (!(left_ == right_ || (isnan(left_) && isnan(right_)))) {                   \
            TEST_FAIL("%s same as %s: %.17g and %.17g", #left, #right, left_, right_); \
        }                                                                              \
    } while (0)

#define CHECK_NEAR(left, right, bound)                                              \
    do {                                                                            \
        const double left_ = (double)(left);                                        \
        const double right_ = (double)(right);                                      \
        if (!(fabs(left_ - right_) <= (double)(bound))) {                           \
            TEST_FAIL("%s near %s: %.17g and %.17g", #left, #right, left_, right_); \
        }                                                                           \
    } while (0)

#define CHECK_BYTES(left, right, bytes)                                                      \
    do {                                                                                     \
        const unsigned char *left_ = (const unsigned char *)(left);                          \
        const unsigned char *right_ = (const unsigned char *)(right);                        \
        for (size_t byte_ = 0; byte_ < (size_t)(bytes); byte_++) {                           \
            if (left_[byte_] != right_[byte_]) {                                             \
                TEST_FAIL("%s and %s differ first at byte %zu of %zu: %02x and %02x", #left, \
                          #right, byte_, (size_t)(bytes), left_[byte_], right_[byte_]);      \
            }                                                                                \
        }                                                                                    \
    } while (0)

/* A call that must succeed. */
#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        const zero_status status_ = (call);                                                        \
        if (status_ != ZERO_OK) {                                                                  \
            TEST_FAIL("%s: %s: %s", #call, zero_status_name(status_), zero_last_error()->message); \
        }                                                                                          \
    } while (0)

/* The last message of an error has `text` in it. */
#define CHECK_SAID(text)                                                                 \
    do {                                                                                 \
        if (strstr(zero_last_error()->message, (text)) == NULL) {                        \
            TEST_FAIL("message without \"%s\": %s", (text), zero_last_error()->message); \
        }                                                                                \
    } while (0)

/* A call that must fail with `expected` and say `text` (a substring of the message). */
#define CHECK_FAILS(call, expected, text)                                           \
    do {                                                                            \
        const zero_status status_ = (call);                                         \
        if (status_ != (expected)) {                                                \
            TEST_FAIL("%s: %s instead of %s: %s", #call, zero_status_name(status_), \
                      zero_status_name(expected),                                   \
                      status_ == ZERO_OK ? "" : zero_last_error()->message);        \
        }                                                                           \
        if (strstr(zero_last_error()->message, (text)) == NULL) {                   \
            TEST_FAIL("%s: message without \"%s\": %s", #call, (text),              \
                      zero_last_error()->message);                                  \
        }                                                                           \
    } while (0)

#define SKIP(reason)                         \
    do {                                     \
        printf("  skipped: %s\n", (reason)); \
        fflush(NULL);                        \
        _exit(77);                           \
    } while (0)

/* A text made of parts: good until the fourth after it of this thread. */
__attribute__((format(printf, 1, 2))) static inline const char *test_text(const char *format, ...)
{
    enum { TEXTS = 4, TEXT_MAX = 2048 };
    static _Thread_local char texts[TEXTS][TEXT_MAX];
    static _Thread_local unsigned turn;
    char *text = texts[turn++ % TEXTS];
    va_list parts;
    va_start(parts, format);
    CHECK((unsigned)vsnprintf(text, TEXT_MAX, format, parts) < TEXT_MAX);
    va_end(parts);
    return text;
}

/* Below `choices`, by chance: the same for the same turn, in any order of asking. */
static inline uint32_t test_chance(uint64_t turn, uint32_t choices)
{
    uint64_t x = (turn + 1) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)((x ^ x >> 31) % choices);
}

/* Runs one test in a child; returns its exit status, or 128 + signal. exit(), not _exit(), ends a
 * test that passed, so that leak checkers report. */
static int test_run_child(const test_case *test, unsigned timeout_s)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        alarm(timeout_s);
#ifdef ON_MACHINE
        machine_begin(test_seed);
#endif
        test->run();
        exit(0);
    }
    int state = 0;
    while (child > 0 && waitpid(child, &state, 0) < 0 && errno == EINTR) {
    }
    if (child < 0) {
        return 99;
    }
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

static int test_main(int argc, char **argv)
{
    const char *filter = "";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            test_seed = strtoull(argv[++i], NULL, 10);
        } else {
            filter = argv[i];
        }
    }
    const char *limit = getenv("TEST_TIMEOUT");
    const unsigned timeout_s =
        limit != NULL ? (unsigned)strtoul(limit, NULL, 10) : (UNDER_SANITIZER ? 360 : 120);
    unsigned passed = 0;
    unsigned failed = 0;
    unsigned skipped = 0;
    for (const test_case *test = test_first; test != NULL; test = test->next) {
        if (strstr(test->name, filter) == NULL) {
            continue;
        }
        const int code = test_run_child(test, timeout_s);
        passed += code == 0;
        skipped += code == 77;
        failed += code != 0 && code != 77;
        const char *verdict = code == 0               ? "ok"
                              : code == 77            ? "skip"
                              : code == 128 + SIGALRM ? "TIMEOUT"
                                                      : "FAILED";
        printf("%-8s%s", verdict, test->name);
        if (code != 0 && code != 77) {
            printf(" (exit %d, seed %" PRIu64 ")", code, test_seed);
        }
        printf("\n");
    }
    printf("%u passed, %u failed, %u skipped\n", passed, failed, skipped);
    return failed == 0 ? 0 : 1;
}

#define TEST_MAIN()                   \
    int main(int argc, char **argv)   \
    {                                 \
        return test_main(argc, argv); \
    }

#endif
