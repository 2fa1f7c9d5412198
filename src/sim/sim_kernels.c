/* Owns the time that kernels take: the bytes that each reads and writes, at the rate of the memory
 * that they are in. */
#include "sim/sim_kernels.h"

#include "core/codec.h"
#include "sim/sim_device.h"

typedef struct kernel_load {
    const zi_sim_kernels *kernels;
    zi_sim_load load;
} kernel_load;

static void reads(kernel_load *kernel, const void *pointer, uint64_t bytes)
{
    if (pointer != NULL) {
        zi_sim_load_add(kernel->kernels->machine, kernel->kernels->on_host, pointer, bytes, 0,
                        &kernel->load);
    }
}

static void writes(kernel_load *kernel, const void *pointer, uint64_t bytes)
{
    if (pointer != NULL) {
        zi_sim_load_add(kernel->kernels->machine, kernel->kernels->on_host, pointer, 0, bytes,
                        &kernel->load);
    }
}

static zero_status sim_kernels_update(void *self, zi_stream *stream, const zi_update_job *job)
{
    kernel_load kernel = {.kernels = self};
    const uint64_t param = job->count * zero_dtype_bytes(job->param_dtype);
    reads(&kernel, job->grad, job->count * zero_dtype_bytes(job->grad_dtype));
    const bool reads_param = job->state[ZI_STATE_MASTER] == NULL || zi_job_has_remainder(job);
    reads(&kernel, reads_param ? job->param : NULL, param);
    writes(&kernel, job->param, param);
    for (uint32_t i = 0; i < ZI_STATES; i++) {
        const uint64_t bytes = zi_codec_bytes(zi_job_state_codec(job, i), job->count);
        reads(&kernel, job->state[i], bytes);
        writes(&kernel, job->state[i], bytes);
    }
    return zi_sim_put(stream, &kernel.load, 0, ZERO_SIM_UPDATE);
}

static zero_status sim_kernels_measure(void *self, zi_stream *stream, const zi_update_job *job)
{
    kernel_load kernel = {.kernels = self};
    const bool reads_param = job->state[ZI_STATE_MASTER] == NULL || zi_job_has_remainder(job);
    const bool reads_moments = zi_optimizer_measured_moments(job->optimizer) != 0;
    reads(&kernel, job->grad, job->count * zero_dtype_bytes(job->grad_dtype));
    reads(&kernel, reads_param ? job->param : NULL,
          job->count * zero_dtype_bytes(job->param_dtype));
    for (uint32_t i = 0; i < ZI_STATES; i++) {
        const uint64_t bytes = zi_codec_bytes(zi_job_state_codec(job, i), job->count);
        reads(&kernel, i == ZI_STATE_MASTER || reads_moments ? job->state[i] : NULL, bytes);
    }
    return zi_sim_put(stream, &kernel.load, 0, ZERO_SIM_UPDATE);
}

/* It reads so little that it takes no time. */
static zero_status sim_kernels_layers(void *self, zi_stream *stream, const zi_layers_job *job)
{
    (void)self;
    (void)stream;
    (void)job;
    return ZERO_OK;
}

static zero_status sim_kernels_square_sum(void *self, zi_stream *stream, const void *source,
                                          zero_dtype dtype, size_t count, zi_norm_sum *sum)
{
    kernel_load kernel = {.kernels = self};
    (void)sum;
    reads(&kernel, source, count * zero_dtype_bytes(dtype));
    return zi_sim_put(stream, &kernel.load, 0, ZERO_SIM_REDUCTION);
}

/* It reads so little that it takes no time. */
static zero_status sim_kernels_decide(void *self, zi_stream *stream, const zi_decide_job *job)
{
    (void)self;
    (void)stream;
    (void)job;
    return ZERO_OK;
}

static zero_status sim_kernels_fold(void *self, zi_stream *stream, const zi_fold *job)
{
    kernel_load kernel = {.kernels = self};
    const uint64_t bytes = zi_packed_bytes(job->dst_dtype, job->count);
    for (uint32_t i = 0; i < job->source_count; i++) {
        reads(&kernel, job->sources[i], zi_packed_bytes(job->source_dtype, job->count));
    }
    reads(&kernel, job->accumulate != 0 ? job->dst : NULL, bytes);
    writes(&kernel, job->dst, bytes);
    return zi_sim_put(stream, &kernel.load, 0, ZERO_SIM_REDUCTION);
}

static zero_status cast(void *self, zi_stream *stream, void *target, zero_dtype target_dtype,
                        const void *source, zero_dtype source_dtype, size_t count)
{
    kernel_load kernel = {.kernels = self};
    reads(&kernel, source, count * zero_dtype_bytes(source_dtype));
    writes(&kernel, target, count * zero_dtype_bytes(target_dtype));
    return zi_sim_put(stream, &kernel.load, 0, ZERO_SIM_COPY);
}

static zero_status sim_kernels_encode(void *self, zi_stream *stream, void *codes, void *scales,
                                      zero_dtype dtype, const void *source, zero_dtype source_dtype,
                                      size_t count)
{
    kernel_load kernel = {.kernels = self};
    reads(&kernel, source, count * zero_dtype_bytes(source_dtype));
    writes(&kernel, codes, count * zero_dtype_bytes(dtype));
    writes(&kernel, scales, zi_block_scales_bytes(dtype, count));
    return zi_sim_put(stream, &kernel.load, 0, ZERO_SIM_COPY);
}

static zero_status sim_kernels_decode(void *self, zi_stream *stream, void *target,
                                      zero_dtype target_dtype, const void *codes,
                                      const void *scales, zero_dtype dtype, size_t count)
{
    kernel_load kernel = {.kernels = self};
    reads(&kernel, codes, count * zero_dtype_bytes(dtype));
    reads(&kernel, scales, zi_block_scales_bytes(dtype, count));
    writes(&kernel, target, count * zero_dtype_bytes(target_dtype));
    return zi_sim_put(stream, &kernel.load, 0, ZERO_SIM_COPY);
}

/* Their owner frees them. */
static void sim_kernels_destroy(void *self)
{
    (void)self;
}

static const zi_kernels_ops kernels_ops = {
    .struct_bytes = sizeof(zi_kernels_ops),
    .name = "simulated",
    .update = sim_kernels_update,
    .measure = sim_kernels_measure,
    .layers = sim_kernels_layers,
    .square_sum = sim_kernels_square_sum,
    .decide = sim_kernels_decide,
    .fold = sim_kernels_fold,
    .cast = cast,
    .encode = sim_kernels_encode,
    .decode = sim_kernels_decode,
    .destroy = sim_kernels_destroy,
};

void zi_sim_kernels_open(zi_sim_kernels *kernels, const zi_device *device, zi_kernels *out)
{
    *out = (zi_kernels){&kernels_ops, kernels, device};
}
