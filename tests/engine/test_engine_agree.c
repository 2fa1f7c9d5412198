/* Owns the tests of ranks that give different things to a step: its hyper-parameters, its
 * micro-steps. Every rank is told which, of whom and how, nothing is changed, and it is not told by
 * a deadline. */
#include "harness.h"
#include "reads.h"

#include <stdatomic.h>
#include <time.h>

#include "engine/engine_internal.h"
#include "folders.h"
#include "launched.h"
#include "saved_runs.h"
#include "toy.h"

#define SHORT_MS 2000

/* ---- what differs ---- */

/* One number that the last rank is given differently from a step on. */
typedef struct oddity {
    const char *text; /* that every rank's message says of it, before that rank */
    size_t at;        /* in zero_step_params where group is OWN, else in zero_hyper */
    uint32_t group;
    float value;
} oddity;

#define OWN UINT32_MAX
#define GROUPS 6

static const oddity oddities[] = {
    {"max_norm is 0 on rank 0 and 2.5 on rank ", offsetof(zero_step_params, max_norm), OWN, 2.5f},
    {"lr of group 0 is 0.00100000005 on rank 0 and 0.25 on rank ", offsetof(zero_hyper, adamw.lr),
     0, 0.25f},
    {"beta1 of group 0 is 0.899999976 on rank 0 and 0.5 on rank ",
     offsetof(zero_hyper, adamw.beta1), 0, 0.5f},
    {"beta2 of group 0 is 0.999000013 on rank 0 and 0.75 on rank ",
     offsetof(zero_hyper, adamw.beta2), 0, 0.75f},
    {"eps of group 0 is 9.99999994e-09 on rank 0 and 0.125 on rank ",
     offsetof(zero_hyper, adamw.eps), 0, 0.125f},
    {"weight_decay of group 0 is 0 on rank 0 and 0.5 on rank ",
     offsetof(zero_hyper, adamw.weight_decay), 0, 0.5f},
    {"lr of group 5 is 0.00100000005 on rank 0 and 0.25 on rank ", offsetof(zero_hyper, adamw.lr),
     5, 0.25f},
    {"weight_decay of group 5 is 0 on rank 0 and 0.5 on rank ",
     offsetof(zero_hyper, adamw.weight_decay), 5, 0.5f},
};

#define ODDITIES (sizeof oddities / sizeof oddities[0])

/* Groups 0 and 5 have something to train, group 3 only what is frozen. */
static void describe(toy_model *model)
{
    toy_model_open(model);
    toy_model_unit(model, "first");
    toy_model_tensor(model, 300, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_PLAIN);
    toy_model_grouped(model, 40, ZERO_DTYPE_F32, ZERO_TENSOR_FROZEN, 3);
    toy_model_unit(model, "second");
    toy_model_grouped(model, 700, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN, 5);
    toy_model_unit(model, "third");
    toy_model_tensor(model, 200, 0, ZERO_DTYPE_F32, ZERO_TENSOR_NO_DECAY);
}

/* This rank's parameters for a step that `odd` is given to the last one; NULL: to none. */
static zero_step_params params_of(const toy_trainer *trainer, const oddity *odd,
                                  zero_hyper groups[GROUPS])
{
    zero_step_params params = trainer->run->params;
    for (uint32_t g = 0; g < GROUPS; g++) {
        groups[g] = params.hyper;
    }
    params.groups = groups;
    params.group_count = GROUPS;
    if (odd != NULL && trainer->rank == trainer->ranks - 1) {
        unsigned char *base =
            odd->group == OWN ? (unsigned char *)&params : (unsigned char *)&groups[odd->group];
        memcpy(base + odd->at, &odd->value, sizeof odd->value);
    }
    return params;
}

/* ---- what must not change ---- */

/* Everything that a step updates and that is in memory. */
typedef struct memory_copy {
    unsigned char *bytes[TOY_ROLES];
    zi_step_state state;
} memory_copy;

static const zero_role kept[] = {ZERO_ROLE_PARAM, ZERO_ROLE_MASTER, ZERO_ROLE_MOMENT1,
                                 ZERO_ROLE_MOMENT2};

static memory_copy copy_memory(const zero_engine *engine)
{
    memory_copy copy = {.state = *engine->decide.state};
    for (size_t i = 0; i < 4; i++) {
        copy.bytes[i] = malloc(engine->arena_bytes[kept[i]] + 1);
        CHECK(copy.bytes[i] != NULL);
        if (engine->arena_bytes[kept[i]] != 0) {
            memcpy(copy.bytes[i], engine->arena[kept[i]], engine->arena_bytes[kept[i]]);
        }
    }
    return copy;
}

/* Ends with the copy. The streams may have failed; what is on them is over. */
static void check_memory(zero_engine *engine, memory_copy *copy)
{
    (void)engine->device->ops->event_wait(engine->device->self, engine->stepped, NULL);
    for (size_t i = 0; i < 4; i++) {
        CHECK_BYTES(engine->arena[kept[i]], copy->bytes[i], engine->arena_bytes[kept[i]]);
        free(copy->bytes[i]);
    }
    CHECK_BYTES(engine->decide.state, &copy->state, sizeof copy->state);
}

/* ---- a step with different parameters ---- */

static zero_status step_with(toy_trainer *trainer, const oddity *odd)
{
    zero_hyper groups[GROUPS];
    const zero_step_params params = params_of(trainer, odd, groups);
    return toy_step_with(trainer, &params);
}

/* The job of every rank. */
typedef struct job {
    toy_run run;
    toy_step_fn fn;
    const oddity *odd;
    bool waits;       /* the result is asked for at once */
    const char *text; /* of micro-steps that differ */
    atomic_uint told; /* ranks that came to their end as they should */
} job;

static zero_status on_rank(zero_world *world, void *user)
{
    job *j = user;
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, &j->run, world));
    trainer.user = j;
    const zero_status status = j->fn(&trainer);
    toy_close(&trainer);
    atomic_fetch_add(&j->told, status == ZERO_OK);
    return status;
}

/* Two good steps, one that differs, and then good ones again until the rank is told. */
static zero_status find_out(toy_trainer *trainer)
{
    const job *j = trainer->user;
    char text[96];
    for (uint64_t s = 0; s < 2; s++) {
        TOY_TRY(step_with(trainer, NULL));
        TOY_TRY(toy_wait(trainer));
        CHECK_EQ(trainer->result.updates, s + 1);
    }
    const zero_stats before = engine_stats(trainer->engine);
    TOY_TRY(trainer->engine->device->ops->event_wait(trainer->engine->device->self,
                                                     trainer->engine->stepped, NULL));
    memory_copy memory = copy_memory(trainer->engine);
    zero_status status = step_with(trainer, j->odd);
    if (status == ZERO_OK && j->waits) {
        status = toy_wait(trainer);
        CHECK(status != ZERO_OK);
    }
    for (uint32_t ahead = 0; ahead < ENGINE_STEP_BUFFERS && status == ZERO_OK; ahead++) {
        status = step_with(trainer, NULL);
    }
    (void)snprintf(text, sizeof text, "%s%u", j->odd->text, trainer->ranks - 1);
    CHECK_FAILS(status, ZERO_ERR_MISMATCH, text);
    CHECK_EQ(toy_wait(trainer), ZERO_ERR_POISONED);
    check_memory(trainer->engine, &memory);
    const zero_stats after = engine_stats(trainer->engine);
    CHECK_EQ(after.steps_speculative, before.steps_speculative);
    CHECK_EQ(after.steps_redone, before.steps_redone);
    CHECK_EQ(after.steps_skipped, 0);
    return ZERO_OK;
}

/* Every rank must be told, and so is who started them. */
static void run_threads(uint32_t ranks, job *j)
{
    atomic_store(&j->told, 0);
    CHECK_EQ(zero_world_run(ranks, TOY_DEADLINE_MS, on_rank, j), ZERO_ERR_MISMATCH);
    CHECK_EQ(atomic_load(&j->told), ranks);
}

static toy_run run_over(void)
{
    toy_run run = toy_run_made(describe);
    run.params = zero_step_params_init();
    run.micro_steps = 2;
    return run;
}

/* Every way to split the model over so many ranks: two of the numbers in turn or, `all`, each.
 * Predicted steps are updated before they are decided. */
static void try_ways(uint32_t ranks, bool predicted, bool all)
{
    job j = {.run = run_over(), .fn = find_out};
    if (predicted) {
        toy_run_overlap(&j.run, rig_paths);
    }
    for (uint32_t w = 0; toy_split(&j.run, ranks, w) != NULL; w++) {
        for (uint32_t i = 0; i < (all ? ODDITIES : 2); i++) {
            j.odd = &oddities[(3 * w + 5 * i) % ODDITIES];
            j.waits = i % 2 == 0;
            run_threads(ranks, &j);
        }
    }
}

TEST_CALL(each_number_on_two_ranks, try_ways(2, false, true));

TEST(each_way_on_more_ranks)
{
    try_ways(3, false, false);
    try_ways(4, false, false);
}

TEST(predicted_steps)
{
    rig_folders(1, 0);
    try_ways(2, true, false);
    try_ways(4, true, false);
}

/* A dynamic loss scale is read before each step, so the next one's beginning tells. */
static zero_status ask_for_scale(toy_trainer *trainer)
{
    const job *j = trainer->user;
    float scale = 0;
    TOY_TRY(step_with(trainer, j->odd));
    CHECK_FAILS(zero_loss_scale(trainer->engine, &scale), ZERO_ERR_MISMATCH,
                "max_norm is 0 on rank 0 and 2.5 on rank 1");
    return ZERO_OK;
}

TEST(a_dynamic_loss_scale_tells)
{
    job j = {.run = run_over(), .fn = ask_for_scale, .odd = &oddities[0]};
    j.run.options.loss_scale = 8.0f;
    run_threads(2, &j);
}

/* ---- what need not be alike ---- */

static zero_status go_on(toy_trainer *trainer)
{
    const job *j = trainer->user;
    for (uint64_t s = 0; s < 3; s++) {
        TOY_TRY(step_with(trainer, j->odd));
        TOY_TRY(toy_wait(trainer));
        CHECK_EQ(trainer->result.updates, s + 1);
        CHECK_EQ(trainer->result.skipped_in_a_row, 0);
    }
    return ZERO_OK;
}

static void update_nothing(void *user, const zero_update_range *range)
{
    (void)user;
    (void)range;
}

/* Groups that nothing trained is in, and numbers that a callback does not read. */
TEST(unused_numbers_are_not_compared)
{
    static const oddity frozen = {"", offsetof(zero_hyper, adamw.lr), 3, 0.25f};
    static const oddity empty = {"", offsetof(zero_hyper, adamw.lr), 4, 0.25f};
    job j = {.run = run_over(), .fn = go_on, .odd = &frozen};
    CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, on_rank, &j));
    j.odd = &empty;
    CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, on_rank, &j));
    j.run.options.optimizer = ZERO_OPTIMIZER_CALLBACK;
    j.run.options.update = update_nothing;
    j.odd = &oddities[1];
    CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, on_rank, &j));
    j.fn = find_out;
    j.odd = &oddities[0];
    j.waits = true;
    run_threads(2, &j);
}

/* ---- micro-steps ---- */

/* The last rank makes one micro-step in each step, the others two. */
static zero_status hurry(toy_trainer *trainer)
{
    const job *j = trainer->user;
    const uint32_t micro_steps = trainer->rank == trainer->ranks - 1 ? 1 : 2;
    zero_status status = ZERO_OK;
    for (uint32_t s = 0; s <= ENGINE_STEP_BUFFERS + 1 && status == ZERO_OK; s++) {
        for (uint32_t m = 0; m < micro_steps && status == ZERO_OK; m++) {
            status = toy_micro(trainer, m + 1 == micro_steps);
        }
        status = status == ZERO_OK ? toy_update(trainer) : status;
    }
    CHECK_FAILS(status, ZERO_ERR_MISMATCH, j->text);
    return ZERO_OK;
}

TEST(micro_steps_on_all_ways)
{
    job j = {.run = run_over(), .fn = hurry, .text = "micro-step"};
    for (uint32_t ranks = 2; ranks <= 4; ranks++) {
        for (uint32_t w = 0; toy_split(&j.run, ranks, w) != NULL; w++) {
            run_threads(ranks, &j);
        }
    }
}

TEST(micro_steps_are_named)
{
    job j = {.run = run_over(), .fn = hurry};
    j.run.options.stage = ZERO_STAGE_1;
    j.text = "rank 1 makes one micro-step in this step, rank 0 several";
    run_threads(2, &j);
    j.run.options.stage = ZERO_STAGE_2;
    j.text = "rank 1 is in the last micro-step of its step, rank 0 in one before the last";
    run_threads(2, &j);
}

/* The ranks never come to the same place where only a step's end reduces but units are gathered in
 * every micro-step: one waits for the other's gather, that one for its sums. */
static zero_status never_meet(toy_trainer *trainer)
{
    const uint32_t micro_steps = trainer->rank == 0 ? 2 : 1;
    zero_status status = ZERO_OK;
    for (uint32_t m = 0; m < micro_steps && status == ZERO_OK; m++) {
        status = toy_micro(trainer, m + 1 == micro_steps);
    }
    status = status == ZERO_OK ? toy_update(trainer) : status;
    status = status == ZERO_OK ? toy_wait(trainer) : status;
    CHECK(status == ZERO_ERR_TIMEOUT || status == ZERO_ERR_COMM || status == ZERO_ERR_MISMATCH);
    return ZERO_OK;
}

TEST(micro_steps_that_never_meet_end_by_the_deadline)
{
    job j = {.run = run_over(), .fn = never_meet};
    j.run.tuning.accumulation = ZERO_ACCUMULATION_LOCAL;
    j.run.tuning.param_slots = 1;
    CHECK(zero_world_run(2, SHORT_MS, on_rank, &j) != ZERO_OK);
    CHECK_EQ(atomic_load(&j.told), 2);
}

/* ---- a rank that is missing ---- */

/* Rank 1 ends its micro-step and takes no step while rank 0 waits for it. */
static zero_status step_alone(toy_trainer *trainer)
{
    const job *j = trainer->user;
    const struct timespec span = {.tv_nsec = 1000000};
    TOY_TRY(toy_micro(trainer, true));
    while (trainer->rank == 1 && atomic_load(&j->told) == 0) {
        (void)nanosleep(&span, NULL);
    }
    if (trainer->rank == 0) {
        TOY_TRY(toy_update(trainer));
        CHECK_FAILS(toy_wait(trainer), ZERO_ERR_TIMEOUT,
                    "rank 1 did not arrive at all_gather of the step's norm");
    }
    return ZERO_OK;
}

TEST(a_step_that_one_rank_takes_alone)
{
    job j = {.run = run_over(), .fn = step_alone};
    j.run.options.stage = ZERO_STAGE_1;
    CHECK(zero_world_run(2, SHORT_MS, on_rank, &j) != ZERO_OK);
    CHECK_EQ(atomic_load(&j.told), 2);
}

/* ---- ranks that are processes ---- */

REAL_TEST(processes)
{
    job j = {.run = run_over()};
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
        for (uint32_t w = 0; toy_split(&j.run, ranks, w) != NULL; w++) {
            j.fn = find_out;
            j.odd = &oddities[w % ODDITIES];
            j.waits = w % 2 == 0;
            run_launched(ranks, on_rank, &j);
            j.fn = hurry;
            j.text = "micro-step";
            run_launched(ranks, on_rank, &j);
        }
    }
}

/* ---- calls that some ranks make alone ---- */

/* The calls of each of two ranks after a step, and the error that all are told. */
typedef struct parting {
    zero_status (*does[2])(toy_trainer *trainer);
    zero_status status;
    const char *text;
    const char *other;
} parting;

static zero_status save_alone(toy_trainer *trainer)
{
    const zero_save_options options = run_save_options("alone");
    return zero_save(trainer->engine, &options);
}

static zero_status set_state(toy_trainer *trainer)
{
    const zero_step_state state = zero_step_state_init();
    return zero_step_state_set(trainer->engine, &state);
}

static zero_status fill_alone(toy_trainer *trainer)
{
    return zero_engine_fill(trainer->engine, toy_fill, NULL);
}

/* Ranks compare what they were filled with in their first micro-step. */
static zero_status begin_first(toy_trainer *trainer)
{
    return zero_micro_begin(trainer->engine, ZERO_MICRO_LAST);
}

/* Later than any deadline here. */
static zero_status wait_and_sleep(toy_trainer *trainer)
{
    TOY_TRY(toy_wait(trainer));
    const struct timespec pause = {.tv_nsec = 700 * 1000 * 1000};
    (void)nanosleep(&pause, NULL);
    return ZERO_OK;
}

static zero_status part_from_another(toy_trainer *trainer)
{
    const parting *p = trainer->user;
    const bool first = p->does[trainer->ranks - 1] == begin_first;
    TOY_TRY(first ? ZERO_OK : toy_step(trainer));
    return p->does[trainer->rank](trainer);
}

static zero_status part(zero_world *world, void *user)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, &run, world));
    trainer.user = user;
    const zero_status status = part_from_another(&trainer);
    toy_close(&trainer);
    return status;
}

TEST(calls_that_some_ranks_make_alone)
{
    parting ways[] = {
        {{save_alone, fill_alone}, ZERO_ERR_MISMATCH, "zero_save's 312 bytes", "zero_engine_fill"},
        {{set_state, save_alone}, ZERO_ERR_MISMATCH, "zero_save's", "zero_step_state_set's"},
        {{fill_alone, set_state}, ZERO_ERR_MISMATCH, "zero_engine_fill", "zero_step_state_set's"},
        {{save_alone, begin_first}, ZERO_ERR_MISMATCH, "zero_save's", "zero_micro_begin's"},
        {{save_alone, wait_and_sleep},
         ZERO_ERR_TIMEOUT,
         "rank 1 did not arrive at all_gather of "
         "zero_save's",
         "last calls: rank 0 zero_save, rank 1 zero_step_wait"},
        {{wait_and_sleep, fill_alone},
         ZERO_ERR_TIMEOUT,
         "zero_engine_fill",
         "last calls: rank 1 zero_engine_fill, rank 0 zero_step_wait"},
    };
    run_directory_make();
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        const uint32_t deadline_ms = ways[i].status == ZERO_ERR_TIMEOUT ? 300 : TOY_DEADLINE_MS;
        CHECK_FAILS(zero_world_run(2, deadline_ms, part, &ways[i]), ways[i].status, ways[i].text);
        if (strstr(zero_last_error()->message, ways[i].other) == NULL) {
            TEST_FAIL("way %zu: no \"%s\" in: %s", i, ways[i].other, zero_last_error()->message);
        }
    }
}
