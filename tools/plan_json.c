/* Owns the report of `zero plan` as JSON, of which scripts make its table and its page. Every
 * figure is one of the library's. */
#include <jansson.h>
#include <string.h>

#include "plan_report.h"

static json_t *tiers_json(const uint64_t bytes[ZERO_TIER_COUNT_MAX])
{
    return json_pack("{s:I, s:I, s:I}", "device", (json_int_t)bytes[ZERO_TIER_DEVICE], "host",
                     (json_int_t)bytes[ZERO_TIER_HOST], "disk", (json_int_t)bytes[ZERO_TIER_DISK]);
}

static json_t *roles_json(const uint64_t bytes[ZERO_ROLE_COUNT_MAX])
{
    json_t *roles = json_object();
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        if (zero_role_exists((zero_role)role) != 0 &&
            json_object_set_new(roles, zero_role_name((zero_role)role),
                                json_integer((json_int_t)bytes[role])) != 0) {
            json_decref(roles);
            return NULL;
        }
    }
    return roles;
}

/* Of shards, which have one to choose; scales lie where their moments do. */
static json_t *role_tiers_json(const zero_engine_options *options)
{
    json_t *tiers = json_object();
    for (int role = 0; role < ZERO_ROLE_SHARDS_MAX; role++) {
        if (zero_role_exists((zero_role)role) != 0 && role != ZERO_ROLE_SCALE1 &&
            role != ZERO_ROLE_SCALE2) {
            (void)json_object_set_new(tiers, zero_role_name((zero_role)role),
                                      json_string(zero_tier_name(options->tier[role])));
        }
    }
    return tiers;
}

static json_t *terms_json(const zero_estimate *e)
{
    json_t *terms = json_object();
    for (int term = 0; term < ZERO_ESTIMATE_TERMS; term++) {
        if (json_object_set_new(terms, zero_estimate_term_name((zero_estimate_term)term),
                                json_integer((json_int_t)e->term_ns[term])) != 0) {
            json_decref(terms);
            return NULL;
        }
    }
    return terms;
}

static json_t *time_json(const zero_estimate *e)
{
    if (e->high_ns == 0) {
        return json_null();
    }
    return json_pack("{s:I, s:I, s:I, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I}",
                     "low_ns", (json_int_t)e->low_ns, "expected_ns", (json_int_t)e->expected_ns,
                     "high_ns", (json_int_t)e->high_ns, "bound", zero_estimate_term_name(e->bound),
                     "term_ns", terms_json(e), "local_bytes", (json_int_t)e->local_bytes,
                     "fabric_bytes", (json_int_t)e->fabric_bytes, "host_link_bytes",
                     (json_int_t)e->host_link_bytes, "disk_read_bytes",
                     (json_int_t)e->disk_read_bytes, "disk_write_bytes",
                     (json_int_t)e->disk_write_bytes, "tokens", (json_int_t)e->tokens, "flops",
                     e->flops, "likely_low_ns", (json_int_t)e->likely_low_ns, "likely_high_ns",
                     (json_int_t)e->likely_high_ns);
}

static json_t *cost_json(const zero_run_cost *c)
{
    if (c->steps <= 0) {
        return json_null();
    }
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:f, s:f, s:f, s:f, s:f, s:f}",
                     "steps", c->steps, "low_seconds", c->low_seconds, "train_seconds",
                     c->train_seconds, "wall_seconds", c->wall_seconds, "gpu_hours", c->gpu_hours,
                     "price", c->price, "mwh", c->mwh, "checkpoint_bytes",
                     (json_int_t)c->checkpoint_bytes, "save_seconds", c->save_seconds,
                     "restart_seconds", c->restart_seconds, "mtbf_seconds", c->mtbf_seconds,
                     "save_interval_seconds", c->save_interval_seconds, "failures", c->failures,
                     "goodput", c->goodput);
}

/* The device's bytes as trainers on PyTorch report them. */
static json_t *likely_json(const zero_footprint *f)
{
    return json_pack("{s:I, s:I}", "low", (json_int_t)f->likely_low_bytes, "high",
                     (json_int_t)f->likely_high_bytes);
}

static json_t *mix_json(const plan_mix *mix)
{
    const zero_footprint *f = &mix->footprint;
    return json_pack("{s:s, s:i, s:I, s:o, s:b, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:o, s:o}",
                     "name", mix->name, "stage", (int)mix->options.stage, "shard_group",
                     (json_int_t)mix->options.shard_group, "tiers", role_tiers_json(&mix->options),
                     "fits", mix->fits, "role_bytes", roles_json(f->role_bytes), "need_bytes",
                     tiers_json(f->need_bytes), "have_bytes", tiers_json(f->have_bytes),
                     "activation_bytes", (json_int_t)f->activation_bytes, "deepest_layers",
                     (json_int_t)mix->deepest, "deepest_parameters", (json_int_t)mix->largest,
                     "time", time_json(&mix->estimate), "run", cost_json(&mix->cost),
                     "likely_device_bytes", likely_json(f));
}

static json_t *cluster_json(const zero_cluster *cluster)
{
    const zero_cluster_field *field = NULL;
    json_t *json = json_object();
    for (uint32_t i = 0; (field = zero_cluster_field_at(i)) != NULL; i++) {
        uint64_t value = 0;
        memcpy(&value, (const unsigned char *)cluster + field->offset, sizeof value);
        if (json_object_set_new(json, field->name, json_integer((json_int_t)value)) != 0) {
            json_decref(json);
            return NULL;
        }
    }
    return json;
}

static json_t *mesh_json(const zero_transformer *t, const zero_batch *b, uint64_t engine_ranks)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:s}", "tensor",
                     (json_int_t)t->tensor_parallel, "pipeline", (json_int_t)t->pipeline_parallel,
                     "interleave", (json_int_t)(b->interleave != 0 ? b->interleave : 1), "context",
                     (json_int_t)(b->context_parallel != 0 ? b->context_parallel : 1), "expert",
                     (json_int_t)t->expert_parallel, "engine_ranks", (json_int_t)engine_ranks,
                     "sequence_parallel", (int)b->sequence_parallel, "mesh_overlap",
                     (int)b->mesh_overlap, "fp8", (int)b->fp8, "wire",
                     b->wire == ZERO_WIRE_ZEROPP ? "zero++" : "engine");
}

static json_t *refused_json(const plan_report *r)
{
    json_t *refused = json_array();
    for (uint32_t i = 0; i < r->refused_count; i++) {
        (void)json_array_append_new(
            refused, json_pack("{s:s, s:s}", "name", r->refused[i].name, "why", r->refused[i].why));
    }
    return refused;
}

/* Names of what the model's file describes and is not planned. */
static json_t *left_out_json(const zero_transformer *t)
{
    json_t *parts = json_array();
    for (uint64_t part = 1; part != 0; part <<= 1) {
        const char *name = zero_transformer_part_name(t->left_out & part);
        if (name != NULL) {
            (void)json_array_append_new(parts, json_string(name));
        }
    }
    return parts;
}

static json_t *settings_json(const plan_report *r)
{
    json_t *settings = json_array();
    for (uint32_t i = 0; i < r->setting_count; i++) {
        (void)json_array_append_new(settings,
                                    json_pack("{s:s, s:o}", "name", r->settings[i].name, "value",
                                              json_string_nocheck(r->settings[i].value)));
    }
    return settings;
}

/* ---- a search ---- */

/* An option as zero_option_set reads it; "" where it has its default. */
static json_t *option_json(const zero_engine_options *o, const char *name)
{
    const zero_option *option = zero_option_find(name);
    char text[512];
    char usual[512];
    (void)zero_option_print(option, o, o->tuning, text, sizeof text);
    (void)zero_option_print(option, NULL, NULL, usual, sizeof usual);
    return json_string(strcmp(text, usual) == 0 ? "" : text);
}

/* Options beside stage and tiers that a search chooses. */
static json_t *chosen_json(const zero_engine_options *o)
{
    static const char *const names[] = {"master_dtype", "moment_dtype", "updater", "param_slots",
                                        "grad_slots"};
    json_t *chosen = json_object();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)json_object_set_new(chosen, names[i], option_json(o, names[i]));
    }
    return chosen;
}

/* Ranks that have samples of their own. */
static uint64_t replicas_of(const zero_search_plan *p)
{
    const zero_batch *b = p->batch;
    return p->estimate->tokens / (b->samples * b->sequence * b->micro_steps);
}

static json_t *plan_of_search_json(const zero_search_plan *p, const zero_run_cost *cost,
                                   json_t *formats)
{
    const zero_footprint *f = p->footprint;
    return json_pack(
        "{s:o, s:I, s:I, s:i, s:b, s:b, s:s, s:i, s:I, s:o, s:o, s:i, s:o, s:o, s:o, s:I, s:o, "
        "s:o, s:o, s:o}",
        "mesh", mesh_json(p->transformer, p->batch, replicas_of(p) * p->batch->context_parallel),
        "samples", (json_int_t)p->batch->samples, "sequence", (json_int_t)p->batch->sequence,
        "micro_steps", (int)p->batch->micro_steps, "recompute", p->batch->recompute == 1,
        "recompute_selective", p->batch->recompute == 2, "units",
        plan_units_name(p->transformer->units), "stage", (int)p->options->stage, "shard_group",
        (json_int_t)p->options->shard_group, "tiers", role_tiers_json(p->options), "chosen",
        chosen_json(p->options), "coarseness", (int)p->coarseness, "role_bytes",
        roles_json(f->role_bytes), "need_bytes", tiers_json(f->need_bytes), "have_bytes",
        tiers_json(f->have_bytes), "activation_bytes", (json_int_t)f->activation_bytes, "time",
        time_json(p->estimate), "run", cost != NULL ? cost_json(cost) : json_null(),
        "likely_device_bytes", likely_json(f), "formats", formats);
}

/* Of plan `index` in other formats what differs. */
static json_t *formats_json(const zero_search *search, uint32_t index)
{
    const zero_search_plan *plan = NULL;
    json_t *formats = json_array();
    for (uint32_t i = 0; (plan = zero_search_format_at(search, index, i)) != NULL; i++) {
        (void)json_array_append_new(
            formats,
            json_pack("{s:o, s:o, s:i, s:I, s:o}", "master_dtype",
                      option_json(plan->options, "master_dtype"), "moment_dtype",
                      option_json(plan->options, "moment_dtype"), "coarseness",
                      (int)plan->coarseness, "expected_ns", (json_int_t)plan->estimate->expected_ns,
                      "need_bytes", tiers_json(plan->footprint->need_bytes)));
    }
    return formats;
}

static json_t *remedies_json(const plan_report *r)
{
    json_t *remedies = json_array();
    for (uint32_t i = 0; i < r->remedy_count; i++) {
        const zero_search_plan *plan = zero_search_plan_at(r->remedies[i].search, 0);
        (void)json_array_append_new(remedies,
                                    json_pack("{s:s, s:o}", "words", r->remedies[i].words, "plan",
                                              plan_of_search_json(plan, NULL, json_array())));
    }
    return remedies;
}

static json_t *search_json(const plan_report *r)
{
    const zero_search_plan *nearest = zero_search_nearest(r->search);
    const zero_search_plan *plan = NULL;
    json_t *plans = json_array();
    if (r->search == NULL) {
        json_decref(plans);
        return json_null();
    }
    for (uint32_t i = 0; (plan = zero_search_plan_at(r->search, i)) != NULL; i++) {
        (void)json_array_append_new(
            plans, plan_of_search_json(plan, &r->costs[i], formats_json(r->search, i)));
    }
    return json_pack("{s:o, s:o, s:o}", "plans", plans, "nearest",
                     nearest != NULL ? plan_of_search_json(nearest, NULL, json_array())
                                     : json_null(),
                     "remedies", remedies_json(r));
}

/* "tokens" is 0 where no run was asked for. */
static json_t *run_json(const plan_report *r)
{
    return json_pack("{s:f, s:f, s:f, s:f}", "tokens", r->run.tokens, "gpu_hour_price",
                     r->run.gpu_hour_price, "gpu_watts", r->run.gpu_watts, "node_mtbf_hours",
                     r->run.node_mtbf_hours);
}

/* A file's name may be no UTF-8: it has a table, and no JSON. */
json_t *plan_json(const plan_report *r)
{
    json_t *mixes = json_array();
    for (uint32_t i = 0; i < r->mix_count; i++) {
        if (json_array_append_new(mixes, mix_json(&r->mixes[i])) != 0) {
            json_decref(mixes);
            return NULL;
        }
    }
    return json_pack(
        "{s:o, s:I, s:I, s:s, s:I, s:I, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:I, s:I, s:i, s:b, "
        "s:b, s:b, s:s, s:i, s:o, s:s?, s:n, s:n, s:o, s:o, s:s?, s:s?}",
        "model", json_string_nocheck(r->model), "parameters", (json_int_t)r->parameters,
        "parameters_used", (json_int_t)r->parameters_used, "dtype",
        zero_dtype_name(r->transformer.dtype), "layers", (json_int_t)r->transformer.layers, "width",
        (json_int_t)r->transformer.width, "left_out", left_out_json(&r->transformer), "refused",
        refused_json(r), "cluster_name", json_string_nocheck(r->cluster_name), "ranks",
        (json_int_t)r->ranks, "cluster", cluster_json(&r->cluster), "mesh",
        mesh_json(&r->transformer, &r->batch, r->world), "settings", settings_json(r), "samples",
        (json_int_t)r->batch.samples, "sequence", (json_int_t)r->batch.sequence, "micro_steps",
        (int)r->batch.micro_steps, "recompute", r->batch.recompute == 1, "recompute_selective",
        r->batch.recompute == 2, "fused", (int)r->batch.fused, "attention",
        r->batch.stored_attention != 0 ? "stored" : "flash", "layers_max",
        ZERO_FOOTPRINT_LAYERS_MAX, "mixes", mixes, "recommended",
        r->recommended != NULL ? r->recommended->name : NULL, "advised", "advice", "run",
        run_json(r), "search", search_json(r), "unsearched",
        r->unsearched[0] != '\0' ? r->unsearched : NULL, "untimed",
        r->untimed[0] != '\0' ? r->untimed : NULL);
}
