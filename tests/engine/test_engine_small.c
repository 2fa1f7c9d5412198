/* Owns the tests of small states: masters that are remainders of their parameters, and moments in
 * 8-bit codes. Their bits are the same however a model is split and wherever they lie, a remainder
 * of 16 bits is the fp32 master itself, and values go in and out as fp32. Random programs draw them
 * too (random_case.h). */
#include "harness.h"

#include <math.h>
#include <stdatomic.h>

#include "reads.h"
#include "small_runs.h"

#define DEV ZERO_TIER_DEVICE
#define DISK ZERO_TIER_DISK

static const small_mix mixes[] = {
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_F32, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_BF16, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_I8, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER8, ZERO_DTYPE_BF16, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER8, ZERO_DTYPE_I8, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_NONE, ZERO_DTYPE_I8, ADAMW},
    {ZERO_DTYPE_F16, ZERO_DTYPE_F32, ZERO_DTYPE_I8, ADAMW},
    {ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT, ZERO_DTYPE_I8, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER8, ZERO_DTYPE_I8, ZERO_OPTIMIZER_LION},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_I8, ZERO_OPTIMIZER_SGD},
};
#define MIXES (sizeof mixes / sizeof mixes[0])

static zero_status train(toy_trainer *trainer)
{
    for (uint32_t step = 0; step < RUN_STEPS; step++) {
        TOY_TRY(small_step(trainer));
    }
    return ZERO_OK;
}

static zero_status train_same(toy_trainer *trainer)
{
    TOY_TRY(train(trainer));
    return toy_collect_same(trainer, trainer->user, "one rank in memory");
}

static zero_status train_and_keep(toy_trainer *trainer)
{
    TOY_TRY(train(trainer));
    return toy_collect(trainer, trainer->user);
}

/* ---- bits ---- */

/* Places of PARAM, GRAD and the states; the last one's steps are predicted. */
static const zero_tier places[][3] = {
    {DEV, DEV, DEV}, {DEV, DEV, DISK}, {DISK, DISK, DISK}, {DISK, DEV, DEV}, {DEV, DEV, DISK},
};
#define PLACES (sizeof places / sizeof places[0])

static void put_in_place(toy_run *run, size_t place)
{
    toy_run_tiers(run, ZERO_ROLE_PARAM, places[place][0]);
    toy_run_tiers(run, ZERO_ROLE_GRAD, places[place][1]);
    toy_run_tiers(run, ZERO_ROLE_MASTER, places[place][2]);
    if (place != 0) {
        toy_run_disk(run, rig_paths, 2);
    }
    run->tuning.speculative_step = place + 1 == PLACES;
    run->predicted = place + 1 == PLACES;
}

static void check_splits(size_t first, size_t end)
{
    static const uint32_t ranks[] = {1, 2, 3, 4, 8};
    rig_folders(2, 0);
    for (size_t m = first; m < end; m++) {
        toy_state expected;
        toy_run run = small_run(&mixes[m]);
        run.options.stage = ZERO_STAGE_0;
        CHECK_OK(toy_on_ranks(1, &run, train_and_keep, &expected));
        for (size_t i = 0; i < PLACES; i++) {
            run = small_run(&mixes[m]);
            put_in_place(&run, i);
            run.options.threads = 1 + (uint32_t)i % 2;
            run.options.stage = (zero_stage)((m + i) % 4);
            CHECK_OK(toy_on_ranks(ranks[(m + i) % 5], &run, train_same, &expected));
        }
        run = small_run(&mixes[m]);
        CHECK_OK(toy_on_ways(2 + 2 * (uint32_t)(m % 2), &run, train_same, &expected));
        toy_state_free(&expected);
    }
}

/* In halves: each has a test's time. */
TEST(the_same_bits_however_it_is_split)
{
    check_splits(0, MIXES / 2);
}

TEST(the_same_bits_of_the_other_mixes)
{
    check_splits(MIXES / 2, MIXES);
}

/* ---- masters ---- */

typedef struct exported {
    float *values; /* of all trained tensors, end to end */
    uint64_t count;
} exported;

static zero_status export_role(toy_trainer *trainer, zero_role role, exported *out)
{
    const toy_model *model = trainer->run->model;
    out->count = 0;
    out->values = calloc(model->element_count, sizeof *out->values);
    CHECK(out->values != NULL);
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        if ((model->tensors[t].desc.flags & ZERO_TENSOR_FROZEN) == 0) {
            const zero_array array = {.data = out->values + out->count, .dtype = ZERO_DTYPE_F32};
            TOY_TRY(zero_tensor_export(trainer->engine, t, role, &array));
            out->count += model->tensors[t].count;
        }
    }
    return ZERO_OK;
}

static zero_status train_and_export(toy_trainer *trainer)
{
    exported own;
    TOY_TRY(train(trainer));
    TOY_TRY(export_role(trainer, ZERO_ROLE_MASTER, &own));
    exported *kept = trainer->user;
    if (trainer->rank == 0) {
        *kept = own;
    } else {
        free(own.values);
    }
    return ZERO_OK;
}

/* Integers for gradients do not depend on parameters, so masters of one value go the same way. */
TEST(a_remainder_of_16_bits_is_the_master)
{
    static const zero_dtype moments[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_I8};
    for (size_t i = 0; i < 3; i++) {
        exported plain;
        exported small;
        small_mix mix = {ZERO_DTYPE_BF16, ZERO_DTYPE_F32, moments[i], ADAMW};
        toy_run run = small_run(&mix);
        CHECK_OK(toy_on_ranks(2, &run, train_and_export, &plain));
        mix.master = ZERO_DTYPE_REMAINDER16;
        run = small_run(&mix);
        CHECK_OK(toy_on_ranks(3, &run, train_and_export, &small));
        CHECK_EQ(plain.count, small.count);
        CHECK_BYTES(plain.values, small.values, plain.count * sizeof *plain.values);
        free(plain.values);
        free(small.values);
    }
}

TEST(a_remainder_of_8_bits_is_near_it)
{
    exported plain;
    exported small;
    small_mix mix = {ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32, ADAMW};
    toy_run run = small_run(&mix);
    CHECK_OK(toy_on_ranks(1, &run, train_and_export, &plain));
    mix.master = ZERO_DTYPE_REMAINDER8;
    run = small_run(&mix);
    CHECK_OK(toy_on_ranks(1, &run, train_and_export, &small));
    for (uint64_t i = 0; i < plain.count; i++) {
        /* Each of the steps may go up or down by one of the last bits, of 2^-15. */
        const float bound = RUN_STEPS * 0x1p-15f * fmaxf(fabsf(plain.values[i]), 0.1f);
        CHECK(fabsf(plain.values[i] - small.values[i]) <= bound);
    }
    free(plain.values);
    free(small.values);
}

/* ---- values in and out ---- */

static float given_value(uint32_t tensor, uint64_t element, zero_role role)
{
    const float sign = element % 3 == 0 && role != ZERO_ROLE_MOMENT2 ? -1.0f : 1.0f;
    return sign * (0.37f + (float)(element % 101) / 7.0f + (float)tensor) /
           (float)(1 + element % 5);
}

/* Steps between codes are at most 1 / 59 of the block's greatest. */
static float bound_of(const toy_run *run, zero_role role, float most)
{
    if (role == ZERO_ROLE_MASTER) {
        return run->options.master_dtype == ZERO_DTYPE_REMAINDER16 ? 0.0f : most * 0x1p-16f;
    }
    return most * 1.02f / 118.0f;
}

static void check_values(const toy_run *run, uint32_t tensor, zero_role role, const float *values,
                         uint64_t count)
{
    for (uint64_t block = 0; block < count; block += ZERO_CODE_BLOCK) {
        const uint64_t end = block + ZERO_CODE_BLOCK < count ? block + ZERO_CODE_BLOCK : count;
        float most = 0;
        for (uint64_t e = block; e < end; e++) {
            most = fmaxf(most, fabsf(given_value(tensor, e, role)));
        }
        for (uint64_t e = block; e < end; e++) {
            const float off = fabsf(values[e] - given_value(tensor, e, role));
            CHECK(off <= bound_of(run, role, most));
        }
    }
}

static zero_status import_and_export(toy_trainer *trainer)
{
    const toy_model *model = trainer->run->model;
    static const zero_role roles[] = {ZERO_ROLE_MASTER, ZERO_ROLE_MOMENT1, ZERO_ROLE_MOMENT2};
    TOY_TRY(train(trainer));
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const uint64_t count = model->tensors[t].count;
        float *values = calloc(count + 1, sizeof *values);
        const zero_array array = {.data = values, .dtype = ZERO_DTYPE_F32};
        const bool trained = (model->tensors[t].desc.flags & ZERO_TENSOR_FROZEN) == 0;
        for (size_t r = 0; r < 3 && trained; r++) {
            for (uint64_t e = 0; e < count; e++) {
                values[e] = given_value(t, e, roles[r]);
            }
            TOY_TRY(zero_tensor_import(trainer->engine, t, roles[r], &array));
        }
        for (size_t r = 0; r < 3 && trained; r++) {
            memset(values, 0, count * sizeof *values);
            TOY_TRY(zero_tensor_export(trainer->engine, t, roles[r], &array));
            if (model->tensors[t].desc.dtype == ZERO_DTYPE_BF16 || r > 0) {
                check_values(trainer->run, t, roles[r], values, count);
            }
        }
        CHECK_FAILS(zero_tensor_export(trainer->engine, t, ZERO_ROLE_SCALE1, &array),
                    ZERO_ERR_INVALID_ARGUMENT, "moment1 has its values");
        free(values);
    }
    return toy_step(trainer); /* goes on from them */
}

TEST(values_go_in_and_out_as_fp32)
{
    rig_folders(2, 0);
    for (size_t m = 2; m < 5; m += 2) {
        for (size_t i = 0; i < PLACES; i++) {
            toy_run run = small_run(&mixes[m]);
            put_in_place(&run, i);
            run.predicted = false;
            CHECK_OK(toy_on_ranks(1 + (uint32_t)i, &run, import_and_export, NULL));
        }
    }
}

/* A parameter that is given is the master, too. */
static zero_status import_param(toy_trainer *trainer)
{
    float values[129];
    float back[129];
    const zero_array array = {.data = values, .dtype = ZERO_DTYPE_F32};
    const zero_array out = {.data = back, .dtype = ZERO_DTYPE_F32};
    TOY_TRY(train(trainer));
    CHECK_EQ(trainer->run->model->tensors[0].count, 129);
    for (uint64_t e = 0; e < 129; e++) {
        values[e] = given_value(0, e, ZERO_ROLE_MASTER);
    }
    TOY_TRY(zero_tensor_import(trainer->engine, 0, ZERO_ROLE_PARAM, &array));
    TOY_TRY(zero_tensor_export(trainer->engine, 0, ZERO_ROLE_MASTER, &out));
    CHECK_BYTES(values, back, sizeof values);
    return ZERO_OK;
}

TEST(a_parameter_that_is_given_is_the_master)
{
    const toy_run run = small_run(&mixes[1]);
    CHECK_OK(toy_on_ranks(2, &run, import_param, NULL));
}

/* ---- shards ---- */

static zero_status look_at_scales(toy_trainer *trainer)
{
    const toy_model *model = trainer->run->model;
    TOY_TRY(train(trainer));
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        zero_shard codes;
        zero_shard scales;
        uint64_t first = 0;
        zero_view view;
        TOY_TRY(zero_shard_range(trainer->engine, t, ZERO_ROLE_MOMENT2, &codes));
        TOY_TRY(zero_shard_range(trainer->engine, t, ZERO_ROLE_SCALE2, &scales));
        CHECK_EQ(scales.first, codes.first / ZERO_CODE_BLOCK);
        CHECK_EQ(scales.count, (codes.count + ZERO_CODE_BLOCK - 1) / ZERO_CODE_BLOCK);
        CHECK(codes.count == 0 || codes.dtype == ZERO_DTYPE_U8_ROOT);
        CHECK(scales.count == 0 || scales.dtype == ZERO_DTYPE_BF16);
        TOY_TRY(zero_shard_view(trainer->engine, t, ZERO_ROLE_SCALE2, &first, &view));
        CHECK(view.count == scales.count && first == scales.first);
        uint16_t *read = calloc(scales.count + 1, sizeof *read);
        TOY_TRY(zero_shard_read(trainer->engine, t, ZERO_ROLE_SCALE2, scales.first, scales.count,
                                read));
        const uint16_t *viewed = toy_fetch(view.data, scales.count * sizeof *read);
        CHECK(scales.count == 0 || memcmp(read, viewed, scales.count * sizeof *read) == 0);
        if (scales.count > 1) {
            uint16_t one = 0x4000;
            TOY_TRY(zero_shard_write(trainer->engine, t, ZERO_ROLE_SCALE2,
                                     scales.first + scales.count - 1, 1, &one));
            viewed = toy_fetch(view.data, scales.count * sizeof *read);
            CHECK(viewed[scales.count - 1] == 0x4000 && viewed[0] == read[0]);
        }
        CHECK_FAILS(zero_shard_read(trainer->engine, t, ZERO_ROLE_SCALE2, scales.first,
                                    scales.count + 1, read),
                    ZERO_ERR_INVALID_ARGUMENT, "not all here");
        free(read);
    }
    return ZERO_OK;
}

TEST(scales_are_a_role_of_their_own)
{
    const toy_run run = small_run(&mixes[4]);
    CHECK_OK(toy_on_ranks(2, &run, look_at_scales, NULL));
}

/* ---- updates that round to nothing ---- */

static uint64_t not_zero(const exported *grads)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < grads->count; i++) {
        count += grads->values[i] != 0.0f;
    }
    return count;
}

/* A step whose learning rate is 0 moves nothing, and the next one's result says so. */
static zero_status step_on_the_spot(toy_trainer *trainer)
{
    _Atomic uint64_t *stalled = trainer->user;
    zero_step_params params = trainer->run->params;
    exported grads;
    TOY_TRY(toy_step(trainer));
    params.hyper.adamw.lr = 0.0f;
    TOY_TRY(toy_step_with(trainer, &params));
    TOY_TRY(toy_wait(trainer));
    CHECK(trainer->result.stalled < 10); /* of the first step, whose updates are large */
    TOY_TRY(export_role(trainer, ZERO_ROLE_GRAD, &grads));
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_wait(trainer));
    (void)atomic_fetch_add(stalled, trainer->result.stalled);
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_wait(trainer));
    CHECK(trainer->result.stalled < 10);
    TOY_TRY(zero_world_barrier(trainer->world));
    const bool whole =
        zero_world_size(trainer->world) > 1 && trainer->run->options.stage == ZERO_STAGE_0;
    CHECK(not_zero(&grads) > 100);
    CHECK_EQ(atomic_load(stalled), not_zero(&grads) * (whole ? trainer->ranks : 1));
    free(grads.values);
    TOY_TRY(zero_world_barrier(trainer->world));
    if (trainer->rank == 0) {
        atomic_store(stalled, 0);
    }
    return zero_world_barrier(trainer->world);
}

TEST(updates_that_round_to_nothing_are_counted)
{
    static const zero_dtype masters[] = {ZERO_DTYPE_F32, ZERO_DTYPE_REMAINDER16,
                                         ZERO_DTYPE_REMAINDER8};
    _Atomic uint64_t stalled = 0;
    rig_folders(2, 0);
    for (size_t i = 0; i < 3; i++) {
        const small_mix mix = {ZERO_DTYPE_BF16, masters[i], ZERO_DTYPE_I8, ADAMW};
        toy_run run = small_run(&mix);
        run.params.max_norm = 0;
        run.params.hyper.adamw.lr = 0.1f;
        CHECK_OK(toy_on_stages(2, &run, step_on_the_spot, &stalled));
        put_in_place(&run, 1);
        CHECK_OK(toy_on_ranks(1, &run, step_on_the_spot, &stalled));
    }
}

/* ---- memory ---- */

/* Of a bf16 model on one rank: bytes for each element of what is there between steps. */
static double resident(zero_dtype master, zero_dtype moments)
{
    toy_run run = toy_run_equal(4, 100 * 1024, ZERO_DTYPE_BF16);
    run.options.master_dtype = master;
    run.options.moment_dtype = moments;
    const zero_memory memory = toy_planned(&run, 1);
    uint64_t bytes = memory.bytes[ZERO_ROLE_PARAM];
    for (int role = ZERO_ROLE_MASTER; role < ZERO_ROLE_SHARDS_MAX; role++) {
        bytes += memory.bytes[role];
    }
    return (double)bytes / (4 * 100 * 1024);
}

TEST(bytes_of_an_element)
{
    CHECK_NEAR(resident(ZERO_DTYPE_F32, ZERO_DTYPE_F32), 14, 0.01);
    CHECK_NEAR(resident(ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_BF16), 8, 0.01);
    CHECK_NEAR(resident(ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_I8), 6.125, 0.02);
    CHECK_NEAR(resident(ZERO_DTYPE_REMAINDER8, ZERO_DTYPE_I8), 5.125, 0.02);
}

/* ---- refusals ---- */

static void update_nothing(void *user, const zero_update_range *range)
{
    (void)user;
    (void)range;
}

static void refuse(const toy_run *run, const char *text)
{
    zero_plan *plan = NULL;
    CHECK_FAILS(zero_plan_create(run->model->model, TOY_OPTIONS(run), 1, &plan),
                ZERO_ERR_INVALID_ARGUMENT, text);
}

TEST(mixes_that_are_none)
{
    toy_run run = small_run(&mixes[2]);
    run.model = run_model(ZERO_DTYPE_F16);
    refuse(&run, "is f16; a remainder is one of bf16");
    run = small_run(&mixes[2]);
    run.options.optimizer = ZERO_OPTIMIZER_CALLBACK;
    run.options.update = update_nothing;
    refuse(&run, "use bf16 or f32");
    run = small_run(&mixes[2]);
}

TEST(scales_lie_where_their_moments_do)
{
    toy_run run = small_run(&mixes[2]);
    run.options.tier[ZERO_ROLE_SCALE1] = ZERO_TIER_DEVICE;
    run.options.tier[ZERO_ROLE_MOMENT1] = DISK;
    const zero_memory memory = toy_planned(&run, 1);
    CHECK(memory.bytes[ZERO_ROLE_SCALE1] > 0);
    CHECK_EQ(memory.tier_bytes[DISK],
             memory.bytes[ZERO_ROLE_SCALE1] + memory.bytes[ZERO_ROLE_MOMENT1]);
}
