/* Owns the property that programs drawn at random (random_program.h) keep their promises when the
 * machine they run on does not: a thread that stands still, power that goes, a bit that a disk
 * brings wrong, a disk that is full, accesses that are interrupted. They end with the bits of one
 * plain rank, or each rank with a status of that fault, within the deadline; what was saved before
 * is there.
 *
 * On the deterministic machine alone, whose turns and files have these faults (tests/machine). */
#include "random_program.h"

#include "core/clock.h"
#include "machine.h"
#include "machine_files.h"

#define NS_PER_MS UINT64_C(1000000)
#define SHORT_PERCENT 5
/* The time of what a rank that was told of a failure still does until it has ended: destroy, and
 * its disks. */
#define SLACK_NS (2000 * NS_PER_MS)
#define RANKS_MAX 8

/* ---- accesses that are interrupted ---- */

static void run_interrupted(program *p)
{
    machine_files_set(&(machine_files){.short_percent = SHORT_PERCENT});
    make_directory(p);
    CHECK_OK(run_case(p, &p->c, save_half_way));
    CHECK_OK(run_case(p, &p->elsewhere, load_and_go_on));
    machine_files_set(&(machine_files){0});
}

static void try_interrupted(program *p)
{
    try_elsewhere(p, run_interrupted);
}

TEST(accesses_that_are_interrupted_or_short_change_nothing)
{
    run_directory_make_in(true);
    try_cases(try_interrupted);
}

/* ---- a thread that stands still ---- */

static uint64_t ended_ns[RANKS_MAX];
static bool rank_stopped;

static zero_status save_often_until(toy_trainer *trainer)
{
    const zero_status status = save_often(trainer);
    ended_ns[trainer->rank] = zi_clock_ns();
    rank_stopped = rank_stopped || machine_has_stopped(pthread_self());
    return status;
}

/* All others are told of a rank that stands at the deadline. They wait for a disk that takes long,
 * which is no failure, and for a mutex that it holds. */
static void check_all_ended(const program *p)
{
    const uint64_t limit_ns = machine_stopped_ns() + TOY_DEADLINE_MS * NS_PER_MS + SLACK_NS;
    uint32_t late = 0;
    for (uint32_t rank = 0; rank < p->c.ranks; rank++) {
        late += ended_ns[rank] > limit_ns;
    }
    if (rank_stopped && machine_stopped_alone() && late > 1) {
        TEST_FAIL("case %" PRIu64 ": %u ranks ended later than the deadline after one stood still",
                  p->c.number, late);
    }
}

/* Others may be told that it is late, or by one that was told. */
static void check_told(const program *p, zero_status status)
{
    if (status != ZERO_OK && status != ZERO_ERR_TIMEOUT && status != ZERO_ERR_COMM) {
        TEST_FAIL("case %" PRIu64 ": a thread stood still: %s: %s", p->c.number,
                  zero_status_name(status), zero_last_error()->message);
    }
}

static void stop_a_thread(program *p)
{
    draw_saves(p);
    make_directory(p);
    CHECK_OK(run_case(p, &p->c, save_often_until));
    const uint64_t turns = machine_switches();
    const bool briefly = random_case_choose(&p->c, 3) == 0;
    const uint64_t ms = briefly ? 1 + random_case_choose(&p->c, TOY_DEADLINE_MS / 2)
                                : 5 * (uint64_t)TOY_DEADLINE_MS;
    make_directory(p);
    begin_case(&p->c);
    rank_stopped = false;
    machine_stop(1 + random_case_choose(&p->c, (uint32_t)turns), ms * NS_PER_MS);
    const zero_status status = toy_on_ranks(p->c.ranks, &p->c.run, save_often_until, p);
    CHECK(machine_stopped_ns() != 0);
    p->faults = status != ZERO_OK;
    check_told(p, briefly && status != ZERO_OK ? ZERO_ERR_IO : status);
    check_all_ended(p);
    CHECK_OK(run_case(p, &p->elsewhere, load_and_go_on));
}

static void try_stopped(program *p)
{
    try_elsewhere(p, stop_a_thread);
}

TEST(a_thread_that_stands_still_is_late_or_ends_all_ranks)
{
    run_directory_make_in(true);
    try_cases(try_stopped);
}

/* ---- power ---- */

/* The directory is there once a program has begun; nothing is put on the disk before. */
static zero_status save_with_power(program *p, uint64_t cut_at)
{
    make_directory(p);
    machine_power_watch(p->directory);
    machine_power_cut(cut_at);
    return run_case(p, &p->c, save_often);
}

/* The remains of a save are no hindrance to the next one. */
static zero_status load_and_save(toy_trainer *trainer)
{
    TOY_TRY(load_and_go_on(trainer));
    return save_as(trainer, "first");
}

static void cut_power(program *p)
{
    draw_saves(p);
    CHECK_OK(save_with_power(p, 0));
    const uint64_t events = machine_power_events();
    (void)machine_power_return();
    CHECK_OK(run_case(p, &p->elsewhere, load_and_go_on));
    const zero_status status = save_with_power(p, 1 + random_case_choose(&p->c, (uint32_t)events));
    CHECK(machine_power_is_off() || status == ZERO_OK);
    p->faults = status != ZERO_OK;
    check_follows(p, ZI_FAULT_IO, status);
    (void)machine_power_return();
    p->saves.replace = 1;
    CHECK_OK(run_case(p, &p->elsewhere, load_and_save));
}

static void try_power(program *p)
{
    try_elsewhere(p, cut_power);
}

TEST(power_that_goes_costs_no_save_that_succeeded)
{
    run_directory_make_in(true);
    try_cases(try_power);
}

/* ---- disks ---- */

/* The statuses of a fault of disks, of which this rank or another one tells. */
static void check_disk_told(program *p, zero_status own, zero_status status)
{
    p->faults += status != ZERO_OK;
    if (status != ZERO_OK && status != own && status != ZERO_ERR_COMM) {
        TEST_FAIL("case %" PRIu64 ": %s expected: %s: %s", p->c.number, zero_status_name(own),
                  zero_status_name(status), zero_last_error()->message);
    }
}

/* Run it once to count what is read, and once more with a wrong bit in one of the reads. */
static void flip_a_bit_in(program *p, const random_case *c, toy_step_fn fn)
{
    const bool saves = c == &p->c;
    machine_files_set(&(machine_files){0});
    CHECK_OK(run_case(p, c, fn));
    const uint64_t reads = machine_files_reads();
    if (reads != 0) {
        saves ? make_directory(p) : (void)0;
        machine_files_set(
            &(machine_files){.flip_read = 1 + random_case_choose(&p->c, (uint32_t)reads)});
        /* Values that several ranks load and one of them counts are compared when the next step
         * begins. */
        const zero_status status = run_case(p, c, fn);
        check_disk_told(
            p, !saves && status == ZERO_ERR_MISMATCH ? ZERO_ERR_MISMATCH : ZERO_ERR_CORRUPT,
            status);
    }
    machine_files_set(&(machine_files){0});
}

/* Of the state on disk, and of a checkpoint that is loaded. */
static void flip_a_bit(program *p)
{
    if (p->c.run.tuning.disk_unchecked != 0 || p->elsewhere.run.tuning.disk_unchecked != 0) {
        return;
    }
    make_directory(p);
    flip_a_bit_in(p, &p->c, save_half_way);
    make_directory(p);
    CHECK_OK(run_case(p, &p->c, save_half_way));
    flip_a_bit_in(p, &p->elsewhere, load_and_go_on);
}

static void try_flipped(program *p)
{
    try_elsewhere(p, flip_a_bit);
}

TEST(a_wrong_bit_is_noticed)
{
    run_directory_make_in(true);
    try_cases(try_flipped);
}

static void fill_a_disk(program *p)
{
    draw_saves(p);
    make_directory(p);
    machine_files_set(&(machine_files){0});
    CHECK_OK(run_case(p, &p->c, save_often));
    const uint64_t reservations = machine_files_reservations();
    make_directory(p);
    machine_files_set(
        &(machine_files){.full_at = 1 + random_case_choose(&p->c, (uint32_t)reservations)});
    const zero_status status = run_case(p, &p->c, save_often);
    machine_files_set(&(machine_files){0});
    check_disk_told(p, status == ZERO_ERR_IO ? ZERO_ERR_IO : ZERO_ERR_OUT_OF_MEMORY, status);
    CHECK_OK(run_case(p, &p->elsewhere, load_and_go_on));
}

static void try_full(program *p)
{
    try_elsewhere(p, fill_a_disk);
}

TEST(a_full_disk_costs_no_save_that_succeeded)
{
    run_directory_make_in(true);
    try_cases(try_full);
}
