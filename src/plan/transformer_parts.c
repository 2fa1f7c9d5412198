/* Owns which blocks of a transformer are of which kind, and which of them a pipeline stage has.
 * Invariant: counts are exact for any neighbouring blocks. */
#include "core/sizes.h"
#include "plan/transformer.h"

zero_transformer zi_transformer_whole(const zero_transformer *t)
{
    zero_transformer whole = *t;
    whole.tensor_parallel = 1;
    whole.pipeline_parallel = 1;
    whole.expert_parallel = 1;
    return whole;
}

zero_transformer zi_transformer_kind(const zero_transformer *t, zi_block_kind kind)
{
    zero_transformer alike = *t;
    if (kind == ZI_BLOCK_DENSE && t->experts != 0) {
        alike.experts = 0;
        alike.experts_used = 0;
        alike.shared_ffn_width = 0;
        alike.ffn_width = t->dense_ffn_width;
    }
    alike.dense_layers = 0;
    alike.expert_every = 1;
    return alike;
}

/* How many of the first `count` blocks have no experts where others have. */
static uint64_t dense_among(const zero_transformer *t, uint64_t count)
{
    const uint64_t first = zi_min_u64(count, t->dense_layers);
    const uint64_t rest = count - first;
    return t->experts != 0 ? first + rest - rest / t->expert_every : 0;
}

static uint64_t windowed_among(const zero_transformer *t, uint64_t count)
{
    if (t->window == 0) {
        return 0;
    }
    return t->full_every != 0 ? count - count / t->full_every : count;
}

zi_block_kind zi_transformer_kind_at(const zero_transformer *t, uint64_t block)
{
    return dense_among(t, block + 1) > dense_among(t, block) ? ZI_BLOCK_DENSE : ZI_BLOCK_MAIN;
}

bool zi_transformer_windowed_at(const zero_transformer *t, uint64_t block)
{
    return windowed_among(t, block + 1) > windowed_among(t, block);
}

static zi_stage stage_between(const zero_transformer *t, uint64_t first, uint64_t end)
{
    return (zi_stage){.first = first,
                      .layers = end - first,
                      .dense = dense_among(t, end) - dense_among(t, first),
                      .windowed = windowed_among(t, end) - windowed_among(t, first),
                      .head = end == t->layers};
}

zi_stage zi_transformer_all(const zero_transformer *t)
{
    return stage_between(t, 0, t->layers);
}

zi_stage zi_transformer_stage(const zero_transformer *t, uint64_t stage)
{
    const uint64_t few = t->layers / t->pipeline_parallel;
    const uint64_t longer = t->layers % t->pipeline_parallel; /* stages with one more */
    const uint64_t first = stage * few + zi_min_u64(stage, longer);
    return stage_between(t, first, first + few + (stage < longer ? 1 : 0));
}

uint64_t zi_stage_count(const zi_stage *stage, zi_block_kind kind)
{
    return kind == ZI_BLOCK_DENSE ? stage->dense : stage->layers - stage->dense;
}

uint64_t zi_transformer_blocks(const zero_transformer *t)
{
    return zi_div_up(t->layers, t->pipeline_parallel);
}

bool zi_transformer_alike(const zero_transformer *t)
{
    const zi_stage all = zi_transformer_all(t);
    return (all.dense == 0 || all.dense == all.layers) &&
           (all.windowed == 0 || all.windowed == all.layers);
}

uint64_t zi_tensor_part(const zero_transformer *t, uint64_t extent)
{
    return zi_div_up(extent, t->tensor_parallel);
}

uint64_t zi_tensor_kv_heads(const zero_transformer *t)
{
    return zi_tensor_part(t, t->kv_heads);
}
