/* Owns where the bytes of chunks are: their states, parameters and places in the staging buffer. */
#include "layout/sharding.h"
#include "stage1/optim_internal.h"

void zi_optim_range(const zi_optim *optim, uint32_t flat, uint64_t *first, uint64_t *count)
{
    const zero_sharding *s = zi_flat_sharding(optim->layout, &optim->layout->flats[flat]);
    *count = zi_shard_count(optim->layout, &optim->layout->flats[flat], s->optimizer);
    *first = *count * zi_shard_index(s, optim->desc.rank, s->optimizer);
}

uint64_t zi_optim_shard_first(const zi_optim *optim, zero_role role, uint32_t flat)
{
    const zero_sharding *s = zi_flat_sharding(optim->layout, &optim->layout->flats[flat]);
    return zi_optimizer_shard_index(s, optim->desc.rank, zi_role_degree(s, role)) *
           zi_shard_count(optim->layout, &optim->layout->flats[flat], s->optimizer);
}

zi_shards_move zi_optim_staged(const zi_optim *optim, uint32_t p, uint32_t shard)
{
    const zi_layout *layout = optim->layout;
    const zi_chunk *chunk = &layout->chunks[p];
    const zi_flat *flat = &layout->flats[chunk->flat];
    const uint64_t whole = zi_optimizer_shard_count(layout, flat);
    return (zi_shards_move){.flat = chunk->flat,
                            .first = shard * whole + chunk->first,
                            .count = chunk->count,
                            .memory =
                                optim->desc.param_staging +
                                zi_codec_offset(flat->kept[ZERO_ROLE_PARAM], shard * chunk->count)};
}

zi_shards_move zi_optim_staged_own(const zi_optim *optim, uint32_t p)
{
    const zi_layout *layout = optim->layout;
    const zero_sharding *s = zi_flat_sharding(layout, &layout->flats[layout->chunks[p].flat]);
    return zi_optim_staged(optim, p, zi_optimizer_shard_index(s, optim->desc.rank, s->param));
}

unsigned char *zi_optim_own_params(const zi_optim *optim, uint32_t flat)
{
    return zi_shards_at(&optim->desc.shards[ZERO_ROLE_PARAM], flat,
                        zi_optim_shard_first(optim, ZERO_ROLE_PARAM, flat));
}

/* A gather between `own` and `all`, of `count` elements of each rank. */
static zi_wire_gather updated_gather(const zi_optim *optim, uint32_t flat, uint64_t count,
                                     const void *own, void *all)
{
    const zi_layout *layout = optim->layout;
    const zi_flat *place = &layout->flats[flat];
    const zi_group *group = zi_optim_gather(optim, flat);
    return (zi_wire_gather){.name = layout->unit_infos[place->unit].name,
                            .tag = place->unit,
                            .rank = group->rank,
                            .size = group->size,
                            .wire = place->wire_updated.dtype,
                            .own_dtype = place->kept[ZERO_ROLE_PARAM].dtype,
                            .all_dtype = place->kept[ZERO_ROLE_PARAM].dtype,
                            .count = count,
                            .own = own,
                            .all = all,
                            .buffer = optim->desc.param_wire};
}

zi_wire_gather zi_optim_flat_gather(const zi_optim *optim, uint32_t flat)
{
    const zi_layout *layout = optim->layout;
    const zi_flat *place = &layout->flats[flat];
    zi_wire_gather gather = updated_gather(
        optim, flat, zi_optimizer_shard_count(layout, place), zi_optim_own_params(optim, flat),
        zi_shards_at(&optim->desc.shards[ZERO_ROLE_PARAM], flat, 0));
    for (uint32_t f = layout->units[place->unit].flat_first; f < flat && gather.buffer != NULL;
         f++) {
        const zi_flat *before = &layout->flats[f];
        gather.buffer +=
            zi_flat_updated_wire_bytes(layout, before, zi_optimizer_shard_count(layout, before));
    }
    return gather;
}

zi_wire_gather zi_optim_chunk_gather(const zi_optim *optim, uint32_t p)
{
    const zi_chunk *chunk = &optim->layout->chunks[p];
    return updated_gather(optim, chunk->flat, chunk->count, zi_optim_staged_own(optim, p).memory,
                          optim->desc.param_staging);
}

void *zi_optim_chunk_state(const zi_optim *optim, const zi_chunk *chunk, zero_role role,
                           unsigned char *extent)
{
    const zi_shards *shards = &optim->desc.shards[role];
    if (zi_codec_is_none(optim->layout->flats[chunk->flat].kept[role])) {
        return NULL;
    }
    if (!zi_shards_on_disk(shards)) {
        return zi_shards_at(shards, chunk->flat, chunk->first);
    }
    return extent != NULL ? extent + chunk->at[zi_role_state(role)] : NULL;
}

/* The state that a chunk's update works on. */
static void *updated_state(const zi_optim *optim, uint32_t p, zero_role role, unsigned char *extent)
{
    const zi_chunk *chunk = &optim->layout->chunks[p];
    return optim->state_staging != NULL && zi_role_tier(optim->layout, role) == ZERO_TIER_HOST
               ? zi_state_staging_buffer(optim->state_staging, p, role)
               : zi_optim_chunk_state(optim, chunk, role, extent);
}

void zi_optim_rebind_job(const zi_optim *optim, uint32_t p, zi_update_job *job,
                         unsigned char *extent)
{
    for (uint32_t state = 0; state < ZI_STATES; state++) {
        job->state[state] = updated_state(optim, p, zi_state_role(state), extent);
    }
}

bool zi_optim_is_staged(const zi_optim *optim, uint32_t p)
{
    return optim->staging != NULL && (optim->layout->chunks[p].extent != ZI_NO_INDEX ||
                                      optim->layout->tuning.updater == ZERO_UPDATER_CPU);
}
