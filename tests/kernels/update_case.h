/* An optimizer pass over one shard, made from a seed, and the same pass written element by element
 * from the lane functions: what every instruction set, split and thread count must equal. */
#ifndef TESTS_KERNELS_UPDATE_CASE_H
#define TESTS_KERNELS_UPDATE_CASE_H

#include "harness.h"

#include "core/codec.h"
#include "core/memory.h"
#include "core/rng.h"
#include "kernels/cpu/lanes.h"
#include "kernels/math/code.h"
#include "kernels/math/convert.h"
#include "kernels/math/remainder.h"
#include "optimizer/optimizer.h"
#include "zero/random.h"

enum {
    CASE_GRAD,
    CASE_PARAM,
    CASE_STATES, /* the first of them: the master's */
    CASE_STALLED = CASE_STATES + ZI_STATES,
    CASE_ARRAYS
};

typedef struct update_types {
    zero_dtype grad;
    zero_dtype param;
    zero_dtype moment;
    zero_dtype master;        /* F32, also where the parameter is its own; a remainder; or NONE */
    zero_optimizer optimizer; /* DEFAULT: AdamW */
} update_types;

/* `job` points into `memory`, whose gaps between segments must survive. */
typedef struct update_case {
    zi_update_job job;
    zi_step_decision decision;
    zi_segment segments[16];
    zi_layer_sums sums[16]; /* each segment is a layer */
    zi_layer_norms norms[16];
    size_t elements; /* of the shard, gaps included */
    unsigned char *memory;
    size_t bytes;
} update_case;

static inline float case_get(const void *base, zero_dtype dtype, size_t i)
{
    if (dtype == ZERO_DTYPE_F32) {
        return ((const float *)base)[i];
    }
    const uint16_t value = ((const uint16_t *)base)[i];
    return dtype == ZERO_DTYPE_BF16 ? zi_f32_from_bf16(value) : zi_f32_from_f16(value);
}

static inline void case_put(void *base, zero_dtype dtype, size_t i, float value)
{
    if (dtype == ZERO_DTYPE_F32) {
        ((float *)base)[i] = value;
    } else {
        ((uint16_t *)base)[i] =
            dtype == ZERO_DTYPE_BF16 ? zi_bf16_from_f32(value) : zi_f16_from_f32(value);
    }
}

static inline void case_put_stochastic(void *base, zero_dtype dtype, size_t i, float value,
                                       uint32_t random)
{
    ((uint16_t *)base)[i] = dtype == ZERO_DTYPE_BF16 ? zi_bf16_from_f32_stochastic(value, random)
                                                     : zi_f16_from_f32_stochastic(value, random);
}

/* The same bits in every element, except that one NaN is as good as another. */
static inline void case_same(const void *left, const void *right, zero_dtype dtype, size_t count)
{
    const size_t bytes = zero_dtype_bytes(dtype);
    if (dtype != ZERO_DTYPE_F32 && dtype != ZERO_DTYPE_BF16 && dtype != ZERO_DTYPE_F16) {
        CHECK_BYTES(left, right, count * bytes);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const char *l = (const char *)left + i * bytes;
        const char *r = (const char *)right + i * bytes;
        if (memcmp(l, r, bytes) != 0 &&
            !(isnan(case_get(left, dtype, i)) && isnan(case_get(right, dtype, i)))) {
            TEST_FAIL("element %zu of %zu is %.9g and %.9g", i, count,
                      (double)case_get(left, dtype, i), (double)case_get(right, dtype, i));
        }
    }
}

/* Ordinary values with extremes strewn in. */
static inline float case_value(const float *normal, uint64_t i, bool squared, bool extremes)
{
    static const float odd[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-130f, 1e30f, -3e28f, 0x1p-60f};
    const float value = extremes && i % 17 == 3 ? odd[i / 17 % 7] : normal[i];
    return squared ? value * value * 1e-3f : value;
}

static inline void case_fill(void *base, zero_dtype dtype, size_t count, uint64_t stream,
                             bool extremes)
{
    if (zi_dtype_is_remainder(dtype) || zi_dtype_is_code(dtype)) {
        /* Each of their values is one. */
        for (size_t i = 0; i < count * zero_dtype_bytes(dtype); i++) {
            ((uint8_t *)base)[i] = (uint8_t)zi_philox(test_seed, i, stream).word[0];
        }
        return;
    }
    float *normal = malloc(count * sizeof *normal);
    CHECK(normal != NULL);
    zero_random_normal(test_seed, stream, 0, count, 0.0f, 0.02f, normal);
    /* The fourth array is the second moment, which is never negative. */
    for (size_t i = 0; i < count; i++) {
        float value = case_value(normal, i, stream == 4, extremes);
        value = fabsf(value) > 60000.0f && dtype == ZERO_DTYPE_F16 ? 60000.0f : value;
        value = stream == 4 && !(value < 1e30f) ? 1e30f : value;
        case_put(base, dtype, i, value);
    }
    free(normal);
}

/* Two groups, of different hyper-parameters; as the third update would be. */
static inline void case_decide(zi_step_decision *decision, zero_optimizer optimizer)
{
    memset(decision, 0, sizeof *decision);
    const zero_adamw adamw[2] = {{1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f},
                                 {3e-2f, 0.8f, 0.95f, 1e-6f, 0.0f}};
    const zero_lion lion[2] = {{1e-3f, 0.9f, 0.99f, 0.1f}, {3e-2f, 0.8f, 0.5f, 0.0f}};
    const zero_sgd sgd[2] = {{1e-1f, 0.9f, 0.1f, 0.0f}, {3e-2f, 0.5f, 0.3f, 1.0f}};
    const zero_lamb lamb[2] = {{1e-3f, 0.9f, 0.999f, 1e-6f, 0.1f, 0.0f, 0.0f, 0.0f},
                               {3e-2f, 0.8f, 0.95f, 1e-8f, 0.3f, 0.1f, 2.0f, 1.0f}};
    const zero_lars lars[2] = {{1e1f, 0.9f, 0.1f, 1e-3f, 1e-8f, 0.0f},
                               {3e-1f, 0.5f, 0.3f, 2e-2f, 0.0f, 1.0f}};
    decision->update = 3;
    decision->clip = 1.0;
    decision->grad_scale = 0.37f;
    decision->group_count = 2;
    for (uint32_t i = 0; i < 2; i++) {
        double carried[ZI_CARRIED] = {pow((double)adamw[i].beta1, 2.0),
                                      pow((double)adamw[i].beta2, 2.0)};
        zi_hyper hyper = {.kind = optimizer, .adamw = adamw[i]};
        if (optimizer == ZERO_OPTIMIZER_LION) {
            hyper.lion = lion[i];
        } else if (optimizer == ZERO_OPTIMIZER_SGD) {
            hyper.sgd = sgd[i];
        } else if (optimizer == ZERO_OPTIMIZER_LAMB) {
            hyper.lamb = lamb[i];
        } else if (optimizer == ZERO_OPTIMIZER_LARS) {
            hyper.lars = lars[i];
        }
        zi_optimizer_decide(hyper, carried, &decision->groups[i]);
    }
}

static inline void *case_array(update_case *one, size_t index)
{
    return one->memory + one->bytes / CASE_ARRAYS * index;
}

/* The kind of an array's values, and whether there is one for a block. */
static inline zi_codec case_codec(const update_case *one, size_t index)
{
    zi_codec codec = {ZERO_DTYPE_I8, false}; /* bytes */
    if (index == CASE_GRAD) {
        codec.dtype = one->job.grad_dtype;
    } else if (index == CASE_PARAM) {
        codec.dtype = one->job.param_dtype;
    } else if (index < CASE_STALLED) {
        codec = zi_job_state_codec(&one->job, (uint32_t)(index - CASE_STATES));
    }
    return codec;
}

/* Fill what the segments have of an array. */
static inline void case_fill_array(update_case *one, size_t index, bool extremes)
{
    const zi_codec codec = case_codec(one, index);
    const uint64_t each = codec.by_block ? ZERO_CODE_BLOCK : 1;
    for (size_t k = 0; k < one->job.segment_count; k++) {
        const zi_segment *segment = &one->segments[k];
        unsigned char *start = (unsigned char *)case_array(one, index) +
                               segment->offset / each * zero_dtype_bytes(codec.dtype);
        const size_t count = zi_codec_values(codec, segment->count);
        case_fill(start, codec.dtype, count, index, extremes);
        for (size_t i = 0; i < count && codec.by_block; i++) {
            ((uint16_t *)(void *)start)[i] &= 0x7fff; /* no scale is negative */
        }
    }
}

/* Count what has stalled, beside the case's arrays. */
static inline void case_count_stalled(update_case *one)
{
    one->job.stalled = case_array(one, CASE_STALLED);
}

/* A shard of segments of the given counts. The case must not move: its job points into it. */
static inline void case_create(update_case *one, update_types types, const size_t *counts,
                               size_t segment_count, bool extremes)
{
    memset(one, 0, sizeof *one);
    const zero_optimizer optimizer =
        types.optimizer != ZERO_OPTIMIZER_DEFAULT ? types.optimizer : ZERO_OPTIMIZER_ADAMW;
    case_decide(&one->decision, optimizer);
    for (size_t i = 0; i < segment_count; i++) {
        one->segments[i] = (zi_segment){.offset = one->elements,
                                        .count = counts[i],
                                        .tensor_first = 64 * (7 * i + 1) * (i % 3),
                                        .tensor = (uint32_t)(5 * i + 1),
                                        .group = (uint32_t)(i % 2),
                                        .flags = i % 3 == 1 ? ZERO_TENSOR_NO_DECAY : 0,
                                        .layer = (uint32_t)(segment_count - 1 - i)};
        one->norms[i] = (zi_layer_norms){0.7 + (double)i, i % 5 == 2 ? 0.0 : 0.3 + (double)(i % 3)};
        one->elements += (counts[i] + 63) / 64 * 64 + 64 * (i % 2);
    }
    const zi_segment *last = &one->segments[segment_count - 1];
    one->elements += 64;
    const size_t pages = (one->elements * sizeof(float) + ZI_PAGE_BYTES - 1) / ZI_PAGE_BYTES;
    one->bytes = CASE_ARRAYS * pages * ZI_PAGE_BYTES;
    CHECK_OK(zi_pages_alloc(one->bytes, (void **)&one->memory));
    memset(one->memory, 0xa5, one->bytes);
    const bool has_state[ZI_STATES] = {
        [ZI_STATE_MASTER] = types.param != ZERO_DTYPE_F32 && types.master != ZERO_DTYPE_NONE,
        [ZI_STATE_MOMENT1] = true,
        [ZI_STATE_MOMENT2] = zi_optimizer_moments(optimizer) > 1,
        [ZI_STATE_SCALE1] = zi_dtype_is_code(types.moment),
        [ZI_STATE_SCALE2] = zi_dtype_is_code(types.moment) && zi_optimizer_moments(optimizer) > 1,
    };
    one->job = (zi_update_job){
        .segments = one->segments,
        .segment_count = segment_count,
        .count = last->offset + last->count,
        .grad = case_array(one, CASE_GRAD),
        .param = case_array(one, CASE_PARAM),
        .master_dtype = types.master == ZERO_DTYPE_NONE ? ZERO_DTYPE_DEFAULT : types.master,
        .grad_dtype = types.grad,
        .param_dtype = types.param,
        .moment_dtype = types.moment,
        .seed = test_seed,
        .decision = &one->decision,
        .optimizer = optimizer,
        .sums = one->sums,
        .norms = one->norms,
        .layers = (uint32_t)segment_count,
    };
    for (size_t i = 0; i < ZI_STATES; i++) {
        one->job.state[i] = has_state[i] ? case_array(one, CASE_STATES + i) : NULL;
    }
    for (size_t i = 0; i < CASE_STALLED; i++) {
        case_fill_array(one, i, extremes);
    }
}

static inline void case_destroy(update_case *one)
{
    zi_pages_free(one->memory, one->bytes);
}

/* A fold that stores, and adds no squares; the caller may change it. */
static inline zi_fold case_fold(void *dst, zero_dtype to, const void *const *sources,
                                zero_dtype from, uint32_t source_count, size_t count)
{
    return (zi_fold){.dst = dst,
                     .sources = sources,
                     .source_count = source_count,
                     .count = count,
                     .dst_dtype = to,
                     .source_dtype = from};
}

/* The same bytes again. */
static inline unsigned char *case_copy(const update_case *one)
{
    unsigned char *copy = malloc(one->bytes);
    CHECK(copy != NULL);
    memcpy(copy, one->memory, one->bytes);
    return copy;
}

/* The state of one element as fp32. */
static inline zi_element_state case_state(const zi_update_job *job, size_t i)
{
    const uint16_t *param = job->param;
    const void *master =
        job->param_dtype == ZERO_DTYPE_F32 ? job->param : job->state[ZI_STATE_MASTER];
    zi_element_state state = {0};
    if (zi_job_has_remainder(job)) {
        state.p = job->master_dtype == ZERO_DTYPE_REMAINDER16
                      ? zi_join16(param[i], ((const uint16_t *)master)[i])
                      : zi_join8(param[i], ((const uint8_t *)master)[i]);
    } else {
        state.p = master != NULL ? case_get(master, ZERO_DTYPE_F32, i)
                                 : case_get(param, job->param_dtype, i);
    }
    float *const moments[ZI_MOMENTS_MAX] = {&state.m, &state.v};
    for (uint32_t k = 0; k < zi_optimizer_moments(job->optimizer); k++) {
        const void *values = job->state[ZI_STATE_MOMENT1 + k];
        if (zi_dtype_is_code(job->moment_dtype)) {
            const zero_dtype kind = zi_optimizer_code(job->optimizer, k);
            const uint16_t *scales = job->state[ZI_STATE_SCALE1 + k];
            *moments[k] = zi_code_value(kind, ((const uint8_t *)values)[i],
                                        zi_code_step(kind, scales[i / ZERO_CODE_BLOCK]));
        } else {
            *moments[k] = case_get(values, job->moment_dtype, i);
        }
    }
    return state;
}

/* Write an element's parameter, and its master where it has one. 1 if the master, or the parameter
 * that is its own, has the bits that it had. */
static inline uint64_t case_put_master(const zi_update_job *job, size_t i, float p, uint32_t random)
{
    uint16_t *param = job->param;
    void *master = job->param_dtype == ZERO_DTYPE_F32 ? job->param : job->state[ZI_STATE_MASTER];
    if (zi_job_has_remainder(job)) {
        const size_t bytes = zero_dtype_bytes(job->master_dtype);
        const zi_split split = bytes == 2 ? zi_split16(p) : zi_split8(p, random);
        uint32_t rest = 0;
        memcpy(&rest, (uint8_t *)master + i * bytes, bytes);
        const uint64_t same = param[i] == split.param && rest == split.rest;
        param[i] = (uint16_t)split.param;
        memcpy((uint8_t *)master + i * bytes, &split.rest, bytes);
        return same;
    }
    if (master != NULL) {
        const uint64_t same = memcmp((float *)master + i, &p, sizeof p) == 0;
        ((float *)master)[i] = p;
        if (job->param_dtype != ZERO_DTYPE_F32) {
            case_put(param, job->param_dtype, i, p);
        }
        return same;
    }
    const uint16_t before = param[i];
    case_put_stochastic(param, job->param_dtype, i, p, random);
    return param[i] == before;
}

/* Write a moment of a block's elements; random: the word of each. */
static inline void case_put_moment(const zi_update_job *job, uint32_t moment, size_t i,
                                   const zi_element_state *next, const uint32_t *random,
                                   size_t count)
{
    void *values = job->state[ZI_STATE_MOMENT1 + moment];
    const zero_dtype kind = zi_optimizer_code(job->optimizer, moment);
    uint32_t most = 0;
    for (size_t k = 0; k < count; k++) {
        const uint32_t magnitude = zi_code_magnitude(moment == 0 ? next[k].m : next[k].v);
        most = magnitude > most ? magnitude : most;
    }
    const uint16_t scale = zi_code_scale(most);
    for (size_t k = 0; k < count; k++) {
        const float value = moment == 0 ? next[k].m : next[k].v;
        if (zi_dtype_is_code(job->moment_dtype)) {
            const float measure =
                kind == ZERO_DTYPE_U8_ROOT ? next[k].root : zi_code_measure(kind, value);
            ((uint8_t *)values)[i + k] = zi_code_of(kind, value, measure, zi_code_gain(kind, scale),
                                                    zi_code_random(kind, random[k]));
        } else if (job->moment_dtype == ZERO_DTYPE_F32) {
            ((float *)values)[i + k] = value;
        } else {
            const zi_rounding_purpose purpose =
                moment == 0 ? ZI_ROUNDING_MOMENT1 : ZI_ROUNDING_MOMENT2;
            case_put_stochastic(values, job->moment_dtype, i + k, value,
                                zi_rounding_half(random[k], purpose));
        }
    }
    if (zi_dtype_is_code(job->moment_dtype)) {
        memset((uint8_t *)values + i + count, 0, ZERO_CODE_BLOCK - count);
        ((uint16_t *)job->state[ZI_STATE_SCALE1 + moment])[i / ZERO_CODE_BLOCK] = scale;
    }
}

/* The elements [first, first + count) of one segment, which begin a block and are of no other, in
 * place, from the lane functions alone. Returns how many of them have stalled. */
static inline uint64_t case_block(const zi_update_job *job, const zi_segment *segment,
                                  uint64_t first, size_t count)
{
    const size_t i = segment->offset + first;
    const zi_coeffs coeffs = zi_optimizer_trust(
        job->optimizer,
        zi_optimizer_coeffs(job->optimizer, job->decision->groups[segment->group], segment->flags),
        job->norms[segment->layer]);
    zi_element_state next[ZERO_CODE_BLOCK];
    uint32_t random[ZI_MOMENTS_MAX][ZERO_CODE_BLOCK];
    uint64_t stalled = 0;
    for (size_t k = 0; k < count; k++) {
        const uint64_t element = segment->tensor_first + first + k;
        zi_rounding_key key = {job->seed, job->decision->update, segment->tensor,
                               ZI_ROUNDING_PARAM};
        const float grad = case_get(job->grad, job->grad_dtype, i + k) * job->decision->grad_scale;
        next[k] = zi_optimizer_lane(job->optimizer, case_state(job, i + k), grad, coeffs);
        const uint64_t same = case_put_master(job, i + k, next[k].p,
                                              zi_rounding_bits(key, job->master_dtype, element));
        stalled += same & (uint64_t)(grad != 0.0f);
        key.purpose = ZI_ROUNDING_MOMENT1;
        random[0][k] = zi_rounding_word(key, job->moment_dtype, element);
        key.purpose = ZI_ROUNDING_MOMENT2;
        random[1][k] = zi_rounding_word(key, job->moment_dtype, element);
    }
    for (uint32_t m = 0; m < zi_optimizer_moments(job->optimizer); m++) {
        case_put_moment(job, m, i, next, random[m], count);
    }
    return stalled;
}

/* The whole job that way; returns the bytes it leaves and puts the case back. */
static inline unsigned char *case_expected(update_case *one)
{
    unsigned char *before = case_copy(one);
    uint64_t stalled = 0;
    for (size_t k = 0; k < one->job.segment_count; k++) {
        const zi_segment *segment = &one->job.segments[k];
        for (uint64_t i = 0; i < segment->count; i += ZERO_CODE_BLOCK) {
            stalled +=
                case_block(&one->job, segment, i, zi_min_u64(ZERO_CODE_BLOCK, segment->count - i));
        }
    }
    if (one->job.stalled != NULL) {
        *one->job.stalled += stalled;
    }
    unsigned char *after = case_copy(one);
    memcpy(one->memory, before, one->bytes);
    free(before);
    return after;
}

/* The sums that a measurement of the job adds to a segment's layer, by zi_norm_chunk from the lane
 * functions alone. */
static inline zi_layer_sums case_measured(const update_case *one, const zi_segment *segment)
{
    const zi_update_job *job = &one->job;
    const zi_coeffs coeffs =
        zi_optimizer_coeffs(job->optimizer, job->decision->groups[segment->group], segment->flags);
    zi_layer_sums sums = {{{0}, 0, 0}, {{0}, 0, 0}};
    for (uint64_t first = 0; first < segment->count; first += ZI_NORM_CHUNK) {
        float param[ZI_NORM_CHUNK] = {0};
        float direction[ZI_NORM_CHUNK] = {0};
        for (uint64_t k = 0; k < zi_min_u64(ZI_NORM_CHUNK, segment->count - first); k++) {
            const size_t i = segment->offset + first + k;
            const zi_element_state state = case_state(job, i);
            const float grad = case_get(job->grad, job->grad_dtype, i) * job->decision->grad_scale;
            param[k] = state.p;
            direction[k] = zi_optimizer_direction(job->optimizer, state, grad, coeffs);
        }
        zi_norm_add(&sums.param, zi_norm_chunk(param));
        zi_norm_add(&sums.direction, zi_norm_chunk(direction));
    }
    return sums;
}

/* The job's layers have these sums, with whatever carries waiting; they are zeros then. */
static inline void case_check_measured(update_case *one)
{
    for (size_t k = 0; k < one->job.segment_count; k++) {
        const zi_segment *segment = &one->segments[k];
        zi_layer_sums expected = case_measured(one, segment);
        zi_layer_sums *own = &one->sums[segment->layer];
        zi_norm_normalise(&expected.param);
        zi_norm_normalise(&expected.direction);
        zi_norm_normalise(&own->param);
        zi_norm_normalise(&own->direction);
        CHECK_BYTES(own, &expected, sizeof expected);
    }
    memset(one->sums, 0, sizeof one->sums);
}

/* Every combination of types that a job may have: of gradient, parameter and moments, with a master
 * copy, and without one where the parameter is narrow. Those of AdamW come first. */
#define CASE_ADAMW_TYPES ((size_t)30)
#define CASE_TYPES (5 * CASE_ADAMW_TYPES)
/* From here on the optimizers are layer-wise. */
#define CASE_LAYERWISE_FROM (3 * CASE_ADAMW_TYPES)
/* Those with small states: masters that are remainders, moments in codes. The first forms of each
 * optimizer have no codes. */
#define CASE_SMALL_FORMS ((size_t)11)
#define CASE_UNCODED_FORMS ((size_t)4)
#define CASE_SMALL_TYPES (15 * CASE_SMALL_FORMS)
#define CASE_SMALL_LAYERWISE_FROM (9 * CASE_SMALL_FORMS)

/* How loops go through them: under a sanitizer to every third, the seed says which, so that each
 * form of states is among them with one gradient or another. */
#define CASE_FIRST_TYPE ((size_t)(UNDER_SANITIZER ? test_seed % 3 : 0))
#define CASE_TYPE_STEP ((size_t)(UNDER_SANITIZER ? 3 : 1))

static const zero_optimizer case_optimizers[] = {ZERO_OPTIMIZER_ADAMW, ZERO_OPTIMIZER_LION,
                                                 ZERO_OPTIMIZER_SGD, ZERO_OPTIMIZER_LAMB,
                                                 ZERO_OPTIMIZER_LARS};
static const zero_dtype case_grads[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};

static inline update_types case_types(size_t index)
{
    static const zero_dtype moments[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16};
    static const struct {
        zero_dtype param;
        zero_dtype master;
    } forms[] = {{ZERO_DTYPE_F32, ZERO_DTYPE_F32},
                 {ZERO_DTYPE_BF16, ZERO_DTYPE_F32},
                 {ZERO_DTYPE_BF16, ZERO_DTYPE_NONE},
                 {ZERO_DTYPE_F16, ZERO_DTYPE_F32},
                 {ZERO_DTYPE_F16, ZERO_DTYPE_NONE}};
    return (update_types){.grad = case_grads[index / 10 % 3],
                          .param = forms[index % 5].param,
                          .moment = moments[index / 5 % 2],
                          .master = forms[index % 5].master,
                          .optimizer = case_optimizers[index / CASE_ADAMW_TYPES]};
}

static inline update_types case_small_types(size_t index)
{
    static const update_types forms[CASE_SMALL_FORMS] = {
        {.param = ZERO_DTYPE_BF16, .master = ZERO_DTYPE_REMAINDER16, .moment = ZERO_DTYPE_F32},
        {.param = ZERO_DTYPE_BF16, .master = ZERO_DTYPE_REMAINDER8, .moment = ZERO_DTYPE_F32},
        {.param = ZERO_DTYPE_BF16, .master = ZERO_DTYPE_REMAINDER16, .moment = ZERO_DTYPE_BF16},
        {.param = ZERO_DTYPE_BF16, .master = ZERO_DTYPE_REMAINDER8, .moment = ZERO_DTYPE_BF16},
        {.param = ZERO_DTYPE_BF16, .master = ZERO_DTYPE_REMAINDER16, .moment = ZERO_DTYPE_I8},
        {.param = ZERO_DTYPE_BF16, .master = ZERO_DTYPE_REMAINDER8, .moment = ZERO_DTYPE_I8},
        {.param = ZERO_DTYPE_F32, .master = ZERO_DTYPE_F32, .moment = ZERO_DTYPE_I8},
        {.param = ZERO_DTYPE_BF16, .master = ZERO_DTYPE_F32, .moment = ZERO_DTYPE_I8},
        {.param = ZERO_DTYPE_BF16, .master = ZERO_DTYPE_NONE, .moment = ZERO_DTYPE_I8},
        {.param = ZERO_DTYPE_F16, .master = ZERO_DTYPE_F32, .moment = ZERO_DTYPE_I8},
        {.param = ZERO_DTYPE_F16, .master = ZERO_DTYPE_NONE, .moment = ZERO_DTYPE_I8},
    };
    update_types types = forms[index % CASE_SMALL_FORMS];
    types.grad = case_grads[index / CASE_SMALL_FORMS % 3];
    types.optimizer = case_optimizers[index / CASE_SMALL_FORMS / 3];
    return types;
}

/* AdamW as a caller of the library would write it on top of the callback form. */
static inline void case_callback(void *user, const zero_update_range *range)
{
    const zi_step_decision *decision = user;
    const zi_coeffs coeffs =
        zi_optimizer_coeffs(ZERO_OPTIMIZER_ADAMW, decision->groups[range->group], range->flags);
    CHECK(range->count >= 1 && range->count <= 4096);
    CHECK_EQ(range->step, decision->update);
    for (size_t i = 0; i < range->count; i++) {
        const zi_element_state state = {range->param[i], range->moment1[i], range->moment2[i],
                                        0.0f};
        const zi_element_state next = zi_adamw_lane(state, range->grad[i], coeffs.adamw);
        range->param[i] = next.p;
        range->moment1[i] = next.m;
        range->moment2[i] = next.v;
    }
}

#endif
