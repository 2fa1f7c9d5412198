/* Owns the proof that a change of the library changes no result: the toy is trained in every type,
 * with every optimizer, over several ranks, and a hash of what came out is compared with the one
 * that recorded_bits.h keeps. Sharding, tiers and speculative steps change no bit either, so all of
 * them are compared with one record. A change that is meant to change bits says so in the changelog
 * and replaces the record: `test_recorded_bits --print > recorded_bits.h`. */
#include "harness.h"

#include "folders.h"
#include "injected.h"
#include "toy.h"

#define DEADLINE_MS 60000
#define STEPS 4
#define RANKS_MAX 4

/* ---- what is varied ---- */

typedef struct kind {
    const char *name;
    zero_dtype dtype;
    zero_dtype master;
    zero_dtype moments;
    zero_dtype sums;
    zero_dtype wire;
    zero_optimizer optimizer;
    float max_norm;
} kind;

#define F32 ZERO_DTYPE_F32
#define BF16 ZERO_DTYPE_BF16
#define F16 ZERO_DTYPE_F16
#define NONE ZERO_DTYPE_NONE
#define ADAMW ZERO_OPTIMIZER_ADAMW
#define CALLBACK ZERO_OPTIMIZER_CALLBACK
#define LION ZERO_OPTIMIZER_LION
#define SGD ZERO_OPTIMIZER_SGD

static const kind kinds[] = {
    {"f32", F32, F32, F32, F32, F32, ADAMW, 0},
    {"f32 clipped", F32, F32, F32, F32, F32, ADAMW, 0.5f},
    {"f32, bf16 moments", F32, F32, BF16, F32, F32, ADAMW, 0},
    {"f32, own optimizer", F32, F32, F32, F32, F32, CALLBACK, 0.5f},
    {"bf16", BF16, F32, F32, F32, BF16, ADAMW, 0.5f},
    {"bf16, no master", BF16, NONE, F32, F32, BF16, ADAMW, 0},
    {"bf16, no master, bf16 moments", BF16, NONE, BF16, F32, BF16, ADAMW, 0.5f},
    {"bf16 all over", BF16, NONE, BF16, BF16, BF16, ADAMW, 0},
    {"bf16, own optimizer", BF16, F32, F32, F32, BF16, CALLBACK, 0},
    {"f16 scaled", F16, F32, F32, F32, F16, ADAMW, 0},
    {"f32, lion", F32, F32, F32, F32, F32, LION, 0.5f},
    {"bf16, lion, no master, bf16 moments", BF16, NONE, BF16, F32, BF16, LION, 0},
    {"bf16, sgd, bf16 moments", BF16, F32, BF16, F32, BF16, SGD, 0.5f},
    {"f16 scaled, sgd", F16, F32, F32, F32, F16, SGD, 0},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

/* Real values show the order of additions, integers allow for any order. */
static const toy_flavour flavours[] = {TOY_REAL, TOY_INTEGER};
#define FLAVOURS (sizeof flavours / sizeof flavours[0])

/* CHECKED: on the device, and callers get copies. */
typedef enum state_mode { ON_DEVICE, ON_HOST, ON_DISK, PREDICTED, CHECKED, MODES } state_mode;

/* Heavy-ball momentum, with the second moment as a count of calls. */
static void own_update(void *user, const zero_update_range *range)
{
    (void)user;
    for (size_t i = 0; i < range->count; i++) {
        range->moment1[i] = fmaf(0.9f, range->moment1[i], range->grad[i]);
        range->moment2[i] += (float)range->step;
        range->param[i] = fmaf(-0.01f, range->moment1[i], range->param[i]);
    }
}

static void put(toy_run *run, state_mode mode)
{
    static const zero_tier tiers[MODES] = {ZERO_TIER_DEVICE, ZERO_TIER_HOST, ZERO_TIER_DISK,
                                           ZERO_TIER_DISK, ZERO_TIER_DEVICE};
    for (int role = mode == PREDICTED ? ZERO_ROLE_MASTER : 0; role < ZI_SHARD_ROLES; role++) {
        run->options.tier[role] = tiers[mode];
    }
    if (mode == ON_DISK || mode == PREDICTED) {
        run->options.disk_directories = rig_paths;
        run->options.disk_directory_count = 1;
    }
    run->tuning.extent_bytes = 4096;
    run->tuning.speculative_step = mode == PREDICTED;
    run->tuning.poison_released = mode == CHECKED;
}

static toy_run run_of(const kind *k, toy_flavour flavour, const toy_model *model)
{
    toy_run run = toy_run_init(model);
    run.flavour = flavour;
    run.steps = STEPS;
    run.micro_steps = flavour == TOY_INTEGER ? 2 : 1;
    run.options.seed = 5;
    run.options.master_dtype = k->master;
    run.options.moment_dtype = k->moments;
    run.tuning.accum_dtype = k->sums;
    run.tuning.wire_dtype = k->wire;
    /* Scaled integers stay exact in binary16. */
    run.options.loss_scale = k->dtype == F16 && flavour == TOY_INTEGER ? 64.0f : 0.0f;
    run.options.optimizer = k->optimizer;
    run.options.update = k->optimizer == CALLBACK ? own_update : NULL;
    run.options.update_states = k->optimizer == CALLBACK ? 2 : 0;
    if (k->optimizer != ADAMW) {
        run.params.hyper = zero_hyper_init(k->optimizer);
    }
    if (k->optimizer == SGD) {
        run.params.hyper.sgd = (zero_sgd){1e-2f, 0.9f, 0.1f, 1.0f};
    }
    run.params.max_norm = k->max_norm;
    return run;
}

/* ---- hashes ---- */

/* FNV-1a over 64-bit words. */
static uint64_t add_word(uint64_t hash, uint64_t word)
{
    for (int byte = 0; byte < 8; byte++) {
        hash = (hash ^ (word >> (8 * byte) & 255)) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* Parameters, masters and moments; an element that nobody holds counts as such. */
UNWATCHED static uint64_t hash_state(uint64_t hash, const toy_state *state)
{
    for (int role = 0; role < ZI_TIER_ROLES; role++) {
        for (uint64_t i = 0; i < state->element_count && role != ZERO_ROLE_GRAD; i++) {
            const bool held = state->owners[role][i] != 0;
            hash = add_word(hash, held ? state->bits[role][i] : UINT64_MAX);
        }
    }
    return hash;
}

static zero_status train(const toy_run *run, zero_world *world, uint64_t *hash)
{
    toy_trainer trainer;
    toy_state state;
    *hash = UINT64_C(0xcbf29ce484222325);
    TOY_TRY(toy_open(&trainer, run, world));
    for (uint32_t s = 0; s < run->steps; s++) {
        zero_step_result result = zero_step_result_init();
        uint64_t norm = 0;
        TOY_TRY(toy_step(&trainer));
        TOY_TRY(zero_step_wait(trainer.engine, &result));
        memcpy(&norm, &result.norm, sizeof norm);
        *hash = add_word(*hash, norm);
    }
    TOY_TRY(toy_collect(&trainer, &state));
    *hash = hash_state(*hash, &state);
    toy_state_free(&state);
    toy_close(&trainer);
    return ZERO_OK;
}

/* ---- the record ---- */

/* By kind, flavour and number of ranks. */
static const uint64_t recorded[KINDS][FLAVOURS][RANKS_MAX] = {
#include "recorded_bits.h"
};

typedef struct job {
    size_t kind;
    size_t flavour;
    uint64_t *print; /* gets the hash, which is then not compared */
} job;

static zero_status check_ways(zero_world *world, void *user)
{
    const job *j = user;
    const kind *k = &kinds[j->kind];
    const uint32_t ranks = zero_world_size(world);
    toy_model model;
    toy_model_mixed(&model, k->dtype);
    toy_sharding ways[16];
    const uint32_t count = toy_shardings(ranks, flavours[j->flavour] == TOY_INTEGER, ways);
    for (uint32_t w = 0; w < (j->print != NULL ? 1 : count * MODES); w++) {
        const state_mode mode = (state_mode)(w / count);
        uint64_t hash = 0;
        /* Every sharding on the device, one of them in each other mode. */
        if (mode != ON_DEVICE && w % count != (j->kind + ranks + mode) % count) {
            continue;
        }
        if (w != 0 && !IN_SAMPLE(w + j->kind + ranks)) {
            continue;
        }
        toy_run run = run_of(k, flavours[j->flavour], &model);
        put(&run, mode);
        run.predicted = mode == PREDICTED;
        toy_sharding_apply(&ways[w % count], &run);
        TOY_TRY(train(&run, world, &hash));
        if (j->print != NULL && zero_world_rank(world) == 0) {
            *j->print = hash;
        }
        if (j->print == NULL && hash != recorded[j->kind][j->flavour][ranks - 1]) {
            TEST_FAIL("%s, flavour %zu, %u ranks, %s, mode %d: %016" PRIx64
                      ", recorded %016" PRIx64,
                      k->name, j->flavour, ranks, ways[w % count].name, mode, hash,
                      recorded[j->kind][j->flavour][ranks - 1]);
        }
    }
    toy_model_close(&model);
    return zero_world_barrier(world);
}

static void check_ranks(uint32_t ranks)
{
    rig_folders(1, 0);
    for (size_t k = 0; k < KINDS; k++) {
        for (size_t f = 0; f < FLAVOURS; f++) {
            job j = {k, f, NULL};
            /* A caller's own optimizer updates the host's memory only. */
            if (kinds[k].optimizer == CALLBACK && injected_in_use() == INJECTED_OWN_MEMORY) {
                continue;
            }
            CHECK_OK(zero_world_run(ranks, DEADLINE_MS, check_ways, &j));
        }
    }
    CHECK_EQ(atomic_load(&injected_counted.updates) != 0, injected_in_use() != INJECTED_NONE);
}

TEST_CALL(one_rank, check_ranks(1));
TEST_CALL(two_ranks, check_ranks(2));
TEST_CALL(three_ranks, check_ranks(3));
TEST_CALL(four_ranks, check_ranks(4));

static int print_record(void)
{
    printf("/* Printed by test_recorded_bits --print. */\n");
    for (size_t k = 0; k < KINDS; k++) {
        printf("/* %s */\n{", kinds[k].name);
        for (size_t f = 0; f < FLAVOURS; f++) {
            printf("{");
            for (uint32_t ranks = 1; ranks <= RANKS_MAX; ranks++) {
                uint64_t hash = 0;
                job j = {k, f, &hash};
                CHECK_OK(zero_world_run(ranks, DEADLINE_MS, check_ways, &j));
                printf("UINT64_C(0x%016" PRIx64 ")%s", hash, ranks < RANKS_MAX ? ",\n" : "");
            }
            printf("}%s", f + 1 < FLAVOURS ? ",\n" : "");
        }
        printf("},\n");
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--print") == 0) {
        return print_record();
    }
    return test_main(argc, argv);
}
