/* Owns reading ranges of tensors, and comparing them with the sums. Elements go from the file to
 * the caller's memory: from the page cache, into which the system reads ahead, or from the disk
 * where the caller has several reads under way. Invariant: of a checkpoint nothing is given to a
 * caller that differs from a sum which the call could compare. */
#include "checkpoint/checkpoint_reader.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint_weights.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/sizes.h"

#define OPEN_FILES 16
#define SUMS_AT_ONCE 512
#define GRANULE_COUNT 256
/* Of checking: at least the longest piece. */
#define CHECK_BYTES ZI_CHECKPOINT_READ_BYTES_MAX
/* Less is not worth an access of its own: its neighbours come with it into the page cache. */
#define DIRECT_BYTES_MIN ((uint64_t)256 << 10)
#define NO_FILE UINT32_MAX
#define NOT_TRIED (-2)

/* An open file. */
typedef struct open_file {
    uint32_t file;  /* of the map; NO_FILE: none */
    uint32_t users; /* reads under way, for which it stays open; with the mutex */
    uint64_t next;  /* byte behind the last read through the page cache; with the mutex */
    zi_regular_file opened;
    int direct; /* -1: the file system has no direct access; NOT_TRIED: nobody has asked for it */
    char path[ZI_CHECKPOINT_PATH_BYTES];
} open_file;

_Static_assert(ZI_CHECKPOINT_READERS_MAX < OPEN_FILES, "a file can always be closed for another");

/* Sums that were read last. */
typedef struct sum_window {
    uint64_t first;
    uint64_t count;
    uint64_t sum[SUMS_AT_ONCE];
} sum_window;

struct zi_checkpoint_reader {
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    zi_manifest manifest;          /* where has_manifest */
    zi_checkpoint_weights weights; /* else */
    bool has_manifest;
    const zi_checkpoint_map *map;
    zi_box_index by_name;
    uint64_t align;        /* zi_checkpoint_reader_align */
    void *check_buffer;    /* a page more than CHECK_BYTES; NULL: nothing was checked yet */
    pthread_mutex_t mutex; /* guards all below */
    open_file files[OPEN_FILES];
    uint32_t next_file; /* to close, where all are open */
    bool said;          /* that the file system refuses direct access */
    open_file sums;
    zi_checkpoint_reader_counts counts;
};

/* ---- open ---- */

static bool is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static bool is_in(const char *folder, const char *name, char path[ZI_CHECKPOINT_PATH_BYTES])
{
    struct stat status;
    return zi_checkpoint_path(path, folder, name) == ZERO_OK && lstat(path, &status) == 0;
}

static zero_status open_manifest(zi_checkpoint_reader *reader, const char *folder)
{
    struct stat status;
    char path[ZI_CHECKPOINT_PATH_BYTES];
    reader->has_manifest = true;
    ZI_TRY(zi_manifest_read(&reader->manifest, folder));
    reader->map = &reader->manifest.map;
    (void)snprintf(reader->folder, sizeof reader->folder, "%s", folder);
    if (is_in(folder, ZI_MANIFEST_NAME, path) && stat(path, &status) == 0) {
        reader->counts.read_bytes += (uint64_t)status.st_size;
    }
    return ZERO_OK;
}

static zero_status open_weights(zi_checkpoint_reader *reader, const char *path)
{
    ZI_TRY(zi_checkpoint_weights_read(&reader->weights, path));
    reader->map = &reader->weights.map;
    reader->counts.read_bytes += reader->weights.read_bytes;
    return ZERO_OK;
}

static zero_status open_any(zi_checkpoint_reader *reader, const char *path)
{
    char inside[ZI_CHECKPOINT_PATH_BYTES];
    if (!is_folder(path)) {
        return open_weights(reader, path);
    }
    if (is_in(path, ZI_MANIFEST_NAME, inside)) {
        return open_manifest(reader, path);
    }
    if (is_in(path, "model.safetensors.index.json", inside) ||
        is_in(path, "model.safetensors", inside)) {
        return open_weights(reader, inside);
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "%.150s has neither " ZI_MANIFEST_NAME
            ", of a save that ended, nor model.safetensors nor its index",
            path);
}

/* Of the manifest, or of the first file of weights. */
static uint64_t direct_align(const zi_checkpoint_reader *reader)
{
    char own[ZI_CHECKPOINT_PATH_BYTES];
    if (!reader->has_manifest) {
        return zi_checkpoint_direct_align(reader->weights.paths[0]);
    }
    return is_in(reader->folder, ZI_MANIFEST_NAME, own) ? zi_checkpoint_direct_align(own)
                                                        : ZI_CHECKPOINT_ALIGN;
}

static zero_status index_names(zi_checkpoint_reader *reader)
{
    zi_box_conflict conflict;
    ZI_TRY(zi_box_index_make(&reader->by_name, reader->map, &conflict));
    if (!reader->has_manifest && conflict.fault != ZI_BOX_SOUND) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "two files have the tensor \"%.127s\"",
                reader->map->tensors[conflict.other].name);
    }
    return zi_box_refuse(reader->map, &conflict, reader->folder);
}

zero_status zi_checkpoint_reader_open(const char *path, zi_checkpoint_reader **out)
{
    zi_checkpoint_reader *reader = NULL;
    *out = NULL;
    ZI_TRY(zi_calloc(1, sizeof *reader, (void **)&reader));
    (void)pthread_mutex_init(&reader->mutex, NULL);
    reader->sums.file = NO_FILE;
    reader->sums.direct = NOT_TRIED;
    for (int i = 0; i < OPEN_FILES; i++) {
        reader->files[i].file = NO_FILE;
    }
    zero_status status = open_any(reader, path);
    if (status == ZERO_OK) {
        reader->align = direct_align(reader);
        status = index_names(reader);
    }
    if (status != ZERO_OK) {
        zi_checkpoint_reader_close(reader);
        return status;
    }
    *out = reader;
    return ZERO_OK;
}

static void close_file(open_file *file)
{
    if (file->file != NO_FILE) {
        zi_regular_file_close(&file->opened);
        if (file->direct >= 0) {
            (void)close(file->direct);
        }
        file->file = NO_FILE;
    }
}

void zi_checkpoint_reader_close(zi_checkpoint_reader *reader)
{
    if (reader == NULL) {
        return;
    }
    for (int i = 0; i < OPEN_FILES; i++) {
        close_file(&reader->files[i]);
    }
    close_file(&reader->sums);
    if (reader->has_manifest) {
        zi_manifest_free(&reader->manifest);
    }
    zi_checkpoint_weights_free(&reader->weights);
    zi_box_index_free(&reader->by_name);
    zi_pages_free(reader->check_buffer, CHECK_BYTES + ZI_CHECKPOINT_ALIGN);
    (void)pthread_mutex_destroy(&reader->mutex);
    zi_free(reader);
}

const zi_manifest *zi_checkpoint_reader_manifest(const zi_checkpoint_reader *reader)
{
    return reader->has_manifest ? &reader->manifest : NULL;
}

const zi_checkpoint_map *zi_checkpoint_reader_map(const zi_checkpoint_reader *reader)
{
    return reader->map;
}

uint32_t zi_checkpoint_reader_find(const zi_checkpoint_reader *reader, const char *name)
{
    return zi_box_index_find(&reader->by_name, name);
}

uint32_t zi_checkpoint_reader_next(const zi_checkpoint_reader *reader, uint32_t tensor)
{
    return reader->by_name.next[tensor];
}

zi_checkpoint_reader_counts zi_checkpoint_reader_count(const zi_checkpoint_reader *reader)
{
    return reader->counts;
}

/* ---- files ---- */

static zero_status checkpoint_reader_check_length(const open_file *file, uint64_t bytes)
{
    if (file->opened.bytes != bytes) {
        ZI_FAIL(ZERO_ERR_CORRUPT, "%s has %" PRIu64 " bytes instead of %" PRIu64, file->path,
                file->opened.bytes, bytes);
    }
    return ZERO_OK;
}

/* A checkpoint's file that is not there is damage, like one that is shorter. */
static zero_status open_own(const zi_checkpoint_reader *reader, const char *name, open_file *file)
{
    ZI_TRY(zi_checkpoint_path(file->path, reader->folder, name));
    const zero_status status = zi_checkpoint_open(&file->opened, file->path);
    if (status != ZERO_OK) {
        zi_regular_file_close(&file->opened);
    }
    if (status == ZERO_ERR_IO && zero_last_error()->native == ENOENT) {
        ZI_FAIL(ZERO_ERR_CORRUPT, "%s is not there; load another checkpoint", file->path);
    }
    return status;
}

static zero_status open_tensors(zi_checkpoint_reader *reader, uint32_t index, open_file *file)
{
    zero_status status = ZERO_OK;
    if (reader->has_manifest) {
        ZI_TRY(open_own(reader, reader->map->files[index].name, file));
    } else {
        (void)snprintf(file->path, sizeof file->path, "%s", reader->weights.paths[index]);
        status = zi_regular_file_open(&file->opened, file->path);
    }
    file->file = index;
    file->next = 0;
    file->direct = NOT_TRIED;
    status = status == ZERO_OK
                 ? checkpoint_reader_check_length(file, reader->map->files[index].bytes)
                 : status;
    if (status != ZERO_OK) {
        close_file(file);
        return status;
    }
    /* A longer read-ahead; a system that does not know it reads as it does. */
    (void)posix_fadvise(file->opened.descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
    return ZERO_OK;
}

/* With the mutex: the file, opened if it is not. */
static zero_status file_of(zi_checkpoint_reader *reader, uint32_t index, open_file **file)
{
    for (int i = 0; i < OPEN_FILES; i++) {
        if (reader->files[i].file == index) {
            *file = &reader->files[i];
            return ZERO_OK;
        }
    }
    do {
        *file = &reader->files[reader->next_file];
        reader->next_file = (reader->next_file + 1) % OPEN_FILES;
    } while ((*file)->users != 0);
    close_file(*file);
    return open_tensors(reader, index, *file);
}

/* With the mutex. The files of a checkpoint are on one file system, so it is said once. */
static void open_direct(zi_checkpoint_reader *reader, open_file *file)
{
    file->direct = zi_checkpoint_open_direct(&file->opened);
    if (file->direct < 0 && !reader->said) {
        zi_log(ZERO_LOG_WARN, "checkpoint: read through the page cache, without O_DIRECT (%s): %s",
               strerror(errno), file->path);
        reader->said = true;
    }
}

/* The file, which stays open until it is given back. */
static zero_status take_file(zi_checkpoint_reader *reader, uint32_t index, bool direct,
                             open_file **file)
{
    (void)pthread_mutex_lock(&reader->mutex);
    const zero_status status = file_of(reader, index, file);
    if (status == ZERO_OK && direct && (*file)->direct == NOT_TRIED) {
        open_direct(reader, *file);
    }
    (*file)->users += status == ZERO_OK;
    (void)pthread_mutex_unlock(&reader->mutex);
    return status;
}

static void give_file(zi_checkpoint_reader *reader, open_file *file)
{
    (void)pthread_mutex_lock(&reader->mutex);
    file->users--;
    (void)pthread_mutex_unlock(&reader->mutex);
}

/* Whether a read of the page cache goes on where the one before ended. */
static bool goes_on(zi_checkpoint_reader *reader, open_file *file, uint64_t at, uint64_t bytes)
{
    (void)pthread_mutex_lock(&reader->mutex);
    const bool neighbours = at == file->next;
    file->next = at + bytes;
    (void)pthread_mutex_unlock(&reader->mutex);
    return neighbours;
}

static void will_need(const open_file *file, uint64_t at, uint64_t bytes)
{
    if (bytes != 0) {
        (void)posix_fadvise(file->opened.descriptor, (off_t)at, (off_t)bytes, POSIX_FADV_WILLNEED);
    }
}

/* Through the page cache. */
static zero_status read_cached(zi_checkpoint_reader *reader, open_file *file, uint64_t at,
                               void *target, uint64_t bytes)
{
    size_t count = (size_t)bytes;
    if (bytes == 0) {
        return ZERO_OK;
    }
    ZI_TRY(zi_regular_file_read(&file->opened, at, target, &count));
    (void)pthread_mutex_lock(&reader->mutex);
    reader->counts.read_bytes += count;
    (void)pthread_mutex_unlock(&reader->mutex);
    if (count != bytes) {
        ZI_FAIL(ZERO_ERR_CORRUPT, "%s ends at byte %" PRIu64 "; it was truncated while it was read",
                file->path, at + count);
    }
    return ZERO_OK;
}

/* Whole pages past the page cache. The first and the last page may have neighbours that are read
 * too, so they go through it: the disk is asked for them once, while it is for the others. */
static zero_status read_past(zi_checkpoint_reader *reader, open_file *file, uint64_t at,
                             unsigned char *target, uint64_t bytes)
{
    const uint64_t lead = (ZI_CHECKPOINT_ALIGN - at % ZI_CHECKPOINT_ALIGN) % ZI_CHECKPOINT_ALIGN;
    const uint64_t pages = (bytes - lead) / ZI_CHECKPOINT_ALIGN * ZI_CHECKPOINT_ALIGN;
    will_need(file, at, lead);
    will_need(file, at + lead + pages, bytes - lead - pages);
    const uint64_t done = zi_checkpoint_read_direct(file->direct, at + lead, target + lead, pages);
    (void)pthread_mutex_lock(&reader->mutex);
    reader->counts.read_bytes += done;
    (void)pthread_mutex_unlock(&reader->mutex);
    ZI_TRY(read_cached(reader, file, at, target, lead));
    return read_cached(reader, file, at + lead + done, target + lead + done, bytes - lead - done);
}

static zero_status read_bytes(zi_checkpoint_reader *reader, open_file *file, uint64_t at,
                              void *target, uint64_t bytes, bool direct)
{
    if (zi_fault_hit(ZI_FAULT_IO)) {
        ZI_FAIL_NATIVE(ZERO_ERR_IO, EIO, "reading %s: %s", file->path, strerror(EIO));
    }
    if (direct && file->direct >= 0 && bytes >= DIRECT_BYTES_MIN &&
        at % reader->align == (uintptr_t)target % reader->align) {
        return read_past(reader, file, at, target, bytes);
    }
    if (!goes_on(reader, file, at, bytes)) {
        will_need(file, at, bytes); /* the read-ahead would have to find out how much is wanted */
    }
    return read_cached(reader, file, at, target, bytes);
}

/* ---- sums ---- */

/* With the mutex. */
static zero_status open_sums(zi_checkpoint_reader *reader)
{
    if (reader->sums.file != NO_FILE) {
        return ZERO_OK;
    }
    ZI_TRY(open_own(reader, ZI_SUMS_NAME, &reader->sums));
    reader->sums.file = 0;
    const zero_status status =
        checkpoint_reader_check_length(&reader->sums, reader->map->piece_count * sizeof(uint64_t));
    if (status != ZERO_OK) {
        close_file(&reader->sums);
    }
    return status;
}

/* The sum of a piece; up to `end` they will be asked for in turn, with the same window. */
static zero_status checkpoint_reader_sum_of(zi_checkpoint_reader *reader, sum_window *window,
                                            uint64_t piece, uint64_t end, uint64_t *sum)
{
    if (piece < window->first || piece >= window->first + window->count) {
        const uint64_t count = zi_min_u64(end - piece, SUMS_AT_ONCE);
        (void)pthread_mutex_lock(&reader->mutex);
        const zero_status status = open_sums(reader);
        (void)pthread_mutex_unlock(&reader->mutex);
        window->count = 0;
        ZI_TRY(status);
        ZI_TRY(read_bytes(reader, &reader->sums, piece * 8, window->sum, count * 8, false));
        for (uint64_t i = 0; i < count; i++) {
            window->sum[i] = le64toh(window->sum[i]);
        }
        window->first = piece;
        window->count = count;
    }
    *sum = window->sum[piece - window->first];
    return ZERO_OK;
}

/* So that what one piece has too much does not make up for what another lacks. */
static uint64_t weight_of(uint64_t piece)
{
    uint64_t z = (piece + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    return (z ^ z >> 27) | 1;
}

static zero_status refuse_piece(const zi_checkpoint_reader *reader, const zi_checkpoint_tensor *t,
                                zero_role role, zi_checkpoint_piece piece)
{
    const zi_checkpoint_place *place = &t->role[role];
    const uint64_t width = zero_dtype_bytes(place->dtype);
    ZI_FAIL(ZERO_ERR_CORRUPT,
            "%s, tensor \"%.60s\": elements [%" PRIu64 ", %" PRIu64 ") at byte %" PRIu64
            " differ from their sum; in %.60s",
            reader->map->files[place->file].name, t->name, piece.first, piece.first + piece.count,
            place->at + piece.first * width, reader->folder);
}

/* The sums that a read compares with, up to `end`. */
typedef struct range_sums {
    uint64_t end;
    sum_window window;
} range_sums;

/* Compare or count elements [first, first + count) of one piece. */
static zero_status add_piece(zi_checkpoint_reader *reader, const zi_checkpoint_range *range,
                             zi_checkpoint_piece piece, range_sums *sums,
                             const unsigned char *values)
{
    const zi_checkpoint_tensor *t = &reader->map->tensors[range->tensor];
    const zi_checkpoint_place *place = &t->role[range->role];
    const uint64_t first = zi_max_u64(range->first, piece.first);
    const uint64_t count =
        zi_min_u64(range->first + range->count, piece.first + piece.count) - first;
    const bool whole = count == piece.count;
    uint64_t expected = 0;
    if (!whole && !range->counted) {
        return ZERO_OK;
    }
    if (first == piece.first) {
        ZI_TRY(checkpoint_reader_sum_of(reader, &sums->window, place->first_piece + piece.index,
                                        sums->end, &expected));
    }
    const uint64_t found = zi_piece_sum(values, first, count, zero_dtype_bytes(place->dtype));
    if (whole && found != expected) {
        return refuse_piece(reader, t, range->role, piece);
    }
    const uint64_t weight = weight_of(place->first_piece + piece.index);
    (void)pthread_mutex_lock(&reader->mutex);
    reader->counts.balance += (found - expected) * weight;
    reader->counts.coverage += (count - (first == piece.first ? piece.count : 0)) * weight;
    (void)pthread_mutex_unlock(&reader->mutex);
    return ZERO_OK;
}

static zero_status add_pieces(zi_checkpoint_reader *reader, const zi_checkpoint_range *range,
                              const unsigned char *values)
{
    const zi_checkpoint_tensor *t = &reader->map->tensors[range->tensor];
    const uint64_t width = zero_dtype_bytes(t->role[range->role].dtype);
    const uint64_t end = range->first + range->count;
    range_sums sums = {.end = t->role[range->role].first_piece +
                              zi_checkpoint_piece_at(t, end - 1).index + 1};
    for (uint64_t at = range->first; at < end;) {
        const zi_checkpoint_piece piece = zi_checkpoint_piece_at(t, at);
        ZI_TRY(add_piece(reader, range, piece, &sums, values + (at - range->first) * width));
        at = piece.first + piece.count;
    }
    return ZERO_OK;
}

/* ---- ranges ---- */

static void assert_range(const zi_checkpoint_reader *reader, const zi_checkpoint_range *range)
{
    zi_assert_cmp(range->tensor, <, reader->map->tensor_count);
    zi_assert_cmp(range->role, <, ZI_SHARD_ROLES);
    const zi_checkpoint_tensor *t = &reader->map->tensors[range->tensor];
    zi_assert_cmp(zero_dtype_bytes(t->role[range->role].dtype), >, 0);
    zi_assert_cmp(range->first, <=, t->count);
    zi_assert_cmp(range->count, <=, t->count - range->first);
    if (range->counted && reader->has_manifest) {
        const uint64_t end = range->first + range->count;
        zi_assert_cmp(range->first % GRANULE_COUNT, ==, 0);
        zi_assert(end % GRANULE_COUNT == 0 || end == t->count);
    }
}

/* Bytes from the beginning of its file to the range's first element. */
static uint64_t file_offset(const zi_checkpoint_reader *reader, const zi_checkpoint_range *range)
{
    const zi_checkpoint_place *place = &reader->map->tensors[range->tensor].role[range->role];
    return place->at + range->first * zero_dtype_bytes(place->dtype);
}

uint64_t zi_checkpoint_page_offset(const zi_checkpoint_reader *reader,
                                   const zi_checkpoint_range *range)
{
    return file_offset(reader, range) % ZI_CHECKPOINT_ALIGN;
}

uint64_t zi_checkpoint_reader_align(const zi_checkpoint_reader *reader)
{
    return reader->align;
}

zero_status zi_checkpoint_read(zi_checkpoint_reader *reader, const zi_checkpoint_range *range,
                               void *values)
{
    assert_range(reader, range);
    const zi_checkpoint_place *place = &reader->map->tensors[range->tensor].role[range->role];
    const uint64_t width = zero_dtype_bytes(place->dtype);
    open_file *file = NULL;
    if (range->count > ZI_CHECKPOINT_READ_BYTES_MAX / width) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%" PRIu64 " elements are more than the 8 MiB of one read", range->count);
    }
    if (range->count == 0) {
        return ZERO_OK;
    }
    ZI_TRY(take_file(reader, place->file, range->direct, &file));
    const zero_status status = read_bytes(reader, file, file_offset(reader, range), values,
                                          range->count * width, range->direct);
    give_file(reader, file);
    ZI_TRY(status);
    return reader->has_manifest ? add_pieces(reader, range, values) : ZERO_OK;
}

bool zi_checkpoint_share(zi_checkpoint_reader *reader, const zi_checkpoint_range *range, int file,
                         uint64_t at)
{
    assert_range(reader, range);
    const zi_checkpoint_place *place = &reader->map->tensors[range->tensor].role[range->role];
    open_file *from = NULL;
    if (take_file(reader, place->file, false, &from) != ZERO_OK) {
        errno = ENOENT;
        return false;
    }
    const bool shared =
        zi_checkpoint_clone(from->opened.descriptor, file_offset(reader, range), file, at,
                            range->count * zero_dtype_bytes(place->dtype));
    const int code = errno;
    give_file(reader, from);
    errno = code;
    return shared;
}

zero_status zi_checkpoint_count(zi_checkpoint_reader *reader, const zi_checkpoint_range *range,
                                const void *values)
{
    assert_range(reader, range);
    zi_assert(reader->has_manifest && range->counted);
    return add_pieces(reader, range, values);
}

/* Pieces from the one that has `element` on, as many as fit into the buffer. */
static uint64_t run_count(const zi_checkpoint_tensor *t, uint64_t first, uint64_t end,
                          uint64_t width)
{
    uint64_t at = first;
    while (at < end) {
        const zi_checkpoint_piece piece = zi_checkpoint_piece_at(t, at);
        if ((piece.first + piece.count - first) * width > CHECK_BYTES) {
            break;
        }
        at = piece.first + piece.count;
    }
    return at - first;
}

zero_status zi_checkpoint_check_range(zi_checkpoint_reader *reader,
                                      const zi_checkpoint_range *range,
                                      void (*progress)(void *user, uint64_t bytes), void *user)
{
    assert_range(reader, range);
    const zi_checkpoint_tensor *t = &reader->map->tensors[range->tensor];
    const uint64_t width = zero_dtype_bytes(t->role[range->role].dtype);
    const uint64_t end = range->first + range->count;
    if (!reader->has_manifest) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s has no sums to compare with",
                reader->map->files[t->role[range->role].file].name);
    }
    if (reader->check_buffer == NULL) {
        ZI_TRY(zi_pages_alloc(CHECK_BYTES + ZI_CHECKPOINT_ALIGN, &reader->check_buffer));
    }
    zi_checkpoint_range run = {
        .tensor = range->tensor, .role = range->role, .direct = range->direct};
    for (uint64_t at = range->first; at < end; at = run.first + run.count) {
        run.first = zi_checkpoint_piece_at(t, at).first;
        run.count = run_count(t, run.first, end, width);
        ZI_TRY(zi_checkpoint_read(reader, &run,
                                  (unsigned char *)reader->check_buffer +
                                      zi_checkpoint_page_offset(reader, &run)));
        if (progress != NULL) {
            progress(user, run.count * width);
        }
    }
    return ZERO_OK;
}

zero_status zi_checkpoint_tensor_sum(zi_checkpoint_reader *reader, uint32_t tensor, zero_role role,
                                     uint64_t *sum)
{
    const zi_checkpoint_tensor *t = &reader->map->tensors[tensor];
    const uint64_t first = t->role[role].first_piece;
    const uint64_t end = first + zi_checkpoint_piece_count(t);
    sum_window window = {.count = 0};
    *sum = 0;
    for (uint64_t piece = first; piece < end; piece++) {
        uint64_t one = 0;
        ZI_TRY(checkpoint_reader_sum_of(reader, &window, piece, end, &one));
        *sum += one;
    }
    return ZERO_OK;
}

/* ---- whole files ---- */

static zero_status checkpoint_reader_check_hash(zi_checkpoint_reader *reader, const open_file *file,
                                                uint64_t bytes, uint64_t expected, const char *what)
{
    uint64_t found = 0;
    ZI_TRY(zi_checkpoint_hash_file(&file->opened, bytes, &found));
    reader->counts.read_bytes += bytes;
    if (found != expected) {
        ZI_FAIL(ZERO_ERR_CORRUPT,
                "%s: the %s differs from what the manifest says, in bytes [0, %" PRIu64 ")",
                file->path, what, bytes);
    }
    return ZERO_OK;
}

zero_status zi_checkpoint_reader_check_files(zi_checkpoint_reader *reader)
{
    if (!reader->has_manifest) {
        return ZERO_OK;
    }
    for (uint32_t i = 0; i < reader->map->file_count; i++) {
        open_file *file = NULL;
        ZI_TRY(file_of(reader, i, &file)); /* nobody else reads */
        ZI_TRY(checkpoint_reader_check_hash(reader, file, reader->map->files[i].data_at,
                                            reader->manifest.header_hash[i], "header"));
    }
    ZI_TRY(open_sums(reader));
    return checkpoint_reader_check_hash(reader, &reader->sums, reader->map->piece_count * 8,
                                        reader->manifest.sums_hash, "list of sums");
}
