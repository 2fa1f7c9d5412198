/* The simulated device: streams and events as virtual times. */
#ifndef ZI_SIM_SIM_DEVICE_H
#define ZI_SIM_SIM_DEVICE_H

#include "device/device.h"
#include "sim/sim_machine.h"

typedef struct zi_sim_device {
    zi_sim_machine *machine;
    bool queued;       /* streams have threads that issue; set before any is made */
    zi_stream *host;   /* the thread that runs now */
    zi_device_ops ops; /* the table of `device` */
    zi_device device;  /* to be destroyed here */
} zi_sim_device;

/* machine: borrowed. */
zero_status zi_sim_device_open(zi_sim_machine *machine, zi_sim_device *device);
/* After its streams. Accepts a zeroed device. */
void zi_sim_device_close(zi_sim_device *device);

/* A stream of the caller's: its own thread on a CPU. */
zero_status zi_sim_stream_create(zi_sim_device *device, zi_stream **out);
void zi_sim_stream_destroy(zi_stream *stream); /* accepts NULL */
zero_stream zi_sim_stream_native(zi_stream *stream);
/* The track of the stream's work. */
const zi_sim_track *zi_sim_stream_track(zi_stream *stream);

/* Put a load on the stream. late_ns: that it waits for other ranks before. */
zero_status zi_sim_put(zi_stream *stream, const zi_sim_load *load, uint64_t late_ns,
                       zero_sim_cause cause);
/* Put products of so long on the stream. */
void zi_sim_put_compute(zi_stream *stream, uint64_t ns);

#endif
