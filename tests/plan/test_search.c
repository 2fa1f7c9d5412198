/* Owns the tests of the search: it finds what trying everything finds, holds what it is told to,
 * and says what nothing fits lacks. */
#include "harness.h"

#include "plan/estimate.h"
#include "plan/search_floor.h"
#include "zero/planner.h"

#define STAGE_WAYS 4

/* A small model, and two nodes of four ranks each, whose memory tests choose. */
typedef struct search_rig {
    zero_transformer transformer;
    zero_cluster cluster;
    zero_engine_options options;
    zero_batch batch;
    uint64_t step_samples;
} search_rig;

static search_rig make_rig(uint64_t device_mib, uint64_t host_mib)
{
    search_rig r = {.transformer = zero_transformer_init(),
                    .cluster = zero_cluster_init(),
                    .options = zero_engine_options_init(),
                    .batch = zero_batch_init(),
                    .step_samples = 16};
    CHECK_OK(zero_cluster_preset("dgx-h100", &r.cluster));
    r.cluster.nodes = 2;
    r.cluster.ranks_per_node = 4;
    r.cluster.device_bytes = device_mib << 20;
    r.cluster.device_reserve_bytes = 1 << 20;
    r.cluster.host_bytes = host_mib << 20;
    r.cluster.host_reserve_bytes = 1 << 20;
    r.transformer.layers = 8;
    r.transformer.width = 512;
    r.transformer.heads = 8;
    r.transformer.vocab = 4096;
    r.transformer.sequence = 256;
    r.transformer.dtype = ZERO_DTYPE_BF16;
    r.transformer.flags = ZERO_TRANSFORMER_GATED;
    r.options.device = ZERO_DEVICE_CUDA;
    return r;
}

static zero_search *search_rig_run(const search_rig *r, uint32_t held)
{
    zero_search *search = NULL;
    const zero_search_request request = {.struct_bytes = sizeof request,
                                         .transformer = &r->transformer,
                                         .cluster = &r->cluster,
                                         .options = &r->options,
                                         .batch = &r->batch,
                                         .step_samples = r->step_samples,
                                         .held = held};
    CHECK_OK(zero_search_create(&request, &search));
    return search;
}

/* ---- everything, tried one by one ---- */

#define WAYS_MAX 8192

/* The best of each way: of plans that differ in stage, group, tiers, mesh or recomputation. */
typedef struct best_way {
    uint64_t key;
    double worth;
} best_way;

typedef struct best_times {
    best_way ways[WAYS_MAX];
    uint32_t count;
    uint32_t fitting; /* batches and engines that fit */
    uint32_t tried;
} best_times;

static void take_time(best_times *best, uint64_t key, double worth)
{
    uint32_t at = 0;
    while (at < best->count && best->ways[at].key != key) {
        at++;
    }
    if (at == best->count) {
        CHECK(best->count < WAYS_MAX);
        best->ways[best->count++] = (best_way){.key = key, .worth = worth};
    }
    if (worth < best->ways[at].worth) {
        best->ways[at].worth = worth;
    }
}

static int by_worth(const void *a, const void *b)
{
    const double left = ((const best_way *)a)->worth;
    const double right = ((const best_way *)b)->worth;
    return (left > right) - (left < right);
}

/* An engine's times over all batches of a mesh. key: of its stage, group, tiers and mesh. */
static void take_batches(const search_rig *r, const zero_transformer *t,
                         const zero_engine_options *options, uint64_t key, double times,
                         best_times *best)
{
    const uint64_t world = 8 / t->tensor_parallel / t->pipeline_parallel;
    for (uint64_t context = 1; world % context == 0; context *= 2) {
        const uint64_t share = r->step_samples / (world / context);
        for (uint64_t i = 0; i < 2 * share * 4; i++) {
            zero_footprint f = zero_footprint_init();
            zero_estimate e = zero_estimate_init();
            zero_batch b = {.struct_bytes = sizeof b,
                            .context_parallel = context,
                            .samples = i / 8 + 1,
                            .recompute = i % 2,
                            .interleave = UINT64_C(1) << i / 2 % 4,
                            .sequence_parallel = t->tensor_parallel > 1};
            b.micro_steps = (uint32_t)(share / b.samples);
            const bool groups =
                b.interleave == 1 ||
                (t->pipeline_parallel > 1 && b.micro_steps % t->pipeline_parallel == 0 &&
                 b.interleave <= t->layers / t->pipeline_parallel);
            if (share % b.samples != 0 || !groups ||
                zero_footprint_of(t, &r->cluster, options, &b, &f) != ZERO_OK) {
                continue;
            }
            best->tried++;
            if (zero_footprint_fits(&f) != 0) {
                CHECK_OK(zero_estimate_of(t, &r->cluster, options, &b, &e));
                take_time(best, (key * 16 + context) * 2 + b.recompute,
                          (double)e.expected_ns * times);
                best->fitting++;
            }
        }
    }
}

/* Tiers as a number in base 3, and a digit for the updater; false: the search has no such mix. */
static bool set_mix(uint32_t number, zero_engine_options *options, zero_tuning *tuning)
{
    const uint32_t tiers[] = {number % 3, number / 3 % 3, number / 9 % 3, number / 27 % 3};
    const uint32_t far = tiers[3];
    for (int i = 0; i < 4; i++) {
        options->tier[i] = (zero_tier)(tiers[i] + 1);
    }
    options->tier[ZERO_ROLE_MOMENT2] = options->tier[ZERO_ROLE_MOMENT1];
    tuning->updater = number / 81 != 0 ? ZERO_UPDATER_CPU : ZERO_UPDATER_DEFAULT;
    options->tuning = tuning;
    return tiers[0] <= far && tiers[1] <= far && tiers[2] <= far && (number < 81 || far == 1);
}

static void set_format(uint32_t number, zero_engine_options *options)
{
    static const zero_dtype formats[][2] = {{ZERO_DTYPE_F32, ZERO_DTYPE_F32},
                                            {ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_BF16},
                                            {ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_I8},
                                            {ZERO_DTYPE_REMAINDER8, ZERO_DTYPE_I8}};
    options->master_dtype = formats[number][0];
    options->moment_dtype = formats[number][1];
}

/* Every engine of a mesh: stages, and shard groups of a world up to 8. */
static void try_mesh(const search_rig *r, const zero_transformer *t, uint32_t mixes,
                     best_times *best)
{
    const uint32_t world = (uint32_t)(8 / t->tensor_parallel / t->pipeline_parallel);
    for (uint32_t split = 0; split < STAGE_WAYS + 2; split++) {
        const uint32_t group = split >= STAGE_WAYS ? 2u << (split - STAGE_WAYS) : 0;
        if ((group != 0 && group >= world) || (split != 0 && world == 1)) {
            continue;
        }
        for (uint32_t i = 0; i < 4 * mixes; i++) {
            zero_engine_options options = r->options;
            zero_tuning tuning = zero_tuning_init();
            options.stage = (zero_stage)(split < STAGE_WAYS ? split : 3);
            options.shard_group = group;
            set_format(i % 4, &options);
            if (set_mix(i / 4, &options, &tuning)) {
                const uint64_t mesh = t->tensor_parallel * 16 + t->pipeline_parallel;
                take_batches(r, t, &options, (mesh * 16 + split) * 81 + i / 4 % 81,
                             1 + 0.01 * (i % 4), best);
            }
        }
    }
}

/* Formats of a plan beside it: all else is alike, and the figures are those of its own options. */
static void compare_formats(const search_rig *r, const zero_search *search, uint32_t index)
{
    const zero_search_plan *plan = zero_search_plan_at(search, index);
    const zero_search_plan *other = NULL;
    uint32_t seen = 1u << plan->coarseness;
    for (uint32_t i = 0; (other = zero_search_format_at(search, index, i)) != NULL; i++) {
        zero_estimate e = zero_estimate_init();
        CHECK((seen >> other->coarseness) % 2 == 0);
        seen |= 1u << other->coarseness;
        CHECK_EQ((int)other->options->stage, (int)plan->options->stage);
        CHECK_EQ(memcmp(other->options->tier, plan->options->tier, sizeof plan->options->tier), 0);
        CHECK_EQ(other->batch->samples, plan->batch->samples);
        CHECK_OK(
            zero_estimate_of(other->transformer, &r->cluster, other->options, other->batch, &e));
        CHECK_EQ(e.expected_ns, other->estimate->expected_ns);
        CHECK(zero_footprint_fits(other->footprint) != 0);
    }
    for (uint32_t format = plan->coarseness + 1; format < 4; format++) {
        CHECK((seen >> format) % 2 == 1); /* a coarser one needs less */
    }
}

static void compare_best(const search_rig *r, const zero_search *search, best_times *best)
{
    qsort(best->ways, best->count, sizeof best->ways[0], by_worth);
    for (uint32_t i = 0; i < ZERO_SEARCH_PLANS; i++) {
        const zero_search_plan *plan = zero_search_plan_at(search, i);
        zero_estimate e = zero_estimate_init();
        zero_footprint f = zero_footprint_init();
        CHECK_EQ(plan != NULL, i < best->count);
        if (plan == NULL) {
            continue;
        }
        CHECK_OK(zero_estimate_of(plan->transformer, &r->cluster, plan->options, plan->batch, &e));
        CHECK_OK(zero_footprint_of(plan->transformer, &r->cluster, plan->options, plan->batch, &f));
        CHECK_EQ(e.expected_ns, plan->estimate->expected_ns);
        CHECK_EQ(e.tokens, r->step_samples * r->transformer.sequence);
        CHECK(zero_footprint_fits(&f) != 0);
        const double worth = (double)e.expected_ns * (1 + 0.01 * plan->coarseness);
        if (worth > best->ways[i].worth || worth < best->ways[i].worth) {
            TEST_FAIL("plan %u takes %.0f ns, and trying everything %.0f", i, worth,
                      best->ways[i].worth);
        }
        compare_formats(r, search, i);
    }
}

/* Memory for a few of all combinations, and for most. */
TEST(pruning_loses_none_of_the_best_engines)
{
    static const uint64_t mib[][2] = {{70, 100}, {108, 300}};
    for (size_t i = 0; i < sizeof mib / sizeof mib[0]; i++) {
        search_rig r = make_rig(mib[i][0], mib[i][1]);
        static best_times best;
        best.count = best.fitting = best.tried = 0;
        r.transformer.layers = 3;
        r.step_samples = 4;
        r.transformer.tensor_parallel = 1;
        r.transformer.pipeline_parallel = 1;
        try_mesh(&r, &r.transformer, 162, &best);
        zero_search *search =
            search_rig_run(&r, ZERO_SEARCH_TENSOR | ZERO_SEARCH_PIPELINE | ZERO_SEARCH_UNITS);
        CHECK(best.count > ZERO_SEARCH_PLANS);
        CHECK(best.fitting < best.tried);
        compare_best(&r, search, &best);
        zero_search_destroy(search);
    }
}

TEST(pruning_loses_none_of_the_best_meshes)
{
    static const uint64_t mib[] = {90, 200};
    for (size_t i = 0; i < sizeof mib / sizeof mib[0]; i++) {
        search_rig r = make_rig(mib[i], 4000);
        static best_times best;
        best.count = best.fitting = best.tried = 0;
        for (uint64_t tensor = 1; tensor <= 4; tensor *= 2) {
            for (uint64_t pipeline = 1; pipeline * tensor <= 8; pipeline *= 2) {
                zero_transformer t = r.transformer;
                t.tensor_parallel = tensor;
                t.pipeline_parallel = pipeline;
                try_mesh(&r, &t, 1, &best);
            }
        }
        zero_search *search = search_rig_run(&r, ZERO_SEARCH_TIERS | ZERO_SEARCH_UNITS);
        CHECK(best.count > ZERO_SEARCH_PLANS);
        CHECK(best.fitting < best.tried);
        compare_best(&r, search, &best);
        zero_search_destroy(search);
    }
}

/* ---- bounds ---- */

typedef struct bound_sums {
    double bound_ns; /* over all engines */
    double planned_ns;
} bound_sums;

/* A bound beside the plan itself. */
static void compare_bounds(const zi_space *space, const zi_shape *shape, zi_base *base,
                           const zi_split *split, uint32_t engine, const zero_model *model,
                           bound_sums *sums)
{
    const zi_mix *mix = &space->mixes[engine / space->format_count];
    const zi_format *format = &space->formats[engine % space->format_count];
    const zi_mesh *mesh = &space->meshes[shape->mesh];
    zero_engine_options options;
    zero_tuning tuning;
    zero_plan *plan = NULL;
    zero_memory memory = zero_memory_init();
    zero_estimate e;
    zero_estimate without;
    double bytes[ZERO_TIER_COUNT];
    double links_ns = 0;
    zi_space_options(space, split, mix, format, &options, &tuning);
    CHECK_OK(zero_plan_create(model, &options, mesh->world, &plan));
    CHECK_OK(zero_plan_memory(plan, &memory));
    zi_base_bytes(space, base, mix, format, bytes);
    for (int tier = 0; tier < ZERO_TIER_COUNT; tier++) {
        if (bytes[tier] > (double)memory.tier_bytes[tier]) {
            TEST_FAIL("engine %u, stage %d: %.0f bytes of the %s, planned are %llu", engine,
                      (int)split->stage, bytes[tier], zero_tier_name((zero_tier)tier),
                      (unsigned long long)memory.tier_bytes[tier]);
        }
    }
    const zero_transformer *t = &mesh->transformer;
    CHECK_OK(zi_estimate_of_plan(t, &space->cluster, plan, &shape->batch, &e));
    CHECK_OK(zi_estimate_of_plan(t, &space->cluster, NULL, &shape->batch, &without));
    CHECK_OK(zi_base_links(space, shape, base, &links_ns));
    const double bound = links_ns + zi_base_tiers_ns(space, base, mix, format, shape);
    const double planned = (double)(e.expected_ns - without.expected_ns);
    if (bound > planned * (1 + 1e-9) + 16) {
        TEST_FAIL("engine %u, stage %d, %u micro-steps: at least %.0f ns, planned are %.0f", engine,
                  (int)split->stage, shape->batch.micro_steps, bound, planned);
    }
    sums->bound_ns += bound;
    sums->planned_ns += planned;
    zero_plan_destroy(plan);
}

/* No bound is beyond the plan, and together they are near. */
TEST(bounds_are_below_what_is_planned)
{
    static const uint32_t held =
        ZERO_SEARCH_CONTEXT | ZERO_SEARCH_RECOMPUTE | ZERO_SEARCH_INTERLEAVE | ZERO_SEARCH_PIPELINE;
    search_rig r = make_rig(4000, 8000);
    bound_sums sums = {0};
    const zero_search_request request = {.struct_bytes = sizeof request,
                                         .transformer = &r.transformer,
                                         .cluster = &r.cluster,
                                         .options = &r.options,
                                         .batch = &r.batch,
                                         .step_samples = 24,
                                         .held = held};
    zi_space space = {0};
    r.transformer.layers = 6;
    CHECK_OK(zi_space_open(&request, &space));
    CHECK_OK(zi_space_list(&space));
    for (uint32_t s = 0; s < space.shape_count; s++) {
        const zi_shape *shape = &space.shapes[s];
        const zi_mesh *mesh = &space.meshes[shape->mesh];
        zero_model *model = NULL;
        CHECK_OK(zero_transformer_model(&mesh->transformer, &model));
        for (uint32_t split = s % 2; split < mesh->split_count; split += 2) {
            zi_base base = {0};
            zero_engine_options options;
            zero_tuning tuning;
            zi_space_options(&space, &mesh->splits[split], &space.mixes[0], &space.formats[0],
                             &options, &tuning);
            CHECK_OK(zero_plan_create(model, &options, mesh->world, &base.plan));
            CHECK_OK(zi_base_measure(&space, mesh, &base));
            for (uint32_t i = s % 3; i < space.mix_count * space.format_count; i += 3) {
                compare_bounds(&space, shape, &base, &mesh->splits[split], i, model, &sums);
            }
            zero_plan_destroy(base.plan);
        }
        zero_model_destroy(model);
    }
    CHECK(sums.bound_ns > 0.75 * sums.planned_ns);
    zi_space_close(&space);
}

/* ---- what is held, and what is refused ---- */

TEST(held_axes_stay_as_given)
{
    search_rig r = make_rig(400, 4000);
    zero_tuning tuning = zero_tuning_init();
    const uint32_t all = 2 * ZERO_SEARCH_UNITS - 1;
    r.options.stage = ZERO_STAGE_2;
    r.options.moment_dtype = ZERO_DTYPE_BF16;
    r.options.tier[ZERO_ROLE_GRAD] = ZERO_TIER_HOST;
    tuning.param_slots = 2;
    r.options.tuning = &tuning;
    r.batch.samples = 2;
    r.batch.micro_steps = 4;
    r.batch.recompute = 1;
    r.step_samples = 0;
    zero_search *search = search_rig_run(&r, all);
    const zero_search_plan *plan = zero_search_plan_at(search, 0);
    CHECK(plan != NULL && zero_search_plan_at(search, 1) == NULL);
    CHECK_EQ((int)plan->options->stage, 2);
    CHECK_EQ((int)plan->options->tier[ZERO_ROLE_GRAD], ZERO_TIER_HOST);
    CHECK_EQ((int)plan->options->moment_dtype, ZERO_DTYPE_BF16);
    CHECK_EQ(plan->options->tuning->param_slots, 2);
    CHECK_EQ(plan->batch->samples, 2);
    CHECK_EQ(plan->batch->micro_steps, 4);
    CHECK_EQ(plan->batch->recompute, 1);
    zero_search_destroy(search);
    /* Each axis that is let go may only make a step shorter. */
    uint64_t last = UINT64_MAX;
    for (uint32_t held = all; (held & ZERO_SEARCH_STATES) != 0; held &= held - 1) {
        search = search_rig_run(&r, held);
        plan = zero_search_plan_at(search, 0);
        CHECK(plan != NULL);
        CHECK(plan->estimate->expected_ns <= last);
        last = plan->estimate->expected_ns;
        zero_search_destroy(search);
    }
}

TEST(a_coarse_format_must_save_more_than_it_costs)
{
    const uint32_t held = ZERO_SEARCH_TENSOR | ZERO_SEARCH_PIPELINE | ZERO_SEARCH_TIERS;
    search_rig r = make_rig(900, 4000);
    zero_search *search = search_rig_run(&r, held);
    CHECK_EQ(zero_search_plan_at(search, 0)->coarseness, 0);
    zero_search_destroy(search);
    r.cluster.host_link_bytes_per_s /= 100; /* over which states go */
    r.options.tier[ZERO_ROLE_MOMENT1] = ZERO_TIER_HOST;
    r.options.tier[ZERO_ROLE_MOMENT2] = ZERO_TIER_HOST;
    search = search_rig_run(&r, held);
    CHECK(zero_search_plan_at(search, 0)->coarseness > 0);
    zero_search_destroy(search);
}

/* Parameters in fp32 leave no remainder, and those in fp16 have no format but fp32. */
TEST(formats_are_those_that_parameters_have)
{
    search_rig r = make_rig(900, 4000);
    r.transformer.dtype = ZERO_DTYPE_F32;
    r.cluster.host_link_bytes_per_s /= 100;
    r.options.tier[ZERO_ROLE_MOMENT1] = ZERO_TIER_HOST;
    r.options.tier[ZERO_ROLE_MOMENT2] = ZERO_TIER_HOST;
    for (int fp16 = 0; fp16 < 2; fp16++) {
        zero_search *search = search_rig_run(&r, ZERO_SEARCH_TIERS);
        for (uint32_t i = 0; i < ZERO_SEARCH_PLANS; i++) {
            const zero_engine_options *options = zero_search_plan_at(search, i)->options;
            CHECK_EQ((int)options->master_dtype, ZERO_DTYPE_DEFAULT);
            CHECK(fp16 == 0 || options->moment_dtype == ZERO_DTYPE_DEFAULT);
        }
        CHECK(fp16 != 0 || zero_search_plan_at(search, 0)->coarseness > 0);
        zero_search_destroy(search);
        r.transformer.dtype = ZERO_DTYPE_F16;
    }
}

TEST(smaller_units_are_tried_where_nothing_fits)
{
    search_rig r = make_rig(60, 4000);
    r.transformer.width = 1024;
    r.transformer.layers = 4;
    r.cluster.nodes = 1;
    zero_search *search = search_rig_run(&r, ZERO_SEARCH_TENSOR);
    const zero_search_plan *plan = zero_search_plan_at(search, 0);
    CHECK(plan != NULL && zero_search_nearest(search) == NULL);
    CHECK(plan->transformer->units != ZERO_TRANSFORMER_UNITS_BLOCK);
    zero_search_destroy(search);
    search = search_rig_run(&r, ZERO_SEARCH_TENSOR | ZERO_SEARCH_UNITS);
    CHECK(zero_search_plan_at(search, 0) == NULL && zero_search_nearest(search) != NULL);
    zero_search_destroy(search);
}

TEST(the_nearest_miss_is_full_of_one_tier)
{
    search_rig r = make_rig(64, 64);
    r.cluster.disk_bytes = 64 << 20;
    r.transformer.layers = 64;
    zero_search *search = search_rig_run(&r, 0);
    const zero_search_plan *nearest = zero_search_nearest(search);
    CHECK(nearest != NULL && zero_search_plan_at(search, 0) == NULL);
    const zero_footprint *f = nearest->footprint;
    CHECK(zero_footprint_fits(f) == 0);
    uint64_t more = 1; /* so much of every tier is enough */
    for (int tier = ZERO_TIER_DEVICE; tier <= ZERO_TIER_DISK; tier++) {
        const uint64_t times = f->need_bytes[tier] / (f->have_bytes[tier] / 100) + 1;
        more = times > more ? times : more;
    }
    zero_search_destroy(search);
    r.cluster.device_bytes = r.cluster.device_bytes / 100 * more;
    r.cluster.host_bytes = r.cluster.host_bytes / 100 * more;
    r.cluster.disk_bytes = r.cluster.disk_bytes / 100 * more;
    search = search_rig_run(&r, 0);
    CHECK(zero_search_plan_at(search, 0) != NULL);
    zero_search_destroy(search);
    r.cluster.device_bytes = r.cluster.device_bytes / 100 * 90;
    r.cluster.host_bytes = r.cluster.host_bytes / 100 * 90;
    r.cluster.disk_bytes = r.cluster.disk_bytes / 100 * 90;
    search = search_rig_run(&r, 0);
    CHECK(zero_search_plan_at(search, 0) == NULL);
    zero_search_destroy(search);
}

static void search_refuses(const search_rig *r, uint32_t held, const char *said)
{
    zero_search *search = NULL;
    const zero_search_request request = {.struct_bytes = sizeof request,
                                         .transformer = &r->transformer,
                                         .cluster = &r->cluster,
                                         .options = &r->options,
                                         .batch = &r->batch,
                                         .step_samples = r->step_samples,
                                         .held = held};
    CHECK_FAILS(zero_search_create(&request, &search), ZERO_ERR_INVALID_ARGUMENT, said);
    CHECK(search == NULL);
}

TEST(what_cannot_be_searched_is_refused)
{
    zero_search *search = NULL;
    zero_search_request request = zero_search_request_init();
    search_rig r = make_rig(400, 4000);
    CHECK_FAILS(zero_search_create(NULL, &search), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_search_create(&request, NULL), ZERO_ERR_INVALID_ARGUMENT, "search is NULL");
    CHECK_FAILS(zero_search_create(&request, &search), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    zero_search_destroy(NULL);
    CHECK(zero_search_plan_at(NULL, 0) == NULL && zero_search_nearest(NULL) == NULL);
    search_refuses(&r, 2 * ZERO_SEARCH_UNITS, "held is 0x800");
    r.step_samples = 7;
    search_refuses(&r, ZERO_SEARCH_TENSOR | ZERO_SEARCH_PIPELINE | ZERO_SEARCH_CONTEXT,
                   "7 samples in a step");
    r.step_samples = UINT64_C(1) << 33;
    search_refuses(&r, 0, "at most 2^32");
    r = make_rig(400, 4000);
    r.cluster.device_flops = 0;
    search_refuses(&r, 0, "device_flops");
    r = make_rig(400, 4000);
    r.options.master_dtype = ZERO_DTYPE_I8;
    search_refuses(&r, ZERO_SEARCH_STATES, "master_dtype");
}
