/* Owns a ring of io_uring. Invariants: a submission entry is always free, since the ring has one
 * for every segment; a ring with a single issuer is made disabled and enabled by the queue's owner,
 * so any thread may create it; a backend is taken only after a read through it has worked. */
#include <errno.h>
#include <inttypes.h>
#include <liburing.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "storage/io_backend.h"

/* With all of these flags completions run on the owner's thread when it reaps, and interrupt no
 * other. Older kernels do not know them. */
#define ONE_ISSUER                                                                       \
    (IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | \
     IORING_SETUP_TASKRUN_FLAG)
/* Without them a wait with a timeout takes a submission entry, and completions may get lost. */
#define FEATURES (IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP)
#define SLICES_MAX 16384 /* of one ring, the kernel's bound */
#define PROBE_ENTRIES 4
#define BATCH 64
/* A kernel that is out of memory refuses io_uring_enter for a while. */
#define REFUSED_NS UINT64_C(10000000000)
#define REFUSED_PAUSE_NS 100000

typedef struct uring_backend {
    struct io_uring ring;
    bool made;
    bool one_issuer;
    bool enabled;
    bool fixed;          /* files are registered */
    int broken;          /* errno that io_uring_enter failed with for good */
    uint64_t refused_ns; /* since when io_uring_enter is refused; 0: it is not */
    bool *registered;    /* by slice */
    uint32_t slice_count;
} uring_backend;

static zero_status uring_backend_refused(const char *call, int code)
{
    const char *remedy = code == EPERM || code == ENOSYS
                             ? "; allow it in the container or in kernel.io_uring_disabled"
                             : "";
    ZI_FAIL_NATIVE(ZERO_ERR_UNSUPPORTED, code, "%s: %s%s", call, strerror(code), remedy);
}

static int init_ring(uring_backend *self, uint32_t entries, uint32_t flags)
{
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    params.flags = flags;
    const int code = io_uring_queue_init_params(entries, &self->ring, &params);
    if (code == 0 && (params.features & FEATURES) != FEATURES) {
        io_uring_queue_exit(&self->ring);
        return -EOPNOTSUPP;
    }
    self->made = code == 0;
    self->one_issuer = self->made && flags != 0;
    self->enabled = !self->one_issuer;
    return code;
}

static zero_status make_ring(uring_backend *self, uint32_t entries, bool one_issuer)
{
    int code = init_ring(self, entries, one_issuer ? ONE_ISSUER : 0);
    if (code == -EINVAL && one_issuer) {
        code = init_ring(self, entries, 0);
    }
    if (code != 0) {
        return uring_backend_refused("io_uring_setup", -code);
    }
    return ZERO_OK;
}

static zero_status register_files(uring_backend *self, const zi_io_setup *setup)
{
    int files[ZI_STORE_DIRECTORIES_MAX];
    for (uint32_t i = 0; i < setup->file_count; i++) {
        files[i] = zi_store_fd(setup->store, i);
    }
    const int code = io_uring_register_files(&self->ring, files, setup->file_count);
    if (code != 0) {
        return uring_backend_refused("registering files", -code);
    }
    self->fixed = true;
    return ZERO_OK;
}

/* As many slices as the limit on locked memory allows; returns why not more, 0 when all. */
static int register_slices(uring_backend *self, const zi_io_setup *setup)
{
    const uint32_t count = (uint32_t)zi_min_u64(setup->slice_count, SLICES_MAX);
    if (count == 0) {
        return 0;
    }
    int code = io_uring_register_buffers_sparse(&self->ring, count);
    if (code == -EINVAL) {
        /* Kernels before 5.19 take all or none. */
        code = io_uring_register_buffers(&self->ring, setup->slices, count);
        memset(self->registered, code == 0, count * sizeof *self->registered);
        return -code;
    }
    const __u64 untagged = 0;
    for (uint32_t i = 0; i < count && code == 0; i++) {
        code =
            io_uring_register_buffers_update_tag(&self->ring, i, &setup->slices[i], &untagged, 1);
        self->registered[i] = code == 1;
        code = code > 0 ? 0 : code;
    }
    return -code;
}

static zero_status uring_backend_register_memory(uring_backend *self, const zi_io_setup *setup,
                                                 zi_io_report *report)
{
    self->slice_count = setup->slice_count;
    ZI_TRY(zi_calloc(setup->slice_count, sizeof *self->registered, (void **)&self->registered));
    const int code = register_slices(self, setup);
    uint32_t count = 0;
    for (uint32_t i = 0; i < setup->slice_count; i++) {
        count += self->registered[i];
        report->registered_bytes += self->registered[i] ? setup->slices[i].iov_len : 0;
    }
    (void)snprintf(report->flags, sizeof report->flags, "%sfiles, %u of %u slices of memory%s%s",
                   self->one_issuer ? "single issuer, deferred task work, " : "", count,
                   setup->slice_count, code != 0 ? "; no more: " : "",
                   code == ENOMEM ? "the limit on locked memory (ulimit -l)"
                   : code != 0    ? strerror(code)
                                  : "");
    return ZERO_OK;
}

static void uring_backend_release(uring_backend *self)
{
    if (self->made) {
        io_uring_queue_exit(&self->ring);
    }
    zi_free(self->registered);
}

/* Enable a ring that was made disabled: the calling thread becomes its one issuer. */
static int enable(uring_backend *self)
{
    if (self->enabled) {
        return 0;
    }
    self->enabled = true;
    /* liburing 2.3 declares a function for this and does not export it. */
    return -io_uring_register((unsigned)self->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
}

static void uring_backend_prepare(uring_backend *self, zi_io_segment *segment)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&self->ring);
    zi_assert(entry != NULL);
    const int file = self->fixed ? (int)segment->file : segment->fd;
    const bool in_slice = segment->slice >= 0 && (uint32_t)segment->slice < self->slice_count &&
                          self->registered[segment->slice];
    if (in_slice && segment->kind == ZI_IO_READ) {
        io_uring_prep_read_fixed(entry, file, segment->memory, segment->bytes, segment->offset,
                                 segment->slice);
    } else if (in_slice) {
        io_uring_prep_write_fixed(entry, file, segment->memory, segment->bytes, segment->offset,
                                  segment->slice);
    } else if (segment->kind == ZI_IO_READ) {
        io_uring_prep_read(entry, file, segment->memory, segment->bytes, segment->offset);
    } else {
        io_uring_prep_write(entry, file, segment->memory, segment->bytes, segment->offset);
    }
    if (self->fixed) {
        io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
    }
    io_uring_sqe_set_data(entry, segment);
}

/* After a failed io_uring_enter: it is tried again later, or the ring is broken. */
static void check_enter(uring_backend *self, int result)
{
    if (result >= 0 || result == -EINTR || result == -ETIME) {
        self->refused_ns = 0;
        return;
    }
    const uint64_t now = zi_clock_ns();
    self->refused_ns = self->refused_ns != 0 ? self->refused_ns : now;
    if ((result != -EAGAIN && result != -EBUSY && result != -ENOMEM) ||
        now - self->refused_ns > REFUSED_NS) {
        self->broken = -result;
        return;
    }
    const struct timespec pause = {.tv_nsec = REFUSED_PAUSE_NS};
    (void)nanosleep(&pause, NULL);
}

static void uring_put(void *self, zi_io_segment *segment)
{
    uring_backend_prepare(self, segment);
}

static void uring_flush(void *self_)
{
    uring_backend *self = self_;
    if (self->broken == 0 && io_uring_sq_ready(&self->ring) > 0) {
        self->broken = enable(self);
        if (self->broken == 0) {
            check_enter(self, io_uring_submit(&self->ring));
        }
    }
}

static int take_completions(uring_backend *self, zi_io_segment **done, uint32_t done_max)
{
    struct io_uring_cqe *entries[BATCH];
    const uint32_t wanted = done_max < BATCH ? done_max : BATCH;
    const unsigned count = io_uring_peek_batch_cqe(&self->ring, entries, wanted);
    for (unsigned i = 0; i < count; i++) {
        done[i] = io_uring_cqe_get_data(entries[i]);
        done[i]->result = entries[i]->res;
    }
    io_uring_cq_advance(&self->ring, count);
    return (int)count;
}

static int uring_reap(void *self_, zi_io_segment **done, uint32_t done_max, uint32_t want,
                      uint64_t timeout_ns)
{
    uring_backend *self = self_;
    uring_flush(self);
    if (self->broken == 0 && timeout_ns > 0 && io_uring_cq_ready(&self->ring) < want) {
        struct __kernel_timespec timeout = {.tv_sec = (int64_t)(timeout_ns / UINT64_C(1000000000)),
                                            .tv_nsec =
                                                (long long)(timeout_ns % UINT64_C(1000000000))};
        struct io_uring_cqe *first = NULL;
        check_enter(self,
                    io_uring_submit_and_wait_timeout(&self->ring, &first, want, &timeout, NULL));
    }
    return self->broken != 0 ? -self->broken : take_completions(self, done, done_max);
}

static void uring_destroy(void *self)
{
    uring_backend_release(self);
    zi_free(self);
}

static const zi_io_backend_ops uring_ops = {
    .struct_bytes = sizeof(zi_io_backend_ops),
    .name = "uring",
    .put = uring_put,
    .flush = uring_flush,
    .reap = uring_reap,
    .destroy = uring_destroy,
};

/* Read the store's first bytes through a ring that is made in the same way. */
static zero_status read_once(uring_backend *probe, zi_io_segment *segment)
{
    uring_backend_prepare(probe, segment);
    zi_io_segment *done = NULL;
    const uint64_t start = zi_clock_ns();
    int count = 0;
    while (count == 0 && zi_clock_ns() - start < REFUSED_NS) {
        count = uring_reap(probe, &done, 1, 1, REFUSED_NS);
    }
    if (count <= 0) {
        return uring_backend_refused("io_uring_enter", count < 0 ? -count : ETIME);
    }
    if (segment->result != (int32_t)segment->bytes) {
        return uring_backend_refused("a first read", segment->result < 0 ? -segment->result : EIO);
    }
    return ZERO_OK;
}

static zero_status probe_backend(const zi_io_setup *setup, bool fixed)
{
    void *page = NULL;
    ZI_TRY(zi_pages_alloc(ZI_STORAGE_ALIGN, &page));
    const struct iovec slice = {page, ZI_STORAGE_ALIGN};
    zi_io_setup small = *setup;
    small.slices = &slice;
    small.slice_count = 1;
    zi_io_report unread = {0};
    uring_backend probe = {0};
    zi_io_segment segment = {
        .fd = zi_store_fd(setup->store, 0), .memory = page, .bytes = (uint32_t)ZI_STORAGE_ALIGN};
    zero_status status = make_ring(&probe, PROBE_ENTRIES, fixed);
    if (status == ZERO_OK && fixed) {
        status = register_files(&probe, &small);
    }
    if (status == ZERO_OK && fixed) {
        status = uring_backend_register_memory(&probe, &small, &unread);
    }
    if (status == ZERO_OK) {
        status = read_once(&probe, &segment);
    }
    uring_backend_release(&probe);
    zi_pages_free(page, ZI_STORAGE_ALIGN);
    return status;
}

zero_status zi_uring_create(const zi_io_setup *setup, zi_io_backend_kind kind,
                            zi_io_backend *backend, zi_io_report *report)
{
    const bool fixed = kind == ZI_IO_BACKEND_FIXED;
    ZI_TRY(probe_backend(setup, fixed));
    uring_backend *self = NULL;
    ZI_TRY(zi_calloc(1, sizeof *self, (void **)&self));
    zero_status status = make_ring(self, setup->depth, fixed && !setup->shared);
    if (status == ZERO_OK && fixed) {
        status = register_files(self, setup);
    }
    if (status == ZERO_OK && fixed) {
        status = uring_backend_register_memory(self, setup, report);
    }
    if (status != ZERO_OK) {
        uring_destroy(self);
        return status;
    }
    *backend = (zi_io_backend){&uring_ops, self};
    return ZERO_OK;
}
