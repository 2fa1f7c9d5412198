/* Owns who takes which unit. Invariant: the GPU has the units below `low`, the CPU those from
 * `high` on, and those from `done` on it is done with. */
#include "stage1/share.h"

#include <pthread.h>

#include "core/error.h"
#include "core/memory.h"

struct zi_share {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t count;
    uint32_t low;
    uint32_t high;
    uint32_t done;
    uint64_t opened; /* steps */
    uint64_t closed;
    zero_status status; /* of the CPU's side, with `error` */
    zero_error error;
};

zero_status zi_share_create(uint32_t count, zi_share **out)
{
    zi_share *share = NULL;
    *out = NULL;
    ZI_TRY(zi_calloc(1, sizeof *share, (void **)&share));
    share->count = count;
    (void)pthread_mutex_init(&share->mutex, NULL);
    (void)pthread_cond_init(&share->changed, NULL);
    *out = share;
    return ZERO_OK;
}

void zi_share_destroy(zi_share *share)
{
    if (share != NULL) {
        (void)pthread_cond_destroy(&share->changed);
        (void)pthread_mutex_destroy(&share->mutex);
        zi_free(share);
    }
}

static void share_enter(zi_share *share)
{
    (void)pthread_mutex_lock(&share->mutex);
}

static void share_leave(zi_share *share)
{
    (void)pthread_cond_broadcast(&share->changed);
    (void)pthread_mutex_unlock(&share->mutex);
}

void zi_share_open(zi_share *share, uint64_t step)
{
    share_enter(share);
    share->opened = step;
    share->low = 0;
    share->high = share->count;
    share->done = share->count;
    share_leave(share);
}

bool zi_share_claim(zi_share *share, uint32_t index)
{
    share_enter(share);
    const bool mine = index < share->high;
    share->low = mine ? index + 1 : share->low;
    share_leave(share);
    return mine;
}

zero_status zi_share_await(zi_share *share, uint32_t index)
{
    share_enter(share);
    while (index < share->done && share->status == ZERO_OK) {
        (void)pthread_cond_wait(&share->changed, &share->mutex);
    }
    const zero_status status = index < share->done ? share->status : ZERO_OK;
    const zero_error error = share->error;
    share_leave(share);
    return status == ZERO_OK ? ZERO_OK : zi_error_adopt(&error);
}

void zi_share_close(zi_share *share, uint64_t step)
{
    share_enter(share);
    share->closed = step;
    share_leave(share);
}

bool zi_share_take(zi_share *share, uint64_t step, uint32_t *index)
{
    share_enter(share);
    while (share->opened < step && share->closed < step) {
        (void)pthread_cond_wait(&share->changed, &share->mutex);
    }
    const bool is_left = share->opened == step && share->closed < step && share->low < share->high;
    if (is_left) {
        *index = --share->high;
    }
    share_leave(share);
    return is_left;
}

void zi_share_done(zi_share *share, zero_status status)
{
    share_enter(share);
    if (status == ZERO_OK) {
        share->done = share->high;
    } else {
        share->status = status;
        share->error = *zero_last_error();
    }
    share_leave(share);
}
