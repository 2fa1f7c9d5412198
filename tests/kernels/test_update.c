/* Updates: each optimizer against double precision, and bit by bit against its lane function for
 * every combination of types, instruction set and split. */
#include "update_case.h"

static const size_t small_counts[] = {1, 22, 63, 64, 65, 0, 1000, 1024};
#define SMALL_COUNT (sizeof small_counts / sizeof small_counts[0])

/* Compare with what AdamW comes to in double, from the same fp32 state. */
static void check_reference(const float *before, const float *grad, const float *after,
                            const zero_adamw *adamw, int step)
{
    const double beta1 = (double)adamw->beta1;
    const double beta2 = (double)adamw->beta2;
    const double g = (double)*grad;
    const double m = beta1 * (double)before[1] + (1.0 - beta1) * g;
    const double v = beta2 * (double)before[2] + (1.0 - beta2) * g * g;
    const double c1 = 1.0 - pow(beta1, step);
    const double c2 = 1.0 - pow(beta2, step);
    const double change = (double)adamw->lr * (m / c1) / (sqrt(v / c2) + (double)adamw->eps);
    const double decay = 1.0 - (double)adamw->lr * (double)adamw->weight_decay;
    const double p = (double)before[0] * decay - change;
    /* Units in the last place of the terms: where they cancel the difference has no more. */
    const double ulp = 0x1p-23;
    const double m_terms = fabs(beta1 * (double)before[1]) + fabs((1.0 - beta1) * g);
    CHECK_NEAR(after[1], m, 2.0 * ulp * m_terms + 0x1p-149);
    CHECK_NEAR(after[2], v, 3.0 * ulp * v + 0x1p-149);
    /* The moments' own error is in the change too. */
    const double m_part = m == 0.0 ? 0.0 : fabs(change / m) * m_terms;
    const double p_bound =
        ulp * (2.0 * fabs((double)before[0]) + 4.0 * fabs(change) + 2.0 * m_part);
    CHECK_NEAR(after[0], p, p_bound + 0x1p-149);
}

static void run_reference(size_t count)
{
    const zero_adamw adamw = {1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f};
    update_case one;
    case_create(
        &one,
        (update_types){ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_F32, true, ZERO_OPTIMIZER_ADAMW},
        &count, 1, false);
    one.decision.grad_scale = 1.0f;
    float *p = one.job.param;
    float *m = one.job.state[ZI_STATE_MOMENT1];
    float *v = one.job.state[ZI_STATE_MOMENT2];
    const float *grad = one.job.grad;
    memset(m, 0, count * sizeof *m);
    memset(v, 0, count * sizeof *v);
    float *before = malloc(3 * count * sizeof *before);
    CHECK(before != NULL);
    for (int step = 1; step <= 3; step++) {
        one.decision.update = (uint64_t)step;
        double carried[ZI_CARRIED] = {pow((double)adamw.beta1, step - 1),
                                      pow((double)adamw.beta2, step - 1)};
        one.decision.groups[0].adamw = zi_adamw_decide(adamw, carried);
        for (size_t i = 0; i < count; i++) {
            before[3 * i] = p[i];
            before[3 * i + 1] = m[i];
            before[3 * i + 2] = v[i];
        }
        zi_cpu_update(&one.job, NULL, 0, 1);
        for (size_t i = 0; i < count; i++) {
            const float after[3] = {p[i], m[i], v[i]};
            check_reference(&before[3 * i], &grad[i], after, &adamw, step);
        }
    }
    free(before);
    case_destroy(&one);
}

/* One element of Lion and of SGD in double, from the same fp32 state: parameter, then moment. */
static void lion_in_double(const zero_lion *lion, double decay, const double state[2], double g,
                           double next[2])
{
    const double c = (double)lion->beta1 * state[1] + (1.0 - (double)lion->beta1) * g;
    const double sign = c > 0.0 ? 1.0 : c < 0.0 ? -1.0 : 0.0;
    next[0] = state[0] - (double)lion->lr * (sign + decay * state[0]);
    next[1] = (double)lion->beta2 * state[1] + (1.0 - (double)lion->beta2) * g;
}

static void sgd_in_double(const zero_sgd *sgd, double decay, const double state[2], double g,
                          double next[2])
{
    const double d = g + decay * state[0];
    next[1] = (double)sgd->momentum * state[1] + d;
    const bool nesterov = sgd->nesterov != 0.0f;
    const double direction = nesterov ? d + (double)sgd->momentum * next[1] : next[1];
    next[0] = state[0] - (double)sgd->lr * direction;
}

/* Steps of tensors of two groups, of which some do not decay, one state after the other. */
static void run_in_double(zero_optimizer optimizer)
{
    static const zero_lion lion[2] = {{1e-3f, 0.9f, 0.99f, 0.1f}, {3e-2f, 0.8f, 0.5f, 0.0f}};
    static const zero_sgd sgd[2] = {{1e-1f, 0.9f, 0.1f, 0.0f}, {3e-2f, 0.5f, 0.3f, 1.0f}};
    const zero_dtype f32 = ZERO_DTYPE_F32;
    update_case one;
    case_create(&one, (update_types){f32, f32, f32, true, optimizer}, small_counts, SMALL_COUNT,
                false);
    float *p = one.job.param;
    float *m = one.job.state[ZI_STATE_MOMENT1];
    const float *g = one.job.grad;
    for (int step = 0; step < 3; step++) {
        unsigned char *before = case_copy(&one);
        const float *old = (const float *)(const void *)before;
        const size_t array = one.bytes / CASE_ARRAYS / sizeof *old;
        zi_cpu_update(&one.job, NULL, 0, 1);
        for (size_t k = 0; k < SMALL_COUNT; k++) {
            const zi_segment *segment = &one.segments[k];
            const bool decays = (segment->flags & ZERO_TENSOR_NO_DECAY) == 0;
            for (size_t i = segment->offset; i < segment->offset + segment->count; i++) {
                const double state[2] = {(double)old[array + i], (double)old[3 * array + i]};
                const double grad = (double)g[i] * (double)one.decision.grad_scale;
                double next[2];
                if (optimizer == ZERO_OPTIMIZER_LION) {
                    const zero_lion *own = &lion[segment->group];
                    lion_in_double(own, decays ? (double)own->weight_decay : 0.0, state, grad,
                                   next);
                } else {
                    const zero_sgd *own = &sgd[segment->group];
                    sgd_in_double(own, decays ? (double)own->weight_decay : 0.0, state, grad, next);
                }
                /* Units in the last place of the terms, which are at most 0.2 here. */
                CHECK_NEAR((double)p[i], next[0], 4.0 * 0x1p-23 * 0.2);
                CHECK_NEAR((double)m[i], next[1], 4.0 * 0x1p-23 * 0.2);
            }
        }
        free(before);
    }
    case_destroy(&one);
}

TEST(lion_within_a_few_units_of_double_precision)
{
    run_in_double(ZERO_OPTIMIZER_LION);
}

TEST(sgd_within_a_few_units_of_double_precision)
{
    run_in_double(ZERO_OPTIMIZER_SGD);
}

TEST(adamw_within_a_few_units_of_double_precision)
{
    const size_t counts[] = {1, 22, 63, 64, 65, 1024, 100003, 1048576};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        run_reference(counts[i]);
    }
}

static void check_splits(update_case *one, const unsigned char *expected, const uint32_t *shares,
                         size_t parts_count)
{
    unsigned char *before = case_copy(one);
    zi_cpu_scratch *scratch = malloc(sizeof *scratch);
    CHECK(scratch != NULL);
    for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
        zi_cpu_lanes_select(set);
        for (size_t k = 0; k < parts_count; k++) {
            memcpy(one->memory, before, one->bytes);
            for (uint32_t share = shares[k]; share-- > 0;) {
                zi_cpu_update(&one->job, scratch, share, shares[k]);
            }
            CHECK_BYTES(one->memory, expected, one->bytes);
        }
    }
    memcpy(one->memory, before, one->bytes);
    free(scratch);
    free(before);
}

TEST(same_bits_for_every_type_instruction_set_and_split)
{
    const uint32_t shares[] = {1, 2, 3, 7, 64};
    for (size_t t = 0; t < CASE_TYPES; t++) {
        update_case one;
        case_create(&one, case_types(t), small_counts, SMALL_COUNT, true);
        unsigned char *expected = case_expected(&one);
        check_splits(&one, expected, shares, 5);
        free(expected);
        case_destroy(&one);
    }
}

/* Long enough for stores past the caches, on an aligned shard and on one that is not. */
TEST(same_bits_for_long_runs)
{
    const update_types types[] = {
        {ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, true, ZERO_OPTIMIZER_ADAMW},
        {ZERO_DTYPE_F32, ZERO_DTYPE_F16, ZERO_DTYPE_BF16, true, ZERO_OPTIMIZER_ADAMW},
        {ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, false, ZERO_OPTIMIZER_ADAMW},
    };
    const size_t counts[] = {300001, 100};
    const uint32_t shares[] = {1, 2};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        for (size_t shift = 0; shift < 2; shift++) {
            update_case one;
            case_create(&one, types[t], counts, 2, false);
            one.job.param = (unsigned char *)one.job.param + 2 * shift;
            unsigned char *expected = case_expected(&one);
            check_splits(&one, expected, shares, 2);
            free(expected);
            case_destroy(&one);
        }
    }
}

TEST(callback_with_the_same_arithmetic_gives_the_same_bits)
{
    const size_t counts[] = {5000, 1, 4096, 77};
    const uint32_t shares[] = {1, 3};
    for (size_t t = 0; t < CASE_ADAMW_TYPES; t++) {
        update_case one;
        case_create(&one, case_types(t), counts, 4, true);
        unsigned char *expected = case_expected(&one);
        one.job.optimizer = ZERO_OPTIMIZER_CALLBACK;
        one.job.update = case_callback;
        one.job.update_states = 2;
        one.job.update_user = &one.decision;
        check_splits(&one, expected, shares, 2);
        free(expected);
        case_destroy(&one);
    }
}

/* Check what a callback with fewer moments sees: an element's index, and NULL for what it did not
 * ask. */
static void add_index(void *user, const zero_update_range *range)
{
    (void)user;
    CHECK(range->moment1 == NULL && range->moment2 == NULL);
    for (size_t i = 0; i < range->count; i++) {
        range->param[i] = (float)(range->first + i) + range->grad[i];
    }
}

TEST(callback_without_moments_knows_where_it_is)
{
    const size_t counts[] = {9000, 100};
    update_case one;
    case_create(
        &one,
        (update_types){ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, true, ZERO_OPTIMIZER_ADAMW},
        counts, 2, false);
    one.job.optimizer = ZERO_OPTIMIZER_CALLBACK;
    one.job.update = add_index;
    one.job.update_states = 0;
    one.job.state[ZI_STATE_MOMENT1] = NULL;
    one.job.state[ZI_STATE_MOMENT2] = NULL;
    zi_cpu_scratch *scratch = malloc(sizeof *scratch);
    CHECK(scratch != NULL);
    for (uint32_t share = 0; share < 3; share++) {
        zi_cpu_update(&one.job, scratch, share, 3);
    }
    const float *grad = one.job.grad;
    const float *master = one.job.state[ZI_STATE_MASTER];
    const uint16_t *param = one.job.param;
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < counts[k]; i++) {
            const size_t at = one.segments[k].offset + i;
            const float first = (float)(one.segments[k].tensor_first + i);
            const float expected = first + grad[at] * one.decision.grad_scale;
            CHECK_SAME(master[at], expected);
            CHECK_EQ(param[at], zi_bf16_from_f32(expected));
        }
    }
    free(scratch);
    case_destroy(&one);
}

TEST(a_skipped_step_touches_nothing)
{
    zi_cpu_scratch *scratch = malloc(sizeof *scratch);
    CHECK(scratch != NULL);
    for (size_t t = 0; t < CASE_TYPES; t++) {
        update_case one;
        case_create(&one, case_types(t), small_counts, SMALL_COUNT, false);
        case_put(case_array(&one, 0), case_types(t).grad, 0, (float)NAN);
        one.decision.skip = 1;
        one.decision.grad_scale = (float)NAN;
        unsigned char *before = case_copy(&one);
        zi_cpu_update(&one.job, NULL, 0, 1);
        one.job.optimizer = ZERO_OPTIMIZER_CALLBACK;
        one.job.update = case_callback;
        one.job.update_states = 2;
        zi_cpu_update(&one.job, scratch, 0, 1);
        CHECK_BYTES(one.memory, before, one.bytes);
        free(before);
        case_destroy(&one);
    }
    free(scratch);
}

/* The random bits, seen through a parameter without a master: the mean of many tensors' roundings
 * is the value, two updates differ, and the place in a shard does not matter. */
TEST(stochastic_parameters_keep_their_mean)
{
    enum { COUNT = 65536 };
    const float value = 1.0f + 0x1p-9f * 0.3f;
    float *source = malloc(COUNT * sizeof *source);
    uint16_t *rounded = malloc(COUNT * sizeof *rounded);
    uint16_t *other = malloc(COUNT * sizeof *other);
    CHECK(source != NULL && rounded != NULL && other != NULL);
    for (size_t i = 0; i < COUNT; i++) {
        source[i] = value;
    }
    zi_lanes_rounding rounding = {.target = rounded,
                                  .source = source,
                                  .count = COUNT,
                                  .dtype = ZERO_DTYPE_BF16,
                                  .key = {test_seed, 1, 9, ZI_ROUNDING_PARAM}};
    for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
        const zi_cpu_lanes *lanes = zi_cpu_lanes_at(set);
        rounding.target = rounded;
        rounding.first = 0;
        rounding.count = COUNT;
        rounding.key.update = 1;
        lanes->round(&rounding);
        double mean = 0.0;
        for (size_t i = 0; i < COUNT; i++) {
            mean += (double)zi_f32_from_bf16(rounded[i]) / COUNT;
        }
        CHECK_NEAR(mean, (double)value, 5.0 * 0x1p-7 * 0.5 / sqrt((double)COUNT));
        rounding.target = other;
        rounding.key.update = 2;
        lanes->round(&rounding);
        CHECK(memcmp(rounded, other, COUNT * sizeof *other) != 0);
        rounding.key.update = 1;
        for (size_t first = 0; first < COUNT; first += rounding.count) {
            rounding.first = first;
            rounding.count = first % 3 == 0 ? 1 : 517;
            rounding.count = rounding.count < COUNT - first ? rounding.count : COUNT - first;
            rounding.target = other + first;
            lanes->round(&rounding);
        }
        CHECK_BYTES(rounded, other, COUNT * sizeof *other);
    }
    free(source);
    free(rounded);
    free(other);
}
