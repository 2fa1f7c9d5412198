/* Threads and a bounded parallel loop over them. */
#ifndef ZI_CORE_THREAD_H
#define ZI_CORE_THREAD_H

#include <pthread.h>
#include <stdint.h>

#include "zero/status.h"

/* Start a thread; DEVICE with errno when the system refuses. */
zero_status zi_thread_start(pthread_t *thread, void *(*run)(void *), void *argument);

/* Threads that wait to share a loop. One loop at a time; the calling thread takes part. */
typedef struct zi_pool zi_pool;

/* Share `share` of `shares` of a loop. */
typedef void (*zi_pool_fn)(void *argument, uint32_t share, uint32_t shares);

/* A pool of `thread_count` threads in all, the caller's included: 1 starts none. */
zero_status zi_pool_create(uint32_t thread_count, zi_pool **pool);

/* Accepts NULL. No loop may be running. */
void zi_pool_destroy(zi_pool *pool);

uint32_t zi_pool_threads(const zi_pool *pool);

/* Run fn(argument, share, shares) for every share in [0, thread_count), and return when all are
 * done. pool NULL: one share, here. Blocking; no allocation. Calls from several threads take turns.
 */
void zi_pool_run(zi_pool *pool, zi_pool_fn fn, void *argument);

#endif
