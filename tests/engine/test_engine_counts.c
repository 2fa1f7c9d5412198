/* Owns the tests of how often ranks talk and when: exact numbers of collectives per step, and
 * timings with collectives and compute of known length that show what overlaps. */
#include "harness.h"
#include "reads.h"

#include <time.h>

#include "core/clock.h"
#include "core/fault.h"
#include "toy.h"
#include "waits.h"

#define MICRO_STEPS 2

/* The counts that one step of `units` equal units must have. */
typedef struct count_case {
    const char *name;
    zero_stage stage;
    zero_accumulation accumulation;
    uint32_t shard_group;
    uint32_t grad_group;
    uint32_t optimizer_group;
    uint32_t ranks;
    uint32_t param_gathers; /* in units */
    uint32_t reduces;       /* in units */
    bool gathers;
} count_case;

static const count_case count_cases[] = {
    {"stage 0", ZERO_STAGE_0, ZERO_ACCUMULATION_DEFAULT, 0, 0, 0, 2, 0, 1, false},
    {"stage 1", ZERO_STAGE_1, ZERO_ACCUMULATION_DEFAULT, 0, 0, 0, 2, 1, 1, false},
    {"stage 2", ZERO_STAGE_2, ZERO_ACCUMULATION_DEFAULT, 0, 0, 0, 2, 1, 2, false},
    {"stage 3", ZERO_STAGE_3, ZERO_ACCUMULATION_DEFAULT, 0, 0, 0, 2, 0, 2, true},
    {"stage 3, 3 ranks", ZERO_STAGE_3, ZERO_ACCUMULATION_DEFAULT, 0, 0, 0, 3, 0, 2, true},
    {"stage 2, local", ZERO_STAGE_2, ZERO_ACCUMULATION_LOCAL, 0, 0, 0, 2, 1, 1, false},
    {"stage 3, local", ZERO_STAGE_3, ZERO_ACCUMULATION_LOCAL, 0, 0, 0, 2, 0, 1, true},
    {"hybrid 2 of 4", ZERO_STAGE_3, ZERO_ACCUMULATION_DEFAULT, 2, 0, 0, 4, 0, 3, true},
    {"hybrid 1/2/4", ZERO_STAGE_3, ZERO_ACCUMULATION_DEFAULT, 1, 2, 4, 4, 1, 3, false},
    {"hybrid 2/4/4", ZERO_STAGE_3, ZERO_ACCUMULATION_DEFAULT, 2, 4, 4, 4, 1, 2, true},
    {"alone", ZERO_STAGE_3, ZERO_ACCUMULATION_DEFAULT, 0, 0, 0, 1, 0, 0, false},
};

typedef struct count_run {
    const count_case *c;
    toy_run run;
    uint32_t units;
    uint32_t slots;
} count_run;

/* Forward, backward, forward, backward: a unit still in its slot at one of the three turns is not
 * gathered again. */
static uint64_t gathers_expected(uint32_t units, uint32_t slots)
{
    const uint64_t kept = slots < units ? slots : units;
    return 4 * (uint64_t)units - 3 * kept;
}

static zero_status count_steps(toy_trainer *trainer)
{
    const count_run *r = trainer->user;
    for (uint32_t warm = 0; warm < 3; warm++) {
        TOY_TRY(toy_step(trainer));
    }
    /* A step's gathers ahead for the next one are the same in every step. */
    zero_stats before = engine_stats(trainer->engine);
    for (uint32_t step = 0; step < 3; step++) {
        TOY_TRY(toy_step(trainer));
        const zero_stats after = engine_stats(trainer->engine);
        const uint64_t gathers = r->c->gathers ? gathers_expected(r->units, r->slots) : 0;
        if (after.gathers - before.gathers != gathers ||
            after.param_gathers - before.param_gathers !=
                (uint64_t)r->c->param_gathers * r->units ||
            after.reduces - before.reduces != (uint64_t)r->c->reduces * r->units) {
            TEST_FAIL("%s, %u units, %u slots: %" PRIu64 " gathers (%" PRIu64 "), %" PRIu64
                      " param_gathers (%u), %" PRIu64 " reduces (%u)",
                      r->c->name, r->units, r->slots, after.gathers - before.gathers, gathers,
                      after.param_gathers - before.param_gathers, r->c->param_gathers * r->units,
                      after.reduces - before.reduces, r->c->reduces * r->units);
        }
        CHECK_EQ(after.gathers_unforeseen, before.gathers_unforeseen);
        CHECK_EQ(after.micro_steps - before.micro_steps, MICRO_STEPS);
        CHECK_EQ(after.steps - before.steps, 1);
        before = after;
    }
    CHECK_EQ(before.steps, 6);
    CHECK_EQ(before.steps_skipped, 0);
    CHECK((before.gather_bytes != 0) == (before.gathers + before.param_gathers != 0));
    CHECK((before.reduce_bytes != 0) == (before.reduces != 0));
    return ZERO_OK;
}

/* look_ahead 0: no prefetch. */
static void count_all(uint32_t units, uint32_t slots, uint32_t look_ahead)
{
    const toy_run run = toy_run_equal(units, 300, ZERO_DTYPE_F32);
    for (size_t i = 0; i < sizeof count_cases / sizeof count_cases[0]; i++) {
        const count_case *c = &count_cases[i];
        count_run r = {.c = c, .run = run, .units = units, .slots = slots};
        r.run.micro_steps = MICRO_STEPS;
        r.run.options.stage = c->stage;
        r.run.tuning.accumulation = c->accumulation;
        r.run.options.shard_group = c->shard_group;
        r.run.tuning.grad_group = c->grad_group;
        r.run.tuning.optimizer_group = c->optimizer_group;
        r.run.tuning.bucket_bytes = 1;
        r.run.tuning.param_slots = slots;
        r.run.tuning.look_ahead = look_ahead;
        r.run.tuning.no_prefetch = look_ahead == 0;
        CHECK_OK(toy_on_ranks(c->ranks, &r.run, count_steps, &r));
    }
}

TEST(exact_counts)
{
    count_all(7, 3, 1);
    count_all(7, 2, 1);
    count_all(12, 5, 1);
}

/* Nothing that the schedule needs soon makes room for what it needs later. */
TEST(a_look_ahead_beyond_the_slots_gathers_nothing_twice)
{
    count_all(7, 3, 3);
    count_all(7, 3, 63);
    count_all(7, 2, 5);
    count_all(12, 5, 7);
}

TEST(exact_counts_without_prefetch)
{
    count_all(7, 3, 0);
    count_all(7, 1, 0);
}

TEST(exact_counts_when_all_units_fit)
{
    count_all(3, 3, 1);
    count_all(3, 8, 1);
    count_all(1, 3, 1);
}

/* Units that share a bucket are still counted one by one. */
static zero_status count_shared(toy_trainer *trainer)
{
    TOY_TRY(toy_step(trainer));
    CHECK_EQ(engine_stats(trainer->engine).reduces, 7);
    TOY_TRY(toy_step(trainer));
    CHECK_EQ(engine_stats(trainer->engine).reduces, 14);
    return ZERO_OK;
}

TEST(counts_of_shared_buckets)
{
    toy_run run = toy_run_equal(7, 300, ZERO_DTYPE_F32);
    run.tuning.bucket_bytes = 3000;
    CHECK_OK(toy_on_ranks(2, &run, count_shared, NULL));
}

/* Training gathers the same with evaluation between its steps as without. */
static zero_status count_with_evaluation(zero_world *world, void *user)
{
    uint64_t gathers[2] = {0, 0};
    for (int evaluate = 0; evaluate < 2; evaluate++) {
        toy_trainer trainer;
        TOY_TRY(toy_open(&trainer, user, world));
        for (uint32_t step = 0; step < 6; step++) {
            if (evaluate != 0) {
                TOY_TRY(toy_evaluate(&trainer));
            }
            const uint64_t before = engine_stats(trainer.engine).gathers;
            TOY_TRY(toy_micro(&trainer, false));
            TOY_TRY(toy_micro(&trainer, true));
            if (step >= 2) {
                gathers[evaluate] += engine_stats(trainer.engine).gathers - before;
            }
            TOY_TRY(toy_update(&trainer));
        }
        CHECK_EQ(engine_stats(trainer.engine).gathers_unforeseen, 0);
        toy_close(&trainer);
    }
    /* The gather that the step made ahead of the next forward falls outside the window when nothing
     * comes between, and inside when an evaluation used it up. */
    CHECK(gathers[1] >= gathers[0]);
    CHECK(gathers[1] - gathers[0] <= 4);
    return ZERO_OK;
}

TEST(evaluation_leaves_the_order_alone)
{
    toy_run run = toy_run_equal(8, 300, ZERO_DTYPE_F32);
    CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, count_with_evaluation, &run));
}

/* An order that keeps changing is foreseen again once it has been seen. */
static zero_status count_unforeseen(toy_trainer *trainer)
{
    const uint32_t units = trainer->run->model->unit_count;
    uint64_t unforeseen = 0;
    for (uint32_t step = 0; step < 8; step++) {
        TOY_TRY(toy_micro_begin(trainer, true));
        for (uint32_t i = 0; i < units; i++) {
            TOY_TRY(toy_forward(trainer, (i + 3) % units));
        }
        for (uint32_t i = units; i-- > 0;) {
            TOY_TRY(toy_backward(trainer, (i + 3) % units));
        }
        TOY_TRY(toy_micro_end(trainer));
        TOY_TRY(toy_update(trainer));
        if (step == 3) {
            unforeseen = engine_stats(trainer->engine).gathers_unforeseen;
            CHECK(unforeseen > 0);
        }
    }
    CHECK_EQ(engine_stats(trainer->engine).gathers_unforeseen, unforeseen);
    return ZERO_OK;
}

TEST(a_changed_order_is_learnt)
{
    toy_run run = toy_run_equal(8, 300, ZERO_DTYPE_F32);
    CHECK_OK(toy_on_ranks(2, &run, count_unforeseen, NULL));
}

/* ---- overlap: every collective takes 10 ms, every unit computes 25 ms ---- */

#define UNITS 8
#define COMPUTE_MS 25
#define COLLECTIVE_MS 10
#define ROUNDS 3

typedef struct overlap {
    toy_run run;
    double forward_ms;  /* the best of some rounds: others use this machine too */
    double backward_ms; /* to the end of the step */
} overlap;

static void compute(void)
{
    const struct timespec span = {.tv_nsec = COMPUTE_MS * 1000000L};
    (void)nanosleep(&span, NULL);
}

static zero_status slow_forward(const toy_trainer *trainer)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        TOY_TRY(zero_unit_acquire(trainer->engine, u, ZERO_PASS_FORWARD, toy_stream(), NULL));
        compute();
        TOY_TRY(zero_unit_release(trainer->engine, u, toy_stream()));
    }
    return ZERO_OK;
}

static zero_status slow_backward(toy_trainer *trainer)
{
    const zero_stream host = toy_stream();
    for (uint32_t u = UNITS; u-- > 0;) {
        TOY_TRY(zero_unit_acquire(trainer->engine, u, ZERO_PASS_BACKWARD, host, NULL));
        compute();
        TOY_TRY(zero_unit_release(trainer->engine, u, host));
    }
    return zero_micro_end(trainer->engine);
}

static double ms_since(uint64_t start_ns)
{
    return (double)(zi_clock_ns() - start_ns) / 1e6;
}

static zero_status measure(toy_trainer *trainer)
{
    overlap *o = trainer->user;
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_step(trainer));
    for (int round = 0; round < ROUNDS; round++) {
        TOY_TRY(toy_wait(trainer));
        TOY_TRY(zero_world_barrier(trainer->world));
        zi_fault_slow(ZI_FAULT_COLLECTIVE, COLLECTIVE_MS * 1000000u);
        TOY_TRY(zero_micro_begin(trainer->engine, ZERO_MICRO_LAST));
        uint64_t start = zi_clock_ns();
        TOY_TRY(slow_forward(trainer));
        const double forward_ms = ms_since(start);
        start = zi_clock_ns();
        TOY_TRY(slow_backward(trainer));
        TOY_TRY(toy_update(trainer));
        TOY_TRY(toy_wait(trainer));
        const double backward_ms = ms_since(start);
        zi_fault_slow(ZI_FAULT_COLLECTIVE, 0);
        TOY_TRY(zero_world_barrier(trainer->world));
        if (trainer->rank == 0) {
            o->forward_ms = round == 0 || forward_ms < o->forward_ms ? forward_ms : o->forward_ms;
            o->backward_ms =
                round == 0 || backward_ms < o->backward_ms ? backward_ms : o->backward_ms;
        }
    }
    return ZERO_OK;
}

static overlap measured(bool prefetch)
{
    overlap o = {.run = toy_run_equal(UNITS, 300, ZERO_DTYPE_F32)};
    o.run.tuning.bucket_bytes = 1;
    o.run.tuning.no_prefetch = prefetch ? 0 : 1;
    CHECK_OK(toy_on_ranks(2, &o.run, measure, &o));
    return o;
}

TEST(collectives_hide_behind_compute)
{
    if (!clock_is_exact()) {
        SKIP("by the system's clock other programs take part of the time");
    }
    const double serial_ms = UNITS * (COMPUTE_MS + COLLECTIVE_MS);
    const overlap with = measured(true);
    const overlap without = measured(false);
    printf("  forward %.0f ms, without prefetch %.0f; backward and step %.0f and %.0f\n",
           with.forward_ms, without.forward_ms, with.backward_ms, without.backward_ms);
    CHECK(with.forward_ms >= UNITS * COMPUTE_MS);
    CHECK(with.forward_ms < serial_ms * 0.9);
    CHECK(without.forward_ms >= serial_ms * 0.98);
    /* A gather, a reduction and the few collectives of the step itself are in the open. */
    CHECK(with.backward_ms < serial_ms);
    CHECK(with.backward_ms < without.backward_ms);
}
