/* Owns the raw file of `zero bench ckpt`. */
#include "bench_ckpt_raw.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"

/* A disk takes many small pages in more requests than few large ones: twice the time was seen. */
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

typedef struct raw_thread {
    const raw_file *raw;
    uint64_t first; /* block; each RAW_THREADS-th from there on is this thread's */
    bool writes;
    int reason; /* errno; 0: all went well */
    pthread_t thread;
} raw_thread;

int raw_refused(const char *folder)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%.4000s/raw", folder);
    const int file = open(path, O_DIRECT | O_CLOEXEC | O_RDWR | O_CREAT | O_EXCL, 0666);
    const int reason = file < 0 ? errno : 0;
    if (file >= 0) {
        (void)close(file);
    }
    (void)unlink(path); /* it may be there although it was refused */
    return reason;
}

int raw_open(raw_file *raw, const char *folder, uint64_t bytes)
{
    *raw = (raw_file){.descriptor = -1};
    raw->bytes = (bytes + RAW_BLOCK_BYTES - 1) / RAW_BLOCK_BYTES * RAW_BLOCK_BYTES;
    (void)snprintf(raw->path, sizeof raw->path, "%.4000s/raw", folder);
    for (int i = 0; i < RAW_THREADS; i++) {
        if (posix_memalign((void **)&raw->memory[i], HUGE_PAGE_BYTES, RAW_BLOCK_BYTES) != 0) {
            return bench_fail("no memory left for a block");
        }
        (void)madvise(raw->memory[i], RAW_BLOCK_BYTES, MADV_HUGEPAGE);
        for (uint64_t k = 0; k < RAW_BLOCK_BYTES; k++) {
            raw->memory[i][k] = (unsigned char)(k * UINT64_C(0x9E3779B97F4A7C15) >> 40);
        }
    }
    return 0;
}

void raw_close(raw_file *raw)
{
    if (raw->bytes != 0) {
        (void)unlink(raw->path);
    }
    for (int i = 0; i < RAW_THREADS; i++) {
        free(raw->memory[i]);
    }
    *raw = (raw_file){.descriptor = -1};
}

/* One access may move less than it was asked to. */
static void *move_blocks(void *user)
{
    raw_thread *thread = user;
    unsigned char *memory = thread->raw->memory[thread->first];
    const int file = thread->raw->descriptor;
    const uint64_t stride = RAW_THREADS * RAW_BLOCK_BYTES;
    for (uint64_t at = thread->first * RAW_BLOCK_BYTES; at < thread->raw->bytes; at += stride) {
        for (uint64_t done = 0; done < RAW_BLOCK_BYTES;) {
            const uint64_t left = RAW_BLOCK_BYTES - done;
            const off_t place = (off_t)(at + done);
            const ssize_t now = thread->writes ? pwrite(file, memory + done, left, place)
                                               : pread(file, memory + done, left, place);
            if (now <= 0) {
                thread->reason = now < 0 ? errno : EIO;
                return NULL;
            }
            done += (uint64_t)now;
        }
    }
    return NULL;
}

static int move(raw_file *raw, bool writes)
{
    raw_thread threads[RAW_THREADS];
    int reason = 0;
    uint64_t started = 0;
    for (; started < RAW_THREADS && reason == 0; started++) {
        threads[started] = (raw_thread){.raw = raw, .first = started, .writes = writes};
        reason = pthread_create(&threads[started].thread, NULL, move_blocks, &threads[started]);
        started -= reason != 0;
    }
    for (uint64_t i = 0; i < started; i++) {
        (void)pthread_join(threads[i].thread, NULL);
        reason = reason == 0 ? threads[i].reason : reason;
    }
    return reason;
}

static double run(raw_file *raw, bool writes)
{
    const int flags = O_DIRECT | O_CLOEXEC | (writes ? O_RDWR | O_CREAT | O_EXCL : O_RDONLY);
    if (writes) {
        (void)unlink(raw->path);
    }
    const double begin = bench_now();
    raw->descriptor = open(raw->path, flags, 0666);
    int reason = raw->descriptor < 0 ? errno : 0;
    if (reason == 0 && writes && fallocate(raw->descriptor, 0, 0, (off_t)raw->bytes) != 0) {
        reason = errno != EOPNOTSUPP ? errno : 0;
    }
    reason = reason == 0 ? move(raw, writes) : reason;
    if (reason == 0 && writes && fdatasync(raw->descriptor) != 0) {
        reason = errno;
    }
    const double seconds = bench_now() - begin;
    if (raw->descriptor >= 0) {
        (void)close(raw->descriptor);
    }
    if (reason != 0) {
        (void)bench_fail("%s cannot be %s past the page cache: %s", raw->path,
                         writes ? "written" : "read", strerror(reason));
    }
    return reason == 0 ? seconds : -1.0;
}

double raw_write(raw_file *raw)
{
    return run(raw, true);
}

double raw_read(raw_file *raw)
{
    return run(raw, false);
}
