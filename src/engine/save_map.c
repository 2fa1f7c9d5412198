/* Owns the engine's tensors as a checkpoint has them: their order, roles and cuts, and which part
 * of each this rank writes. Invariant: every element of every role is one rank's to write. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/save.h"
#include "layout/sharding.h"

/* A tensor by its place: flat, then offset. */
typedef struct placed {
    zi_tensor_place place;
    uint32_t tensor;
} placed;

static int save_map_compare(const void *left, const void *right)
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

static void put_box(const zi_layout *layout, const zi_tensor_info *info, zi_checkpoint_tensor *made)
{
    const zi_tensor_extra *extra =
        info->extra != ZI_NO_EXTRA ? &layout->tensor_extras[info->extra] : NULL;
    made->is_box = extra != NULL && extra->is_box;
    if (made->is_box) {
        memcpy(made->global_shape, extra->global_shape, sizeof made->global_shape);
        memcpy(made->box_first, extra->box_first, sizeof made->box_first);
    }
}

static zi_checkpoint_tensor save_map_describe(const zero_engine *engine, uint32_t tensor,
                                              bool params_only)
{
    const zi_layout *layout = engine->layout;
    const zi_tensor_info *info = &layout->tensor_infos[tensor];
    const zi_tensor_place *place = &layout->tensors[tensor];
    const zi_flat *flat = &layout->flats[place->flat];
    const uint64_t cut = zi_max_u64(flat->slice_count, ZI_GRANULE); /* it may have no elements */
    zi_checkpoint_tensor made = {.name = info->name,
                                 .dims = info->dims,
                                 .flags = info->flags,
                                 .group = info->group,
                                 .count = info->count,
                                 .cut_first = cut - place->offset % cut,
                                 .cut_every = cut};
    memcpy(made.shape, info->shape, sizeof made.shape);
    if (engine->mesh != NULL) { /* else what the model has is the whole, as far as anybody knows */
        made.part = zero_world_rank(engine->mesh);
        put_box(layout, info, &made);
    }
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        const zi_codec kept = flat->kept[role];
        const bool wanted = params_only ? role == ZERO_ROLE_PARAM : role != ZERO_ROLE_GRAD;
        const bool saved = wanted && !zi_codec_is_none(kept);
        made.role[role].dtype = saved ? kept.dtype : ZERO_DTYPE_NONE;
        zi_assert(!saved || zi_codec_same(kept, zi_saved_codec(&made, (zero_role)role)));
    }
    return made;
}

/* Copies of tensors come last: they are told of, and not written. */
static zero_status save_map_list_tensors(const zero_engine *engine, bool params_only,
                                         zi_checkpoint_map *map, uint32_t *tensors)
{
    const zi_layout *layout = engine->layout;
    placed *order = NULL;
    ZI_TRY(zi_calloc(layout->tensor_count, sizeof *order, (void **)&order));
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        order[t] = (placed){layout->tensors[t], t};
    }
    qsort(order, layout->tensor_count, sizeof *order, save_map_compare);
    uint32_t count = 0;
    for (uint32_t copies = 0; copies < 2; copies++) {
        for (uint32_t i = 0; i < layout->tensor_count; i++) {
            const uint32_t tensor = order[i].tensor;
            const bool is_copy = engine->mesh != NULL && layout->tensor_infos[tensor].replica != 0;
            if (is_copy == (copies != 0)) {
                map->tensors[count] = save_map_describe(engine, tensor, params_only);
                tensors[count++] = tensor;
            }
        }
        map->tensor_count = copies == 0 ? count : map->tensor_count;
    }
    zi_free(order);
    return ZERO_OK;
}

zero_status zi_save_make_map(const zero_engine *engine, bool params_only, zi_checkpoint_map *map,
                             uint32_t **tensors)
{
    const zi_layout *layout = engine->layout;
    map->part_count = engine->mesh != NULL ? zero_world_size(engine->mesh) : 1;
    ZI_TRY(zi_calloc(layout->tensor_count, sizeof *map->tensors, (void **)&map->tensors));
    ZI_TRY(zi_calloc(layout->tensor_count, sizeof **tensors, (void **)tensors));
    ZI_TRY(save_map_list_tensors(engine, params_only, map, *tensors));
    return zi_checkpoint_map_make(map);
}

bool zi_save_leads(const zero_engine *engine)
{
    return zero_world_rank(engine->world) == 0 &&
           (engine->mesh == NULL || zero_world_rank(engine->mesh) == 0);
}

engine_range zi_save_own_range(const engine_save *save, uint32_t tensor)
{
    const zi_layout *layout = save->engine->layout;
    const uint32_t own = save->tensors[tensor];
    const uint32_t slice = zi_shard_index(zi_engine_sharding(layout, own),
                                          zero_world_rank(save->engine->world), layout->world);
    return zi_engine_range(layout, own, layout->world, slice);
}

uint64_t zi_save_own_bytes(const engine_save *save)
{
    const zi_checkpoint_map *map = &save->manifest.map;
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < map->tensor_count; t++) {
        const uint64_t count = zi_save_own_range(save, t).count;
        for (int role = 0; role < ZI_SHARD_ROLES; role++) {
            bytes += zi_saved_bytes(&map->tensors[t], (zero_role)role, count);
        }
    }
    return bytes;
}

zero_status zi_save_make_sums(engine_save *save)
{
    const zi_checkpoint_map *map = &save->manifest.map;
    zi_checkpoint_slice *own = NULL;
    ZI_TRY(zi_calloc(map->tensor_count, sizeof *own, (void **)&own));
    for (uint32_t t = 0; t < map->tensor_count; t++) {
        const engine_range slice = zi_save_own_range(save, t);
        own[t] = (zi_checkpoint_slice){.first = slice.first, .count = slice.count};
    }
    const zero_status status = zi_checkpoint_sums_create(map, own, &save->sums);
    zi_free(own);
    return status;
}
