/* Every exported function is given NULL for each of its pointers in turn: it returns
 * INVALID_ARGUMENT, or does what its header says of NULL. A symbol that the library exports and the
 * table lacks is a failure, so a new function comes with a row. */
#include "../folders.h"
#include "zero/planner.h"
#include "zero/zero.h"

/* There only if it is built; its own pointer is a handle of NCCL. */
extern zero_status zero_world_create_nccl(void *comm, uint32_t deadline_ms, zero_world **world)
    __attribute__((weak));

/* The arguments that rows are given: all of them are good. */
typedef struct rig {
    zero_world *world;
    zero_model *model;
    zero_plan *plan;
    zero_engine *engine; /* with state on disk, and steps that may be predicted */
} rig;

#define REFUSES(call) CHECK_FAILS(call, ZERO_ERR_INVALID_ARGUMENT, "NULL")

static const zero_stream host = {NULL};

static void on_world_create(const rig *r)
{
    zero_world *world = r->world;
    REFUSES(zero_world_create_self(NULL));
    REFUSES(zero_world_run(1, 0, NULL, NULL));
    REFUSES(zero_world_create_launched(0, NULL));
    REFUSES(zero_world_create_mpi_fortran(0, 0, NULL));
    if (zero_world_create_nccl != NULL) {
        REFUSES(zero_world_create_nccl(&world, 0, NULL));
        REFUSES(zero_world_create_nccl(NULL, 0, &world));
        CHECK(world == NULL);
    }
}

static void on_world(const rig *r)
{
    double mean = 0.0;
    uint32_t value = 7;
    (void)zero_world_is_launched();
    zero_world_destroy(NULL);
    CHECK_EQ(zero_world_rank(NULL), 0);
    CHECK_EQ(zero_world_size(NULL), 0);
    CHECK_EQ(zero_world_local_size(NULL), 0);
    CHECK(zero_world_cpus(NULL) >= 1);
    CHECK(strcmp(zero_world_backend(NULL), "none") == 0);
    REFUSES(zero_world_barrier(NULL));
    REFUSES(zero_world_gather(NULL, &value, &value, 4));
    REFUSES(zero_world_mean(NULL, 1.0, &mean));
    REFUSES(zero_world_mean(r->world, 1.0, NULL));
    REFUSES(zero_world_gather(r->world, NULL, &value, 4));
    REFUSES(zero_world_gather(r->world, &value, NULL, 4));
    CHECK_OK(zero_world_gather(r->world, NULL, NULL, 0));
    CHECK_EQ(value, 7);
    zero_world_abort(NULL);
}

static void on_model_add(const rig *r)
{
    uint32_t unit = 0;
    uint32_t tensor = 0;
    zero_tensor_desc desc = {.name = "name", .shape = {3}, .dims = 1};
    const uint32_t units = zero_model_unit_count(r->model);
    REFUSES(zero_model_create(NULL));
    zero_model_destroy(NULL);
    REFUSES(zero_unit_add(NULL, &(zero_unit_desc){.name = "name"}, &unit, NULL));
    CHECK_FAILS(zero_unit_add(r->model, &(zero_unit_desc){.name = NULL}, &unit, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "name");
    REFUSES(zero_unit_add(r->model, NULL, &unit, &tensor));
    REFUSES(zero_tensor_add(NULL, 0, &desc, &tensor));
    REFUSES(zero_tensor_add(r->model, 0, NULL, &tensor));
    REFUSES(zero_tensor_add(r->model, 0, &desc, NULL));
    desc.name = NULL;
    CHECK_FAILS(zero_tensor_add(r->model, 0, &desc, &tensor), ZERO_ERR_INVALID_ARGUMENT, "name");
    REFUSES(
        zero_unit_add(r->model, &(zero_unit_desc){.name = "name", .tensor_count = 1}, NULL, NULL));
    REFUSES(zero_unit_add(
        r->model, &(zero_unit_desc){.name = "name", .layers = 1, .tensor_count = 1}, NULL, NULL));
    CHECK_FAILS(zero_unit_add(r->model, &(zero_unit_desc){.layers = 1}, NULL, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "name");
    CHECK_EQ(zero_model_unit_count(r->model), units);
    REFUSES(zero_tensor_tie(NULL, 0, 0));
}

static void on_model_reads(const rig *r)
{
    zero_tensor_desc desc;
    REFUSES(zero_model_tensor_desc(NULL, 0, &desc));
    REFUSES(zero_model_tensor_desc(r->model, 0, NULL));
    CHECK_EQ(zero_model_unit_count(NULL), 0);
    CHECK_EQ(zero_model_tensor_count(NULL), 0);
    CHECK_EQ(zero_model_element_count(NULL), 0);
    CHECK(zero_model_tensor_name(NULL, 0) == NULL);
    CHECK_EQ(zero_model_tensor_count_of(NULL, 0), 0);
}

static void on_tensor_array(const rig *r)
{
    float values[1024];
    const zero_array array = {.data = values};
    REFUSES(zero_engine_fill(NULL, NULL, NULL));
    REFUSES(zero_engine_fill(r->engine, NULL, NULL));
    REFUSES(zero_tensor_export(NULL, 0, ZERO_ROLE_PARAM, &array));
    CHECK_OK(zero_tensor_export(r->engine, 0, ZERO_ROLE_PARAM, NULL));
    REFUSES(zero_tensor_import(NULL, 0, ZERO_ROLE_PARAM, &array));
    REFUSES(zero_tensor_import(r->engine, 0, ZERO_ROLE_PARAM, NULL));
}

static void on_transformer(const rig *r)
{
    (void)r;
    zero_transformer t = zero_transformer_init();
    zero_model *model = NULL;
    uint64_t count = 0;
    REFUSES(zero_transformer_preset(NULL, &t));
    REFUSES(zero_transformer_preset("gpt2", NULL));
    REFUSES(zero_transformer_read(NULL, &t));
    CHECK(zero_transformer_read("nowhere", NULL) != ZERO_OK);
    REFUSES(zero_transformer_check(NULL));
    REFUSES(zero_transformer_model(NULL, &model));
    REFUSES(zero_transformer_parameters(NULL, &count, &count));
    CHECK_OK(zero_transformer_preset("gpt2", &t));
    REFUSES(zero_transformer_model(&t, NULL));
    REFUSES(zero_transformer_experts(&t, NULL));
    REFUSES(zero_transformer_experts(NULL, &model));
    CHECK(zero_transformer_part_name(0) == NULL);
    CHECK_OK(zero_transformer_parameters(&t, NULL, NULL));
    CHECK(zero_transformer_preset_name(UINT32_MAX) == NULL);
}

static void on_cluster(const rig *r)
{
    (void)r;
    zero_cluster c = zero_cluster_init();
    REFUSES(zero_cluster_preset(NULL, &c));
    REFUSES(zero_cluster_preset("dgx-h100", NULL));
    REFUSES(zero_cluster_read(NULL, &c));
    CHECK(zero_cluster_read("nowhere", NULL) != ZERO_OK);
    REFUSES(zero_cluster_check(NULL));
    CHECK(zero_cluster_preset_name(UINT32_MAX) == NULL);
    CHECK(zero_cluster_field_at(UINT32_MAX) == NULL);
}

static void on_footprint(const rig *r)
{
    (void)r;
    zero_transformer t = zero_transformer_init();
    zero_cluster c = zero_cluster_init();
    zero_footprint f = zero_footprint_init();
    uint64_t count = 0;
    CHECK_OK(zero_transformer_preset("gpt2", &t));
    CHECK_OK(zero_cluster_preset("workstation", &c));
    REFUSES(zero_activation_bytes(NULL, NULL, &count));
    REFUSES(zero_activation_bytes(&t, NULL, NULL));
    REFUSES(zero_footprint_of(NULL, &c, NULL, NULL, &f));
    REFUSES(zero_footprint_of(&t, NULL, NULL, NULL, &f));
    REFUSES(zero_footprint_of(&t, &c, NULL, NULL, NULL));
    CHECK_OK(zero_footprint_of(&t, &c, NULL, NULL, &f));
    REFUSES(zero_footprint_layers(NULL, &c, NULL, NULL, &count));
    REFUSES(zero_footprint_layers(&t, NULL, NULL, NULL, &count));
    REFUSES(zero_footprint_layers(&t, &c, NULL, NULL, NULL));
    CHECK_EQ(zero_footprint_fits(NULL), 0);
}

static void on_estimate(const rig *r)
{
    (void)r;
    zero_transformer t = zero_transformer_init();
    zero_cluster c = zero_cluster_init();
    zero_estimate e = zero_estimate_init();
    CHECK_OK(zero_transformer_preset("gpt2", &t));
    CHECK_OK(zero_cluster_preset("workstation", &c));
    REFUSES(zero_estimate_of(NULL, &c, NULL, NULL, &e));
    REFUSES(zero_estimate_of(&t, NULL, NULL, NULL, &e));
    REFUSES(zero_estimate_of(&t, &c, NULL, NULL, NULL));
    CHECK_OK(zero_estimate_of(&t, &c, NULL, NULL, &e));
    CHECK(zero_estimate_term_name((zero_estimate_term)UINT32_MAX) == NULL);
}

static void on_search(const rig *r)
{
    (void)r;
    zero_search *search = NULL;
    const zero_search_request request = zero_search_request_init();
    REFUSES(zero_search_create(NULL, &search));
    REFUSES(zero_search_create(&request, &search));
    REFUSES(zero_search_create(&request, NULL));
    zero_search_destroy(NULL);
    CHECK(zero_search_plan_at(NULL, 0) == NULL);
    CHECK(zero_search_format_at(NULL, 0, 0) == NULL);
    CHECK(zero_search_nearest(NULL) == NULL);
}

static void on_run(const rig *r)
{
    (void)r;
    zero_transformer t = zero_transformer_init();
    zero_cluster c = zero_cluster_init();
    zero_run run = zero_run_init();
    zero_run_cost cost = zero_run_cost_init();
    CHECK_OK(zero_transformer_preset("gpt2", &t));
    CHECK_OK(zero_cluster_preset("workstation", &c));
    run.tokens = 1e9;
    REFUSES(zero_run_cost_of(NULL, &t, &c, NULL, NULL, &cost));
    REFUSES(zero_run_cost_of(&run, NULL, &c, NULL, NULL, &cost));
    REFUSES(zero_run_cost_of(&run, &t, NULL, NULL, NULL, &cost));
    REFUSES(zero_run_cost_of(&run, &t, &c, NULL, NULL, NULL));
    CHECK_OK(zero_run_cost_of(&run, &t, &c, NULL, NULL, &cost));
}

static void on_sim(const rig *r)
{
    (void)r;
    zero_transformer t = zero_transformer_init();
    zero_cluster c = zero_cluster_init();
    zero_sim_report report = zero_sim_report_init();
    CHECK_OK(zero_transformer_preset("gpt2", &t));
    CHECK_OK(zero_cluster_preset("workstation", &c));
    REFUSES(zero_sim_run(NULL, &c, NULL, NULL, NULL, &report));
    REFUSES(zero_sim_run(&t, NULL, NULL, NULL, NULL, &report));
    REFUSES(zero_sim_run(&t, &c, NULL, NULL, NULL, NULL));
    CHECK_OK(zero_sim_run(&t, &c, NULL, NULL, NULL, &report));
}

static void on_plan_create(const rig *r)
{
    zero_plan *plan = NULL;
    const zero_engine_options options = zero_engine_options_init();
    REFUSES(zero_plan_create(NULL, &options, 1, &plan));
    REFUSES(zero_plan_create(r->model, &options, 1, NULL));
    CHECK_OK(zero_plan_create(r->model, NULL, 1, &plan));
    zero_plan_destroy(plan);
    zero_plan_destroy(NULL);
}

static void on_plan_reads(const rig *r)
{
    char text[8] = "before";
    zero_memory memory = zero_memory_init();
    zero_sharding sharding = zero_sharding_init();
    zero_engine_options options = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    REFUSES(zero_plan_memory(NULL, &memory));
    REFUSES(zero_plan_memory(r->plan, NULL));
    REFUSES(zero_plan_sharding(NULL, &sharding));
    REFUSES(zero_plan_sharding(r->plan, NULL));
    REFUSES(zero_plan_options(NULL, &options));
    REFUSES(zero_plan_options(r->plan, NULL));
    REFUSES(zero_plan_tuning(NULL, &tuning));
    REFUSES(zero_plan_tuning(r->plan, NULL));
    CHECK_EQ(zero_plan_hash(NULL), 0);
    CHECK_EQ(zero_plan_print(NULL, text, sizeof text), 0);
    CHECK_EQ(text[0], 0);
    CHECK_EQ(zero_plan_print(NULL, NULL, 0), 0);
    (void)strcpy(text, "before");
    CHECK_EQ(zero_plan_print_options(NULL, text, sizeof text), 0);
    CHECK_EQ(text[0], 0);
    CHECK_EQ(zero_plan_print_options(NULL, NULL, 0), 0);
    CHECK_EQ(zero_plan_print_options(r->plan, NULL, 100),
             zero_plan_print_options(r->plan, NULL, 0));
    CHECK_EQ(zero_plan_print(r->plan, NULL, 100), zero_plan_print(r->plan, NULL, 0));
}

static void on_engine_create(const rig *r)
{
    zero_engine *engine = r->engine;
    REFUSES(zero_engine_create(NULL, r->model, NULL, &engine));
    CHECK(engine == NULL);
    REFUSES(zero_engine_create(r->world, NULL, NULL, &engine));
    REFUSES(zero_engine_create(r->world, r->model, NULL, NULL));
    CHECK_OK(zero_engine_create(r->world, r->model, NULL, &engine));
    zero_engine_destroy(engine);
    zero_engine_destroy(NULL);
}

static void on_engine_reads(const rig *r)
{
    zero_stats stats = zero_stats_init();
    zero_memory memory = zero_memory_init();
    zero_path path = zero_path_init();
    zero_disk_path disk = zero_disk_path_init();
    CHECK(zero_engine_plan(NULL) == NULL);
    REFUSES(zero_engine_stats(NULL, &stats));
    REFUSES(zero_engine_stats(r->engine, NULL));
    REFUSES(zero_engine_trace(NULL, "trace.json"));
    REFUSES(zero_engine_trace(r->engine, NULL));
    REFUSES(zero_engine_collectives_write(NULL, "collectives.json"));
    REFUSES(zero_engine_collectives_write(r->engine, NULL));
    REFUSES(zero_engine_memory(NULL, &memory));
    REFUSES(zero_engine_memory(r->engine, NULL));
    REFUSES(zero_engine_path(NULL, ZERO_TRAFFIC_GATHER, &path));
    REFUSES(zero_engine_path(r->engine, ZERO_TRAFFIC_GATHER, NULL));
    REFUSES(zero_engine_disk_path(NULL, &disk));
    REFUSES(zero_engine_disk_path(r->engine, NULL));
}

static void on_hooks(const rig *r)
{
    zero_pass pass = ZERO_PASS_NONE;
    zero_view view;
    zero_encoded encoded;
    REFUSES(zero_micro_begin(NULL, ZERO_MICRO_LAST));
    REFUSES(zero_micro_end(NULL));
    REFUSES(zero_micro_abandon(NULL, zero_stream_host()));
    REFUSES(zero_unit_acquire(NULL, 0, ZERO_PASS_EVAL, host, NULL));
    REFUSES(zero_unit_release(NULL, 0, host));
    REFUSES(zero_unit_params_acquire(NULL, 0, ZERO_PASS_EVAL, host));
    REFUSES(zero_unit_params_release(NULL, 0, host));
    REFUSES(zero_unit_grads_acquire(NULL, 0, host));
    REFUSES(zero_unit_grads_ready(NULL, 0, host));
    REFUSES(zero_unit_pass(NULL, 0, &pass));
    REFUSES(zero_unit_pass(r->engine, 0, NULL));
    REFUSES(zero_tensor_data(NULL, 0, &view));
    REFUSES(zero_tensor_data(r->engine, 0, NULL));
    REFUSES(zero_tensor_encoded(NULL, 0, &encoded));
    REFUSES(zero_tensor_encoded(r->engine, 0, NULL));
    REFUSES(zero_tensor_grad(NULL, 0, &view));
    REFUSES(zero_tensor_grad(r->engine, 0, NULL));
}

static void on_step_state(const rig *r)
{
    double norm = 0;
    zero_step_state state = zero_step_state_init();
    REFUSES(zero_grad_norm(NULL, NULL, zero_stream_host(), &norm));
    REFUSES(zero_grad_norm(r->engine, NULL, zero_stream_host(), NULL));
    REFUSES(zero_step_discard(NULL));
    REFUSES(zero_step_state_get(NULL, &state));
    REFUSES(zero_step_state_get(r->engine, NULL));
    REFUSES(zero_step_state_set(NULL, &state));
    REFUSES(zero_step_state_set(r->engine, NULL));
}

static void on_step(const rig *r)
{
    zero_step_result result = zero_step_result_init();
    float scale = 0;
    REFUSES(zero_step_predict(NULL, NULL));
    CHECK_OK(zero_step_predict(r->engine, NULL));
    REFUSES(zero_step(NULL, NULL, host));
    CHECK_OK(zero_micro_begin(r->engine, ZERO_MICRO_LAST));
    CHECK_OK(zero_micro_end(r->engine));
    CHECK_OK(zero_step(r->engine, NULL, host));
    REFUSES(zero_step_wait(NULL, &result));
    REFUSES(zero_step_wait(r->engine, NULL));
    REFUSES(zero_loss_scale(NULL, &scale));
    REFUSES(zero_loss_scale(r->engine, NULL));
}

/* Not on the CPU, where these are refused whatever else they are given. */
static void on_capture(const rig *r)
{
    zero_step_result result = zero_step_result_init();
    REFUSES(zero_capture_prepare(NULL));
    REFUSES(zero_capture_begin(NULL, host));
    REFUSES(zero_capture_end(NULL, host));
    REFUSES(zero_replay_begin(NULL, host));
    REFUSES(zero_replay_params(NULL, host, NULL));
    REFUSES(zero_replay_result(NULL, host, &result));
    REFUSES(zero_replay_end(NULL, host));
    CHECK(zero_replay_params(r->engine, host, NULL) != ZERO_OK);
    CHECK(zero_replay_result(r->engine, host, NULL) != ZERO_OK);
}

static void on_shard(const rig *r)
{
    zero_shard shard;
    zero_view view;
    uint64_t first = 0;
    float value = 0;
    const zero_role role = ZERO_ROLE_PARAM;
    REFUSES(zero_shard_range(NULL, 0, role, &shard));
    REFUSES(zero_shard_range(r->engine, 0, role, NULL));
    REFUSES(zero_shard_view(NULL, 0, role, &first, &view));
    REFUSES(zero_shard_view(r->engine, 0, role, NULL, &view));
    REFUSES(zero_shard_view(r->engine, 0, role, &first, NULL));
    REFUSES(zero_shard_read(NULL, 0, role, 0, 1, &value));
    REFUSES(zero_shard_read(r->engine, 0, role, 0, 1, NULL));
    REFUSES(zero_shard_write(NULL, 0, role, 0, 1, &value));
    REFUSES(zero_shard_write(r->engine, 0, role, 0, 1, NULL));
}

static void on_save(const rig *r)
{
    zero_save_options options = zero_save_options_init();
    zero_save_progress progress = zero_save_progress_init();
    REFUSES(zero_save_begin(r->engine, NULL));
    REFUSES(zero_save_begin(NULL, &options));
    REFUSES(zero_save(NULL, &options));
    REFUSES(zero_save(r->engine, &options)); /* its directory */
    REFUSES(zero_save_poll(NULL, &progress));
    REFUSES(zero_save_poll(r->engine, NULL));
    REFUSES(zero_save_end(NULL));
    CHECK_OK(zero_save_end(r->engine));
    options.directory = rig_paths[0];
    options.user.bytes_count = 1;
    REFUSES(zero_save(r->engine, &options)); /* user.bytes */
}

static void on_load(const rig *r)
{
    zero_load_options options = zero_load_options_init();
    zero_load_report report = zero_load_report_init();
    REFUSES(zero_load(NULL, &options, &report));
    REFUSES(zero_load(r->engine, NULL, &report));
    REFUSES(zero_load(r->engine, &options, NULL)); /* its path */
}

static void on_evict(const rig *r)
{
    (void)r;
    REFUSES(zero_engine_evict(NULL, ZERO_EVICT_ALL, ZERO_TIER_DISK));
    REFUSES(zero_engine_restore(NULL));
}

static void on_stats_bound(const rig *r)
{
    zero_stats stats = zero_stats_init();
    CHECK_OK(zero_engine_stats(r->engine, &stats));
    zero_bottleneck_report report = zero_bottleneck_report_init();
    REFUSES(zero_stats_bottleneck(NULL, &stats, &report));
    REFUSES(zero_stats_bottleneck(&stats, NULL, &report));
    REFUSES(zero_stats_bottleneck(&stats, &stats, NULL));
}

/* A struct that is given is filled, as far as its size says. */
static void on_init_sized(const rig *r)
{
    (void)r;
    zero_bottleneck_report_init_sized(NULL, sizeof(zero_bottleneck_report));
    zero_disk_path_init_sized(NULL, sizeof(zero_disk_path));
    zero_engine_options_init_sized(NULL, sizeof(zero_engine_options));
    zero_memory_init_sized(NULL, sizeof(zero_memory));
    zero_path_init_sized(NULL, sizeof(zero_path));
    zero_sharding_init_sized(NULL, sizeof(zero_sharding));
    zero_stats_init_sized(NULL, sizeof(zero_stats));
    zero_hyper_set_defaults(NULL, ZERO_OPTIMIZER_LION);
    zero_step_params_init_sized(NULL, sizeof(zero_step_params));
    zero_step_result_init_sized(NULL, sizeof(zero_step_result));
    zero_step_state_init_sized(NULL, sizeof(zero_step_state));
    zero_batch_init_sized(NULL, sizeof(zero_batch));
    zero_cluster_init_sized(NULL, sizeof(zero_cluster));
    zero_estimate_init_sized(NULL, sizeof(zero_estimate));
    zero_run_init_sized(NULL, sizeof(zero_run));
    zero_run_cost_init_sized(NULL, sizeof(zero_run_cost));
    zero_search_request_init_sized(NULL, sizeof(zero_search_request));
    zero_load_options_init_sized(NULL, sizeof(zero_load_options));
    zero_load_report_init_sized(NULL, sizeof(zero_load_report));
    zero_save_options_init_sized(NULL, sizeof(zero_save_options));
    zero_save_progress_init_sized(NULL, sizeof(zero_save_progress));
    zero_footprint_init_sized(NULL, sizeof(zero_footprint));
    zero_transformer_init_sized(NULL, sizeof(zero_transformer));
    zero_tuning_init_sized(NULL, sizeof(zero_tuning));
}

static void on_option(const rig *r)
{
    (void)r;
    char text[8] = "before";
    zero_engine_options options = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    CHECK(zero_option_count() > 0);
    CHECK(zero_option_at(zero_option_count()) == NULL);
    CHECK(zero_option_find(NULL) == NULL);
    REFUSES(zero_option_set(&options, &tuning, NULL, "1"));
    REFUSES(zero_option_set(&options, &tuning, "stage", NULL));
    REFUSES(zero_option_set(NULL, &tuning, "stage", "1"));
    REFUSES(zero_option_set(&options, NULL, "look_ahead", "1"));
    CHECK_EQ(zero_option_print(NULL, &options, &tuning, text, sizeof text), 0);
    CHECK_EQ(text[0], 0);
    CHECK_EQ(zero_option_print(zero_option_find("stage"), NULL, NULL, NULL, 0), 1);
}

static void on_names(const rig *r)
{
    (void)r;
    CHECK(zero_last_error() != NULL);
    CHECK(zero_version()[0] != '\0');
    CHECK_EQ(zero_version_number(), ZERO_VERSION);
    CHECK(zero_status_name((zero_status)-1) != NULL);
    CHECK(zero_status_text((zero_status)-1) != NULL);
    CHECK(zero_dtype_name((zero_dtype)-1) != NULL);
    CHECK_EQ(zero_dtype_bytes((zero_dtype)-1), 0);
    CHECK(zero_role_name((zero_role)-1) != NULL);
    CHECK_EQ(zero_role_exists((zero_role)-1), 0);
    CHECK_EQ(zero_role_exists(ZERO_ROLE_MOMENT2), 1);
    CHECK_EQ(zero_role_exists((zero_role)(ZERO_ROLE_PARAM_SLOT - 1)), 0);
    CHECK_EQ(zero_role_exists(ZERO_ROLE_SAVE_STAGING), 1);
    CHECK(zero_tier_name((zero_tier)-1) != NULL);
    CHECK(zero_bottleneck_name((zero_bottleneck)-1) != NULL);
    zero_log_set(NULL, NULL);
    zero_random_normal(1, 2, 3, 4, 0, 1, NULL);
    zero_random_uniform(1, 2, 3, 4, 0, 1, NULL);
}

/* The functions that each of these is about. */
static const struct {
    void (*run)(const rig *r);
    const char *symbols;
} rows[] = {
    {on_world_create, "zero_world_create_launched zero_world_create_mpi_fortran "
                      "zero_world_create_nccl zero_world_create_self zero_world_run"},
    {on_world, "zero_world_abort zero_world_backend zero_world_barrier zero_world_cpus "
               "zero_world_destroy zero_world_gather zero_world_is_launched zero_world_local_size "
               "zero_world_mean "
               "zero_world_rank zero_world_size"},
    {on_model_add,
     "zero_model_create zero_model_destroy zero_tensor_add zero_tensor_tie zero_unit_add"},
    {on_model_reads, "zero_model_element_count zero_model_tensor_count zero_model_tensor_count_of "
                     "zero_model_tensor_desc zero_model_tensor_name zero_model_unit_count"},
    {on_tensor_array, "zero_engine_fill zero_tensor_export zero_tensor_import"},
    {on_transformer, "zero_transformer_check zero_transformer_experts zero_transformer_model "
                     "zero_transformer_parameters zero_transformer_part_name "
                     "zero_transformer_preset zero_transformer_preset_name zero_transformer_read"},
    {on_cluster, "zero_cluster_check zero_cluster_field_at zero_cluster_preset "
                 "zero_cluster_preset_name zero_cluster_read"},
    {on_estimate, "zero_estimate_of zero_estimate_term_name"},
    {on_footprint,
     "zero_activation_bytes zero_footprint_fits zero_footprint_layers zero_footprint_of"},
    {on_run, "zero_run_cost_of"},
    {on_search, "zero_search_create zero_search_destroy zero_search_format_at zero_search_nearest "
                "zero_search_plan_at"},
    {on_sim, "zero_sim_run"},
    {on_plan_create, "zero_plan_create zero_plan_destroy"},
    {on_plan_reads, "zero_plan_hash zero_plan_memory zero_plan_options zero_plan_print "
                    "zero_plan_print_options zero_plan_sharding zero_plan_tuning"},
    {on_engine_create, "zero_engine_create zero_engine_destroy"},
    {on_engine_reads,
     "zero_engine_collectives_write zero_engine_disk_path zero_engine_memory zero_engine_path "
     "zero_engine_plan zero_engine_stats zero_engine_trace"},
    {on_hooks,
     "zero_micro_abandon zero_micro_begin zero_micro_end zero_tensor_data zero_tensor_encoded "
     "zero_tensor_grad zero_unit_acquire "
     "zero_unit_grads_acquire zero_unit_grads_ready zero_unit_params_acquire "
     "zero_unit_params_release zero_unit_pass zero_unit_release"},
    {on_step_state, "zero_grad_norm zero_step_discard zero_step_state_get zero_step_state_set"},
    {on_step, "zero_loss_scale zero_step zero_step_predict zero_step_wait"},
    {on_capture, "zero_capture_begin zero_capture_end zero_capture_prepare zero_replay_begin "
                 "zero_replay_end zero_replay_params zero_replay_result"},
    {on_shard, "zero_shard_range zero_shard_read zero_shard_view zero_shard_write"},
    {on_save, "zero_save zero_save_begin zero_save_end zero_save_poll"},
    {on_load, "zero_load"},
    {on_evict, "zero_engine_evict zero_engine_restore"},
    {on_stats_bound, "zero_stats_bottleneck"},
    {on_init_sized,
     "zero_batch_init_sized zero_bottleneck_report_init_sized zero_cluster_init_sized "
     "zero_disk_path_init_sized zero_estimate_init_sized zero_footprint_init_sized "
     "zero_transformer_init_sized zero_run_init_sized zero_run_cost_init_sized "
     "zero_search_request_init_sized "
     "zero_load_options_init_sized zero_load_report_init_sized zero_save_options_init_sized "
     "zero_save_progress_init_sized zero_engine_options_init_sized zero_memory_init_sized "
     "zero_path_init_sized "
     "zero_sharding_init_sized zero_sim_options_init_sized zero_sim_report_init_sized "
     "zero_hyper_set_defaults zero_stats_init_sized zero_step_params_init_sized "
     "zero_step_result_init_sized zero_step_state_init_sized zero_tuning_init_sized"},
    {on_option,
     "zero_option_at zero_option_count zero_option_find zero_option_print zero_option_set"},
    {on_names,
     "zero_bottleneck_name zero_dtype_bytes zero_dtype_name zero_last_error zero_log_set "
     "zero_random_normal zero_random_uniform zero_role_exists zero_role_name zero_sim_cause_name "
     "zero_sim_link_name zero_status_name zero_status_text zero_tier_name zero_version "
     "zero_version_number"},
};
#define ROWS (sizeof rows / sizeof rows[0])

static void open_rig(rig *r)
{
    uint32_t index = 0;
    zero_engine_options options = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    const zero_tensor_desc desc = {.name = "weight", .shape = {300}, .dims = 1};
    for (int role = ZERO_ROLE_MASTER; role <= ZERO_ROLE_MOMENT2; role++) {
        options.tier[role] = ZERO_TIER_DISK;
    }
    rig_folders(1, 0);
    options.disk_directories = rig_paths;
    options.disk_directory_count = 1;
    options.tuning = &tuning;
    tuning.speculative_step = 1;
    CHECK_OK(zero_world_create_self(&r->world));
    CHECK_OK(zero_model_create(&r->model));
    CHECK_OK(zero_unit_add(r->model, &(zero_unit_desc){.name = "unit"}, &index, NULL));
    CHECK_OK(zero_tensor_add(r->model, 0, &desc, &index));
    CHECK_OK(zero_plan_create(r->model, NULL, 1, &r->plan));
    CHECK_OK(zero_engine_create(r->world, r->model, &options, &r->engine));
}

TEST(every_pointer_may_be_null)
{
    rig r = {NULL, NULL, NULL, NULL};
    open_rig(&r);
    for (size_t i = 0; i < ROWS; i++) {
        printf("  %s\n", rows[i].symbols); /* the last one names the crash */
        fflush(stdout);
        rows[i].run(&r);
    }
    /* All of it is as good as before. */
    CHECK_OK(zero_world_barrier(r.world));
    CHECK_OK(zero_micro_begin(r.engine, ZERO_MICRO_LAST));
    CHECK_OK(zero_micro_end(r.engine));
    CHECK_OK(zero_step(r.engine, NULL, host));
    zero_engine_destroy(r.engine);
    zero_plan_destroy(r.plan);
    zero_model_destroy(r.model);
    zero_world_destroy(r.world);
}

/* Words of the rows; whether the symbol is one of them. */
static size_t find_symbol(const char *symbol, bool *found)
{
    size_t words = 0;
    *found = false;
    for (size_t i = 0; i < ROWS; i++) {
        for (const char *at = rows[i].symbols; *at != '\0'; words++) {
            const size_t length = strcspn(at, " ");
            *found = *found || (strlen(symbol) == length && strncmp(at, symbol, length) == 0);
            at += length + strspn(at + length, " ");
        }
    }
    return words;
}

/* Adds up the library's symbols and the rows' words; false: nm is not installed. */
static bool count_symbols(const char *list_command, size_t *found, size_t *words)
{
    char line[512];
    FILE *list = popen(list_command, "r");
    CHECK(list != NULL);
    while (fgets(line, sizeof line, list) != NULL) {
        char kind = 0;
        char symbol[256] = "";
        CHECK_EQ(sscanf(line, "%*s %c %255[^@\n]", &kind, symbol), 2);
        if (kind == 'A' || strstr(line, "ZERO_PRIVATE") != NULL) { /* a version itself, or ours */
            continue;
        }
        bool known = false;
        *words = find_symbol(symbol, &known);
        if (!known) {
            TEST_FAIL("%s is exported and has no row in this file: say what it does with NULL",
                      symbol);
        }
        (*found)++;
    }
    return pclose(list) == 0;
}

TEST(every_exported_symbol_has_a_row)
{
    size_t found = 0;
    size_t words = 0;
    if (!count_symbols("nm -D --with-symbol-versions --defined-only '" ZERO_SHARED_LIBRARY
                       "' 2>/dev/null",
                       &found, &words) ||
        !count_symbols("nm -D --with-symbol-versions --defined-only '" ZERO_PLAN_LIBRARY
                       "' 2>/dev/null",
                       &found, &words)) {
        SKIP("nm is not installed");
    }
    CHECK(found + 2 >= words && found <= words); /* those of MPI and NCCL may be missing */
}
