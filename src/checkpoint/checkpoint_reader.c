/* Owns the files that elements are read from. They go from the file to the caller's memory: from
 * the page cache, into which the system reads ahead, or from the disk where the caller has several
 * reads under way. Invariant: a file is open while a read of it is under way. */
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

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_weights.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/sizes.h"

#define OPEN_FILES 16
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

_Static_assert(ZI_SOURCE_READS_MAX < OPEN_FILES, "a file can always be closed for another");

typedef struct file_reader {
    zi_source source;
    char path[ZI_CHECKPOINT_PATH_BYTES]; /* that was opened */
    zi_manifest manifest;                /* of the source, if it has one */
    zi_checkpoint_weights weights;       /* else */
    open_file files[OPEN_FILES];         /* with the source's mutex, as all below */
    uint32_t next_file;                  /* to close, where all are open */
    bool said;                           /* that the file system refuses direct access */
    open_file sums;
} file_reader;

/* The source is its first member. */
static file_reader *reader_of(zi_source *source)
{
    return (file_reader *)source;
}

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

static zero_status open_manifest(file_reader *reader, const char *folder)
{
    struct stat status;
    char path[ZI_CHECKPOINT_PATH_BYTES];
    reader->source.manifest = &reader->manifest;
    ZI_TRY(zi_manifest_read(&reader->manifest, folder));
    reader->source.map = &reader->manifest.map;
    if (is_in(folder, ZI_MANIFEST_NAME, path) && stat(path, &status) == 0) {
        reader->source.counts.read_bytes += (uint64_t)status.st_size;
    }
    return ZERO_OK;
}

static zero_status open_weights(file_reader *reader, const char *path)
{
    ZI_TRY(zi_checkpoint_weights_read(&reader->weights, path));
    reader->source.map = &reader->weights.map;
    reader->source.counts.read_bytes += reader->weights.read_bytes;
    return ZERO_OK;
}

static zero_status open_any(file_reader *reader, const char *path)
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
static uint64_t direct_align(const file_reader *reader)
{
    char own[ZI_CHECKPOINT_PATH_BYTES];
    if (reader->source.manifest == NULL) {
        return zi_checkpoint_direct_align(reader->weights.paths[0]);
    }
    return is_in(reader->path, ZI_MANIFEST_NAME, own) ? zi_checkpoint_direct_align(own)
                                                      : ZI_CHECKPOINT_ALIGN;
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
static zero_status open_own(const file_reader *reader, const char *name, open_file *file)
{
    ZI_TRY(zi_checkpoint_path(file->path, reader->path, name));
    const zero_status status = zi_checkpoint_open(&file->opened, file->path);
    if (status != ZERO_OK) {
        zi_regular_file_close(&file->opened);
    }
    if (status == ZERO_ERR_IO && zero_last_error()->native == ENOENT) {
        ZI_FAIL(ZERO_ERR_CORRUPT, "%s is not there; load another checkpoint", file->path);
    }
    return status;
}

static zero_status open_tensors(file_reader *reader, uint32_t index, open_file *file)
{
    zero_status status = ZERO_OK;
    if (reader->source.manifest != NULL) {
        ZI_TRY(open_own(reader, reader->source.map->files[index].name, file));
    } else {
        (void)snprintf(file->path, sizeof file->path, "%s", reader->weights.paths[index]);
        status = zi_regular_file_open(&file->opened, file->path);
    }
    file->file = index;
    file->next = 0;
    file->direct = NOT_TRIED;
    status = status == ZERO_OK
                 ? checkpoint_reader_check_length(file, reader->source.map->files[index].bytes)
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
static zero_status file_of(file_reader *reader, uint32_t index, open_file **file)
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
static void open_direct(file_reader *reader, open_file *file)
{
    file->direct = zi_checkpoint_open_direct(&file->opened);
    if (file->direct < 0 && !reader->said) {
        zi_log(ZERO_LOG_WARN, "checkpoint: read through the page cache, without O_DIRECT (%s): %s",
               strerror(errno), file->path);
        reader->said = true;
    }
}

/* The file, which stays open until it is given back. */
static zero_status take_file(file_reader *reader, uint32_t index, bool direct, open_file **file)
{
    (void)pthread_mutex_lock(&reader->source.mutex);
    const zero_status status = file_of(reader, index, file);
    if (status == ZERO_OK && direct && (*file)->direct == NOT_TRIED) {
        open_direct(reader, *file);
    }
    (*file)->users += status == ZERO_OK;
    (void)pthread_mutex_unlock(&reader->source.mutex);
    return status;
}

static void give_file(file_reader *reader, open_file *file)
{
    (void)pthread_mutex_lock(&reader->source.mutex);
    file->users--;
    (void)pthread_mutex_unlock(&reader->source.mutex);
}

/* True if a read of the page cache goes on where the one before ended. */
static bool goes_on(file_reader *reader, open_file *file, uint64_t at, uint64_t bytes)
{
    (void)pthread_mutex_lock(&reader->source.mutex);
    const bool neighbours = at == file->next;
    file->next = at + bytes;
    (void)pthread_mutex_unlock(&reader->source.mutex);
    return neighbours;
}

static void will_need(const open_file *file, uint64_t at, uint64_t bytes)
{
    if (bytes != 0) {
        (void)posix_fadvise(file->opened.descriptor, (off_t)at, (off_t)bytes, POSIX_FADV_WILLNEED);
    }
}

/* Through the page cache. */
static zero_status read_cached(file_reader *reader, open_file *file, uint64_t at, void *target,
                               uint64_t bytes)
{
    size_t count = (size_t)bytes;
    if (bytes == 0) {
        return ZERO_OK;
    }
    ZI_TRY(zi_regular_file_read(&file->opened, at, target, &count));
    (void)pthread_mutex_lock(&reader->source.mutex);
    reader->source.counts.read_bytes += count;
    (void)pthread_mutex_unlock(&reader->source.mutex);
    if (count != bytes) {
        ZI_FAIL(ZERO_ERR_CORRUPT, "%s ends at byte %" PRIu64 "; it was truncated while it was read",
                file->path, at + count);
    }
    return ZERO_OK;
}

/* Whole pages past the page cache. The first and the last page may have neighbours that are read
 * too, so they go through it: the disk is asked for them once, while it is for the others. */
static zero_status read_past(file_reader *reader, open_file *file, uint64_t at,
                             unsigned char *target, uint64_t bytes)
{
    const uint64_t lead = (ZI_CHECKPOINT_ALIGN - at % ZI_CHECKPOINT_ALIGN) % ZI_CHECKPOINT_ALIGN;
    const uint64_t pages = (bytes - lead) / ZI_CHECKPOINT_ALIGN * ZI_CHECKPOINT_ALIGN;
    will_need(file, at, lead);
    will_need(file, at + lead + pages, bytes - lead - pages);
    const uint64_t done = zi_checkpoint_read_direct(file->direct, at + lead, target + lead, pages);
    (void)pthread_mutex_lock(&reader->source.mutex);
    reader->source.counts.read_bytes += done;
    (void)pthread_mutex_unlock(&reader->source.mutex);
    ZI_TRY(read_cached(reader, file, at, target, lead));
    return read_cached(reader, file, at + lead + done, target + lead + done, bytes - lead - done);
}

static zero_status read_bytes(file_reader *reader, open_file *file, uint64_t at, void *target,
                              uint64_t bytes, bool direct)
{
    if (zi_fault_hit(ZI_FAULT_IO)) {
        ZI_FAIL_NATIVE(ZERO_ERR_IO, EIO, "reading %s: %s", file->path, strerror(EIO));
    }
    if (direct && file->direct >= 0 && bytes >= DIRECT_BYTES_MIN &&
        at % reader->source.align == (uintptr_t)target % reader->source.align) {
        return read_past(reader, file, at, target, bytes);
    }
    if (!goes_on(reader, file, at, bytes)) {
        will_need(file, at, bytes); /* the read-ahead would have to find out how much is wanted */
    }
    return read_cached(reader, file, at, target, bytes);
}

/* ---- sums ---- */

/* With the mutex. */
static zero_status open_sums(file_reader *reader)
{
    if (reader->sums.file != NO_FILE) {
        return ZERO_OK;
    }
    ZI_TRY(open_own(reader, ZI_SUMS_NAME, &reader->sums));
    reader->sums.file = 0;
    const zero_status status = checkpoint_reader_check_length(
        &reader->sums, reader->source.map->piece_count * sizeof(uint64_t));
    if (status != ZERO_OK) {
        close_file(&reader->sums);
    }
    return status;
}

static zero_status files_read_sums(zi_source *source, uint64_t first, uint64_t count,
                                   uint64_t *sums)
{
    file_reader *reader = reader_of(source);
    (void)pthread_mutex_lock(&source->mutex);
    const zero_status status = open_sums(reader);
    (void)pthread_mutex_unlock(&source->mutex);
    ZI_TRY(status);
    ZI_TRY(
        read_bytes(reader, &reader->sums, first * sizeof *sums, sums, count * sizeof *sums, false));
    for (uint64_t i = 0; i < count; i++) {
        sums[i] = le64toh(sums[i]);
    }
    return ZERO_OK;
}

/* ---- ranges ---- */

/* Bytes from the beginning of its file to the range's first element. */
static uint64_t file_offset(const zi_source *source, const zi_source_range *range)
{
    const zi_checkpoint_tensor *tensor = &source->map->tensors[range->tensor];
    return tensor->role[range->role].at + zi_saved_bytes(tensor, range->role, range->first);
}

static uint64_t file_bytes(const zi_source *source, const zi_source_range *range)
{
    return zi_saved_bytes(&source->map->tensors[range->tensor], range->role, range->count);
}

static uint64_t files_page_offset(const zi_source *source, const zi_source_range *range)
{
    return file_offset(source, range) % ZI_CHECKPOINT_ALIGN;
}

static zero_status files_read(zi_source *source, const zi_source_range *range, void *values)
{
    file_reader *reader = reader_of(source);
    const zi_checkpoint_place *place = &source->map->tensors[range->tensor].role[range->role];
    open_file *file = NULL;
    ZI_TRY(take_file(reader, place->file, range->direct, &file));
    const zero_status status = read_bytes(reader, file, file_offset(source, range), values,
                                          file_bytes(source, range), range->direct);
    give_file(reader, file);
    return status;
}

static bool files_share(zi_source *source, const zi_source_range *range, int file, uint64_t at)
{
    file_reader *reader = reader_of(source);
    const zi_checkpoint_place *place = &source->map->tensors[range->tensor].role[range->role];
    open_file *from = NULL;
    if (take_file(reader, place->file, false, &from) != ZERO_OK) {
        errno = ENOENT;
        return false;
    }
    const bool shared = zi_checkpoint_clone(from->opened.descriptor, file_offset(source, range),
                                            file, at, file_bytes(source, range));
    const int code = errno;
    give_file(reader, from);
    errno = code;
    return shared;
}

/* ---- whole files ---- */

static zero_status checkpoint_reader_check_hash(file_reader *reader, const open_file *file,
                                                uint64_t bytes, uint64_t expected, const char *what)
{
    uint64_t found = 0;
    ZI_TRY(zi_checkpoint_hash_file(&file->opened, bytes, &found));
    reader->source.counts.read_bytes += bytes;
    if (found != expected) {
        ZI_FAIL(ZERO_ERR_CORRUPT,
                "%s: the %s differs from what the manifest says, in bytes [0, %" PRIu64 ")",
                file->path, what, bytes);
    }
    return ZERO_OK;
}

static zero_status files_check(zi_source *source)
{
    file_reader *reader = reader_of(source);
    if (source->manifest == NULL) {
        return ZERO_OK;
    }
    for (uint32_t i = 0; i < reader->source.map->file_count; i++) {
        open_file *file = NULL;
        ZI_TRY(file_of(reader, i, &file)); /* nobody else reads */
        ZI_TRY(checkpoint_reader_check_hash(reader, file, reader->source.map->files[i].data_at,
                                            reader->manifest.header_hash[i], "header"));
    }
    ZI_TRY(open_sums(reader));
    return checkpoint_reader_check_hash(reader, &reader->sums, reader->source.map->piece_count * 8,
                                        reader->manifest.sums_hash, "list of sums");
}

/* ---- the source ---- */

static void files_close(zi_source *source)
{
    file_reader *reader = reader_of(source);
    for (int i = 0; i < OPEN_FILES; i++) {
        close_file(&reader->files[i]);
    }
    close_file(&reader->sums);
    if (source->manifest != NULL) {
        zi_manifest_free(&reader->manifest);
    }
    zi_checkpoint_weights_free(&reader->weights);
    zi_free(reader);
}

static const zi_source_ops files_ops = {
    .read = files_read,
    .read_sums = files_read_sums,
    .check_files = files_check,
    .page_offset = files_page_offset,
    .share = files_share,
    .close = files_close,
};

zero_status zi_checkpoint_reader_open(const char *path, zi_source **out)
{
    file_reader *reader = NULL;
    *out = NULL;
    ZI_TRY(zi_calloc(1, sizeof *reader, (void **)&reader));
    reader->source.ops = &files_ops;
    reader->source.name = reader->path;
    (void)snprintf(reader->path, sizeof reader->path, "%s", path);
    reader->sums.file = NO_FILE;
    reader->sums.direct = NOT_TRIED;
    for (int i = 0; i < OPEN_FILES; i++) {
        reader->files[i].file = NO_FILE;
    }
    zero_status status = open_any(reader, path);
    if (status != ZERO_OK) {
        files_close(&reader->source);
        return status;
    }
    reader->source.align = direct_align(reader);
    status = zi_source_open(&reader->source);
    if (status != ZERO_OK) {
        zi_source_close(&reader->source);
        return status;
    }
    *out = &reader->source;
    return ZERO_OK;
}
