/* The common parts of the storage tests beside folders: memory, and data that says where it
 * belongs. */
#ifndef TESTS_STORAGE_RIG_H
#define TESTS_STORAGE_RIG_H

#include "harness.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "folders.h"
#include "storage/io_backend.h"
#include "storage/storage.h"

#define PAGE ZI_STORAGE_ALIGN
#define MIB ((uint64_t)1 << 20)

static inline unsigned char *rig_memory(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

/* The word that belongs at an offset of the store, in a given round of writing. */
static inline uint64_t rig_word(uint64_t offset, uint64_t round)
{
    uint64_t x = offset * UINT64_C(0x9E3779B97F4A7C15) + round * UINT64_C(0xD1342543DE82EF95);
    x ^= x >> 29;
    return x * UINT64_C(0xBF58476D1CE4E5B9);
}

static inline void rig_fill(unsigned char *memory, uint64_t offset, uint64_t bytes, uint64_t round)
{
    for (uint64_t at = 0; at < bytes; at += 8) {
        const uint64_t word = rig_word(offset + at, round);
        memcpy(memory + at, &word, 8);
    }
}

static inline void rig_check(const unsigned char *memory, uint64_t offset, uint64_t bytes,
                             uint64_t round)
{
    for (uint64_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;
        memcpy(&word, memory + at, 8);
        if (word != rig_word(offset + at, round)) {
            TEST_FAIL("byte %" PRIu64 " of the store, round %" PRIu64 ": %016" PRIx64
                      " instead of %016" PRIx64,
                      offset + at, round, word, rig_word(offset + at, round));
        }
    }
}

static inline zi_store *rig_store(const char *const *folders, uint32_t count, uint64_t bytes)
{
    const zi_store_options options = {
        .directories = folders, .directory_count = count, .bytes = bytes};
    zi_store *store = NULL;
    CHECK_OK(zi_store_create(&options, &store));
    return store;
}

/* Start one of many operations that tile the store: the `index`-th of `bytes`. */
static inline void rig_start(zi_io *queue, zi_io_op *ops, zi_io_kind kind, unsigned char *memory,
                             uint64_t index, uint64_t bytes)
{
    const uint64_t offset = index * bytes;
    ops[index] =
        (zi_io_op){.kind = kind, .memory = memory + offset, .offset = offset, .bytes = bytes};
    CHECK_OK(zi_io_start(queue, &ops[index]));
}

/* Start and wait. */
static inline zero_status rig_move(zi_io *queue, zi_io_kind kind, unsigned char *memory,
                                   uint64_t offset, uint64_t bytes)
{
    zi_io_op op = {.kind = kind, .memory = memory, .offset = offset, .bytes = bytes};
    const zero_status status = zi_io_start(queue, &op);
    return status != ZERO_OK ? status : zi_io_wait(queue, &op);
}

/* Write a round of the store and read it again. */
static inline void rig_round_trip(zi_io *queue, unsigned char *memory, uint64_t bytes,
                                  uint64_t round)
{
    rig_fill(memory, 0, bytes, round);
    CHECK_OK(rig_move(queue, ZI_IO_WRITE, memory, 0, bytes));
    memset(memory, 0xee, bytes);
    CHECK_OK(rig_move(queue, ZI_IO_READ, memory, 0, bytes));
    rig_check(memory, 0, bytes, round);
}

/* Open descriptors of this process. */
static inline unsigned rig_descriptors(void)
{
    return rig_entries("/proc/self/fd");
}

#endif
