/* An optimizer pass over one shard, made from a seed, and the same pass written element by element
 * from the lane functions: what every instruction set, split and thread count must equal. */
#ifndef TESTS_KERNELS_UPDATE_CASE_H
#define TESTS_KERNELS_UPDATE_CASE_H

#include "harness.h"

#include "core/memory.h"
#include "core/rng.h"
#include "kernels/cpu/lanes.h"
#include "kernels/math/convert.h"
#include "optimizer/optimizer.h"
#include "zero/random.h"

#define CASE_ARRAYS 5 /* grad, param, master, moment1, moment2 */

typedef struct update_types {
    zero_dtype grad;
    zero_dtype param;
    zero_dtype moment;
    bool master;
    zero_optimizer optimizer; /* DEFAULT: AdamW */
} update_types;

/* `job` points into `memory`, whose gaps between segments must survive. */
typedef struct update_case {
    zi_update_job job;
    zi_step_decision decision;
    zi_segment segments[16];
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
        }
        zi_optimizer_decide(hyper, carried, &decision->groups[i]);
    }
}

static inline void *case_array(update_case *one, size_t index)
{
    return one->memory + one->bytes / CASE_ARRAYS * index;
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
                                        .flags = i % 3 == 1 ? ZERO_TENSOR_NO_DECAY : 0};
        one->elements += (counts[i] + 63) / 64 * 64 + 64 * (i % 2);
    }
    const zi_segment *last = &one->segments[segment_count - 1];
    one->elements += 64;
    const size_t pages = (one->elements * sizeof(float) + ZI_PAGE_BYTES - 1) / ZI_PAGE_BYTES;
    one->bytes = CASE_ARRAYS * pages * ZI_PAGE_BYTES;
    CHECK_OK(zi_pages_alloc(one->bytes, (void **)&one->memory));
    memset(one->memory, 0xa5, one->bytes);
    const bool own_master = types.param == ZERO_DTYPE_F32;
    one->job = (zi_update_job){
        .segments = one->segments,
        .segment_count = segment_count,
        .count = last->offset + last->count,
        .grad = case_array(one, 0),
        .param = case_array(one, 1),
        .state[ZI_STATE_MASTER] = types.master && !own_master ? case_array(one, 2) : NULL,
        .state[ZI_STATE_MOMENT1] = case_array(one, 3),
        .state[ZI_STATE_MOMENT2] = zi_optimizer_moments(optimizer) > 1 ? case_array(one, 4) : NULL,
        .grad_dtype = types.grad,
        .param_dtype = types.param,
        .moment_dtype = types.moment,
        .seed = test_seed,
        .decision = &one->decision,
        .optimizer = optimizer,
    };
    const zero_dtype dtypes[CASE_ARRAYS] = {types.grad, types.param, ZERO_DTYPE_F32, types.moment,
                                            types.moment};
    for (size_t k = 0; k < CASE_ARRAYS; k++) {
        for (size_t i = 0; i < segment_count; i++) {
            unsigned char *start = (unsigned char *)case_array(one, k) +
                                   one->segments[i].offset * zero_dtype_bytes(dtypes[k]);
            case_fill(start, dtypes[k], counts[i], k, extremes);
        }
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

/* One element of one segment, in place, from the lane functions alone. */
static inline void case_element(const zi_update_job *job, const zi_segment *segment, uint64_t index)
{
    const size_t i = segment->offset + index;
    const zi_coeffs coeffs =
        zi_optimizer_coeffs(job->optimizer, job->decision->groups[segment->group], segment->flags);
    const bool has_second = job->state[ZI_STATE_MOMENT2] != NULL;
    float *master = job->param_dtype == ZERO_DTYPE_F32 ? job->param : job->state[ZI_STATE_MASTER];
    const zi_element_state state = {
        master != NULL ? master[i] : case_get(job->param, job->param_dtype, i),
        case_get(job->state[ZI_STATE_MOMENT1], job->moment_dtype, i),
        has_second ? case_get(job->state[ZI_STATE_MOMENT2], job->moment_dtype, i) : 0.0f};
    const float grad = case_get(job->grad, job->grad_dtype, i) * job->decision->grad_scale;
    const zi_element_state next = zi_optimizer_lane(job->optimizer, state, grad, coeffs);
    zi_rounding_key key = {job->seed, job->decision->update, segment->tensor, ZI_ROUNDING_PARAM};
    const uint64_t element = segment->tensor_first + index;
    if (master != NULL) {
        master[i] = next.p;
        if (job->param_dtype != ZERO_DTYPE_F32) {
            case_put(job->param, job->param_dtype, i, next.p);
        }
    } else {
        case_put_stochastic(job->param, job->param_dtype, i, next.p,
                            zi_rounding_bits(key, element));
    }
    if (job->moment_dtype == ZERO_DTYPE_F32) {
        ((float *)job->state[ZI_STATE_MOMENT1])[i] = next.m;
        if (has_second) {
            ((float *)job->state[ZI_STATE_MOMENT2])[i] = next.v;
        }
        return;
    }
    key.purpose = ZI_ROUNDING_MOMENT1;
    case_put_stochastic(job->state[ZI_STATE_MOMENT1], job->moment_dtype, i, next.m,
                        zi_rounding_bits(key, element));
    if (has_second) {
        key.purpose = ZI_ROUNDING_MOMENT2;
        case_put_stochastic(job->state[ZI_STATE_MOMENT2], job->moment_dtype, i, next.v,
                            zi_rounding_bits(key, element));
    }
}

/* The whole job that way; returns the bytes it leaves and puts the case back. */
static inline unsigned char *case_expected(update_case *one)
{
    unsigned char *before = case_copy(one);
    for (size_t k = 0; k < one->job.segment_count; k++) {
        for (uint64_t i = 0; i < one->segments[k].count; i++) {
            case_element(&one->job, &one->segments[k], i);
        }
    }
    unsigned char *after = case_copy(one);
    memcpy(one->memory, before, one->bytes);
    free(before);
    return after;
}

/* Every combination of types that a job may have: of gradient, parameter and moments, with a master
 * copy, and without one where the parameter is narrow. Those of AdamW come first. */
#define CASE_ADAMW_TYPES ((size_t)30)
#define CASE_TYPES (3 * CASE_ADAMW_TYPES)

static inline update_types case_types(size_t index)
{
    static const zero_dtype dtypes[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};
    static const zero_optimizer optimizers[] = {ZERO_OPTIMIZER_ADAMW, ZERO_OPTIMIZER_LION,
                                                ZERO_OPTIMIZER_SGD};
    static const struct {
        int param;
        bool master;
    } forms[] = {{0, true}, {1, true}, {1, false}, {2, true}, {2, false}};
    return (update_types){.grad = dtypes[index / 10 % 3],
                          .param = dtypes[forms[index % 5].param],
                          .moment = dtypes[index / 5 % 2],
                          .master = forms[index % 5].master,
                          .optimizer = optimizers[index / CASE_ADAMW_TYPES]};
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
        const zi_element_state state = {range->param[i], range->moment1[i], range->moment2[i]};
        const zi_element_state next = zi_adamw_lane(state, range->grad[i], coeffs.adamw);
        range->param[i] = next.p;
        range->moment1[i] = next.m;
        range->moment2[i] = next.v;
    }
}

#endif
