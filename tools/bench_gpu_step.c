/* Owns the memory of a step beside its arrays. */
#include "bench_gpu_step.h"

#include <string.h>

#include "core/memory.h"

#define BLOCK_BYTES ((sizeof(gpu_step_block) / ZI_PAGE_BYTES + 1) * ZI_PAGE_BYTES)

_Static_assert(sizeof(zi_step_input) <= ZI_PAGE_BYTES, "the input has a page");

zi_step_state gpu_step_state(void)
{
    const zi_loss_scaler scaler = {.scale = 1.0f, .min = 1.0f, .window = 2000, .hysteresis = 1};
    zi_step_state state;
    memset(&state, 0, sizeof state);
    zi_step_state_init(&state, scaler);
    return state;
}

int gpu_step_open(gpu_step *step, const zi_device *device, cudaStream_t stream, zero_adamw adamw,
                  double max_norm, const uint64_t *counts, uint32_t count)
{
    void *made = NULL;
    void *input = NULL;
    const int failed = BENCH_TRY(device->ops->memory_alloc(device->self, BLOCK_BYTES, &made)) ||
                       BENCH_TRY(device->ops->host_alloc(device->self, ZI_PAGE_BYTES, &input));
    gpu_step_block *block = made;
    *step = (gpu_step){.device = device, .block = block, .input = input};
    if (failed) {
        return 1;
    }
    *step->input = (zi_step_input){.divisor = 1.0, .max_norm = max_norm, .group_count = 1};
    step->input->groups[0] = (zi_hyper){.kind = ZERO_OPTIMIZER_ADAMW, .adamw = adamw};
    step->decide = (zi_decide_job){.input = step->input,
                                   .messages = {.first = (unsigned char *)&block->message,
                                                .count = 1,
                                                .bytes = sizeof block->message,
                                                .peer_stride = 1},
                                   .part = &block->part,
                                   .parts = &block->part,
                                   .part_count = 1,
                                   .phases = ZI_DECIDE_COLLECT | ZI_DECIDE_CONCLUDE,
                                   .state = &block->state,
                                   .decision = &block->decision};
    gpu_step_block first;
    memset(&first, 0, sizeof first);
    first.state = gpu_step_state();
    for (uint32_t i = 0; i < count; i++) {
        first.segments[i] = (zi_segment){.count = counts[i]};
    }
    return gpu_upload(block, &first, sizeof first, stream);
}

void gpu_step_close(gpu_step *step)
{
    if (step->input != NULL) {
        step->device->ops->host_free(step->device->self, step->input, ZI_PAGE_BYTES);
    }
    if (step->block != NULL) {
        step->device->ops->memory_free(step->device->self, step->block, BLOCK_BYTES);
    }
}
