/* The memory that the kernels of an optimizer step keep on the GPU beside the arrays, as an engine
 * of one rank has it. Used by the kernels' measurements and by steps without an engine. */
#ifndef TOOLS_BENCH_GPU_STEP_H
#define TOOLS_BENCH_GPU_STEP_H

#include "bench_gpu_clock.h"
#include "device/device.h"
#include "kernels/kernels.h"

#define GPU_STEP_SEGMENTS_MAX 16

typedef struct gpu_step_block {
    zi_step_state state;
    zi_step_decision decision;
    zi_step_message message;
    zi_step_part part;
    zi_norm_sum other; /* apart from the step */
    zi_segment segments[GPU_STEP_SEGMENTS_MAX];
} gpu_step_block;

typedef struct gpu_step {
    const zi_device *device;
    gpu_step_block *block; /* of the GPU */
    zi_step_input *input;  /* of the host, and the GPU reaches it */
    zi_decide_job decide;
} gpu_step;

/* A state that no step has changed yet. */
zi_step_state gpu_step_state(void);

/* Before the first step of AdamW, clipped to max_norm; segment i covers counts[i] elements. 0, or 1
 * after bench_fail; close accepts what is half open or zeroed. */
int gpu_step_open(gpu_step *step, const zi_device *device, cudaStream_t stream, zero_adamw adamw,
                  double max_norm, const uint64_t *counts, uint32_t count);
void gpu_step_close(gpu_step *step);

#endif
