/* Owns the engine's tensors as a checkpoint has them: their order, roles and cuts, and which part
 * of each this rank writes. Invariant: every element of every role is one rank's to write. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "engine/save.h"
#include "layout/sharding.h"

/* A tensor by its place: flat, then offset. */
typedef struct placed {
    zi_tensor_place place;
    uint32_t tensor;
} placed;

static int compare(const void *left, const void *right)
{
    const placed *a = left;
    const placed *b = right;
    if (a->place.flat != b->place.flat) {
        return a->place.flat < b->place.flat ? -1 : 1;
    }
    if (a->place.offset != b->place.offset) {
        return a->place.offset < b->place.offset ? -1 : 1;
    }
    /* Tensors without elements have their neighbour's offset. */
    return a->tensor < b->tensor ? -1 : a->tensor > b->tensor;
}

static zi_checkpoint_tensor describe(const zi_layout *layout, uint32_t tensor, bool params_only)
{
    const zi_tensor_info *info = &layout->tensor_infos[tensor];
    const zi_tensor_place *place = &layout->tensors[tensor];
    const zi_flat *flat = &layout->flats[place->flat];
    zi_checkpoint_tensor made = {.name = info->name,
                                 .dims = info->dims,
                                 .flags = info->flags,
                                 .group = info->group,
                                 .count = info->count,
                                 .cut_first = flat->slice_count - place->offset % flat->slice_count,
                                 .cut_every = flat->slice_count};
    memcpy(made.shape, info->shape, sizeof made.shape);
    for (int role = 0; role < ZERO_SHARD_ROLES; role++) {
        const zi_codec kept = flat->kept[role];
        const bool wanted = params_only ? role == ZERO_ROLE_PARAM : role != ZERO_ROLE_GRAD;
        const bool saved = wanted && !zi_codec_is_none(kept);
        made.role[role].dtype = saved ? kept.dtype : ZERO_DTYPE_NONE;
    }
    return made;
}

static zero_status list_tensors(const zi_layout *layout, bool params_only, zi_checkpoint_map *map,
                                uint32_t *tensors)
{
    placed *order = NULL;
    ZI_TRY(zi_calloc(layout->tensor_count, sizeof *order, (void **)&order));
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        order[t] = (placed){layout->tensors[t], t};
    }
    qsort(order, layout->tensor_count, sizeof *order, compare);
    for (uint32_t i = 0; i < layout->tensor_count; i++) {
        tensors[i] = order[i].tensor;
        map->tensors[i] = describe(layout, tensors[i], params_only);
    }
    zi_free(order);
    return ZERO_OK;
}

zero_status zi_save_make_map(const zero_engine *engine, bool params_only, zi_checkpoint_map *map,
                             uint32_t **tensors)
{
    const zi_layout *layout = engine->layout;
    map->tensor_count = layout->tensor_count;
    ZI_TRY(zi_calloc(layout->tensor_count, sizeof *map->tensors, (void **)&map->tensors));
    ZI_TRY(zi_calloc(layout->tensor_count, sizeof **tensors, (void **)tensors));
    ZI_TRY(list_tensors(layout, params_only, map, *tensors));
    return zi_checkpoint_map_make(map);
}

engine_part zi_save_own_part(const engine_save *save, uint32_t tensor)
{
    const zi_layout *layout = save->engine->layout;
    const uint32_t world = layout->sharding.world;
    const uint32_t slice =
        zi_shard_index(&layout->sharding, zero_world_rank(save->engine->world), world);
    return zi_engine_part(layout, save->tensors[tensor], world, slice);
}

uint64_t zi_save_own_bytes(const engine_save *save)
{
    const zi_checkpoint_map *map = &save->manifest.map;
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < map->tensor_count; t++) {
        const uint64_t count = zi_save_own_part(save, t).count;
        for (int role = 0; role < ZERO_SHARD_ROLES; role++) {
            bytes += count * zero_dtype_bytes(map->tensors[t].role[role].dtype);
        }
    }
    return bytes;
}
