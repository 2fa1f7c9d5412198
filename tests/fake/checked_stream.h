/* Lines and turns of the checked device, for its other files. */
#ifndef TESTS_FAKE_CHECKED_STREAM_H
#define TESTS_FAKE_CHECKED_STREAM_H

#include "device/device.h"
#include "race.h"

/* A zi_stream of a checked device. */
typedef struct checked_stream {
    zi_stream *inner;
    bool host; /* the calling thread, or the task that it runs */
    race_line line;
    void *native;  /* of a caller's */
    zi_event *end; /* of a checked_caller's: see checked_caller_wait */
    struct checked_stream *next;
} checked_stream;

/* A record of an event: what waits for it goes on after what was on its stream. */
typedef struct checked_record {
    struct checked_record *next; /* an earlier one of the event's */
    uint64_t epoch;              /* of the device */
    bool run;
    uint32_t timeline;
    race_clock clock;
} checked_record;

/* One operation. */
typedef struct checked_turn {
    const char *what;
    const race_range *ranges;
    size_t range_count;
    checked_record *record;  /* made in this turn, or NULL */
    checked_record *awaited; /* or NULL */
} checked_turn;

/* Takes the checker's lock; returns the calling thread's line, in a task its stream's. */
race_line *checked_lock(void);
void checked_unlock(void);

/* name NULL: the host's. The lock is held. */
checked_stream *checked_stream_open(zi_stream *inner, const char *name);
void checked_stream_close(checked_stream *stream); /* all on it has run */
/* A caller's stream by its handle, or NULL. */
checked_stream *checked_stream_find(checked_stream *list, const void *native);
checked_stream *checked_caller_find(const void *native);

/* The lock is held. */
race_line *checked_line(checked_stream *stream);
/* A wait: what was done on `timeline` up to this clock is before what comes next on the line. The
 * lock is held. */
void checked_follow(race_line *line, uint32_t timeline, const race_clock *clock);

/* Checks the operation in its turn on the inner device's stream; it is put there by the caller,
 * next. */
void checked_put(const zi_device *inner, checked_stream *stream, const checked_turn *turn);
/* The same for a task, and puts it: by the inner device's task or task_always. */
typedef zero_status (*checked_put_fn)(void *self, zi_stream *stream, zi_task_fn fn,
                                      const void *argument, size_t bytes);
zero_status checked_task(const zi_device *inner, checked_put_fn put, checked_stream *stream,
                         zi_task_fn fn, const void *argument, size_t bytes);

/* A wrapper of a device that stays its owner's. */
void checked_device_borrow(const zi_device *device, zi_device *checked);

#endif
