/* Owns the property that what is drawn at random changes no bit: how a model is split over ranks,
 * where its roles are, what the engine is tuned to, and what is called around its steps. Gradients
 * are integers, so sums are exact in any order; the same samples are taken by one rank at stage 0
 * with everything at its default, and state must have the same bits.
 *
 * The same programs are tried with one fault each: an allocation, a thread, a collective or an
 * access to a disk that fails. They end with the same bits, where it was made good, or with that
 * fault's status.
 *
 * And they are saved half way, and go on from there in a world of another size that is split,
 * placed and tuned by another draw: the same bits again.
 *
 * And they are saved more than once while one fault happens: the newest checkpoint that is whole is
 * no older than the last save that succeeded, and what goes on from it comes to the same bits.
 *
 * And calls that the table of states refuses are made between all others, on each rank other ones
 * where ranks need not agree: each is refused by that, and nothing comes of it.
 *
 * On the deterministic machine each case has its own order of turns too (tests/machine). `--case K`
 * tries the K-th alone and prints it, `--cases N` so many. */
#include "random_case.h"

#include "core/fault.h"
#include "engine/engine_internal.h"
#include "engine_calls.h"
#include "zero/checkpoint.h"

#define CASES 150
#define STEPS 4
#define SAVED_AFTER 2

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
    random_case elsewhere; /* the same model and types, where the program goes on */
    before_step before[STEPS];
    toy_state expected;
    uint64_t resumed_at; /* the step with which it goes on there */
    uint64_t durable;    /* that of the last save that succeeded */
    char directory[128]; /* of its saves */
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
    const bool just_loaded = trainer->run == &p->elsewhere.run &&
                             trainer->step == p->resumed_at; /* no step to wait for */
    TOY_TRY(just_loaded ? ZERO_OK : toy_wait(trainer));
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

static zero_status take_steps(toy_trainer *trainer, program *p, int first, int end)
{
    for (int s = first; s < end; s++) {
        TOY_TRY(take_step(trainer, p, p->before[s]));
    }
    return ZERO_OK;
}

static zero_status run_program(toy_trainer *trainer)
{
    program *p = trainer->user;
    TOY_TRY(take_steps(trainer, p, 0, STEPS));
    return toy_collect_same(trainer, &p->expected, "one plain rank, and the case");
}

/* ---- all cases ---- */

/* Ranks of a case, in turns of its own. */
static zero_status run_case(program *p, const random_case *c, toy_step_fn fn)
{
    test_machine_begin((test_seed << 20) + c->number + 1);
    return toy_on_ranks(c->ranks, &c->run, fn, p);
}

static zero_status run_ranks(program *p)
{
    return run_case(p, &p->c, run_program);
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

static void check_follows(const program *p, zi_fault_kind kind, zero_status status)
{
    if (status != ZERO_OK && !may_follow(kind, status)) {
        TEST_FAIL("case %" PRIu64 ": fault of kind %d: %s: %s", p->c.number, (int)kind,
                  zero_status_name(status), zero_last_error()->message);
    }
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
        check_follows(p, kind, status);
    }
    zi_fault_arm(kind, 0);
}

TEST(a_fault_ends_a_program_by_a_status_or_changes_nothing)
{
    try_cases(run_with_fault);
}

/* ---- programs that go on elsewhere ---- */

static zero_status save_as(toy_trainer *trainer, const char *name)
{
    program *p = trainer->user;
    zero_save_options options = zero_save_options_init();
    options.directory = p->directory;
    options.name = name;
    TOY_TRY(zero_save(trainer->engine, &options));
    if (trainer->rank == 0) {
        p->durable = trainer->step;
    }
    return ZERO_OK;
}

static zero_status save_half_way(toy_trainer *trainer)
{
    TOY_TRY(take_steps(trainer, trainer->user, 0, SAVED_AFTER));
    return save_as(trainer, "half");
}

/* From the newest that is there, or, where nothing is, from the beginning. */
static zero_status load_and_go_on(toy_trainer *trainer)
{
    program *p = trainer->user;
    zero_load_options options = zero_load_options_init();
    zero_load_report report = zero_load_report_init();
    options.path = p->directory;
    options.if_any = 1;
    TOY_TRY(zero_load(trainer->engine, &options, &report));
    if (report.step < p->durable) {
        TEST_FAIL("case %" PRIu64 ": the save after step %" PRIu64 " succeeded, step %" PRIu64
                  " was loaded",
                  p->c.number, p->durable, report.step);
    }
    p->resumed_at = report.step;
    trainer->step = report.step;
    TOY_TRY(take_steps(trainer, p, (int)report.step, STEPS));
    return toy_collect_same(trainer, &p->expected,
                            "one plain rank, and the case, saved and loaded");
}

/* What a step sums is the same there: as many samples, over as many ranks as divide them. */
static void draw_elsewhere(program *p)
{
    random_case *there = &p->elsewhere;
    const toy_run given = p->c.run;
    const uint32_t samples = given.micro_steps * p->c.ranks;
    *there = p->c;
    memset(there->plans, 0, sizeof there->plans);
    do {
        there->ranks = 1 + random_case_choose(there, 8);
    } while (samples % there->ranks != 0);
    there->run.options.host_budget_bytes = 0;
    draw_split(there);
    draw_tiers(there);
    draw_tuning(there);
    there->run.options.loss_scale = given.options.loss_scale;
    there->run.params = given.params;
    there->run.micro_steps = samples / there->ranks;
    make_plans(there);
}

/* A folder for the saves that follow. */
static void make_directory(program *p)
{
    static uint32_t made;
    (void)snprintf(p->directory, sizeof p->directory, "%s/%u", run_directory, made++);
    p->durable = 0;
    CHECK_EQ(mkdir(p->directory, 0777), 0);
}

static void save_and_load(program *p)
{
    make_directory(p);
    CHECK_OK(run_case(p, &p->c, save_half_way));
    CHECK_EQ(p->durable, SAVED_AFTER);
    CHECK_OK(run_case(p, &p->elsewhere, load_and_go_on));
}

static zero_status save_often(toy_trainer *trainer)
{
    program *p = trainer->user;
    TOY_TRY(take_steps(trainer, p, 0, 1));
    TOY_TRY(save_as(trainer, "first"));
    TOY_TRY(take_steps(trainer, p, 1, STEPS - 1));
    TOY_TRY(save_as(trainer, "second"));
    return take_steps(trainer, p, STEPS - 1, STEPS);
}

static void save_with_fault(program *p)
{
    const zi_fault_kind kind = (zi_fault_kind)random_case_choose(&p->c, ZI_FAULT_KINDS);
    make_directory(p);
    zi_fault_arm(kind, UINT64_MAX);
    CHECK_OK(run_case(p, &p->c, save_often));
    const uint64_t events = zi_fault_count(kind);
    if (events != 0) {
        make_directory(p);
        zi_fault_arm(kind, 1 + random_case_choose(&p->c, (uint32_t)events));
        const zero_status status = run_case(p, &p->c, save_often);
        zi_fault_arm(kind, 0);
        p->faults = status != ZERO_OK;
        check_follows(p, kind, status);
        CHECK_OK(run_case(p, &p->elsewhere, load_and_go_on));
    }
    zi_fault_arm(kind, 0);
}

/* With what goes on elsewhere drawn, where it may. */
static void try_elsewhere(program *p, case_fn fn)
{
    draw_elsewhere(p);
    if (!p->elsewhere.refused) {
        fn(p);
    }
    zero_plan_destroy(p->elsewhere.plans[0]);
}

static void try_saved(program *p)
{
    try_elsewhere(p, save_and_load);
}

static void try_saved_with_fault(program *p)
{
    try_elsewhere(p, save_with_fault);
}

TEST(a_saved_program_goes_on_elsewhere)
{
    run_directory_make();
    try_cases(try_saved);
}

TEST(a_fault_costs_no_save_that_succeeded)
{
    run_directory_make();
    try_cases(try_saved_with_fault);
}

/* ---- calls that are refused ---- */

static const struct {
    zi_engine_call call;
    bool of_all; /* all ranks make it together: what one finds is told to all */
    zero_status (*make)(zero_engine *engine);
} refused_calls[] = {
    {ZI_CALL_FILL, true, call_fill},
    {ZI_CALL_EVICT, true, call_evict},
    {ZI_CALL_SAVE, true, call_save},
    {ZI_CALL_LOAD, true, call_load},
    {ZI_CALL_RESTORE, true, zero_engine_restore},
    {ZI_CALL_MICRO_BEGIN, false, call_begin},
    {ZI_CALL_LAST_BEGIN, false, call_begin_last},
    {ZI_CALL_MICRO_END, false, zero_micro_end},
    {ZI_CALL_TRAIN, false, call_forward},
    {ZI_CALL_TRAIN, false, call_backward},
    {ZI_CALL_EVAL, false, call_eval},
    {ZI_CALL_STEP, false, call_step},
    {ZI_CALL_DISCARD, false, zero_step_discard},
    {ZI_CALL_ABANDON, false, call_abandon},
    {ZI_CALL_NORM, false, call_norm},
};
#define REFUSED_CALLS (sizeof refused_calls / sizeof refused_calls[0])

/* Which one a rank makes: all ranks the same, where it is one of all ranks. */
static uint32_t pick_call(const program *p, uint32_t rank, uint64_t turn)
{
    const uint64_t first = (test_seed << 40) + (p->c.number << 20) + (turn << 8);
    const uint32_t shared = test_chance(first, REFUSED_CALLS);
    uint32_t own = test_chance(first + 1 + rank, REFUSED_CALLS);
    while (refused_calls[own].of_all) {
        own = (own + 1) % REFUSED_CALLS;
    }
    return refused_calls[shared].of_all ? shared : own;
}

/* One of them, if the table refuses it now. */
static void make_refused_call(toy_trainer *trainer, const program *p, uint64_t *turn)
{
    zero_engine *engine = trainer->engine;
    const zi_engine_state state = engine->state;
    const uint32_t pick = pick_call(p, trainer->rank, ++*turn);
    if (zi_engine_on(state, refused_calls[pick].call).legal) {
        return;
    }
    const zero_status status = refused_calls[pick].make(engine);
    /* Roles that this engine can never evict are that first. */
    const bool refused = status == ZERO_STATE ||
                         (status == ZERO_UNSUPPORTED && refused_calls[pick].call == ZI_CALL_EVICT);
    if (!refused || engine->state != state) {
        TEST_FAIL("case %" PRIu64 ": call %u while %s: %s, then %s: %s", p->c.number, pick,
                  zi_engine_state_name(state), zero_status_name(status),
                  zi_engine_state_name(engine->state), zero_last_error()->message);
    }
}

static zero_status take_refused_step(toy_trainer *trainer, const program *p, uint64_t *turn)
{
    const toy_run *run = trainer->run;
    const uint32_t units = run->model->unit_count;
    TOY_TRY(zero_loss_scale(trainer->engine, &trainer->loss_scale));
    for (uint32_t m = 0; m < run->micro_steps; m++) {
        make_refused_call(trainer, p, turn);
        TOY_TRY(toy_micro_begin(trainer, m + 1 == run->micro_steps));
        for (uint32_t u = 0; u < units; u++) {
            make_refused_call(trainer, p, turn);
            TOY_TRY(toy_forward(trainer, u));
        }
        for (uint32_t u = units; u-- > 0;) {
            make_refused_call(trainer, p, turn);
            TOY_TRY(toy_backward(trainer, u));
        }
        TOY_TRY(toy_micro_end(trainer));
        make_refused_call(trainer, p, turn);
    }
    return toy_update(trainer);
}

static zero_status run_refused(toy_trainer *trainer)
{
    program *p = trainer->user;
    uint64_t turn = 0;
    for (int s = 0; s < STEPS; s++) {
        TOY_TRY(take_refused_step(trainer, p, &turn));
    }
    return toy_collect_same(trainer, &p->expected, "one plain rank, and the case");
}

static void run_with_refused_calls(program *p)
{
    CHECK_OK(run_case(p, &p->c, run_refused));
}

TEST(refused_calls_change_nothing)
{
    run_directory_make();
    try_cases(run_with_refused_calls);
}
