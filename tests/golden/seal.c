/* Gives a manifest that was changed the hash that its end says, as whoever writes one does.
 *
 * Usage: seal MANIFEST */
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* `,\n"xxh3": "` and 16 digits, `"\n}\n`: what the hash is not of, and where its digits are. */
enum { TAIL_BYTES = 31, DIGITS_AT = 11, DIGITS = 16 };

int main(int argc, char **argv)
{
    static char text[1 << 20];
    char digits[DIGITS + 1];
    FILE *file = argc == 2 ? fopen(argv[1], "r+b") : NULL;
    if (file == NULL) {
        fprintf(stderr, "usage: seal MANIFEST\n");
        return 2;
    }
    const size_t bytes = fread(text, 1, sizeof text, file);
    if (bytes < TAIL_BYTES ||
        memcmp(text + bytes - TAIL_BYTES, ",\n\"xxh3\": \"", DIGITS_AT) != 0) {
        fprintf(stderr, "seal: %s does not end as a manifest does\n", argv[1]);
        return 1;
    }
    (void)snprintf(digits, sizeof digits, "%016llx",
                   (unsigned long long)XXH3_64bits(text, bytes - TAIL_BYTES));
    const int moved = fseek(file, (long)(bytes - TAIL_BYTES + DIGITS_AT), SEEK_SET);
    const size_t written = fwrite(digits, 1, DIGITS, file);
    return fclose(file) == 0 && moved == 0 && written == DIGITS ? 0 : 1;
}
