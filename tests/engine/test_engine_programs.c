/* Owns the property that what is drawn at random changes no bit: how a model is split over ranks,
 * where its roles are, what the engine is tuned to, and what is called around its steps. Gradients
 * are integers, so sums are exact in any order; the same samples are taken by one rank at stage 0
 * with everything at its default, and state must have the same bits.
 *
 * With gradients that are no integers they have the bits of as many ranks that split the model
 * alike and have everything in memory.
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
 * And they are loaded elsewhere with one fault: the same bits or that fault's status, and the next
 * load succeeds.
 *
 * And calls that the table of states refuses are made between all others, on each rank other ones
 * where ranks need not agree: each is refused by that, and nothing comes of it.
 *
 * On the deterministic machine each case has its own order of turns too (tests/machine). `--case K`
 * tries the K-th alone and prints it, `--cases N` so many. */
#include "random_program.h"

#include "engine/engine_internal.h"
#include "engine_calls.h"

static void run_well(program *p)
{
    CHECK_OK(run_ranks(p));
}

TEST(programs_have_the_bits_of_one_plain_rank)
{
    try_cases(run_well);
}

TEST(programs_have_the_bits_of_ranks_with_all_in_memory)
{
    try_cases_of(TOY_REAL, run_well);
}

/* Runs it once to count what can fail, and once more with one of these failing. saves: each into a
 * folder of its own. The files of stores have no names: what engines have left is what can be seen.
 */
static void strike(program *p, const random_case *c, toy_step_fn fn, bool saves)
{
    const zi_fault_kind kind = (zi_fault_kind)random_case_choose(&p->c, ZI_FAULT_KINDS);
    zi_fault_arm(kind, UINT64_MAX);
    CHECK_OK(run_case(p, c, fn));
    const uint64_t events = zi_fault_count(kind);
    zi_fault_arm(kind, 0);
    if (events != 0) {
        saves ? make_directory(p) : (void)0;
        zi_fault_arm(kind, 1 + random_case_choose(&p->c, (uint32_t)events));
        const zero_status status = run_case(p, c, fn);
        zi_fault_arm(kind, 0);
        p->faults += status != ZERO_OK;
        check_follows(p, kind, status);
    }
}

static void run_with_fault(program *p)
{
    strike(p, &p->c, run_program, false);
}

TEST(a_fault_ends_a_program_by_a_status_or_changes_nothing)
{
    try_cases(run_with_fault);
}

/* ---- programs that go on elsewhere ---- */

static void save_and_load(program *p)
{
    make_directory(p);
    print_case(&p->c,
               &(printed_parts){
                   .before = p->before,
                   .end = p->meanwhile ? 0 : SAVED_AFTER,
                   .saves = {{.step = SAVED_AFTER, .name = "half", .meanwhile = p->meanwhile}},
                   .elsewhere = &p->elsewhere,
                   .expected = &p->expected});
    CHECK_OK(run_case(p, &p->c, save_half_way));
    CHECK_EQ(p->durable, SAVED_AFTER);
    CHECK_OK(run_case(p, &p->elsewhere, load_and_go_on));
}

static printed_save saved_of(const program *p, uint64_t step, const char *name)
{
    return (printed_save){step, name, p->saves.replace, p->saves.keep, false};
}

static void save_with_fault(program *p)
{
    draw_saves(p);
    make_directory(p);
    print_case(&p->c, &(printed_parts){
                          .before = p->before,
                          .saves = {saved_of(p, 1, "first"), saved_of(p, STEPS - 1, p->second)},
                          .elsewhere = &p->elsewhere,
                          .expected = &p->expected});
    strike(p, &p->c, save_often, true);
    CHECK_OK(run_case(p, &p->elsewhere, load_and_go_on));
}

/* A load that failed leaves what it found. */
static void load_with_fault(program *p)
{
    make_directory(p);
    CHECK_OK(run_case(p, &p->c, save_half_way));
    strike(p, &p->elsewhere, load_and_go_on, false);
    CHECK_OK(run_case(p, &p->elsewhere, load_and_go_on));
}

static void try_saved(program *p)
{
    try_elsewhere(p, save_and_load);
}

static void try_saved_with_fault(program *p)
{
    try_elsewhere(p, save_with_fault);
}

static void try_loaded_with_fault(program *p)
{
    try_elsewhere(p, load_with_fault);
}

TEST(a_saved_program_goes_on_elsewhere)
{
    run_directory_make_in(true);
    try_cases(try_saved);
}

TEST(a_fault_costs_no_save_that_succeeded)
{
    run_directory_make_in(true);
    try_cases(try_saved_with_fault);
}

TEST(a_fault_in_a_load_ends_it_by_a_status_or_changes_nothing)
{
    run_directory_make_in(true);
    try_cases(try_loaded_with_fault);
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

/* Which one a rank makes: all ranks the same, where it is one of all ranks. Ranks that leave out
 * units need not be in one state. */
static uint32_t pick_call(const program *p, uint32_t rank, uint64_t turn)
{
    const uint64_t first = (test_seed << 40) + (p->c.number << 20) + (turn << 8);
    const uint32_t shared = test_chance(first, REFUSED_CALLS);
    uint32_t own = test_chance(first + 1 + rank, REFUSED_CALLS);
    while (refused_calls[own].of_all) {
        own = (own + 1) % REFUSED_CALLS;
    }
    return refused_calls[shared].of_all && p->c.omits == 0 ? shared : own;
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
    const bool refused = status == ZERO_ERR_STATE || (status == ZERO_ERR_UNSUPPORTED &&
                                                      refused_calls[pick].call == ZI_CALL_EVICT);
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
            TOY_TRY(forward_of(trainer, u));
        }
        for (uint32_t u = units; u-- > 0;) {
            make_refused_call(trainer, p, turn);
            TOY_TRY(backward_of(trainer, u));
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
        TOY_TRY(call_before(trainer, p, p->before[s]));
        TOY_TRY(take_refused_step(trainer, p, &turn));
    }
    return compare_end(trainer, "one plain rank, and the case");
}

static void run_with_refused_calls(program *p)
{
    print_case(&p->c, &(printed_parts){.before = p->before, .expected = &p->expected});
    CHECK_OK(run_case(p, &p->c, run_refused));
}

TEST(refused_calls_change_nothing)
{
    run_directory_make_in(true);
    try_cases(run_with_refused_calls);
}
