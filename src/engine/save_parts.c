/* Owns what the parts of a model tell one another of a save: rank 0 of the mesh learns all tensors,
 * so that it makes all files and writes one manifest, and each part where its sums are. Invariant:
 * what is saved under one name are boxes of one tensor, and each of their elements is saved once.
 */
#include <inttypes.h>
#include <string.h>

#include "checkpoint/checkpoint_boxes.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/agree.h"
#include "engine/save.h"

/* Tensors that are told of at a time. */
#define BATCH 16
#define TENSORS_MAX ((uint64_t)1 << 28)

/* A tensor as it is told. */
typedef struct told_tensor {
    char name[ZI_NAME_BYTES];
    uint32_t replica;
    zi_checkpoint_tensor tensor; /* its name is a pointer of the rank that told it */
} told_tensor;

/* The numbers that a part tells ahead of them. */
typedef struct told_part {
    uint64_t pieces;
    uint32_t tensors;     /* that are saved */
    uint32_t all_tensors; /* with copies, which come behind those */
    zi_manifest_part numbers;
} told_part;

/* By part; of the ranks that are told of all parts. */
typedef struct saved_parts {
    told_part *parts;
    told_tensor *batch;   /* BATCH of each part */
    told_tensor *tensors; /* rank 0 of the mesh: all, part by part */
    uint32_t *first;      /* by part, its first one there; one more at the end */
    zi_manifest whole;
    zi_manifest_part *numbers;
} saved_parts;

/* ---- telling ---- */

static told_part tell_part(const engine_save *save)
{
    const zi_manifest *manifest = &save->manifest;
    told_part told = {.pieces = manifest->map.piece_count,
                      .tensors = manifest->map.tensor_count,
                      .all_tensors = save->engine->layout->tensor_count,
                      .numbers.group_count = manifest->group_count};
    memcpy(told.numbers.groups, manifest->groups, sizeof told.numbers.groups);
    memcpy(told.numbers.carried, manifest->state.carried, sizeof told.numbers.carried);
    return told;
}

static void tell_tensors(const engine_save *save, uint32_t first, told_tensor *told)
{
    const zi_layout *layout = save->engine->layout;
    memset(told, 0, BATCH * sizeof *told);
    for (uint32_t i = first; i < layout->tensor_count && i < first + BATCH; i++) {
        const zi_tensor_info *info = &layout->tensor_infos[save->tensors[i]];
        told[i - first].tensor = save->manifest.map.tensors[i];
        told[i - first].replica = info->replica;
        memcpy(told[i - first].name, info->name, strlen(info->name) + 1);
    }
}

/* Keep a batch of each part. */
static void keep_batch(const engine_save *save, uint32_t first)
{
    saved_parts *all = save->parts;
    for (uint32_t p = 0; p < zero_world_size(save->engine->mesh); p++) {
        for (uint32_t i = first; i < all->parts[p].all_tensors && i < first + BATCH; i++) {
            told_tensor *kept = &all->tensors[all->first[p] + i];
            *kept = all->batch[p * BATCH + i - first];
            kept->tensor.name = kept->name;
        }
    }
}

/* All parts make as many rounds as the one with the most tensors. */
static zero_status exchange_tensors(const engine_save *save)
{
    const saved_parts *all = save->parts;
    zero_world *mesh = save->engine->mesh;
    told_tensor told[BATCH];
    uint32_t most = 0;
    for (uint32_t p = 0; p < zero_world_size(mesh); p++) {
        most = (uint32_t)zi_max_u64(most, all->parts[p].all_tensors);
    }
    for (uint32_t first = 0; first < most; first += BATCH) {
        tell_tensors(save, first, told);
        ZI_TRY(zi_world_gather(mesh, told, all->batch, sizeof told));
        if (all->tensors != NULL) {
            keep_batch(save, first);
        }
    }
    return ZERO_OK;
}

/* ---- all of it ---- */

/* The manifest of all parts. */
static zero_status make_whole(engine_save *save)
{
    saved_parts *all = save->parts;
    zi_manifest *whole = &all->whole;
    const uint32_t parts = zero_world_size(save->engine->mesh);
    *whole = save->manifest;
    whole->map = (zi_checkpoint_map){.part_count = parts};
    whole->parts = all->numbers;
    save->whole = whole;
    ZI_TRY(zi_calloc(all->first[parts], sizeof *whole->map.tensors, (void **)&whole->map.tensors));
    for (uint32_t p = 0; p < parts; p++) {
        all->numbers[p] = all->parts[p].numbers;
        for (uint32_t i = 0; i < all->parts[p].tensors; i++) {
            whole->map.tensors[whole->map.tensor_count++] = all->tensors[all->first[p] + i].tensor;
        }
    }
    ZI_TRY(zi_checkpoint_map_make(&whole->map));
    whole->model_hash = zi_manifest_model_hash(&whole->map);
    return ZERO_OK;
}

/* Every copy is one of a box that is saved. */
static zero_status check_copies(const engine_save *save, const zi_box_index *index)
{
    const saved_parts *all = save->parts;
    for (uint32_t i = 0; i < all->first[zero_world_size(save->engine->mesh)]; i++) {
        const told_tensor *told = &all->tensors[i];
        const zi_box box = zi_box_of(&told->tensor);
        char text[100];
        bool found = told->replica == 0;
        for (uint32_t t = zi_box_index_find(index, told->name); t != UINT32_MAX && !found;
             t = index->next[t]) {
            const zi_box saved = zi_box_of(&index->map->tensors[t]);
            found = zi_box_same(&box, &saved);
        }
        if (!found) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "tensor \"%.60s\", %s, is copy %" PRIu32 " in part %" PRIu32
                    ", and no part has its copy 0, which would be saved; set one's `replica` to 0",
                    told->name, zi_box_text(&box, text, sizeof text), told->replica,
                    told->tensor.part);
        }
    }
    return ZERO_OK;
}

static zero_status check_boxes(const engine_save *save)
{
    const zi_checkpoint_map *map = &save->whole->map;
    zi_box_index index;
    zi_box_conflict conflict;
    zero_status status = zi_box_index_make(&index, map, &conflict);
    status = status == ZERO_OK ? zi_box_refuse(map, &conflict, save->name) : status;
    status = status == ZERO_OK ? check_copies(save, &index) : status;
    zi_box_index_free(&index);
    return status;
}

/* ---- the exchange ---- */

static zero_status make_parts(engine_save *save)
{
    const uint32_t parts = zero_world_size(save->engine->mesh);
    ZI_TRY(zi_calloc(1, sizeof *save->parts, (void **)&save->parts));
    saved_parts *all = save->parts;
    ZI_TRY(zi_calloc(parts, sizeof *all->parts, (void **)&all->parts));
    ZI_TRY(zi_calloc(parts, BATCH * sizeof *all->batch, (void **)&all->batch));
    ZI_TRY(zi_calloc(parts, sizeof *all->numbers, (void **)&all->numbers));
    return zi_calloc((size_t)parts + 1, sizeof *all->first, (void **)&all->first);
}

/* Find the place of this part's sums, and how many tensors each part has. */
static zero_status take_parts(engine_save *save)
{
    saved_parts *all = save->parts;
    uint64_t before = 0;
    uint64_t tensors = 0;
    for (uint32_t p = 0; p < zero_world_size(save->engine->mesh); p++) {
        all->first[p + 1] = all->first[p] + all->parts[p].all_tensors;
        tensors += all->parts[p].all_tensors;
        before += p < zero_world_rank(save->engine->mesh) ? all->parts[p].pieces : 0;
    }
    zi_checkpoint_map_move_pieces(&save->manifest.map, before);
    if (tensors > TENSORS_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "the parts of the model have %" PRIu64
                " tensors; a checkpoint has at most %" PRIu64,
                tensors, TENSORS_MAX);
    }
    return zi_save_leads(save->engine) ? zi_calloc(all->first[zero_world_size(save->engine->mesh)],
                                                   sizeof *all->tensors, (void **)&all->tensors)
                                       : ZERO_OK;
}

zero_status zi_save_join_parts(engine_save *save)
{
    zero_engine *engine = save->engine;
    if (engine->mesh == NULL) {
        return ZERO_OK;
    }
    ZI_TRY(zi_engine_agree_done(engine, make_parts(save)));
    const told_part told = tell_part(save);
    ZI_TRY(zi_world_gather(engine->mesh, &told, save->parts->parts, sizeof told));
    ZI_TRY(zi_engine_agree_done(engine, take_parts(save)));
    if (zero_world_rank(engine->world) == 0) {
        ZI_TRY(exchange_tensors(save));
    }
    if (!zi_save_leads(engine)) {
        return ZERO_OK;
    }
    ZI_TRY(make_whole(save));
    return check_boxes(save);
}

void zi_save_free_parts(engine_save *save)
{
    saved_parts *all = save->parts;
    if (all == NULL) {
        return;
    }
    zi_checkpoint_map_free(&all->whole.map);
    zi_free(all->whole.map.tensors);
    zi_free(all->whole.header_hash);
    zi_free(all->numbers);
    zi_free(all->first);
    zi_free(all->tensors);
    zi_free(all->batch);
    zi_free(all->parts);
    zi_free(all);
    save->parts = NULL;
}
