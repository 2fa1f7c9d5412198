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
    case_create(&one,
                (update_types){ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_F32,
                               ZERO_OPTIMIZER_ADAMW},
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
    case_create(&one, (update_types){f32, f32, f32, ZERO_DTYPE_F32, optimizer}, small_counts,
                SMALL_COUNT, false);
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
                const double state[2] = {(double)old[array + i],
                                         (double)old[(CASE_STATES + ZI_STATE_MOMENT1) * array + i]};
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

/* One element in double, from the same fp32 state: parameter, then moments. *direction: LAMB's
 * update before its rate, or LARS' gradient. rate: by the norms. */
static void lamb_in_double(const zero_lamb *lamb, double decay, double rate, const double state[3],
                           double g, double next[3], double *direction)
{
    const double beta1 = (double)lamb->beta1;
    const double beta2 = (double)lamb->beta2;
    next[1] = beta1 * state[1] + (1.0 - beta1) * g;
    next[2] = beta2 * state[2] + (1.0 - beta2) * g * g;
    const double m = next[1] / (1.0 - pow(beta1, 3));
    const double v = next[2] / (1.0 - pow(beta2, 3));
    *direction = m / (sqrt(v) + (double)lamb->eps) + decay * state[0];
    next[0] = state[0] - (double)lamb->lr * rate * *direction;
}

static void lars_in_double(const zero_lars *lars, double decay, double rate, const double state[3],
                           double g, double next[3], double *direction)
{
    *direction = g;
    next[1] = (double)lars->momentum * state[1] + (double)lars->lr * rate * (g + decay * state[0]);
    next[2] = state[2];
    next[0] = state[0] - next[1];
}

static const zero_lamb case_lamb[2] = {{1e-3f, 0.9f, 0.999f, 1e-6f, 0.1f, 0.0f, 0.0f, 0.0f},
                                       {3e-2f, 0.8f, 0.95f, 1e-8f, 0.3f, 0.1f, 2.0f, 1.0f}};
static const zero_lars case_lars[2] = {{1e1f, 0.9f, 0.1f, 1e-3f, 1e-8f, 0.0f},
                                       {3e-1f, 0.5f, 0.3f, 2e-2f, 0.0f, 1.0f}};

/* The rate of a segment by norms in double, as the papers have it. */
static double rate_in_double(zero_optimizer optimizer, const zi_segment *segment, double param,
                             double direction)
{
    const bool decays = (segment->flags & ZERO_TENSOR_NO_DECAY) == 0;
    const zero_lamb *lamb = &case_lamb[segment->group];
    const zero_lars *lars = &case_lars[segment->group];
    const float adapts =
        optimizer == ZERO_OPTIMIZER_LAMB ? lamb->adapt_undecayed : lars->adapt_undecayed;
    if (param == 0.0 || direction == 0.0 || (!decays && adapts == 0.0f)) {
        return 1.0;
    }
    if (optimizer == ZERO_OPTIMIZER_LARS) {
        const double decay = decays ? (double)lars->weight_decay : 0.0;
        return (double)lars->trust * param / (direction + decay * param + (double)lars->eps);
    }
    const double most = lamb->max_ratio > 0.0f ? (double)lamb->max_ratio : HUGE_VAL;
    return fmin(most, fmax((double)lamb->min_ratio, param / direction));
}

/* An element of a segment, as it was before the update. */
static void layerwise_in_double(const update_case *one, const unsigned char *before,
                                const zi_segment *segment, size_t i, double rate, double next[3],
                                double *direction)
{
    const float *old = (const float *)(const void *)before;
    const size_t array = one->bytes / CASE_ARRAYS / sizeof *old;
    const bool decays = (segment->flags & ZERO_TENSOR_NO_DECAY) == 0;
    const double grad =
        (double)((const float *)one->job.grad)[i] * (double)one->decision.grad_scale;
    const double state[3] = {(double)old[array + i],
                             (double)old[(CASE_STATES + ZI_STATE_MOMENT1) * array + i],
                             (double)old[(CASE_STATES + ZI_STATE_MOMENT2) * array + i]};
    if (one->job.optimizer == ZERO_OPTIMIZER_LAMB) {
        const zero_lamb *own = &case_lamb[segment->group];
        lamb_in_double(own, decays ? (double)own->weight_decay : 0.0, rate, state, grad, next,
                       direction);
    } else {
        const zero_lars *own = &case_lars[segment->group];
        lars_in_double(own, decays ? (double)own->weight_decay : 0.0, rate, state, grad, next,
                       direction);
    }
}

/* Measure, take the norms, update: each against double precision. */
static void run_layerwise(zero_optimizer optimizer)
{
    const zero_dtype f32 = ZERO_DTYPE_F32;
    update_case one;
    case_create(&one, (update_types){f32, f32, f32, f32, optimizer}, small_counts, SMALL_COUNT,
                false);
    memset((float *)one.job.param + one.segments[6].offset, 0, 1000 * sizeof(float));
    unsigned char *before = case_copy(&one);
    zi_cpu_measure(&one.job, 0, 1);
    CHECK_BYTES(one.memory, before, one.bytes);
    double next[3] = {0};
    double direction = 0.0;
    double rates[SMALL_COUNT];
    for (size_t k = 0; k < SMALL_COUNT; k++) {
        const zi_segment *segment = &one.segments[k];
        double squares[2] = {0.0, 0.0};
        for (size_t i = segment->offset; i < segment->offset + segment->count; i++) {
            const double p = (double)((const float *)one.job.param)[i];
            layerwise_in_double(&one, before, segment, i, 1.0, next, &direction);
            squares[0] += p * p;
            squares[1] += direction * direction;
        }
        zi_layer_norms *norms = &one.norms[segment->layer];
        norms->param = zi_layer_norm(&one.sums[segment->layer].param);
        norms->direction = zi_layer_norm(&one.sums[segment->layer].direction);
        CHECK_NEAR(norms->param, sqrt(squares[0]), 1e-13 * sqrt(squares[0]));
        CHECK_NEAR(norms->direction, sqrt(squares[1]), 1e-6 * sqrt(squares[1]));
        rates[k] = rate_in_double(optimizer, segment, sqrt(squares[0]), sqrt(squares[1]));
    }
    zi_cpu_update(&one.job, NULL, 0, 1);
    for (size_t k = 0; k < SMALL_COUNT; k++) {
        const zi_segment *segment = &one.segments[k];
        for (size_t i = segment->offset; i < segment->offset + segment->count; i++) {
            layerwise_in_double(&one, before, segment, i, rates[k], next, &direction);
            /* Units in the last place of parameters, which are at most 0.2 here, and of steps. */
            const double step =
                fabs(next[0] - (double)((const float *)(const void *)
                                            before)[one.bytes / CASE_ARRAYS / sizeof(float) + i]);
            CHECK_NEAR((double)((const float *)one.job.param)[i], next[0],
                       4.0 * 0x1p-23 * 0.2 + 16.0 * 0x1p-23 * step);
            CHECK_NEAR((double)((const float *)one.job.state[ZI_STATE_MOMENT1])[i], next[1],
                       4.0 * 0x1p-23 * 0.2 + 16.0 * 0x1p-23 * fabs(next[1]));
        }
    }
    free(before);
    case_destroy(&one);
}

TEST(lamb_within_a_few_units_of_double_precision)
{
    run_layerwise(ZERO_OPTIMIZER_LAMB);
}

TEST(lars_within_a_few_units_of_double_precision)
{
    run_layerwise(ZERO_OPTIMIZER_LARS);
}

TEST(same_sums_for_every_type_instruction_set_and_split)
{
    const uint32_t shares[] = {1, 2, 7, 64};
    for (size_t t = CASE_LAYERWISE_FROM; t < CASE_TYPES + CASE_SMALL_TYPES; t++) {
        const size_t small = t - CASE_TYPES;
        if (t >= CASE_TYPES && small < CASE_SMALL_LAYERWISE_FROM) {
            continue;
        }
        update_case one;
        case_create(&one, t < CASE_TYPES ? case_types(t) : case_small_types(small), small_counts,
                    SMALL_COUNT, true);
        for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
            zi_cpu_lanes_select(set);
            for (size_t k = 0; k < 4; k++) {
                for (uint32_t share = shares[k]; share-- > 0;) {
                    zi_cpu_measure(&one.job, share, shares[k]);
                }
                case_check_measured(&one);
            }
        }
        case_destroy(&one);
    }
}

/* Sums of several ranks of a layer come to the norm of the whole. */
TEST(norms_of_all_ranks_are_those_of_the_whole)
{
    enum { RANKS = 5, LAYERS = 3, COUNT = 64 * RANKS };
    static float values[LAYERS][COUNT];
    static zi_packed_sums messages[RANKS][LAYERS];
    zi_layer_norms norms[LAYERS];
    zi_kernels kernels = {0};
    zi_device device = {0};
    CHECK_OK(zi_cpu_device_create(&device));
    CHECK_OK(zi_cpu_kernels_create(&device, NULL, &kernels));
    zi_stream *stream = NULL;
    CHECK_OK(device.ops->stream_wrap(device.self, zero_stream_host(), &stream));
    for (uint32_t l = 0; l < LAYERS; l++) {
        zero_random_normal(test_seed, l, 0, COUNT, 0.0f, l == 1 ? 1e18f : 1e-3f, values[l]);
    }
    values[2][70] = INFINITY;
    for (uint32_t r = 0; r < RANKS; r++) {
        zi_layer_sums sums[LAYERS] = {0};
        for (uint32_t l = 0; l < LAYERS; l++) {
            zi_cpu_square_sum(&values[l][64 * r], ZERO_DTYPE_F32, 64, &sums[l].direction);
        }
        const zi_layers_job pack = {
            .layers = LAYERS, .phase = ZI_LAYERS_PACK, .sums = sums, .packed = messages[r]};
        CHECK_OK(kernels.ops->layers(kernels.self, stream, &pack));
        CHECK_EQ(sums[0].direction.limb[9], 0);
        CHECK_EQ(sums[2].direction.infinite_chunks, 0);
    }
    const zi_layers_job merge = {.layers = LAYERS,
                                 .phase = ZI_LAYERS_MERGE,
                                 .messages = (const unsigned char *)messages,
                                 .message_bytes = sizeof messages[0],
                                 .message_count = RANKS,
                                 .peer_stride = 1,
                                 .norms = norms};
    CHECK_OK(kernels.ops->layers(kernels.self, stream, &merge));
    for (uint32_t l = 0; l < LAYERS; l++) {
        zi_norm_sum whole = {{0}, 0, 0};
        zi_cpu_square_sum(values[l], ZERO_DTYPE_F32, COUNT, &whole);
        CHECK_EQ(norms[l].param, 0.0);
        CHECK(norms[l].direction == zi_layer_norm(&whole));
    }
    CHECK(norms[2].direction == HUGE_VAL);
    zi_kernels_destroy(&kernels);
    zi_device_destroy(&device);
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
    for (size_t t = CASE_FIRST_TYPE; t < CASE_TYPES; t += CASE_TYPE_STEP) {
        update_case one;
        case_create(&one, case_types(t), small_counts, SMALL_COUNT, true);
        unsigned char *expected = case_expected(&one);
        check_splits(&one, expected, shares, 5);
        free(expected);
        case_destroy(&one);
    }
}

TEST(same_bits_with_small_states)
{
    const uint32_t shares[] = {1, 2, 3, 7, 64};
    for (size_t t = CASE_FIRST_TYPE; t < CASE_SMALL_TYPES; t += CASE_TYPE_STEP) {
        update_case one;
        case_create(&one, case_small_types(t), small_counts, SMALL_COUNT, true);
        unsigned char *expected = case_expected(&one);
        check_splits(&one, expected, shares, 5);
        free(expected);
        case_destroy(&one);
    }
}

/* Steps so small that most elements stay where they are. */
static void slow_down(zi_step_decision *decision, zero_optimizer optimizer)
{
    for (uint32_t i = 0; i < decision->group_count; i++) {
        zi_coeffs *coeffs = &decision->groups[i];
        if (optimizer == ZERO_OPTIMIZER_ADAMW) {
            coeffs->adamw.decay = 1.0f;
            coeffs->adamw.step_size = 1e-11f;
        } else if (optimizer == ZERO_OPTIMIZER_LION) {
            coeffs->lion.decay = 1.0f;
            coeffs->lion.lr = 1e-11f;
        } else if (optimizer == ZERO_OPTIMIZER_LAMB) {
            coeffs->lamb.lr = 1e-12f;
            coeffs->lamb.weight_decay = 0.0f;
        } else if (optimizer == ZERO_OPTIMIZER_LARS) {
            coeffs->lars.lr = 1e-9f;
            coeffs->lars.momentum = 0.0f;
            coeffs->lars.weight_decay = 0.0f;
        } else {
            coeffs->sgd.lr = 1e-9f;
        }
    }
}

TEST(stalled_elements_are_counted_for_every_type)
{
    const uint32_t shares[] = {1, 3, 64};
    const size_t counts[] = {1, 63, 3000, 0, 1500, 65};
    for (size_t t = CASE_FIRST_TYPE; t < CASE_TYPES + CASE_SMALL_TYPES; t += CASE_TYPE_STEP) {
        update_case one;
        case_create(&one, t < CASE_TYPES ? case_types(t) : case_small_types(t - CASE_TYPES), counts,
                    sizeof counts / sizeof counts[0], true);
        case_count_stalled(&one);
        slow_down(&one.decision, one.job.optimizer);
        /* A gradient of 0 that is not stored as one. */
        case_put(case_array(&one, CASE_GRAD), one.job.grad_dtype, 130, 0x1p-24f);
        one.decision.grad_scale = 0x1p-130f;
        const uint64_t before = *one.job.stalled;
        unsigned char *expected = case_expected(&one);
        check_splits(&one, expected, shares, 3);
        zi_cpu_update(&one.job, NULL, 0, 1);
        const uint64_t stalled = *one.job.stalled - before;
        CHECK(stalled > 2000 && stalled < 4629);
        free(expected);
        case_destroy(&one);
    }
}

/* The job as the scalar reference has it on every instruction set, but for the bits of NaN. */
static void check_hot(update_case *one)
{
    unsigned char *before = case_copy(one);
    unsigned char *expected = case_expected(one);
    const size_t array_bytes = one->bytes / CASE_ARRAYS;
    for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
        zi_cpu_lanes_select(set);
        memcpy(one->memory, before, one->bytes);
        zi_cpu_update(&one->job, NULL, 0, 1);
        for (size_t k = 0; k < CASE_ARRAYS; k++) {
            const zero_dtype kind = case_codec(one, k).dtype;
            case_same(case_array(one, k), expected + k * array_bytes, kind,
                      array_bytes / zero_dtype_bytes(kind));
        }
    }
    free(expected);
    free(before);
}

TEST(small_states_of_nan_infinities_and_zeros)
{
    static const float hot[] = {INFINITY, -INFINITY, 3e38f, -2e19f, 0x1p-149f, -0.0f};
    const size_t counts[] = {200, 33};
    for (size_t t = CASE_FIRST_TYPE; t < CASE_SMALL_TYPES; t += CASE_TYPE_STEP) {
        update_case one;
        case_create(&one, case_small_types(t), counts, 2, true);
        case_count_stalled(&one);
        one.decision.grad_scale = 1.0f;
        for (size_t i = 0; i < 64; i++) {
            /* Blocks of their own: one with what is hot, one of zeros. */
            const float grad = i >= 32 ? 0.0f : i % 5 == 2 ? hot[i / 5 % 6] : (float)i;
            case_put(case_array(&one, CASE_GRAD), one.job.grad_dtype, i, grad);
        }
        for (uint32_t m = ZI_STATE_MOMENT1; m <= ZI_STATE_MOMENT2; m++) {
            if (one.job.state[m] != NULL) {
                const size_t bytes = zero_dtype_bytes(one.job.moment_dtype);
                memset((uint8_t *)one.job.state[m] + 32 * bytes, 0, 32 * bytes);
            }
        }
        case_put(one.job.param, one.job.param_dtype, 3, (float)NAN);
        check_hot(&one);
        case_destroy(&one);
    }
}

/* Elements with little gradients beside one with a great gradient move by no more than a few times
 * what they should. */
TEST(a_great_gradient_does_not_throw_its_neighbours)
{
    enum { COUNT = 64, STEPS = 60 };
    const size_t counts[] = {COUNT};
    const zero_adamw adamw = {1e-3f, 0.9f, 0.999f, 1e-8f, 0.0f};
    update_case one;
    case_create(&one,
                (update_types){ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_I8, ZERO_DTYPE_F32,
                               ZERO_OPTIMIZER_ADAMW},
                counts, 1, false);
    for (size_t k = ZI_STATE_MOMENT1; k < ZI_STATES; k++) {
        memset(one.job.state[k], 0, COUNT);
    }
    one.decision.grad_scale = 1.0f;
    float *p = one.job.param;
    float *grad = case_array(&one, CASE_GRAD);
    double carried[ZI_CARRIED] = {1.0, 1.0};
    for (uint64_t step = 1; step <= STEPS; step++) {
        one.decision.update = step;
        one.decision.groups[0].adamw = zi_adamw_decide(adamw, carried);
        for (size_t i = 0; i < COUNT; i++) {
            p[i] = 0.0f;
            grad[i] = i == 7 ? 1e4f : i % 3 == 0 ? ldexpf(1.0f, -(int)i) : 0.0f;
        }
        zi_cpu_update(&one.job, NULL, 0, 1);
        for (size_t i = 0; i < COUNT; i++) {
            CHECK(fabsf(p[i]) <= 4.0f * adamw.lr);
        }
    }
    case_destroy(&one);
}

/* Long enough for stores past the caches, on an aligned shard and on one that is not. */
TEST(same_bits_for_long_runs)
{
    const update_types types[] = {
        {ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_OPTIMIZER_ADAMW},
        {ZERO_DTYPE_F32, ZERO_DTYPE_F16, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_OPTIMIZER_ADAMW},
        {ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_NONE, ZERO_OPTIMIZER_ADAMW},
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
    for (size_t t = 0; t < CASE_ADAMW_TYPES + 3 * CASE_SMALL_FORMS; t++) {
        const update_types types =
            t < CASE_ADAMW_TYPES ? case_types(t) : case_small_types(t - CASE_ADAMW_TYPES);
        if (zi_dtype_is_code(types.moment)) {
            continue; /* options refuse it */
        }
        update_case one;
        case_create(&one, types, counts, 4, true);
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
    case_create(&one,
                (update_types){ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32,
                               ZERO_OPTIMIZER_ADAMW},
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
    for (size_t t = CASE_FIRST_TYPE; t < CASE_TYPES + CASE_SMALL_TYPES; t += CASE_TYPE_STEP) {
        const update_types types =
            t < CASE_TYPES ? case_types(t) : case_small_types(t - CASE_TYPES);
        update_case one;
        case_create(&one, types, small_counts, SMALL_COUNT, false);
        case_put(case_array(&one, CASE_GRAD), types.grad, 0, (float)NAN);
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

/* The mean distance from the minimum of a noisy bowl after 1000 steps of AdamW. Its gradients are
 * taken at the bf16 parameter, and its axes differ a hundredfold within each block. */
static double distance_after_training(zero_dtype master, zero_dtype moment)
{
    enum { COUNT = 4096, STEPS = 1000 };
    const size_t counts[] = {COUNT};
    const zero_adamw adamw = {2e-3f, 0.9f, 0.999f, 1e-8f, 0.0f};
    static float target[COUNT];
    static float noise[COUNT];
    update_case one;
    case_create(
        &one, (update_types){ZERO_DTYPE_F32, ZERO_DTYPE_BF16, moment, master, ZERO_OPTIMIZER_ADAMW},
        counts, 1, false);
    memset(one.job.param, 0, COUNT * sizeof(uint16_t));
    for (size_t k = 0; k < ZI_STATES; k++) {
        if (one.job.state[k] != NULL) {
            memset(one.job.state[k], 0,
                   zi_codec_bytes(zi_job_state_codec(&one.job, (uint32_t)k), COUNT));
        }
    }
    one.decision.grad_scale = 1.0f;
    zero_random_normal(test_seed, 100, 0, COUNT, 0.0f, 0.5f, target);
    float *grad = case_array(&one, CASE_GRAD);
    double carried[ZI_CARRIED] = {1.0, 1.0};
    for (uint64_t step = 1; step <= STEPS; step++) {
        one.decision.update = step;
        one.decision.groups[0].adamw = zi_adamw_decide(adamw, carried);
        zero_random_normal(test_seed, 100 + step, 0, COUNT, 0.0f, 0.1f, noise);
        for (size_t i = 0; i < COUNT; i++) {
            const float axis = powf(10.0f, (float)(i % 9) * 0.25f - 1.0f);
            grad[i] = axis * (case_get(one.job.param, ZERO_DTYPE_BF16, i) - target[i] + noise[i]);
        }
        zi_cpu_update(&one.job, NULL, 0, 1);
    }
    double sum = 0.0;
    for (size_t i = 0; i < COUNT; i++) {
        sum += fabs((double)(case_get(one.job.param, ZERO_DTYPE_BF16, i) - target[i]));
    }
    case_destroy(&one);
    return sum / COUNT;
}

TEST(training_with_small_states_comes_as_near_as_with_fp32)
{
    const double full = distance_after_training(ZERO_DTYPE_F32, ZERO_DTYPE_F32);
    const zero_dtype masters[] = {ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_REMAINDER8};
    CHECK(full < 0.05); /* it began at 0.4 */
    CHECK_SAME(distance_after_training(ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_F32), full);
    for (size_t i = 0; i < 2; i++) {
        const double small = distance_after_training(masters[i], ZERO_DTYPE_I8);
        CHECK_NEAR(small, full, 0.1 * full);
    }
}
