/* Measures how fast directories are. Stores are striped over them in proportion. */
#ifndef ZI_STORAGE_RATE_H
#define ZI_STORAGE_RATE_H

#include "storage/storage.h"

/* The smallest store for which disks are measured. A measurement moves three times ZI_RATE_BYTES on
 * each disk, one disk after the other. With two equal disks that takes as long as 3/4 of a step
 * that reads and writes all of the smallest such store, with four as long as three steps. */
#define ZI_RATE_STORE_BYTES ((uint64_t)1 << 30)
#define ZI_RATE_BYTES ((uint64_t)128 << 20)
#define ZI_RATE_PASS_NS UINT64_C(500000000)

typedef struct zi_rate_options {
    const char *const *directories; /* as in zi_store_options, with the next two */
    uint32_t directory_count;
    uint32_t rank;
    uint64_t bytes;   /* to write, and to read, on each disk; 0: ZI_RATE_BYTES */
    uint64_t pass_ns; /* after which no more of either is begun; 0: ZI_RATE_PASS_NS */
} zi_rate_options;

/* By directory. Those of one file system are one disk and have equal parts of its rate. */
typedef struct zi_rates {
    bool measured;                              /* false: all rates are 1 */
    uint32_t rate[ZI_STORE_DIRECTORIES_MAX];    /* its part in MB/s, of as many bytes each way */
    uint32_t sharers[ZI_STORE_DIRECTORIES_MAX]; /* directories on its disk, with itself */
} zi_rates;

/* Measure each disk by itself, one after the other, with a queue's default segment size and depth,
 * on a file that is removed afterwards, also on failure. Other processes that measure at the same
 * time slow all disks alike: the rates are too low then, but about in proportion.
 * - Memory: ZI_RATE_MEMORY_BYTES until it returns.
 * - Errors: those of zi_store_create and of transfers; INVALID_ARGUMENT naming a directory that is
 *   too slow to take a stripe beside the fastest. */
#define ZI_RATE_MEMORY_BYTES ((uint64_t)32 << 20)
zero_status zi_rate_measure(const zi_rate_options *options, zi_rates *rates);

/* The same for a store of so many bytes. Nothing is measured on one disk, where it would change
 * nothing, nor below ZI_RATE_STORE_BYTES. */
zero_status zi_rate_choose(const zi_rate_options *options, uint64_t store_bytes, zi_rates *rates);

#endif
