/* Owns threads that share loops. `mutex` guards all fields below it; a loop is a generation number,
 * a worker takes part once per generation and the caller waits until `pending` is 0. `callers` is
 * held by the one caller whose loop runs. */
#include "core/thread.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/memory.h"

typedef struct pool_worker {
    zi_pool *pool;
    pthread_t thread;
    uint32_t share;
} pool_worker;

struct zi_pool {
    uint32_t thread_count;
    uint32_t started;
    pool_worker *workers;
    pthread_mutex_t callers;
    pthread_mutex_t mutex;
    pthread_cond_t begin; /* a new generation, or stop */
    pthread_cond_t done;  /* pending fell to 0 */
    uint64_t generation;
    uint32_t pending;
    bool stop;
    zi_pool_fn fn;
    void *argument;
};

zero_status zi_thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    const int code =
        zi_fault_hit(ZI_FAULT_THREAD) ? EAGAIN : pthread_create(thread, NULL, run, argument);
    if (code != 0) {
        ZI_FAIL_NATIVE(ZERO_ERR_DEVICE, code,
                       "cannot start a thread: %s; raise the limit on processes (ulimit -u)",
                       strerror(code));
    }
    return ZERO_OK;
}

static void *worker_run(void *argument)
{
    pool_worker *worker = argument;
    zi_pool *pool = worker->pool;
    uint64_t seen = 0;
    (void)pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (!pool->stop && pool->generation == seen) {
            (void)pthread_cond_wait(&pool->begin, &pool->mutex);
        }
        if (pool->stop) {
            break;
        }
        seen = pool->generation;
        const zi_pool_fn fn = pool->fn;
        void *loop_argument = pool->argument;
        (void)pthread_mutex_unlock(&pool->mutex);
        fn(loop_argument, worker->share, pool->thread_count);
        (void)pthread_mutex_lock(&pool->mutex);
        if (--pool->pending == 0) {
            (void)pthread_cond_signal(&pool->done);
        }
    }
    (void)pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

zero_status zi_pool_create(uint32_t thread_count, zi_pool **out)
{
    *out = NULL;
    zi_assert_cmp(thread_count, >=, 1);
    zi_pool *pool = NULL;
    ZI_TRY(zi_calloc(1, sizeof *pool, (void **)&pool));
    pool->thread_count = thread_count;
    (void)pthread_mutex_init(&pool->callers, NULL);
    (void)pthread_mutex_init(&pool->mutex, NULL);
    (void)pthread_cond_init(&pool->begin, NULL);
    (void)pthread_cond_init(&pool->done, NULL);
    zero_status status = zi_calloc(thread_count, sizeof *pool->workers, (void **)&pool->workers);
    for (uint32_t i = 0; status == ZERO_OK && i + 1 < thread_count; i++) {
        pool->workers[i] = (pool_worker){.pool = pool, .share = i + 1};
        status = zi_thread_start(&pool->workers[i].thread, worker_run, &pool->workers[i]);
        pool->started += status == ZERO_OK;
    }
    if (status != ZERO_OK) {
        zi_pool_destroy(pool);
        return status;
    }
    *out = pool;
    return ZERO_OK;
}

void zi_pool_destroy(zi_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    (void)pthread_cond_broadcast(&pool->begin);
    (void)pthread_mutex_unlock(&pool->mutex);
    for (uint32_t i = 0; i < pool->started; i++) {
        (void)pthread_join(pool->workers[i].thread, NULL);
    }
    (void)pthread_cond_destroy(&pool->done);
    (void)pthread_cond_destroy(&pool->begin);
    (void)pthread_mutex_destroy(&pool->mutex);
    (void)pthread_mutex_destroy(&pool->callers);
    zi_free(pool->workers);
    zi_free(pool);
}

uint32_t zi_pool_threads(const zi_pool *pool)
{
    return pool == NULL ? 1 : pool->thread_count;
}

void zi_pool_run(zi_pool *pool, zi_pool_fn fn, void *argument)
{
    if (pool == NULL || pool->thread_count == 1) {
        fn(argument, 0, 1);
        return;
    }
    (void)pthread_mutex_lock(&pool->callers);
    (void)pthread_mutex_lock(&pool->mutex);
    pool->fn = fn;
    pool->argument = argument;
    pool->pending = pool->thread_count - 1;
    pool->generation++;
    (void)pthread_cond_broadcast(&pool->begin);
    (void)pthread_mutex_unlock(&pool->mutex);
    fn(argument, 0, pool->thread_count);
    (void)pthread_mutex_lock(&pool->mutex);
    while (pool->pending != 0) {
        (void)pthread_cond_wait(&pool->done, &pool->mutex);
    }
    (void)pthread_mutex_unlock(&pool->mutex);
    (void)pthread_mutex_unlock(&pool->callers);
}
