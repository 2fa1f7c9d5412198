/* Owns failures that are shared. Invariant: what is complete is never written again. */
#include "core/failure.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Source files that failures have named: records point to these, also after what told of them is
 * unmapped. The library has fewer than 400 files, and few of them fail in one process. */
#define FILES_MAX 64
static pthread_mutex_t files_mutex = PTHREAD_MUTEX_INITIALIZER;
static char files[FILES_MAX][ZI_FAILURE_FILE_BYTES];

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

bool zi_failure_set(zi_failure *failure, uint32_t rank, const zero_error *error)
{
    unsigned none = 0;
    if (!atomic_compare_exchange_strong(&failure->state, &none, 1)) {
        return false;
    }
    failure->rank = rank;
    failure->status = (int32_t)error->status;
    failure->native = error->native;
    failure->line = error->line;
    failure->of_other = error->of_other;
    (void)snprintf(failure->file, sizeof failure->file, "%s",
                   error->file != NULL ? error->file : "");
    (void)snprintf(failure->message, sizeof failure->message, "%s", error->message);
    atomic_store_explicit(&failure->state, 2, memory_order_release);
    return true;
}

bool zi_failure_is_set(const zi_failure *failure)
{
    return atomic_load_explicit(&failure->state, memory_order_acquire) == 2;
}

zero_error zi_failure_error(const zi_failure *failure, uint32_t own)
{
    zero_error error = {.status = (zero_status)failure->status,
                        .native = failure->native,
                        .line = failure->line,
                        .file = keep_file(failure->file),
                        .of_other = failure->of_other};
    if (failure->rank == own || failure->rank == ZI_FAILURE_NO_RANK) {
        (void)snprintf(error.message, sizeof error.message, "%s", failure->message);
    } else {
        (void)snprintf(error.message, sizeof error.message, "rank %" PRIu32 ": %.230s",
                       failure->rank, failure->message);
    }
    return error;
}
