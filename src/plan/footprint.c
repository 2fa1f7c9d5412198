/* Owns what a rank needs of each tier. Invariant: bytes of state are those of a plan that an engine
 * would be made of. */
#include "zero/footprint.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/error.h"
#include "core/sized.h"
#include "core/sizes.h"
#include "plan/activations.h"
#include "plan/batch.h"
#include "plan/cluster.h"
#include "plan/footprint.h"
#include "plan/part_plans.h"
#include "plan/spread.h"
#include "plan/transformer.h"

void zero_footprint_init_sized(zero_footprint *footprint, size_t struct_bytes)
{
    const zero_footprint known = {.struct_bytes = sizeof known};
    zi_sized_init(footprint, struct_bytes, &known, sizeof known);
}

/* Elements for each token. */
typedef struct token_elements {
    uint64_t stream; /* at the boundary of two blocks */
    uint64_t block;  /* more that backward needs of a block */
    uint64_t work;   /* gradients under way in a block */
} token_elements;

static bool footprint_has(const zero_transformer *t, uint32_t flag)
{
    return (t->flags & flag) != 0;
}

/* Outputs of the norms before a block's two halves and the stream between them, which halves that
 * read the same do without; inputs of norms behind halves. */
static uint64_t streams_of(const zero_transformer *t)
{
    const uint64_t norms = footprint_has(t, ZERO_TRANSFORMER_ONE_NORM) ? 1 : 2;
    const uint64_t between = footprint_has(t, ZERO_TRANSFORMER_PARALLEL) ? 0 : 1;
    return norms + between + (footprint_has(t, ZERO_TRANSFORMER_POST_NORMS) ? 2 : 0);
}

/* Queries, keys, values and what attention makes of them. Latents have a norm, whose input and
 * output are kept, and each rank of tensor parallelism has all of them. */
static uint64_t attention_elements(const zero_transformer *t)
{
    const uint64_t heads = zi_tensor_part(t, t->heads);
    const uint64_t latents =
        t->kv_rank != 0 ? 2 * t->query_rank + 2 * t->kv_rank + t->rope_width : 0;
    return (heads + zi_tensor_kv_heads(t)) * (t->head_width + t->value_width) + latents;
}

/* Kept beside them: what operations that are not fused leave between two of them, `gated` of it the
 * activation function's values, and scores of attention. */
static uint64_t unfused_elements(const zero_transformer *t, const zero_batch *b, uint64_t gated)
{
    const uint64_t heads = zi_tensor_part(t, t->heads);
    const uint64_t turned = t->kv_rank != 0 ? (heads + 1) * t->rope_width
                                            : (heads + zi_tensor_kv_heads(t)) * t->head_width;
    const uint64_t rotated = t->positions == 0 ? turned : 0;
    return (b->fused != 0 ? 0 : gated + rotated) +
           (b->stored_attention != 0 ? heads * b->sequence : 0);
}

static token_elements elements_of_block(const zero_transformer *t, const zero_batch *b,
                                        zi_block_kind kind)
{
    const zero_transformer alike = zi_transformer_kind(t, kind);
    const uint64_t gated = (t->flags & ZERO_TRANSFORMER_GATED) != 0;
    const uint64_t inner =
        zi_tensor_part(t, alike.ffn_width) * (alike.experts != 0 ? alike.experts_used : 1) +
        zi_tensor_part(t, alike.shared_ffn_width);
    /* Ranks of tensor parallelism split what lies between products by tokens, or not at all. */
    const uint64_t width = b->sequence_parallel != 0 ? zi_tensor_part(t, t->width) : t->width;
    /* The feed-forward layer is kept before and after its activation. Experts of other ranks'
     * tokens have what these send; on average as much as is sent. */
    const uint64_t received = t->expert_parallel > 1 ? alike.experts_used * t->width : 0;
    const uint64_t kept = streams_of(t) * width + attention_elements(t) + (2 + gated) * inner +
                          alike.experts + received + unfused_elements(t, b, gated * inner);
    return (token_elements){
        .stream = width, .block = kept, .work = 2 * width + (1 + gated) * inner + received};
}

/* How many of so many blocks are there at once: of those that are computed again one. */
static uint64_t blocks_at_once(const zero_batch *b, uint64_t layers)
{
    return b->recompute == 0 ? layers : b->recompute == 1 ? 1 : zi_div_up(layers, 2);
}

/* Of a stage's blocks together, or with recomputation of all of the one that keeps the most. */
static token_elements footprint_elements_of(const zero_transformer *t, const zero_batch *b,
                                            zi_stage stage)
{
    token_elements all = {0};
    for (int kind = 0; kind < ZI_BLOCK_KINDS; kind++) {
        const uint64_t layers = zi_stage_count(&stage, (zi_block_kind)kind);
        const token_elements one = elements_of_block(t, b, (zi_block_kind)kind);
        if (layers == 0) {
            continue;
        }
        all.stream = one.stream;
        all.block = b->recompute == 1 ? zi_max_u64(all.block, one.block)
                                      : all.block + blocks_at_once(b, layers) * one.block;
        all.work = zi_max_u64(all.work, one.work);
    }
    return all;
}

/* Statistics in fp32: mean and deviation of each norm, the sum of each head's softmax. */
static uint64_t statistics_of(const zero_transformer *t)
{
    const uint64_t latents = (t->kv_rank != 0 ? 1U : 0U) + (t->query_rank != 0 ? 1U : 0U);
    const uint64_t norms = (footprint_has(t, ZERO_TRANSFORMER_ONE_NORM) ? 1U : 2U) +
                           (footprint_has(t, ZERO_TRANSFORMER_POST_NORMS) ? 2U : 0U) + latents;
    return sizeof(float) * (2 * norms + zi_tensor_part(t, t->heads));
}

zero_status zi_activation_bytes(const zero_transformer *t, const zero_batch *b, zi_stage stage,
                                uint64_t *bytes)
{
    const token_elements each = footprint_elements_of(t, b, stage);
    const uint64_t width = zero_dtype_bytes(b->dtype);
    const uint64_t blocks = blocks_at_once(b, stage.layers);
    const uint64_t elements = (stage.layers + 1) * each.stream + each.block + each.work +
                              each.stream; /* the head's norm */
    const uint64_t token = elements * width + blocks * statistics_of(t);
    const uint64_t logits = stage.head ? b->logit_rows * zi_tensor_part(t, t->vocab) * width : 0;
    if (__builtin_mul_overflow(token, zi_batch_tokens(b), bytes) ||
        __builtin_add_overflow(*bytes, logits, bytes) || *bytes > INT64_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "activations of %" PRIu64 " samples of %" PRIu64
                " tokens take 2^63 bytes or more; make the batch smaller",
                b->samples, b->sequence);
    }
    return ZERO_OK;
}

/* The size, in blocks, of what the first stage keeps at once: with one forward, one backward in
 * turn as many micro-steps as there are stages, and where groups of blocks are interleaved a group
 * of each further stage besides (Korthikanti et al., 2022, section 4.2.3). Where stages differ, the
 * blocks are those of the fullest one. */
static zi_stage kept_stage(const zero_transformer *t, const zero_batch *b)
{
    const zi_stage fullest = zi_transformer_fullest(t);
    const uint64_t blocks = fullest.layers;
    const uint64_t stages = t->pipeline_parallel;
    const uint64_t more = b->interleave > 1 ? zi_div_up(blocks * (stages - 1), b->interleave) : 0;
    return (zi_stage){.layers = zi_min_u64(blocks * stages + more, blocks * b->micro_steps),
                      .dense = fullest.dense * zi_min_u64(stages, b->micro_steps),
                      .head = stages == 1};
}

/* Logits and their gradient in fp32, which the loss keeps besides. */
static uint64_t loss_bytes(const zero_transformer *t, const zero_batch *b, zi_stage stage)
{
    const bool narrow = zero_dtype_bytes(b->dtype) < sizeof(float);
    return stage.head && narrow ? 2 * sizeof(float) * b->logit_rows * zi_tensor_part(t, t->vocab)
                                : 0;
}

zero_status zero_activation_bytes(const zero_transformer *transformer, const zero_batch *batch,
                                  uint64_t *bytes)
{
    zero_transformer t;
    zero_batch b;
    zi_transformer_counts counts;
    if (bytes == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "bytes is NULL; pass the address of a uint64_t");
    }
    ZI_TRY(zi_transformer_resolve(transformer, &t, &counts));
    ZI_TRY(zi_batch_resolve(batch, &t, &b));
    const zi_stage stage = kept_stage(&t, &b);
    ZI_TRY(zi_activation_bytes(&t, &b, stage, bytes));
    *bytes += loss_bytes(&t, &b, stage);
    return ZERO_OK;
}

static zero_status add_plan_memory(const zero_plan *plan, zero_memory *all)
{
    zero_memory memory = zero_memory_init();
    ZI_TRY(zero_plan_memory(plan, &memory));
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        all->bytes[role] += memory.bytes[role];
    }
    for (int tier = 0; tier < ZERO_TIER_COUNT_MAX; tier++) {
        all->tier_bytes[tier] += memory.tier_bytes[tier];
    }
    return ZERO_OK;
}

static zero_status plan_state(const zero_transformer *transformer,
                              const zero_engine_options *options, uint32_t world,
                              zero_memory *memory)
{
    zi_part_plans plans;
    zero_status status = zi_part_plans_make(transformer, options, world, &plans);
    if (status == ZERO_OK) {
        status = add_plan_memory(plans.main, memory);
    }
    if (status == ZERO_OK && plans.experts != NULL) {
        status = add_plan_memory(plans.experts, memory);
    }
    zi_part_plans_destroy(&plans);
    return status;
}

zero_status zi_footprint_of_memory(const zero_memory *state, const zero_cluster *c,
                                   zero_footprint *made)
{
    memcpy(made->role_bytes, state->bytes, sizeof made->role_bytes);
    memcpy(made->need_bytes, state->tier_bytes, sizeof made->need_bytes);
    made->need_bytes[ZERO_TIER_DEVICE] += made->activation_bytes + c->device_reserve_bytes;
    made->need_bytes[ZERO_TIER_HOST] += c->host_reserve_bytes / c->ranks_per_node;
    for (int tier = 0; tier < ZERO_TIER_COUNT; tier++) {
        if (made->need_bytes[tier] > INT64_MAX) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "a rank needs %" PRIu64 " bytes of the %s, and at most 2^63 - 1 are counted; "
                    "make the model, the batch or the cluster's reserves smaller",
                    made->need_bytes[tier], zero_tier_name((zero_tier)tier));
        }
    }
    const uint64_t own = made->need_bytes[ZERO_TIER_DEVICE] - c->device_reserve_bytes;
    const zi_spread spread = zi_spread_of_memory();
    made->likely_low_bytes =
        zi_min_u64(zi_spread_low(spread, own) + c->device_reserve_bytes, INT64_MAX);
    made->likely_high_bytes =
        zi_min_u64(zi_spread_high(spread, own) + c->device_reserve_bytes, INT64_MAX);
    made->have_bytes[ZERO_TIER_DEVICE] = c->device_bytes;
    made->have_bytes[ZERO_TIER_HOST] = c->host_bytes / c->ranks_per_node;
    made->have_bytes[ZERO_TIER_DISK] = c->disk_bytes / c->ranks_per_node;
    return ZERO_OK;
}

zero_status zero_footprint_of(const zero_transformer *transformer, const zero_cluster *cluster,
                              const zero_engine_options *options, const zero_batch *batch,
                              zero_footprint *footprint)
{
    zero_transformer t;
    zero_batch b;
    zero_cluster c;
    zi_transformer_counts counts;
    zero_memory state = zero_memory_init();
    zero_footprint made = {.struct_bytes = sizeof made};
    uint32_t column = 0;
    ZI_TRY(zero_activation_bytes(transformer, batch, &made.activation_bytes));
    ZI_TRY(zi_transformer_resolve(transformer, &t, &counts));
    ZI_TRY(zi_batch_resolve(batch, &t, &b));
    ZI_TRY(zi_cluster_resolve(cluster, &c));
    ZI_TRY(zi_mesh_columns(&t, &b, c.nodes * c.ranks_per_node, &column));
    ZI_TRY(plan_state(transformer, options, column, &state));
    ZI_TRY(zi_footprint_of_memory(&state, &c, &made));
    return ZI_SIZED_OUT(zero_footprint, footprint, &made);
}

int32_t zero_footprint_fits(const zero_footprint *footprint)
{
    zero_footprint f = {.struct_bytes = sizeof f};
    if (zi_sized_in("zero_footprint", footprint, &f, sizeof f) != ZERO_OK) {
        return 0;
    }
    for (int tier = 0; tier < ZERO_TIER_COUNT_MAX; tier++) {
        if (f.need_bytes[tier] > f.have_bytes[tier]) {
            return 0;
        }
    }
    return 1;
}

/* A model of any depth on a machine, of which one asks whether it fits. `layers` below are those of
 * a pipeline stage. */
typedef struct depth_search {
    zero_transformer transformer;
    const zero_cluster *cluster;
    const zero_engine_options *options;
    zero_batch batch;
} depth_search;

static void set_layers(depth_search *search, uint64_t layers)
{
    search->transformer.layers = layers * search->transformer.pipeline_parallel;
}

static zero_status footprint_at(depth_search *search, uint64_t layers, zero_footprint *footprint)
{
    zero_batch batch = search->batch;
    set_layers(search, layers);
    batch.interleave = zi_min_u64(batch.interleave, layers); /* fewer blocks, fewer groups */
    *footprint = zero_footprint_init();
    return zero_footprint_of(&search->transformer, search->cluster, search->options, &batch,
                             footprint);
}

/* True if a transformer of so many layers can be described at all. */
static bool has_description(depth_search *search, uint64_t layers)
{
    set_layers(search, layers);
    return zero_transformer_check(&search->transformer) == ZERO_OK;
}

/* *result := true if so many layers fit. A model too large to be described does not. */
static zero_status fits(depth_search *search, uint64_t layers, bool *result)
{
    zero_footprint f;
    *result = layers == 0;
    if (layers == 0 || !has_description(search, layers)) {
        return ZERO_OK;
    }
    ZI_TRY(footprint_at(search, layers, &f));
    *result = zero_footprint_fits(&f) != 0;
    return ZERO_OK;
}

/* How many layers fit if each adds what those between one layer and `deep` add on average. */
static uint64_t depth_on_line(const zero_footprint *one, const zero_footprint *at, uint64_t deep)
{
    double most = (double)ZERO_FOOTPRINT_LAYERS_MAX;
    for (int tier = 0; tier < ZERO_TIER_COUNT_MAX; tier++) {
        const double grown = (double)at->need_bytes[tier] - (double)one->need_bytes[tier];
        const double left = (double)one->have_bytes[tier] - (double)one->need_bytes[tier];
        if (left < 0) {
            return 0;
        }
        most = fmin(most, grown > 0 ? 1 + left / grown * (double)(deep - 1) : most);
    }
    return (uint64_t)most;
}

/* About how many fit: every tier's bytes grow nearly evenly with the layers. What the first two
 * layers say leads to a deep model, and what that one needs says it nearly exactly: models take
 * long to build when they are deep. */
static zero_status guess_depth(depth_search *search, uint64_t *layers)
{
    zero_footprint one;
    zero_footprint at;
    *layers = 0;
    if (!has_description(search, 2)) {
        return ZERO_OK;
    }
    ZI_TRY(footprint_at(search, 1, &one));
    ZI_TRY(footprint_at(search, 2, &at));
    *layers = depth_on_line(&one, &at, 2);
    if (*layers > 2 && *layers < ZERO_FOOTPRINT_LAYERS_MAX && has_description(search, *layers)) {
        ZI_TRY(footprint_at(search, *layers, &at));
        *layers = depth_on_line(&one, &at, *layers);
    }
    return ZERO_OK;
}

zero_status zero_footprint_layers(const zero_transformer *transformer, const zero_cluster *cluster,
                                  const zero_engine_options *options, const zero_batch *batch,
                                  uint64_t *layers)
{
    depth_search search = {.cluster = cluster, .options = options};
    zi_transformer_counts counts;
    if (layers == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "layers is NULL; pass the address of a uint64_t");
    }
    *layers = 0;
    ZI_TRY(zi_transformer_resolve(transformer, &search.transformer, &counts));
    ZI_TRY(zi_batch_resolve(batch, &search.transformer, &search.batch));
    /* From the guess outwards until `low` fits and `high` does not: every tier needs more for more
     * layers. */
    uint64_t low = 0;
    ZI_TRY(guess_depth(&search, &low));
    uint64_t high = low + 1;
    uint64_t step = 1;
    bool more = false;
    ZI_TRY(fits(&search, low, &more));
    for (; !more; step *= 2) {
        high = low;
        low = low > step ? low - step : 0;
        ZI_TRY(fits(&search, low, &more));
    }
    const uint64_t most = ZERO_FOOTPRINT_LAYERS_MAX / search.transformer.pipeline_parallel;
    for (step = 1; more && high <= most; step *= 2) {
        ZI_TRY(fits(&search, high, &more));
        low = more ? high : low;
        high = more ? high + step : high;
    }
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        ZI_TRY(fits(&search, middle, &more));
        low = more ? middle : low;
        high = more ? high : middle;
    }
    *layers = zi_min_u64(low, most) * search.transformer.pipeline_parallel;
    return ZERO_OK;
}
