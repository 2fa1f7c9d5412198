/* Owns the rooms. Invariant: the room that is not `turn` has nothing under way but what it gives
 * back, which a drain ends before it is filled again. */
#include "stage1/staging.h"

#include <string.h>

#include "core/arena.h"
#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"

/* Arrays of a chunk: gradient, parameter, state. */
#define ARRAYS 5

typedef struct staged_array {
    unsigned char *device;
    unsigned char *room;
    uint64_t bytes; /* 0: it has no place in a room */
    bool comes;
    bool returns;
} staged_array;

struct zi_staging {
    zi_staging_desc desc;
    zi_stream *host;             /* of the CPU's kernels */
    uint32_t turn;               /* the room of the next chunk */
    const zi_update_job *coming; /* the chunk whose arrays are in it or on their way; NULL: none */
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

void zi_staging_rebind(zi_staging *staging, unsigned char *rooms)
{
    zi_assert(staging->coming == NULL);
    staging->desc.rooms = rooms;
}

/* A job's arrays, and their places in a room. Only the GPU's memory has one. */
static void list_arrays(const zi_staging *staging, const zi_update_job *job, uint32_t turn,
                        staged_array arrays[ARRAYS])
{
    const bool *on_device = staging->desc.on_device;
    const uint64_t moment = zero_dtype_bytes(job->moment_dtype);
    const uint64_t sizes[ARRAYS] = {zero_dtype_bytes(job->grad_dtype),
                                    zero_dtype_bytes(job->param_dtype), sizeof(float), moment,
                                    moment};
    union {
        const void *given;
        unsigned char *plain; /* the gradient only comes */
    } grad = {job->grad};
    unsigned char *const all[ARRAYS] = {grad.plain, job->param, job->master, job->moment1,
                                        job->moment2};
    static const zero_role roles[ARRAYS] = {ZERO_ROLE_GRAD, ZERO_ROLE_PARAM, ZERO_ROLE_MASTER,
                                            ZERO_ROLE_MOMENT1, ZERO_ROLE_MOMENT2};
    unsigned char *room = staging->desc.rooms + turn * staging->desc.room_bytes;
    for (int i = 0; i < ARRAYS; i++) {
        const bool has_place = all[i] != NULL && on_device[roles[i]];
        const uint64_t bytes = has_place ? job->count * sizes[i] : 0;
        arrays[i] = (staged_array){.device = all[i],
                                   .room = room,
                                   .bytes = bytes,
                                   /* a parameter with a master is only written */
                                   .comes = i != 1 || job->master == NULL,
                                   .returns = i != 0};
        room += zi_align_up(bytes, ZI_ARENA_ALIGN);
    }
    zi_assert_cmp(room - staging->desc.rooms, <=, (int64_t)((turn + 1) * staging->desc.room_bytes));
}

static zero_status fetch(zi_staging *staging, const zi_update_job *job)
{
    const zi_device *device = staging->desc.device;
    staged_array arrays[ARRAYS];
    list_arrays(staging, job, staging->turn, arrays);
    for (int i = 0; i < ARRAYS; i++) {
        if (arrays[i].bytes != 0 && arrays[i].comes) {
            ZI_TRY(device->ops->copy(device->self, staging->desc.stream, arrays[i].room,
                                     arrays[i].device, arrays[i].bytes));
        }
    }
    staging->coming = job;
    return ZERO_OK;
}

/* The job on what is in its room. */
static zero_status update(const zi_staging *staging, const zi_staged_chunk *chunk,
                          const staged_array arrays[ARRAYS])
{
    const zi_kernels *kernels = staging->desc.kernels;
    const zi_update_job *job = chunk->job;
    zi_update_job here = *job;
    here.segments = chunk->segments;
    here.decision = chunk->decision;
    here.grad = arrays[0].bytes != 0 ? arrays[0].room : job->grad;
    here.param = arrays[1].bytes != 0 ? (void *)arrays[1].room : job->param;
    here.master = arrays[2].bytes != 0 ? (void *)arrays[2].room : job->master;
    here.moment1 = arrays[3].bytes != 0 ? (void *)arrays[3].room : job->moment1;
    here.moment2 = arrays[4].bytes != 0 ? (void *)arrays[4].room : job->moment2;
    if (!arrays[1].comes) {
        memset(arrays[1].room, 0, arrays[1].bytes); /* what lies between tensors is zeros */
    }
    return kernels->ops->update(kernels->self, staging->host, &here);
}

zero_status zi_staging_update(zi_staging *staging, const zi_staged_chunk *chunk,
                              const zi_update_job *next)
{
    const zi_device *device = staging->desc.device;
    const zi_update_job *job = chunk->job;
    staged_array arrays[ARRAYS];
    if (staging->coming != job) {
        ZI_TRY(fetch(staging, job));
    }
    list_arrays(staging, job, staging->turn, arrays);
    ZI_TRY(device->ops->drain(device->self, staging->desc.stream));
    staging->turn = 1 - staging->turn;
    staging->coming = NULL;
    if (next != NULL) {
        ZI_TRY(fetch(staging, next));
    }
    ZI_TRY(update(staging, chunk, arrays));
    for (int i = 0; i < ARRAYS; i++) {
        if (arrays[i].bytes != 0 && arrays[i].returns) {
            ZI_TRY(device->ops->copy(device->self, staging->desc.stream, arrays[i].device,
                                     arrays[i].room, arrays[i].bytes));
        }
    }
    return ZERO_OK;
}
