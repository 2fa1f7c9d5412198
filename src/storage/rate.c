/* Owns the measurement of directories. Invariants: a disk is measured alone and once, however many
 * directories are on it; only bytes that were written are read, since reserved space reads as zeros
 * without an access to the disk. */
#include "storage/rate.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/sizes.h"

/* Operations of one segment each, as many as a queue has in flight. */
#define OPS ZI_IO_DEPTH
#define OP_BYTES ZI_IO_SEGMENT_BYTES

_Static_assert(ZI_RATE_MEMORY_BYTES == OPS * OP_BYTES, "each op has its memory");

/* A disk's file while it is measured. */
typedef struct probe {
    zi_store *store;
    zi_io *queue;
    unsigned char *memory;
    uint64_t pass_ns;
    zi_io_op ops[OPS];
} probe;

/* The bytes that one pass over the file has moved, and its time. */
typedef struct pass {
    uint64_t bytes;
    uint64_t ns;
} pass;

/* ---- one disk ---- */

static void close_probe(probe *p)
{
    zi_io_destroy(p->queue);
    zi_store_destroy(p->store);
    zi_pages_free(p->memory, ZI_RATE_MEMORY_BYTES);
}

static zero_status build_probe(probe *p, const zi_rate_options *options, uint32_t directory)
{
    const zi_store_options store = {.directories = &options->directories[directory],
                                    .directory_count = 1,
                                    .rank = options->rank,
                                    .use = "-rate",
                                    .bytes = options->bytes != 0 ? options->bytes : ZI_RATE_BYTES};
    p->pass_ns = options->pass_ns != 0 ? options->pass_ns : ZI_RATE_PASS_NS;
    ZI_TRY(zi_store_create(&store, &p->store));
    ZI_TRY(zi_pages_alloc(ZI_RATE_MEMORY_BYTES, (void **)&p->memory));
    /* Random bytes: some disks and file systems compress zeros away. */
    for (uint64_t at = 0; at < OP_BYTES; at += sizeof(zi_philox_words)) {
        const zi_philox_words words = zi_philox(directory, at, 0);
        memcpy(p->memory + at, &words, sizeof words);
    }
    for (uint32_t i = 1; i < OPS; i++) {
        memcpy(p->memory + i * OP_BYTES, p->memory, OP_BYTES);
    }
    const zi_io_region region = {p->memory, ZI_RATE_MEMORY_BYTES};
    const zi_io_options queue = {.store = p->store, .regions = &region, .region_count = 1};
    return zi_io_create(&queue, &p->queue);
}

/* Move the first `bytes` bytes of the file, or as many as there is time for. */
static zero_status move_along(probe *p, zi_io_kind kind, uint64_t bytes, uint64_t *moved)
{
    const uint64_t end = zi_clock_ns() + p->pass_ns;
    zero_status status = ZERO_OK;
    *moved = 0;
    for (uint32_t i = 0; *moved < bytes && (*moved == 0 || zi_clock_ns() < end); i++) {
        zi_io_op *op = &p->ops[i % OPS];
        ZI_TRY(zi_io_wait(p->queue, op));
        *op = (zi_io_op){.kind = kind,
                         .memory = p->memory + i % OPS * OP_BYTES,
                         .offset = *moved,
                         .bytes = zi_min_u64(OP_BYTES, bytes - *moved)};
        ZI_TRY(zi_io_start(p->queue, op));
        *moved += op->bytes;
    }
    for (uint32_t i = 0; i < OPS && status == ZERO_OK; i++) {
        status = zi_io_wait(p->queue, &p->ops[i]);
    }
    return status;
}

/* Without direct I/O: write the page cache to the disk and drop it, so that reads reach the disk.
 */
static zero_status empty_cache(const probe *p)
{
    const zi_store_directory *directory = zi_store_directory_of(p->store, 0);
    const int fd = zi_store_fd(p->store, 0);
    if (directory->direct) {
        return ZERO_OK;
    }
    const int code = fdatasync(fd) != 0 ? errno : posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (code != 0) {
        ZI_FAIL_NATIVE(ZERO_ERR_IO, code, "cannot empty the page cache: %s; check the disk of %s",
                       strerror(code), directory->path);
    }
    return ZERO_OK;
}

static zero_status take_pass(probe *p, zi_io_kind kind, uint64_t bytes, pass *out)
{
    const uint64_t start = zi_clock_ns();
    ZI_TRY(move_along(p, kind, bytes, &out->bytes));
    ZI_TRY(kind == ZI_IO_WRITE ? empty_cache(p) : ZERO_OK);
    out->ns = zi_max_u64(zi_clock_ns() - start, 1);
    return ZERO_OK;
}

/* MB/s of writing and reading equally many bytes, rounded up, so never 0. */
static uint32_t rate_of(const pass *written, const pass *read)
{
    const double ns_per_byte =
        (double)written->ns / (double)written->bytes + (double)read->ns / (double)read->bytes;
    const double rate = 2e3 / ns_per_byte + 1.0;
    return rate < UINT32_MAX ? (uint32_t)rate : UINT32_MAX;
}

/* The first pass does not count: it allocates the file's blocks, which takes time in the first step
 * of an engine only. */
static zero_status measure_disk(const zi_rate_options *options, uint32_t directory, uint32_t *rate)
{
    probe p = {0};
    pass first = {0};
    pass written = {0};
    pass read = {0};
    zero_status status = build_probe(&p, options, directory);
    if (status == ZERO_OK) {
        status = take_pass(&p, ZI_IO_WRITE, zi_store_bytes(p.store), &first);
    }
    if (status == ZERO_OK) {
        status = take_pass(&p, ZI_IO_WRITE, first.bytes, &written);
    }
    if (status == ZERO_OK) {
        status = take_pass(&p, ZI_IO_READ, written.bytes, &read);
    }
    if (status == ZERO_OK) {
        *rate = rate_of(&written, &read);
    }
    close_probe(&p);
    return status;
}

/* ---- all of them ---- */

/* first: of each directory, the first one on its disk. */
static zero_status find_disks(const zi_rate_options *options, uint32_t *first, zi_rates *rates)
{
    dev_t device[ZI_STORE_DIRECTORIES_MAX];
    for (uint32_t i = 0; i < options->directory_count; i++) {
        struct stat info;
        const char *path = options->directories[i];
        if (path == NULL || stat(path, &info) != 0) {
            ZI_FAIL_NATIVE(ZERO_ERR_IO, errno, "cannot look at the directory %s: %s; make it first",
                           path != NULL ? path : "(NULL)", strerror(errno));
        }
        device[i] = info.st_dev;
        first[i] = 0;
        while (device[first[i]] != info.st_dev) {
            first[i]++;
        }
        rates->sharers[first[i]]++;
    }
    for (uint32_t i = 0; i < options->directory_count; i++) {
        rates->sharers[i] = rates->sharers[first[i]];
    }
    return ZERO_OK;
}

static zero_status refuse_hopeless(const zi_rate_options *options, const zi_rates *rates)
{
    uint16_t unread[ZI_STORE_DIRECTORIES_MAX];
    const uint32_t slow = zi_stripe_weigh(rates->rate, options->directory_count, unread);
    if (slow == options->directory_count) {
        return ZERO_OK;
    }
    uint32_t fastest = 0;
    for (uint32_t i = 0; i < options->directory_count; i++) {
        fastest = rates->rate[i] > fastest ? rates->rate[i] : fastest;
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "directory %u was measured at %u MB/s, the fastest at %u: leave it out, it would hold "
            "up the others, or give disk_weights if that is wrong: %s",
            slow, rates->rate[slow], fastest, options->directories[slow]);
}

zero_status zi_rate_measure(const zi_rate_options *options, zi_rates *rates)
{
    uint32_t first[ZI_STORE_DIRECTORIES_MAX];
    zi_assert(options->directory_count >= 1 &&
              options->directory_count <= ZI_STORE_DIRECTORIES_MAX);
    memset(rates, 0, sizeof *rates);
    ZI_TRY(find_disks(options, first, rates));
    uint32_t disk_rate[ZI_STORE_DIRECTORIES_MAX] = {0};
    for (uint32_t i = 0; i < options->directory_count; i++) {
        if (first[i] == i) {
            ZI_TRY(measure_disk(options, i, &disk_rate[i]));
            zi_log(ZERO_LOG_DEBUG, "storage: %u MB/s for %u directories on the disk of %s",
                   disk_rate[i], rates->sharers[i], options->directories[i]);
        }
        const uint32_t part = disk_rate[first[i]] / rates->sharers[i];
        rates->rate[i] = part > 0 ? part : 1;
    }
    rates->measured = true;
    return refuse_hopeless(options, rates);
}

zero_status zi_rate_choose(const zi_rate_options *options, uint64_t store_bytes, zi_rates *rates)
{
    memset(rates, 0, sizeof *rates);
    for (uint32_t i = 0; i < ZI_STORE_DIRECTORIES_MAX; i++) {
        rates->rate[i] = 1;
    }
    /* A number of directories that will not do is the store's to refuse. */
    const bool several =
        options->directory_count > 1 && options->directory_count <= ZI_STORE_DIRECTORIES_MAX;
    if (!several || store_bytes < ZI_RATE_STORE_BYTES) {
        return ZERO_OK;
    }
    uint32_t first[ZI_STORE_DIRECTORIES_MAX];
    ZI_TRY(find_disks(options, first, rates));
    return rates->sharers[0] == options->directory_count ? ZERO_OK
                                                         : zi_rate_measure(options, rates);
}
