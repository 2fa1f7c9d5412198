/* Owns the product of all tiers: any role on any tier, in every way to split a model, in every type
 * and over several ranks and micro-steps, by one acquire for a unit or by the split calls, has the
 * bits of all on the device, at every step and at the end. A run of the suites takes a sample by
 * the seed; `all` as the argument takes all of it.
 */
#include "harness.h"
#include "reads.h"

#include "folders.h"
#include "toy.h"

#define STEPS 5
#define RANKS_MAX 4

#define TIERS 3
static const zero_tier tiers[] = {ZERO_TIER_DEVICE, ZERO_TIER_HOST, ZERO_TIER_DISK};

/* ---- what is varied ---- */

typedef struct kind {
    const char *name;
    zero_dtype dtype;
    zero_dtype master;
    zero_dtype moments;
    zero_dtype accumulated;
} kind;

static const kind kinds[] = {
    {"f32", ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT, ZERO_DTYPE_F32, ZERO_DTYPE_F32},
    {"bf16 with a master", ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_F32},
    {"bf16 rounded by chance", ZERO_DTYPE_BF16, ZERO_DTYPE_NONE, ZERO_DTYPE_BF16, ZERO_DTYPE_F32},
    {"bf16 sums", ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_BF16},
    {"bf16 all over", ZERO_DTYPE_BF16, ZERO_DTYPE_NONE, ZERO_DTYPE_BF16, ZERO_DTYPE_BF16},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

/* The number of mixes of tiers, all on the device among them (0). */
static uint32_t mix_count(void)
{
    uint32_t count = 1;
    for (int role = 0; role < ZERO_SHARD_ROLES; role++) {
        count *= TIERS;
    }
    return count;
}

/* Digit i of the mix is role i's tier. */
static void put_on(toy_run *run, uint32_t mix, bool real_disk)
{
    for (int role = 0; role < ZERO_SHARD_ROLES; role++) {
        run->options.tier[role] = tiers[mix % TIERS];
        mix /= TIERS;
    }
    toy_run_disk(run, &rig_paths[real_disk ? 0 : 1], 1);
#ifdef TOY_CUDA
    bool alone = false; /* some of it only one of them can update */
    for (int role = 0; role < ZERO_SHARD_ROLES; role++) {
        alone = alone || run->options.tier[role] == ZERO_TIER_DISK ||
                (role < ZERO_ROLE_MASTER && run->options.tier[role] == ZERO_TIER_HOST);
    }
    const zero_updater other = alone ? ZERO_UPDATER_CPU : ZERO_UPDATER_BOTH;
    run->tuning.updater = real_disk ? ZERO_UPDATER_DEFAULT : other;
#endif
}

/* ---- a course of training with everything in it ---- */

/* What a run came to: every step's norm, and the end. */
typedef struct outcome {
    double norms[STEPS];
    int32_t skips[STEPS];
    toy_state state;
} outcome;

/* Units that this rank leaves out of a micro-step, another set each time. */
static bool is_left_out(const toy_trainer *trainer, uint32_t unit)
{
    const uint64_t turn = trainer->step * 31 + trainer->micro * 7 + trainer->rank * 3 + unit;
    return turn * UINT64_C(0x9E3779B97F4A7C15) >> 61 == 0;
}

static zero_status micro_step(toy_trainer *trainer, bool last)
{
    const uint32_t units = trainer->run->model->unit_count;
    TOY_TRY(toy_micro_begin(trainer, last));
    for (uint32_t u = 0; u < units; u++) {
        TOY_TRY(is_left_out(trainer, u) ? ZERO_OK : toy_forward(trainer, u));
    }
    for (uint32_t u = units; u-- > 0;) {
        TOY_TRY(is_left_out(trainer, u) ? ZERO_OK : toy_backward(trainer, u));
    }
    return toy_micro_end(trainer);
}

/* A step; the second has a gradient that is not finite. */
static zero_status whole_step(toy_trainer *trainer, outcome *out)
{
    const uint64_t step = trainer->step;
    TOY_TRY(zero_loss_scale(trainer->engine, &trainer->loss_scale));
    trainer->loss_scale = step == 1 ? (float)INFINITY : trainer->loss_scale;
    for (uint32_t m = 0; m < trainer->run->micro_steps; m++) {
        TOY_TRY(micro_step(trainer, m + 1 == trainer->run->micro_steps));
    }
    TOY_TRY(toy_update(trainer));
    TOY_TRY(toy_wait(trainer));
    CHECK_EQ(trainer->result.skipped, step == 1);
    out->norms[step] = trainer->result.norm;
    out->skips[step] = trainer->result.skipped;
    return ZERO_OK;
}

/* Turn the signs of all that this rank has of a role of a tensor. */
static zero_status turn_signs(toy_trainer *trainer, uint32_t tensor, zero_role role)
{
    zero_shard shard;
    TOY_TRY(zero_shard_range(trainer->engine, tensor, role, &shard));
    unsigned char *values = calloc(shard.count + 1, sizeof(uint32_t));
    CHECK(values != NULL);
    TOY_TRY(zero_shard_read(trainer->engine, tensor, role, shard.first, shard.count, values));
    for (uint64_t e = 0; e < shard.count; e++) {
        const uint32_t sign = shard.dtype == ZERO_DTYPE_F32 ? UINT32_C(1) << 31 : 1u << 15;
        toy_store(values, e, shard.dtype, toy_load(values, e, shard.dtype) ^ sign);
    }
    TOY_TRY(zero_shard_write(trainer->engine, tensor, role, shard.first, shard.count, values));
    free(values);
    return ZERO_OK;
}

/* Between two steps: look at all, change some of it, or begin again with what was in the moments.
 */
static zero_status between(toy_trainer *trainer)
{
    switch (trainer->step) {
    case 1:
    case 4:
        return toy_evaluate(trainer);
    case 2:
        TOY_TRY(turn_signs(trainer, 0, ZERO_ROLE_PARAM));
        TOY_TRY(zero_world_barrier(trainer->world));
        TOY_TRY(turn_signs(trainer, 1, ZERO_ROLE_MASTER));
        TOY_TRY(turn_signs(trainer, 1, ZERO_ROLE_MOMENT1));
        return ZERO_OK;
    case 3:
        return zero_engine_fill(trainer->engine, toy_fill, NULL);
    default:
        return ZERO_OK;
    }
}

static zero_status train(zero_world *world, const toy_run *run, outcome *out)
{
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, run, world));
    zero_status status = ZERO_OK;
    for (uint32_t s = 0; s < STEPS && status == ZERO_OK; s++) {
        status = whole_step(&trainer, out);
        status = status == ZERO_OK ? between(&trainer) : status;
    }
    const zero_memory plan = plan_memory(zero_engine_plan(trainer.engine));
    const zero_memory used = engine_memory(trainer.engine);
    CHECK_BYTES(&plan, &used, sizeof plan);
    status = status == ZERO_OK ? toy_collect(&trainer, &out->state) : status;
    if (status != ZERO_OK) {
        fprintf(stderr, "  rank %u: %s: %s\n", trainer.rank, zero_status_name(status),
                zero_last_error()->message);
    }
    toy_close(&trainer);
    return status;
}

/* ---- one way, some mixes ---- */

typedef struct course {
    toy_run run;
    uint64_t seed;
    uint32_t mixes; /* to try of all; 0: all */
    const char *name;
} course;

static void compare(const course *c, const outcome *plain, const outcome *tiered, uint32_t mix)
{
    char what[160];
    (void)snprintf(what, sizeof what, "%s, stage %d, groups %u %u %u, %u micro-steps, mix %u",
                   c->name, (int)c->run.options.stage, c->run.options.shard_group,
                   c->run.tuning.grad_group, c->run.tuning.optimizer_group, c->run.micro_steps,
                   mix);
    for (int s = 0; s < STEPS; s++) {
        TOY_CHECK(memcmp(&plain->norms[s], &tiered->norms[s], sizeof plain->norms[s]) == 0,
                  "%s: step %d: norm %a and %a", what, s, plain->norms[s], tiered->norms[s]);
        TOY_CHECK(plain->skips[s] == tiered->skips[s], "%s: step %d is skipped once", what, s);
    }
    toy_state_same(c->run.model, &plain->state, &tiered->state, what);
    for (uint64_t i = 0; i < plain->state.element_count; i++) {
        TOY_CHECK(plain->state.bits[ZERO_ROLE_GRAD][i] == tiered->state.bits[ZERO_ROLE_GRAD][i],
                  "%s: the sum of element %llu: %08x and %08x", what, (unsigned long long)i,
                  plain->state.bits[ZERO_ROLE_GRAD][i], tiered->state.bits[ZERO_ROLE_GRAD][i]);
    }
}

/* State on disk, and parameters and gradients anywhere. */
static void let_overlap(toy_run *run, uint32_t turn)
{
    put_on(run, mix_count() - 1, turn % 2 == 0);
    run->options.tier[ZERO_ROLE_PARAM] = tiers[turn % TIERS];
    run->options.tier[ZERO_ROLE_GRAD] = tiers[turn / TIERS % TIERS];
    run->tuning.speculative_step = 1;
    run->predicted = true;
}

/* All of a course once more, by another run. */
static zero_status again(zero_world *world, const course *c, const toy_run *run,
                         const outcome *plain, uint32_t mix)
{
    outcome other;
    TOY_TRY(train(world, run, &other));
    compare(c, plain, &other, mix);
    toy_state_free(&other.state);
    return ZERO_OK;
}

static zero_status follow(zero_world *world, void *user)
{
    const course *c = user;
    const uint32_t mixes = c->mixes != 0 ? c->mixes : mix_count() - 1;
    outcome plain;
    toy_run split = c->run;
    toy_run predicted = c->run;
    TOY_TRY(train(world, &c->run, &plain));
    for (uint32_t i = 0; i < mixes; i++) {
        const uint32_t picked = c->mixes != 0 ? test_chance(c->seed * 100 + i, mix_count() - 1) : i;
        toy_run run = c->run;
        put_on(&run, 1 + picked, i % 8 == 0);
        run.split = (c->seed + i) % 2 == 1;
        TOY_TRY(again(world, c, &run, &plain, 1 + picked));
    }
    split.split = true;
    TOY_TRY(again(world, c, &split, &plain, 0));
    let_overlap(&predicted, (uint32_t)c->seed);
    TOY_TRY(again(world, c, &predicted, &plain, mix_count()));
    toy_state_free(&plain.state);
    return ZERO_OK;
}

/* ---- the sample and the product ---- */

static toy_run run_of(const kind *k)
{
    toy_run run = toy_run_mixed(k->dtype);
    run.options.master_dtype = k->master;
    run.options.moment_dtype = k->moments;
    run.tuning.accum_dtype = k->accumulated;
    run.options.loss_scale = 1;
    run.tuning.loss_scale_static = 1;
    return run;
}

/* Every type of state over this many ranks; by chance, or all of each. */
static void try_ranks(uint32_t ranks)
{
    uint64_t turn = test_seed * 77 + ranks;
    rig_folders(1, 1);
    for (size_t k = 0; k < KINDS; k++) {
        const toy_run run = run_of(&kinds[k]);
        toy_sharding ways[16];
        const uint32_t way_count = toy_shardings(ranks, true, ways);
        const uint32_t choices = way_count * 4;
        for (uint32_t i = 0; i < choices; i++) {
            const uint32_t pick = test_whole() ? i : test_chance(turn * 1000, choices);
            course c = {
                .run = run, .seed = turn++, .mixes = test_whole() ? 0 : 2, .name = kinds[k].name};
            toy_sharding_apply(&ways[pick / 4], &c.run);
            c.run.micro_steps = pick % 2 == 0 ? 3 : 1;
            c.run.params.max_norm = turn % 4 < 2 ? 1 : 0;
            c.run.tuning.bucket_bytes = turn % 3 == 0 ? 600 : 1; /* some units together, or none */
            const bool local = pick % 4 >= 2 && ways[pick / 4].grad_group == 0;
            c.run.tuning.accumulation = local ? ZERO_ACCUMULATION_LOCAL : ZERO_ACCUMULATION_DEFAULT;
            CHECK_OK(zero_world_run(ranks, TOY_DEADLINE_MS, follow, &c));
            if (!test_whole() && i == 1) {
                break;
            }
        }
    }
}

TEST_CALL(one_rank, try_ranks(1));
TEST_CALL(two_ranks, try_ranks(2));
TEST_CALL(three_ranks, try_ranks(3));
TEST_CALL(four_ranks, try_ranks(RANKS_MAX));

#ifndef TOY_CUDA

/* ---- reading ahead ---- */

#define UNITS 12

static uint64_t read_bytes(const toy_trainer *trainer)
{
    return engine_stats(trainer->engine).disk_read_bytes;
}

/* A unit that is at hand has the reads of the two behind it under way, or over: the I/O window
 * counts them as they are started. */
static zero_status sweep_and_count(toy_trainer *trainer)
{
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_evaluate(trainer)); /* ends with the last units in memory */
    const uint64_t before = read_bytes(trainer);
    const uint64_t all = plan_memory(zero_engine_plan(trainer->engine)).bytes[ZERO_ROLE_PARAM];
    memset(trainer->seen_set, 0, TOY_TENSORS_MAX * sizeof *trainer->seen_set);
    for (uint32_t u = 0; u < UNITS; u++) {
        TOY_TRY(zero_unit_acquire(trainer->engine, u, ZERO_PASS_EVAL, toy_stream(), NULL));
        const uint64_t least = u + 3 < UNITS ? u + 3 : UNITS;
        CHECK(read_bytes(trainer) - before >= least * (all / UNITS));
        TOY_TRY(toy_read(trainer, u));
        TOY_TRY(zero_unit_release(trainer->engine, u, toy_stream()));
    }
    CHECK_EQ(read_bytes(trainer) - before, all); /* each once */
    return ZERO_OK;
}

TEST(parameters_are_read_two_units_ahead)
{
    rig_folders(1, 1);
    toy_run run = toy_run_equal(UNITS, 5000, ZERO_DTYPE_BF16);
    put_on(&run, 2, false);
    run.tuning.extent_bytes = 16384; /* a unit is one extent */
    CHECK_EQ(run.options.tier[ZERO_ROLE_PARAM], ZERO_TIER_DISK);
    CHECK_OK(toy_on_ranks(1, &run, sweep_and_count, NULL));
    CHECK_OK(toy_on_ranks(2, &run, sweep_and_count, NULL));
}

/* ---- waiting ---- */

/* The second rank leaves a unit out. The first, on its way to the next, waits for the sum that
 * backward adds to; were that behind a reduction over both, and the second's next gather waiting
 * for the first, neither would go on. */
static zero_status leave_one_out(toy_trainer *trainer)
{
    for (int step = 0; step < 2; step++) {
        TOY_TRY(toy_micro(trainer, false));
        TOY_TRY(toy_micro_begin(trainer, true));
        for (uint32_t u = 0; u < UNITS; u++) {
            TOY_TRY(toy_forward(trainer, u));
        }
        for (uint32_t u = UNITS; u-- > 0;) {
            TOY_TRY(trainer->rank == 1 && u == UNITS - 3 ? ZERO_OK : toy_backward(trainer, u));
        }
        TOY_TRY(toy_micro_end(trainer));
        TOY_TRY(toy_update(trainer));
    }
    return ZERO_OK;
}

TEST(a_sum_in_a_slot_waits_for_no_other_rank)
{
    rig_folders(1, 1);
    toy_run run = toy_run_equal(UNITS, 300, ZERO_DTYPE_F32);
    put_on(&run, 2 * TIERS, false);
    CHECK_EQ(run.options.tier[ZERO_ROLE_GRAD], ZERO_TIER_DISK);
    run.tuning.accumulation = ZERO_ACCUMULATION_LOCAL;
    run.tuning.bucket_bytes = 1;
    run.tuning.grad_slots = 5;
    run.tuning.no_prefetch = 1;
    CHECK_OK(toy_on_ranks(2, &run, leave_one_out, NULL));
}

/* ---- what steps and micro-steps move ---- */

/* Numbers of the plan's lines on disks. */
typedef struct traffic {
    uint64_t step_read;
    uint64_t step_write;
    uint64_t pass_read;
    uint64_t micro_write;
} traffic;

static traffic planned(const toy_trainer *trainer)
{
    char text[4096];
    traffic t = {0};
    CHECK(zero_plan_print(zero_engine_plan(trainer->engine), text, sizeof text) < sizeof text);
    const char *line = strstr(text, "disk: a step");
    CHECK(line != NULL);
    CHECK_EQ(sscanf(line, "disk: a step reads at most %" SCNu64 " bytes and writes %" SCNu64,
                    &t.step_read, &t.step_write),
             2);
    line = strstr(text, "disk: a pass");
    CHECK(line == NULL || sscanf(line, "disk: a pass reads at most %" SCNu64, &t.pass_read) == 1);
    line = strstr(text, "disk: a micro-step");
    CHECK(line == NULL || sscanf(line, "disk: a micro-step writes %" SCNu64, &t.micro_write) == 1);
    return t;
}

/* What is written is what was planned, to the byte; what is read is not more, but for the first
 * comparison of parameters that several ranks hold. */
static zero_status count_traffic(toy_trainer *trainer)
{
    const toy_run *run = trainer->run;
    zero_shard shard;
    uint32_t value = 0;
    const traffic t = planned(trainer);
    const uint64_t one = t.pass_read / UNITS; /* for looking at it */
    zero_stats last = engine_stats(trainer->engine);
    for (int step = 0; step < 4; step++) {
        TOY_TRY(toy_step_or_skip(trainer, false));
        /* Of an extent in the middle: so the last one released is written, and all is counted. */
        TOY_TRY(zero_shard_range(trainer->engine, UNITS / 2, ZERO_ROLE_PARAM, &shard));
        TOY_TRY(zero_shard_read(trainer->engine, UNITS / 2, ZERO_ROLE_PARAM, shard.first,
                                shard.count != 0, &value));
        const zero_stats now = engine_stats(trainer->engine);
        const uint64_t micros = run->micro_steps;
        CHECK_EQ(now.disk_write_bytes - last.disk_write_bytes,
                 t.step_write + micros * t.micro_write);
        CHECK(now.disk_read_bytes - last.disk_read_bytes <= t.step_read + 2 * micros * t.pass_read +
                                                                (micros - 1) * t.micro_write + one +
                                                                (step == 0 ? t.pass_read : 0));
        last = now;
    }
    return ZERO_OK;
}

TEST(what_moves_is_what_was_planned)
{
    rig_folders(1, 1);
    static const uint32_t mixes[] = {2, 8}; /* parameters on disk; gradients too */
    for (int i = 0; i < 2; i++) {
        toy_run run = toy_run_equal(UNITS, 5000, ZERO_DTYPE_BF16);
        put_on(&run, mixes[i], false);
        run.micro_steps = 2;
        run.tuning.bucket_bytes = 1; /* a unit each */
        CHECK_OK(toy_on_ranks(1, &run, count_traffic, NULL));
        run.options.stage = ZERO_STAGE_1;
        CHECK_OK(toy_on_ranks(2, &run, count_traffic, NULL));
    }
}

#endif
