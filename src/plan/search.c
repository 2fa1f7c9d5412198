/* Owns the search for the fastest plan: shapes of batches from the least time that they take, and
 * of each the engines whose lower bounds are not beaten yet. Invariant: what is left out has a
 * bound that is worse than the worst plan that is kept. */
#include "zero/search.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sized.h"
#include "core/sizes.h"
#include "layout/layout.h"
#include "plan/estimate.h"
#include "plan/footprint.h"
#include "plan/part_plans.h"
#include "plan/search_floor.h"
#include "plan/search_space.h"

/* A coarser format counts as so much more time. */
#define COARSE_SHARE 0.01
/* Terms are rounded down to nanoseconds, and sums of doubles a little either way. */
#define SLACK_NS 32.0
#define SLACK_SHARE 1e-9

/* A plan with what it points to. */
typedef struct filled_plan {
    zero_search_plan plan;
    zero_transformer transformer;
    zero_engine_options options;
    zero_tuning tuning;
    zero_batch batch;
    zero_footprint footprint;
    zero_estimate estimate;
} filled_plan;

struct zero_search {
    uint32_t count;
    bool nearest; /* the only one does not fit */
    filled_plan plans[ZERO_SEARCH_PLANS];
    uint32_t other_counts[ZERO_SEARCH_PLANS];
    filled_plan others[ZERO_SEARCH_PLANS][ZI_FORMATS_MAX]; /* in other formats */
};

void zero_search_request_init_sized(zero_search_request *request, size_t struct_bytes)
{
    const zero_search_request known = {.struct_bytes = sizeof known};
    zi_sized_init(request, struct_bytes, &known, sizeof known);
}

/* ---- engines ---- */

/* One of a mesh, once it was needed. */
typedef struct search_engine {
    zero_plan *plan; /* NULL: options that no engine takes */
    zero_memory memory;
} search_engine;

typedef struct search_mesh {
    zero_model *model;
    zi_base *bases;          /* by split */
    bool *measured;          /* likewise */
    search_engine **engines; /* by split, mix and format */
} search_mesh;

/* A combination of all axes, with a bound of its worth or the worth itself: less is better. */
typedef struct combination {
    double worth;
    uint32_t split;
    uint32_t mix;
    uint32_t format;
    zi_shape shape;
} combination;

/* Without its shape, which all of a list have. */
typedef struct choice {
    double bound;
    uint32_t split;
    uint32_t mix;
    uint32_t format;
} choice;

typedef struct search_run {
    zi_space space;
    search_mesh *meshes;
    choice *choices; /* of one shape, or of one mesh */
    combination kept[ZERO_SEARCH_PLANS];
    uint32_t kept_count;
    uint32_t kept_most;
    double slack;        /* by which a bound may be too large */
    zero_status refused; /* of a plan that no engine takes */
    bool planned;        /* some engine has a plan */
} search_run;

static size_t engines_of(const zi_space *space, const zi_mesh *mesh)
{
    return (size_t)mesh->split_count * space->mix_count * space->format_count;
}

static zero_status open_mesh(search_run *run, uint32_t index)
{
    const zi_mesh *mesh = &run->space.meshes[index];
    search_mesh *m = &run->meshes[index];
    if (m->model != NULL) {
        return ZERO_OK;
    }
    ZI_TRY(zi_calloc(mesh->split_count, sizeof *m->bases, (void **)&m->bases));
    ZI_TRY(zi_calloc(mesh->split_count, sizeof *m->measured, (void **)&m->measured));
    ZI_TRY(zi_calloc(engines_of(&run->space, mesh), sizeof *m->engines, (void **)&m->engines));
    return zero_transformer_model(&mesh->transformer, &m->model);
}

static void close_mesh(const zi_space *space, const zi_mesh *mesh, search_mesh *m)
{
    for (size_t i = 0; m->engines != NULL && i < engines_of(space, mesh); i++) {
        if (m->engines[i] != NULL) {
            zero_plan_destroy(m->engines[i]->plan);
            zi_free(m->engines[i]);
        }
    }
    for (uint32_t i = 0; m->bases != NULL && i < mesh->split_count; i++) {
        zero_plan_destroy(m->bases[i].plan);
    }
    zi_free(m->engines);
    zi_free(m->measured);
    zi_free(m->bases);
    zero_model_destroy(m->model);
}

/* *plan := NULL where no engine takes these options, which is no error of the search. */
static zero_status make_plan(search_run *run, uint32_t mesh, const choice *c, zero_plan **plan)
{
    const zi_space *space = &run->space;
    zero_engine_options options;
    zero_tuning tuning;
    *plan = NULL;
    zi_space_options(space, &space->meshes[mesh].splits[c->split], &space->mixes[c->mix],
                     &space->formats[c->format], &options, &tuning);
    zero_status status =
        zero_plan_create(run->meshes[mesh].model, &options, space->meshes[mesh].world, plan);
    if (status == ZERO_OK) {
        status = zi_part_check(&space->meshes[mesh].transformer, *plan);
    }
    if (status != ZERO_OK) {
        zero_plan_destroy(*plan);
        *plan = NULL;
    }
    if (status == ZERO_ERR_INVALID_ARGUMENT || status == ZERO_ERR_UNSUPPORTED) {
        run->refused = status;
        return ZERO_OK;
    }
    run->planned = run->planned || status == ZERO_OK;
    return status;
}

static zero_status find_base(search_run *run, uint32_t mesh, uint32_t split, zi_base **base)
{
    search_mesh *m = &run->meshes[mesh];
    *base = &m->bases[split];
    if (m->measured[split]) {
        return ZERO_OK;
    }
    m->measured[split] = true;
    ZI_TRY(make_plan(run, mesh, &(choice){.split = split}, &(*base)->plan));
    return (*base)->plan != NULL ? zi_base_measure(&run->space, &run->space.meshes[mesh], *base)
                                 : ZERO_OK;
}

static zero_status find_engine(search_run *run, uint32_t mesh, const choice *c,
                               search_engine **engine)
{
    const zi_space *space = &run->space;
    search_engine **place =
        &run->meshes[mesh]
             .engines[((size_t)c->split * space->mix_count + c->mix) * space->format_count +
                      c->format];
    if (*place == NULL) {
        ZI_TRY(zi_calloc(1, sizeof **place, (void **)place));
        ZI_TRY(make_plan(run, mesh, c, &(*place)->plan));
        (*place)->memory = zero_memory_init();
        if ((*place)->plan != NULL) {
            ZI_TRY(zero_plan_memory((*place)->plan, &(*place)->memory));
        }
    }
    *engine = *place;
    return ZERO_OK;
}

/* ---- the plans that are kept ---- */

static bool comes_before(const combination *a, const combination *b)
{
    const uint32_t left[] = {a->shape.order, a->split, a->mix, a->format};
    const uint32_t right[] = {b->shape.order, b->split, b->mix, b->format};
    if (a->worth < b->worth || a->worth > b->worth) {
        return a->worth < b->worth;
    }
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++) {
        if (left[i] != right[i]) {
            return left[i] < right[i];
        }
    }
    return false;
}

/* True for plans that a person need not choose between: who updates, formats of states, samples and
 * groups of blocks are left to the search. */
static bool same_way(const zi_space *space, const combination *a, const combination *b)
{
    const zero_batch *left = &a->shape.batch;
    const zero_batch *right = &b->shape.batch;
    return a->shape.mesh == b->shape.mesh && a->split == b->split &&
           left->context_parallel == right->context_parallel &&
           left->recompute == right->recompute &&
           memcmp(space->mixes[a->mix].tier, space->mixes[b->mix].tier,
                  sizeof space->mixes[0].tier) == 0;
}

/* Keep it if it is one of the best, each of which is the best of its way. */
static void keep(search_run *run, const combination *made)
{
    uint32_t from = 0; /* the entry that makes room */
    while (from < run->kept_count && !same_way(&run->space, made, &run->kept[from])) {
        from++;
    }
    if (from == run->kept_count && run->kept_count < run->kept_most) {
        run->kept_count++;
    } else {
        from = from < run->kept_count ? from : run->kept_count - 1;
        if (!comes_before(made, &run->kept[from])) {
            return;
        }
    }
    for (; from > 0 && comes_before(made, &run->kept[from - 1]); from--) {
        run->kept[from] = run->kept[from - 1];
    }
    run->kept[from] = *made;
}

/* True if nothing of this bound can be kept any more. */
static bool is_beaten(const search_run *run, double bound)
{
    return run->kept_count == run->kept_most &&
           bound * (1 - SLACK_SHARE) - run->slack > run->kept[run->kept_most - 1].worth;
}

/* ---- the time of plans that fit ---- */

static double coarse(double ns, uint32_t format)
{
    return ns * (1 + COARSE_SHARE * format);
}

/* How full the fullest tier is: 1 where its need is what the rank has. */
static double fullness(const double need[ZERO_TIER_COUNT], const zero_cluster *c)
{
    const double ranks = (double)c->ranks_per_node;
    const double have[ZERO_TIER_COUNT] = {[ZERO_TIER_DEVICE] = (double)c->device_bytes,
                                          [ZERO_TIER_HOST] = (double)c->host_bytes / ranks,
                                          [ZERO_TIER_DISK] = (double)c->disk_bytes / ranks};
    double fullest = 0;
    for (int tier = ZERO_TIER_DEVICE; tier < ZERO_TIER_COUNT; tier++) {
        const double full = need[tier] > 0 ? need[tier] / have[tier] : 0;
        fullest = full > fullest ? full : fullest;
    }
    return fullest;
}

/* At least so full are the tiers with what an engine's shards and slots need. */
static double full_at_least(const search_run *run, const zi_base *base, const choice *c,
                            uint64_t activation_bytes)
{
    const zero_cluster *cluster = &run->space.cluster;
    double need[ZERO_TIER_COUNT] = {0};
    if (base->plan != NULL) {
        zi_base_bytes(&run->space, base, &run->space.mixes[c->mix], &run->space.formats[c->format],
                      need);
    }
    need[ZERO_TIER_DEVICE] += (double)activation_bytes + (double)cluster->device_reserve_bytes;
    return fullness(need, cluster);
}

/* Mixes and formats of a split that may still be kept. */
static zero_status list_split(search_run *run, const zi_shape *shape, uint32_t split,
                              uint32_t *count)
{
    const zi_space *space = &run->space;
    zi_base *base = NULL;
    double links_ns = 0;
    ZI_TRY(find_base(run, shape->mesh, split, &base));
    if (base->plan != NULL) {
        ZI_TRY(zi_base_links(space, shape, base, &links_ns));
    }
    if (is_beaten(run, shape->floor_ns + links_ns)) {
        return ZERO_OK;
    }
    for (uint32_t mix = 0; mix < space->mix_count; mix++) {
        for (uint32_t format = 0; format < space->format_count; format++) {
            choice c = {.split = split, .mix = mix, .format = format};
            const double tiers_ns = base->plan != NULL
                                        ? zi_base_tiers_ns(space, base, &space->mixes[mix],
                                                           &space->formats[format], shape)
                                        : 0;
            c.bound = coarse(shape->floor_ns + links_ns + tiers_ns, format);
            if (!is_beaten(run, c.bound) &&
                full_at_least(run, base, &c, shape->activation_bytes) <= 1 + SLACK_SHARE) {
                run->choices[(*count)++] = c;
            }
        }
    }
    return ZERO_OK;
}

static int by_bound(const void *a, const void *b)
{
    const double left = ((const choice *)a)->bound;
    const double right = ((const choice *)b)->bound;
    return (left > right) - (left < right);
}

static zero_status footprint_of(const search_run *run, const search_engine *engine,
                                const zi_shape *shape, zero_footprint *footprint)
{
    *footprint = zero_footprint_init();
    footprint->activation_bytes = shape->activation_bytes;
    return zi_footprint_of_memory(&engine->memory, &run->space.cluster, footprint);
}

static zero_status try_choice(search_run *run, const zi_shape *shape, const choice *c)
{
    search_engine *engine = NULL;
    zero_footprint footprint;
    zero_estimate estimate;
    ZI_TRY(find_engine(run, shape->mesh, c, &engine));
    if (engine->plan == NULL) {
        return ZERO_OK;
    }
    ZI_TRY(footprint_of(run, engine, shape, &footprint));
    if (zero_footprint_fits(&footprint) == 0) {
        return ZERO_OK;
    }
    ZI_TRY(zi_estimate_of_plan(&run->space.meshes[shape->mesh].transformer, &run->space.cluster,
                               engine->plan, &shape->batch, &estimate));
    const combination made = {.worth = coarse((double)estimate.expected_ns, c->format),
                              .split = c->split,
                              .mix = c->mix,
                              .format = c->format,
                              .shape = *shape};
    keep(run, &made);
    return ZERO_OK;
}

/* Take those of run->choices that may still be kept, from the least bound on. */
static zero_status take_choices(search_run *run, const zi_shape *shape, uint32_t count,
                                zero_status (*take)(search_run *run, const zi_shape *shape,
                                                    const choice *c))
{
    qsort(run->choices, count, sizeof *run->choices, by_bound);
    for (uint32_t i = 0; i < count && !is_beaten(run, run->choices[i].bound); i++) {
        ZI_TRY(take(run, shape, &run->choices[i]));
    }
    return ZERO_OK;
}

static zero_status try_shape(search_run *run, const zi_shape *shape)
{
    uint32_t count = 0;
    ZI_TRY(open_mesh(run, shape->mesh));
    for (uint32_t split = 0; split < run->space.meshes[shape->mesh].split_count; split++) {
        ZI_TRY(list_split(run, shape, split, &count));
    }
    return take_choices(run, shape, count, try_choice);
}

static int by_floor(const void *a, const void *b)
{
    const zi_shape *left = a;
    const zi_shape *right = b;
    if (left->floor_ns < right->floor_ns || left->floor_ns > right->floor_ns) {
        return left->floor_ns < right->floor_ns ? -1 : 1;
    }
    return (left->order > right->order) - (left->order < right->order);
}

static zero_status find_fastest(search_run *run)
{
    zi_space *space = &run->space;
    run->kept_most = ZERO_SEARCH_PLANS;
    run->slack = SLACK_NS;
    qsort(space->shapes, space->shape_count, sizeof *space->shapes, by_floor);
    for (uint32_t i = 0; i < space->shape_count; i++) {
        const zi_shape *shape = &space->shapes[i];
        if (shape->fits && is_beaten(run, shape->floor_ns)) {
            return ZERO_OK;
        }
        ZI_TRY(shape->fits ? try_shape(run, shape) : ZERO_OK);
    }
    return ZERO_OK;
}

/* ---- the nearest miss ---- */

static zero_status miss_choice(search_run *run, const zi_shape *shape, const choice *c)
{
    search_engine *engine = NULL;
    zero_footprint footprint;
    ZI_TRY(find_engine(run, shape->mesh, c, &engine));
    if (engine->plan == NULL) {
        return ZERO_OK;
    }
    ZI_TRY(footprint_of(run, engine, shape, &footprint));
    double need[ZERO_TIER_COUNT];
    for (int tier = 0; tier < ZERO_TIER_COUNT; tier++) {
        need[tier] = (double)footprint.need_bytes[tier];
    }
    const combination made = {.worth = fullness(need, &run->space.cluster),
                              .split = c->split,
                              .mix = c->mix,
                              .format = c->format,
                              .shape = *shape};
    keep(run, &made);
    return ZERO_OK;
}

static zero_status miss_shape(search_run *run, const zi_shape *shape)
{
    const zi_space *space = &run->space;
    uint32_t count = 0;
    zi_base *base = NULL;
    ZI_TRY(open_mesh(run, shape->mesh));
    for (uint32_t split = 0; split < space->meshes[shape->mesh].split_count; split++) {
        ZI_TRY(find_base(run, shape->mesh, split, &base));
        for (uint32_t i = 0; i < space->mix_count * space->format_count; i++) {
            choice c = {
                .split = split, .mix = i / space->format_count, .format = i % space->format_count};
            c.bound = full_at_least(run, base, &c, shape->activation_bytes);
            if (!is_beaten(run, c.bound)) {
                run->choices[count++] = c;
            }
        }
    }
    return take_choices(run, shape, count, miss_choice);
}

static int by_mesh(const void *a, const void *b)
{
    const zi_shape *left = a;
    const zi_shape *right = b;
    if (left->mesh != right->mesh) {
        return left->mesh < right->mesh ? -1 : 1;
    }
    if (left->activation_bytes != right->activation_bytes) {
        return left->activation_bytes < right->activation_bytes ? -1 : 1;
    }
    return (left->order > right->order) - (left->order < right->order);
}

/* Of each mesh the shape with the fewest activations: it needs least with every engine. */
static zero_status find_nearest(search_run *run)
{
    zi_space *space = &run->space;
    run->kept_most = 1;
    run->slack = 0;
    qsort(space->shapes, space->shape_count, sizeof *space->shapes, by_mesh);
    for (uint32_t i = 0; i < space->shape_count; i++) {
        if (i == 0 || space->shapes[i].mesh != space->shapes[i - 1].mesh) {
            ZI_TRY(miss_shape(run, &space->shapes[i]));
        }
    }
    return ZERO_OK;
}

/* ---- the result ---- */

/* filled->plan.options stays NULL where no engine takes the options. */
static zero_status fill_plan(search_run *run, const combination *made, filled_plan *filled)
{
    const zi_space *space = &run->space;
    const zi_mesh *mesh = &space->meshes[made->shape.mesh];
    const choice c = {.split = made->split, .mix = made->mix, .format = made->format};
    search_engine *engine = NULL;
    ZI_TRY(find_engine(run, made->shape.mesh, &c, &engine));
    if (engine->plan == NULL) {
        return ZERO_OK;
    }
    filled->transformer = mesh->transformer;
    filled->batch = made->shape.batch;
    zi_space_options(space, &mesh->splits[made->split], &space->mixes[made->mix],
                     &space->formats[made->format], &filled->options, &filled->tuning);
    ZI_TRY(footprint_of(run, engine, &made->shape, &filled->footprint));
    ZI_TRY(zi_estimate_of_plan(&mesh->transformer, &space->cluster, engine->plan,
                               &made->shape.batch, &filled->estimate));
    filled->plan = (zero_search_plan){.struct_bytes = sizeof filled->plan,
                                      .transformer = &filled->transformer,
                                      .options = &filled->options,
                                      .batch = &filled->batch,
                                      .footprint = &filled->footprint,
                                      .estimate = &filled->estimate,
                                      .coarseness = made->format};
    return ZERO_OK;
}

/* The same plan in every other format with which it fits. */
static zero_status fill_others(search_run *run, const combination *made, uint32_t index,
                               zero_search *search)
{
    combination other = *made;
    for (other.format = 0; other.format < run->space.format_count; other.format++) {
        filled_plan *filled = &search->others[index][search->other_counts[index]];
        filled->plan.options = NULL;
        if (other.format != made->format) {
            ZI_TRY(fill_plan(run, &other, filled));
        }
        if (filled->plan.options != NULL && zero_footprint_fits(&filled->footprint) != 0) {
            search->other_counts[index]++;
        }
    }
    return ZERO_OK;
}

static zero_status fill_search(search_run *run, zero_search *search)
{
    search->count = run->kept_count;
    search->nearest = run->kept_most == 1;
    for (uint32_t i = 0; i < run->kept_count; i++) {
        ZI_TRY(fill_plan(run, &run->kept[i], &search->plans[i]));
        ZI_TRY(search->nearest ? ZERO_OK : fill_others(run, &run->kept[i], i, search));
    }
    return ZERO_OK;
}

/* ---- units and slots ---- */

/* A way to take less of the device; those that move bytes sooner come first. One slot leaves no
 * room to gather ahead. */
typedef struct lean_way {
    zero_transformer_units units;
    uint32_t param_slots; /* 0: the default */
    uint32_t grad_slots;
} lean_way;

static const lean_way lean_ways[] = {
    {ZERO_TRANSFORMER_UNITS_LAYER, 0, 0},
    {ZERO_TRANSFORMER_UNITS_MATRIX, 0, 0},
    {ZERO_TRANSFORMER_UNITS_MATRIX, 2, 1},
    {ZERO_TRANSFORMER_UNITS_MATRIX, 1, 1},
};

static size_t choices_at_most(const zi_space *space)
{
    size_t most = 0;
    for (uint32_t i = 0; i < space->mesh_count; i++) {
        const size_t count = engines_of(space, &space->meshes[i]);
        most = count > most ? count : most;
    }
    return most;
}

/* All that fits with these units; if nothing does, and this is the last way, the nearest miss. */
static zero_status search_way(search_run *run, bool last, zero_search *search)
{
    ZI_TRY(zi_space_list(&run->space));
    ZI_TRY(zi_calloc(run->space.mesh_count, sizeof *run->meshes, (void **)&run->meshes));
    ZI_TRY(zi_calloc(choices_at_most(&run->space), sizeof *run->choices, (void **)&run->choices));
    ZI_TRY(find_fastest(run));
    if (run->kept_count == 0 && last) {
        ZI_TRY(find_nearest(run));
    }
    if (!run->planned) {
        return run->refused; /* its message is the last one */
    }
    return fill_search(run, search);
}

static void close_way(search_run *run)
{
    for (uint32_t i = 0; run->meshes != NULL && i < run->space.mesh_count; i++) {
        close_mesh(&run->space, &run->space.meshes[i], &run->meshes[i]);
    }
    zi_free(run->meshes);
    zi_free(run->choices);
    run->meshes = NULL;
    run->choices = NULL;
}

static zero_status search_ways(search_run *run, zero_search *search)
{
    const bool held = (run->space.held & (uint32_t)ZERO_SEARCH_UNITS) != 0;
    const size_t ways = held ? 0 : sizeof lean_ways / sizeof lean_ways[0];
    zero_status status = search_way(run, ways == 0, search);
    close_way(run);
    for (size_t i = 0; i < ways && status == ZERO_OK && search->count == 0; i++) {
        run->space.transformer.units = lean_ways[i].units;
        run->space.tuning.param_slots = lean_ways[i].param_slots;
        run->space.tuning.grad_slots = lean_ways[i].grad_slots;
        status = search_way(run, i + 1 == ways, search);
        close_way(run);
    }
    return status;
}

zero_status zero_search_create(const zero_search_request *request, zero_search **search)
{
    search_run run = {.refused = ZERO_OK};
    zero_search *made = NULL;
    if (search == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "search is NULL; pass the address of a zero_search *");
    }
    *search = NULL;
    ZI_TRY(zi_space_open(request, &run.space));
    ZI_TRY(zi_calloc(1, sizeof *made, (void **)&made));
    const zero_status status = search_ways(&run, made);
    zi_space_close(&run.space);
    if (status != ZERO_OK) {
        zero_search_destroy(made);
        return status;
    }
    *search = made;
    return ZERO_OK;
}

void zero_search_destroy(zero_search *search)
{
    zi_free(search);
}

const zero_search_plan *zero_search_plan_at(const zero_search *search, uint32_t index)
{
    const bool there = search != NULL && !search->nearest && index < search->count;
    return there ? &search->plans[index].plan : NULL;
}

const zero_search_plan *zero_search_format_at(const zero_search *search, uint32_t index,
                                              uint32_t other)
{
    const bool there = zero_search_plan_at(search, index) != NULL;
    return there && other < search->other_counts[index] ? &search->others[index][other].plan : NULL;
}

const zero_search_plan *zero_search_nearest(const zero_search *search)
{
    return search != NULL && search->nearest && search->count != 0 ? &search->plans[0].plan : NULL;
}
