#include "faulty_backend.h"

#include <errno.h>
#include <unistd.h>

#include "core/check.h"

/* Between two looks at what the backend beneath has done. */
#define POLL_NS 100000

static uint64_t chance(faulty *self)
{
    self->seed = self->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return self->seed >> 33;
}

static int choose_kind(faulty *self)
{
    static const int mended[] = {FAULTY_SHORT, FAULTY_TORN, FAULTY_ERRNO + EINTR,
                                 FAULTY_ERRNO + EAGAIN};
    self->segments++;
    if (self->always || self->nth == self->segments) {
        return self->kind;
    }
    if (self->nth == 0 && chance(self) % 100 < self->percent) {
        return mended[chance(self) % 4];
    }
    return FAULTY_NONE;
}

static void faulty_put(void *self_, zi_io_segment *segment)
{
    faulty *self = self_;
    uint32_t slot = 0;
    while (self->segment[slot] != NULL) {
        zi_assert(self->segment[slot] != segment);
        slot++;
        zi_assert_cmp(slot, <, FAULTY_PIECES_MAX);
    }
    self->segment[slot] = segment;
    self->bytes[slot] = segment->bytes;
    self->complete[slot] = false;
    self->out++;
    self->out_max = self->out > self->out_max ? self->out : self->out_max;
    const uint32_t of_file = ++self->file_out[segment->file];
    self->file_out_max = of_file > self->file_out_max ? of_file : self->file_out_max;
    const int kind = choose_kind(self);
    self->faults += kind != FAULTY_NONE;
    if (kind >= FAULTY_ERRNO || kind == FAULTY_NOTHING) {
        segment->result = kind == FAULTY_NOTHING ? 0 : FAULTY_ERRNO - kind;
        self->complete[slot] = true;
        return;
    }
    if (kind == FAULTY_SHORT && segment->bytes > ZI_STORAGE_ALIGN) {
        segment->bytes = (uint32_t)(segment->bytes / 2 / ZI_STORAGE_ALIGN * ZI_STORAGE_ALIGN);
    }
    self->inner.ops->put(self->inner.self, segment);
    if (kind == FAULTY_TORN) {
        /* It has moved all, and says less. */
        self->bytes[slot] |= UINT32_C(1);
    }
}

static void faulty_flush(void *self_)
{
    faulty *self = self_;
    self->inner.ops->flush(self->inner.self);
}

static void settle(faulty *self, zi_io_segment *segment)
{
    for (uint32_t slot = 0; slot < FAULTY_PIECES_MAX; slot++) {
        if (self->segment[slot] == segment) {
            const bool torn = (self->bytes[slot] & 1) != 0;
            segment->bytes = self->bytes[slot] & ~UINT32_C(1);
            if (torn && segment->result > 0) {
                /* A block of which nothing was moved would be a file that was cut. */
                segment->result -= 1 + (int)(chance(self) % (ZI_STORAGE_ALIGN - 1));
            }
            self->complete[slot] = true;
            return;
        }
    }
    zi_assert(false && "a segment came back that was not out");
}

static uint32_t give_back(faulty *self, zi_io_segment **done, uint32_t room)
{
    uint32_t count = 0;
    const uint32_t first = self->shuffle ? (uint32_t)(chance(self) % FAULTY_PIECES_MAX) : 0;
    for (uint32_t i = 0; i < FAULTY_PIECES_MAX && count < room; i++) {
        const uint32_t slot = (first + i) % FAULTY_PIECES_MAX;
        zi_io_segment *segment = self->segment[slot];
        if (segment == NULL || !self->complete[slot] || (int)segment->file == self->hold_file ||
            (self->shuffle && count > 0 && chance(self) % 2 == 0)) {
            continue;
        }
        self->segment[slot] = NULL;
        self->out--;
        self->file_out[segment->file]--;
        done[count++] = segment;
    }
    return count;
}

static int faulty_reap(void *self_, zi_io_segment **done, uint32_t room, uint32_t want,
                       uint64_t timeout_ns)
{
    faulty *self = self_;
    if (self->broken != 0) {
        return -self->broken;
    }
    (void)want;
    if (self->late && timeout_ns == 0) {
        return 0;
    }
    zi_io_segment *inner[64];
    uint32_t count = 0;
    for (uint64_t slept_ns = 0; count == 0; slept_ns += POLL_NS) {
        const int back = self->inner.ops->reap(self->inner.self, inner, 64, 1, 0);
        for (int i = 0; i < back; i++) {
            settle(self, inner[i]);
        }
        count = give_back(self, done, room);
        if (count > 0 || slept_ns >= timeout_ns) {
            break;
        }
        usleep(POLL_NS / 1000);
    }
    return (int)count;
}

static void faulty_destroy(void *self_)
{
    faulty *self = self_;
    self->inner.ops->destroy(self->inner.self);
    self->inner.self = NULL;
}

static const zi_io_backend_ops faulty_ops = {
    .struct_bytes = sizeof(zi_io_backend_ops),
    .name = "faulty",
    .put = faulty_put,
    .flush = faulty_flush,
    .reap = faulty_reap,
    .destroy = faulty_destroy,
};

void faulty_open(faulty *self, const zi_store *store, zi_io_backend *backend)
{
    zi_io_report unread;
    const zi_io_setup setup = {
        .store = store, .file_count = zi_store_map(store)->file_count, .depth = 4};
    const zero_status status = zi_posix_create(&setup, ZI_IO_BACKEND_POSIX, &self->inner, &unread);
    zi_assert_cmp(status, ==, ZERO_OK);
    backend->ops = &faulty_ops;
    backend->self = self;
}
