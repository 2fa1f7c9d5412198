/* Replays the inputs that are kept of a fuzzer, tests/corpus/NAME: each is tried as the fuzzer
 * tries it, whose checks end the test. scripts/fuzz finds more of them. */
#ifndef TESTS_FUZZ_CORPUS_H
#define TESTS_FUZZ_CORPUS_H

#include <dirent.h>

#include "fuzz_damage.h"

/* Tries an input; true: it was accepted. */
typedef bool (*fuzz_one_fn)(const unsigned char *data, size_t bytes);

static inline size_t fuzz_file_read(const char *path, unsigned char *data, size_t room)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        TEST_FAIL("%s cannot be opened", path);
    }
    const size_t bytes = fread(data, 1, room, file);
    CHECK(ferror(file) == 0 && fgetc(file) == EOF);
    CHECK(fclose(file) == 0);
    return bytes;
}

/* Some of a corpus are accepted and some are not, or it would try one thing alone. */
static inline void fuzz_replay(const char *name, fuzz_one_fn one)
{
    static unsigned char data[FUZZ_BYTES_MAX + 1];
    const char *place = test_text("%s/%s", TEST_CORPUS, name);
    DIR *listing = opendir(place);
    unsigned files = 0;
    unsigned accepted = 0;
    if (listing == NULL) {
        TEST_FAIL("%s is no folder of inputs", place);
    }
    for (const struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        if (entry->d_name[0] != '.') {
            const char *path = test_text("%s/%s/%s", TEST_CORPUS, name, entry->d_name);
            const size_t bytes = fuzz_file_read(path, data, sizeof data);
            files++;
            accepted += one(data, bytes);
        }
    }
    CHECK(closedir(listing) == 0);
    printf("  %u of %u inputs were accepted\n", accepted, files);
    CHECK(accepted > 0 && accepted < files);
}

#endif
