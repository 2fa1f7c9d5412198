/* Owns the toy's model: its description, initial values, gradients and the reference optimizer.
 * Invariant: everything is a function of indices and a few constants, so ranks never have to tell
 * one another anything. */
#include "toy.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void toy_model_open(toy_model *model)
{
    memset(model, 0, sizeof *model);
    TOY_CHECK(zero_model_create(&model->model) == ZERO_OK &&
                  zero_model_create(&model->plain) == ZERO_OK,
              "%s", zero_last_error()->message);
}

void toy_model_close(toy_model *model)
{
    zero_model_destroy(model->model);
    zero_model_destroy(model->plain);
    model->model = NULL;
    model->plain = NULL;
}

uint32_t toy_model_unit(toy_model *model, const char *name)
{
    TOY_CHECK(model->unit_count < TOY_UNITS_MAX, "too many units");
    toy_unit *unit = &model->units[model->unit_count];
    (void)snprintf(unit->name, sizeof unit->name, "%s", name);
    uint32_t index = UINT32_MAX;
    const zero_unit_desc desc = {.name = name, .shard_group = model->shard_group};
    TOY_CHECK(zero_unit_add(model->plain, &(zero_unit_desc){.name = name}, NULL, NULL) == ZERO_OK &&
                  zero_unit_add(model->model, &desc, &index, NULL) == ZERO_OK,
              "%s", zero_last_error()->message);
    TOY_CHECK(index == model->unit_count, "unit %s has index %u, not %u", name, index,
              model->unit_count);
    model->unit_count++;
    return index;
}

static uint32_t add_tensor(toy_model *model, const zero_tensor_desc *desc, uint32_t key)
{
    TOY_CHECK(model->tensor_count < TOY_TENSORS_MAX && model->unit_count != 0, "no room");
    const uint32_t index = model->tensor_count;
    toy_tensor *tensor = &model->tensors[index];
    char name[TOY_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%.16s.t%u", model->units[model->unit_count - 1].name, key);
    memcpy(tensor->name, name, sizeof name);
    tensor->desc = *desc;
    tensor->unit = model->unit_count - 1;
    tensor->count = 1;
    for (uint32_t d = 0; d < desc->dims; d++) {
        tensor->count *= desc->shape[d];
    }
    tensor->base = model->element_count;
    tensor->key = key;
    model->element_count += tensor->count;
    model->tensor_count++;
    zero_tensor_desc named = *desc;
    named.name = tensor->name;
    uint32_t given = UINT32_MAX;
    TOY_CHECK(zero_tensor_add(model->plain, tensor->unit, &named, &given) == ZERO_OK &&
                  zero_tensor_add(model->model, tensor->unit, &named, &given) == ZERO_OK,
              "%s", zero_last_error()->message);
    TOY_CHECK(given == index, "tensor %s has index %u, not %u", tensor->name, given, index);
    return index;
}

uint32_t toy_model_tensor(toy_model *model, uint64_t rows, uint64_t cols, zero_dtype dtype,
                          uint32_t flags)
{
    const zero_tensor_desc desc = {
        .dims = cols != 0 ? 2 : 1, .shape = {rows, cols}, .dtype = dtype, .flags = flags};
    return add_tensor(model, &desc, model->tensor_count);
}

uint32_t toy_model_grouped(toy_model *model, uint64_t rows, zero_dtype dtype, uint32_t flags,
                           uint32_t group)
{
    const zero_tensor_desc desc = {
        .dims = 1, .shape = {rows}, .dtype = dtype, .flags = flags, .group = group};
    return add_tensor(model, &desc, model->tensor_count);
}

uint32_t toy_model_part(toy_model *model, const zero_tensor_desc *desc, uint32_t key,
                        uint64_t first)
{
    const uint32_t index = add_tensor(model, desc, key);
    model->tensors[index].key_first = first;
    return index;
}

UNWATCHED uint64_t toy_element(const toy_tensor *tensor, uint64_t element)
{
    const zero_tensor_desc *desc = &tensor->desc;
    uint64_t stride = 1;
    uint64_t found = tensor->key_first;
    if (desc->dims == 0 || desc->global_shape[0] == 0) {
        return found + element;
    }
    for (uint32_t d = desc->dims; d-- > 0; element /= desc->shape[d]) {
        found += (desc->box_first[d] + element % desc->shape[d]) * stride;
        stride *= desc->global_shape[d];
    }
    return found;
}

void toy_model_tie(toy_model *model, uint32_t unit, uint32_t tensor)
{
    toy_unit *user = &model->units[unit];
    TOY_CHECK(user->tie_count < TOY_TIES_MAX, "too many ties");
    user->ties[user->tie_count++] = tensor;
    TOY_CHECK(zero_tensor_tie(model->plain, unit, tensor) == ZERO_OK &&
                  zero_tensor_tie(model->model, unit, tensor) == ZERO_OK,
              "%s", zero_last_error()->message);
}

uint32_t toy_model_layer(toy_model *model, const char *kind, uint32_t index)
{
    char name[TOY_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s%u", kind, index);
    return toy_model_unit(model, name);
}

void toy_model_equal(toy_model *model, uint32_t unit_count, uint64_t count, zero_dtype dtype)
{
    toy_model_open(model);
    for (uint32_t u = 0; u < unit_count; u++) {
        (void)toy_model_layer(model, "layer", u);
        (void)toy_model_tensor(model, count, 0, dtype, ZERO_TENSOR_PLAIN);
    }
}

void toy_model_mixed(toy_model *model, zero_dtype dtype)
{
    toy_model_open(model);
    (void)toy_model_unit(model, "embed");
    const uint32_t table = toy_model_tensor(model, 23, 16, dtype, ZERO_TENSOR_PLAIN);
    (void)toy_model_tensor(model, 5, 16, dtype, ZERO_TENSOR_PLAIN);
    (void)toy_model_unit(model, "block0");
    (void)toy_model_tensor(model, 17, 19, dtype, ZERO_TENSOR_PLAIN);
    (void)toy_model_tensor(model, 17, 0, dtype, ZERO_TENSOR_NO_DECAY);
    (void)toy_model_tensor(model, 0, 0, dtype, ZERO_TENSOR_PLAIN);
    (void)toy_model_tensor(model, 1, 0, ZERO_DTYPE_F32, ZERO_TENSOR_NO_DECAY);
    (void)toy_model_unit(model, "frozen");
    (void)toy_model_tensor(model, 130, 0, dtype, ZERO_TENSOR_FROZEN);
    (void)toy_model_unit(model, "block1");
    (void)toy_model_tensor(model, 16, 16, dtype, ZERO_TENSOR_PLAIN);
    (void)toy_model_tensor(model, 33, 0, dtype, ZERO_TENSOR_FROZEN);
    (void)toy_model_tensor(model, 129, 0, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN);
    (void)toy_model_unit(model, "empty");
    const uint32_t head = toy_model_unit(model, "head");
    (void)toy_model_tensor(model, 16, 0, dtype, ZERO_TENSOR_NO_DECAY);
    toy_model_tie(model, head, table);
}

static void model_wide(toy_model *model, zero_dtype dtype)
{
    toy_model_mixed(model, dtype);
    for (uint32_t i = 0; i < 3; i++) {
        (void)toy_model_layer(model, "wide", i);
        (void)toy_model_tensor(model, 31 + i, 47, dtype, ZERO_TENSOR_PLAIN);
        (void)toy_model_tensor(model, 129, 0, ZERO_DTYPE_F32, ZERO_TENSOR_NO_DECAY);
        (void)toy_model_tensor(model, 300 + i, 0, dtype, ZERO_TENSOR_PLAIN);
    }
}

/* A well-mixed word from four indices (the finaliser of SplitMix64, chained). */
UNWATCHED static uint64_t mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    const uint64_t words[4] = {a, b, c, d};
    uint64_t state = UINT64_C(0x9E3779B97F4A7C15);
    for (int i = 0; i < 4; i++) {
        state += words[i] + UINT64_C(0x9E3779B97F4A7C15);
        state = (state ^ (state >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
        state = (state ^ (state >> 27)) * UINT64_C(0x94D049BB133111EB);
        state ^= state >> 31;
    }
    return state;
}

/* In [-1, 1), 24 bits of it. */
UNWATCHED static float unit_value(uint64_t word)
{
    return (float)((int32_t)(word >> 40) - (1 << 23)) * 0x1p-23f;
}

UNWATCHED float toy_initial(uint32_t tensor, uint64_t element)
{
    return unit_value(mix(7, tensor, element, 0));
}

void toy_fill(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    const toy_model *model = user;
    const toy_tensor *of = model != NULL ? &model->tensors[tensor] : NULL;
    for (uint64_t i = 0; i < count; i++) {
        values[i] = of != NULL ? toy_initial(of->key, toy_element(of, first + i))
                               : toy_initial(tensor, first + i);
    }
}

UNWATCHED float toy_gradient(toy_flavour flavour, uint32_t tensor, uint64_t element, uint64_t step,
                             uint64_t sample, float param)
{
    const uint64_t word = mix(element, (uint64_t)tensor << 32 | sample, step, 1);
    if (flavour == TOY_INTEGER) {
        return (float)((int32_t)(word % 7) - 3 + (param > 0.25f));
    }
    return unit_value(word) + 0.5f * unit_value(word << 24) * param;
}

toy_run toy_run_init(const toy_model *model)
{
    toy_run run;
    memset(&run, 0, sizeof run);
    run.model = model;
    run.options = zero_engine_options_init();
    run.tuning = zero_tuning_init();
    run.options.threads = 1;
    run.options.device = toy_device();
    run.params = zero_step_params_init();
    run.params.hyper.adamw.lr = 1e-2f;
    run.params.hyper.adamw.weight_decay = 0.1f;
    run.flavour = TOY_REAL;
    run.steps = 20;
    run.micro_steps = 1;
    run.fold = 1;
    return run;
}

/* Models that go when the process ends. Ranks that are threads may make some. */
typedef struct owned_model {
    toy_model model;
    struct owned_model *next;
} owned_model;

static struct {
    pthread_mutex_t mutex; /* guards the list */
    owned_model *first;
} owned = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void close_owned(void)
{
    while (owned.first != NULL) {
        owned_model *gone = owned.first;
        owned.first = gone->next;
        toy_model_close(&gone->model);
        free(gone);
    }
}

static toy_model *own_model(void)
{
    owned_model *own = calloc(1, sizeof *own);
    TOY_CHECK(own != NULL, "no memory");
    (void)pthread_mutex_lock(&owned.mutex);
    TOY_CHECK(owned.first != NULL || atexit(close_owned) == 0, "no exit handler");
    own->next = owned.first;
    owned.first = own;
    (void)pthread_mutex_unlock(&owned.mutex);
    return &own->model;
}

toy_model *toy_model_new(void)
{
    toy_model *model = own_model();
    toy_model_open(model);
    return model;
}

toy_run toy_run_made(void (*make)(toy_model *model))
{
    toy_model *model = own_model();
    make(model);
    return toy_run_init(model);
}

toy_run toy_run_equal(uint32_t unit_count, uint64_t count, zero_dtype dtype)
{
    toy_model *model = own_model();
    toy_model_equal(model, unit_count, count, dtype);
    return toy_run_init(model);
}

toy_run toy_run_mixed(zero_dtype dtype)
{
    toy_model *model = own_model();
    toy_model_mixed(model, dtype);
    return toy_run_init(model);
}

toy_run toy_run_wide(zero_dtype dtype)
{
    toy_model *model = own_model();
    model_wide(model, dtype);
    return toy_run_init(model);
}

void toy_run_tiers(toy_run *run, zero_role first, zero_tier tier)
{
    for (int role = (int)first; role < ZI_SHARD_ROLES; role++) {
        run->options.tier[role] = tier;
    }
}

void toy_run_disk(toy_run *run, const char *const *directories, uint32_t count)
{
    run->options.disk_directories = directories;
    run->options.disk_directory_count = count;
    run->tuning.extent_bytes = 4096;
    run->tuning.io_window = 3;
}

void toy_run_overlap(toy_run *run, const char *const *directory)
{
    toy_run_tiers(run, ZERO_ROLE_MASTER, ZERO_TIER_DISK);
    toy_run_disk(run, directory, 1);
    run->tuning.speculative_step = 1;
    run->predicted = true;
}

zero_engine_options toy_options(const toy_run *run)
{
    zero_engine_options options = run->options;
    options.tuning = &run->tuning;
    return options;
}

uint32_t toy_shardings(uint32_t ranks, bool hybrids, toy_sharding *ways)
{
    static const toy_sharding all[] = {
        {"stage 0", ZERO_STAGE_0, 0, 0, 0},      {"stage 1", ZERO_STAGE_1, 0, 0, 0},
        {"stage 2", ZERO_STAGE_2, 0, 0, 0},      {"stage 3", ZERO_STAGE_3, 0, 0, 0},
        {"hybrid 1", ZERO_STAGE_3, 1, 0, 0},     {"hybrid 2", ZERO_STAGE_3, 2, 0, 0},
        {"hybrid 4", ZERO_STAGE_3, 4, 0, 0},     {"hybrid 2/4/8", ZERO_STAGE_3, 2, 4, 8},
        {"hybrid 2/2/4", ZERO_STAGE_3, 2, 2, 4}, {"hybrid 1/2/4", ZERO_STAGE_3, 1, 2, 4},
        {"hybrid 1/3/3", ZERO_STAGE_3, 1, 3, 3},
    };
    uint32_t count = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const toy_sharding *way = &all[i];
        const uint32_t widest = way->optimizer_group != 0 ? way->optimizer_group : way->shard_group;
        const bool hybrid = way->shard_group != 0;
        if (hybrid && (!hybrids || widest > ranks || ranks % widest != 0)) {
            continue;
        }
        ways[count++] = *way;
    }
    return count;
}

void toy_sharding_apply(const toy_sharding *way, toy_run *run)
{
    run->options.stage = way->stage;
    run->options.shard_group = way->shard_group;
    run->tuning.grad_group = way->grad_group;
    run->tuning.optimizer_group = way->optimizer_group;
}

zero_memory toy_planned(const toy_run *run, uint32_t ranks)
{
    zero_plan *plan = NULL;
    zero_memory memory = zero_memory_init();
    TOY_CHECK(zero_plan_create(run->model->model, TOY_OPTIONS(run), ranks, &plan) == ZERO_OK &&
                  zero_plan_memory(plan, &memory) == ZERO_OK,
              "%s", zero_last_error()->message);
    zero_plan_destroy(plan);
    return memory;
}

const char *toy_split(toy_run *run, uint32_t ranks, uint32_t way)
{
    toy_sharding ways[16];
    if (way >= toy_shardings(ranks, true, ways)) {
        return NULL;
    }
    toy_sharding_apply(&ways[way], run);
    return ways[way].name;
}

bool toy_samples_ways = UNDER_SANITIZER;

zero_status toy_each_way(zero_world *world, const toy_run *run, toy_way_fn fn, void *user)
{
    toy_sharding ways[16];
    const uint32_t count = toy_shardings(zero_world_size(world), true, ways);
    for (uint32_t w = 0; w < count; w++) {
        toy_run split = *run;
        toy_sharding_apply(&ways[w], &split);
        if (!toy_samples_ways || (w + zero_world_size(world)) % 2 == 0) {
            TOY_TRY(fn(world, &split, user));
        }
    }
    return ZERO_OK;
}

typedef struct ways {
    const toy_run *run;
    toy_way_fn fn;
    void *user;
} ways;

static zero_status each_way(zero_world *world, void *user)
{
    const ways *w = user;
    return toy_each_way(world, w->run, w->fn, w->user);
}

zero_status toy_run_ways(uint32_t ranks, uint32_t deadline_ms, const toy_run *run, toy_way_fn fn,
                         void *user)
{
    ways all = {run, fn, user};
    return zero_world_run(ranks, deadline_ms, each_way, &all);
}

/* Times that a sample's gradient of a tensor is added: once by its own unit, once by each tie. */
static uint32_t uses_of(const toy_model *model, uint32_t tensor)
{
    uint32_t uses = 1;
    for (uint32_t u = 0; u < model->unit_count; u++) {
        for (uint32_t i = 0; i < model->units[u].tie_count; i++) {
            uses += model->units[u].ties[i] == tensor;
        }
    }
    return uses;
}

/* Sum of a step's gradients of one element over all samples. */
static double sum_gradients(const toy_run *run, uint32_t ranks, uint32_t tensor, uint64_t element,
                            uint64_t step, float param)
{
    const uint64_t slots = (uint64_t)ranks * run->micro_steps * run->fold;
    double sum = 0;
    for (uint64_t sample = 0; sample < slots; sample++) {
        if (run->samples == 0 || sample < run->samples) {
            sum += (double)toy_gradient(run->flavour, tensor, element, step, sample, param);
        }
    }
    return sum * uses_of(run->model, tensor);
}

/* The whole model's norm of the mean gradient, and the mean gradients. */
static double mean_gradients(const toy_run *run, uint32_t ranks, uint64_t step, const float *param,
                             double *mean)
{
    const toy_model *model = run->model;
    const double divisor =
        run->params.grad_divisor > 0 ? run->params.grad_divisor : (double)ranks * run->micro_steps;
    double squares = 0;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        for (uint64_t e = 0; e < tensor->count; e++) {
            const uint64_t at = tensor->base + e;
            const bool trained = (tensor->desc.flags & ZERO_TENSOR_FROZEN) == 0;
            mean[at] = trained ? sum_gradients(run, ranks, t, e, step, param[at]) / divisor : 0;
            squares += mean[at] * mean[at];
        }
    }
    return sqrt(squares);
}

/* The state that an update in double goes on with. */
typedef struct reference {
    float *param;
    double *mean;
    double *moment1;
    double *moment2;
} reference;

static void update_adamw(const reference *all, uint64_t i, const zero_adamw *h, double decay,
                         double g, uint64_t step)
{
    const double b1 = (double)h->beta1;
    const double b2 = (double)h->beta2;
    const double lr = (double)h->lr;
    const double c1 = 1 - pow(b1, (double)(step + 1));
    const double c2 = 1 - pow(b2, (double)(step + 1));
    all->moment1[i] = b1 * all->moment1[i] + (1 - b1) * g;
    all->moment2[i] = b2 * all->moment2[i] + (1 - b2) * g * g;
    const double root = sqrt(all->moment2[i] / c2) + (double)h->eps;
    all->param[i] =
        (float)((1 - lr * decay) * (double)all->param[i] - lr * (all->moment1[i] / c1) / root);
}

static void update_lion(const reference *all, uint64_t i, const zero_lion *h, double decay,
                        double g)
{
    const double b1 = (double)h->beta1;
    const double b2 = (double)h->beta2;
    const double lr = (double)h->lr;
    const double c = b1 * all->moment1[i] + (1 - b1) * g;
    const double sign = c > 0 ? 1 : c < 0 ? -1 : 0;
    all->param[i] = (float)((1 - lr * decay) * (double)all->param[i] - lr * sign);
    all->moment1[i] = b2 * all->moment1[i] + (1 - b2) * g;
}

static void update_sgd(const reference *all, uint64_t i, const zero_sgd *h, double decay, double g)
{
    const double momentum = (double)h->momentum;
    const double d = g + decay * (double)all->param[i];
    all->moment1[i] = momentum * all->moment1[i] + d;
    const double move = h->nesterov != 0 ? d + momentum * all->moment1[i] : all->moment1[i];
    all->param[i] = (float)((double)all->param[i] - (double)h->lr * move);
}

/* LAMB's update before its rate; the moments move. */
static double lamb_direction(const reference *all, uint64_t i, const zero_lamb *h, double decay,
                             double g, uint64_t step)
{
    const double b1 = (double)h->beta1;
    const double b2 = (double)h->beta2;
    all->moment1[i] = b1 * all->moment1[i] + (1 - b1) * g;
    all->moment2[i] = b2 * all->moment2[i] + (1 - b2) * g * g;
    const double m = all->moment1[i] / (1 - pow(b1, (double)(step + 1)));
    const double v = all->moment2[i] / (1 - pow(b2, (double)(step + 1)));
    return m / (sqrt(v) + (double)h->eps) + decay * (double)all->param[i];
}

/* The gradients of the tensor in all->mean become its directions. */
static void update_lamb(const reference *all, const toy_tensor *tensor, const zero_lamb *h,
                        double clip, uint64_t step)
{
    const bool decays = (tensor->desc.flags & ZERO_TENSOR_NO_DECAY) == 0;
    const double decay = decays ? (double)h->weight_decay : 0;
    double squares[2] = {0, 0};
    double ratio = 1;
    for (uint64_t i = tensor->base; i < tensor->base + tensor->count; i++) {
        all->mean[i] = lamb_direction(all, i, h, decay, all->mean[i] * clip, step);
        squares[0] += (double)all->param[i] * (double)all->param[i];
        squares[1] += all->mean[i] * all->mean[i];
    }
    if (squares[0] > 0 && squares[1] > 0 && (decays || h->adapt_undecayed != 0)) {
        ratio = fmax(sqrt(squares[0] / squares[1]), (double)h->min_ratio);
        ratio = h->max_ratio != 0 ? fmin(ratio, (double)h->max_ratio) : ratio;
    }
    for (uint64_t i = tensor->base; i < tensor->base + tensor->count; i++) {
        all->param[i] = (float)((double)all->param[i] - (double)h->lr * ratio * all->mean[i]);
    }
}

static void update_lars(const reference *all, const toy_tensor *tensor, const zero_lars *h,
                        double clip)
{
    const bool decays = (tensor->desc.flags & ZERO_TENSOR_NO_DECAY) == 0;
    const double decay = decays ? (double)h->weight_decay : 0;
    double squares[2] = {0, 0};
    double local = 1;
    for (uint64_t i = tensor->base; i < tensor->base + tensor->count; i++) {
        squares[0] += (double)all->param[i] * (double)all->param[i];
        squares[1] += all->mean[i] * clip * all->mean[i] * clip;
    }
    if (squares[0] > 0 && squares[1] > 0 && (decays || h->adapt_undecayed != 0)) {
        const double param = sqrt(squares[0]);
        local = (double)h->trust * param / (sqrt(squares[1]) + decay * param + (double)h->eps);
    }
    for (uint64_t i = tensor->base; i < tensor->base + tensor->count; i++) {
        const double d = all->mean[i] * clip + decay * (double)all->param[i];
        all->moment1[i] = (double)h->momentum * all->moment1[i] + (double)h->lr * local * d;
        all->param[i] = (float)((double)all->param[i] - all->moment1[i]);
    }
}

static void update_tensor(const toy_run *run, const reference *all, uint32_t t, double clip,
                          uint64_t step)
{
    const toy_tensor *tensor = &run->model->tensors[t];
    const zero_hyper *h = tensor->desc.group < run->params.group_count
                              ? &run->params.groups[tensor->desc.group]
                              : &run->params.hyper;
    const bool decays = (tensor->desc.flags & ZERO_TENSOR_NO_DECAY) == 0;
    if (h->kind == ZERO_OPTIMIZER_LAMB) {
        update_lamb(all, tensor, &h->lamb, clip, step);
        return;
    }
    if (h->kind == ZERO_OPTIMIZER_LARS) {
        update_lars(all, tensor, &h->lars, clip);
        return;
    }
    for (uint64_t i = tensor->base; i < tensor->base + tensor->count; i++) {
        const double g = all->mean[i] * clip;
        if (h->kind == ZERO_OPTIMIZER_LION) {
            update_lion(all, i, &h->lion, decays ? (double)h->lion.weight_decay : 0, g);
        } else if (h->kind == ZERO_OPTIMIZER_SGD) {
            update_sgd(all, i, &h->sgd, decays ? (double)h->sgd.weight_decay : 0, g);
        } else {
            update_adamw(all, i, &h->adamw, decays ? (double)h->adamw.weight_decay : 0, g, step);
        }
    }
}

void toy_reference(const toy_run *run, uint32_t ranks, float *param)
{
    const toy_model *model = run->model;
    const size_t count = model->element_count + 1;
    double *memory = calloc(3 * count, sizeof *memory);
    TOY_CHECK(memory != NULL, "no memory");
    const reference all = {param, memory, memory + count, memory + 2 * count};
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        toy_fill(NULL, t, 0, model->tensors[t].count, param + model->tensors[t].base);
    }
    for (uint64_t step = 0; step < run->steps; step++) {
        const double norm = mean_gradients(run, ranks, step, param, all.mean);
        const double limit = (double)run->params.max_norm;
        const double clip = limit > 0 && norm > limit ? limit / norm : 1;
        for (uint32_t t = 0; t < model->tensor_count; t++) {
            if ((model->tensors[t].desc.flags & ZERO_TENSOR_FROZEN) == 0) {
                update_tensor(run, &all, t, clip, step);
            }
        }
    }
    free(memory);
}
