/* Owns the store that is measured on, and the library's side of it. Invariant: while bytes
 * are counted, twice as many segments are asked for as may be in flight, so the queue never runs
 * dry. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/memory.h"
#include "core/rng.h"
#include "core/sizes.h"
#include "io_rig.h"
#include "storage/rate.h"
#include "storage/storage.h"

#define OPS 8
#define SEGMENTS_PER_OP(depth) ((depth) / 4)
#define MEMORY_BYTES ((uint64_t)64 << 20) /* for each directory */

_Static_assert(IO_DIRECTORIES_MAX == ZI_STORE_DIRECTORIES_MAX, "as many as a store has");

struct io_rig {
    zi_store *store;
    zi_io_backend_kind backend;
    uint64_t bytes;                 /* in use */
    uint64_t position[ZI_IO_KINDS]; /* of the next access */
    uint64_t fio_end;               /* in a job's part: where fio's last sample ended */
    uint64_t fio_moved;             /* by that sample, of a job's part */
    uint32_t file_count;
    uint64_t memory_bytes;
    unsigned char *memory; /* random */
    zi_io_report report;   /* of the last queue */
};

static int read_backend(const char *name, zi_io_backend_kind *backend)
{
    *backend = ZI_IO_BACKEND_BEST;
    for (int i = ZI_IO_BACKEND_FIXED; name != NULL && i <= (int)ZI_IO_BACKEND_POSIX; i++) {
        if (strcmp(name, zi_io_backend_name((zi_io_backend_kind)i)) == 0) {
            *backend = (zi_io_backend_kind)i;
        }
    }
    return name == NULL || *backend != ZI_IO_BACKEND_BEST
               ? 0
               : bench_fail("--io-backend %s: expected fixed, uring or posix", name);
}

static int fail_with_message(void)
{
    return bench_fail("%s", zero_last_error()->message);
}

static int open_queue(io_rig *rig, const io_setting *setting, zi_io **queue)
{
    const zi_io_region region = {rig->memory, rig->memory_bytes};
    const zi_io_options options = {.store = rig->store,
                                   .regions = &region,
                                   .region_count = 1,
                                   .kind = rig->backend,
                                   .segment_bytes = setting->segment_bytes,
                                   .file_depth = setting->depth};
    if (zi_io_create(&options, queue) != ZERO_OK) {
        return fail_with_message();
    }
    rig->report = *zi_io_report_of(*queue);
    return 0;
}

int io_find_rates(const char *const *directories, uint32_t directory_count, uint64_t bytes,
                  io_rates *rates)
{
    const zi_rate_options options = {.directories = directories,
                                     .directory_count = directory_count};
    zi_rates found;
    if ((bytes == 0 ? zi_rate_measure(&options, &found)
                    : zi_rate_choose(&options, bytes, &found)) != ZERO_OK) {
        return fail_with_message();
    }
    rates->measured = found.measured;
    memcpy(rates->rate, found.rate, sizeof rates->rate);
    memcpy(rates->sharers, found.sharers, sizeof rates->sharers);
    return 0;
}

int io_rig_open(const io_rig_desc *desc, io_rig **out)
{
    *out = NULL;
    zi_io_backend_kind wanted = ZI_IO_BACKEND_BEST;
    if (read_backend(desc->backend, &wanted) != 0) {
        return 1;
    }
    io_rig *rig = calloc(1, sizeof *rig);
    if (rig == NULL) {
        return bench_fail("no memory left");
    }
    rig->bytes = desc->bytes;
    rig->backend = wanted;
    rig->file_count = desc->directory_count;
    rig->memory_bytes = MEMORY_BYTES * desc->directory_count;
    const zi_store_options options = {.directories = desc->directories,
                                      .rates = desc->rates,
                                      .directory_count = desc->directory_count,
                                      .rank = desc->rank,
                                      .bytes = desc->bytes};
    if (zi_store_create(&options, &rig->store) != ZERO_OK ||
        zi_pages_alloc(rig->memory_bytes, (void **)&rig->memory) != ZERO_OK) {
        io_rig_close(rig);
        return fail_with_message();
    }
    for (uint64_t at = 0; at < rig->memory_bytes; at += sizeof(zi_philox_words)) {
        const zi_philox_words words = zi_philox(1, at, 0);
        memcpy(rig->memory + at, &words, sizeof words);
    }
    *out = rig;
    return 0;
}

void io_rig_close(io_rig *rig)
{
    if (rig != NULL) {
        zi_store_destroy(rig->store);
        zi_pages_free(rig->memory, rig->memory_bytes);
        free(rig);
    }
}

int io_rig_fill(io_rig *rig, double seconds)
{
    const io_setting setting = {(uint64_t)1 << 20, 16};
    const double end = bench_now() + seconds;
    zi_io *queue = NULL;
    if (open_queue(rig, &setting, &queue) != 0) {
        return 1;
    }
    uint64_t filled = 0;
    int failed = 0;
    while (filled < rig->bytes && !failed && (filled == 0 || bench_now() < end)) {
        zi_io_op op = {.kind = ZI_IO_WRITE,
                       .memory = rig->memory,
                       .offset = filled,
                       .bytes = zi_min_u64(rig->memory_bytes, rig->bytes - filled)};
        failed = zi_io_start(queue, &op) != ZERO_OK || zi_io_wait(queue, &op) != ZERO_OK;
        filled += op.bytes;
    }
    rig->bytes = filled;
    zi_io_destroy(queue);
    return failed ? fail_with_message() : 0;
}

void io_rig_facts(const io_rig *rig, io_facts *facts)
{
    *facts = (io_facts){.backend = zi_io_backend_name(rig->report.kind),
                        .flags = rig->report.flags,
                        .refusals = rig->report.refusals,
                        .direct = true,
                        .files = rig->file_count,
                        .bytes = rig->bytes};
    for (uint32_t i = 0; i < rig->file_count; i++) {
        const zi_store_directory *directory = zi_store_directory_of(rig->store, i);
        facts->notes[i] = directory->note;
        facts->direct = facts->direct && directory->direct;
        facts->in_memory = facts->in_memory || directory->in_memory;
    }
}

void io_rig_path(const io_rig *rig, char *path, uint32_t path_bytes)
{
    (void)snprintf(path, path_bytes, "/proc/%ld/fd/%d", (long)getpid(), zi_store_fd(rig->store, 0));
}

uint64_t io_rig_fio_begin(const io_rig *rig, uint64_t part, uint64_t block)
{
    const uint64_t moved = rig->fio_moved;
    if (moved >= part || rig->fio_end > part - moved / 2) {
        return 0;
    }
    return zi_min_u64(rig->fio_end, part - moved) / block * block;
}

void io_rig_fio_moved(io_rig *rig, uint64_t begin, uint64_t bytes)
{
    rig->fio_end = begin + bytes;
    rig->fio_moved = bytes;
}

/* The offset of the next operation of a kind; a range of whole operations is used round and round.
 * Mixed, each kind has a half. */
static uint64_t next_offset(io_rig *rig, zi_io_kind kind, io_mix mix, uint64_t bytes)
{
    const uint64_t range =
        (mix == IO_MIX_BOTH ? rig->bytes / 2 / bytes : rig->bytes / bytes) * bytes;
    const uint64_t start = mix == IO_MIX_BOTH && kind == ZI_IO_WRITE ? range : 0;
    if (rig->position[kind] + bytes > range) {
        rig->position[kind] = 0;
    }
    const uint64_t offset = start + rig->position[kind];
    rig->position[kind] += bytes;
    return offset;
}

/* Without O_DIRECT: what was written reaches the disk, and what is read comes from it. */
static int past_the_cache(const io_rig *rig)
{
    for (uint32_t i = 0; i < rig->file_count; i++) {
        const int fd = zi_store_fd(rig->store, i);
        if (!zi_store_directory_of(rig->store, i)->direct &&
            (fdatasync(fd) != 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)) {
            return bench_fail("cannot empty the page cache: %s", strerror(errno));
        }
    }
    return 0;
}

/* Operations in turn until the time is over, then the rest of them; *moved is all they moved. */
static zero_status move_bytes(io_rig *rig, zi_io *queue, io_mix mix, uint64_t op_bytes,
                              double seconds, uint64_t *moved)
{
    zi_io_op ops[OPS];
    memset(ops, 0, sizeof ops);
    zero_status status = ZERO_OK;
    const double end = bench_now() + seconds;
    *moved = 0;
    for (uint32_t i = 0; status == ZERO_OK && (i < OPS || bench_now() < end); i++) {
        zi_io_op *op = &ops[i % OPS];
        status = zi_io_wait(queue, op);
        if (status != ZERO_OK) {
            break;
        }
        op->kind =
            mix == IO_MIX_WRITE || (mix == IO_MIX_BOTH && i % 2 != 0) ? ZI_IO_WRITE : ZI_IO_READ;
        op->memory = rig->memory + i % OPS * op_bytes;
        op->bytes = op_bytes;
        op->offset = next_offset(rig, op->kind, mix, op_bytes);
        *moved += op_bytes;
        status = zi_io_start(queue, op);
    }
    for (uint32_t i = 0; i < OPS; i++) {
        const zero_status last = zi_io_wait(queue, &ops[i]);
        status = status == ZERO_OK ? last : status;
    }
    return status;
}

int io_measure(io_rig *rig, io_mix mix, const io_setting *setting, double seconds,
               io_sample *sample)
{
    /* Half of what is used must hold an operation. */
    const uint64_t per_op =
        setting->segment_bytes * SEGMENTS_PER_OP(setting->depth) * rig->file_count;
    const uint64_t op_bytes =
        zi_min_u64(per_op, rig->bytes / 2 / ZI_STORAGE_ALIGN * ZI_STORAGE_ALIGN);
    zi_io *queue = NULL;
    if (open_queue(rig, setting, &queue) != 0) {
        return 1;
    }
    int failed = past_the_cache(rig);
    uint64_t moved = 0;
    const double cpu = bench_cpu_now();
    const double start = bench_now();
    if (!failed && move_bytes(rig, queue, mix, op_bytes, seconds, &moved) != ZERO_OK) {
        failed = fail_with_message();
    }
    failed = failed || (mix != IO_MIX_READ && past_the_cache(rig) != 0);
    const double gb = (double)moved * 1e-9;
    if (!failed) {
        sample->seconds_per_gb = (bench_now() - start) / gb;
        sample->cpu_ms_per_gb = (bench_cpu_now() - cpu) * 1e3 / gb;
    }
    zi_io_destroy(queue);
    return failed;
}
