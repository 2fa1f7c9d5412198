/* The test harness: this header in every file of tests, harness.c once in each program.
 *
 *   TEST(name) { CHECK_EQ(1 + 1, 2); }   registers itself; runs in a process of its own, with a
 *                                        deadline
 *   SKIP("why");                         ends the test, counted as skipped, the reason printed
 *
 * A program has the tests of as many files as it is made of; of test_io.c they are called io.NAME.
 * Its arguments and what it prints: see harness.c. Checks survive release builds and print both
 * sides. They may be used from any thread of the test; the first that fails ends the process. */
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

#include "sanitizer.h"
#include "zero/status.h"

typedef struct test_case {
    const char *file; /* as __FILE__ */
    const char *name;
    void (*run)(void);
    bool real; /* with the system's threads, whatever the program runs on */
    struct test_case *next;
} test_case;

/* Appends to the program's tests. */
void test_add(test_case *test);

/* The work of main: runs the tests that the arguments ask for. 0 where none failed. */
int test_main(int argc, char **argv);

/* The source of all chance of a test: --seed N, else 1. */
extern uint64_t test_seed;

/* On the deterministic machine where the program runs on it (--machine): a new beginning with this
 * seed, see machine_begin. Else nothing. */
void test_machine_begin(uint64_t seed);

/* The number of cases that a test draws at random: `usual` where the environment has TEST_LONG,
 * else a third, but where --cases N says otherwise; --case K: the K-th alone, which *first is
 * then. */
uint64_t test_cases(uint64_t usual, uint64_t *first);
/* True if that is one case, asked for by its number. */
bool test_case_is_chosen(void);
/* The case that is tried next: the program names it where the test fails. */
void test_case_begins(uint64_t number);

/* Of the one case; NULL where the command line does not have it. */
extern struct test_asked {
    const char *choices; /* the choices that it makes: see engine/random_choices.h */
    const char *chosen;  /* a file: where it tells what it chooses */
    const char *program; /* a file: where it is printed as a program of the library's users */
} test_asked;

#define TEST_ON(test_name, is_real)                                                            \
    static void test_run_##test_name(void);                                                    \
    static test_case test_case_##test_name = {                                                 \
        .file = __FILE__, .name = #test_name, .run = test_run_##test_name, .real = (is_real)}; \
    __attribute__((constructor)) static void test_register_##test_name(void)                   \
    {                                                                                          \
        test_add(&test_case_##test_name);                                                      \
    }                                                                                          \
    static void test_run_##test_name(void)

#define TEST(test_name) TEST_ON(test_name, false)
/* Also with --machine on the system's threads: it starts processes, or asks the system about
 * threads. */
#define REAL_TEST(test_name) TEST_ON(test_name, true)

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

/* A text made of parts: good until 64 others have been made, by any thread. */
__attribute__((format(printf, 1, 2))) const char *test_text(const char *format, ...);

/* Below `choices`, by chance: the same for the same turn, in any order of asking. */
static inline uint32_t test_chance(uint64_t turn, uint32_t choices)
{
    uint64_t x = (turn + 1) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)((x ^ x >> 31) % choices);
}

#endif
