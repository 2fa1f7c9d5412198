/* Storage as it is measured: a store, and what moves bytes to and from it: the library's queue, and
 * fio on its file. `zero io` and `zero bench offload` use it. Functions that can fail return 1
 * after bench_fail. */
#ifndef TOOLS_IO_RIG_H
#define TOOLS_IO_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "bench.h"

typedef enum io_mix { IO_MIX_READ = 0, IO_MIX_WRITE = 1, IO_MIX_BOTH = 2 } io_mix;
#define IO_MIXES 3

typedef struct io_setting {
    uint64_t segment_bytes;
    uint32_t depth;
} io_setting;

/* The cost of what was moved in a while; a GB is 1e9 bytes. seconds_per_gb 0: not measured. */
typedef struct io_sample {
    double seconds_per_gb;
    double cpu_ms_per_gb;
} io_sample;

#define IO_DIRECTORIES_MAX 16
/* An engine's accesses. */
#define IO_ACCESS_BYTES ((uint64_t)2 << 20)

/* How fast directories are, as an engine finds it (storage/rate.h). Those on one disk share its
 * rate. */
typedef struct io_rates {
    bool measured;                        /* false: all rates are 1 */
    uint32_t rate[IO_DIRECTORIES_MAX];    /* MB/s, of as many bytes each way */
    uint32_t sharers[IO_DIRECTORIES_MAX]; /* directories on the same disk, with itself */
} io_rates;

typedef struct io_rig io_rig;

/* Facts of the directory and the way to it; texts are the rig's. */
typedef struct io_facts {
    const char *backend;
    const char *flags;
    const char *refusals;                  /* "": none */
    const char *notes[IO_DIRECTORIES_MAX]; /* of each directory; "": none */
    bool direct;                           /* in all directories */
    bool in_memory;                        /* one of them at least */
    uint32_t files;
    uint64_t bytes; /* of the store that are used */
} io_facts;

typedef struct io_rig_desc {
    const char *const *directories; /* one, or several that are used as one store */
    uint32_t directory_count;
    const uint32_t *rates; /* by which it is striped over them; NULL: equally */
    uint32_t rank;         /* whose store it is: another one than that of an engine there */
    uint64_t bytes;        /* of the store */
    const char *backend;   /* NULL for the best, or its name */
} io_rig_desc;

/* Find the rates that an engine with so many bytes on disk stripes by: measured only where that is
 * worth it. bytes 0: each disk is measured by itself. */
int io_find_rates(const char *const *directories, uint32_t directory_count, uint64_t bytes,
                  io_rates *rates);

/* A store, which has a file in each directory. */
int io_rig_open(const io_rig_desc *desc, io_rig **rig);

/* Accepts NULL. */
void io_rig_close(io_rig *rig);

/* Random bytes all over the store, so that no read is one of nothing. After `seconds` the rest of
 * it is left out of use. */
int io_rig_fill(io_rig *rig, double seconds);

void io_rig_facts(const io_rig *rig, io_facts *facts);

/* For others of this machine: a path that opens the rig's first file while it is open. */
void io_rig_path(const io_rig *rig, char *path, uint32_t path_bytes);

/* Move bytes one after the other for so many seconds. */
int io_measure(io_rig *rig, io_mix mix, const io_setting *setting, double seconds,
               io_sample *sample);

/* How fio is to do it. */
typedef struct io_fio_setting {
    io_setting setting; /* of each job */
    uint32_t jobs;      /* threads, each with a part of the file */
    uint32_t batch;     /* accesses that are handed over, and awaited, at once */
    bool libaio;        /* else io_uring with registered memory and files */
} io_fio_setting;

/* The same by fio, in a process of its own. NULL, or why it failed; says nothing itself. Like ours,
 * a sample goes on where the last one ended, of whatever setting: a host that caches disks serves
 * the same first blocks again and again faster than any disk. */
const char *io_measure_fio(io_rig *rig, io_mix mix, const io_fio_setting *fio, double seconds,
                           io_sample *sample);

/* The begin of fio's next sample in each of the parts of `part` bytes that its jobs have: where the
 * last one ended, earlier where as much would not fit behind that, or at 0 when little is left. A
 * multiple of `block`. */
uint64_t io_rig_fio_begin(const io_rig *rig, uint64_t part, uint64_t block);

/* So many bytes of a part were passed from `begin` on. */
void io_rig_fio_moved(io_rig *rig, uint64_t begin, uint64_t bytes);

/* "fio 2048 KiB x 8, 2 jobs" */
void io_fio_name(const io_fio_setting *fio, char *text, uint32_t text_bytes);

/* fio with the accesses of a setting of ours. */
io_fio_setting io_fio_alike(const io_setting *setting);

/* Looks for fio's fastest setting for a mix, `first` and a handful of others in turn for about
 * `budget` seconds; `first` alone where that is all there is time for. NULL, or why `first` failed;
 * others that fail are left out. */
const char *io_fio_find_best(io_rig *rig, io_mix mix, const io_fio_setting *first, double budget,
                             io_fio_setting *best);

/* Why fio cannot be started here, NULL when it can. */
const char *io_fio_missing(void);

/* Why fio cannot be measured on the rig, NULL when it can; found out by a short run. start_s: out,
 * seconds that a run takes beyond its sample. */
const char *io_fio_unusable(io_rig *rig, double *start_s);

#define IO_METRIC_FIO "storage_vs_fio"
#define IO_METRIC_CPU "storage_cpu_ms_per_gb"

/* A setting against fio's best, which is looked for from `first` on, and then in turn with it:
 * about `budget` seconds in all. Rows of both metrics. */
int io_measure_rounds(io_rig *rig, io_mix mix, const io_setting *setting,
                      const io_fio_setting *first, double budget, bench_report *report);

const char *io_mix_name(io_mix mix);

/* "read, 512 KiB x 8" */
void io_case_name(io_mix mix, const io_setting *setting, char *text, uint32_t text_bytes);

#endif
