/* Owns the property that what is drawn at random changes no bit: how a model is split over ranks,
 * where its roles are, what the engine is tuned to, and what is called around its steps. Gradients
 * are integers, so sums are exact in any order; the same samples are taken by one rank at stage 0
 * with everything at its default, and state must have the same bits.
 *
 * The same programs are tried with one fault each: an allocation, a thread, a collective or an
 * access to a disk that fails. They end with the same bits, where it was made good, or with that
 * fault's status.
 *
 * On the deterministic machine each case has its own order of turns too (tests/machine). `--case K`
 * tries the K-th alone and prints it, `--cases N` so many. */
#include "random_case.h"

#include "core/fault.h"

#define CASES 150
#define STEPS 4

/* What is called before a step. */
typedef enum before_step {
    NOTHING,
    A_DISCARDED_STEP,
    AN_ABANDONED_MICRO_STEP,
    AN_EVALUATION,
    EVICTED_ROLES,
    BEFORE_STEP_COUNT
} before_step;

typedef struct program {
    random_case c;
    before_step before[STEPS];
    toy_state expected;
    bool tried;
    bool evicts;     /* some engine of the program could */
    uint32_t faults; /* that ended it */
} program;

static void draw_program(program *p, uint64_t number)
{
    random_case *c = &p->c;
    random_case_draw(c, number);
    c->run.flavour = TOY_INTEGER;
    c->run.steps = STEPS;
    c->run.options.loss_scale = 8; /* of a half: integers stay exact, and none is skipped */
    c->run.options.seed = 3;
    for (int s = 0; s < STEPS; s++) {
        p->before[s] = (before_step)random_case_choose(c, 2 * BEFORE_STEP_COUNT);
        p->before[s] = p->before[s] >= BEFORE_STEP_COUNT ? NOTHING : p->before[s];
    }
}

/* The same samples and types; all else is left out. */
static toy_run plain_run(const program *p)
{
    const zero_engine_options *given = &p->c.run.options;
    toy_run run = p->c.run;
    run.options = zero_engine_options_init();
    run.options.grad_dtype = given->grad_dtype;
    run.options.master_dtype = given->master_dtype;
    run.options.moment_dtype = given->moment_dtype;
    run.options.loss_scale = given->loss_scale;
    run.options.seed = given->seed;
    run.options.stage = ZERO_STAGE_0;
    run.options.device = given->device;
    run.options.threads = 1;
    run.tuning = zero_tuning_init();
    run.tuning.accum_dtype = p->c.run.tuning.accum_dtype;
    run.tuning.wire_dtype = p->c.run.tuning.wire_dtype;
    run.micro_steps = p->c.run.micro_steps * p->c.ranks;
    run.predicted = false;
    run.split = false;
    return run;
}

static void expect(program *p)
{
    zero_world *self = NULL;
    const toy_run run = plain_run(p);
    CHECK_OK(zero_world_create_self(&self));
    CHECK_OK(toy_train_collect(&run, self, &p->expected));
    zero_world_destroy(self);
}

/* ---- one rank ---- */

static zero_status discard(toy_trainer *trainer)
{
    TOY_TRY(zero_loss_scale(trainer->engine, &trainer->loss_scale));
    TOY_TRY(toy_micros(trainer));
    trainer->micro = 0;
    return zero_step_discard(trainer->engine);
}

/* Some units have been used, and the last of them is acquired. */
static zero_status abandon(toy_trainer *trainer)
{
    const uint32_t units = trainer->run->model->unit_count;
    TOY_TRY(toy_micro_begin(trainer, trainer->run->micro_steps == 1));
    for (uint32_t u = 0; u + 1 < units; u++) {
        TOY_TRY(toy_forward(trainer, u));
    }
    TOY_TRY(toy_acquire(trainer, units - 1, ZERO_PASS_FORWARD));
    trainer->micro = 0;
    return zero_micro_abandon(trainer->engine, toy_stream());
}

static zero_status evict(toy_trainer *trainer, program *p)
{
    TOY_TRY(toy_wait(trainer));
    const zero_status status = zero_engine_evict(trainer->engine, p->c.evicted, p->c.evicted_to);
    if (status == ZERO_UNSUPPORTED) { /* roles that this engine cannot evict */
        return ZERO_OK;
    }
    TOY_TRY(status);
    p->evicts = true;
    return zero_engine_restore(trainer->engine);
}

static zero_status take_step(toy_trainer *trainer, program *p, before_step before)
{
    const bool drops = !trainer->run->predicted;
    switch (before) {
    case A_DISCARDED_STEP:
        TOY_TRY(drops ? discard(trainer) : ZERO_OK);
        break;
    case AN_ABANDONED_MICRO_STEP:
        TOY_TRY(drops ? abandon(trainer) : ZERO_OK);
        break;
    case AN_EVALUATION:
        TOY_TRY(toy_evaluate(trainer));
        break;
    case EVICTED_ROLES:
        TOY_TRY(p->c.evicted != 0 && trainer->step > 0 ? evict(trainer, p) : ZERO_OK);
        break;
    case NOTHING:
    case BEFORE_STEP_COUNT:
    default:
        break;
    }
    return toy_step(trainer);
}

static zero_status run_program(toy_trainer *trainer)
{
    program *p = trainer->user;
    for (int s = 0; s < STEPS; s++) {
        TOY_TRY(take_step(trainer, p, p->before[s]));
    }
    return toy_collect_same(trainer, &p->expected, "one plain rank, and the case");
}

/* ---- all cases ---- */

/* Ranks of the case, in turns of its own. */
static zero_status run_ranks(program *p)
{
    test_machine_begin((test_seed << 20) + p->c.number + 1);
    return toy_on_ranks(p->c.ranks, &p->c.run, run_program, p);
}

typedef void (*case_fn)(program *p);

static void try_case(program *p, uint64_t number, case_fn fn)
{
    test_case_begins(number);
    p->evicts = false;
    p->faults = 0;
    draw_program(p, number);
    p->tried =
        !p->c.refused && p->c.parts == 1 && p->c.run.options.optimizer != ZERO_OPTIMIZER_CALLBACK;
    if (p->tried && test_case_is_chosen()) {
        printf("%s\n", random_case_text(&p->c));
        fflush(stdout);
    }
    if (p->tried) {
        expect(p);
        fn(p);
        toy_state_free(&p->expected);
    }
    random_case_close(&p->c);
}

static void try_cases(case_fn fn)
{
    static program p;
    uint32_t tried = 0;
    uint32_t evicted = 0;
    uint32_t faults = 0;
    rig_folders(RANDOM_DIRECTORIES, 1);
    uint64_t first = 0;
    const uint64_t count = test_cases(CASES, &first);
    for (uint64_t i = first; i < first + count; i++) {
        if (test_case_is_chosen() || IN_SMALL_SAMPLE(i)) {
            try_case(&p, i, fn);
            tried += p.tried;
            evicted += p.evicts;
            faults += p.faults;
        }
    }
    printf("  %u programs, %u evicted roles, %u ended by a fault\n", tried, evicted, faults);
}

static void run_well(program *p)
{
    CHECK_OK(run_ranks(p));
}

TEST(programs_have_the_bits_of_one_plain_rank)
{
    try_cases(run_well);
}

/* What a rank may be told of a fault: its own, or that another rank has failed. */
static bool may_follow(zi_fault_kind kind, zero_status status)
{
    static const zero_status own[ZI_FAULT_KINDS] = {
        [ZI_FAULT_ALLOC] = ZERO_OUT_OF_MEMORY,
        [ZI_FAULT_COLLECTIVE] = ZERO_COMM,
        [ZI_FAULT_THREAD] = ZERO_DEVICE,
        [ZI_FAULT_IO] = ZERO_IO,
    };
    return status == own[kind] || status == ZERO_COMM;
}

/* The files of stores have no names: what the engines have left is what can be seen. */
static void run_with_fault(program *p)
{
    const zi_fault_kind kind = (zi_fault_kind)random_case_choose(&p->c, ZI_FAULT_KINDS);
    zi_fault_arm(kind, UINT64_MAX);
    CHECK_OK(run_ranks(p));
    const uint64_t events = zi_fault_count(kind);
    if (events != 0) {
        zi_fault_arm(kind, 1 + random_case_choose(&p->c, (uint32_t)events));
        const zero_status status = run_ranks(p);
        p->faults = status != ZERO_OK;
        if (status != ZERO_OK && !may_follow(kind, status)) {
            TEST_FAIL("case %" PRIu64 ": fault of kind %d: %s: %s", p->c.number, (int)kind,
                      zero_status_name(status), zero_last_error()->message);
        }
    }
    zi_fault_arm(kind, 0);
}

TEST(a_fault_ends_a_program_by_a_status_or_changes_nothing)
{
    try_cases(run_with_fault);
}
