/* Texts of files that are damaged by chance: bits, signs, ends, parts twice or not at all, the end
 * of another file, and numbers for others at some bound. */
#ifndef TESTS_FUZZ_DAMAGE_H
#define TESTS_FUZZ_DAMAGE_H

#include <malloc.h>

#include "harness.h"

#define FUZZ_BYTES_MAX ((size_t)32 << 10)

/* Bytes of a file. */
typedef struct fuzz_input {
    size_t bytes;
    unsigned char data[FUZZ_BYTES_MAX];
} fuzz_input;

static inline void fuzz_set(fuzz_input *input, const void *data, size_t bytes)
{
    CHECK(bytes <= FUZZ_BYTES_MAX);
    memcpy(input->data, data, bytes);
    input->bytes = bytes;
}

/* Replace `old_bytes` at `at`; what does not fit is left out. */
static inline void fuzz_replace(fuzz_input *input, size_t at, size_t old_bytes,
                                const void *new_text, size_t new_bytes)
{
    const size_t rest = input->bytes - at - old_bytes;
    if (at + new_bytes + rest <= FUZZ_BYTES_MAX) {
        memmove(input->data + at + new_bytes, input->data + at + old_bytes, rest);
        memcpy(input->data + at, new_text, new_bytes);
        input->bytes = at + new_bytes + rest;
    }
}

/* A number or a text of the file, for a value that is at some bound. */
static inline void fuzz_damage_value(uint64_t turn, fuzz_input *input, size_t at)
{
    static const char *const values[] = {"0",
                                         "1",
                                         "-1",
                                         "-0",
                                         "63",
                                         "65536",
                                         "65537",
                                         "4294967295",
                                         "4294967296",
                                         "1125899906842624",
                                         "4611686018427387904",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "-9223372036854775808",
                                         "18446744073709551615",
                                         "18446744073709551616",
                                         "1e3",
                                         "1e999",
                                         "1.5",
                                         "01",
                                         "null",
                                         "true",
                                         "\"\"",
                                         "\"\\u0000\"",
                                         "[]",
                                         "{}",
                                         "[[[[[[[[[[[[]]]]]]]]]]]]",
                                         "\"F32\"",
                                         "\"\xff\""};
    const char *value = values[test_chance(turn, sizeof values / sizeof values[0])];
    while (at < input->bytes && (input->data[at] < '0' || input->data[at] > '9')) {
        at++;
    }
    size_t end = at;
    while (end < input->bytes && input->data[end] >= '0' && input->data[end] <= '9') {
        end++;
    }
    fuzz_replace(input, at, end - at, value, strlen(value));
}

/* Damage it in one way. another: a file of its kind. */
static inline void fuzz_damage_once(uint64_t turn, fuzz_input *input, const fuzz_input *another)
{
    static const char signs[] = "0123456789{}[],:\"-.eE\\tfn ";
    const size_t at = test_chance(turn * 8 + 1, (uint32_t)input->bytes + 1);
    const size_t left = input->bytes - at;
    const size_t some = left < 64 ? left : 64;
    const size_t part = test_chance(turn * 8 + 2, (uint32_t)some + 1);
    const unsigned char bit = (unsigned char)(1u << test_chance(turn * 8 + 3, 8));
    unsigned char copy[64];
    switch (test_chance(turn * 8 + 4, 8)) {
    case 0: /* a bit */
        input->data[at < input->bytes ? at : 0] ^= bit;
        break;
    case 1: /* a sign */
        input->data[at < input->bytes ? at : 0] =
            (unsigned char)signs[test_chance(turn * 8 + 5, sizeof signs - 1)];
        break;
    case 2: /* an end */
        input->bytes = at;
        break;
    case 3: /* some less */
        fuzz_replace(input, at, part, "", 0);
        break;
    case 4: /* some twice */
        memcpy(copy, input->data + at, part);
        fuzz_replace(input, at, 0, copy, part);
        break;
    case 5: /* the end of another file */
        if (at < another->bytes) {
            fuzz_replace(input, at, left, another->data + at, another->bytes - at);
        }
        break;
    default:
        fuzz_damage_value(turn * 8 + 6, input, at);
        break;
    }
    input->bytes = input->bytes != 0 ? input->bytes : 1;
}

/* Chunks that the allocator keeps for reuse count as held; a leak of 256 bytes a case is more. */
#define FUZZ_HELD_MAX ((size_t)1 << 20)

static inline size_t fuzz_held(void)
{
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
    return mallinfo2().uordblks;
#else
    return 0;
#endif
}

#endif
