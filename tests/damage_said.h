/* The comparison of a message about a damaged byte of a checkpoint with the place of the byte. */
#ifndef TESTS_DAMAGE_SAID_H
#define TESTS_DAMAGE_SAID_H

#include "harness.h"

#include <fcntl.h>

#define SAID_HEADER_MAX 65536
#define SAID_NAME_BYTES 128
/* Elements of one sum at most. */
#define SAID_PIECE_COUNT ((uint64_t)262144)

/* The place of a tensor in its file. */
typedef struct said_tensor {
    char name[SAID_NAME_BYTES];
    uint64_t at; /* bytes of the file before it */
    uint64_t bytes;
} said_tensor;

/* The tensor that has a byte of a safetensors file, as the file's header says. Names without
 * quotes. */
static inline said_tensor said_find(const char *path, uint64_t byte)
{
    static const char head[] = "\":{\"dtype\":";
    static char text[SAID_HEADER_MAX + 1];
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0);
    const ssize_t read_bytes = pread(file, text, SAID_HEADER_MAX, 8);
    uint64_t length = 0;
    CHECK(read_bytes > 0 && pread(file, &length, sizeof length, 0) == sizeof length);
    CHECK(close(file) == 0 && length < SAID_HEADER_MAX);
    text[length] = '\0';
    for (const char *at = strstr(text, head); at != NULL; at = strstr(at + 1, head)) {
        const char *offsets = strstr(at, "\"data_offsets\":[");
        uint64_t begin = 0;
        uint64_t end = 0;
        CHECK(offsets != NULL);
        CHECK_EQ(sscanf(offsets, "\"data_offsets\":[%" SCNu64 ",%" SCNu64 "]", &begin, &end), 2);
        if (byte >= 8 + length + begin && byte < 8 + length + end) {
            said_tensor found = {.at = 8 + length + begin, .bytes = end - begin};
            const char *name = at;
            while (name[-1] != '"') {
                name--;
            }
            (void)snprintf(found.name, sizeof found.name, "%.*s", (int)(at - name), name);
            return found;
        }
    }
    TEST_FAIL("byte %" PRIu64 " of %s is no tensor's", byte, path);
}

/* The message names file and tensor, and the piece that it names has the byte and begins at the
 * byte that it says. width: bytes of an element. */
static inline void said_check(const char *message, const char *file, const said_tensor *tensor,
                              uint64_t width, uint64_t byte)
{
    const char *names = test_text("%s, tensor \"%s\": elements ", file, tensor->name);
    const char *at = strstr(message, names);
    uint64_t first = 0;
    uint64_t end = 0;
    uint64_t offset = 0;
    if (at == NULL || sscanf(at + strlen(names), "[%" SCNu64 ", %" SCNu64 ") at byte %" SCNu64,
                             &first, &end, &offset) != 3) {
        TEST_FAIL("byte %" PRIu64 ": no \"%s[\" in: %s", byte, names, message);
    }
    if (offset != tensor->at + first * width || byte < offset ||
        byte >= offset + (end - first) * width || end - first > SAID_PIECE_COUNT ||
        end * width > tensor->bytes) {
        TEST_FAIL("byte %" PRIu64 " of %s, whose tensor has %" PRIu64 " bytes at %" PRIu64
                  ", is not in: %s",
                  byte, file, tensor->bytes, tensor->at, message);
    }
}

#endif
