/* Stands between the CUDA device and the queues of its issuers (the linker's --wrap): each task
 * takes along what the host knew when it was put. */
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu_stream.h"
#include "fake_stream.h"

/* The linker's names. */
zero_status __real_zi_cpu_stream_task(zi_stream *stream, zi_task_fn fn, const void *argument,
                                      size_t bytes);
zero_status __wrap_zi_cpu_stream_task(zi_stream *stream, zi_task_fn fn, const void *argument,
                                      size_t bytes);

/* A task in a queue. Kept in a list, because a stream that failed skips its tasks. */
typedef struct boxed_task {
    struct boxed_task *next;
    struct boxed_task **link; /* the pointer to it */
    zi_task_fn fn;
    race_clock known;
    _Alignas(16) unsigned char argument[ZI_TASK_ARGUMENT_BYTES];
} boxed_task;

static boxed_task *boxes; /* under the fake's lock */

static zero_status run_box(void *argument)
{
    boxed_task *const *place = argument;
    boxed_task *box = *place;
    const race_clock *outer = fake_task_clock;
    fake_task_clock = &box->known;
    const zero_status status = box->fn(box->argument);
    fake_task_clock = outer;
    fake_lock();
    *box->link = box->next;
    if (box->next != NULL) {
        box->next->link = box->link;
    }
    fake_unlock();
    free(box->known.seen);
    free(box);
    return status;
}

zero_status __wrap_zi_cpu_stream_task(zi_stream *stream, zi_task_fn fn, const void *argument,
                                      size_t bytes)
{
    if (bytes > ZI_TASK_ARGUMENT_BYTES) {
        fake_give_up("a task's argument is too long");
    }
    boxed_task *box = race_allocate(sizeof *box);
    box->fn = fn;
    memcpy(box->argument, argument, bytes);
    fake_lock();
    race_clock_join(&box->known, fake_host_clock());
    box->next = boxes;
    box->link = &boxes;
    if (boxes != NULL) {
        boxes->link = &box->next;
    }
    boxes = box;
    fake_unlock();
    return __real_zi_cpu_stream_task(stream, run_box, &box, sizeof(boxed_task *));
}
