/* Owns failures that ranks share. Invariant: a failure in a cell that is complete is never written
 * again. */
#include "core/failure.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

/* Source files that failures have named: records point to these, also after the memory that told of
 * them is unmapped. The library has fewer than 400 files, and few of them fail in one process. */
#define FILES_MAX 64
static pthread_mutex_t files_mutex = PTHREAD_MUTEX_INITIALIZER;
static char files[FILES_MAX][ZI_FAILURE_FILE_BYTES];

enum { CELL_EMPTY, CELL_WRITING, CELL_COMPLETE };

static const char *keep_file(const char *name)
{
    const char *kept = "";
    (void)pthread_mutex_lock(&files_mutex);
    for (int i = 0; i < FILES_MAX && kept[0] == '\0' && name[0] != '\0'; i++) {
        if (files[i][0] == '\0') {
            (void)snprintf(files[i], sizeof files[i], "%s", name);
        }
        kept = strcmp(files[i], name) == 0 ? files[i] : kept;
    }
    (void)pthread_mutex_unlock(&files_mutex);
    return kept;
}

/* ---- from errors, and back ---- */

static zi_failure failure_from(const zero_error *error, const char *message)
{
    zi_failure failure = {.status = (int32_t)error->status,
                          .others = (int32_t)error->status,
                          .native = error->native,
                          .line = error->line,
                          .rank = ZI_FAILURE_NO_RANK,
                          .of_other = error->of_other};
    const char *text = message[0] != '\0' ? message : zero_status_text(error->status);
    (void)snprintf(failure.file, sizeof failure.file, "%s", error->file != NULL ? error->file : "");
    (void)snprintf(failure.message, sizeof failure.message, "%.*s", (int)sizeof failure.message - 1,
                   text);
    return failure;
}

zi_failure zi_failure_of_abort(uint32_t rank, const zero_error *error)
{
    const char *message = error->message;
    uint32_t named = 0;
    int chars = 0;
    if (error->of_other != 0 && sscanf(message, "rank %" SCNu32 ": %n", &named, &chars) == 1 &&
        chars != 0) {
        rank = named;
        message += chars;
    }
    zi_failure failure = failure_from(error, message);
    failure.others = (int32_t)zi_abort_status(error->status);
    failure.rank = rank;
    return failure;
}

zi_failure zi_failure_of_all(const zero_error *error)
{
    return failure_from(error, error->message);
}

zero_error zi_failure_error(const zi_failure *failure, uint32_t own)
{
    const bool others = failure->rank != own && failure->rank != ZI_FAILURE_NO_RANK;
    zero_error error = {.status = (zero_status)(others ? failure->others : failure->status),
                        .native = failure->native,
                        .line = failure->line,
                        .file = keep_file(failure->file),
                        .of_other = others ? 2 : failure->of_other};
    if (others) {
        (void)snprintf(error.message, sizeof error.message, "rank %" PRIu32 ": %s", failure->rank,
                       failure->message);
    } else {
        (void)snprintf(error.message, sizeof error.message, "%s", failure->message);
    }
    return error;
}

void zi_failure_received(zi_failure *failure)
{
    failure->file[sizeof failure->file - 1] = '\0';
    failure->message[sizeof failure->message - 1] = '\0';
    failure->status = failure->status != ZERO_OK ? failure->status : ZERO_ERR_COMM;
    failure->others = failure->others != ZERO_OK ? failure->others : ZERO_ERR_COMM;
}

/* ---- in exchanges ---- */

zi_failure zi_failure_tell(zero_status status)
{
    return status != ZERO_OK ? zi_failure_of_all(zero_last_error()) : (zi_failure){0};
}

zero_status zi_failure_hear(const zi_failure *told, const char *world, uint32_t rank)
{
    zero_error error = zi_failure_error(told, told->rank);
    (void)snprintf(error.message, sizeof error.message, "%srank %" PRIu32 ": %.230s", world, rank,
                   told->message);
    error.of_other = 1;
    return zi_error_adopt(&error);
}

/* A rank has POISONED and most errors that are COMM because of something else, and an error of
 * another because it was told. */
static bool found_itself(const zi_failure *told)
{
    return told->status != ZERO_OK && told->status != ZERO_ERR_COMM &&
           told->status != ZERO_ERR_POISONED && told->of_other == 0;
}

uint32_t zi_failure_first_cause(const zi_failure *told, size_t stride, uint32_t count)
{
    uint32_t failed = count;
    for (uint32_t rank = 0; rank < count; rank++) {
        const zi_failure *at = (const void *)((const unsigned char *)told + (size_t)rank * stride);
        if (found_itself(at)) {
            return rank;
        }
        failed = at->status != ZERO_OK && failed == count ? rank : failed;
    }
    return failed;
}

/* ---- in shared memory ---- */

static zi_failure_kind kind_of(const zi_failure *failure)
{
    if (failure->of_other == 2 || failure->status == ZERO_ERR_POISONED) {
        return ZI_FAILURE_FOLLOWS;
    }
    return failure->status == ZERO_ERR_COMM || failure->status == ZERO_ERR_TIMEOUT
               ? ZI_FAILURE_MISSING
               : ZI_FAILURE_CAUSE;
}

bool zi_failure_set(zi_failure_cell *cell, const zi_failure *failure)
{
    const zi_failure_kind kind = kind_of(failure);
    unsigned empty = CELL_EMPTY;
    for (int nearer = 0; nearer < (int)kind; nearer++) {
        if (atomic_load(&cell->states[nearer]) != CELL_EMPTY) {
            return false;
        }
    }
    if (!atomic_compare_exchange_strong(&cell->states[kind], &empty, CELL_WRITING)) {
        return false;
    }
    cell->failures[kind] = *failure;
    atomic_store_explicit(&cell->states[kind], CELL_COMPLETE, memory_order_release);
    return true;
}

bool zi_failure_get(const zi_failure_cell *cell, zi_failure *failure)
{
    int kind = 0;
    while (kind < ZI_FAILURE_KINDS &&
           atomic_load_explicit(&cell->states[kind], memory_order_acquire) != CELL_COMPLETE) {
        kind++;
    }
    if (kind < ZI_FAILURE_KINDS && failure != NULL) {
        *failure = cell->failures[kind];
    }
    return kind < ZI_FAILURE_KINDS;
}
