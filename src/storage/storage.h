/* Aligned asynchronous file I/O: where a tier on disk keeps its bytes.
 *
 * A *store* is an address space of bytes, striped over 1 to ZI_STORE_DIRECTORIES_MAX directories.
 * Each directory holds one file. The file is reserved at create and has no name, so a killed
 * process leaves no bytes behind; the lock file beside it keeps a second job out. A *queue* moves
 * bytes between a store and memory. Several queues, each of a thread of its own, may use one store
 * at once.
 *
 * Offsets, sizes and memory are multiples of ZI_STORAGE_ALIGN everywhere. What a store holds before
 * it is written is unspecified. Nothing allocates after create. */
#ifndef ZI_STORAGE_STORAGE_H
#define ZI_STORAGE_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "storage/stripe.h"
#include "zero/status.h"

/* The alignment of every direct access. A file system that wants more is refused. */
#define ZI_STORAGE_ALIGN ((uint64_t)4096)
#define ZI_STORE_DIRECTORIES_MAX ZI_STRIPE_FILES_MAX
/* Default of zi_store_options.unit_bytes: the longest segment, since a segment lies in one stripe.
 */
#define ZI_STORE_UNIT_BYTES ZI_IO_SEGMENT_BYTES

typedef struct zi_store zi_store;

struct zi_io_setup; /* storage/io_backend.h, with the next */
struct zi_io_backend;
struct zi_io_report;

/* A storage that keeps the bytes of stores in place of files: injected (engine/backend.h). */
typedef struct zi_storage {
    size_t struct_bytes;
    const char *name;
    void *self; /* outlives its stores */
    /* It keeps no bytes, so nobody reads what was read: memory need not be zeros where nothing was
     * written. */
    bool moves_nothing;
    /* Make the I/O backend of one queue: fill *backend. Called by the thread that makes the queue.
     */
    zero_status (*backend_create)(void *self, const struct zi_io_setup *setup,
                                  struct zi_io_backend *backend, struct zi_io_report *report);
    /* The store is destroyed, after its queues. NULL: nothing is kept for a store. */
    void (*store_destroy)(void *self, const zi_store *store);
} zi_storage;

typedef struct zi_store_options {
    const char *const *directories; /* directory_count paths; they exist and are writable */
    const uint32_t *rates;          /* measured speed of each, in any unit; NULL: all the same */
    uint32_t directory_count;       /* in [1, ZI_STORE_DIRECTORIES_MAX] */
    uint32_t rank;                  /* names the lock file: ranks may share a directory */
    const char *use; /* static; names it too, so that a rank may have several stores. NULL: "" */
    uint64_t bytes;  /* of the store, above 0 */
    uint64_t unit_bytes;       /* of a stripe; 0: ZI_STORE_UNIT_BYTES */
    bool buffered;             /* use the page cache even where O_DIRECT works */
    bool named;                /* create and unlink, as where there is no O_TMPFILE; for tests */
    const zi_storage *storage; /* NULL: files. Else directories are names that are not looked up */
} zi_store_options;

/* How a directory is used. */
typedef struct zi_store_directory {
    const char *path;    /* as given; the store's */
    uint64_t file_bytes; /* of the store that lie here */
    bool direct;         /* O_DIRECT: without the page cache */
    bool reserved;       /* the file system has reserved the bytes */
    bool in_memory;      /* tmpfs or ramfs: no disk */
    char note[160];      /* why not direct or not reserved; else "" */
} zi_store_directory;

/* Lock the directories and reserve the files of a store.
 * - store: out; NULL on failure, when nothing stays in the directories.
 * - Errors: INVALID_ARGUMENT; STATE where another process, named by pid and host, owns the
 *   directory for this rank; OUT_OF_MEMORY where the disk has not the space; UNSUPPORTED where a
 *   file system needs a larger alignment than ZI_STORAGE_ALIGN; IO for all else, with errno. */
zero_status zi_store_create(const zi_store_options *options, zi_store **store);

/* Accepts NULL. Its queues are destroyed before. All disk space is freed. */
void zi_store_destroy(zi_store *store);

uint64_t zi_store_bytes(const zi_store *store);
const zi_stripe_map *zi_store_map(const zi_store *store);
const zi_store_directory *zi_store_directory_of(const zi_store *store, uint32_t file);
/* CORRUPT: bytes of the store are not what was written there. The message names `what` they belong
 * to, the directory, and where in its file they begin. */
zero_status zi_store_damaged(const zi_store *store, uint64_t offset, uint64_t bytes,
                             const char *what);
/* NULL: files. */
const zi_storage *zi_store_storage(const zi_store *store);
/* For backends: the open file in a directory, which the store owns; -1 where there are no files. */
int zi_store_fd(const zi_store *store, uint32_t file);

/* How a queue reaches the files, best first. */
typedef enum zi_io_backend_kind {
    ZI_IO_BACKEND_BEST = 0,  /* as an option: the first that works */
    ZI_IO_BACKEND_FIXED = 1, /* io_uring with registered files and memory */
    ZI_IO_BACKEND_URING = 2, /* plain io_uring */
    ZI_IO_BACKEND_POSIX = 3, /* threads that call pread and pwrite */
    ZI_IO_BACKEND_GIVEN = 4  /* as a report: the caller's own backend */
} zi_io_backend_kind;
#define ZI_IO_BACKENDS 3

/* "fixed", "uring", "posix", "given". */
const char *zi_io_backend_name(zi_io_backend_kind kind);

typedef enum zi_io_kind { ZI_IO_READ = 0, ZI_IO_WRITE = 1 } zi_io_kind;
#define ZI_IO_KINDS 2

typedef enum zi_io_phase {
    ZI_IO_IDLE = 0, /* never started */
    ZI_IO_RUNNING = 1,
    ZI_IO_DONE = 2,
    ZI_IO_FAILED = 3
} zi_io_phase;

/* Bytes of a write that lie together in a file of the store. */
typedef struct zi_io_piece {
    uint32_t extent; /* the operation's */
    uint64_t at;     /* bytes of the operation before them */
    uint64_t bytes;  /* whole pages */
    int fd;          /* the store's file */
    uint64_t offset; /* in it */
} zi_io_piece;

/* A source's answer on the next bytes of a piece. */
typedef struct zi_io_shared {
    uint64_t bytes; /* whole pages, at least one */
    bool shared;    /* the store's file has them now; false: they are to be written */
} zi_io_shared;

/* A source that has the bytes of writes in other files, and lets the store's files share their
 * blocks. The queue asks it for each piece before it writes one. */
typedef struct zi_io_source {
    /* Does not use the queue. Called by whoever starts, polls or waits. */
    zi_io_shared (*share)(void *user, const zi_io_piece *piece);
    void *user;
} zi_io_source;

/* One transfer. Zeroed, then filled in. While it runs, it and its memory belong to the queue. It
 * may be started again once it has been waited for. */
typedef struct zi_io_op {
    zi_io_kind kind;
    void *memory;
    uint64_t offset;            /* in the store */
    uint64_t bytes;             /* 0: done at once */
    const zi_io_source *source; /* of a write to files, until it is over; NULL: all is written */
    uint32_t extent;            /* the caller's number of what is moved, for the source */
    /* For the queue alone. */
    struct zi_io_op *next; /* of those that are not split to their end */
    zi_io_phase phase;
    uint32_t in_flight; /* segments that are not complete */
    uint64_t cut_bytes; /* split into segments so far */
    int32_t region;     /* that all its memory lies in; -1: none */
    int32_t native;     /* FAILED: the first errno, and where */
    uint64_t failed_offset;
    uint64_t failed_bytes;
    struct zi_mark *mark; /* in the timeline; NULL: it is not noted */
    uint32_t lane;        /* if noted: one of the queue's tracks, which it has for itself */
} zi_io_op;

/* Memory that operations will use, to be registered with the kernel once. */
typedef struct zi_io_region {
    void *memory;
    uint64_t bytes;
} zi_io_region;

/* Memory is registered in slices of at most this many bytes; longer regions are split. */
#define ZI_IO_SLICE_BYTES ((uint64_t)1 << 30)

/* Queues that one timeline tells apart. */
#define ZI_IO_USES 32

/* Segments of 2 MiB take about half the CPU time per byte of segments of 1 MiB: there are fewer,
 * and the queue wakes for more bytes at a time (`zero io`). Still longer ones would leave too few
 * in an extent of the default length to overlap. */
#define ZI_IO_SEGMENT_BYTES ((uint64_t)2 << 20)
#define ZI_IO_DEPTH 16
#define ZI_IO_DEPTH_MAX 1024
#define ZI_IO_RETRY_NS UINT64_C(10000000000)

struct zi_io_backend; /* storage/io_backend.h */

typedef struct zi_io_options {
    const zi_store *store;
    const zi_io_region *regions; /* copied; memory outside them works too, unregistered */
    uint32_t region_count;
    zi_io_backend_kind kind; /* BEST; else this one or an error */
    uint64_t segment_bytes;  /* of one access, at most 1 GiB; 0: ZI_IO_SEGMENT_BYTES */
    uint32_t file_depth;     /* segments in flight for each file; 0: ZI_IO_DEPTH */
    uint32_t depth;          /* in all, at most ZI_IO_DEPTH_MAX; 0: file_depth for every file */
    bool shared;             /* several threads call, one at a time, under a lock of theirs */
    uint64_t retry_ns;       /* how long a segment is retried without progress; 0: ZI_IO_RETRY_NS */
    struct zi_timeline *timeline;        /* core/timeline.h; of transfers and waits; NULL: none */
    const char *what;                    /* for that: what is moved; as zi_mark.name */
    uint32_t use;                        /* for that: tells queues apart; below ZI_IO_USES */
    const struct zi_io_backend *backend; /* not NULL: this one, and kind is ignored; owned by the
                                            queue from then on, also when create fails */
} zi_io_options;

/* How the queue was made. */
typedef struct zi_io_report {
    zi_io_backend_kind kind;
    bool direct;               /* no file goes through the page cache */
    uint32_t depth;            /* segments in flight, in all */
    uint64_t region_bytes;     /* asked to be registered */
    uint64_t registered_bytes; /* that were */
    char flags[128];           /* that the kind uses */
    char refusals[512];        /* each better kind that was refused, and why; "" when none */
} zi_io_report;

/* Counts since create, by zi_io_kind. */
typedef struct zi_io_stats {
    uint64_t ops[ZI_IO_KINDS];   /* started */
    uint64_t bytes[ZI_IO_KINDS]; /* moved */
    uint64_t segments[ZI_IO_KINDS];
    uint64_t retries;   /* segments submitted again: interrupted, refused for now, or cut short */
    uint64_t failed;    /* operations */
    uint64_t waited_ns; /* in zi_io_wait */
} zi_io_stats;

typedef struct zi_io zi_io;

/* Make a queue on a store.
 * - Errors: INVALID_ARGUMENT; UNSUPPORTED where the kind that was asked for is refused;
 *   OUT_OF_MEMORY; DEVICE where a thread cannot be started.
 * - Threads: any. Unless it is shared, the queue then belongs to the first thread that starts,
 *   polls or waits. */
zero_status zi_io_create(const zi_io_options *options, zi_io **queue);

/* Cancel what is not yet in flight, which fails with ECANCELED, and wait for what is. Accepts NULL.
 * - Threads: any where the queue is shared or has nothing in flight, else the owner. */
void zi_io_destroy(zi_io *queue);

/* Begin op; never blocks on I/O.
 * - Errors: INVALID_ARGUMENT for what is not aligned or not in the store; STATE while op runs; IO
 *   once the queue is broken. */
zero_status zi_io_start(zi_io *queue, zi_io_op *op);

/* Block until op is complete; returns at once for one that never ran or is complete already. No
 * segment of op is in flight then, also on failure, and its memory is the caller's again. There is
 * no deadline: memory that the kernel may still write cannot be freed. A device that does not
 * answer is logged every 30 s.
 * - Errors: IO when a segment failed, with directory, offset, bytes and errno; CORRUPT where a
 *   segment lay behind the end of its file. */
zero_status zi_io_wait(zi_io *queue, zi_io_op *op);

/* Reap completions and submit what waits, without blocking. To be called now and then between start
 * and wait by a thread that computes meanwhile. */
void zi_io_poll(zi_io *queue);

const zi_io_report *zi_io_report_of(const zi_io *queue);
const zi_io_stats *zi_io_stats_of(const zi_io *queue);

#endif
