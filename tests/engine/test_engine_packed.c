/* Owns the tests of gradients that cross ranks in codes: bytes, how near sums are to those in fp32,
 * and steps that are skipped. That no transport and no tier changes a bit, random programs and
 * test_cuda_nccl.c see. */
#include "harness.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "reads.h"
#include "toy.h"

#define RANKS 4
#define LARGE 30000

static void model_of_sizes(toy_model *model)
{
    toy_model_open(model);
    for (uint32_t u = 0; u < 3; u++) {
        (void)toy_model_layer(model, "layer", u);
        (void)toy_model_tensor(model, LARGE, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_PLAIN);
        (void)toy_model_tensor(model, 7, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_PLAIN);
        (void)toy_model_tensor(model, 300, 0, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN);
        (void)toy_model_tensor(model, 100, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_FROZEN);
    }
}

static toy_run run_in(zero_dtype wire)
{
    toy_run run = toy_run_made(model_of_sizes);
    run.options.stage = ZERO_STAGE_2;
    run.options.loss_scale = 1;
    run.tuning.wire_dtype = wire;
    run.steps = 1;
    return run;
}

/* ---- bytes ---- */

static zero_status count_bytes(toy_trainer *trainer)
{
    TOY_TRY(toy_train(trainer));
    if (trainer->rank == 0) {
        *(uint64_t *)trainer->user = engine_stats(trainer->engine).reduce_bytes;
    }
    return ZERO_OK;
}

/* Bytes that a rank gives to a step's reductions. */
static uint64_t bytes_of(zero_stage stage, zero_dtype wire)
{
    uint64_t bytes = 0;
    toy_run run = run_in(wire);
    run.options.stage = stage;
    CHECK_OK(toy_on_ranks(8, &run, count_bytes, &bytes));
    return bytes;
}

TEST(packed_gradients_take_half_the_bytes)
{
    for (int stage = ZERO_STAGE_1; stage <= ZERO_STAGE_3; stage++) {
        const uint64_t bf16 = bytes_of((zero_stage)stage, ZERO_DTYPE_BF16);
        const uint64_t int8 = bytes_of((zero_stage)stage, ZERO_DTYPE_INT8_BLOCK);
        CHECK(bf16 != 0);
        CHECK_EQ(int8 * 512, bf16 * 260); /* of 256 elements */
    }
}

/* ---- sums ---- */

typedef struct seen_sums {
    float *sums; /* by rank and tensor, LARGE each */
    double off;  /* of all elements so far: their errors, in steps of the tensor's codes */
    double most_off;
    uint64_t elements;
} seen_sums;

static float *sums_of(const seen_sums *seen, uint32_t rank, uint32_t tensor)
{
    return seen->sums + ((size_t)rank * TOY_TENSORS_MAX + tensor) * LARGE;
}

static zero_status read_sums(toy_trainer *trainer, uint32_t tensor, float *values, uint64_t *count)
{
    zero_shard shard;
    TOY_TRY(zero_shard_range(trainer->engine, tensor, ZERO_ROLE_GRAD, &shard));
    *count = shard.count;
    return zero_shard_read(trainer->engine, tensor, ZERO_ROLE_GRAD, shard.first, shard.count,
                           values);
}

static zero_status keep_sums(toy_trainer *trainer)
{
    TOY_TRY(toy_train(trainer));
    for (uint32_t t = 0; t < trainer->run->model->tensor_count; t++) {
        uint64_t count = 0;
        if ((trainer->run->model->tensors[t].desc.flags & ZERO_TENSOR_FROZEN) == 0) {
            TOY_TRY(read_sums(trainer, t, sums_of(trainer->user, trainer->rank, t), &count));
        }
    }
    return ZERO_OK;
}

/* A code of a rank's gradient is off by less than a step, which is a 127th of a magnitude that no
 * gradient of the tensor is beyond. */
static zero_status compare_sums(toy_trainer *trainer)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    seen_sums *seen = trainer->user;
    float *values = malloc(LARGE * sizeof *values);
    CHECK(values != NULL);
    TOY_TRY(toy_train(trainer));
    for (uint32_t t = 0; t < trainer->run->model->tensor_count; t++) {
        const toy_tensor *tensor = &trainer->run->model->tensors[t];
        const float *whole = sums_of(seen, trainer->rank, t);
        uint64_t count = 0;
        double most = 0;
        if ((tensor->desc.flags & ZERO_TENSOR_FROZEN) != 0) {
            continue;
        }
        TOY_TRY(read_sums(trainer, t, values, &count));
        for (uint64_t e = 0; e < tensor->count; e++) {
            for (uint32_t r = 0; r < RANKS; r++) {
                most = fmax(most, fabs((double)toy_gradient(trainer->run->flavour, t, e, 0, r,
                                                            toy_initial(t, e))));
            }
        }
        const double step = most * 1.02 / 127;
        (void)pthread_mutex_lock(&mutex);
        for (uint64_t i = 0; i < count; i++) {
            const double off = ((double)values[i] - (double)whole[i]) / step;
            seen->off += off;
            seen->most_off = fmax(seen->most_off, fabs(off));
        }
        seen->elements += count;
        (void)pthread_mutex_unlock(&mutex);
    }
    free(values);
    return ZERO_OK;
}

/* Errors of sums are within the ranks' steps, and none in the mean: it is less than five standard
 * deviations, of which a rank's is at most half a step. */
TEST(packed_sums_are_right_in_the_mean)
{
    seen_sums seen = {.sums = calloc((size_t)RANKS * TOY_TENSORS_MAX * LARGE, sizeof(float))};
    CHECK(seen.sums != NULL);
    toy_run run = run_in(ZERO_DTYPE_F32);
    CHECK_OK(toy_on_ranks(RANKS, &run, keep_sums, &seen));
    run.tuning.wire_dtype = ZERO_DTYPE_INT8_BLOCK;
    CHECK_OK(toy_on_ranks(RANKS, &run, compare_sums, &seen));
    CHECK(seen.elements >= 3 * LARGE);
    CHECK(seen.most_off > 0.5 && seen.most_off < RANKS);
    CHECK(fabs(seen.off) < 5 * 0.5 * sqrt((double)RANKS * (double)seen.elements));
    free(seen.sums);
}

/* ---- skipped steps ---- */

static zero_status skip_and_go_on(toy_trainer *trainer)
{
    TOY_TRY(toy_step_or_skip(trainer, false));
    CHECK(!trainer->result.skipped);
    TOY_TRY(toy_step_or_skip(trainer, true));
    CHECK(trainer->result.skipped);
    TOY_TRY(toy_step_or_skip(trainer, false));
    CHECK(!trainer->result.skipped && isfinite(trainer->result.norm));
    return ZERO_OK;
}

/* Codes of what is not finite are none of numbers. */
TEST(a_gradient_that_is_not_finite_skips_the_step)
{
    toy_run run = run_in(ZERO_DTYPE_INT8_BLOCK);
    for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
        run.options.stage = (zero_stage)stage;
        CHECK_OK(toy_on_ranks(RANKS, &run, skip_and_go_on, NULL));
    }
}
