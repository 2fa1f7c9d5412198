/* Owns the tests of parameters that cross ranks in another type than they have: what callers see is
 * rounded once, shards keep their bits, and tiers change nothing. What gradients cross in, and that
 * all of it is planned, random programs and test_engine_footprint.c see. */
#include "harness.h"

#include <math.h>

#include "folders.h"
#include "kernels/math/convert.h"
#include "reads.h"
#include "toy.h"

#define RANKS 4
#define COUNT 3001

static void model_of_types(toy_model *model)
{
    static const zero_dtype dtypes[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};
    toy_model_open(model);
    for (uint32_t u = 0; u < 3; u++) {
        (void)toy_model_layer(model, "layer", u);
        (void)toy_model_tensor(model, COUNT, 0, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN);
        (void)toy_model_tensor(model, 77, 0, dtypes[u], ZERO_TENSOR_PLAIN);
        (void)toy_model_tensor(model, 500, 0, ZERO_DTYPE_F32, ZERO_TENSOR_FROZEN);
    }
}

/* To E4M3 and a power of two, by which the greatest magnitude of the block is at most 448. */
static float rounded_to_mxfp8(float value, float most)
{
    int scale = most == 0.0f ? -127 : (int)ceil(log2((double)most / 448.0));
    while (ldexp(448.0, scale) < (double)most) { /* where the logarithm was rounded down */
        scale++;
    }
    const double number = ldexp((double)value, -scale);
    const double least = ldexp(1.0, -6);
    const int step = fabs(number) < least ? -9 : ilogb(number) - 3;
    return (float)ldexp(nearbyint(ldexp(number, -step)), step + scale);
}

static float rounded_to_int8(float value, float most)
{
    const float scale = zi_f32_from_bf16(zi_bf16_from_f32(most));
    const float gain = 127.0f / scale;
    const double code = most == 0.0f ? 0.0 : nearbyint((double)value * (double)gain);
    return (float)code * (scale / 127.0f);
}

/* Element i of `count` values, as it crosses ranks. */
static float rounded(const float *values, size_t i, size_t count, zero_dtype dtype)
{
    const size_t block = dtype == ZERO_DTYPE_MXFP8 ? 32 : 128;
    float most = 0.0f;
    for (size_t k = i / block * block; k < count && k / block == i / block; k++) {
        most = fmaxf(most, fabsf(values[k]));
    }
    return dtype == ZERO_DTYPE_BF16         ? zi_f32_from_bf16(zi_bf16_from_f32(values[i]))
           : dtype == ZERO_DTYPE_F16        ? zi_f32_from_f16(zi_f16_from_f32(values[i]))
           : dtype == ZERO_DTYPE_MXFP8      ? rounded_to_mxfp8(values[i], most)
           : dtype == ZERO_DTYPE_INT8_BLOCK ? rounded_to_int8(values[i], most)
                                            : values[i];
}

/* Every value of a large tensor, as it is seen while its unit is acquired and in this rank's shard.
 */
static zero_status see_rounded(toy_trainer *trainer)
{
    const toy_run *run = trainer->run;
    const bool gathers = run->options.stage == ZERO_STAGE_3;
    const zero_dtype wire = gathers ? run->tuning.gather_dtype : ZERO_DTYPE_DEFAULT;
    for (uint32_t u = 0; u < 3; u++) {
        const uint32_t tensor = 3 * u;
        float initial[COUNT];
        float own[COUNT];
        zero_view view = {0};
        zero_shard shard;
        toy_fill((void *)(uintptr_t)run->model, tensor, 0, COUNT, initial);
        TOY_TRY(zero_unit_acquire(trainer->engine, u, ZERO_PASS_EVAL, toy_stream(), NULL));
        TOY_TRY(zero_tensor_data(trainer->engine, tensor, &view));
        const float *seen = toy_fetch(view.data, COUNT * sizeof(float));
        for (size_t i = 0; i < COUNT; i++) {
            CHECK_SAME(seen[i], rounded(initial, i, COUNT, wire));
        }
        TOY_TRY(zero_unit_release(trainer->engine, u, toy_stream()));
        TOY_TRY(zero_shard_range(trainer->engine, tensor, ZERO_ROLE_PARAM, &shard));
        TOY_TRY(zero_shard_read(trainer->engine, tensor, ZERO_ROLE_PARAM, shard.first, shard.count,
                                own));
        for (uint64_t i = 0; i < shard.count; i++) {
            CHECK_SAME(own[i], initial[shard.first + i]);
        }
    }
    return ZERO_OK;
}

static toy_run run_in(zero_dtype dtype)
{
    toy_run run = toy_run_made(model_of_types);
    run.flavour = TOY_REAL;
    run.options.stage = ZERO_STAGE_3;
    run.tuning.gather_dtype = dtype;
    return run;
}

TEST(gathered_parameters_are_rounded_once)
{
    static const zero_dtype dtypes[] = {ZERO_DTYPE_DEFAULT, ZERO_DTYPE_F32,
                                        ZERO_DTYPE_BF16,    ZERO_DTYPE_F16,
                                        ZERO_DTYPE_MXFP8,   ZERO_DTYPE_INT8_BLOCK};
    rig_folders(1, 0);
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        toy_run run = run_in(dtypes[i]);
        CHECK_OK(toy_on_ranks(RANKS, &run, see_rounded, NULL));
        run.options.stage = ZERO_STAGE_2;
        CHECK_OK(toy_on_ranks(RANKS, &run, see_rounded, NULL));
        run.options.stage = ZERO_STAGE_3;
        toy_run_disk(&run, rig_paths, 1);
        run.options.tier[ZERO_ROLE_PARAM] = ZERO_TIER_DISK;
        CHECK_OK(toy_on_ranks(RANKS, &run, see_rounded, NULL));
    }
}

/* ---- training ---- */

typedef struct trained {
    toy_state state;
    uint64_t gather_bytes; /* of rank 0 */
    bool again;            /* compared with that; else kept there */
} trained;

static zero_status train(toy_trainer *trainer)
{
    trained *all = trainer->user;
    TOY_TRY(toy_train(trainer));
    if (trainer->rank == 0) {
        all->gather_bytes = engine_stats(trainer->engine).gather_bytes;
    }
    return all->again ? toy_collect_same(trainer, &all->state, "all in memory")
                      : toy_collect_first(trainer, &all->state);
}

static void check_no_bit_changes(zero_dtype dtype)
{
    toy_run run = run_in(dtype);
    trained all = {.again = false};
    CHECK_OK(toy_on_ranks(RANKS, &run, train, &all));
    all.again = true;
    run.tuning.param_slots = 1;
    run.tuning.no_prefetch = 1;
    CHECK_OK(toy_on_ranks(RANKS, &run, train, &all));
    toy_run_disk(&run, rig_paths, 1);
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        run.options.tier[role] = ZERO_TIER_DISK;
    }
    CHECK_OK(toy_on_ranks(RANKS, &run, train, &all));
    toy_state_free(&all.state);
}

TEST(tiers_and_slots_change_no_bit)
{
    rig_folders(1, 0);
    check_no_bit_changes(ZERO_DTYPE_BF16);
    check_no_bit_changes(ZERO_DTYPE_MXFP8);
    check_no_bit_changes(ZERO_DTYPE_INT8_BLOCK);
}

/* Of each unit 3501 elements in fp32 go in half of their bytes; 77 stay as they are. */
TEST(gathers_count_what_crosses)
{
    trained all[2] = {0};
    for (int i = 0; i < 2; i++) {
        toy_run run = run_in(i == 0 ? ZERO_DTYPE_DEFAULT : ZERO_DTYPE_BF16);
        CHECK_OK(toy_on_ranks(RANKS, &run, train, &all[i]));
    }
    CHECK(all[1].gather_bytes < all[0].gather_bytes * 6 / 10);
    CHECK(toy_state_moved(&all[0].state, &all[1].state) != 0);
    toy_state_free(&all[0].state);
    toy_state_free(&all[1].state);
}

/* ---- bytes of blocks ---- */

#define BLOCKS_COUNT 100000

static void model_of_bf16(toy_model *model)
{
    toy_model_open(model);
    for (uint32_t u = 0; u < 3; u++) {
        (void)toy_model_layer(model, "layer", u);
        (void)toy_model_tensor(model, BLOCKS_COUNT, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_PLAIN);
    }
}

/* Bytes that a step's gathers bring, an element. */
static double bytes_of_gathers(zero_dtype dtype, uint32_t ranks, uint32_t shard_group)
{
    trained all = {0};
    toy_run run = toy_run_made(model_of_bf16);
    run.options.stage = ZERO_STAGE_3;
    run.options.shard_group = shard_group;
    run.tuning.gather_dtype = dtype;
    run.tuning.param_slots = 1; /* so that each pass gathers every unit */
    run.steps = 1;
    run.micro_steps = 1;
    CHECK_OK(toy_on_ranks(ranks, &run, train, &all));
    toy_state_free(&all.state);
    return (double)all.gather_bytes / (3 * BLOCKS_COUNT);
}

/* Of all elements, which padding to whole granules of each rank makes up to 8 % more. */
TEST(blocks_take_half_the_bytes)
{
    static const uint32_t groups[] = {2, 8};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        const double whole = bytes_of_gathers(ZERO_DTYPE_DEFAULT, 8, groups[i]);
        const double mxfp8 = bytes_of_gathers(ZERO_DTYPE_MXFP8, 8, groups[i]);
        const double int8 = bytes_of_gathers(ZERO_DTYPE_INT8_BLOCK, 8, groups[i]);
        CHECK(whole > 0);
        CHECK(fabs(mxfp8 / whole - 1.03125 / 2) < 1e-3);
        CHECK(fabs(int8 / whole - 1.015625 / 2) < 1e-3);
    }
}
