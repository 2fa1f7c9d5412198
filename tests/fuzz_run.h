/* Runs a fuzzer of several readers of files: under libFuzzer (FUZZ_LIBFUZZER), whose inputs begin
 * with the reader's number, as those of its corpus do, or as tests of cases made by chance. To be
 * included below
 *
 *      fuzz_reader, FUZZ_READERS       the readers, and how many there are
 *      fuzz_valid(reader, turn, input)     makes a file that the reader accepts
 *      fuzz_damage(reader, turn, input)    damages it
 *      fuzz_read(reader, data, bytes)      reads it; true: it was accepted */
#ifndef TESTS_FUZZ_RUN_H
#define TESTS_FUZZ_RUN_H

#include "fuzz_corpus.h"
#include "sanitizer.h"

static bool fuzz_one(const unsigned char *data, size_t bytes)
{
    return bytes > 0 && fuzz_read((fuzz_reader)(data[0] % FUZZ_READERS), data + 1, bytes - 1);
}

#ifdef FUZZ_LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t bytes_max, unsigned seed);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    (void)fuzz_one(data, bytes);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t bytes_max, unsigned seed)
{
    static fuzz_input input;
    fuzz_reader reader = (fuzz_reader)test_chance(seed, FUZZ_READERS);
    if (bytes < 2 || bytes > FUZZ_BYTES_MAX || test_chance(seed + 1, 16) == 0) {
        fuzz_valid(reader, seed, &input);
    } else {
        reader = (fuzz_reader)(data[0] % FUZZ_READERS);
        fuzz_set(&input, data + 1, bytes - 1);
    }
    fuzz_damage(reader, seed, &input);
    const size_t taken = input.bytes < bytes_max ? input.bytes : bytes_max - 1;
    data[0] = (uint8_t)reader;
    memcpy(data + 1, input.data, taken);
    return taken + 1;
}

#else

#define FUZZ_CASES (UNDER_SANITIZER ? 6000 : 12000)

static void fuzz(fuzz_reader reader, unsigned accepted_min)
{
    static fuzz_input input;
    unsigned accepted = 0;
    size_t before = 0;
    for (uint64_t i = 0; i < FUZZ_CASES; i++) {
        const uint64_t turn = test_seed * FUZZ_CASES * 4 + i;
        fuzz_valid(reader, turn, &input);
        if (i % 16 == 0) {
            CHECK(fuzz_read(reader, input.data, input.bytes));
        }
        fuzz_damage(reader, turn, &input);
        accepted += fuzz_read(reader, input.data, input.bytes);
        before = i == FUZZ_CASES / 10 ? fuzz_held() : before;
    }
    const size_t after = fuzz_held();
    printf("  %u of %u damaged files were accepted\n", accepted, FUZZ_CASES);
    CHECK(accepted >= accepted_min && accepted < FUZZ_CASES / 2);
    CHECK(after < before + FUZZ_HELD_MAX);
}

#endif

#endif
