/* Owns the tests of units that have a shard group of their own: they train like one rank at every
 * stage and on every tier, and each is planned and split as it says. Random programs draw such
 * units too (random_case.h). */
#include "harness.h"

#include "folders.h"
#include "toy.h"

#define RANKS 4

/* Blocks that are split over the world, and experts beside them that are split over fewer ranks, or
 * over none. */
static void model_of_experts(toy_model *model)
{
    static const uint32_t groups[] = {0, 2, 0, 1, 2, 4};
    toy_model_open(model);
    for (uint32_t u = 0; u < 6; u++) {
        model->shard_group = groups[u];
        (void)toy_model_layer(model, groups[u] == 0 ? "block" : "expert", u);
        (void)toy_model_tensor(model, 700 + 100 * u, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_PLAIN);
        (void)toy_model_tensor(model, 33, 0, ZERO_DTYPE_F32, ZERO_TENSOR_NO_DECAY);
    }
}

static zero_status train_like_one_rank(toy_trainer *trainer)
{
    const toy_state *expected = trainer->user;
    zero_memory planned = zero_memory_init();
    zero_memory memory = zero_memory_init();
    TOY_TRY(toy_train(trainer));
    TOY_TRY(zero_plan_memory(zero_engine_plan(trainer->engine), &planned));
    TOY_TRY(zero_engine_memory(trainer->engine, &memory));
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        CHECK_EQ(memory.bytes[role], planned.bytes[role]);
    }
    return toy_collect_same(trainer, expected, "one rank that has all of each unit");
}

static void train_on_tier(zero_tier tier)
{
    toy_run run = toy_run_made(model_of_experts);
    toy_state expected;
    run.flavour = TOY_INTEGER;
    run.steps = 4;
    run.params.max_norm = 0.5f;
    toy_run plain = run;
    plain.plain = true;
    plain.micro_steps = RANKS * run.micro_steps;
    CHECK_OK(toy_train_collect(&plain, NULL, &expected));
    if (tier == ZERO_TIER_DISK) {
        toy_run_disk(&run, rig_paths, 1);
    }
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        run.options.tier[role] = tier;
    }
    for (int stage = 1; stage <= 3; stage++) {
        run.options.stage = (zero_stage)stage;
        for (int local = 0; local < 2; local++) {
            run.tuning.accumulation =
                local != 0 ? ZERO_ACCUMULATION_LOCAL : ZERO_ACCUMULATION_DEFAULT;
            CHECK_OK(toy_on_ranks(RANKS, &run, train_like_one_rank, &expected));
        }
    }
    toy_state_free(&expected);
}

TEST(experts_train_like_one_rank_at_every_stage)
{
    train_on_tier(ZERO_TIER_DEVICE);
}

TEST(experts_on_disk_train_like_one_rank_at_every_stage)
{
    rig_folders(1, 0);
    train_on_tier(ZERO_TIER_DISK);
}

/* ---- what crosses ranks twice ---- */

/* A unit whose gradients are added to in place, and one whose gradients are scattered before their
 * sums cross ranks again. */
static void model_of_two_ways(toy_model *model)
{
    toy_model_open(model);
    for (uint32_t u = 0; u < 2; u++) {
        model->shard_group = 1 + u;
        (void)toy_model_layer(model, "expert", u);
        (void)toy_model_tensor(model, 700, 0, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN);
    }
}

static zero_status train_and_keep(toy_trainer *trainer)
{
    TOY_TRY(toy_train(trainer));
    return toy_collect_first(trainer, trainer->user);
}

static zero_status train_like_memory(toy_trainer *trainer)
{
    TOY_TRY(toy_train(trainer));
    return toy_collect_same(trainer, trainer->user, "all in memory");
}

/* Sums of ranks stay in the accumulator's type, also where offloaded gradients wait for the end of
 * the micro-step before they cross ranks again. */
TEST(gradients_lose_bits_on_the_wire_once)
{
    rig_folders(1, 0);
    toy_run run = toy_run_made(model_of_two_ways);
    toy_state expected;
    run.flavour = TOY_REAL;
    run.steps = 3;
    run.options.stage = ZERO_STAGE_2;
    run.tuning.wire_dtype = ZERO_DTYPE_F16;
    CHECK_OK(toy_on_ranks(RANKS, &run, train_and_keep, &expected));
    toy_run_disk(&run, rig_paths, 1);
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        run.options.tier[role] = ZERO_TIER_DISK;
    }
    CHECK_OK(toy_on_ranks(RANKS, &run, train_like_memory, &expected));
    toy_state_free(&expected);
}

/* ---- what is planned ---- */

static uint64_t planned_bytes(uint32_t shard_group, zero_stage stage, zero_role role)
{
    zero_model *model = NULL;
    zero_plan *plan = NULL;
    zero_memory memory = zero_memory_init();
    zero_engine_options options = {.stage = stage};
    const zero_tensor_desc weight = {.name = "w", .shape = {1024, 1024}, .dims = 2};
    const zero_unit_desc unit = {
        .name = "expert", .tensors = &weight, .tensor_count = 1, .shard_group = shard_group};
    CHECK_OK(zero_model_create(&model));
    CHECK_OK(zero_unit_add(model, &unit, NULL, NULL));
    CHECK_OK(zero_plan_create(model, &options, 8, &plan));
    CHECK_OK(zero_plan_memory(plan, &memory));
    zero_plan_destroy(plan);
    zero_model_destroy(model);
    return memory.bytes[role];
}

TEST(a_unit_is_planned_over_its_own_group)
{
    const uint64_t whole = (uint64_t)1024 * 1024 * sizeof(float);
    CHECK_EQ(planned_bytes(0, ZERO_STAGE_3, ZERO_ROLE_PARAM), whole / 8);
    CHECK_EQ(planned_bytes(2, ZERO_STAGE_3, ZERO_ROLE_PARAM), whole / 2);
    CHECK_EQ(planned_bytes(2, ZERO_STAGE_3, ZERO_ROLE_MOMENT2), whole / 2);
    CHECK_EQ(planned_bytes(2, ZERO_STAGE_2, ZERO_ROLE_PARAM), whole);
    CHECK_EQ(planned_bytes(2, ZERO_STAGE_2, ZERO_ROLE_GRAD), whole / 2);
    CHECK_EQ(planned_bytes(4, ZERO_STAGE_1, ZERO_ROLE_MOMENT1), whole / 4);
    CHECK_EQ(planned_bytes(4, ZERO_STAGE_1, ZERO_ROLE_GRAD), whole);
    CHECK_EQ(planned_bytes(1, ZERO_STAGE_3, ZERO_ROLE_MASTER), 0);
}

/* ---- what is refused ---- */

static void refuse(const uint32_t *groups, uint32_t count, zero_stage stage, const char *text)
{
    zero_model *model = NULL;
    zero_plan *plan = NULL;
    zero_engine_options options = {.stage = stage};
    CHECK_OK(zero_model_create(&model));
    for (uint32_t i = 0; i < count; i++) {
        const zero_tensor_desc weight = {.name = test_text("w%u", i), .shape = {64}, .dims = 1};
        char name[24];
        (void)snprintf(name, sizeof name, "expert%u", i);
        const zero_unit_desc unit = {
            .name = name, .tensors = &weight, .tensor_count = 1, .shard_group = groups[i]};
        CHECK_OK(zero_unit_add(model, &unit, NULL, NULL));
    }
    CHECK_FAILS(zero_plan_create(model, &options, 16, &plan), ZERO_ERR_INVALID_ARGUMENT, text);
    zero_model_destroy(model);
}

TEST(groups_that_make_no_sense)
{
    const uint32_t many[] = {1, 2, 4, 8};
    refuse((const uint32_t[]){3}, 1, ZERO_STAGE_3, "a unit's shard_group 3 does not divide");
    refuse((const uint32_t[]){32}, 1, ZERO_STAGE_3, "a unit's shard_group 32 does not divide");
    refuse((const uint32_t[]){2}, 1, ZERO_STAGE_0, "this stage does not split that state");
    refuse(many, 4, ZERO_STAGE_3, "unit \"expert3\": shard_group 8 is one more than the 4 ways");
}
