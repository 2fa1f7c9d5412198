/* Programs drawn at random: a case (random_case.h), what is called before its steps, and the world
 * in which it goes on when it was saved. Gradients are integers, so sums are exact in any order;
 * the same samples are taken by one rank at stage 0 with everything at its default, and state must
 * have the same bits. */
#ifndef TESTS_ENGINE_RANDOM_PROGRAM_H
#define TESTS_ENGINE_RANDOM_PROGRAM_H

#include "random_print.h"
#include "saved_runs.h"

#include <pthread.h>

#include "core/error.h"
#include "core/fault.h"
#include "zero/checkpoint.h"

#define CASES 150
#define STEPS RANDOM_STEPS
#define SAVED_AFTER 2
#define ASTRAY 1000            /* steps from here on are none */
#define ELSEWHERE_CHOICES 4096 /* from here on choices are of where the program goes on */

typedef struct program {
    random_case c;
    random_case elsewhere; /* the same model and types, where the program goes on */
    before_step before[STEPS];
    bool waits[STEPS]; /* for its end */
    bool asks[STEPS];  /* for its norm, before it is taken */
    bool meanwhile;    /* steps are taken while it is saved half way */
    toy_state expected;
    double norms[STEPS];
    _Atomic uint64_t resumed_at; /* the step with which it goes on there */
    uint64_t durable;            /* that of the last save that succeeded */
    char directory[128];         /* of its saves */
    zero_save_options saves;     /* common to all */
    const char *second;          /* the second one's name */
    bool tried;
    _Atomic bool evicts; /* some engine of the program could */
    uint32_t faults;     /* that ended it */
} program;

static inline void draw_program(program *p, uint64_t number)
{
    random_case *c = &p->c;
    random_case_draw(c, number);
    c->run.flavour = TOY_INTEGER;
    c->run.steps = STEPS;
    c->run.options.loss_scale = 8; /* of a half: integers stay exact, and none is skipped */
    c->run.options.seed = 3;
    for (int s = 0; s < STEPS; s++) {
        p->before[s] = (before_step)random_case_choose(c, BEFORE_STEP_COUNT + 4);
        p->before[s] = p->before[s] >= BEFORE_STEP_COUNT ? NOTHING : p->before[s];
        p->waits[s] = random_case_choose(c, 2) != 0;
        p->asks[s] = random_case_one_in(c, 4);
    }
    p->meanwhile = random_case_one_in(c, 2);
}

/* The same samples and types; all else is left out. */
static inline toy_run plain_run(const program *p)
{
    const zero_engine_options *given = &p->c.run.options;
    toy_run run = p->c.run;
    run.options = zero_engine_options_init();
    run.options.grad_dtype = given->grad_dtype;
    run.options.master_dtype = given->master_dtype;
    run.options.moment_dtype = given->moment_dtype;
    run.options.loss_scale = given->loss_scale;
    run.options.seed = given->seed;
    run.plain = true;
    run.options.optimizer = given->optimizer;
    memcpy(run.options.group_optimizer, given->group_optimizer, sizeof run.options.group_optimizer);
    run.options.update = given->update;
    run.options.update_states = given->update_states;
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

/* Split alike, and all in memory. */
static inline toy_run memory_run(const program *p)
{
    const zero_tuning tuning = zero_tuning_init();
    toy_run run = p->c.run;
    toy_run_tiers(&run, ZERO_ROLE_PARAM, ZERO_TIER_DEFAULT);
    run.options.disk_directory_count = 0;
    run.options.host_budget_bytes = 0;
    run.tuning.speculative_step = 0;
    run.tuning.updater = tuning.updater;
    if (p->c.omits == 0) { /* else they are what it needs */
        run.tuning.param_slots = tuning.param_slots;
        run.tuning.grad_slots = tuning.grad_slots;
    }
    run.tuning.look_ahead = tuning.look_ahead;
    run.tuning.no_prefetch = 0;
    run.predicted = false;
    run.split = false;
    return run;
}

/* ---- one rank ---- */

static inline uint32_t course_units(const toy_trainer *trainer)
{
    return trainer->run->model->unit_count;
}

static inline zero_stream course_stream(void)
{
    return toy_stream();
}

static inline bool course_trained(const toy_trainer *trainer, uint32_t unit)
{
    return toy_unit_trained(trainer->run->model, unit);
}

static inline omission course_left_out(const toy_trainer *trainer, uint32_t unit)
{
    const program *p = trainer->user;
    const uint64_t sample = (uint64_t)trainer->micro * trainer->ranks + trainer->rank;
    return omission_of(p->c.omits, trainer->step, sample, unit);
}

static inline zero_status course_backward(toy_trainer *trainer, uint32_t unit, bool adds)
{
    return adds ? toy_backward(trainer, unit) : toy_backward_zero(trainer, unit);
}

typedef toy_trainer course_rank;
#define COURSE_TRY TOY_TRY
#define course_read toy_read
#define course_forward toy_forward
#include "course_passes.h"

/* Go on with samples that no step takes, and that are sometimes not finite; every other time a
 * micro-step of them is over. Returns the step to go back to. */
static inline zero_status go_astray(toy_trainer *trainer, uint64_t *step)
{
    *step = trainer->step;
    trainer->step += ASTRAY;
    trainer->loss_scale = *step % 3 == 1 ? (float)INFINITY : 1;
    return *step % 2 != 0 ? toy_micro(trainer, false) : ZERO_OK;
}

static inline void come_back(toy_trainer *trainer, uint64_t step)
{
    trainer->step = step;
    trainer->micro = 0;
}

static inline zero_status discard(toy_trainer *trainer)
{
    uint64_t step = 0;
    double norm = 0;
    TOY_TRY(go_astray(trainer, &step));
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(course_dropped(trainer, step));
    TOY_TRY(toy_micro_end(trainer));
    if (step % 2 != 0) {
        TOY_TRY(zero_grad_norm(trainer->engine, NULL, toy_stream(), &norm));
    }
    TOY_TRY(zero_step_discard(trainer->engine));
    come_back(trainer, step);
    return ZERO_OK;
}

/* Nothing is held any more, and no view is given. */
static inline void expect_released(const toy_trainer *trainer)
{
    const toy_model *model = trainer->run->model;
    zero_pass pass = ZERO_PASS_EVAL;
    zero_view view;
    for (uint32_t u = 0; u < model->unit_count; u++) {
        CHECK_OK(zero_unit_pass(trainer->engine, u, &pass));
        CHECK_EQ(pass, ZERO_PASS_NONE);
        CHECK_FAILS(zero_unit_release(trainer->engine, u, toy_stream()), ZERO_ERR_STATE, "release");
    }
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        CHECK_FAILS(zero_tensor_data(trainer->engine, t, &view), ZERO_ERR_STATE, "not acquired");
        CHECK(zero_tensor_grad(trainer->engine, t, &view) != ZERO_OK);
    }
}

/* Each rank gives up at another place of the micro-step, one after its end; all at one place where
 * no rank may leave out units. */
static inline zero_status abandon(toy_trainer *trainer, const program *p)
{
    uint64_t step = 0;
    const uint32_t rank = random_case_is_whole(&p->c) ? 0 : trainer->rank;
    TOY_TRY(go_astray(trainer, &step));
    TOY_TRY(toy_micro_begin(trainer, step % 4 >= 2));
    if (rank == 1 && step % 3 == 0) {
        TOY_TRY(toy_passes(trainer));
        TOY_TRY(toy_micro_end(trainer));
    } else {
        TOY_TRY(course_into(trainer, course_calls(step, rank)));
    }
    TOY_TRY(zero_micro_abandon(trainer->engine, toy_stream()));
    expect_released(trainer);
    come_back(trainer, step);
    return ZERO_OK;
}

/* A step whose gradients are not finite. */
static inline zero_status skip(toy_trainer *trainer)
{
    const uint64_t step = trainer->step;
    TOY_TRY(toy_step_or_skip(trainer, true));
    CHECK(trainer->result.skipped);
    trainer->step = step;
    return ZERO_OK;
}

/* Wait for the last step, if this engine has taken one. */
static inline zero_status wait_for_last_step(toy_trainer *trainer, const program *p)
{
    const bool loaded = trainer->run == &p->elsewhere.run && trainer->step == p->resumed_at;
    return loaded || trainer->step == 0 ? ZERO_OK : toy_wait(trainer);
}

static inline zero_status evict(toy_trainer *trainer, program *p)
{
    TOY_TRY(wait_for_last_step(trainer, p));
    const zero_status status = zero_engine_evict(trainer->engine, p->c.evicted, p->c.evicted_to);
    if (status == ZERO_ERR_UNSUPPORTED) { /* roles that this engine cannot evict */
        return ZERO_OK;
    }
    TOY_TRY(status);
    p->evicts = true;
    TOY_TRY(toy_evaluate(trainer));
    return zero_engine_restore(trainer->engine);
}

/* Of all that this rank has of a role of a tensor. */
static inline zero_status turn_role(toy_trainer *trainer, uint32_t tensor, zero_role role)
{
    zero_shard shard;
    TOY_TRY(zero_shard_range(trainer->engine, tensor, role, &shard));
    unsigned char *values = calloc(shard.count + 1, sizeof(uint32_t));
    CHECK(values != NULL);
    zero_status status =
        zero_shard_read(trainer->engine, tensor, role, shard.first, shard.count, values);
    for (uint64_t e = 0; e < shard.count; e++) {
        const uint32_t sign = UINT32_C(1) << (8 * zero_dtype_bytes(shard.dtype) - 1);
        toy_store(values, e, shard.dtype, toy_load(values, e, shard.dtype) ^ sign);
    }
    status = status == ZERO_OK
                 ? zero_shard_write(trainer->engine, tensor, role, shard.first, shard.count, values)
                 : status;
    free(values);
    return status;
}

/* Of one tensor's parameters, another one's master and first moment. */
static inline zero_status turn_signs(toy_trainer *trainer, const program *p)
{
    const uint32_t tensors = trainer->run->model->tensor_count;
    const uint32_t tensor = (uint32_t)trainer->step % tensors;
    TOY_TRY(wait_for_last_step(trainer, p));
    TOY_TRY(turn_role(trainer, tensor, ZERO_ROLE_PARAM));
    TOY_TRY(zero_world_barrier(trainer->world));
    TOY_TRY(turn_role(trainer, (tensor + 1) % tensors, ZERO_ROLE_MASTER));
    return turn_role(trainer, (tensor + 1) % tensors, ZERO_ROLE_MOMENT1);
}

/* Change the state, that of the plain rank too. */
static inline zero_status change_state(toy_trainer *trainer, const program *p, before_step before)
{
    if (before == TURNED_SIGNS) {
        return turn_signs(trainer, p);
    }
    if (before == NEW_VALUES) {
        TOY_TRY(wait_for_last_step(trainer, p));
        return zero_engine_fill(trainer->engine, toy_fill, (void *)(uintptr_t)trainer->run->model);
    }
    return ZERO_OK;
}

static inline zero_status call_before(toy_trainer *trainer, program *p, before_step before)
{
    const bool drops = !trainer->run->predicted;
    switch (before) {
    case A_DISCARDED_STEP:
        return drops ? discard(trainer) : ZERO_OK;
    case AN_ABANDONED_MICRO_STEP:
        return drops ? abandon(trainer, p) : ZERO_OK;
    case AN_EVALUATION:
        return toy_evaluate(trainer);
    case AN_ODD_SWEEP:
        memset(trainer->seen_set, 0, TOY_TENSORS_MAX * sizeof *trainer->seen_set);
        return odd_sweep(trainer, trainer->rank, trainer->ranks);
    case A_SKIPPED_STEP:
        return random_case_trains(&p->c) ? skip(trainer) : ZERO_OK;
    case EVICTED_ROLES:
        return p->c.evicted != 0 && trainer->step > 0 ? evict(trainer, p) : ZERO_OK;
    case NOTHING:
    case TURNED_SIGNS:
    case NEW_VALUES:
    case BEFORE_STEP_COUNT:
    default:
        return change_state(trainer, p, before);
    }
}

static inline zero_status micros_by(toy_trainer *trainer, course way)
{
    TOY_TRY(zero_loss_scale(trainer->engine, &trainer->loss_scale));
    for (uint32_t m = 0; m < trainer->run->micro_steps; m++) {
        TOY_TRY(toy_micro_begin(trainer, m + 1 == trainer->run->micro_steps));
        TOY_TRY(course_passes(trainer, way));
        TOY_TRY(toy_micro_end(trainer));
    }
    return ZERO_OK;
}

/* It is the plain rank's too. */
static inline void compare_norm(const program *p, int step, double norm)
{
    if (memcmp(&norm, &p->norms[step], sizeof norm) != 0) {
        TEST_FAIL("case %" PRIu64 ": step %d: norm %a, of one plain rank %a", p->c.number, step,
                  norm, p->norms[step]);
    }
}

/* Ask what the step's norm will be. */
static inline zero_status ask_norm(toy_trainer *trainer, const program *p, int step)
{
    double norm = 0;
    for (int again = 0; again < 2; again++) {
        TOY_TRY(zero_grad_norm(trainer->engine, NULL, toy_stream(), &norm));
        compare_norm(p, step, norm);
    }
    return ZERO_OK;
}

static inline zero_status wait_and_compare(toy_trainer *trainer, const program *p, int step)
{
    TOY_TRY(toy_wait(trainer));
    CHECK(!trainer->result.skipped);
    compare_norm(p, step, trainer->result.norm);
    return ZERO_OK;
}

static inline zero_status take_steps(toy_trainer *trainer, program *p, int first, int end)
{
    for (int s = first; s < end; s++) {
        TOY_TRY(call_before(trainer, p, p->before[s]));
        TOY_TRY(micros_by(trainer, p->c.courses[s]));
        TOY_TRY(p->asks[s] ? ask_norm(trainer, p, s) : ZERO_OK);
        TOY_TRY(toy_update(trainer));
        TOY_TRY(p->waits[s] ? wait_and_compare(trainer, p, s) : ZERO_OK);
    }
    return ZERO_OK;
}

/* True if engines are on a device with memory of its own, of which plans know nothing
 * (toy_checked.c). */
static inline bool has_other_plan(void)
{
    return getenv("CHECKED_OWN_MEMORY") != NULL;
}

/* Compare the state at the end, and check that the engine holds what was planned. */
static inline zero_status compare_end(toy_trainer *trainer, const char *what)
{
    const program *p = trainer->user;
    const zero_memory plan = plan_memory(zero_engine_plan(trainer->engine));
    const zero_memory used = engine_memory(trainer->engine);
    if (!has_other_plan()) {
        CHECK_BYTES(&plan, &used, sizeof plan);
    }
    TOY_TRY(toy_collect_same(trainer, &p->expected, what));
    return print_end(trainer, &p->expected);
}

static inline zero_status run_program(toy_trainer *trainer)
{
    TOY_TRY(take_steps(trainer, trainer->user, 0, STEPS));
    return compare_end(trainer, "one plain rank, and the case");
}

/* ---- turns ---- */

extern uint64_t machine_log_hash(void) __attribute__((weak)); /* NULL where the machine is not */

/* Of all turns of all cases: the same seed and program come to the same. */
static uint64_t logs_hash;
static uint64_t worlds; /* that ran */

static inline void end_log(void)
{
    logs_hash = machine_log_hash != NULL ? 31 * logs_hash + machine_log_hash() : 0;
}

/* In turns of its own, and with a double's own. */
static inline void begin_case(const random_case *c)
{
    const uint64_t seed = (test_seed << 20) + c->number + 1;
    end_log();
    worlds++;
    test_machine_begin(seed);
    CHECK(toy_double_is_well());
    toy_double_begin(seed);
}

/* ---- what is expected ---- */

static inline zero_status run_plainly(toy_trainer *trainer)
{
    program *p = trainer->user;
    for (int s = 0; s < STEPS; s++) {
        /* A skipped step halves the loss scale, of which only integers keep all bits. */
        const bool skips = p->before[s] == A_SKIPPED_STEP && trainer->run->flavour != TOY_INTEGER;
        TOY_TRY(skips ? call_before(trainer, p, p->before[s])
                      : change_state(trainer, p, p->before[s]));
        TOY_TRY(micros_by(trainer, IN_ORDER));
        TOY_TRY(toy_update(trainer));
        TOY_TRY(toy_wait(trainer));
        if (trainer->rank == 0) {
            p->norms[s] = trainer->result.norm;
        }
    }
    return toy_collect_first(trainer, &p->expected);
}

/* Sums of gradients that are no integers depend on how the model is split, so ranks split alike
 * take the steps. */
static inline void expect(program *p)
{
    const bool exact = p->c.run.flavour == TOY_INTEGER;
    const toy_run run = exact ? plain_run(p) : memory_run(p);
    begin_case(&p->c);
    CHECK_OK(toy_on_ranks(exact ? 1 : p->c.ranks, &run, run_plainly, p));
}

/* ---- all cases ---- */

#if defined TOY_CUDA && !defined TOY_NCCL
/* Ranks whose GPUs read one another's memory: after a failure none destroys its engine before the
 * device is idle for all of them, as zero_engine_destroy asks. */
static toy_step_fn settled_fn;
static uint32_t unsettled; /* ranks that run it; guarded by the next */
static pthread_mutex_t settled_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t settled = PTHREAD_COND_INITIALIZER;

static inline zero_status run_and_settle(toy_trainer *trainer)
{
    (void)pthread_mutex_lock(&settled_mutex);
    unsettled++;
    (void)pthread_mutex_unlock(&settled_mutex);
    const zero_status status = settled_fn(trainer);
    const zero_error error = *zero_last_error();
    if (status != ZERO_OK) {
        zero_world_abort(trainer->world); /* nobody waits for it while it waits here */
    }
    toy_settle();
    (void)pthread_mutex_lock(&settled_mutex);
    unsettled--;
    (void)pthread_cond_broadcast(&settled);
    while (unsettled != 0) {
        (void)pthread_cond_wait(&settled, &settled_mutex);
    }
    (void)pthread_mutex_unlock(&settled_mutex);
    return status != ZERO_OK ? zi_error_adopt(&error) : status;
}
#endif

/* The ranks of a case. */
static inline zero_status run_case(program *p, const random_case *c, toy_step_fn fn)
{
    begin_case(c);
#if defined TOY_CUDA && !defined TOY_NCCL
    settled_fn = fn;
    fn = run_and_settle;
#endif
    return toy_on_ranks(c->ranks, &c->run, fn, p);
}

static inline zero_status run_ranks(program *p)
{
    return run_case(p, &p->c, run_program);
}

typedef void (*case_fn)(program *p);

static inline void tell(const random_case *c)
{
    if (test_case_is_chosen()) {
        printf("%s\n", random_case_text(c));
        fflush(stdout);
    }
}

static inline void try_case(program *p, uint64_t number, toy_flavour flavour, case_fn fn)
{
    test_case_begins(number);
    p->saves = zero_save_options_init();
    p->second = "second";
    p->evicts = false;
    p->faults = 0;
    draw_program(p, number);
    p->c.run.flavour = flavour;
    if (flavour == TOY_INTEGER) { /* which has the bits of one rank, that sends nothing */
        zero_tuning *t = &p->c.run.tuning;
        t->gather_dtype = ZERO_DTYPE_DEFAULT;
        t->host_wire_dtype = ZERO_DTYPE_DEFAULT;
        t->wire_dtype = t->wire_dtype == ZERO_DTYPE_INT8_BLOCK ? ZERO_DTYPE_DEFAULT : t->wire_dtype;
        t->encoded_views = 0;
    }
    const bool of_host = p->c.run.options.host_budget_bytes != 0 ||
                         p->c.run.options.optimizer == ZERO_OPTIMIZER_CALLBACK;
    p->tried = !p->c.refused && p->c.parts == 1 && !(of_host && has_other_plan());
    if (p->tried) {
        tell(&p->c);
        expect(p);
        if (flavour == TOY_INTEGER) {
            print_case(&p->c, &(printed_parts){.before = p->before, .expected = &p->expected});
        }
        fn(p);
        toy_state_free(&p->expected);
    }
    random_case_close(&p->c);
}

static inline void try_cases_of(toy_flavour flavour, case_fn fn)
{
    static program p;
    uint32_t tried = 0;
    uint32_t rated = 0;
    uint32_t evicted = 0;
    uint32_t faults = 0;
    rig_folders(0, RANDOM_DIRECTORIES);
    uint64_t first = 0;
    const uint64_t count = test_cases(CASES, &first);
    for (uint64_t i = first; i < first + count; i++) {
        if (test_case_is_chosen() || IN_SMALL_SAMPLE(i)) {
            try_case(&p, i, flavour, fn);
            tried += p.tried;
            rated += p.tried && has_rates_by_tensor(&p.c);
            evicted += p.evicts;
            faults += p.faults;
        }
    }
    end_log();
    printf("  %u programs, %u with rates by tensor, in %" PRIu64
           " worlds, %u evicted roles, %u ended by a fault, turns %016" PRIx64 "\n",
           tried, rated, worlds, evicted, faults, logs_hash);
}

static inline void try_cases(case_fn fn)
{
    try_cases_of(TOY_INTEGER, fn);
}

/* True if a rank may be told this of a fault: its own, or that another rank has failed. */
static inline bool may_follow(zi_fault_kind kind, zero_status status)
{
    static const zero_status own[ZI_FAULT_KINDS] = {
        [ZI_FAULT_ALLOC] = ZERO_ERR_OUT_OF_MEMORY,
        [ZI_FAULT_COLLECTIVE] = ZERO_ERR_COMM,
        [ZI_FAULT_THREAD] = ZERO_ERR_DEVICE,
        [ZI_FAULT_IO] = ZERO_ERR_IO,
    };
    return status == own[kind] || status == ZERO_ERR_COMM;
}

static inline void check_follows(const program *p, zi_fault_kind kind, zero_status status)
{
    if (status != ZERO_OK && !may_follow(kind, status)) {
        TEST_FAIL("case %" PRIu64 ": fault of kind %d: %s: %s", p->c.number, (int)kind,
                  zero_status_name(status), zero_last_error()->message);
    }
}

/* ---- programs that go on elsewhere ---- */

static inline zero_status save_as(toy_trainer *trainer, const char *name)
{
    program *p = trainer->user;
    zero_save_options options = p->saves;
    options.directory = p->directory;
    options.name = name;
    TOY_TRY(zero_save(trainer->engine, &options));
    if (trainer->rank == 0) {
        p->durable = trainer->step;
    }
    return ZERO_OK;
}

/* Take steps while a save is under way: what is saved is the state at the beginning. */
static inline zero_status save_meanwhile(toy_trainer *trainer, const char *name)
{
    program *p = trainer->user;
    zero_save_options options = p->saves;
    options.directory = p->directory;
    options.name = name;
    TOY_TRY(zero_save_begin(trainer->engine, &options));
    TOY_TRY(take_steps(trainer, p, (int)trainer->step, STEPS));
    TOY_TRY(zero_save_end(trainer->engine));
    if (trainer->rank == 0) {
        p->durable = SAVED_AFTER;
    }
    return compare_end(trainer, "one plain rank, and the case, saved meanwhile");
}

static inline zero_status save_half_way(toy_trainer *trainer)
{
    const program *p = trainer->user;
    TOY_TRY(take_steps(trainer, trainer->user, 0, SAVED_AFTER));
    return p->meanwhile ? save_meanwhile(trainer, "half") : save_as(trainer, "half");
}

/* The step with which a program goes on that was saved when its engine had taken so many, skipped
 * ones among them. */
static inline uint64_t step_after(const program *p, uint64_t taken)
{
    uint64_t step = 0;
    for (uint64_t engine = 0; engine < taken; step++) {
        engine += p->before[step] == A_SKIPPED_STEP && random_case_trains(&p->c) ? 2 : 1;
    }
    return step;
}

/* From the newest that is there, or, where nothing is, from the beginning. */
static inline zero_status load_and_go_on(toy_trainer *trainer)
{
    program *p = trainer->user;
    zero_load_options options = zero_load_options_init();
    zero_load_report report = zero_load_report_init();
    options.path = p->directory;
    options.if_any = 1;
    TOY_TRY(zero_load(trainer->engine, &options, &report));
    CHECK_EQ(report.missing + report.unexpected + report.mismatching, 0);
    CHECK_EQ(report.loaded, report.step != 0 ? trainer->run->model->tensor_count : 0);
    const uint64_t step = step_after(p, report.step);
    if (step < p->durable) {
        TEST_FAIL("case %" PRIu64 ": the save after step %" PRIu64 " succeeded, step %" PRIu64
                  " was loaded",
                  p->c.number, p->durable, step);
    }
    p->resumed_at = step;
    trainer->step = step;
    TOY_TRY(take_steps(trainer, p, (int)step, STEPS));
    return compare_end(trainer, "one plain rank, and the case, saved and loaded");
}

/* Draw the run that goes on elsewhere. A step sums the same there: as many samples, over as many
 * ranks as divide them. */
static inline void draw_elsewhere(program *p)
{
    random_case *there = &p->elsewhere;
    const toy_run given = p->c.run;
    const uint32_t samples = given.micro_steps * p->c.ranks;
    *there = p->c;
    memset(there->plans, 0, sizeof there->plans);
    random_case_section(there, ELSEWHERE_CHOICES);
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
static inline void make_directory(program *p)
{
    static uint32_t made;
    (void)snprintf(p->directory, sizeof p->directory, "%s/%u", run_directory, made++);
    p->durable = 0;
    CHECK_EQ(mkdir(p->directory, 0777), 0);
}

/* The second save takes the first one's place in one moment, or removes it afterwards, or neither.
 */
static inline void draw_saves(program *p)
{
    const uint32_t way = random_case_choose(&p->c, 3);
    p->second = way == 1 ? "first" : "second";
    p->saves.replace = way == 1;
    p->saves.keep = way == 2;
}

static inline zero_status save_often(toy_trainer *trainer)
{
    program *p = trainer->user;
    TOY_TRY(take_steps(trainer, p, 0, 1));
    TOY_TRY(save_as(trainer, "first"));
    TOY_TRY(take_steps(trainer, p, 1, STEPS - 1));
    TOY_TRY(save_as(trainer, p->second));
    return take_steps(trainer, p, STEPS - 1, STEPS);
}

/* With what goes on elsewhere drawn, where it may. */
static inline void try_elsewhere(program *p, case_fn fn)
{
    draw_elsewhere(p);
    if (!p->elsewhere.refused) {
        tell(&p->elsewhere);
        fn(p);
    }
    zero_plan_destroy(p->elsewhere.plans[0]);
}

#endif
