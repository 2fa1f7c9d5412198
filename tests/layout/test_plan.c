/* Owns the tests of the public plan: random models and options from test_seed, held against sizes
 * computed here from the documented rules, and the texts and hashes that a plan gives. */
#include "plan_rig.h"

#define RANDOM_MODELS 60
#define UNITS_MAX 12
#define TENSORS_MAX 48
#define GRANULE 256u

typedef struct shape {
    uint32_t unit;
    uint64_t count;
    zero_dtype dtype;
    bool frozen;
} shape;

typedef struct described {
    zero_model *model;
    uint32_t unit_count;
    uint32_t tensor_count;
    shape tensors[TENSORS_MAX];
} described;

static uint32_t group_of(uint32_t tensor)
{
    return tensor % 5 * 15;
}

static void add_tensor(described *d, const shape *tensor)
{
    const zero_tensor_desc desc = {.name = test_text("tensor%u", d->tensor_count),
                                   .dims = 1,
                                   .shape = {tensor->count},
                                   .dtype = tensor->dtype,
                                   .flags = tensor->frozen ? ZERO_TENSOR_FROZEN : ZERO_TENSOR_PLAIN,
                                   .group = group_of(d->tensor_count)};
    uint32_t index = UINT32_MAX;
    CHECK_OK(zero_tensor_add(d->model, tensor->unit, &desc, &index));
    CHECK_EQ(index, d->tensor_count);
    d->tensors[d->tensor_count++] = *tensor;
}

static void describe(described *d)
{
    static const uint64_t sizes[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 1000, 4369, 32768};
    *d = (described){.model = empty_model()};
    d->unit_count = 1 + (uint32_t)random_below(UNITS_MAX);
    for (uint32_t u = 0; u < d->unit_count; u++) {
        uint32_t index = UINT32_MAX;
        CHECK_OK(zero_unit_add(d->model, &(zero_unit_desc){.name = test_text("unit%u", u)}, &index,
                               NULL));
        CHECK_EQ(index, u);
        const uint32_t tensors = (uint32_t)random_below(5);
        for (uint32_t i = 0; i < tensors && d->tensor_count < TENSORS_MAX; i++) {
            const shape tensor = {
                .unit = u,
                .count = sizes[random_below(sizeof sizes / sizeof sizes[0])],
                .dtype = (zero_dtype)(1 + random_below(3)),
                .frozen = random_below(4) == 0,
            };
            add_tensor(d, &tensor);
        }
    }
}

/* Elements of one unit's flat of a kind: tensors at granules, the whole in `world` slices of
 * whole granules. 0 when the unit has no such tensor. */
static uint64_t flat_count(const described *d, uint32_t unit, zero_dtype dtype, bool frozen,
                           uint32_t world)
{
    uint64_t end = 0;
    for (uint32_t t = 0; t < d->tensor_count; t++) {
        const shape *tensor = &d->tensors[t];
        if (tensor->unit == unit && tensor->dtype == dtype && tensor->frozen == frozen) {
            end = up(end, GRANULE) + tensor->count;
        }
    }
    return up((end + world - 1) / world, GRANULE) * world;
}

/* Groups that have something trained. */
static uint64_t groups_of(const described *d)
{
    bool used[64] = {false};
    uint64_t groups = 0;
    for (uint32_t t = 0; t < d->tensor_count; t++) {
        bool *group = &used[group_of(t)];
        groups += !d->tensors[t].frozen && !*group;
        *group = *group || !d->tensors[t].frozen;
    }
    return groups;
}

/* Bytes of the shards of a role, without the rounding of pieces and arenas. */
typedef struct expected {
    uint64_t bytes[5];
    uint64_t step; /* of the step arena, exactly */
    uint32_t pieces;
} expected;

static expected expect(const described *d, const zero_engine_options *o, zero_dtype accum,
                       const zero_sharding *s)
{
    expected e = {{0}, 0, 0};
    for (uint32_t u = 0; u < d->unit_count; u++) {
        for (int dtype = ZERO_DTYPE_F32; dtype <= ZERO_DTYPE_F16; dtype++) {
            const uint64_t bytes = zero_dtype_bytes((zero_dtype)dtype);
            const uint64_t trained = flat_count(d, u, (zero_dtype)dtype, false, s->world);
            const uint64_t frozen = flat_count(d, u, (zero_dtype)dtype, true, s->world);
            const uint64_t moments = trained / s->optimizer * zero_dtype_bytes(o->moment_dtype);
            e.bytes[ZERO_ROLE_PARAM] += (trained + frozen) / s->param * bytes;
            e.bytes[ZERO_ROLE_GRAD] += trained / s->grad * zero_dtype_bytes(accum);
            if (dtype != ZERO_DTYPE_F32 && o->master_dtype == ZERO_DTYPE_F32) {
                e.bytes[ZERO_ROLE_MASTER] += trained / s->optimizer * 4;
            }
            e.bytes[ZERO_ROLE_MOMENT1] += moments;
            e.bytes[ZERO_ROLE_MOMENT2] += moments;
            e.pieces += 2;
        }
    }
    uint64_t trained = 0;
    for (uint32_t t = 0; t < d->tensor_count; t++) {
        trained += !d->tensors[t].frozen;
    }
    /* One message of its own and one of each rank; state and decision, and the same aside; a
     * segment a trained tensor. */
    const uint64_t message = up(224 + 20 * groups_of(d), 256);
    e.step = up(message + s->world * message + UINT64_C(2) * 5120 + up(trained * 48, 256), PAGE);
    return e;
}

static zero_engine_options random_options(void)
{
    zero_engine_options o = random_types();
    tuning.accum_dtype = (zero_dtype)random_below(3);
    tuning.wire_dtype = (zero_dtype)random_below(3);
    o.grad_dtype = (zero_dtype)random_below(4);
    tuning.param_slots = (uint32_t)random_below(6);
    tuning.grad_slots = (uint32_t)random_below(4);
    tuning.bucket_bytes = random_below(2) == 0 ? 1 : random_below(1 << 16);
    return o;
}

static void check_plan(const described *d, const zero_engine_options *o, uint32_t world)
{
    zero_plan *plan = plan_of(d->model, o, world);
    const zero_sharding s = plan_sharding(plan);
    const zero_engine_options used = plan_options(plan);
    const zero_memory memory = plan_memory(plan);
    const expected e = expect(d, &used, plan_tuning(plan).accum_dtype, &s);
    CHECK_EQ(s.world, world);
    CHECK_EQ(s.grad % s.param, 0);
    CHECK_EQ(s.optimizer % s.grad, 0);
    CHECK_EQ(s.world % s.optimizer, 0);
    uint64_t sum = 0;
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        sum += memory.bytes[role];
    }
    CHECK(memory.total_bytes >= sum);
    CHECK(memory.total_bytes - sum < ZERO_ROLE_COUNT_MAX * (uint64_t)PAGE);
    for (int role = 0; role < 5; role++) {
        /* Pieces start at multiples of 256 bytes, arenas are whole pages. */
        CHECK(memory.bytes[role] >= e.bytes[role]);
        CHECK(memory.bytes[role] - e.bytes[role] < 256 * (uint64_t)e.pieces + PAGE);
    }
    CHECK_EQ(memory.bytes[ZERO_ROLE_STEP], e.step);
    zero_plan_destroy(plan);
}

TEST(plan_bytes_of_random_models)
{
    static const uint32_t worlds[] = {1, 2, 3, 4, 5, 8, 128, 1000, 65536};
    for (uint32_t i = 0; i < RANDOM_MODELS; i++) {
        seed_random(i);
        described d;
        describe(&d);
        for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
            const zero_engine_options o = random_options();
            check_plan(&d, &o, worlds[w]);
        }
        zero_model_destroy(d.model);
    }
}

TEST(plan_of_hybrids)
{
    for (uint32_t i = 0; i < RANDOM_MODELS / 4; i++) {
        seed_random(1000 + i);
        described d;
        describe(&d);
        for (uint32_t shard = 1; shard <= 12; shard++) {
            for (uint32_t grad = shard; grad <= 12; grad += shard) {
                for (uint32_t optimizer = grad; optimizer <= 12; optimizer += grad) {
                    zero_engine_options o = fresh_options();
                    o.shard_group = shard;
                    tuning.grad_group = grad;
                    tuning.optimizer_group = optimizer;
                    if (12 % optimizer != 0) {
                        continue;
                    }
                    zero_plan *plan = plan_of(d.model, &o, 12);
                    const zero_sharding s = plan_sharding(plan);
                    CHECK_EQ(s.param, shard);
                    CHECK_EQ(s.grad, grad);
                    CHECK_EQ(s.optimizer, optimizer);
                    zero_plan_destroy(plan);
                    check_plan(&d, &o, 12);
                }
            }
        }
        zero_model_destroy(d.model);
    }
}

static void check_degrees(const zero_engine_options *o, uint32_t param, uint32_t grad,
                          uint32_t optimizer)
{
    zero_model *model = empty_model();
    zero_plan *plan = plan_of(model, o, 8);
    const zero_sharding s = plan_sharding(plan);
    CHECK_EQ(s.world, 8);
    CHECK_EQ(s.param, param);
    CHECK_EQ(s.grad, grad);
    CHECK_EQ(s.optimizer, optimizer);
    zero_plan_destroy(plan);
    zero_model_destroy(model);
}

TEST(degrees_of_every_stage)
{
    zero_engine_options o = fresh_options();
    check_degrees(&o, 8, 8, 8);
    o.stage = ZERO_STAGE_0;
    check_degrees(&o, 1, 1, 1);
    o.stage = ZERO_STAGE_1;
    check_degrees(&o, 1, 1, 8);
    o.stage = ZERO_STAGE_2;
    check_degrees(&o, 1, 8, 8);
    o.stage = ZERO_STAGE_3;
    check_degrees(&o, 8, 8, 8);
    o.shard_group = 2;
    check_degrees(&o, 2, 2, 2);
    tuning.optimizer_group = 8;
    check_degrees(&o, 2, 2, 8);
    tuning.grad_group = 4;
    check_degrees(&o, 2, 4, 8);
    tuning.optimizer_group = 0;
    check_degrees(&o, 2, 4, 4);
}

static void refuse_groups(uint32_t shard, uint32_t grad, uint32_t optimizer, const char *text)
{
    zero_model *model = empty_model();
    zero_engine_options o = fresh_options();
    o.shard_group = shard;
    tuning.grad_group = grad;
    tuning.optimizer_group = optimizer;
    refuse_plan(model, &o, 8, ZERO_ERR_INVALID_ARGUMENT, text);
    zero_model_destroy(model);
}

TEST(a_transport_is_for_gpus)
{
    zero_engine_options o = fresh_options();
    zero_model *model = empty_model();
    tuning.transport = ZERO_TRANSPORT_NCCL;
    refuse_plan(model, &o, 2, ZERO_ERR_INVALID_ARGUMENT, "ZERO_DEVICE_CUDA");
    o.device = ZERO_DEVICE_CUDA;
    zero_plan_destroy(plan_of(model, &o, 2));
    tuning.transport = (zero_transport)4;
    refuse_plan(model, &o, 2, ZERO_ERR_INVALID_ARGUMENT, "tuning.transport 4");
    zero_model_destroy(model);
}

/* The choice of a plan for the default, which it cannot ask anybody about. */
TEST(ranks_of_gpus_are_taken_for_processes)
{
    static const struct {
        zero_transport asked;
        uint32_t world;
        zero_transport used;
    } rows[] = {
        {ZERO_TRANSPORT_DEFAULT, 4, ZERO_TRANSPORT_NCCL},
        {ZERO_TRANSPORT_DEFAULT, 1, ZERO_TRANSPORT_DEFAULT},
        {ZERO_TRANSPORT_PEER, 4, ZERO_TRANSPORT_PEER},
        {ZERO_TRANSPORT_HOST, 4, ZERO_TRANSPORT_HOST},
        {ZERO_TRANSPORT_NCCL, 4, ZERO_TRANSPORT_NCCL},
    };
    described d;
    seed_random(3000);
    describe(&d);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        zero_engine_options o = fresh_options();
        o.device = ZERO_DEVICE_CUDA;
        tuning.transport = rows[i].asked;
        zero_plan *plan = plan_of(d.model, &o, rows[i].world);
        CHECK_EQ(plan_tuning(plan).transport, rows[i].used);
        const bool scratch = plan_memory(plan).bytes[ZERO_ROLE_SCRATCH] != 0;
        CHECK_EQ(scratch, rows[i].used == ZERO_TRANSPORT_NCCL);
        zero_plan_destroy(plan);
    }
    zero_model_destroy(d.model);
}

static uint64_t scratch_of(const zero_model *model, zero_engine_options o, uint32_t world)
{
    o.device = ZERO_DEVICE_CUDA;
    zero_plan *plan = plan_of(model, &o, world);
    const uint64_t bytes = plan_memory(plan).bytes[ZERO_ROLE_SCRATCH];
    zero_plan_destroy(plan);
    return bytes;
}

#define MIB (UINT64_C(1) << 20)

/* The bytes that the largest bucket's reduction has on the wire and an eighth of it, 4 MiB at most,
 * in pages. */
static uint64_t scratch_for(uint64_t wire_bytes)
{
    const uint64_t sums = up(wire_bytes, 8 * PAGE);
    return sums + (sums / 8 < 4 * MIB ? sums / 8 : 4 * MIB);
}

/* 512 KiB for each rank that is summed, but at least 32 and at most 512 MiB, and the zeros; of the
 * ranks of a group, where the model is sharded over groups. */
TEST(scratch_grows_with_the_ranks)
{
    static const struct {
        uint32_t world, group;
        uint64_t sums_mib;
    } rows[] = {
        {2, 0, 32},    {8, 0, 32},     {64, 0, 32},    {72, 0, 36},   {128, 0, 64},
        {256, 0, 128}, {1024, 0, 512}, {4096, 0, 512}, {1024, 8, 64}, {1024, 256, 128},
    };
    described d = {.model = empty_model()};
    uint32_t unit = 0;
    CHECK_OK(zero_unit_add(d.model, &(zero_unit_desc){.name = "large"}, &unit, NULL));
    add_tensor(&d, &(shape){unit, UINT64_C(1) << 30, ZERO_DTYPE_BF16, false});
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        zero_engine_options o = fresh_options();
        o.shard_group = rows[i].group;
        CHECK_EQ(scratch_of(d.model, o, rows[i].world), scratch_for(rows[i].sums_mib * MIB));
    }
    zero_model_destroy(d.model);
    /* No more than there is to sum. */
    d = (described){.model = empty_model()};
    CHECK_OK(zero_unit_add(d.model, &(zero_unit_desc){.name = "small"}, &unit, NULL));
    add_tensor(&d, &(shape){unit, UINT64_C(20) << 20, ZERO_DTYPE_BF16, false});
    CHECK_EQ(scratch_of(d.model, fresh_options(), 256), scratch_for(40 * MIB));
    zero_model_destroy(d.model);
}

/* At most 36 MiB for few ranks, unless NCCL adds: it cannot cut a sum, and takes no more than the
 * sum. */
TEST(scratch_of_reductions)
{
    static const uint64_t least = 9 * (uint64_t)PAGE;
    described d = {.model = empty_model()};
    for (uint32_t u = 0; u < 3; u++) {
        uint32_t unit = 0;
        CHECK_OK(
            zero_unit_add(d.model, &(zero_unit_desc){.name = test_text("unit%u", u)}, &unit, NULL));
        add_tensor(&d, &(shape){unit, u == 1 ? 100000 : 1000, ZERO_DTYPE_BF16, false});
    }
    zero_engine_options o = fresh_options();
    tuning.bucket_bytes = 1;
    const uint64_t flat = up(100000 / 4, GRANULE) * 4; /* elements of the largest */
    CHECK_EQ(scratch_of(d.model, o, 4), scratch_for(flat * 2));
    tuning.reduction = ZERO_REDUCTION_NATIVE;
    CHECK_EQ(scratch_of(d.model, o, 4), scratch_for(flat * 4 / 4));
    tuning.reduction = ZERO_REDUCTION_DEFAULT;
    tuning.wire_dtype = ZERO_DTYPE_F32;
    CHECK_EQ(scratch_of(d.model, o, 4), scratch_for(flat * 4));
    /* Gradients are split over two ranks: the replicas have half of it, in the sum's type. */
    tuning.wire_dtype = ZERO_DTYPE_BF16;
    o.shard_group = 2;
    CHECK_EQ(scratch_of(d.model, o, 4), scratch_for(flat * 2));
    o.shard_group = 0;
    o.stage = ZERO_STAGE_0; /* all ranks have all of it: one ALL_REDUCE */
    CHECK_EQ(scratch_of(d.model, o, 4), scratch_for(flat * 2));
    tuning.bucket_bytes = UINT64_C(1) << 30; /* one bucket */
    const uint64_t small = up(1000 / 4, GRANULE) * 4;
    CHECK_EQ(scratch_of(d.model, o, 4), scratch_for((flat + 2 * small) * 2));
    tuning.wire_dtype = ZERO_DTYPE_INT8_BLOCK; /* two scales of two bytes for each granule */
    CHECK_EQ(scratch_of(d.model, o, 4), scratch_for((flat + 2 * small) / GRANULE * (GRANULE + 4)));
    CHECK_EQ(scratch_of(d.model, o, 1), 0);
    zero_model_destroy(d.model);
    /* Nothing to reduce still needs what a group is made with; far too much is cut up. */
    d = (described){.model = empty_model()};
    o = fresh_options();
    CHECK_EQ(scratch_of(d.model, o, 4), least);
    uint32_t unit = 0;
    CHECK_OK(zero_unit_add(d.model, &(zero_unit_desc){.name = "large"}, &unit, NULL));
    add_tensor(&d, &(shape){unit, UINT64_C(1) << 30, ZERO_DTYPE_BF16, false});
    CHECK_EQ(scratch_of(d.model, o, 4), UINT64_C(36) << 20);
    tuning.reduction = ZERO_REDUCTION_NATIVE;
    CHECK_EQ(scratch_of(d.model, o, 4), scratch_for(UINT64_C(1) << 30));
    zero_model_destroy(d.model);
}

TEST(groups_that_do_not_divide_are_refused)
{
    refuse_groups(3, 0, 0, "shard_group 3");
    refuse_groups(16, 0, 0, "shard_group 16");
    refuse_groups(2, 5, 0, "grad_group 5");
    refuse_groups(4, 2, 0, "grad_group 2");
    refuse_groups(2, 4, 2, "optimizer_group 2");
    refuse_groups(2, 0, 7, "optimizer_group 7");
}

TEST(budget_is_exact)
{
    for (uint32_t i = 0; i < 8; i++) {
        seed_random(2000 + i);
        described d;
        describe(&d);
        zero_engine_options o = random_options();
        zero_plan *plan = plan_of(d.model, &o, 4);
        const uint64_t need = plan_memory(plan).total_bytes;
        zero_plan_destroy(plan);
        if (need > 1) {
            o.device_budget_bytes = need;
            zero_plan_destroy(plan_of(d.model, &o, 4));
            o.device_budget_bytes = need - 1;
            refuse_plan(d.model, &o, 4, ZERO_ERR_OUT_OF_MEMORY, "short by 1");
            CHECK_SAID(test_text("%" PRIu64, need));
        }
        zero_model_destroy(d.model);
    }
}

TEST(no_plan_has_nothing)
{
    char text[8] = "before";
    zero_memory memory = zero_memory_init();
    zero_tuning own = zero_tuning_init();
    CHECK_FAILS(zero_plan_memory(NULL, &memory), ZERO_ERR_INVALID_ARGUMENT, "plan is NULL");
    CHECK_FAILS(zero_plan_tuning(NULL, &own), ZERO_ERR_INVALID_ARGUMENT, "plan is NULL");
    CHECK_EQ(zero_plan_hash(NULL), 0);
    CHECK_EQ(zero_plan_print(NULL, text, sizeof text), 0);
    CHECK_EQ(text[0], '\0');
    CHECK_EQ(zero_plan_print(NULL, NULL, 0), 0);
    memcpy(text, "before", sizeof "before");
    CHECK_EQ(zero_plan_print_options(NULL, text, sizeof text), 0);
    CHECK_EQ(text[0], '\0');
    CHECK_EQ(zero_plan_print_options(NULL, NULL, 0), 0);
    zero_plan_destroy(NULL);
}

TEST(table_has_every_role)
{
    seed_random(3000);
    described d;
    describe(&d);
    zero_plan *plan = plan_of(d.model, NULL, 4);
    const zero_memory memory = plan_memory(plan);
    const size_t bytes = zero_plan_print(plan, NULL, 0);
    CHECK(bytes > 0);
    char *text = malloc(bytes + 1);
    CHECK(text != NULL);
    CHECK_EQ(zero_plan_print(plan, text, bytes + 1), bytes);
    CHECK_EQ(strlen(text), bytes);
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        const char *line = text;
        const char *name = zero_role_name((zero_role)role);
        if (zero_role_exists((zero_role)role) == 0) {
            CHECK_EQ(memory.bytes[role], 0);
            continue;
        }
        /* "param" begins two names: the line must go on with a space and the bytes. */
        const char *number = test_text(" %" PRIu64 " ", memory.bytes[role]);
        bool found = false;
        while (line != NULL && !found) {
            const char *end = strchr(line, '\n');
            const char *bytes_at = strstr(line, number);
            found = strncmp(line, name, strlen(name)) == 0 && bytes_at != NULL &&
                    (end == NULL || bytes_at < end);
            line = end != NULL ? end + 1 : NULL;
        }
        if (!found) {
            TEST_FAIL("no line for %s with%sbytes in:\n%s", name, number, text);
        }
    }
    char cut[24];
    memset(cut, 'x', sizeof cut);
    CHECK_EQ(zero_plan_print(plan, cut, sizeof cut), bytes);
    CHECK_EQ(cut[sizeof cut - 1], 0);
    CHECK_BYTES(cut, text, sizeof cut - 1);
    free(text);
    zero_plan_destroy(plan);
    zero_model_destroy(d.model);
}

/* The options as they are used, and their tuning. */
typedef struct used_options {
    zero_engine_options options;
    zero_tuning tuning;
} used_options;

static used_options resolved(zero_dtype dtype, const zero_engine_options *options)
{
    zero_model *model = model_of(1, dtype);
    zero_plan *plan = plan_of(model, options, 4);
    const used_options out = {plan_options(plan), plan_tuning(plan)};
    zero_plan_destroy(plan);
    zero_model_destroy(model);
    return out;
}

TEST(defaults_are_resolved)
{
    const used_options used = resolved(ZERO_DTYPE_BF16, NULL);
    const zero_engine_options o = used.options;
    const zero_tuning t = used.tuning;
    CHECK_EQ(o.struct_bytes, sizeof o);
    CHECK_EQ(t.struct_bytes, sizeof t);
    CHECK(o.tuning == NULL);
    CHECK_EQ(o.stage, ZERO_STAGE_3);
    CHECK_EQ(o.shard_group, 4);
    CHECK_EQ(t.grad_group, 4);
    CHECK_EQ(t.optimizer_group, 4);
    CHECK_EQ(o.grad_dtype, ZERO_DTYPE_BF16);
    CHECK_EQ(t.wire_dtype, ZERO_DTYPE_DEFAULT);
    CHECK_EQ(t.accum_dtype, ZERO_DTYPE_F32);
    CHECK_EQ(o.master_dtype, ZERO_DTYPE_F32);
    CHECK_EQ(o.moment_dtype, ZERO_DTYPE_F32);
    CHECK_EQ(o.optimizer, ZERO_OPTIMIZER_ADAMW);
    CHECK_EQ(t.param_slots, 3);
    CHECK_EQ(t.grad_slots, 2);
    CHECK_EQ(t.look_ahead, 1);
    CHECK_EQ(t.no_prefetch, 0);
    CHECK_EQ(t.bucket_bytes, 1 << 20);
    CHECK_EQ(o.device_budget_bytes, 0);
    CHECK_EQ(o.tier[ZERO_ROLE_PARAM], ZERO_TIER_DEVICE);
    CHECK_EQ(o.tier[ZERO_ROLE_MOMENT2], ZERO_TIER_DEVICE);
    CHECK_EQ(t.extent_bytes, 8 << 20);
    CHECK_EQ(t.io_window, 4);
    CHECK_EQ(t.io_depth, 16);
    CHECK_SAME(o.loss_scale, 1.0f);
    CHECK_EQ(t.loss_scale_static, 1);
    CHECK_EQ(t.loss_scale_window, 2000);
    CHECK_EQ(t.loss_scale_hysteresis, 1);
    CHECK_SAME(t.loss_scale_min, 1.0f);
    const used_options half = resolved(ZERO_DTYPE_F16, NULL);
    CHECK_SAME(half.options.loss_scale, 65536.0f);
    CHECK_EQ(half.tuning.loss_scale_static, 0);
    CHECK_EQ(half.options.grad_dtype, ZERO_DTYPE_F16);
    zero_engine_options wide = zero_engine_options_init();
    wide.grad_dtype = ZERO_DTYPE_F32;
    CHECK_EQ(resolved(ZERO_DTYPE_BF16, &wide).options.grad_dtype, ZERO_DTYPE_F32);
}

TEST(defaults_equal_their_values)
{
    /* Resolved options resolve to themselves. */
    const used_options once = resolved(ZERO_DTYPE_F16, NULL);
    zero_engine_options again = once.options;
    again.tuning = &once.tuning;
    const used_options twice = resolved(ZERO_DTYPE_F16, &again);
    CHECK_BYTES(&once, &twice, sizeof once);
}

TEST(older_and_newer_structs)
{
    zero_engine_options o = fresh_options();
    o.stage = ZERO_STAGE_1;
    tuning.param_slots = 5;
    tuning.struct_bytes = offsetof(zero_tuning, param_slots);
    const used_options old = resolved(ZERO_DTYPE_F32, &o);
    CHECK_EQ(old.options.stage, ZERO_STAGE_1);
    CHECK_EQ(old.tuning.param_slots, 3);
    struct {
        zero_engine_options known;
        unsigned char more[16];
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.known = zero_engine_options_init();
    newer.known.struct_bytes = sizeof newer;
    newer.known.stage = ZERO_STAGE_2;
    CHECK_EQ(resolved(ZERO_DTYPE_F32, &newer.known).options.stage, ZERO_STAGE_2);
    newer.more[9] = 1;
    zero_model *model = empty_model();
    refuse_plan(model, &newer.known, 2, ZERO_ERR_UNSUPPORTED, "bytes");
    newer.known.struct_bytes = 7;
    refuse_plan(model, &newer.known, 2, ZERO_ERR_INVALID_ARGUMENT, "struct_bytes");
    zero_model_destroy(model);
}

/* As C and bindings begin: zeros, without a size, and what is said is said. */
TEST(zeroed_options_are_the_defaults)
{
    zero_tuning zeroed_tuning;
    zero_engine_options zeroed;
    memset(&zeroed_tuning, 0, sizeof zeroed_tuning);
    memset(&zeroed, 0, sizeof zeroed);
    zeroed.stage = ZERO_STAGE_3;
    zeroed.tuning = &zeroed_tuning;
    zero_model *model = empty_model();
    zero_plan *plans[2] = {plan_of(model, NULL, 4), plan_of(model, &zeroed, 4)};
    CHECK_EQ(zero_plan_hash(plans[0]), zero_plan_hash(plans[1]));
    zero_plan_destroy(plans[1]);
    /* Up to the last field of the first release. */
    zeroed.group_optimizer[ZERO_STEP_GROUPS - 1] = ZERO_OPTIMIZER_LION;
    plans[1] = plan_of(model, &zeroed, 4);
    CHECK(zero_plan_hash(plans[0]) != zero_plan_hash(plans[1]));
    zero_plan_destroy(plans[1]);
    zeroed = (zero_engine_options){.stage = ZERO_STAGE_3, .tuning = &zeroed_tuning};
    zeroed_tuning.check_added = 2;
    refuse_plan(model, &zeroed, 4, ZERO_ERR_INVALID_ARGUMENT, "check_added");
    zeroed_tuning.check_added = 0;
    zeroed.stage = ZERO_STAGE_0; /* nothing said is stage 0 */
    plans[1] = plan_of(model, &zeroed, 4);
    CHECK(zero_plan_hash(plans[0]) != zero_plan_hash(plans[1]));
    zero_plan_destroy(plans[0]);
    zero_plan_destroy(plans[1]);
    zero_model_destroy(model);
}

TEST(world_sizes_out_of_range)
{
    zero_model *model = empty_model();
    refuse_plan(model, NULL, 0, ZERO_ERR_INVALID_ARGUMENT, "0");
    refuse_plan(model, NULL, 65537, ZERO_ERR_INVALID_ARGUMENT, "65537");
    refuse_plan(NULL, NULL, 1, ZERO_ERR_INVALID_ARGUMENT, "model");
    CHECK_FAILS(zero_plan_create(model, NULL, 1, NULL), ZERO_ERR_INVALID_ARGUMENT, "plan");
    zero_model_destroy(model);
}

/* Frozen tensors cost their parameters, and a step that has nothing to do its decision. */
TEST(frozen_tensors_cost_only_parameters)
{
    for (int frozen = 0; frozen < 2; frozen++) {
        described d = {.model = empty_model()};
        uint32_t unit = 0;
        CHECK_OK(zero_unit_add(d.model, &(zero_unit_desc){.name = "layer"}, &unit, NULL));
        d.unit_count = 1;
        add_tensor(&d, &(shape){0, 100000, ZERO_DTYPE_BF16, frozen == 1});
        zero_plan *plan = plan_of(d.model, NULL, 4);
        const zero_memory memory = plan_memory(plan);
        CHECK(memory.bytes[ZERO_ROLE_PARAM] >= 50000);
        for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
            const bool always =
                role == ZERO_ROLE_PARAM || role == ZERO_ROLE_PARAM_SLOT || role == ZERO_ROLE_STEP;
            const bool never = role >= ZERO_ROLE_SCRATCH || !zero_role_exists((zero_role)role) ||
                               role == ZERO_ROLE_SCALE1 || role == ZERO_ROLE_SCALE2;
            if ((memory.bytes[role] != 0) != (!never && (always || frozen == 0))) {
                TEST_FAIL("%s, frozen %d: %" PRIu64 " bytes", zero_role_name((zero_role)role),
                          frozen, memory.bytes[role]);
            }
        }
        zero_plan_destroy(plan);
        zero_model_destroy(d.model);
    }
}

typedef struct variant {
    uint64_t rows;
    const char *name;
    const char *unit;
    zero_dtype dtype;
    uint32_t flags;
    uint32_t group;
    uint32_t world;
    uint32_t dims;
    bool tied;
    zero_engine_options options;
    zero_tuning tuning;
} variant;

static variant plain_variant(void)
{
    return (variant){.rows = 100,
                     .name = "weight",
                     .unit = "layer",
                     .dtype = ZERO_DTYPE_BF16,
                     .world = 4,
                     .dims = 1,
                     .options = zero_engine_options_init(),
                     .tuning = zero_tuning_init()};
}

static uint64_t hash_of(const variant *v)
{
    zero_model *model = empty_model();
    const zero_tensor_desc desc = {.name = v->name,
                                   .dims = v->dims,
                                   .shape = {v->rows, v->dims > 1},
                                   .dtype = v->dtype,
                                   .flags = v->flags,
                                   .group = v->group};
    CHECK_OK(zero_unit_add(model,
                           &(zero_unit_desc){.name = v->unit, .tensors = &desc, .tensor_count = 1},
                           NULL, NULL));
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "head"}, NULL, NULL));
    if (v->tied) {
        CHECK_OK(zero_tensor_tie(model, 1, 0));
    }
    zero_engine_options options = v->options;
    options.tuning = &v->tuning;
    zero_plan *plan = plan_of(model, &options, v->world);
    const uint64_t hash = zero_plan_hash(plan);
    zero_plan_destroy(plan);
    zero_model_destroy(model);
    return hash;
}

#define CHECK_HASH(change, equal)                                             \
    do {                                                                      \
        variant v = plain_variant();                                          \
        const uint64_t before = hash_of(&v);                                  \
        change;                                                               \
        const uint64_t after = hash_of(&v);                                   \
        if ((before == after) != (equal)) {                                   \
            TEST_FAIL("%s: hash %s", #change, (equal) ? "differs" : "stays"); \
        }                                                                     \
    } while (0)

static void update_nothing(void *user, const zero_update_range *range)
{
    (void)user;
    (void)range;
}

TEST(hash_covers_what_ranks_agree_on)
{
    CHECK_HASH((void)v, true);
    CHECK_HASH(v.rows = 101, false);
    CHECK_HASH(v.dims = 2, false);
    CHECK_HASH(v.name = "weighs", false);
    CHECK_HASH(v.unit = "other", false);
    CHECK_HASH(v.dtype = ZERO_DTYPE_F16, false);
    CHECK_HASH(v.flags = ZERO_TENSOR_NO_DECAY, false);
    CHECK_HASH(v.flags = ZERO_TENSOR_FROZEN, false);
    CHECK_HASH(v.group = 1, false);
    CHECK_HASH(v.world = 8, false);
    CHECK_HASH(v.tied = true, false);
    CHECK_HASH(v.options.stage = ZERO_STAGE_2, false);
    CHECK_HASH(v.options.shard_group = 2, false);
    CHECK_HASH(v.options.shard_group = 2; v.tuning.grad_group = 4, false);
    CHECK_HASH(v.options.grad_dtype = ZERO_DTYPE_F32, false);
    CHECK_HASH(v.tuning.wire_dtype = ZERO_DTYPE_F32, false);
    CHECK_HASH(v.tuning.accum_dtype = ZERO_DTYPE_BF16, false);
    CHECK_HASH(v.options.master_dtype = ZERO_DTYPE_NONE, false);
    CHECK_HASH(v.options.moment_dtype = ZERO_DTYPE_BF16, false);
    CHECK_HASH(v.tuning.reduction = ZERO_REDUCTION_EXACT, false);
    CHECK_HASH(v.options.device = ZERO_DEVICE_CUDA, false);
    CHECK_HASH(v.options.device = ZERO_DEVICE_CUDA;
               v.tuning.transport = ZERO_TRANSPORT_HOST, false);
    CHECK_HASH(v.tuning.accumulation = ZERO_ACCUMULATION_LOCAL, false);
    CHECK_HASH(v.options.optimizer = ZERO_OPTIMIZER_CALLBACK;
               v.options.update = update_nothing, false);
    CHECK_HASH(v.tuning.param_slots = 4, false);
    CHECK_HASH(v.tuning.grad_slots = 3, false);
    CHECK_HASH(v.tuning.look_ahead = 2, false);
    CHECK_HASH(v.tuning.no_prefetch = 1, false);
    CHECK_HASH(v.tuning.bucket_bytes = 1, false);
    CHECK_HASH(v.options.loss_scale = 8.0f, false);
    CHECK_HASH(v.tuning.loss_scale_window = 7, false);
    CHECK_HASH(v.tuning.loss_scale_hysteresis = 3, false);
    CHECK_HASH(v.tuning.loss_scale_min = 4.0f, false);
    CHECK_HASH(v.options.seed = 5, false);
    CHECK_HASH(v.options.tier[ZERO_ROLE_MASTER] = ZERO_TIER_HOST, false);
    CHECK_HASH(v.options.tier[ZERO_ROLE_MOMENT2] = ZERO_TIER_DISK, false);
    CHECK_HASH(v.tuning.extent_bytes = 4096, false);
    CHECK_HASH(v.tuning.io_window = 5, false);
    CHECK_HASH(v.tuning.poison_released = 1, false);
    CHECK_HASH(v.tuning.trace_events = 4096, false);
    CHECK_HASH(v.tuning.save_staging_bytes = UINT64_C(32) << 20, false);
    CHECK_HASH(v.tuning.left_out_at_once = 1, false);
}

TEST(hash_ignores_what_a_rank_decides_alone)
{
    CHECK_HASH(v.options.threads = 7, true);
    CHECK_HASH(v.options.device_budget_bytes = UINT64_C(1) << 40, true);
    CHECK_HASH(v.options.host_budget_bytes = UINT64_C(1) << 40, true);
    CHECK_HASH(v.options.disk_budget_bytes = UINT64_C(1) << 40, true);
    static const char *const directories[] = {"one", "two"};
    static const uint32_t weights[] = {3, 1};
    CHECK_HASH(v.options.disk_directories = directories; v.options.disk_directory_count = 2, true);
    CHECK_HASH(v.tuning.disk_weights = weights; v.options.disk_directory_count = 2, true);
    CHECK_HASH(v.tuning.io_depth = 3, true);
    CHECK_HASH(v.options.tier[ZERO_ROLE_PARAM] = ZERO_TIER_DEVICE, true);
    CHECK_HASH(v.options.update_user = &v, true);
    CHECK_HASH(v.options.stage = ZERO_STAGE_3, true);
    CHECK_HASH(v.tuning.param_slots = 3, true);
}
