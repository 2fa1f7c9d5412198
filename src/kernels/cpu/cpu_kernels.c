/* Owns the walk over a job's segments and the direct forms of the kernels.
 * Invariant: a job is divided between threads in units of 64 elements of the shard, and what an
 * element becomes does not depend on where those cuts lie. */
#include "kernels/cpu/cpu_kernels.h"

#include "core/check.h"
#include "core/sizes.h"
#include "kernels/cpu/lanes.h"

/* The elements of one part of a divided job. */
#define UNIT 64

void zi_cpu_fold(const zi_fold *fold)
{
    zi_cpu_fold_range(fold, 0, fold->count, fold->squares);
}

void zi_cpu_fold_range(const zi_fold *fold, size_t begin, size_t end, zi_norm_sum *squares)
{
    zi_assert_cmp(begin % (zi_fold_is_packed(fold) ? ZI_GRANULE : ZI_NORM_CHUNK), ==, 0);
    zi_cpu_lanes_current()->fold(fold, begin, end, squares);
}

void zi_cpu_cast(void *target, zero_dtype target_dtype, const void *source, zero_dtype source_dtype,
                 size_t count)
{
    zi_assert(count == 0 || target != source || target_dtype == source_dtype);
    zi_cpu_lanes_current()->cast(target, target_dtype, source, source_dtype, count);
}

void zi_cpu_square_sum(const void *source, zero_dtype dtype, size_t count, zi_norm_sum *sum)
{
    zi_cpu_lanes_current()->square_sum(source, dtype, count, sum);
}

void zi_cpu_encode_blocks(void *codes, void *scales, zero_dtype dtype, const void *source,
                          zero_dtype source_dtype, size_t count)
{
    zi_cpu_lanes_current()->encode_blocks(codes, scales, dtype, source, source_dtype, count);
}

void zi_cpu_decode_blocks(void *target, zero_dtype target_dtype, const void *codes,
                          const void *scales, zero_dtype dtype, size_t count)
{
    zi_cpu_lanes_current()->decode_blocks(target, target_dtype, codes, scales, dtype, count);
}

static unsigned char *cpu_kernels_element(void *base, zero_dtype dtype, uint64_t index)
{
    return base == NULL ? NULL : (unsigned char *)base + index * zero_dtype_bytes(dtype);
}

static const unsigned char *element_const(const void *base, zero_dtype dtype, uint64_t index)
{
    return (const unsigned char *)base + index * zero_dtype_bytes(dtype);
}

/* The fp32 array that holds the job's parameter exactly; NULL: there is none. */
static float *job_master(const zi_update_job *job)
{
    if (zi_job_has_remainder(job)) {
        return NULL;
    }
    return job->param_dtype == ZERO_DTYPE_F32 ? job->param : job->state[ZI_STATE_MASTER];
}

/* A state from an element on, which begins a block where there is a value for each; NULL: the job
 * has none. */
static void *state_at(const zi_update_job *job, uint32_t state, uint64_t element)
{
    const zi_codec codec = zi_job_state_codec(job, state);
    return cpu_kernels_element(job->state[state], codec.dtype,
                               codec.by_block ? element / ZERO_CODE_BLOCK : element);
}

/* Elements [start, start + count) of it. */
typedef struct segment_range {
    const zi_segment *segment;
    uint64_t start;
    uint64_t count;
} segment_range;

static zi_rounding_key range_key(const zi_update_job *job, const segment_range *elements)
{
    return (zi_rounding_key){.seed = job->seed,
                             .update = job->decision->update,
                             .tensor = elements->segment->tensor,
                             .purpose = ZI_ROUNDING_PARAM};
}

static zi_lanes_update lanes_of(const zi_update_job *job, const segment_range *elements)
{
    const zi_segment *segment = elements->segment;
    const uint64_t at = segment->offset + elements->start;
    zi_assert_cmp(segment->group, <, job->decision->group_count);
    const bool own_master = job->param_dtype == ZERO_DTYPE_F32 || job->param == NULL;
    return (zi_lanes_update){
        .optimizer = job->optimizer,
        .grad = element_const(job->grad, job->grad_dtype, at),
        .param = own_master ? NULL : cpu_kernels_element(job->param, job->param_dtype, at),
        .master = zi_job_has_remainder(job)
                      ? state_at(job, ZI_STATE_MASTER, at)
                      : cpu_kernels_element(job_master(job), ZERO_DTYPE_F32, at),
        .moment1 = state_at(job, ZI_STATE_MOMENT1, at),
        .moment2 = state_at(job, ZI_STATE_MOMENT2, at),
        .scale1 = state_at(job, ZI_STATE_SCALE1, at),
        .scale2 = state_at(job, ZI_STATE_SCALE2, at),
        .count = elements->count,
        .grad_dtype = job->grad_dtype,
        .param_dtype = own_master ? ZERO_DTYPE_NONE : job->param_dtype,
        .master_dtype = zi_job_has_remainder(job) ? job->master_dtype : ZERO_DTYPE_F32,
        .moment_dtype = job->moment_dtype,
        .grad_scale = job->decision->grad_scale,
        .coeffs = zi_optimizer_coeffs(job->optimizer, job->decision->groups[segment->group],
                                      segment->flags),
        .key = range_key(job, elements),
        .first = segment->tensor_first + elements->start,
    };
}

static uint64_t update_lanes(const zi_update_job *job, const segment_range *elements)
{
    zi_lanes_update update = lanes_of(job, elements);
    if (zi_optimizer_is_layerwise(job->optimizer)) {
        update.coeffs =
            zi_optimizer_trust(job->optimizer, update.coeffs, job->norms[elements->segment->layer]);
    }
    return zi_cpu_lanes_current()->update(&update);
}

/* A moment as fp32: itself, or unpacked into `scratch`; NULL when the job has none. */
static float *moment_open(const zi_update_job *job, void *moment, uint64_t at, uint64_t count,
                          float *scratch)
{
    unsigned char *place = cpu_kernels_element(moment, job->moment_dtype, at);
    if (place == NULL || job->moment_dtype == ZERO_DTYPE_F32) {
        return (float *)(void *)place;
    }
    zi_cpu_cast(scratch, ZERO_DTYPE_F32, place, job->moment_dtype, count);
    return scratch;
}

static void round_back(const zi_update_job *job, const segment_range *elements, void *base,
                       const float *values, zi_rounding_purpose purpose)
{
    const zero_dtype dtype = purpose == ZI_ROUNDING_PARAM ? job->param_dtype : job->moment_dtype;
    zi_lanes_rounding round = {
        .target = cpu_kernels_element(base, dtype, elements->segment->offset + elements->start),
        .source = values,
        .count = elements->count,
        .dtype = dtype,
        .key = range_key(job, elements),
        .first = elements->segment->tensor_first + elements->start,
    };
    round.key.purpose = purpose;
    zi_cpu_lanes_current()->round(&round);
}

/* Parameters that have remainders. */
static void split_back(const zi_update_job *job, const segment_range *elements, const float *values)
{
    const uint64_t at = elements->segment->offset + elements->start;
    uint16_t *param = (uint16_t *)job->param + at;
    void *rest = state_at(job, ZI_STATE_MASTER, at);
    if (job->master_dtype == ZERO_DTYPE_REMAINDER16) {
        zi_cpu_split(param, rest, job->master_dtype, values, elements->count);
        return;
    }
    const zi_lanes_rounding round = {
        .target = param,
        .rest = rest,
        .source = values,
        .count = elements->count,
        .dtype = job->master_dtype,
        .key = range_key(job, elements),
        .first = elements->segment->tensor_first + elements->start,
    };
    zi_cpu_lanes_current()->round(&round);
}

/* At most ZI_CPU_RANGE_COUNT elements through the caller's own optimizer. */
static void update_callback(const zi_update_job *job, zi_cpu_scratch *scratch,
                            const segment_range *elements)
{
    const zi_segment *segment = elements->segment;
    const uint64_t at = segment->offset + elements->start;
    float *master = job_master(job);
    float *param = master != NULL ? master + at : scratch->param;
    if (zi_job_has_remainder(job)) {
        zi_cpu_join(param, (const uint16_t *)job->param + at, state_at(job, ZI_STATE_MASTER, at),
                    job->master_dtype, elements->count);
    } else if (master == NULL) {
        zi_cpu_cast(param, ZERO_DTYPE_F32, cpu_kernels_element(job->param, job->param_dtype, at),
                    job->param_dtype, elements->count);
    }
    float *moment1 = job->update_states >= 1 ? moment_open(job, job->state[ZI_STATE_MOMENT1], at,
                                                           elements->count, scratch->moment1)
                                             : NULL;
    float *moment2 = job->update_states >= 2 ? moment_open(job, job->state[ZI_STATE_MOMENT2], at,
                                                           elements->count, scratch->moment2)
                                             : NULL;
    zi_cpu_lanes_current()->scale(scratch->grad, element_const(job->grad, job->grad_dtype, at),
                                  job->grad_dtype, job->decision->grad_scale, elements->count);
    const zero_update_range range = {
        .struct_bytes = sizeof range,
        .tensor = segment->tensor,
        .first = segment->tensor_first + elements->start,
        .count = elements->count,
        .step = job->decision->update,
        .group = segment->group,
        .flags = segment->flags,
        .param = param,
        .grad = scratch->grad,
        .moment1 = moment1,
        .moment2 = moment2,
    };
    job->update(job->update_user, &range);
    if (zi_job_has_remainder(job)) {
        split_back(job, elements, param);
    } else if (master == NULL) {
        round_back(job, elements, job->param, param, ZI_ROUNDING_PARAM);
    } else if (job->param_dtype != ZERO_DTYPE_F32 && job->param != NULL) {
        zi_cpu_cast(cpu_kernels_element(job->param, job->param_dtype, at), job->param_dtype, param,
                    ZERO_DTYPE_F32, elements->count);
    }
    if (moment1 == scratch->moment1) {
        round_back(job, elements, job->state[ZI_STATE_MOMENT1], moment1, ZI_ROUNDING_MOMENT1);
    }
    if (moment2 == scratch->moment2) {
        round_back(job, elements, job->state[ZI_STATE_MOMENT2], moment2, ZI_ROUNDING_MOMENT2);
    }
}

/* Returns how many elements have stalled. */
static uint64_t update_range(const zi_update_job *job, zi_cpu_scratch *scratch,
                             segment_range elements)
{
    if (job->optimizer != ZERO_OPTIMIZER_CALLBACK) {
        return update_lanes(job, &elements);
    }
    zi_assert(!zi_dtype_is_code(job->moment_dtype));
    const uint64_t end = elements.start + elements.count;
    while (elements.start < end) {
        elements.count = zi_min_u64(ZI_CPU_RANGE_COUNT, end - elements.start);
        update_callback(job, scratch, &elements);
        elements.start += elements.count;
    }
    return 0;
}

/* Units of segments[0..count). */
static uint64_t unit_count(const zi_segment *segments, size_t count)
{
    uint64_t units = 0;
    for (size_t i = 0; i < count; i++) {
        units += zi_div_up(segments[i].count, UNIT);
    }
    return units;
}

/* A walk over one share of a job. */
typedef struct share_walk {
    uint64_t begin; /* units */
    uint64_t end;
    uint64_t passed; /* those of the segments before `segment` */
    size_t segment;
} share_walk;

static share_walk walk_of(const zi_update_job *job, uint32_t share, uint32_t shares)
{
    zi_assert_cmp(share, <, shares);
    const uint64_t units = unit_count(job->segments, job->segment_count);
    /* Shares differ by at most one unit; written so that nothing wraps. */
    const uint64_t each = units / shares;
    const uint64_t extra = units % shares;
    const uint64_t begin = each * share + zi_min_u64(share, extra);
    return (share_walk){.begin = begin, .end = begin + each + (share < extra)};
}

/* The next range of the share; false: there is none. */
static bool walk_on(const zi_update_job *job, share_walk *walk, segment_range *range)
{
    while (walk->segment < job->segment_count && walk->passed < walk->end) {
        const zi_segment *segment = &job->segments[walk->segment++];
        const uint64_t own = zi_div_up(segment->count, UNIT);
        const uint64_t from = zi_max_u64(walk->begin, walk->passed);
        const uint64_t until = zi_min_u64(walk->end, walk->passed + own);
        const uint64_t passed = walk->passed;
        walk->passed += own;
        if (from < until) {
            const uint64_t start = (from - passed) * UNIT;
            const uint64_t stop = zi_min_u64((until - passed) * UNIT, segment->count);
            *range = (segment_range){segment, start, stop - start};
            return true;
        }
    }
    return false;
}

void zi_cpu_update(const zi_update_job *job, zi_cpu_scratch *scratch, uint32_t share,
                   uint32_t shares)
{
    segment_range range;
    uint64_t stalled = 0;
    if (job->decision->skip) {
        return;
    }
    zi_assert(job->optimizer != ZERO_OPTIMIZER_CALLBACK || scratch != NULL);
    share_walk walk = walk_of(job, share, shares);
    while (walk_on(job, &walk, &range)) {
        stalled += update_range(job, scratch, range);
    }
    if (stalled > 0 && job->stalled != NULL) { /* another thread may be adding its own */
        (void)__atomic_fetch_add(job->stalled, stalled, __ATOMIC_RELAXED);
    }
}

/* target += sum, exactly, while others add to it. Of a sum without carries each word is less than
 * one addition in the sense of ZI_NORM_ADDITIONS_MAX. */
static void add_shared(zi_norm_sum *target, zi_norm_sum *sum)
{
    zi_norm_normalise(sum);
    for (int i = 0; i < ZI_NORM_LIMBS; i++) {
        (void)__atomic_fetch_add(&target->limb[i], sum->limb[i], __ATOMIC_RELAXED);
    }
    (void)__atomic_fetch_add(&target->infinite_chunks, sum->infinite_chunks, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&target->nan_chunks, sum->nan_chunks, __ATOMIC_RELAXED);
}

void zi_cpu_measure(const zi_update_job *job, uint32_t share, uint32_t shares)
{
    segment_range range;
    if (job->decision->skip) {
        return;
    }
    share_walk walk = walk_of(job, share, shares);
    while (walk_on(job, &walk, &range)) {
        const zi_lanes_update update = lanes_of(job, &range);
        zi_layer_sums own = {{{0}, 0, 0}, {{0}, 0, 0}};
        zi_layer_sums *sums = &job->sums[range.segment->layer];
        zi_cpu_lanes_current()->measure(&update, &own);
        add_shared(&sums->param, &own.param);
        add_shared(&sums->direction, &own.direction);
    }
}
