/* Owns the copying of tensors between files. Invariant: nothing that was read is passed on before
 * it was compared with its sum, but for what is found damaged at the end of its tensor; then the
 * whole copy fails. */
#include "ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "kernels/math/convert.h"

/* A piece of the widest type. */
#define BUFFER_BYTES (ZI_PIECE_COUNT * sizeof(float))
#define COPY_BYTES ((size_t)64 << 20)

static _Alignas(4096) unsigned char source_buffer[BUFFER_BYTES];
static _Alignas(4096) unsigned char target_buffer[BUFFER_BYTES];

/* ---- files ---- */

int ckpt_file_create(ckpt_file *file, const char *folder, const char *name)
{
    file->descriptor = -1;
    if (CKPT_TRY(zi_checkpoint_path(file->path, folder, name)) != 0) {
        return 1;
    }
    file->descriptor = open(file->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    return file->descriptor >= 0 ? 0
                                 : bench_fail("%s cannot be made: %s", file->path, strerror(errno));
}

int ckpt_file_write(const ckpt_file *file, uint64_t at, const void *data, uint64_t bytes)
{
    const unsigned char *next = data;
    while (bytes > 0) {
        const ssize_t now = pwrite(file->descriptor, next, bytes, (off_t)at);
        if (now < 0 && errno == EINTR) {
            continue;
        }
        if (now <= 0) {
            return bench_fail("%s cannot be written at %" PRIu64 ": %s", file->path, at,
                              strerror(now < 0 ? errno : ENOSPC));
        }
        next += now;
        at += (uint64_t)now;
        bytes -= (uint64_t)now;
    }
    return 0;
}

/* True if the reason is one that a file system which cannot copy by itself answers. */
static bool cannot_copy(int reason)
{
    return reason == EXDEV || reason == EINVAL || reason == ENOSYS || reason == EOPNOTSUPP;
}

static int copy_through_memory(const ckpt_file *file, int source, const char *path, uint64_t at)
{
    for (;;) {
        const ssize_t now = pread(source, source_buffer, sizeof source_buffer, (off_t)at);
        if (now < 0 && errno == EINTR) {
            continue;
        }
        if (now < 0) {
            return bench_fail("%s cannot be read at %" PRIu64 ": %s", path, at, strerror(errno));
        }
        if (now == 0) {
            return 0;
        }
        if (ckpt_file_write(file, at, source_buffer, (uint64_t)now) != 0) {
            return 1;
        }
        at += (uint64_t)now;
    }
}

int ckpt_file_copy(const ckpt_file *file, const char *folder, const char *name)
{
    char path[ZI_CHECKPOINT_PATH_BYTES];
    int failed = 0;
    off_t from = 0;
    off_t to = 0;
    if (CKPT_TRY(zi_checkpoint_path(path, folder, name)) != 0) {
        return 1;
    }
    const int source = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (source < 0) {
        return bench_fail("%s cannot be read: %s", path, strerror(errno));
    }
    for (;;) {
        const ssize_t now = copy_file_range(source, &from, file->descriptor, &to, COPY_BYTES, 0);
        if (now == 0) {
            break;
        }
        if (now < 0 && cannot_copy(errno)) {
            failed = copy_through_memory(file, source, path, (uint64_t)from);
            break;
        }
        if (now < 0 && errno != EINTR) {
            failed = bench_fail("%s cannot be written at %" PRIu64 ": %s", file->path, (uint64_t)to,
                                strerror(errno));
            break;
        }
    }
    (void)close(source);
    return failed;
}

int ckpt_file_close(ckpt_file *file)
{
    if (file->descriptor < 0) {
        return 0;
    }
    const bool synced = fsync(file->descriptor) == 0;
    const int reason = errno;
    const bool closed = close(file->descriptor) == 0;
    file->descriptor = -1;
    return synced && closed ? 0
                            : bench_fail("%s cannot be written: %s", file->path,
                                         strerror(synced ? errno : reason));
}

void ckpt_file_drop(ckpt_file *file)
{
    if (file->descriptor >= 0) {
        (void)close(file->descriptor);
        file->descriptor = -1;
    }
}

/* ---- types ---- */

static float widen(const void *values, zero_dtype type, uint64_t i)
{
    const uint16_t *halves = values;
    return type == ZERO_DTYPE_F32    ? ((const float *)values)[i]
           : type == ZERO_DTYPE_BF16 ? zi_f32_from_bf16(halves[i])
                                     : zi_f32_from_f16(halves[i]);
}

/* Elements of a tensor from `first` on that are about to be rounded to a type. */
static void count_overflow(const ckpt_copy *copy, uint64_t first, const void *source,
                           zero_dtype from, zero_dtype to, uint64_t count)
{
    const uint32_t limit = to == ZERO_DTYPE_F16 ? ZI_F16_OVERFLOW : ZI_BF16_OVERFLOW;
    ckpt_overflow *overflow = copy->overflow;
    for (uint64_t i = 0; i < count && overflow != NULL && from != to && to != ZERO_DTYPE_F32; i++) {
        if (zi_f32_overflows(widen(source, from, i), limit) == 0) {
            continue;
        }
        if (overflow->count++ == 0) {
            overflow->tensor = copy->target->name;
            overflow->index = first + i;
        }
    }
}

static void convert(void *target, zero_dtype to, const void *source, zero_dtype from,
                    uint64_t count)
{
    uint16_t *halves = target;
    if (from == to) { /* with the payloads of all NaN */
        memcpy(target, source, count * zero_dtype_bytes(to));
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        const float value = widen(source, from, i);
        if (to == ZERO_DTYPE_F32) {
            ((float *)target)[i] = value;
        } else {
            halves[i] = to == ZERO_DTYPE_BF16 ? zi_bf16_from_f32(value) : zi_f16_from_f32(value);
        }
    }
}

/* ---- tensors ---- */

/* Elements of the target in its own type: in one of the buffers. NULL: after bench_fail. */
static const void *read_values(const ckpt_copy *copy, const zi_joined *joined, uint64_t first,
                               uint64_t count)
{
    const zi_codec codec = zi_saved_codec(copy->target, copy->to);
    const zero_dtype type = codec.dtype;
    const bool counted = joined->source->manifest != NULL;
    for (uint64_t at = 0; at < count;) {
        zi_codec from = {ZERO_DTYPE_NONE, false};
        const uint64_t run = zi_joined_alike(joined, first + at, first + count, &from);
        if (CKPT_TRY(zi_joined_read(joined, first + at, run, counted, source_buffer)) != 0) {
            return NULL;
        }
        if (from.dtype == type && run == count) {
            return source_buffer;
        }
        count_overflow(copy, first + at, source_buffer, from.dtype, type, run);
        convert(target_buffer + zi_codec_bytes(codec, at), type, source_buffer, from.dtype, run);
        at += run;
    }
    return target_buffer;
}

/* One piece of the target. */
static int copy_piece(const ckpt_copy *copy, const zi_joined *joined, zi_checkpoint_piece piece)
{
    const zi_checkpoint_place *place = &copy->target->role[copy->to];
    const zi_codec codec = zi_saved_codec(copy->target, copy->to);
    const void *values = read_values(copy, joined, piece.first, piece.count);
    if (values == NULL) {
        return 1;
    }
    if (copy->sums != NULL) {
        copy->sums[place->first_piece + piece.index] =
            zi_piece_sum(values, piece.first, piece.count, codec);
    }
    return copy->file == NULL
               ? 0
               : ckpt_file_write(copy->file, place->at + zi_codec_bytes(codec, piece.first), values,
                                 zi_codec_bytes(codec, piece.count));
}

int ckpt_copy_tensor(const ckpt_copy *copy)
{
    const uint64_t count = copy->target->count;
    const ckpt_source source = {copy->from.role, copy->from.best,
                                !zi_dtype_is_small(copy->target->role[copy->to].dtype)};
    const zi_joined joined = ckpt_joined(copy->reader, copy->tensor, &source);
    const uint64_t before = zi_source_count(copy->reader).balance;
    for (uint64_t first = 0; first < count;) {
        const zi_checkpoint_piece piece = zi_checkpoint_piece_at(copy->target, first);
        if (copy_piece(copy, &joined, piece) != 0) {
            return 1;
        }
        first = piece.first + piece.count;
    }
    return zi_source_count(copy->reader).balance == before ? 0 : ckpt_find_damage(&joined, count);
}
