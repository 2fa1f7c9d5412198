/* Owns the bounce buffers. Invariant: in the buffer that is not `turn` nothing is in flight but the
 * results of the last update, and a drain waits for those before the buffer is filled again. */
#include "stage1/staging.h"

#include "core/arena.h"
#include "core/check.h"
#include "core/codec.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"

/* An array of a chunk, and its place in a bounce buffer. */
typedef struct staged_array {
    const void *source; /* in the device's memory, copied before the update; NULL: it is not read */
    void *target;       /* there, copied after the update; NULL: it is not written */
    uint64_t bytes;     /* 0: it is in host memory, or there is none */
    unsigned char *memory;
} staged_array;

struct zi_staging {
    zi_staging_desc desc;
    zi_stream *host;              /* of the CPU's kernels */
    uint32_t turn;                /* the buffer of the next chunk */
    const zi_update_job *fetched; /* the chunk whose arrays are copied into it; NULL: none */
};

zero_status zi_staging_create(const zi_staging_desc *desc, zi_staging **out)
{
    const zi_device *cpu = desc->kernels->device;
    zi_staging *staging = NULL;
    *out = NULL;
    ZI_TRY(zi_calloc(1, sizeof *staging, (void **)&staging));
    staging->desc = *desc;
    const zero_status status = cpu->ops->stream_wrap(cpu->self, zero_stream_host(), &staging->host);
    if (status != ZERO_OK) {
        zi_free(staging);
        return status;
    }
    *out = staging;
    return ZERO_OK;
}

void zi_staging_destroy(zi_staging *staging)
{
    zi_free(staging);
}

void zi_staging_rebind(zi_staging *staging, unsigned char *buffers)
{
    zi_assert(staging->fetched == NULL);
    staging->desc.buffers = buffers;
}

/* A job's array, with the bytes of its elements. */
static staged_array array_of(const zi_update_job *job, int role)
{
    if (role == ZERO_ROLE_PARAM) { /* with a master it is only written */
        const bool is_read = job->state[ZI_STATE_MASTER] == NULL || zi_job_has_remainder(job);
        return (staged_array){is_read ? job->param : NULL, job->param,
                              job->count * zero_dtype_bytes(job->param_dtype), NULL};
    }
    if (role == ZERO_ROLE_GRAD) {
        return (staged_array){job->grad, NULL, job->count * zero_dtype_bytes(job->grad_dtype),
                              NULL};
    }
    const uint32_t state = zi_role_state((zero_role)role);
    return (staged_array){job->state[state], job->state[state],
                          zi_codec_bytes(zi_job_state_codec(job, state), job->count), NULL};
}

/* A job's arrays by role, and where they are in the bounce buffer whose turn it is. */
static void list_arrays(const zi_staging *staging, const zi_update_job *job,
                        staged_array arrays[ZI_SHARD_ROLES])
{
    unsigned char *buffer = staging->desc.buffers + staging->turn * staging->desc.buffer_bytes;
    uint64_t used = 0;
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        staged_array *array = &arrays[role];
        *array = array_of(job, role);
        const bool passes =
            staging->desc.on_device[role] && (array->source != NULL || array->target != NULL);
        array->bytes = passes ? array->bytes : 0;
        array->memory = buffer + used;
        used += zi_align_up(array->bytes, ZI_ARENA_ALIGN);
    }
    zi_assert_cmp(used, <=, staging->desc.buffer_bytes);
}

static zero_status staging_fetch(zi_staging *staging, const zi_update_job *job)
{
    const zi_device *device = staging->desc.device;
    staged_array arrays[ZI_SHARD_ROLES];
    list_arrays(staging, job, arrays);
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        const staged_array *array = &arrays[role];
        if (array->bytes != 0 && array->source != NULL) {
            ZI_TRY(device->ops->copy(device->self, staging->desc.stream, array->memory,
                                     array->source, array->bytes));
        }
    }
    staging->fetched = job;
    return ZERO_OK;
}

static void *memory_of(const staged_array *array, void *own)
{
    return array->bytes != 0 ? array->memory : own;
}

/* The job on what is in its bounce buffer, and on the rest where it is. */
static zero_status staging_update(const zi_staging *staging, const zi_staged_chunk *chunk,
                                  const staged_array arrays[ZI_SHARD_ROLES])
{
    const zi_kernels *kernels = staging->desc.kernels;
    const staged_array *param = &arrays[ZERO_ROLE_PARAM];
    const staged_array *grad = &arrays[ZERO_ROLE_GRAD];
    zi_update_job job = *chunk->job;
    job.segments = chunk->segments;
    job.decision = chunk->decision;
    job.stalled = chunk->stalled;
    job.grad = grad->bytes != 0 ? grad->memory : job.grad;
    job.param = memory_of(param, job.param);
    for (uint32_t state = 0; state < ZI_STATES; state++) {
        job.state[state] = memory_of(&arrays[zi_state_role(state)], job.state[state]);
    }
    if (param->source == NULL) { /* the bytes between tensors are zeros */
        const zi_device *cpu = kernels->device;
        ZI_TRY(cpu->ops->fill(cpu->self, staging->host, param->memory, 0, param->bytes));
    }
    return kernels->ops->update(kernels->self, staging->host, &job);
}

zero_status zi_staging_update(zi_staging *staging, const zi_staged_chunk *chunk,
                              const zi_update_job *next)
{
    const zi_device *device = staging->desc.device;
    staged_array arrays[ZI_SHARD_ROLES];
    if (staging->fetched != chunk->job) {
        ZI_TRY(staging_fetch(staging, chunk->job));
    }
    list_arrays(staging, chunk->job, arrays);
    ZI_TRY(device->ops->drain(device->self, staging->desc.stream));
    staging->turn = 1 - staging->turn;
    staging->fetched = NULL;
    if (next != NULL) {
        ZI_TRY(staging_fetch(staging, next));
    }
    ZI_TRY(staging_update(staging, chunk, arrays));
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        const staged_array *array = &arrays[role];
        if (array->bytes != 0 && array->target != NULL) {
            ZI_TRY(device->ops->copy(device->self, staging->desc.stream, array->target,
                                     array->memory, array->bytes));
        }
    }
    return ZERO_OK;
}
