/* Owns the tests of where elements live: each is owned by exactly the ranks that the degrees of
 * sharding say, comes back from a gather as it went in, and is reduced to the known sum. */
#include "harness.h"
#include "reads.h"

#include <stdatomic.h>

#include "folders.h"
#include "toy.h"

/* Shapes that divide by nothing, one after another, three tensors a unit. */
static void odd_model(toy_model *model)
{
    static const uint64_t shapes[8][2] = {{17, 257}, {17, 0},   {64, 312}, {64, 0},
                                          {64, 64},  {512, 64}, {256, 0},  {64, 297}};
    toy_model_open(model);
    for (uint32_t i = 0; i < 8; i++) {
        if (i % 3 == 0) {
            (void)toy_model_layer(model, "unit", i / 3);
        }
        (void)toy_model_tensor(model, shapes[i][0], shapes[i][1], ZERO_DTYPE_F32,
                               ZERO_TENSOR_PLAIN);
    }
}

/* Fewer elements than ranks, nothing, and one. */
static void tiny_model(toy_model *model)
{
    toy_model_open(model);
    (void)toy_model_unit(model, "nothing");
    (void)toy_model_unit(model, "zero");
    (void)toy_model_tensor(model, 0, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_PLAIN);
    (void)toy_model_unit(model, "one");
    (void)toy_model_tensor(model, 1, 0, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN);
    (void)toy_model_unit(model, "few");
    (void)toy_model_tensor(model, 3, 0, ZERO_DTYPE_F16, ZERO_TENSOR_PLAIN);
    (void)toy_model_tensor(model, 0, 7, ZERO_DTYPE_F16, ZERO_TENSOR_PLAIN);
    (void)toy_model_tensor(model, 2, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_FROZEN);
    (void)toy_model_tensor(model, 1, 1, ZERO_DTYPE_BF16, ZERO_TENSOR_NO_DECAY);
}

/* One whole micro-step in which every use of a tensor adds `value` to every element. */
static zero_status add_constant(toy_trainer *trainer, float value)
{
    const toy_model *model = trainer->run->model;
    const zero_stream host = toy_stream();
    TOY_TRY(zero_micro_begin(trainer->engine, ZERO_MICRO_LAST));
    for (uint32_t u = model->unit_count; u-- > 0;) {
        if (!toy_unit_trained(model, u)) {
            continue;
        }
        TOY_TRY(zero_unit_grads_acquire(trainer->engine, u, host));
        for (uint32_t t = 0; t < model->tensor_count; t++) {
            zero_view grad = {0};
            if (!toy_unit_uses(model, u, t) ||
                (model->tensors[t].desc.flags & ZERO_TENSOR_FROZEN) != 0) {
                continue;
            }
            TOY_TRY(zero_tensor_grad(trainer->engine, t, &grad));
            const size_t bytes = grad.count * zero_dtype_bytes(grad.dtype);
            void *data = toy_fetch(grad.data, bytes);
            for (uint64_t e = 0; e < grad.count; e++) {
                const float old = toy_decode(toy_load(data, e, grad.dtype), grad.dtype);
                toy_store(data, e, grad.dtype, toy_encode(old + value, grad.dtype));
            }
            toy_put(grad.data, data, bytes);
        }
        TOY_TRY(zero_unit_grads_ready(trainer->engine, u, host));
    }
    return zero_micro_end(trainer->engine);
}

/* The counts that all ranks of a world write to while they look: how many hold each element of each
 * role. */
typedef struct census {
    atomic_uint *holders[TOY_ROLES];
} census;

/* The value that an element of a role must have before any step, or of GRAD after the step of
 * place_and_reduce. */
static float value_expected(const toy_trainer *trainer, zero_role role, uint32_t tensor,
                            uint64_t element)
{
    const toy_model *model = trainer->run->model;
    if (role == ZERO_ROLE_PARAM || role == ZERO_ROLE_MASTER) {
        return toy_initial(tensor, element);
    }
    if (role != ZERO_ROLE_GRAD) {
        return 0;
    }
    uint32_t uses = 0;
    for (uint32_t u = 0; u < model->unit_count; u++) {
        uses += toy_unit_uses(model, u, tensor);
    }
    return (float)(uses * trainer->ranks * (trainer->ranks + 1) / 2);
}

/* Check and count this rank's pieces of a role. */
static zero_status look_at(toy_trainer *trainer, zero_role role, census *c)
{
    const toy_model *model = trainer->run->model;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        zero_view view = {0};
        uint64_t first = 0;
        TOY_TRY(zero_shard_view(trainer->engine, t, role, &first, &view));
        CHECK(view.count == 0 || first + view.count <= tensor->count);
        CHECK_EQ(view.data != NULL, view.count != 0);
        const void *data = toy_fetch(view.data, view.count * zero_dtype_bytes(view.dtype));
        for (uint64_t e = 0; e < view.count; e++) {
            const float expected = value_expected(trainer, role, t, first + e);
            const uint32_t bits = toy_load(data, e, view.dtype);
            if (bits != toy_encode(expected, view.dtype)) {
                TEST_FAIL("%s of %s[%" PRIu64 "] on rank %u is %g, not %g", zero_role_name(role),
                          tensor->name, first + e, trainer->rank,
                          (double)toy_decode(bits, view.dtype), (double)expected);
            }
            atomic_fetch_add(&c->holders[role][tensor->base + first + e], 1);
        }
    }
    return ZERO_OK;
}

/* Each element is held by world / degree ranks. A reduced gradient may be held by more. */
static void check_holders(const toy_trainer *trainer, const census *c)
{
    const toy_model *model = trainer->run->model;
    const zero_sharding s = plan_sharding(zero_engine_plan(trainer->engine));
    CHECK_EQ(s.world, trainer->ranks);
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        const bool trained = (tensor->desc.flags & ZERO_TENSOR_FROZEN) == 0;
        const uint32_t optimizer = trained ? s.world / s.optimizer : 0;
        const bool own_master = tensor->desc.dtype == ZERO_DTYPE_F32;
        for (uint64_t at = tensor->base; at < tensor->base + tensor->count; at++) {
            CHECK_EQ(c->holders[ZERO_ROLE_PARAM][at], s.world / s.param);
            CHECK_EQ(c->holders[ZERO_ROLE_MOMENT1][at], optimizer);
            CHECK_EQ(c->holders[ZERO_ROLE_MOMENT2][at], optimizer);
            if (!own_master || !trained) {
                CHECK_EQ(c->holders[ZERO_ROLE_MASTER][at], optimizer);
            }
            CHECK(c->holders[ZERO_ROLE_GRAD][at] >= optimizer);
            CHECK(trained || c->holders[ZERO_ROLE_GRAD][at] == 0);
        }
    }
}

/* An acquire shows what the tensors were filled with. */
static zero_status check_gathered(toy_trainer *trainer)
{
    const toy_model *model = trainer->run->model;
    TOY_TRY(toy_evaluate(trainer));
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        for (uint64_t e = 0; e < model->tensors[t].count; e++) {
            CHECK_EQ(trainer->seen[model->tensors[t].base + e],
                     toy_encode(toy_initial(t, e), model->tensors[t].desc.dtype));
        }
    }
    return ZERO_OK;
}

/* Create, look, reduce, look again. */
static zero_status place_and_reduce(toy_trainer *trainer)
{
    census *c = trainer->user;
    for (int role = 0; role < TOY_ROLES; role++) {
        if (role != ZERO_ROLE_GRAD) {
            TOY_TRY(look_at(trainer, (zero_role)role, c));
        }
    }
    TOY_TRY(check_gathered(trainer));
    TOY_TRY(add_constant(trainer, (float)(trainer->rank + 1)));
    TOY_TRY(toy_update(trainer));
    TOY_TRY(toy_wait(trainer));
    CHECK_EQ(trainer->result.skipped, 0);
    TOY_TRY(look_at(trainer, ZERO_ROLE_GRAD, c));
    TOY_TRY(zero_world_barrier(trainer->world));
    if (trainer->rank == 0) {
        check_holders(trainer, c);
    }
    return ZERO_OK;
}

static void place_over(uint32_t ranks, const toy_run *run)
{
    census c;
    for (int role = 0; role < TOY_ROLES; role++) {
        c.holders[role] = calloc(run->model->element_count + 1, sizeof *c.holders[role]);
        CHECK(c.holders[role] != NULL);
    }
    CHECK_OK(toy_on_ranks(ranks, run, place_and_reduce, &c));
    for (int role = 0; role < TOY_ROLES; role++) {
        free(c.holders[role]);
    }
}

static void place_all_ways(uint32_t ranks, toy_run run)
{
    run.options.loss_scale = 1.0f;
    for (uint32_t w = 0; toy_split(&run, ranks, w) != NULL; w++) {
        if (IN_SAMPLE(w + ranks)) {
            place_over(ranks, &run);
        }
    }
}

static const uint32_t small_worlds[] = {1, 2, 3, 4, 5, 8};
#define SMALL_WORLDS (sizeof small_worlds / sizeof small_worlds[0])

static void place_in_small_worlds(toy_run run)
{
    for (size_t w = 0; w < SMALL_WORLDS; w++) {
        place_all_ways(small_worlds[w], run);
    }
}

TEST_CALL(odd_shapes_in_small_worlds, place_in_small_worlds(toy_run_made(odd_model)));
TEST_CALL(everything_mixed_in_small_worlds, place_in_small_worlds(toy_run_mixed(ZERO_DTYPE_BF16)));
TEST_CALL(more_ranks_than_elements, place_in_small_worlds(toy_run_made(tiny_model)));

/* Ranks that are threads and share one GPU take turns on it, so a GPU has fewer. */
#ifdef TOY_CUDA
#define ON_A_GPU (!test_over_doubles)
#else
#define ON_A_GPU false
#endif
#define MANY_RANKS (ON_A_GPU ? 16u : 128u)
#define MANY_SHARDS (ON_A_GPU ? 2u : 4u)

TEST(odd_shapes_over_many_ranks)
{
    const toy_run run = toy_run_made(odd_model);
    place_over(MANY_RANKS, &run);
}

TEST(tiny_hybrid_over_many_ranks)
{
    toy_run run = toy_run_equal(2, 65, ZERO_DTYPE_F32);
    run.options.shard_group = MANY_SHARDS;
    run.tuning.grad_group = 2 * MANY_SHARDS;
    run.tuning.optimizer_group = 2 * MANY_SHARDS * MANY_SHARDS;
    place_over(MANY_RANKS, &run);
}

/* Models, worlds and splits from the seed. */
static uint64_t random_state;

static uint32_t random_below(uint32_t bound)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % bound);
}

static void random_model(toy_model *model)
{
    toy_model_open(model);
    const uint32_t units = 1 + random_below(6);
    for (uint32_t u = 0; u < units; u++) {
        (void)toy_model_layer(model, "unit", u);
        const uint32_t tensors = random_below(4);
        for (uint32_t t = 0; t < tensors; t++) {
            const uint32_t flags = random_below(4) == 0 ? ZERO_TENSOR_FROZEN : ZERO_TENSOR_PLAIN;
            (void)toy_model_tensor(model, random_below(700), 0, (zero_dtype)(1 + random_below(3)),
                                   flags);
        }
        if (u > 0 && model->tensor_count > 0 && model->tensors[0].unit == 0 &&
            random_below(3) == 0) {
            toy_model_tie(model, u, 0);
        }
    }
}

TEST(random_models)
{
    random_state = test_seed;
    for (uint32_t i = 0; i < 8; i++) {
        const toy_run run = toy_run_made(random_model);
        place_all_ways(1 + random_below(6), run);
    }
}

static zero_status train_nothing(toy_trainer *trainer)
{
    TOY_TRY(toy_train(trainer));
    TOY_TRY(toy_wait(trainer));
    CHECK_EQ(trainer->result.step, 2);
    CHECK_EQ(trainer->result.skipped, 0);
    CHECK_SAME(trainer->result.norm, 0.0);
    return ZERO_OK;
}

TEST(models_with_nothing_to_train)
{
    toy_model *model = toy_model_new();
    toy_run run = toy_run_init(model);
    run.steps = 2;
    run.micro_steps = 2;
    CHECK_OK(toy_on_ranks(3, &run, train_nothing, NULL));
    (void)toy_model_unit(model, "empty");
    CHECK_OK(toy_on_ranks(3, &run, train_nothing, NULL));
    (void)toy_model_tensor(model, 100, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_FROZEN);
    CHECK_OK(toy_on_ranks(3, &run, train_nothing, NULL));
}

/* ---- nothing, on any tier ---- */

static void no_tensors(toy_model *model)
{
    toy_model_open(model);
    (void)toy_model_unit(model, "first");
    (void)toy_model_unit(model, "second");
}

static void no_elements(toy_model *model)
{
    no_tensors(model);
    (void)toy_model_tensor(model, 0, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_PLAIN);
    (void)toy_model_tensor(model, 0, 9, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN);
    (void)toy_model_unit(model, "third");
    (void)toy_model_tensor(model, 5, 0, ZERO_DTYPE_F16, ZERO_TENSOR_FROZEN);
    (void)toy_model_tensor(model, 0, 0, ZERO_DTYPE_F16, ZERO_TENSOR_FROZEN);
}

static void only_empty_tensors(toy_model *model)
{
    no_tensors(model);
    (void)toy_model_tensor(model, 0, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_PLAIN);
    (void)toy_model_tensor(model, 0, 0, ZERO_DTYPE_F32, ZERO_TENSOR_FROZEN);
}

#define DEV ZERO_TIER_DEVICE
#define HOST ZERO_TIER_HOST
#define DISK ZERO_TIER_DISK
static const zero_tier empty_tiers[][ZI_SHARD_ROLES] = {
    {DISK, DISK, DISK, DISK, DISK}, {DISK, DEV, DEV, DEV, DEV},    {DEV, DISK, DEV, DEV, DEV},
    {HOST, HOST, HOST, HOST, HOST}, {DISK, HOST, DISK, DEV, DISK}, {HOST, DISK, DEV, DISK, HOST},
};

/* Move the little that there is in every way that shards and steps move. */
static zero_status use_all(toy_trainer *trainer)
{
    for (uint32_t t = 0; t < trainer->run->model->tensor_count; t++) {
        for (int role = 0; role < ZI_SHARD_ROLES; role++) {
            uint32_t values[64];
            zero_shard shard;
            TOY_TRY(zero_shard_range(trainer->engine, t, (zero_role)role, &shard));
            CHECK(shard.count <= 64);
            TOY_TRY(zero_shard_read(trainer->engine, t, (zero_role)role, shard.first, shard.count,
                                    values));
            TOY_TRY(zero_shard_write(trainer->engine, t, (zero_role)role, shard.first, shard.count,
                                     values));
        }
    }
    return toy_step(trainer);
}

static zero_status train_on_tiers(zero_world *world, const toy_run *run, void *user)
{
    toy_state plain;
    (void)user;
    TOY_TRY(toy_train_by(run, world, use_all, &plain));
    for (size_t i = 0; i < sizeof empty_tiers / sizeof empty_tiers[0]; i++) {
        toy_run tiered = *run;
        memcpy(tiered.options.tier, empty_tiers[i], sizeof empty_tiers[i]);
        toy_run_disk(&tiered, rig_paths, 1);
        tiered.tuning.speculative_step = i == 0;
        tiered.predicted = i == 0;
        TOY_TRY(toy_train_same(&tiered, world, use_all, &plain, "on the device and on tiers"));
    }
    toy_state_free(&plain);
    return ZERO_OK;
}

TEST(nothing_lives_on_any_tier)
{
    static void (*const models[])(toy_model *) = {toy_model_open, no_tensors, only_empty_tensors,
                                                  no_elements, tiny_model};
    rig_folders(0, 1);
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        toy_run run = toy_run_made(models[m]);
        run.steps = 3;
        run.micro_steps = 2;
        for (uint32_t ranks = 1; ranks <= 4; ranks += 3) {
            CHECK_OK(toy_run_ways(ranks, TOY_DEADLINE_MS, &run, train_on_tiers, NULL));
        }
    }
}

/* The head has nothing of its own; the table is used by three units. */
TEST(ties_are_summed_once)
{
    toy_model *model = toy_model_new();
    (void)toy_model_unit(model, "embed");
    const uint32_t table = toy_model_tensor(model, 40, 9, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN);
    (void)toy_model_unit(model, "block");
    (void)toy_model_tensor(model, 77, 0, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN);
    const uint32_t adapter = toy_model_unit(model, "adapter");
    (void)toy_model_tensor(model, 5, 0, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN);
    toy_model_tie(model, adapter, table);
    const uint32_t head = toy_model_unit(model, "head");
    toy_model_tie(model, head, table);
    place_in_small_worlds(toy_run_init(model));
}

TEST(ties_are_allocated_once)
{
    zero_memory memory[2];
    for (int tied = 0; tied < 2; tied++) {
        toy_model *model = toy_model_new();
        (void)toy_model_unit(model, "embed");
        const uint32_t table = toy_model_tensor(model, 400, 90, ZERO_DTYPE_F32, 0);
        const uint32_t head = toy_model_unit(model, "head");
        if (tied != 0) {
            toy_model_tie(model, head, table);
        }
        CHECK_EQ(zero_model_element_count(model->model), 36000);
        const toy_run run = toy_run_init(model);
        memory[tied] = toy_planned(&run, 4);
    }
    for (int role = 0; role <= ZERO_ROLE_MOMENT2; role++) {
        CHECK_EQ(memory[0].bytes[role], memory[1].bytes[role]);
    }
    CHECK(memory[0].bytes[ZERO_ROLE_PARAM] >= 36000);
}

TEST(frozen_tensors_have_no_gradient)
{
    zero_memory memory[2];
    for (int more = 0; more < 2; more++) {
        toy_model *model = toy_model_new();
        (void)toy_model_unit(model, "layer");
        (void)toy_model_tensor(model, 300, 70, ZERO_DTYPE_BF16, ZERO_TENSOR_PLAIN);
        if (more != 0) {
            (void)toy_model_tensor(model, 500, 80, ZERO_DTYPE_BF16, ZERO_TENSOR_FROZEN);
        }
        const toy_run run = toy_run_init(model);
        memory[more] = toy_planned(&run, 4);
    }
    CHECK(memory[1].bytes[ZERO_ROLE_PARAM] >= memory[0].bytes[ZERO_ROLE_PARAM] + 20000);
    for (int role = ZERO_ROLE_GRAD; role <= ZERO_ROLE_MOMENT2; role++) {
        CHECK_EQ(memory[0].bytes[role], memory[1].bytes[role]);
    }
    CHECK_EQ(memory[0].bytes[ZERO_ROLE_GRAD_SLOT], memory[1].bytes[ZERO_ROLE_GRAD_SLOT]);
}

/* Initial bytes of every dtype are taken as they are. */
static zero_status read_initial(zero_world *world, void *user)
{
    const uint32_t *expected = user;
    toy_model model;
    toy_model_open(&model);
    (void)toy_model_unit(&model, "layer");
    unsigned char bytes[3][4 * 777];
    for (uint32_t d = 0; d < 3; d++) {
        const zero_dtype dtype = (zero_dtype)(d + 1);
        for (uint32_t e = 0; e < 777; e++) {
            toy_store(bytes[d], e, dtype, expected[e]);
        }
        char name[TOY_NAME_BYTES];
        (void)snprintf(name, sizeof name, "weight%u", d);
        const zero_tensor_desc desc = {
            .name = name, .dims = 2, .shape = {7, 111}, .dtype = dtype, .initial.data = bytes[d]};
        uint32_t tensor = 0;
        TOY_TRY(zero_tensor_add(model.model, 0, &desc, &tensor));
    }
    zero_engine *engine = NULL;
    zero_engine_options options = zero_engine_options_init();
    options.device = toy_device();
    TOY_TRY(zero_engine_create(world, model.model, &options, &engine));
    toy_model_close(&model);
    memset(bytes, 0xff, sizeof bytes); /* the engine has read them */
    TOY_TRY(zero_unit_acquire(engine, 0, ZERO_PASS_EVAL, toy_stream(), NULL));
    for (uint32_t d = 0; d < 3; d++) {
        zero_view view;
        TOY_TRY(zero_tensor_data(engine, d, &view));
        CHECK_EQ(view.count, 777);
        const void *data = toy_fetch(view.data, view.count * zero_dtype_bytes(view.dtype));
        for (uint32_t e = 0; e < 777; e++) {
            CHECK_EQ(toy_load(data, e, view.dtype), d == 0 ? expected[e] : (expected[e] & 0xffff));
        }
    }
    TOY_TRY(zero_unit_release(engine, 0, toy_stream()));
    zero_engine_destroy(engine);
    return ZERO_OK;
}

TEST(initial_bytes_are_taken)
{
    uint32_t expected[777];
    for (uint32_t e = 0; e < 777; e++) {
        expected[e] = e * UINT32_C(2654435761); /* any bits, NaN and subnormals among them */
    }
    CHECK_OK(zero_world_run(1, TOY_DEADLINE_MS, read_initial, expected));
    CHECK_OK(zero_world_run(3, TOY_DEADLINE_MS, read_initial, expected));
}
