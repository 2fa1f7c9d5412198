/* Owns a rank with state on disk. Invariant: an element's gradient depends on the step and on its
 * index modulo PERIOD only, so one tensor of PERIOD elements has every trajectory there is; with
 * moments that are rounded by index, those of tensor 0's first elements. */
#include "offload_rank.h"

#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define PERIOD 4096
#define SHIFT 17 /* of the pattern, from step to step */
#define MATRICES 4

struct offload_rank {
    offload_rank_desc desc;
    zero_world *world;
    zero_model *model;
    zero_engine *engine;
    uint32_t steps;
    uint16_t pattern[2 * PERIOD]; /* bf16, twice over, so that it can be read from anywhere */
};

/* Positive and negative values from 2^-7 to nearly 2, as bf16 bits. */
static void make_pattern(uint16_t *pattern)
{
    uint32_t state = 1;
    for (uint32_t i = 0; i < PERIOD; i++) {
        state = state * 1664525u + 1013904223u;
        const uint32_t sign = state >> 31;
        const uint32_t exponent = 120 + (state >> 28) % 8;
        pattern[i] = (uint16_t)(sign << 15 | exponent << 7 | (state >> 12 & 0x7f));
        pattern[PERIOD + i] = pattern[i];
    }
}

static int describe(const offload_rank_desc *desc, zero_model **model)
{
    static const struct {
        const char *name;
        uint32_t portion;
    } matrices[MATRICES] = {{"matrix0", 3}, {"matrix1", 1}, {"matrix2", 4}, {"matrix3", 4}};
    zero_tensor_desc descs[MATRICES];
    uint32_t unit = 0;
    uint32_t tensor = 0;
    for (uint32_t m = 0; m < MATRICES; m++) {
        descs[m] = (zero_tensor_desc){.name = matrices[m].name,
                                      .shape = {matrices[m].portion * desc->unit},
                                      .dims = 1,
                                      .dtype = ZERO_DTYPE_BF16};
    }
    return BENCH_TRY(zero_model_create(model)) ||
           BENCH_TRY(zero_unit_add(*model,
                                   &(zero_unit_desc){.name = "layer",
                                                     .layers = desc->layers,
                                                     .tensors = descs,
                                                     .tensor_count = MATRICES},
                                   &unit, &tensor));
}

static const char *type_name(zero_dtype dtype)
{
    return zero_dtype_name(dtype != ZERO_DTYPE_DEFAULT ? dtype : ZERO_DTYPE_F32);
}

const char *offload_rank_types(const offload_rank_desc *desc, char text[OFFLOAD_TYPES_TEXT])
{
    const bool plain = desc->master <= ZERO_DTYPE_F32;
    (void)snprintf(text, OFFLOAD_TYPES_TEXT, "%s%s%s moments", plain ? "" : type_name(desc->master),
                   plain ? "" : " and ", type_name(desc->moments));
    return text;
}

/* Gradients are bf16 and summed as such: 4 bytes for each parameter in memory, with itself. */
static zero_engine_options options_of(const offload_rank_desc *desc, zero_tuning *tuning)
{
    zero_engine_options options = zero_engine_options_init();
    *tuning = zero_tuning_init();
    options.tuning = tuning;
    tuning->accum_dtype = ZERO_DTYPE_BF16;
    options.master_dtype = desc->master;
    options.moment_dtype = desc->moments;
    for (int role = ZERO_ROLE_MASTER; zero_role_exists((zero_role)role) != 0; role++) {
        options.tier[role] = desc->tier;
    }
    options.disk_directories = desc->directories;
    options.disk_directory_count = desc->directory_count;
    tuning->disk_weights = desc->disk_weights;
    options.threads = desc->threads;
    tuning->extent_bytes = desc->extent_bytes;
    tuning->speculative_step = desc->overlap;
    tuning->disk_unchecked = desc->unchecked;
    return options;
}

int offload_rank_plan(const offload_rank_desc *desc, zero_memory *memory)
{
    zero_model *model = NULL;
    zero_plan *plan = NULL;
    zero_tuning tuning;
    const zero_engine_options options = options_of(desc, &tuning);
    *memory = zero_memory_init();
    const int failed = describe(desc, &model) ||
                       BENCH_TRY(zero_plan_create(model, &options, 1, &plan)) ||
                       BENCH_TRY(zero_plan_memory(plan, memory));
    zero_plan_destroy(plan);
    zero_model_destroy(model);
    return failed;
}

static int build(offload_rank *rank)
{
    zero_tuning tuning;
    const zero_engine_options options = options_of(&rank->desc, &tuning);
    return describe(&rank->desc, &rank->model) || BENCH_TRY(zero_world_create_self(&rank->world)) ||
           BENCH_TRY(zero_engine_create(rank->world, rank->model, &options, &rank->engine));
}

int offload_rank_open(const offload_rank_desc *desc, offload_rank **out)
{
    offload_rank *rank = calloc(1, sizeof *rank);
    *out = rank;
    if (rank == NULL) {
        return bench_fail("no memory left for a rank");
    }
    rank->desc = *desc;
    make_pattern(rank->pattern);
    if (build(rank) != 0) {
        offload_rank_close(rank);
        *out = NULL;
        return 1;
    }
    return 0;
}

void offload_rank_close(offload_rank *rank)
{
    if (rank != NULL) {
        zero_engine_destroy(rank->engine);
        zero_model_destroy(rank->model);
        zero_world_destroy(rank->world);
        free(rank);
    }
}

/* Backward of one unit. The buffer holds zeros, so copying into it adds. */
static int make_gradient(offload_rank *rank, uint32_t unit)
{
    const zero_stream host = zero_stream_host();
    const uint16_t *pattern = rank->pattern + rank->steps * SHIFT % PERIOD;
    int failed = BENCH_TRY(zero_unit_grads_acquire(rank->engine, unit, host));
    for (uint32_t m = 0; m < MATRICES && !failed; m++) {
        zero_view view = {0};
        failed = BENCH_TRY(zero_tensor_grad(rank->engine, unit * MATRICES + m, &view));
        uint16_t *grad = view.data;
        for (uint64_t at = 0; at < view.count; at += PERIOD) {
            const uint64_t left = view.count - at;
            memcpy(grad + at, pattern, (left < PERIOD ? left : PERIOD) * sizeof *grad);
        }
    }
    return failed || BENCH_TRY(zero_unit_grads_ready(rank->engine, unit, host));
}

static int make_gradients(offload_rank *rank, double backward_s)
{
    int failed = BENCH_TRY(zero_micro_begin(rank->engine, ZERO_MICRO_LAST));
    for (uint32_t unit = rank->desc.layers; unit-- > 0 && !failed;) {
        bench_sleep(backward_s / rank->desc.layers);
        failed = make_gradient(rank, unit);
    }
    return failed;
}

/* Blocks until the step's last write is done: a value of a role on disk is read in its turn behind
 * it. The first, third, ... step ends with the first unit and the others with the last, and what
 * they end with is in memory still. Where steps may be predicted, those that are end with the first
 * and the others with the last. */
static int wait_for_writes(offload_rank *rank, bool predicted)
{
    const uint32_t last = rank->desc.layers * MATRICES - 1;
    float value = 0.0f;
    const bool down = rank->desc.overlap ? predicted : rank->steps % 2 == 0;
    const uint64_t count = zero_model_tensor_count_of(rank->model, last);
    return BENCH_TRY(zero_shard_read(rank->engine, down ? 0 : last, ZERO_ROLE_MASTER,
                                     down ? 0 : count - 1, 1, &value));
}

int offload_rank_step(offload_rank *rank, const offload_way *way, offload_step *step)
{
    const zero_step_params params = zero_step_params_init();
    zero_stats before = zero_stats_init();
    zero_stats after = zero_stats_init();
    if (BENCH_TRY(zero_engine_stats(rank->engine, &before)) ||
        (way->predicted && BENCH_TRY(zero_step_predict(rank->engine, &params)))) {
        return 1;
    }
    const double begin = bench_now();
    int failed = make_gradients(rank, way->backward_s);
    const double start = bench_now();
    /* The first reads begin with the micro-step's end. */
    failed = failed || BENCH_TRY(zero_micro_end(rank->engine)) ||
             BENCH_TRY(zero_step(rank->engine, &params, zero_stream_host())) ||
             wait_for_writes(rank, way->predicted);
    step->backward_s = start - begin;
    step->seconds = bench_now() - start;
    step->bottleneck = zero_bottleneck_report_init();
    failed = failed || BENCH_TRY(zero_engine_stats(rank->engine, &after)) ||
             BENCH_TRY(zero_stats_bottleneck(&before, &after, &step->bottleneck));
    step->bytes = after.disk_read_bytes - before.disk_read_bytes + after.disk_write_bytes -
                  before.disk_write_bytes;
    rank->steps++;
    return failed;
}

uint64_t offload_rank_overlapped(const offload_rank *rank)
{
    zero_stats stats = zero_stats_init();
    return zero_engine_stats(rank->engine, &stats) == ZERO_OK ? stats.steps_speculative : 0;
}

/* ---- the check ---- */

/* Of one role: the device's PERIOD elements, and the sampled ones. */
static int compare(const offload_rank *rank, const offload_rank *device, uint32_t tensor,
                   uint64_t first, zero_role role)
{
    zero_shard shard;
    uint32_t wanted[PERIOD];
    uint32_t seen[PERIOD];
    const bool scales = role == ZERO_ROLE_SCALE1 || role == ZERO_ROLE_SCALE2;
    const uint64_t each = scales ? ZERO_CODE_BLOCK : 1;
    const uint64_t whole = zero_model_tensor_count_of(rank->model, tensor);
    const uint64_t elements = whole - first < PERIOD ? whole - first : PERIOD;
    const uint64_t count = (elements + each - 1) / each;
    if (BENCH_TRY(zero_shard_range(rank->engine, tensor, role, &shard))) {
        return 1;
    }
    if (shard.count == 0) {
        return 0; /* the run keeps nothing of this role */
    }
    first /= each;
    if (BENCH_TRY(zero_shard_read(rank->engine, tensor, role, first, count, seen)) ||
        BENCH_TRY(zero_shard_read(device->engine, 0, role, 0, count, wanted))) {
        return 1;
    }
    return memcmp(seen, wanted, count * zero_dtype_bytes(shard.dtype)) == 0
               ? 0
               : bench_fail("after %u steps, %s of tensor %u from %llu on has other bits than with "
                            "all on the device",
                            rank->steps, zero_role_name(role), tensor, (unsigned long long)first);
}

static int compare_samples(const offload_rank *rank, const offload_rank *device)
{
    const uint32_t tensors = rank->desc.layers * MATRICES;
    const uint32_t sampled[] = {0, tensors / 2, tensors - 1};
    /* Bits that are rounded stochastically depend on the place in the model. */
    const bool exact =
        rank->desc.moments < ZERO_DTYPE_BF16 && rank->desc.master != ZERO_DTYPE_REMAINDER8;
    const uint32_t tensor_count = exact ? 3 : 1;
    for (uint32_t t = 0; t < tensor_count; t++) {
        const uint64_t whole = zero_model_tensor_count_of(rank->model, sampled[t]);
        const uint64_t firsts[] = {0, whole / 2 / PERIOD * PERIOD, (whole - 1) / PERIOD * PERIOD};
        const uint32_t first_count = exact ? 3 : 1;
        for (uint32_t i = 0; i < first_count; i++) {
            for (int role = 0; zero_role_exists((zero_role)role) != 0; role++) {
                if (role != ZERO_ROLE_GRAD &&
                    compare(rank, device, sampled[t], firsts[i], (zero_role)role) != 0) {
                    return 1;
                }
            }
        }
    }
    return 0;
}

int offload_rank_check(offload_rank *rank)
{
    offload_rank_desc desc = rank->desc;
    offload_rank *device = NULL;
    desc.layers = 1;
    desc.unit = PERIOD;
    desc.overlap = false;
    desc.tier = ZERO_TIER_DEVICE;
    desc.directory_count = 0;
    desc.directories = NULL;
    desc.disk_weights = NULL;
    int failed = offload_rank_open(&desc, &device);
    while (!failed && device->steps < rank->steps) {
        offload_step unread;
        failed = offload_rank_step(device, &OFFLOAD_AT_ONCE, &unread);
    }
    failed = failed || compare_samples(rank, device);
    offload_rank_close(device);
    return failed;
}
