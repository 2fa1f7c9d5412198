/* Owns the tests of parameters that cross ranks in another type than they have: what callers see is
 * rounded once, shards that updates read keep their bits, and tiers change nothing. What gradients
 * cross in, and that all of it is planned, random programs and test_engine_footprint.c see. */

#include <math.h>

#include "core/block_codec.h"
#include "folders.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/math/convert.h"
#include "reads.h"
#include "saved_runs.h"
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
    return (float)(int)code * (scale / 127.0f); /* a code of 0 has no sign */
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

#define BLOCKS_COUNT 20000

static void model_of_bf16(toy_model *model)
{
    toy_model_open(model);
    for (uint32_t u = 0; u < 3; u++) {
        (void)toy_model_layer(model, "layer", u);
        (void)toy_model_tensor(model, BLOCKS_COUNT, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_PLAIN);
    }
}

/* A way to split, for tests of what it sends. */
typedef struct split_way {
    zero_stage stage;
    uint32_t shard_group;
    uint32_t optimizer_group;
} split_way;

static zero_status count_gathers(toy_trainer *trainer)
{
    TOY_TRY(toy_train(trainer));
    if (trainer->rank == 0) {
        *(uint64_t *)trainer->user = engine_stats(trainer->engine).gather_bytes;
    }
    return ZERO_OK;
}

/* Bytes that a step's gathers bring, an element. */
static double bytes_of_gathers(zero_dtype dtype, uint32_t ranks, const split_way *way)
{
    uint64_t bytes = 0;
    toy_run run = toy_run_made(model_of_bf16);
    run.options.stage = way->stage;
    run.options.shard_group = way->shard_group;
    run.tuning.optimizer_group = way->optimizer_group;
    run.tuning.gather_dtype = dtype;
    run.tuning.param_slots = 1; /* so that each pass gathers every unit */
    run.steps = 1;
    run.micro_steps = 1;
    CHECK_OK(toy_on_ranks(ranks, &run, count_gathers, &bytes));
    return (double)bytes / (3 * BLOCKS_COUNT);
}

/* Of all elements, which padding to whole granules of each rank makes up to 8 % more: after an
 * update, before units are used, and both. */
TEST(blocks_take_half_the_bytes)
{
    static const split_way ways[] = {{ZERO_STAGE_1, 0, 0},
                                     {ZERO_STAGE_2, 0, 0},
                                     {ZERO_STAGE_3, 2, 0},
                                     {ZERO_STAGE_3, 2, 8},
                                     {ZERO_STAGE_3, 8, 0}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        const double whole = bytes_of_gathers(ZERO_DTYPE_DEFAULT, 8, &ways[i]);
        const double mxfp8 = bytes_of_gathers(ZERO_DTYPE_MXFP8, 8, &ways[i]);
        const double int8 = bytes_of_gathers(ZERO_DTYPE_INT8_BLOCK, 8, &ways[i]);
        CHECK(whole > 2);
        CHECK(fabs(mxfp8 / whole - 1.03125 / 2) < 1e-3);
        CHECK(fabs(int8 / whole - 1.015625 / 2) < 1e-3);
    }
}

/* ---- after an update ---- */

static const zero_dtype block_dtypes[] = {ZERO_DTYPE_MXFP8, ZERO_DTYPE_INT8_BLOCK};

/* Tensors that end within blocks. */
static void model_of_halves(toy_model *model)
{
    toy_model_open(model);
    for (uint32_t u = 0; u < 3; u++) {
        (void)toy_model_layer(model, "layer", u);
        (void)toy_model_tensor(model, COUNT, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_PLAIN);
        (void)toy_model_tensor(model, 77, 0, ZERO_DTYPE_F16, ZERO_TENSOR_PLAIN);
        (void)toy_model_tensor(model, 300, 0, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN);
        (void)toy_model_tensor(model, 500, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_FROZEN);
        (void)toy_model_tensor(model, 1, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_PLAIN);
    }
}

static toy_run run_of_halves(zero_dtype dtype)
{
    toy_run run = toy_run_made(model_of_halves);
    run.flavour = TOY_REAL;
    run.options.loss_scale = 8;
    run.tuning.gather_dtype = dtype;
    run.steps = 3;
    return run;
}

static float in_dtype(float value, zero_dtype dtype)
{
    return toy_decode(toy_encode(value, dtype), dtype);
}

/* Every parameter that has a master is that, rounded to its type and, where it crosses ranks after
 * the update, in its block. Its bits are compared. */
static void compare_with_masters(const toy_trainer *trainer, const toy_state *state)
{
    const toy_model *model = trainer->run->model;
    const zero_sharding split = plan_sharding(zero_engine_plan(trainer->engine));
    const bool crosses = split.optimizer > split.param;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        const zero_dtype dtype = tensor->desc.dtype;
        float values[COUNT];
        for (uint64_t i = 0; i < tensor->count; i++) {
            const float master =
                toy_decode(state->bits[ZERO_ROLE_MASTER][tensor->base + i], ZERO_DTYPE_F32);
            values[i] = in_dtype(master, dtype);
        }
        for (uint64_t i = 0; i < tensor->count; i++) {
            const uint64_t at = tensor->base + i;
            const float value =
                crosses ? rounded(values, i, tensor->count, trainer->run->tuning.gather_dtype)
                        : values[i];
            if (state->owners[ZERO_ROLE_MASTER][at] != 0) {
                CHECK_EQ(state->bits[ZERO_ROLE_PARAM][at], toy_encode(value, dtype));
            }
        }
    }
}

/* Then steps that are skipped. All ranks that hold an element have the same bits of it
 * (toy_collect). */
static zero_status train_and_skip(toy_trainer *trainer)
{
    toy_state state;
    TOY_TRY(toy_step_or_skip(trainer, true));
    CHECK(trainer->result.skipped);
    TOY_TRY(toy_train(trainer));
    TOY_TRY(toy_collect(trainer, &state));
    compare_with_masters(trainer, &state);
    for (int i = 0; i < 3; i++) {
        TOY_TRY(toy_step_or_skip(trainer, true));
        CHECK(trainer->result.skipped);
        TOY_TRY(toy_collect_same(trainer, &state, "before steps that are skipped"));
    }
    toy_state_free(&state);
    return ZERO_OK;
}

TEST(updated_parameters_are_rounded_once)
{
    for (size_t i = 0; i < 2; i++) {
        const toy_run run = run_of_halves(block_dtypes[i]);
        CHECK_OK(toy_on_ways(RANKS, &run, train_and_skip, NULL));
        CHECK_OK(toy_on_ranks(1, &run, train_and_skip, NULL)); /* where nothing crosses */
    }
}

/* The first step's come from the same gradients as those of a run without blocks. */
TEST(updated_parameters_are_rounded_of_the_same_values)
{
    trained all[2] = {0};
    for (int i = 0; i < 2; i++) {
        toy_run run = run_of_halves(i == 0 ? ZERO_DTYPE_DEFAULT : ZERO_DTYPE_INT8_BLOCK);
        run.options.stage = ZERO_STAGE_2;
        run.steps = 1;
        CHECK_OK(toy_on_ranks(RANKS, &run, train, &all[i]));
    }
    float values[COUNT];
    uint64_t moved = 0;
    for (uint64_t i = 0; i < COUNT; i++) { /* of the first tensor */
        values[i] = toy_decode(all[0].state.bits[ZERO_ROLE_PARAM][i], ZERO_DTYPE_BF16);
    }
    for (uint64_t i = 0; i < COUNT; i++) {
        const uint32_t bits =
            toy_encode(rounded(values, i, COUNT, ZERO_DTYPE_INT8_BLOCK), ZERO_DTYPE_BF16);
        CHECK_EQ(all[1].state.bits[ZERO_ROLE_PARAM][i], bits);
        moved += bits != all[0].state.bits[ZERO_ROLE_PARAM][i];
    }
    CHECK(moved > COUNT / 2);
    toy_state_free(&all[0].state);
    toy_state_free(&all[1].state);
}

/* The first of them is skipped, so initial values are rounded by it. */
static zero_status skip_and_train(toy_trainer *trainer)
{
    TOY_TRY(toy_step_or_skip(trainer, true));
    return train(trainer);
}

/* Parameters on disk are updated, and go to other ranks, chunk by chunk. */
TEST(tiers_change_no_bit_of_updated_parameters)
{
    rig_folders(1, 0);
    for (uint32_t way = 0;; way += toy_samples_ways ? 3 : 1) {
        toy_run run = run_of_halves(block_dtypes[way % 2]);
        trained all = {.again = false};
        if (toy_split(&run, RANKS, way) == NULL) {
            break;
        }
        CHECK_OK(toy_on_ranks(RANKS, &run, skip_and_train, &all));
        all.again = true;
        toy_run_disk(&run, rig_paths, 1);
        run.options.tier[ZERO_ROLE_PARAM] = ZERO_TIER_DISK;
        CHECK_OK(toy_on_ranks(RANKS, &run, skip_and_train, &all));
        toy_run_tiers(&run, ZERO_ROLE_PARAM, ZERO_TIER_DISK);
        CHECK_OK(toy_on_ranks(RANKS, &run, skip_and_train, &all));
        run.options.tier[ZERO_ROLE_PARAM] = ZERO_TIER_DEVICE;
        run.options.tier[ZERO_ROLE_GRAD] = ZERO_TIER_DEVICE;
        run.tuning.speculative_step = 1;
        run.predicted = true;
        CHECK_OK(toy_on_ranks(RANKS, &run, skip_and_train, &all));
        toy_state_free(&all.state);
    }
}

/* ---- codes for callers ---- */

/* Slots of codes and scales change no bit of a run; they are smaller. */
static void compare_encoded(toy_run run, uint32_t ranks)
{
    trained all = {.again = false};
    const zero_memory decoded = toy_planned(&run, ranks);
    CHECK_OK(toy_on_ranks(ranks, &run, skip_and_train, &all));
    all.again = true;
    run.tuning.encoded_views = 1;
    const zero_memory encoded = toy_planned(&run, ranks);
    CHECK(encoded.bytes[ZERO_ROLE_PARAM_SLOT] < decoded.bytes[ZERO_ROLE_PARAM_SLOT] * 6 / 10);
    CHECK_OK(toy_on_ranks(ranks, &run, skip_and_train, &all));
    run.tuning.poison_released = 1;
    CHECK_OK(toy_on_ranks(ranks, &run, skip_and_train, &all));
    run.tuning.poison_released = 0;
    run.tuning.param_slots = 1;
    run.tuning.no_prefetch = 1;
    run.split = true;
    CHECK_OK(toy_on_ranks(ranks, &run, skip_and_train, &all));
    toy_state_free(&all.state);
}

TEST(views_of_codes_are_what_gathers_bring)
{
    for (size_t i = 0; i < 2; i++) {
        toy_run run = run_of_halves(block_dtypes[i]);
        compare_encoded(run, 2);
        compare_encoded(run, 3);
        run.options.shard_group = 2;
        run.tuning.optimizer_group = 4;
        compare_encoded(run, 4);
    }
}

/* By the kernels, of what is in the shards. */
static zero_status compare_codes(toy_trainer *trainer)
{
    const zero_dtype dtype = trainer->run->tuning.gather_dtype;
    const uint64_t scales_bytes = zi_block_scales_bytes(dtype, COUNT);
    float values[COUNT];
    uint16_t halves[COUNT];
    unsigned char codes[COUNT];
    unsigned char scales[COUNT];
    TOY_TRY(toy_train(trainer));
    for (uint32_t u = 0; u < 3; u++) {
        zero_encoded seen = {0};
        zero_shard shard;
        const uint32_t tensor = 5 * u;
        TOY_TRY(zero_unit_acquire(trainer->engine, u, ZERO_PASS_EVAL, toy_stream(), NULL));
        TOY_TRY(zero_tensor_encoded(trainer->engine, tensor, &seen));
        CHECK_EQ(seen.count, COUNT);
        memcpy(codes, toy_fetch((void *)(uintptr_t)seen.codes, COUNT), COUNT);
        memcpy(scales, toy_fetch((void *)(uintptr_t)seen.scales, scales_bytes), scales_bytes);
        TOY_TRY(zero_unit_release(trainer->engine, u, toy_stream()));
        TOY_TRY(zero_shard_range(trainer->engine, tensor, ZERO_ROLE_PARAM, &shard));
        TOY_TRY(zero_shard_read(trainer->engine, tensor, ZERO_ROLE_PARAM, shard.first, shard.count,
                                halves));
        for (uint64_t i = 0; i < shard.count; i++) {
            values[i] = zi_f32_from_bf16(halves[i]);
        }
        unsigned char own_codes[COUNT];
        unsigned char own_scales[COUNT];
        zi_cpu_encode_blocks(own_codes, own_scales, dtype, values, ZERO_DTYPE_F32, shard.count);
        CHECK_BYTES(own_codes, codes + shard.first, shard.count);
        CHECK_BYTES(own_scales, scales + zi_block_scales_bytes(dtype, shard.first),
                    zi_block_scales_bytes(dtype, shard.count));
    }
    return ZERO_OK;
}

TEST(codes_are_those_of_the_shards)
{
    for (size_t i = 0; i < 2; i++) {
        toy_run run = run_of_halves(block_dtypes[i]);
        run.tuning.encoded_views = 1;
        for (uint32_t ranks = 1; ranks <= 3; ranks++) {
            CHECK_OK(toy_on_ranks(ranks, &run, compare_codes, NULL));
        }
    }
}

static zero_status ask_for_values(toy_trainer *trainer)
{
    zero_view view;
    zero_encoded codes;
    const bool encoded = trainer->run->tuning.encoded_views != 0;
    const char *none = "acquired as bf16, without codes; call zero_tensor_data";
    CHECK_FAILS(zero_tensor_encoded(trainer->engine, 0, &codes),
                encoded ? ZERO_ERR_STATE : ZERO_ERR_INVALID_ARGUMENT,
                encoded ? "not acquired" : none);
    TOY_TRY(zero_unit_acquire(trainer->engine, 0, ZERO_PASS_EVAL, toy_stream(), NULL));
    if (encoded) {
        CHECK_FAILS(zero_tensor_data(trainer->engine, 0, &view), ZERO_ERR_INVALID_ARGUMENT,
                    "call zero_tensor_encoded");
        CHECK_OK(zero_tensor_encoded(trainer->engine, 0, &codes));
    } else {
        CHECK_FAILS(zero_tensor_encoded(trainer->engine, 0, &codes), ZERO_ERR_INVALID_ARGUMENT,
                    none);
        CHECK_OK(zero_tensor_data(trainer->engine, 0, &view));
    }
    return zero_unit_release(trainer->engine, 0, toy_stream());
}

TEST(views_are_of_one_kind)
{
    for (int encoded = 0; encoded < 2; encoded++) {
        toy_run run = run_of_halves(ZERO_DTYPE_MXFP8);
        run.tuning.encoded_views = encoded;
        CHECK_OK(toy_on_ranks(2, &run, ask_for_values, NULL));
    }
}

TEST(what_has_no_codes_to_show)
{
    toy_run run = run_of_halves(ZERO_DTYPE_BF16);
    zero_plan *plan = NULL;
    run.tuning.encoded_views = 1;
    CHECK_FAILS(zero_plan_create(run.model->model, TOY_OPTIONS(&run), 4, &plan),
                ZERO_ERR_INVALID_ARGUMENT, "encoded_views is 1 and gather_dtype bf16");
    run.tuning.gather_dtype = ZERO_DTYPE_MXFP8;
    run.options.stage = ZERO_STAGE_2;
    CHECK_FAILS(zero_plan_create(run.model->model, TOY_OPTIONS(&run), 1, &plan),
                ZERO_ERR_UNSUPPORTED, "encoded_views is 1 and options.stage 2");
    run.options.stage = ZERO_STAGE_3;
    run.options.tier[ZERO_ROLE_PARAM] = ZERO_TIER_DISK;
    CHECK_FAILS(zero_plan_create(run.model->model, TOY_OPTIONS(&run), 4, &plan),
                ZERO_ERR_UNSUPPORTED, "encoded_views is 1 and options.tier of param is disk");
}

/* ---- saves ---- */

static zero_status save_half_way(toy_trainer *trainer)
{
    const zero_save_options options = run_save_options("half");
    TOY_TRY(toy_train(trainer));
    TOY_TRY(zero_save(trainer->engine, &options));
    return train(trainer);
}

static zero_status go_on(toy_trainer *trainer)
{
    const zero_load_options options = run_load_options("half");
    TOY_TRY(zero_load(trainer->engine, &options, NULL));
    trainer->step = trainer->run->steps;
    return train(trainer);
}

/* A run that goes on from its save has the bits of one that was not stopped. */
TEST(saves_keep_what_was_rounded)
{
    run_directory_make();
    for (int i = 0; i < 2; i++) {
        trained all = {.again = false};
        toy_run run = run_of_halves(block_dtypes[i]);
        run.options.stage = i == 0 ? ZERO_STAGE_1 : ZERO_STAGE_2;
        CHECK_OK(toy_on_ranks(RANKS, &run, save_half_way, &all));
        all.again = true;
        CHECK_OK(toy_on_ranks(RANKS, &run, go_on, &all));
        toy_state_free(&all.state);
    }
}
