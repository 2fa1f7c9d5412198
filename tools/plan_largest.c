/* Owns `zero plan --largest`: the largest model of a family that fits a cluster, for each format of
 * the states and each mix of tiers. Every byte is the planner's. */
#include <stdio.h>
#include <string.h>

#include "bench_report.h"
#include "out_file.h"
#include "plan_report.h"
#include "script.h"

/* The family: Llama's of 7 and 13 billion parameters (Touvron et al., "LLaMA: open and efficient
 * foundation language models", 2023, table 2) are its members of 32 and 40 layers. */
#define WIDTH_OF_LAYER 128 /* elements of the width for each layer; and of a head */
#define FFN_ROUND 256      /* 8/3 of the width, up to a multiple */
#define VOCAB 32000
#define SEQUENCE 2048
#define LAYERS_MOST 4096

typedef struct largest_mix {
    const char *name;
    zero_tier state;
    zero_tier grad;
    zero_tier param;
} largest_mix;

static const largest_mix mixes[] = {
    {"all in memory", ZERO_TIER_DEVICE, ZERO_TIER_DEVICE, ZERO_TIER_DEVICE},
    {"state on host", ZERO_TIER_HOST, ZERO_TIER_DEVICE, ZERO_TIER_DEVICE},
    {"state on disk", ZERO_TIER_DISK, ZERO_TIER_DEVICE, ZERO_TIER_DEVICE},
    {"all on disk", ZERO_TIER_DISK, ZERO_TIER_DISK, ZERO_TIER_DISK},
};

static const zero_dtype formats[][2] = {{ZERO_DTYPE_F32, ZERO_DTYPE_F32},
                                        {ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_BF16},
                                        {ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_I8},
                                        {ZERO_DTYPE_REMAINDER8, ZERO_DTYPE_I8}};

/* A machine, and how models train on it. */
typedef struct largest_search {
    zero_cluster cluster;
    zero_engine_options options;
    zero_batch batch;
    zero_transformer_units units;
    bool shares_memory; /* the device is the CPU: host memory is the device's */
} largest_search;

static zero_transformer member(const largest_search *s, uint64_t layers)
{
    const uint64_t width = WIDTH_OF_LAYER * layers;
    zero_transformer t = zero_transformer_init();
    t.layers = layers;
    t.width = width;
    t.heads = layers;
    t.ffn_width = ((8 * width + 2) / 3 + FFN_ROUND - 1) / FFN_ROUND * FFN_ROUND;
    t.vocab = VOCAB;
    t.sequence = s->batch.sequence;
    t.flags = ZERO_TRANSFORMER_GATED;
    t.dtype = ZERO_DTYPE_BF16;
    t.units = s->units;
    return t;
}

/* By tier. Without a GPU the windows of disks are in the memory that shards are in. */
static zero_status footprint_of(const largest_search *s, uint64_t layers, zero_footprint *f)
{
    const zero_transformer t = member(s, layers);
    *f = zero_footprint_init();
    const zero_status status = zero_footprint_of(&t, &s->cluster, &s->options, &s->batch, f);
    if (status == ZERO_OK && s->shares_memory) {
        const uint64_t reserve = s->cluster.host_reserve_bytes / s->cluster.ranks_per_node;
        f->need_bytes[ZERO_TIER_DEVICE] += f->need_bytes[ZERO_TIER_HOST] - reserve;
        f->need_bytes[ZERO_TIER_HOST] = 0;
    }
    return status;
}

/* Every tier needs more for more layers. *layers := 0 where not even one fits. */
static zero_status find_layers(const largest_search *s, uint64_t *layers)
{
    uint64_t low = 0;
    uint64_t high = 1;
    zero_footprint f;
    for (; high <= LAYERS_MOST; high *= 2) {
        const zero_status status = footprint_of(s, high, &f);
        if (status != ZERO_OK) {
            return status;
        }
        if (zero_footprint_fits(&f) == 0) {
            break;
        }
        low = high;
    }
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        const zero_status status = footprint_of(s, middle, &f);
        if (status != ZERO_OK) {
            return status;
        }
        low = zero_footprint_fits(&f) != 0 ? middle : low;
        high = zero_footprint_fits(&f) != 0 ? high : middle;
    }
    *layers = low;
    return ZERO_OK;
}

/* The tier that one layer more lacks most of, by its share. */
static const char *limit_of(const zero_footprint *next)
{
    zero_tier limit = ZERO_TIER_DEVICE;
    double most = 0;
    for (zero_tier tier = ZERO_TIER_DEVICE; tier <= ZERO_TIER_DISK; tier++) {
        const double share = (double)next->need_bytes[tier] / ((double)next->have_bytes[tier] + 1);
        limit = share > most ? tier : limit;
        most = share > most ? share : most;
    }
    return zero_tier_name(limit);
}

static json_t *bytes_json(const uint64_t bytes[ZERO_TIER_COUNT_MAX])
{
    return json_pack("{s:I, s:I, s:I}", "device", (json_int_t)bytes[ZERO_TIER_DEVICE], "host",
                     (json_int_t)bytes[ZERO_TIER_HOST], "disk", (json_int_t)bytes[ZERO_TIER_DISK]);
}

static int make_cell(largest_search *s, const zero_dtype format[2], const largest_mix *mix,
                     json_t *cells)
{
    uint64_t layers = 0;
    uint64_t parameters = 0;
    zero_footprint f = zero_footprint_init();
    zero_footprint next;
    s->options.master_dtype = format[0];
    s->options.moment_dtype = format[1];
    s->options.tier[ZERO_ROLE_PARAM] = mix->param;
    s->options.tier[ZERO_ROLE_GRAD] = mix->grad;
    for (int role = ZERO_ROLE_MASTER; zero_role_exists((zero_role)role) != 0; role++) {
        s->options.tier[role] = mix->state;
    }
    zero_status status = find_layers(s, &layers);
    if (status == ZERO_OK && layers > 0) {
        const zero_transformer t = member(s, layers);
        status = zero_transformer_parameters(&t, &parameters, NULL);
        status = status == ZERO_OK ? footprint_of(s, layers, &f) : status;
    }
    status = status == ZERO_OK ? footprint_of(s, layers + 1, &next) : status;
    if (status != ZERO_OK) {
        return bench_fail("%s", zero_last_error()->message);
    }
    (void)json_array_append_new(
        cells,
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:o, s:o}", "mix", mix->name, "master",
                  zero_dtype_name(format[0]), "moments", zero_dtype_name(format[1]), "layers",
                  (json_int_t)layers, "width", (json_int_t)(WIDTH_OF_LAYER * layers), "parameters",
                  (json_int_t)parameters, "limit", limit_of(&next), "need_bytes",
                  bytes_json(f.need_bytes), "have_bytes", bytes_json(next.have_bytes)));
    return 0;
}

static bool has_tiers(const largest_search *s, const largest_mix *mix)
{
    return (mix->state != ZERO_TIER_DISK || s->cluster.disk_bytes != 0) &&
           (mix->state != ZERO_TIER_HOST || (s->cluster.host_bytes != 0 && !s->shares_memory));
}

static int make_cells(largest_search *s, json_t *cells)
{
    for (size_t format = 0; format < sizeof formats / sizeof formats[0]; format++) {
        for (size_t mix = 0; mix < sizeof mixes / sizeof mixes[0]; mix++) {
            if (has_tiers(s, &mixes[mix]) &&
                make_cell(s, formats[format], &mixes[mix], cells) != 0) {
                return 1;
            }
        }
    }
    return 0;
}

static json_t *largest_json(const largest_search *s, const char *cluster, json_t *cells)
{
    return json_pack("{s:o, s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:o}", "cluster_name",
                     json_string_nocheck(cluster), "nodes", (json_int_t)s->cluster.nodes,
                     "ranks_per_node", (json_int_t)s->cluster.ranks_per_node, "device",
                     s->shares_memory ? "cpu" : "cuda", "units", plan_units_name(s->units),
                     "samples", (json_int_t)s->batch.samples, "sequence",
                     (json_int_t)s->batch.sequence, "width_of_layer", (json_int_t)WIDTH_OF_LAYER,
                     "vocab", (json_int_t)VOCAB, "cells", cells);
}

int plan_largest(const plan_line *line)
{
    zero_tuning tuning = line->tuning;
    largest_search s = {.options = line->options, .batch = line->mesh, .units = line->units};
    json_t *cells = json_array();
    s.options.tuning = &tuning;
    s.shares_memory = s.options.device == ZERO_DEVICE_CPU;
    s.options.device = s.shares_memory ? ZERO_DEVICE_CPU : ZERO_DEVICE_CUDA;
    s.units =
        line->units != ZERO_TRANSFORMER_UNITS_BLOCK ? line->units : ZERO_TRANSFORMER_UNITS_MATRIX;
    s.batch.samples = line->samples != 0 ? line->samples : 1;
    s.batch.sequence = line->sequence != 0 ? line->sequence : SEQUENCE;
    s.batch.recompute = 1;
    if (plan_cluster_read(line->words[0], line->nodes, &s.cluster) != 0 ||
        make_cells(&s, cells) != 0) {
        json_decref(cells);
        return 1;
    }
    const bool json_only = line->json_path != NULL && strcmp(line->json_path, "-") == 0;
    json_t *json = largest_json(&s, line->words[0], cells);
    int failed = !json_only && script_print("plan_largest", NULL, json_incref(json)) != 0;
    if (line->json_path != NULL && !failed) {
        failed = out_json(json_incref(json), line->json_path);
    }
    json_decref(json);
    return failed;
}
