/* Owns the removal of older checkpoints: a thread does it, since a file system takes its time for
 * large files and training has no need to wait. At most one runs, and none while a new checkpoint's
 * folder is made. */
#include <pthread.h>
#include <string.h>

#include "checkpoint/checkpoint_folder.h"
#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/thread.h"
#include "engine/save.h"

typedef struct engine_prune {
    pthread_t thread;
    uint32_t keep;
    char directory[];
} engine_prune;

static void *prune(void *argument)
{
    const engine_prune *work = argument;
    if (zi_checkpoint_prune(work->directory, work->keep, NULL) != ZERO_OK) {
        zi_log(ZERO_LOG_WARN, "older checkpoints are not removed: %.300s",
               zero_last_error()->message);
    }
    return NULL;
}

void zi_save_prune(zero_engine *engine, const char *directory, uint32_t keep)
{
    const size_t bytes = strlen(directory) + 1;
    engine_prune *work = NULL;
    if (zi_calloc(1, sizeof *work + bytes, (void **)&work) != ZERO_OK) {
        return; /* the next save tries again */
    }
    memcpy(work->directory, directory, bytes);
    work->keep = keep;
    if (zi_thread_start(&work->thread, prune, work) != ZERO_OK) {
        zi_free(work);
        return;
    }
    engine->prune = work;
}

void zi_save_await_prune(zero_engine *engine)
{
    if (engine->prune != NULL) {
        (void)pthread_join(engine->prune->thread, NULL);
        zi_free(engine->prune);
        engine->prune = NULL;
    }
}
