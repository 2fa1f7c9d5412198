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
    bool weights; /* of this kind */
    char directory[];
} engine_prune;

static void *prune(void *argument)
{
    const engine_prune *work = argument;
    if (zi_checkpoint_prune(work->directory, work->weights, work->keep, NULL) != ZERO_OK) {
        zi_log(ZERO_LOG_WARN, "older checkpoints are not removed: %.300s",
               zero_last_error()->message);
    }
    return NULL;
}

void zi_save_prune(const engine_save *save)
{
    const size_t bytes = strlen(save->directory) + 1;
    engine_prune *work = NULL;
    if (zi_calloc(1, sizeof *work + bytes, (void **)&work) != ZERO_OK) {
        return; /* the next save tries again */
    }
    memcpy(work->directory, save->directory, bytes);
    work->keep = save->keep;
    work->weights = save->weights;
    if (zi_thread_start(&work->thread, prune, work) != ZERO_OK) {
        zi_free(work);
        return;
    }
    save->engine->prune = work;
}

void zi_save_await_prune(zero_engine *engine)
{
    if (engine->prune != NULL) {
        (void)pthread_join(engine->prune->thread, NULL);
        zi_free(engine->prune);
        engine->prune = NULL;
    }
}
