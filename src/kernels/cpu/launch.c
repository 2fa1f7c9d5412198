/* Owns the CPU's table of kernels: each operation is a device task that spreads a direct function
 * over the pool. Invariant: parts begin at multiples of 64 elements, of blocks at granules, and
 * partial norms are added exactly, so the number of threads shows in no bit. Two streams may run
 * kernels at the same time: `scratch_mutex` guards the scratch, `sum_mutex` every zi_norm_sum being
 * added to. The first may be held while waiting for the pool; the second is taken inside it, and
 * only for one addition. */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/check.h"
#include "core/codec.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/kernels.h"

/* Elements below which waking the pool costs more than it saves. */
#define SPREAD_COUNT_MIN ((size_t)1 << 15)

typedef struct launcher {
    const zi_device *device;
    zi_pool *pool;
    zi_cpu_scratch *scratch; /* one per thread of the pool */
    pthread_mutex_t scratch_mutex;
    pthread_mutex_t sum_mutex;
} launcher;

/* Arguments of a task; copied into the stream's queue. */
typedef struct launch {
    launcher *owner;
    const zi_update_job *job;
    void *target;
    const void *source;
    size_t count;
    zi_norm_sum *sum;
    void *target_scales; /* of a target or a source in blocks */
    const void *source_scales;
    zero_dtype target_dtype;
    zero_dtype source_dtype;
} launch;

_Static_assert(sizeof(launch) <= ZI_TASK_ARGUMENT_BYTES, "a launch travels by value");

static void spread(launcher *owner, size_t count, zi_pool_fn fn, void *argument)
{
    zi_pool_run(count < SPREAD_COUNT_MIN ? NULL : owner->pool, fn, argument);
}

/* The first element of share `share`: whole parts, the last share takes the tail. */
static size_t share_begin_by(size_t part, size_t count, uint32_t share, uint32_t shares)
{
    const uint64_t parts = zi_div_up(count, part);
    const uint64_t begin = parts / shares * share + zi_min_u64(share, parts % shares);
    return (size_t)zi_min_u64(begin * part, count);
}

/* The same of chunks. */
static size_t share_begin(size_t count, uint32_t share, uint32_t shares)
{
    return share_begin_by(ZI_NORM_CHUNK, count, share, shares);
}

static const void *source_at(const launch *work, size_t index)
{
    return (const unsigned char *)work->source + index * zero_dtype_bytes(work->source_dtype);
}

static void *target_at(const launch *work, size_t index)
{
    return (unsigned char *)work->target + index * zero_dtype_bytes(work->target_dtype);
}

static void update_share(void *argument, uint32_t share, uint32_t shares)
{
    const launch *work = argument;
    zi_cpu_update(work->job, &work->owner->scratch[share], share, shares);
}

static size_t job_count(const zi_update_job *job)
{
    size_t count = 0;
    for (size_t i = 0; i < job->segment_count; i++) {
        count += (size_t)job->segments[i].count;
    }
    return count;
}

static zero_status update_task(void *argument)
{
    launch *work = argument;
    const size_t count = job_count(work->job);
    const bool needs_scratch = work->job->update != NULL;
    if (needs_scratch) {
        (void)pthread_mutex_lock(&work->owner->scratch_mutex);
    }
    spread(work->owner, count, update_share, work);
    if (needs_scratch) {
        (void)pthread_mutex_unlock(&work->owner->scratch_mutex);
    }
    return ZERO_OK;
}

static void measure_share(void *argument, uint32_t share, uint32_t shares)
{
    const launch *work = argument;
    zi_cpu_measure(work->job, share, shares);
}

static zero_status measure_task(void *argument)
{
    launch *work = argument;
    spread(work->owner, job_count(work->job), measure_share, work);
    return ZERO_OK;
}

static void pack_layers(const zi_layers_job *job)
{
    for (uint32_t i = 0; i < job->layers; i++) {
        job->packed[i] = (zi_packed_sums){zi_norm_pack(job->sums[i].param),
                                          zi_norm_pack(job->sums[i].direction)};
        job->sums[i] = (zi_layer_sums){{{0}, 0, 0}, {{0}, 0, 0}};
    }
}

static void merge_layers(const zi_layers_job *job)
{
    for (uint32_t i = 0; i < job->layers; i++) {
        zi_layer_sums all = {{{0}, 0, 0}, {{0}, 0, 0}};
        for (uint32_t k = job->peer_first; k < job->message_count; k += job->peer_stride) {
            const zi_packed_sums *own = zi_layers_message(job, k, i);
            zi_norm_add_packed(&all.param, &own->param);
            zi_norm_add_packed(&all.direction, &own->direction);
        }
        job->norms[i] = (zi_layer_norms){zi_layer_norm(&all.param), zi_layer_norm(&all.direction)};
    }
}

static zero_status layers_task(void *argument)
{
    const zi_layers_job *job = argument;
    if (job->phase == ZI_LAYERS_PACK) {
        pack_layers(job);
    } else {
        merge_layers(job);
    }
    return ZERO_OK;
}

static void merge_sum(launcher *owner, zi_norm_sum *sum, const zi_norm_sum *own)
{
    (void)pthread_mutex_lock(&owner->sum_mutex);
    zi_norm_merge(sum, own);
    (void)pthread_mutex_unlock(&owner->sum_mutex);
}

static void square_sum_share(void *argument, uint32_t share, uint32_t shares)
{
    const launch *work = argument;
    const size_t begin = share_begin(work->count, share, shares);
    const size_t end = share_begin(work->count, share + 1, shares);
    zi_norm_sum own = {{0}, 0, 0};
    zi_cpu_square_sum(source_at(work, begin), work->source_dtype, end - begin, &own);
    merge_sum(work->owner, work->sum, &own);
}

static zero_status square_sum_task(void *argument)
{
    launch *work = argument;
    spread(work->owner, work->count, square_sum_share, work);
    return ZERO_OK;
}

static void cast_share(void *argument, uint32_t share, uint32_t shares)
{
    const launch *work = argument;
    const size_t begin = share_begin(work->count, share, shares);
    const size_t end = share_begin(work->count, share + 1, shares);
    zi_cpu_cast(target_at(work, begin), work->target_dtype, source_at(work, begin),
                work->source_dtype, end - begin);
}

static zero_status cast_task(void *argument)
{
    launch *work = argument;
    spread(work->owner, work->count, cast_share, work);
    return ZERO_OK;
}

static void encode_share(void *argument, uint32_t share, uint32_t shares)
{
    const launch *work = argument;
    const zero_dtype dtype = work->target_dtype;
    const size_t begin = share_begin_by((size_t)ZI_GRANULE, work->count, share, shares);
    const size_t end = share_begin_by((size_t)ZI_GRANULE, work->count, share + 1, shares);
    unsigned char *scales = work->target_scales;
    zi_cpu_encode_blocks(target_at(work, begin), scales + zi_block_scales_bytes(dtype, begin),
                         dtype, source_at(work, begin), work->source_dtype, end - begin);
}

static zero_status encode_task(void *argument)
{
    launch *work = argument;
    spread(work->owner, work->count, encode_share, work);
    return ZERO_OK;
}

static void decode_share(void *argument, uint32_t share, uint32_t shares)
{
    const launch *work = argument;
    const zero_dtype dtype = work->source_dtype;
    const size_t begin = share_begin_by((size_t)ZI_GRANULE, work->count, share, shares);
    const size_t end = share_begin_by((size_t)ZI_GRANULE, work->count, share + 1, shares);
    const unsigned char *scales = work->source_scales;
    zi_cpu_decode_blocks(target_at(work, begin), work->target_dtype, source_at(work, begin),
                         scales + zi_block_scales_bytes(dtype, begin), dtype, end - begin);
}

static zero_status decode_task(void *argument)
{
    launch *work = argument;
    spread(work->owner, work->count, decode_share, work);
    return ZERO_OK;
}

static zero_status launch_task(launcher *owner, zi_stream *stream, zi_task_fn fn,
                               const launch *work)
{
    return owner->device->ops->task(owner->device->self, stream, fn, work, sizeof *work);
}

static zero_status launch_update(void *self, zi_stream *stream, const zi_update_job *job)
{
    const launch work = {.owner = self, .job = job};
    return launch_task(self, stream, update_task, &work);
}

static zero_status launch_measure(void *self, zi_stream *stream, const zi_update_job *job)
{
    const launch work = {.owner = self, .job = job};
    return launch_task(self, stream, measure_task, &work);
}

static zero_status launch_layers(void *self, zi_stream *stream, const zi_layers_job *job)
{
    const launcher *owner = self;
    return owner->device->ops->task(owner->device->self, stream, layers_task, job, sizeof *job);
}

static zero_status launch_square_sum(void *self, zi_stream *stream, const void *source,
                                     zero_dtype dtype, size_t count, zi_norm_sum *sum)
{
    const launch work = {
        .owner = self, .source = source, .source_dtype = dtype, .count = count, .sum = sum};
    return launch_task(self, stream, square_sum_task, &work);
}

static zero_status launch_cast(void *self, zi_stream *stream, void *target, zero_dtype target_dtype,
                               const void *source, zero_dtype source_dtype, size_t count)
{
    const launch work = {.owner = self,
                         .target = target,
                         .target_dtype = target_dtype,
                         .source = source,
                         .source_dtype = source_dtype,
                         .count = count};
    return launch_task(self, stream, cast_task, &work);
}

static zero_status launch_encode(void *self, zi_stream *stream, void *codes, void *scales,
                                 zero_dtype dtype, const void *source, zero_dtype source_dtype,
                                 size_t count)
{
    const launch work = {.owner = self,
                         .target = codes,
                         .target_scales = scales,
                         .target_dtype = dtype,
                         .source = source,
                         .source_dtype = source_dtype,
                         .count = count};
    return launch_task(self, stream, encode_task, &work);
}

static zero_status launch_decode(void *self, zi_stream *stream, void *target,
                                 zero_dtype target_dtype, const void *codes, const void *scales,
                                 zero_dtype dtype, size_t count)
{
    const launch work = {.owner = self,
                         .target = target,
                         .target_dtype = target_dtype,
                         .source = codes,
                         .source_scales = scales,
                         .source_dtype = dtype,
                         .count = count};
    return launch_task(self, stream, decode_task, &work);
}

_Static_assert(offsetof(zi_step_message, squares) == 0 &&
                   offsetof(zi_step_message, replica_nan) ==
                       (ZI_STEP_COLUMNS - 1) * sizeof(uint64_t),
               "a message begins with its columns");

static zero_status decide_task(void *argument)
{
    const zi_decide_job *job = argument;
    if ((job->phases & ZI_DECIDE_COLLECT) != 0) {
        zi_step_collect(job->input, &job->messages, zi_step_compare(&job->messages), job->state,
                        job->part);
    }
    if ((job->phases & ZI_DECIDE_CONCLUDE) != 0) {
        zi_step_conclude(job->input, job->parts, job->part_count, job->state, job->decision);
        zi_step_take_stalled(job->stalled, job->decision);
    }
    return ZERO_OK;
}

static zero_status launch_decide(void *self, zi_stream *stream, const zi_decide_job *job)
{
    const launcher *owner = self;
    return owner->device->ops->task(owner->device->self, stream, decide_task, job, sizeof *job);
}

/* Argument of a fold's task. */
typedef struct fold_work {
    launcher *owner;
    zi_fold fold;
} fold_work;

_Static_assert(sizeof(fold_work) <= ZI_TASK_ARGUMENT_BYTES, "a fold travels by value");

static void fold_share(void *argument, uint32_t share, uint32_t shares)
{
    const fold_work *work = argument;
    const zi_fold *fold = &work->fold;
    const size_t part = zi_fold_is_packed(fold) ? (size_t)ZI_GRANULE : ZI_NORM_CHUNK;
    const size_t begin = share_begin_by(part, fold->count, share, shares);
    const size_t end = share_begin_by(part, fold->count, share + 1, shares);
    if (fold->squares == NULL) {
        zi_cpu_fold_range(fold, begin, end, NULL);
        return;
    }
    zi_norm_sum own = {{0}, 0, 0};
    zi_cpu_fold_range(fold, begin, end, &own);
    merge_sum(work->owner, fold->squares, &own);
}

static zero_status fold_task(void *argument)
{
    fold_work *work = argument;
    spread(work->owner, work->fold.count, fold_share, work);
    return ZERO_OK;
}

static zero_status launch_fold(void *self, zi_stream *stream, const zi_fold *fold)
{
    launcher *owner = self;
    const fold_work work = {owner, *fold};
    return owner->device->ops->task(owner->device->self, stream, fold_task, &work, sizeof work);
}

static void launcher_destroy(void *self)
{
    launcher *owner = self;
    if (owner == NULL) {
        return;
    }
    (void)pthread_mutex_destroy(&owner->sum_mutex);
    (void)pthread_mutex_destroy(&owner->scratch_mutex);
    zi_free(owner->scratch);
    zi_free(owner);
}

static const zi_kernels_ops cpu_kernels_ops = {
    .struct_bytes = sizeof(zi_kernels_ops),
    .name = "cpu",
    .update = launch_update,
    .measure = launch_measure,
    .layers = launch_layers,
    .square_sum = launch_square_sum,
    .decide = launch_decide,
    .fold = launch_fold,
    .cast = launch_cast,
    .encode = launch_encode,
    .decode = launch_decode,
    .destroy = launcher_destroy,
};

zero_status zi_cpu_kernels_create(const zi_device *device, zi_pool *pool, zi_kernels *kernels)
{
    *kernels = (zi_kernels){0};
    launcher *owner = NULL;
    ZI_TRY(zi_calloc(1, sizeof *owner, (void **)&owner));
    owner->device = device;
    owner->pool = pool;
    (void)pthread_mutex_init(&owner->scratch_mutex, NULL);
    (void)pthread_mutex_init(&owner->sum_mutex, NULL);
    const zero_status status =
        zi_calloc(zi_pool_threads(pool), sizeof *owner->scratch, (void **)&owner->scratch);
    if (status != ZERO_OK) {
        launcher_destroy(owner);
        return status;
    }
    *kernels = (zi_kernels){.ops = &cpu_kernels_ops, .self = owner, .device = device};
    return ZERO_OK;
}
