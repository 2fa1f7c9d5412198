/* A file that is written and read past the page cache by a few threads, and nothing else: what a
 * disk gives a program that has no format. */
#ifndef TOOLS_BENCH_CKPT_RAW_H
#define TOOLS_BENCH_CKPT_RAW_H

#include <stdint.h>

#define RAW_BLOCK_BYTES ((uint64_t)8 << 20)
#define RAW_THREADS 4 /* fewer leave a fast disk idle, more gain nothing */

typedef struct raw_file {
    char path[4096];
    uint64_t bytes; /* whole blocks */
    unsigned char *memory[RAW_THREADS];
    int descriptor; /* while a side runs */
} raw_file;

/* Check that files there can be read and written past the page cache: 0, or the errno. */
int raw_refused(const char *folder);

/* Nothing is on the disk yet; bytes are rounded up to whole blocks. 1 after bench_fail. */
int raw_open(raw_file *raw, const char *folder, uint64_t bytes);
void raw_close(raw_file *raw); /* accepts a zeroed one; the file is gone then */

/* Make the file anew and write all of it, until it is on the disk; read all of it. Seconds;
 * negative after bench_fail. */
double raw_write(raw_file *raw);
double raw_read(raw_file *raw);

#endif
