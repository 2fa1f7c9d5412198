/* Owns the tests of descriptions, options and hyper-parameters that make no sense: each is refused
 * with a message that names the field and the value. */
#include "harness.h"
#include "reads.h"

#include "grouped.h"
#include "toy.h"

/* ---- options ---- */

/* Plan and create refuse alike, and the world can be used again afterwards. */
static void refuse(const zero_engine_options *options, const char *field, const char *text)
{
    const zero_status status = ZERO_ERR_INVALID_ARGUMENT;
    const zero_model *model = toy_run_mixed(ZERO_DTYPE_BF16).model->model;
    zero_plan *plan = NULL;
    zero_engine *engine = NULL;
    zero_world *world = NULL;
    CHECK_FAILS(zero_plan_create(model, options, 1, &plan), status, field);
    CHECK(strstr(zero_last_error()->message, text) != NULL);
    CHECK(plan == NULL);
    CHECK_OK(zero_world_create_self(&world));
    CHECK_FAILS(zero_engine_create(world, model, options, &engine), status, text);
    CHECK(engine == NULL);
    CHECK_OK(zero_engine_create(world, model, NULL, &engine));
    zero_engine_destroy(engine);
    zero_world_destroy(world);
}

#define REFUSE_IN(part, field, value, text)                     \
    do {                                                        \
        zero_engine_options wrong = zero_engine_options_init(); \
        zero_tuning wrong_tuning = zero_tuning_init();          \
        wrong.tuning = &wrong_tuning;                           \
        part.field = (value);                                   \
        refuse(&wrong, #field, text);                           \
    } while (0)
#define REFUSE(field, value, text) REFUSE_IN(wrong, field, value, text)
#define REFUSE_TUNING(field, value, text) REFUSE_IN(wrong_tuning, field, value, text)

TEST(numbers_out_of_bounds)
{
    REFUSE_TUNING(param_slots, 65, "65");
    REFUSE_TUNING(param_slots, UINT32_MAX, "4294967295");
    REFUSE_TUNING(grad_slots, 65, "65");
    REFUSE_TUNING(look_ahead, 64, "64");
    REFUSE(update_states, 3, "3");
    REFUSE(threads, 257, "257");
    REFUSE_TUNING(no_prefetch, 2, "2");
    REFUSE_TUNING(loss_scale_static, -1, "not in");
    REFUSE_TUNING(poison_released, 7, "7");
    REFUSE_TUNING(trace_events, 4095, "4095");
    REFUSE_TUNING(save_staging_bytes, 33554431, "33554431");
    REFUSE_TUNING(left_out_at_once, 2, "2");
    REFUSE(struct_bytes, 3, "zero_engine_options_init");
    REFUSE(struct_bytes, SIZE_MAX, "zero_engine_options_init");
    REFUSE_TUNING(struct_bytes, SIZE_MAX, "zero_tuning_init");
}

TEST(floats_out_of_bounds)
{
    REFUSE(loss_scale, -1.0f, "-1");
    REFUSE(loss_scale, (float)NAN, "nan");
    REFUSE(loss_scale, (float)INFINITY, "inf");
    REFUSE_TUNING(loss_scale_min, -0.5f, "-0.5");
    REFUSE_TUNING(loss_scale_min, (float)NAN, "nan");
}

TEST(enumerations_out_of_bounds)
{
    REFUSE(stage, (zero_stage)4, "stage 4 ");
    REFUSE(stage, (zero_stage)-1, "stage -1 ");
    REFUSE(stage, (zero_stage)INT32_MAX, "stage 2147483647 ");
    REFUSE_TUNING(reduction, (zero_reduction)3, "3");
    REFUSE_TUNING(accumulation, (zero_accumulation)2, "2");
    REFUSE(optimizer, (zero_optimizer)7, "7");
    REFUSE_TUNING(nccl_memory, (zero_nccl_memory)2, "2");
    REFUSE_TUNING(nccl_zero_cta, 2, "2");
    REFUSE_TUNING(nccl_min_ctas, 65, "65");
    REFUSE_TUNING(nccl_max_ctas, 65, "65");
    REFUSE_TUNING(nccl_traffic_class, 256, "256");
}

TEST(dtypes_that_a_role_cannot_have)
{
    REFUSE(grad_dtype, ZERO_DTYPE_NONE,
           "options.grad_dtype 4 is not one of default, f32, bf16, f16");
    REFUSE_TUNING(wire_dtype, ZERO_DTYPE_NONE,
                  "tuning.wire_dtype 4 is not one of default, f32, bf16, f16, int8");
    REFUSE_TUNING(wire_dtype, ZERO_DTYPE_INT4_BLOCK, "tuning.wire_dtype 12 is not one of default");
    REFUSE_TUNING(host_wire_dtype, ZERO_DTYPE_BF16,
                  "tuning.host_wire_dtype 2 is not one of default, int8, int4");
    REFUSE_TUNING(accum_dtype, ZERO_DTYPE_F16, "3 is not one of default, f32, bf16");
    REFUSE_TUNING(accum_dtype, ZERO_DTYPE_NONE, "4 is not");
    REFUSE(master_dtype, ZERO_DTYPE_BF16, "2 is not one of default, f32, none");
    REFUSE(master_dtype, ZERO_DTYPE_F16, "3 is not");
    REFUSE(moment_dtype, ZERO_DTYPE_F16, "3 is not");
    REFUSE(moment_dtype, ZERO_DTYPE_NONE, "4 is not");
    REFUSE(grad_dtype, (zero_dtype)17, "17");
    REFUSE(moment_dtype, (zero_dtype)-2, "-2");
}

/* NCCL and MPI add no codes up, and only sums of hosts go in a type of their own. */
TEST(packed_gradients_that_nobody_adds)
{
    zero_tuning tuning = zero_tuning_init();
    zero_engine_options o = zero_engine_options_init();
    o.tuning = &tuning;
    tuning.wire_dtype = ZERO_DTYPE_INT8_BLOCK;
    tuning.reduction = ZERO_REDUCTION_NATIVE;
    refuse(&o, "wire_dtype", "is int8, and with ZERO_REDUCTION_NATIVE");
    tuning.wire_dtype = ZERO_DTYPE_DEFAULT;
    tuning.host_wire_dtype = ZERO_DTYPE_INT4_BLOCK;
    refuse(&o, "host_wire_dtype", "is int4, and with tuning.reduction 2");
    tuning.reduction = ZERO_REDUCTION_EXACT;
    refuse(&o, "host_wire_dtype", "is int4, and with tuning.reduction 1");
}

static void update_nothing(void *user, const zero_update_range *range)
{
    (void)user;
    (void)range;
}

TEST(optimizers_half_described)
{
    zero_engine_options none = zero_engine_options_init();
    none.group_optimizer[63] = (zero_optimizer)7;
    refuse(&none, "group_optimizer", "group 63 is 7, not a zero_optimizer");
    none.group_optimizer[63] = ZERO_OPTIMIZER_CALLBACK;
    refuse(&none, "update", "ZERO_OPTIMIZER_CALLBACK needs it");
    zero_engine_options o = zero_engine_options_init();
    o.optimizer = ZERO_OPTIMIZER_CALLBACK;
    refuse(&o, "update", "ZERO_OPTIMIZER_CALLBACK");
    REFUSE(update, update_nothing, "ZERO_OPTIMIZER_CALLBACK");
    REFUSE(update_states, 1, "ZERO_OPTIMIZER_CALLBACK");
}

/* A plan of the run for so many ranks is refused. */
static void refuse_plan(const toy_run *run, uint32_t ranks, const char *text)
{
    zero_plan *plan = NULL;
    CHECK_FAILS(zero_plan_create(run->model->model, TOY_OPTIONS(run), ranks, &plan),
                ZERO_ERR_INVALID_ARGUMENT, text);
}

TEST(groups_that_the_stage_does_not_split)
{
    const toy_run plain = toy_run_mixed(ZERO_DTYPE_F32);
    toy_run run = plain;
    run.options.stage = ZERO_STAGE_0;
    run.options.shard_group = 2;
    refuse_plan(&run, 4, "shard_group 2");
    run = plain;
    run.options.stage = ZERO_STAGE_1;
    run.tuning.grad_group = 2;
    refuse_plan(&run, 4, "grad_group 2");
}

/* Whatever is asked of NCCL where there is no work for it. */
TEST(nccl_where_it_has_nothing_to_do)
{
    for (int device = ZERO_DEVICE_CPU; device <= ZERO_DEVICE_CUDA; device++) {
        zero_engine_options o = zero_engine_options_init();
        zero_tuning t = zero_tuning_init();
        o.tuning = &t;
        o.device = (zero_device)device;
        t.nccl_memory = ZERO_NCCL_MEMORY_REGISTERED;
        refuse(&o, "nccl_memory is 1", "ZERO_NCCL_MEMORY_NONE");
        t.nccl_memory = ZERO_NCCL_MEMORY_NONE;
        t.nccl_zero_cta = 1;
        refuse(&o, "nccl_zero_cta is 1", "ZERO_NCCL_MEMORY_REGISTERED");
        t.nccl_zero_cta = 0;
        t.nccl_net_name = "Socket";
        refuse(&o, "nccl_net_name is given", "NCCL");
    }
    static const zero_transport others[] = {ZERO_TRANSPORT_HOST, ZERO_TRANSPORT_PEER};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        zero_engine_options o = zero_engine_options_init();
        zero_tuning t = zero_tuning_init();
        o.tuning = &t;
        o.device = ZERO_DEVICE_CUDA;
        t.transport = others[i];
        t.nccl_memory = ZERO_NCCL_MEMORY_REGISTERED;
        refuse(&o, "nccl_memory is 1", "over NCCL");
    }
}

static zero_status read_path(toy_trainer *trainer)
{
    for (int traffic = ZERO_TRAFFIC_GATHER; traffic <= ZERO_TRAFFIC_REDUCE; traffic++) {
        const zero_path path = engine_path(trainer->engine, (zero_traffic)traffic);
        if (trainer->ranks == 1) {
            CHECK_EQ(path.carrier, ZERO_CARRIER_NONE);
            CHECK_EQ(strcmp(path.text, "none (one rank)"), 0);
        } else if (toy_device() == ZERO_DEVICE_CUDA) {
            CHECK_EQ(path.carrier, ZERO_CARRIER_PEER);
            CHECK_EQ(strcmp(path.text, "peer copies"), 0);
        } else {
            CHECK_EQ(path.carrier, ZERO_CARRIER_HOST);
            CHECK_EQ(strcmp(path.text, "host memory"), 0);
        }
        CHECK_EQ(path.nccl_version, 0);
    }
    return ZERO_OK;
}

TEST(what_carries_ranks_that_are_threads)
{
    const toy_run run = toy_run_mixed(ZERO_DTYPE_F32);
    CHECK_OK(toy_on_ranks(1, &run, read_path, NULL));
    CHECK_OK(toy_on_ranks(3, &run, read_path, NULL));
}

/* ---- descriptions ---- */

static zero_tensor_desc plain_desc(const char *name)
{
    return (zero_tensor_desc){.name = name, .dims = 2, .shape = {3, 5}};
}

#define REFUSE_TENSOR(change, text)                                                              \
    do {                                                                                         \
        zero_tensor_desc desc = plain_desc("weight");                                            \
        uint32_t tensor = 77;                                                                    \
        change;                                                                                  \
        CHECK_FAILS(zero_tensor_add(model, 0, &desc, &tensor), ZERO_ERR_INVALID_ARGUMENT, text); \
        CHECK_EQ(tensor, 77);                                                                    \
        CHECK_EQ(zero_model_tensor_count(model), 1);                                             \
    } while (0)

TEST(tensors_that_make_no_sense)
{
    zero_model *model = NULL;
    uint32_t index = 0;
    zero_tensor_desc first = plain_desc("first");
    CHECK_OK(zero_model_create(&model));
    CHECK_FAILS(zero_tensor_add(model, 0, &first, &index), ZERO_ERR_INVALID_ARGUMENT, "unit");
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "layer"}, &index, NULL));
    CHECK_OK(zero_tensor_add(model, 0, &first, &index));
    CHECK_FAILS(zero_tensor_add(model, 1, &first, &index), ZERO_ERR_INVALID_ARGUMENT, "1");
    REFUSE_TENSOR(desc.name = NULL, "name");
    REFUSE_TENSOR(desc.name = "", "name");
    REFUSE_TENSOR(desc.name = "first", "first");
    REFUSE_TENSOR(desc.dims = 9, "9");
    REFUSE_TENSOR(desc.dtype = ZERO_DTYPE_NONE, "dtype");
    REFUSE_TENSOR(desc.dtype = (zero_dtype)12, "12");
    REFUSE_TENSOR(desc.flags = 4, "4");
    zero_tensor_desc newer = plain_desc("weight");
    newer.reserved[7] = 1;
    CHECK_FAILS(zero_tensor_add(model, 0, &newer, &index), ZERO_ERR_INVALID_ARGUMENT,
                "reserved is not 0");
    REFUSE_TENSOR(desc.group = 64, "64");
    REFUSE_TENSOR(desc.shape[0] = UINT64_MAX, "18446744073709551615");
    REFUSE_TENSOR(desc.shape[0] = UINT64_C(1) << 46, "2^46");
    REFUSE_TENSOR(desc.shape[0] = desc.shape[1] = UINT64_C(1) << 32, "2^46");
    char name[200];
    memset(name, 'n', sizeof name);
    name[128] = 0;
    REFUSE_TENSOR(desc.name = name, "name");
    name[127] = 0;
    zero_tensor_desc longest = plain_desc(name);
    CHECK_OK(zero_tensor_add(model, 0, &longest, &index));
    CHECK_EQ(strcmp(zero_model_tensor_name(model, 1), name), 0);
    /* No elements, though other extents alone would overflow. */
    zero_tensor_desc empty = plain_desc("empty");
    empty.dims = 3;
    empty.shape[0] = empty.shape[1] = UINT64_MAX;
    CHECK_OK(zero_tensor_add(model, 0, &empty, &index));
    CHECK_EQ(zero_model_tensor_count_of(model, index), 0);
    zero_model_destroy(model);
}

TEST(a_model_has_at_most_2_to_the_50_elements)
{
    zero_model *model = NULL;
    uint32_t index = 0;
    char name[16];
    zero_tensor_desc desc = plain_desc(name);
    CHECK_OK(zero_model_create(&model));
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "layer"}, &index, NULL));
    desc.dims = 1;
    desc.shape[0] = UINT64_C(1) << 46;
    desc.shape[1] = 0;
    for (int i = 0; i < 16; i++) {
        (void)snprintf(name, sizeof name, "tensor %d", i);
        CHECK_OK(zero_tensor_add(model, 0, &desc, &index));
    }
    CHECK_EQ(zero_model_element_count(model), UINT64_C(1) << 50);
    (void)snprintf(name, sizeof name, "last");
    desc.shape[0] = 1;
    CHECK_FAILS(zero_tensor_add(model, 0, &desc, &index), ZERO_ERR_INVALID_ARGUMENT, "2^50");
    desc.shape[0] = 0;
    CHECK_OK(zero_tensor_add(model, 0, &desc, &index));
    zero_model_destroy(model);
}

TEST(units_and_ties_that_make_no_sense)
{
    zero_model *model = NULL;
    uint32_t index = 0;
    uint32_t tensor = 0;
    zero_tensor_desc desc = plain_desc("table");
    CHECK_OK(zero_model_create(&model));
    CHECK_FAILS(zero_model_create(NULL), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_unit_add(model, &(zero_unit_desc){.name = NULL}, &index, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "name");
    CHECK_FAILS(zero_unit_add(model, &(zero_unit_desc){.name = ""}, &index, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "name");
    CHECK_FAILS(zero_unit_add(NULL, &(zero_unit_desc){.name = "layer"}, &index, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "embed"}, &index, NULL));
    CHECK_FAILS(zero_unit_add(model, &(zero_unit_desc){.name = "embed"}, &index, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "embed");
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "head"}, &index, NULL));
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "other"}, &index, NULL));
    CHECK_OK(zero_tensor_add(model, 0, &desc, &tensor));
    CHECK_FAILS(zero_tensor_add(model, 0, NULL, &tensor), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_tensor_add(NULL, 0, &desc, &tensor), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_tensor_tie(model, 0, 0), ZERO_ERR_INVALID_ARGUMENT, "table");
    CHECK_FAILS(zero_tensor_tie(model, 1, 5), ZERO_ERR_INVALID_ARGUMENT, "5");
    CHECK_FAILS(zero_tensor_tie(model, 9, 0), ZERO_ERR_INVALID_ARGUMENT, "9");
    CHECK_OK(zero_tensor_tie(model, 1, 0));
    CHECK_OK(zero_tensor_tie(model, 1, 0)); /* once more changes nothing */
    desc.name = "bias";
    CHECK_OK(zero_tensor_add(model, 1, &desc, &tensor));
    CHECK_FAILS(zero_tensor_tie(model, 2, tensor), ZERO_ERR_INVALID_ARGUMENT, "head");
    CHECK(zero_model_tensor_name(model, 99) == NULL);
    CHECK_EQ(zero_model_tensor_count_of(model, 99), 0);
    CHECK_EQ(zero_model_unit_count(model), 3);
    CHECK_EQ(zero_model_tensor_count(model), 2);
    CHECK_EQ(zero_model_element_count(model), 30);
    zero_model_destroy(model);
}

/* ---- hyper-parameters ---- */

static zero_status absurd_params(toy_trainer *trainer)
{
    zero_hyper groups[65];
    TOY_TRY(toy_micro(trainer, true));
    for (int i = 0; i < 65; i++) {
        groups[i] = zero_step_params_init().hyper;
    }
    REFUSE_PARAMS(params.hyper.adamw.lr = -1, "lr");
    REFUSE_PARAMS(params.hyper.adamw.lr = NAN, "lr");
    REFUSE_PARAMS(params.hyper.adamw.lr = INFINITY, "lr");
    REFUSE_PARAMS(params.hyper.adamw.beta1 = 1, "beta1");
    REFUSE_PARAMS(params.hyper.adamw.beta1 = -0.1f, "beta1");
    REFUSE_PARAMS(params.hyper.adamw.beta2 = 1, "beta2");
    REFUSE_PARAMS(params.hyper.adamw.beta2 = NAN, "beta2");
    REFUSE_PARAMS(params.hyper.adamw.eps = 0, "eps");
    REFUSE_PARAMS(params.hyper.adamw.eps = NAN, "eps");
    REFUSE_PARAMS(params.hyper.adamw.weight_decay = -0.01f, "weight_decay");
    REFUSE_PARAMS(params.max_norm = -1, "max_norm");
    REFUSE_PARAMS(params.max_norm = NAN, "max_norm");
    REFUSE_PARAMS(params.group_count = 3, "group");
    REFUSE_PARAMS((params.groups = groups, params.group_count = 65), "65");
    REFUSE_PARAMS(params.struct_bytes = 0, "struct_bytes");
    REFUSE_PARAMS(params.hyper.kind = ZERO_OPTIMIZER_CALLBACK,
                  "kind 2 (callback) is not the group's");
    REFUSE_PARAMS(params.hyper.kind = (zero_optimizer)9, "kind 9 (none)");
    REFUSE_PARAMS(params.hyper = zero_hyper_init(ZERO_OPTIMIZER_LION),
                  "group 0: kind 3 (lion) is not the group's optimizer, which is 1 (adamw)");
    zero_step_params newer = zero_step_params_init();
    newer.hyper.reserved0 = 7;
    CHECK_FAILS(zero_step(trainer->engine, &newer, toy_stream()), ZERO_ERR_UNSUPPORTED,
                "reserved0 is 7");
    groups[2].adamw.lr = -5;
    REFUSE_PARAMS((params.groups = groups, params.group_count = 3), "group 2: lr");
    /* None of these took the step. */
    TOY_TRY(toy_update(trainer));
    TOY_TRY(toy_wait(trainer));
    CHECK_EQ(trainer->result.step, 1);
    CHECK_EQ(trainer->result.updates, 1);
    return toy_step(trainer);
}

TEST(hyper_parameters_out_of_bounds)
{
    const toy_run run = toy_run_mixed(ZERO_DTYPE_F32);
    CHECK_OK(toy_on_ranks(2, &run, absurd_params, NULL));
}

/* Parameters of zero_step may come from an older, shorter struct, or be left out. */
static zero_status short_params(toy_trainer *trainer)
{
    TOY_TRY(toy_micro(trainer, true));
    zero_step_params params = zero_step_params_init();
    params.max_norm = 1e-3f;
    params.struct_bytes = offsetof(zero_step_params, max_norm);
    TOY_TRY(zero_step(trainer->engine, &params, toy_stream()));
    TOY_TRY(toy_wait(trainer));
    CHECK_SAME(trainer->result.clip, 1.0);
    return ZERO_OK;
}

TEST(older_hyper_parameters)
{
    const toy_run run = toy_run_mixed(ZERO_DTYPE_F32);
    CHECK_OK(toy_on_ranks(1, &run, short_params, NULL));
}

TEST(updaters_that_will_not_do)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    run.tuning.updater = (zero_updater)4;
    refuse_plan(&run, 1, "updater 4 is not one of");
    run.options.device = ZERO_DEVICE_CPU;
    run.tuning.updater = ZERO_UPDATER_BOTH;
    refuse_plan(&run, 1, "updater is 3 and options.device 1");
    run.options.device = ZERO_DEVICE_CUDA;
    run.options.tier[ZERO_ROLE_MOMENT2] = ZERO_TIER_DISK;
    refuse_plan(&run, 1, "on disk is updated by the CPU");
}
