/* Owns the tests of an engine whose model is in several parts: ranks of a mesh, data x model, come
 * to the norm, the clipping, the skipped steps, the loss scale and the parameters that the whole
 * model has on the data ranks alone, and what does not fit together is found on all of them. */
#include "harness.h"

#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "comm/process_ranks.h"
#include "comm/world.h"
#include "core/clock.h"
#include "folders.h"
#include "mesh_course.h"
#include "mesh_threads.h"
#include "refusals.h"
#include "waits.h"

#define SOON_MS 10000
TEST_CALL(parts_have_the_bits_of_the_whole_in_f32, compare_splits(ZERO_DTYPE_F32, NONE, 0));
TEST_CALL(parts_have_the_bits_of_the_whole_in_bf16, compare_splits(ZERO_DTYPE_BF16, NONE, 0));
TEST_CALL(a_part_that_is_not_finite_skips_the_step_everywhere,
          compare_splits(ZERO_DTYPE_F32, 2 * (UNITS - 1), 0));
TEST_CALL(so_does_a_copy_that_does_not_count,
          compare_splits(ZERO_DTYPE_F32, 2 * (UNITS - 1) + 1, 0));

/* ---- what does not fit together ---- */

/* One thing that the rank at (data, part) does otherwise. */
typedef struct oddity {
    uint32_t data; /* NONE: all of the part's */
    uint32_t part; /* NONE: all parts */
    const char *text;
    const char *elsewhere; /* on ranks of other parts; NULL: the same */
    float max_norm;
    float lr;
    double divisor;
} oddity;

typedef struct trial {
    toy_run run;
    const oddity *odd;
    atomic_uint told;
} trial;

static bool is_at(const oddity *odd, const mesh_rank *at)
{
    return (odd->data == NONE || odd->data == at->data) &&
           (odd->part == NONE || odd->part == at->part);
}

static zero_status open_part(toy_trainer *trainer, toy_run *run, const mesh_rank *at)
{
    run->model = part_model(ZERO_DTYPE_F32, 1, 2, at->part);
    run->options.model_parallel = at->parts;
    return toy_open(trainer, run, at->world);
}

static zero_status find_out(const mesh_rank *at, void *user)
{
    trial *t = user;
    toy_trainer trainer;
    toy_run run = t->run;
    const oddity *odd = t->odd;
    if (is_at(odd, at)) {
        run.params.max_norm = odd->max_norm;
        run.params.hyper.adamw.lr = odd->lr != 0 ? odd->lr : run.params.hyper.adamw.lr;
        run.params.grad_divisor = odd->divisor;
    }
    TOY_TRY(open_part(&trainer, &run, at));
    const zero_status stepped = take_step(&trainer, NONE);
    if (odd->text == NULL) {
        CHECK_EQ(stepped, ZERO_OK);
    } else {
        const bool own = odd->part == at->part || odd->elsewhere == NULL;
        CHECK_FAILS(stepped, ZERO_ERR_MISMATCH, own ? odd->text : odd->elsewhere);
    }
    atomic_fetch_add(&t->told, 1);
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(numbers_that_parts_decide_by_are_compared)
{
    static const oddity oddities[] = {
        {.data = NONE,
         .part = 1,
         .max_norm = 2.5f,
         .text = "max_norm is 0 on model-parallel rank 0 and 2.5 on 1"},
        {.data = NONE,
         .part = 1,
         .divisor = 7,
         .text = "what gradients are divided by is 2 on model-parallel rank 0 and 7 on 1"},
        {.data = 1,
         .part = 1,
         .lr = 0.5f,
         .text = "lr of group 0 is 0.00999999978 on rank 0 and 0.5 on rank 1;",
         .elsewhere =
             "a hyper-parameter of a group is 0.00999999978 on rank 0 and 0.5 on rank 1 with "
             "model-parallel rank 1"},
        {.data = 1,
         .part = 0,
         .divisor = 7,
         .text = "what gradients are divided by (0: the sum of grad_weight) is 2 on rank 0 and 7 "
                 "on rank 1;",
         .elsewhere = "7 on rank 1 with model-parallel rank 0"},
        /* Learning rates are each part's own. */
        {.data = NONE, .part = 1, .lr = 0.5f},
        {.data = NONE, .part = NONE, .max_norm = 2.5f},
    };
    for (size_t i = 0; i < sizeof oddities / sizeof oddities[0]; i++) {
        trial t = {.run = toy_run_init(NULL), .odd = &oddities[i]};
        CHECK_OK(run_mesh(2, 2, find_out, &t));
        CHECK_EQ(atomic_load(&t.told), 4);
    }
}

/* Two good steps' worth of state on one part only. */
static zero_status set_states(const mesh_rank *at, void *user)
{
    toy_trainer trainer;
    toy_run run = *(const toy_run *)user;
    zero_step_state state = zero_step_state_init();
    TOY_TRY(open_part(&trainer, &run, at));
    state.updates = 3 + at->part;
    CHECK_FAILS(zero_step_state_set(trainer.engine, &state), ZERO_ERR_INVALID_ARGUMENT,
                "ranks 0 and 1 were given a different step state");
    state.updates = at->part == 1 && at->data == 1 ? UINT64_MAX : 3;
    CHECK_FAILS(zero_step_state_set(trainer.engine, &state), ZERO_ERR_INVALID_ARGUMENT, "");
    state.updates = 3;
    state.carried[0][0] = at->part == 0 ? 0.5 : 0.25; /* betas are each part's own */
    CHECK_OK(zero_step_state_set(trainer.engine, &state));
    TOY_TRY(take_step(&trainer, NONE));
    CHECK_EQ(trainer.result.updates, 4);
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(states_are_set_on_all_parts_or_none)
{
    toy_run run = toy_run_init(NULL);
    CHECK_OK(run_mesh(2, 2, set_states, &run));
}

/* ---- creates that are refused ---- */

typedef enum mistake { SAME_WORLD, NO_BUDGET, OTHER_SCALE, ONE_HAS_NONE, MISTAKES } mistake;

static zero_status make_mistake(const mesh_rank *at, toy_run *run, mistake kind,
                                zero_engine **engine)
{
    zero_world *parts = at->parts;
    switch (kind) {
    case SAME_WORLD:
        parts = at->world;
        break;
    case ONE_HAS_NONE:
        parts = at->data == 1 ? NULL : at->parts;
        break;
    case NO_BUDGET:
        run->options.device_budget_bytes = at->data == 1 && at->part == 1 ? 4096 : 0;
        break;
    case OTHER_SCALE:
        run->options.loss_scale = at->part == 1 ? 2.0f : 1.0f;
        break;
    case MISTAKES:
        break;
    }
    run->options.model_parallel = parts;
    return zero_engine_create(at->world, run->model->model, TOY_OPTIONS(run), engine);
}

static const char *const mistake_texts[MISTAKES] = {
    [SAME_WORLD] = "the engine's own world",
    [ONE_HAS_NONE] = "the number of ranks of options.model_parallel",
    [NO_BUDGET] = "",
    [OTHER_SCALE] = "differ in options.loss_scale, 1 and 2",
};

/* A create that is refused on all ranks, then one that is not, with the same worlds. */
static zero_status refuse_then_train(const mesh_rank *at, void *user)
{
    const mistake kind = *(const mistake *)user;
    toy_trainer trainer;
    zero_engine *engine = NULL;
    toy_run run = toy_run_init(NULL);
    run.model = part_model(ZERO_DTYPE_F32, 1, 2, at->part);
    run.tuning.loss_scale_static = 1;
    const zero_status status = make_mistake(at, &run, kind, &engine);
    CHECK(status != ZERO_OK && engine == NULL);
    if (kind == NO_BUDGET && at->part == 0) {
        CHECK_FAILS(status, ZERO_ERR_OUT_OF_MEMORY, "model-parallel rank 1: ");
    }
    if (strstr(zero_last_error()->message, mistake_texts[kind]) == NULL) {
        TEST_FAIL("data %u, part %u: %s", at->data, at->part, zero_last_error()->message);
    }
    run = toy_run_init(NULL);
    TOY_TRY(open_part(&trainer, &run, at));
    TOY_TRY(take_step(&trainer, NONE));
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(a_refused_create_leaves_both_worlds_good)
{
    for (int kind = 0; kind < ONE_HAS_NONE; kind++) {
        CHECK_OK(run_mesh(2, 2, refuse_then_train, &kind));
    }
}

/* A rank that gives none is told by its own world; those that gave one are told by that rank's
 * leaving theirs. */
static zero_status give_none(const mesh_rank *at, void *user)
{
    zero_engine *engine = NULL;
    toy_run run = toy_run_init(NULL);
    (void)user;
    run.model = part_model(ZERO_DTYPE_F32, 1, 2, at->part);
    const zero_status status = make_mistake(at, &run, ONE_HAS_NONE, &engine);
    CHECK_FAILS(status, ZERO_ERR_MISMATCH, mistake_texts[ONE_HAS_NONE]);
    CHECK(engine == NULL);
    return ZERO_OK;
}

TEST_CALL(all_ranks_give_a_model_parallel_world_or_none, CHECK_OK(run_mesh(2, 2, give_none, NULL)));

/* A second world of one rank is none. */
static zero_status take_alone(zero_world *world, void *user)
{
    zero_world *self = NULL;
    TOY_TRY(zero_world_create_self(&self));
    const mesh_rank at = {.world = world, .parts = self, .data = zero_world_rank(world)};
    TOY_TRY(take_part(&at, user));
    zero_world_destroy(self);
    return ZERO_OK;
}

TEST(a_model_parallel_world_of_one_is_none)
{
    course c = {.run = toy_run_init(whole_model(ZERO_DTYPE_F32)),
                .dtype = ZERO_DTYPE_F32,
                .stages = 1,
                .cuts = 1,
                .spoilt = NONE};
    CHECK_OK(toy_on_ranks(2, &c.run, take_whole, &c));
    CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, take_alone, &c));
    toy_state_free(&c.state);
}

/* The handle goes before the engine: calls are refused, and destroying the engine ends the world.
 */
static zero_status destroy_first(const mesh_rank *at, void *user)
{
    toy_trainer trainer;
    zero_world *parts = join_hub(user, at->part);
    const mesh_rank own = {.part = at->part, .world = at->world, .parts = parts};
    toy_run run = toy_run_init(NULL);
    TOY_TRY(open_part(&trainer, &run, &own));
    CHECK_OK(zero_world_barrier(parts)); /* nobody leaves while another is in create */
    zero_world_destroy(parts);
    CHECK_FAILS(zero_micro_begin(trainer.engine, ZERO_MICRO_LAST), ZERO_ERR_STATE,
                "the world was destroyed");
    toy_close(&trainer);
    return ZERO_OK;
}

#ifndef TOY_CUDA

/* ---- ranks that go ---- */

typedef struct absence {
    bool dies;
    toy_run run;
} absence;

/* Rank (1, 1) goes after two steps; everybody else learns of it. */
static void lose_rank(const mesh_rank *at, const absence *a)
{
    toy_trainer trainer;
    toy_run run = a->run;
    CHECK_OK(open_part(&trainer, &run, at));
    uint64_t start_ns = zi_clock_ns();
    zero_status status = ZERO_OK;
    for (uint32_t s = 0; s < 20 && status == ZERO_OK; s++) {
        if (s == 2 && at->data == 1 && at->part == 1) {
            if (a->dies) {
                (void)kill(getpid(), SIGKILL);
            }
            break;
        }
        start_ns = zi_clock_ns();
        status = take_step(&trainer, NONE);
    }
    if (at->data != 1 || at->part != 1) {
        CHECK_EQ(status, ZERO_ERR_COMM);
        if (strstr(zero_last_error()->message, "rank 1") == NULL) {
            TEST_FAIL("data %u, part %u: %s", at->data, at->part, zero_last_error()->message);
        }
        CHECK(in_time(start_ns, SOON_MS));
    }
    toy_close(&trainer);
}

static zero_status leave_thread(const mesh_rank *at, void *user)
{
    lose_rank(at, user);
    return ZERO_OK;
}

TEST(a_rank_that_leaves_is_noticed_by_the_mesh)
{
    absence a = {.run = toy_run_init(NULL)};
    static const zero_stage stages[] = {ZERO_STAGE_0, ZERO_STAGE_3};
    for (size_t i = 0; i < 2; i++) {
        a.run.options.stage = stages[i];
        CHECK_OK(run_mesh(2, 2, leave_thread, &a));
    }
}

/* A world of processes of this host, of its own name. */
static zero_world *launch_world(uint32_t rank, uint32_t size, uint32_t port)
{
    zero_world *world = NULL;
    set_number("RANK", rank);
    set_number("WORLD_SIZE", size);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", size);
    set_number("MASTER_PORT", port);
    CHECK_OK(zero_world_create_launched(TOY_DEADLINE_MS, &world));
    return world;
}

static void leave_process(uint32_t rank, void *user)
{
    const uint32_t port = (uint32_t)strtoul(getenv("MASTER_PORT"), NULL, 10);
    mesh_rank at = {.data = rank % 2, .part = rank / 2};
    at.world = launch_world(at.data, 2, port + 1 + at.part);
    at.parts = launch_world(at.part, 2, port + 3 + at.data);
    lose_rank(&at, user);
    zero_world_destroy(at.parts);
    zero_world_destroy(at.world);
}

REAL_TEST(a_process_that_dies_is_noticed_by_the_mesh)
{
    absence a = {.dies = true, .run = toy_run_init(NULL)};
    pid_t children[4];
    for (uint32_t r = 0; r < 4; r++) {
        children[r] = start_rank(r, 4, leave_process, &a);
    }
    for (uint32_t r = 0; r < 4; r++) {
        const int end = end_of(children[r]);
        CHECK(r == 3 ? end != 0 : end == 0);
    }
}

#endif

TEST(a_world_that_is_destroyed_before_its_engine)
{
    zi_thread_ranks *hub = NULL;
    CHECK_OK(zi_thread_ranks_create(2, TOY_DEADLINE_MS, &hub));
    CHECK_OK(run_mesh(1, 2, destroy_first, hub));
    zi_thread_ranks_release(hub);
}
