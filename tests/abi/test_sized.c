/* Owns the proof that structs may grow: today's library is given every public struct that has a
 * struct_bytes in every earlier size, cut behind each of its fields, and in a later one. What it
 * fills ends where the caller's struct ends, and what it takes is at its default beyond that. */
#include "../harness.h"

#include <stdalign.h>
#include <stddef.h>

#include "zero/planner.h"
#include "zero/zero.h"

#define CANARY 0xa5
#define CANARY_BYTES 64
#define LATER_BYTES 40 /* that a newer caller's struct has more */

/* A field of a struct: its name and place. */
typedef struct field {
    const char *name;
    size_t at;
    size_t bytes;
} field;

#define FIELD(name)                                                     \
    {                                                                   \
#name, offsetof(THE_STRUCT, name), sizeof((THE_STRUCT){0}.name) \
    }

#define THE_STRUCT zero_memory
static const field memory_fields[] = {FIELD(struct_bytes), FIELD(bytes), FIELD(tier_bytes),
                                      FIELD(total_bytes)};
#undef THE_STRUCT
#define THE_STRUCT zero_sharding
static const field sharding_fields[] = {FIELD(struct_bytes), FIELD(world), FIELD(param),
                                        FIELD(grad), FIELD(optimizer)};
#undef THE_STRUCT
#define THE_STRUCT zero_transformer
static const field transformer_fields[] = {FIELD(struct_bytes),
                                           FIELD(layers),
                                           FIELD(width),
                                           FIELD(heads),
                                           FIELD(kv_heads),
                                           FIELD(head_width),
                                           FIELD(ffn_width),
                                           FIELD(vocab),
                                           FIELD(positions),
                                           FIELD(sequence),
                                           FIELD(experts),
                                           FIELD(experts_used),
                                           FIELD(flags),
                                           FIELD(dtype),
                                           FIELD(units),
                                           FIELD(tensor_parallel),
                                           FIELD(pipeline_parallel),
                                           FIELD(dense_layers),
                                           FIELD(expert_every),
                                           FIELD(dense_ffn_width),
                                           FIELD(shared_ffn_width),
                                           FIELD(kv_rank),
                                           FIELD(query_rank),
                                           FIELD(rope_width),
                                           FIELD(value_width),
                                           FIELD(window),
                                           FIELD(full_every),
                                           FIELD(left_out),
                                           FIELD(expert_parallel)};
#undef THE_STRUCT
#define THE_STRUCT zero_cluster
static const field cluster_fields[] = {FIELD(struct_bytes),
                                       FIELD(nodes),
                                       FIELD(ranks_per_node),
                                       FIELD(device_bytes),
                                       FIELD(host_bytes),
                                       FIELD(disk_bytes),
                                       FIELD(device_reserve_bytes),
                                       FIELD(host_reserve_bytes),
                                       FIELD(device_flops),
                                       FIELD(device_permille),
                                       FIELD(device_bytes_per_s),
                                       FIELD(host_bytes_per_s),
                                       FIELD(host_link_bytes_per_s),
                                       FIELD(host_link_latency_ns),
                                       FIELD(local_bytes_per_s),
                                       FIELD(local_latency_ns),
                                       FIELD(fabric_bytes_per_s),
                                       FIELD(fabric_permille),
                                       FIELD(fabric_latency_ns),
                                       FIELD(disk_read_bytes_per_s),
                                       FIELD(disk_write_bytes_per_s),
                                       FIELD(disk_latency_ns),
                                       FIELD(attention_permille),
                                       FIELD(device_fp8_flops),
                                       FIELD(device_fp8_permille),
                                       FIELD(local_permille)};
#undef THE_STRUCT
#define THE_STRUCT zero_batch
static const field batch_fields[] = {FIELD(struct_bytes),
                                     FIELD(samples),
                                     FIELD(sequence),
                                     FIELD(logit_rows),
                                     FIELD(dtype),
                                     FIELD(recompute),
                                     FIELD(micro_steps),
                                     FIELD(interleave),
                                     FIELD(context_parallel),
                                     FIELD(sequence_parallel),
                                     FIELD(fp8),
                                     FIELD(wire),
                                     FIELD(fused),
                                     FIELD(stored_attention),
                                     FIELD(mesh_overlap)};
#undef THE_STRUCT
#define THE_STRUCT zero_footprint
static const field footprint_fields[] = {
    FIELD(struct_bytes), FIELD(role_bytes),       FIELD(activation_bytes), FIELD(need_bytes),
    FIELD(have_bytes),   FIELD(likely_low_bytes), FIELD(likely_high_bytes)};
#undef THE_STRUCT
#define THE_STRUCT zero_estimate
static const field estimate_fields[] = {
    FIELD(struct_bytes),    FIELD(term_ns),          FIELD(low_ns),        FIELD(high_ns),
    FIELD(bound),           FIELD(local_bytes),      FIELD(fabric_bytes),  FIELD(host_link_bytes),
    FIELD(disk_read_bytes), FIELD(disk_write_bytes), FIELD(tokens),        FIELD(flops),
    FIELD(expected_ns),     FIELD(likely_low_ns),    FIELD(likely_high_ns)};
#undef THE_STRUCT
#define THE_STRUCT zero_run
static const field run_fields[] = {
    FIELD(struct_bytes),    FIELD(tokens),       FIELD(gpu_hour_price), FIELD(gpu_watts),
    FIELD(node_mtbf_hours), FIELD(save_seconds), FIELD(restart_seconds)};
#undef THE_STRUCT
#define THE_STRUCT zero_run_cost
static const field run_cost_fields[] = {
    FIELD(struct_bytes),          FIELD(steps),        FIELD(low_seconds),     FIELD(train_seconds),
    FIELD(wall_seconds),          FIELD(gpu_hours),    FIELD(price),           FIELD(mwh),
    FIELD(checkpoint_bytes),      FIELD(save_seconds), FIELD(restart_seconds), FIELD(mtbf_seconds),
    FIELD(save_interval_seconds), FIELD(failures),     FIELD(goodput)};
#undef THE_STRUCT
#define THE_STRUCT zero_search_request
static const field search_request_fields[] = {
    FIELD(struct_bytes), FIELD(transformer),  FIELD(cluster), FIELD(options),
    FIELD(batch),        FIELD(step_samples), FIELD(held)};
#undef THE_STRUCT
#define THE_STRUCT zero_sim_options
static const field sim_options_fields[] = {FIELD(struct_bytes), FIELD(steps), FIELD(forward_ns),
                                           FIELD(jitter_ns),    FIELD(seed),  FIELD(trace_path)};
#undef THE_STRUCT
#define THE_STRUCT zero_sim_report
static const field sim_report_fields[] = {
    FIELD(struct_bytes), FIELD(step_ns),      FIELD(compute_ns), FIELD(wait_ns),
    FIELD(link_bytes),   FIELD(link_busy_ns), FIELD(peak_bytes), FIELD(planned_bytes),
    FIELD(tokens_per_s), FIELD(flops_per_s)};
#undef THE_STRUCT
#define THE_STRUCT zero_stats
static const field stats_fields[] = {FIELD(struct_bytes),
                                     FIELD(steps),
                                     FIELD(steps_skipped),
                                     FIELD(micro_steps),
                                     FIELD(gathers),
                                     FIELD(gathers_hit),
                                     FIELD(gathers_unforeseen),
                                     FIELD(reduces),
                                     FIELD(param_gathers),
                                     FIELD(gather_bytes),
                                     FIELD(reduce_bytes),
                                     FIELD(acquire_wait_ns),
                                     FIELD(grad_wait_ns),
                                     FIELD(step_wait_ns),
                                     FIELD(device_bytes),
                                     FIELD(device_peak_bytes),
                                     FIELD(host_bytes),
                                     FIELD(disk_bytes),
                                     FIELD(disk_read_bytes),
                                     FIELD(disk_write_bytes),
                                     FIELD(disk_read_hits),
                                     FIELD(disk_read_wait_ns),
                                     FIELD(disk_write_wait_ns),
                                     FIELD(update_ns),
                                     FIELD(host_update_elements),
                                     FIELD(steps_speculative),
                                     FIELD(steps_redone),
                                     FIELD(taken_ns),
                                     FIELD(steps_discarded),
                                     FIELD(steps_held_back),
                                     FIELD(disk_check_ns),
                                     FIELD(values_overflowed)};
#undef THE_STRUCT
#define THE_STRUCT zero_path
static const field path_fields[] = {FIELD(struct_bytes), FIELD(carrier), FIELD(nccl_version),
                                    FIELD(buffers),      FIELD(windows), FIELD(symmetric),
                                    FIELD(zero_cta),     FIELD(text),    FIELD(hosts)};
#undef THE_STRUCT
#define THE_STRUCT zero_disk_path
static const field disk_path_fields[] = {
    FIELD(struct_bytes),     FIELD(backend), FIELD(direct),  FIELD(window_bytes),
    FIELD(registered_bytes), FIELD(text),    FIELD(refused), FIELD(striped)};
#undef THE_STRUCT
#define THE_STRUCT zero_bottleneck_report
static const field bound_report_fields[] = {
    FIELD(struct_bytes),    FIELD(bottleneck),    FIELD(interval_ns), FIELD(cpu_ns),
    FIELD(disk_read_ns),    FIELD(disk_write_ns), FIELD(link_ns),     FIELD(disk_read_gb_s),
    FIELD(disk_write_gb_s), FIELD(link_gb_s)};
#undef THE_STRUCT
#define THE_STRUCT zero_step_params
static const field step_params_fields[] = {
    FIELD(struct_bytes), FIELD(hyper),        FIELD(groups),     FIELD(group_count),
    FIELD(max_norm),     FIELD(grad_divisor), FIELD(grad_weight)};
#undef THE_STRUCT
#define THE_STRUCT zero_step_result
static const field step_result_fields[] = {
    FIELD(struct_bytes), FIELD(step),    FIELD(updates),          FIELD(norm),   FIELD(clip),
    FIELD(loss_scale),   FIELD(skipped), FIELD(skipped_in_a_row), FIELD(stalled)};
#undef THE_STRUCT
#define THE_STRUCT zero_step_state
static const field step_state_fields[] = {FIELD(struct_bytes), FIELD(updates),    FIELD(skipped),
                                          FIELD(loss_scale),   FIELD(good_steps), FIELD(overflows),
                                          FIELD(reserved),     FIELD(carried)};
#undef THE_STRUCT

#define THE_STRUCT zero_save_options
static const field save_options_fields[] = {FIELD(struct_bytes), FIELD(directory),   FIELD(name),
                                            FIELD(replace),      FIELD(refuse_busy), FIELD(keep),
                                            FIELD(params_only),  FIELD(params),      FIELD(user),
                                            FIELD(reflink),      FIELD(reserved)};
#undef THE_STRUCT
#define THE_STRUCT zero_save_progress
static const field save_progress_fields[] = {
    FIELD(struct_bytes),  FIELD(active),    FIELD(written), FIELD(bytes),    FIELD(staged_bytes),
    FIELD(written_bytes), FIELD(staged_ns), FIELD(result),  FIELD(reserved), FIELD(shared_bytes)};
#undef THE_STRUCT
#define THE_STRUCT zero_load_options
static const field load_options_fields[] = {
    FIELD(struct_bytes), FIELD(path),    FIELD(name),    FIELD(prefix),
    FIELD(params_only),  FIELD(partial), FIELD(reflink), FIELD(refuse_overflow),
    FIELD(if_any),       FIELD(reserved)};
#undef THE_STRUCT
#define THE_STRUCT zero_load_report
static const field load_report_fields[] = {
    FIELD(struct_bytes),     FIELD(step),          FIELD(read_bytes),  FIELD(world),
    FIELD(loaded),           FIELD(missing),       FIELD(unexpected),  FIELD(mismatching),
    FIELD(user_bytes_count), FIELD(data_position), FIELD(random_seed), FIELD(random_position),
    FIELD(user_bytes),       FIELD(user_room),     FIELD(list),        FIELD(folder),
    FIELD(shared_bytes),     FIELD(passed_over),   FIELD(overflowed)};
#undef THE_STRUCT

/* ---- what is called with them ---- */

static zero_world *world;
static zero_model *model;
static zero_plan *plan;
static zero_engine *engine;

static void open_rig(void)
{
    uint32_t index = 0;
    const zero_tensor_desc desc = {.name = "weight", .shape = {300}, .dims = 1};
    CHECK_OK(zero_world_create_self(&world));
    CHECK_OK(zero_model_create(&model));
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "unit"}, &index, NULL));
    CHECK_OK(zero_tensor_add(model, index, &desc, &index));
    CHECK_OK(zero_plan_create(model, NULL, 4, &plan));
    CHECK_OK(zero_engine_create(world, model, NULL, &engine));
    CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_LAST));
    CHECK_OK(zero_micro_end(engine));
    CHECK_OK(zero_step(engine, NULL, zero_stream_host()));
}

static void close_rig(void)
{
    zero_engine_destroy(engine);
    zero_plan_destroy(plan);
    zero_model_destroy(model);
    zero_world_destroy(world);
}

#define READER(name, call)             \
    static zero_status name(void *out) \
    {                                  \
        return call;                   \
    }
READER(read_options, zero_plan_options(plan, out))
READER(read_tuning, zero_plan_tuning(plan, out))
READER(read_memory, zero_plan_memory(plan, out))
READER(read_engine_memory, zero_engine_memory(engine, out))
READER(read_sharding, zero_plan_sharding(plan, out))
READER(read_transformer, zero_transformer_preset("mixtral-8x7b", out))
READER(read_cluster, zero_cluster_preset("dgx-a100", out))
READER(read_stats, zero_engine_stats(engine, out))
READER(read_path, zero_engine_path(engine, ZERO_TRAFFIC_GATHER, out))
READER(read_disk_path, zero_engine_disk_path(engine, out))
READER(read_result, zero_step_wait(engine, out))
READER(read_state, zero_step_state_get(engine, out))
READER(read_progress, zero_save_poll(engine, out))

static zero_status read_footprint(void *out)
{
    zero_transformer transformer = zero_transformer_init();
    zero_cluster cluster = zero_cluster_init();
    CHECK_OK(zero_transformer_preset("gpt2", &transformer));
    CHECK_OK(zero_cluster_preset("workstation", &cluster));
    return zero_footprint_of(&transformer, &cluster, NULL, NULL, out);
}

static zero_status read_estimate(void *out)
{
    zero_transformer transformer = zero_transformer_init();
    zero_cluster cluster = zero_cluster_init();
    CHECK_OK(zero_transformer_preset("gpt2", &transformer));
    CHECK_OK(zero_cluster_preset("workstation", &cluster));
    return zero_estimate_of(&transformer, &cluster, NULL, NULL, out);
}

static zero_status give_batch(const void *in)
{
    zero_transformer transformer = zero_transformer_init();
    uint64_t bytes = 0;
    CHECK_OK(zero_transformer_preset("gpt2", &transformer));
    return zero_activation_bytes(&transformer, in, &bytes);
}

static zero_status cost_run(const zero_run *run, void *out)
{
    zero_transformer transformer = zero_transformer_init();
    zero_cluster cluster = zero_cluster_init();
    CHECK_OK(zero_transformer_preset("gpt2", &transformer));
    CHECK_OK(zero_cluster_preset("workstation", &cluster));
    return zero_run_cost_of(run, &transformer, &cluster, NULL, NULL, out);
}

static zero_status read_run_cost(void *out)
{
    zero_run run = zero_run_init();
    run.tokens = 1e9;
    return cost_run(&run, out);
}

/* As far as the fields: a run has tokens. */
static zero_status give_run(const void *in)
{
    zero_run_cost cost = zero_run_cost_init();
    const zero_status status = cost_run(in, &cost);
    return strstr(zero_last_error()->message, "tokens of the run") != NULL ? ZERO_OK : status;
}

/* As far as the fields: a search has a transformer. */
static zero_status give_search_request(const void *in)
{
    zero_search *search = NULL;
    const zero_status status = zero_search_create(in, &search);
    return strstr(zero_last_error()->message, "transformer is NULL") != NULL ? ZERO_OK : status;
}

static zero_status simulate(const zero_sim_options *options, void *out)
{
    zero_transformer transformer = zero_transformer_init();
    zero_cluster cluster = zero_cluster_init();
    CHECK_OK(zero_transformer_preset("gpt2", &transformer));
    CHECK_OK(zero_cluster_preset("workstation", &cluster));
    return zero_sim_run(&transformer, &cluster, NULL, NULL, options, out);
}

static zero_status give_sim_options(const void *in)
{
    zero_sim_report report = zero_sim_report_init();
    return simulate(in, &report);
}

static zero_status read_sim_report(void *out)
{
    return simulate(NULL, out);
}

static zero_status read_bound(void *out)
{
    const zero_stats before = zero_stats_init();
    zero_stats after = zero_stats_init();
    after.taken_ns = 1000;
    after.update_ns = 7;
    return zero_stats_bottleneck(&before, &after, out);
}

static zero_status give_options(const void *in)
{
    zero_plan *made = NULL;
    const zero_status status = zero_plan_create(model, in, 4, &made);
    CHECK((status == ZERO_OK) == (zero_plan_hash(made) == zero_plan_hash(plan)));
    zero_plan_destroy(made);
    return status;
}

static zero_status give_tuning(const void *in)
{
    zero_engine_options options = zero_engine_options_init();
    options.tuning = in;
    return give_options(&options);
}

static zero_status give_stats(const void *in)
{
    zero_bottleneck_report report = zero_bottleneck_report_init();
    return zero_stats_bottleneck(in, in, &report);
}

static zero_status give_params(const void *in)
{
    CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_LAST));
    CHECK_OK(zero_micro_end(engine));
    const zero_status status = zero_step(engine, in, zero_stream_host());
    if (status != ZERO_OK) {
        CHECK_OK(zero_step_discard(engine));
    }
    return status;
}

static zero_status give_state(const void *in)
{
    return zero_step_state_set(engine, in);
}

/* An older caller's options have no directory, or a path: they are refused for that, and not for
 * their size. */
static zero_status give_save_options(const void *in)
{
    const zero_status status = zero_save_begin(engine, in);
    return strstr(zero_last_error()->message, "directory is NULL") != NULL ? ZERO_OK : status;
}

static zero_status give_load_options(const void *in)
{
    const zero_status status = zero_load(engine, in, NULL);
    return strstr(zero_last_error()->message, "path is NULL") != NULL ? ZERO_OK : status;
}

/* Calls through a pointer need the function's own type. */
#define INIT(type)                                     \
    static void init_##type(void *value, size_t bytes) \
    {                                                  \
        type##_init_sized((type *)value, bytes);       \
    }
INIT(zero_engine_options)
INIT(zero_tuning)
INIT(zero_memory)
INIT(zero_sharding)
INIT(zero_transformer)
INIT(zero_cluster)
INIT(zero_batch)
INIT(zero_footprint)
INIT(zero_estimate)
INIT(zero_run)
INIT(zero_run_cost)
INIT(zero_search_request)
INIT(zero_sim_options)
INIT(zero_sim_report)
INIT(zero_stats)
INIT(zero_path)
INIT(zero_disk_path)
INIT(zero_bottleneck_report)
INIT(zero_step_params)
INIT(zero_step_result)
INIT(zero_step_state)
INIT(zero_save_options)
INIT(zero_save_progress)
INIT(zero_load_options)
INIT(zero_load_report)

typedef struct sized {
    const char *name;
    size_t bytes;
    const field *fields; /* NULL: of the table of options */
    size_t field_count;
    void (*init)(void *value, size_t bytes);
    zero_status (*read)(void *out);      /* NULL: it is not filled by the library */
    zero_status (*give)(const void *in); /* NULL: it is not taken by the library */
    bool clock;                          /* reads differ each time */
} sized;

#define COUNT(fields) (sizeof(fields) / sizeof(fields)[0])
#define SIZED(type, fields, field_count, ...)                              \
    {                                                                      \
#type, sizeof(type), fields, field_count, init_##type, __VA_ARGS__ \
    }
#define SIZED_OF(type, fields, ...) SIZED(type, fields, COUNT(fields), __VA_ARGS__)
static const sized structs[] = {
    SIZED(zero_engine_options, NULL, 0, read_options, give_options, false),
    SIZED(zero_tuning, NULL, 1, read_tuning, give_tuning, false),
    SIZED_OF(zero_memory, memory_fields, read_memory, NULL, false),
    SIZED_OF(zero_memory, memory_fields, read_engine_memory, NULL, false),
    SIZED_OF(zero_sharding, sharding_fields, read_sharding, NULL, false),
    SIZED_OF(zero_transformer, transformer_fields, read_transformer, NULL, false),
    SIZED_OF(zero_cluster, cluster_fields, read_cluster, NULL, false),
    SIZED_OF(zero_batch, batch_fields, NULL, give_batch, false),
    SIZED_OF(zero_footprint, footprint_fields, read_footprint, NULL, false),
    SIZED_OF(zero_estimate, estimate_fields, read_estimate, NULL, false),
    SIZED_OF(zero_run, run_fields, NULL, give_run, false),
    SIZED_OF(zero_run_cost, run_cost_fields, read_run_cost, NULL, false),
    SIZED_OF(zero_search_request, search_request_fields, NULL, give_search_request, false),
    SIZED_OF(zero_sim_options, sim_options_fields, NULL, give_sim_options, false),
    SIZED_OF(zero_sim_report, sim_report_fields, read_sim_report, NULL, false),
    SIZED_OF(zero_stats, stats_fields, read_stats, give_stats, true),
    SIZED_OF(zero_path, path_fields, read_path, NULL, false),
    SIZED_OF(zero_disk_path, disk_path_fields, read_disk_path, NULL, false),
    SIZED_OF(zero_bottleneck_report, bound_report_fields, read_bound, NULL, false),
    SIZED_OF(zero_step_params, step_params_fields, NULL, give_params, false),
    SIZED_OF(zero_step_result, step_result_fields, read_result, NULL, false),
    SIZED_OF(zero_step_state, step_state_fields, read_state, give_state, false),
    SIZED_OF(zero_save_options, save_options_fields, NULL, give_save_options, false),
    SIZED_OF(zero_save_progress, save_progress_fields, read_progress, NULL, false),
    SIZED_OF(zero_load_options, load_options_fields, NULL, give_load_options, false),
    SIZED_OF(zero_load_report, load_report_fields, NULL, NULL, false),
};

/* ---- sizes ---- */

#define FIELDS_MAX 64

/* The struct's fields, those of options out of their table. */
static size_t fields_of(const sized *s, field *fields)
{
    if (s->fields != NULL) {
        memcpy(fields, s->fields, s->field_count * sizeof *fields);
        return s->field_count;
    }
    size_t count = 0;
    const zero_option *option = NULL;
    fields[count++] = (field){"struct_bytes", 0, sizeof(size_t)};
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        if (option->is_tuning == (int32_t)s->field_count) {
            CHECK(count < FIELDS_MAX);
            fields[count++] = (field){option->name, option->offset, option->bytes};
        }
    }
    return count;
}

/* Sizes that the struct had after each field was added, and one that it may have. */
static size_t sizes_of(const sized *s, size_t *sizes)
{
    field fields[FIELDS_MAX];
    const size_t count = fields_of(s, fields);
    for (size_t i = 0; i < count; i++) {
        sizes[i] = fields[i].at + fields[i].bytes;
    }
    sizes[count] = s->bytes + LATER_BYTES;
    return count + 1;
}

/* A struct at the start of its own block, with canaries behind. */
static unsigned char *open_block(size_t bytes)
{
    unsigned char *block = malloc(bytes + CANARY_BYTES);
    CHECK(block != NULL);
    memset(block, CANARY, bytes + CANARY_BYTES);
    memcpy(block, &bytes, sizeof bytes);
    return block;
}

static void check_block(const sized *s, const unsigned char *block, size_t bytes)
{
    size_t said = 0;
    memcpy(&said, block, sizeof said);
    CHECK_EQ(said, bytes);
    for (size_t i = bytes; i < bytes + CANARY_BYTES; i++) {
        if (block[i] != CANARY) {
            TEST_FAIL("%s of %zu bytes: byte %zu was written", s->name, bytes, i);
        }
    }
    for (size_t i = s->bytes; i < bytes; i++) {
        CHECK_EQ(block[i], 0);
    }
}

/* Field by field, since what is between fields says nothing. */
static void check_alike(const sized *s, const unsigned char *cut, size_t bytes,
                        const unsigned char *whole)
{
    field fields[FIELDS_MAX];
    const size_t count = fields_of(s, fields);
    for (size_t i = 1; i < count && fields[i].at + fields[i].bytes <= bytes; i++) {
        if (memcmp(cut + fields[i].at, whole + fields[i].at, fields[i].bytes) != 0) {
            TEST_FAIL("%s of %zu bytes: other %s than in one of %zu", s->name, bytes,
                      fields[i].name, s->bytes);
        }
    }
}

/* Else a size would be left out. */
TEST(fields_fill_their_structs)
{
    for (size_t i = 0; i < COUNT(structs); i++) {
        field fields[FIELDS_MAX];
        const size_t count = fields_of(&structs[i], fields);
        size_t end = 0;
        for (size_t f = 0; f < count; f++) {
            /* No field is wider than its alignment but arrays, which are as aligned as a word. */
            if (fields[f].at < end || fields[f].at - end >= alignof(max_align_t) / 2) {
                TEST_FAIL("%s: %s is at %zu, after a field that ends at %zu", structs[i].name,
                          fields[f].name, fields[f].at, end);
            }
            end = fields[f].at + fields[f].bytes;
        }
        if (structs[i].bytes - end >= sizeof(size_t)) {
            TEST_FAIL("%s has fields behind %s that are not listed", structs[i].name,
                      fields[count - 1].name);
        }
    }
}

TEST(initial_values_end_with_the_struct)
{
    for (size_t i = 0; i < COUNT(structs); i++) {
        const sized *s = &structs[i];
        size_t sizes[FIELDS_MAX + 1];
        const size_t count = sizes_of(s, sizes);
        unsigned char *whole = open_block(s->bytes);
        s->init(whole, s->bytes);
        for (size_t k = 0; k < count; k++) {
            unsigned char *block = open_block(sizes[k]);
            s->init(block, sizes[k]);
            check_block(s, block, sizes[k]);
            check_alike(s, block, sizes[k], whole);
            free(block);
        }
        free(whole);
    }
}

TEST(what_is_filled_ends_with_the_struct)
{
    open_rig();
    for (size_t i = 0; i < COUNT(structs); i++) {
        const sized *s = &structs[i];
        size_t sizes[FIELDS_MAX + 1];
        const size_t count = sizes_of(s, sizes);
        if (s->read == NULL) {
            continue;
        }
        unsigned char *whole = open_block(s->bytes);
        CHECK_OK(s->read(whole));
        for (size_t k = 0; k < count; k++) {
            unsigned char *block = open_block(sizes[k]);
            CHECK_OK(s->read(block));
            check_block(s, block, sizes[k]);
            if (!s->clock) {
                check_alike(s, block, sizes[k], whole);
            }
            free(block);
        }
        free(whole);
    }
    close_rig();
}

/* Exactly as long as it says, so that a sanitizer sees a read behind it. */
TEST(what_is_taken_may_be_of_every_size)
{
    open_rig();
    for (size_t i = 0; i < COUNT(structs); i++) {
        const sized *s = &structs[i];
        size_t sizes[FIELDS_MAX + 1];
        const size_t count = sizes_of(s, sizes);
        for (size_t k = 0; k < count && s->give != NULL; k++) {
            unsigned char *block = malloc(sizes[k]);
            CHECK(block != NULL);
            s->init(block, sizes[k]);
            CHECK_OK(s->give(block));
            free(block);
        }
    }
    close_rig();
}

TEST(a_newer_field_that_is_set_is_unsupported)
{
    open_rig();
    for (size_t i = 0; i < COUNT(structs); i++) {
        const sized *s = &structs[i];
        unsigned char *block = malloc(s->bytes + LATER_BYTES);
        CHECK(block != NULL);
        for (size_t at = 0; at < LATER_BYTES && s->give != NULL; at++) {
            s->init(block, s->bytes + LATER_BYTES);
            block[s->bytes + at] = 1;
            CHECK_FAILS(s->give(block), ZERO_ERR_UNSUPPORTED, s->name);
            CHECK(strstr(zero_last_error()->message, "newer library") != NULL);
        }
        free(block);
    }
    close_rig();
}

/* A struct that nobody has initialised. */
TEST(sizes_that_are_none_are_refused)
{
    static const size_t none[] = {0, 1, sizeof(size_t) - 1, 4097, SIZE_MAX};
    open_rig();
    for (size_t i = 0; i < COUNT(structs); i++) {
        const sized *s = &structs[i];
        unsigned char *block = open_block(s->bytes);
        for (size_t k = 0; k < COUNT(none); k++) {
            memcpy(block, &none[k], sizeof none[k]);
            if (s->read != NULL) {
                CHECK_FAILS(s->read(block), ZERO_ERR_INVALID_ARGUMENT, s->name);
            }
            /* A size of 0 is a struct that was zeroed, where that is one of defaults. */
            const bool takes_zeros =
                strstr(s->name, "_options") != NULL || strcmp(s->name, "zero_tuning") == 0;
            if (s->give != NULL && !(none[k] == 0 && takes_zeros)) {
                CHECK_FAILS(s->give(block), ZERO_ERR_INVALID_ARGUMENT, "_init()");
            }
        }
        free(block);
    }
    close_rig();
}

/* Whole runs of an older caller: its options are what a whole struct of defaults gives but for what
 * it has set. */
TEST(an_older_caller_sets_what_it_knows)
{
    open_rig();
    zero_engine_options options = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    zero_sharding sharding = zero_sharding_init();
    zero_plan *made = NULL;
    options.stage = ZERO_STAGE_1;
    options.loss_scale = 8.0f;
    options.struct_bytes = offsetof(zero_engine_options, shard_group);
    CHECK_OK(zero_plan_create(model, &options, 4, &made));
    CHECK_OK(zero_plan_sharding(made, &sharding));
    CHECK_EQ(sharding.param, 1);
    CHECK_EQ(sharding.optimizer, 4);
    options.struct_bytes = sizeof options;
    CHECK_OK(zero_plan_options(made, &options));
    CHECK(options.loss_scale < 8.0f); /* it did not reach so far */
    zero_plan_destroy(made);
    options = zero_engine_options_init();
    options.tuning = &tuning;
    tuning.param_slots = 7;
    tuning.grad_slots = 9;
    tuning.struct_bytes = offsetof(zero_tuning, grad_slots);
    CHECK_OK(zero_plan_create(model, &options, 4, &made));
    tuning.struct_bytes = sizeof tuning;
    CHECK_OK(zero_plan_tuning(made, &tuning));
    CHECK_EQ(tuning.param_slots, 7);
    CHECK_EQ(tuning.grad_slots, 2);
    zero_plan_destroy(made);
    close_rig();
}
