/* A device that checks the order of what is put on it, at the table that all devices have
 * (device/device.h), by the race detector (race.h). It forwards everything to the device that it
 * wraps; kernels, and the memory of a world, are wrapped beside it.
 *
 * An operation is checked when its turn on the stream comes, against the clock of its stream, which
 * has joined what the thread that put it knew then. A task's own host code counts as its stream's,
 * and each thread of the host is a line of its own. So neither the order in which things ran nor
 * how ranks that are threads meet on the host shows in a verdict; ranks are ordered by fences, also
 * where the device needs none, and users of a window by acquire and release.
 *
 * Watched are what the device and the world allocate, and there what copies, fills, kernels and
 * callers touch. What a task's host code reads and writes by itself is not, nor are other
 * processes. */
#ifndef TESTS_FAKE_CHECKED_DEVICE_H
#define TESTS_FAKE_CHECKED_DEVICE_H

#include "comm/comm.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "race.h"

/* Wrap what is there: destroying the wrapper destroys it. own_memory: as a device whose memory is
 * not the host's. */
void checked_device(zi_device *device, bool own_memory);
/* For kernels to be made on, before they are wrapped. */
const zi_device *checked_device_inner(const zi_device *checked);
/* checked: a device that outlives them. NULL: a wrapper of the device that they were made on, which
 * stays its owner's. */
void checked_kernels(zi_kernels *kernels, const zi_device *checked);
/* Let memory that peers read be watched, too. Once or more. */
void checked_comm(zi_comm *comm);

/* A stream of a caller, for any checked device: what is put on it runs without the calling thread,
 * as on a GPU. Kernels are checked for these ranges; bytes as of zi_device_ops.task. */
zero_stream checked_caller_open(void);
void checked_caller_close(zero_stream caller);
void checked_caller_put(zero_stream caller, zi_task_fn fn, const void *argument, size_t bytes,
                        const race_range *ranges, size_t range_count);
/* Block until all on it has run. */
void checked_caller_wait(zero_stream caller);

/* Which streams have waited for what others did: each pair of names, once. The host's threads have
 * one name, and so have the streams of all ranks. */
typedef struct checked_wait {
    char waiter[32];
    char awaited[32];
} checked_wait;
#define CHECKED_WAITS_MAX 32
uint32_t checked_waits(checked_wait waits[CHECKED_WAITS_MAX]);
/* From here on no faults and no waits so far. Waits like this one order nothing, though the device
 * still waits: whether they are needed shows. NULL: all order. */
void checked_start(const checked_wait *without);

#endif
