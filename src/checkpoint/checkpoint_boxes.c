/* Owns the arithmetic of boxes, and which tensors of a checkpoint are boxes of one tensor.
 * Invariant: boxes of one name have one global shape and no element in common, so each element of a
 * tensor is in one saved box or in none. */
#include "checkpoint/checkpoint_boxes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/sizes.h"

/* ---- boxes ---- */

zi_box zi_box_whole(uint32_t dims, const uint64_t *shape)
{
    zi_box box = {.dims = dims};
    memcpy(box.global, shape, dims * sizeof *shape);
    memcpy(box.shape, shape, dims * sizeof *shape);
    return box;
}

zi_box zi_box_of(const zi_checkpoint_tensor *tensor)
{
    zi_box box = zi_box_whole(tensor->dims, tensor->shape);
    if (tensor->is_box) {
        memcpy(box.global, tensor->global_shape, box.dims * sizeof box.global[0]);
        memcpy(box.first, tensor->box_first, box.dims * sizeof box.first[0]);
    }
    return box;
}

bool zi_box_same_global(const zi_box *a, const zi_box *b)
{
    return a->dims == b->dims && memcmp(a->global, b->global, a->dims * sizeof a->global[0]) == 0;
}

bool zi_box_same(const zi_box *a, const zi_box *b)
{
    const size_t bytes = a->dims * sizeof a->first[0];
    return zi_box_same_global(a, b) && memcmp(a->first, b->first, bytes) == 0 &&
           memcmp(a->shape, b->shape, bytes) == 0;
}

/* Append " of [2, 3]", as far as there is room. */
static void checkpoint_boxes_append(char *text, size_t bytes, const char *word,
                                    const uint64_t *extents, uint32_t dims)
{
    size_t used = strlen(text);
    (void)snprintf(text + used, bytes - used, "%s[", word);
    for (uint32_t i = 0; i < dims; i++) {
        used = strlen(text);
        (void)snprintf(text + used, bytes - used, "%s%" PRIu64, i != 0 ? ", " : "", extents[i]);
    }
    used = strlen(text);
    (void)snprintf(text + used, bytes - used, "]");
}

const char *zi_box_text(const zi_box *box, char *text, size_t bytes)
{
    text[0] = '\0';
    checkpoint_boxes_append(text, bytes, "", box->shape, box->dims);
    if (memcmp(box->shape, box->global, box->dims * sizeof box->shape[0]) != 0) {
        checkpoint_boxes_append(text, bytes, " at ", box->first, box->dims);
        checkpoint_boxes_append(text, bytes, " of ", box->global, box->dims);
    }
    return text;
}

/* ---- cuts ---- */

/* Elements from one index of a dimension to the next. */
static void put_strides(const zi_box *box, uint64_t *strides)
{
    uint64_t stride = 1;
    for (uint32_t d = box->dims; d-- > 0;) {
        strides[d] = stride;
        stride *= box->shape[d];
    }
}

zi_box_cut zi_box_meet(const zi_box *wanted, const zi_box *saved)
{
    zi_box_cut cut = {.range_count = 1};
    put_strides(wanted, cut.wanted_stride);
    put_strides(saved, cut.saved_stride);
    for (uint32_t d = 0; d < wanted->dims; d++) {
        const uint64_t first = zi_max_u64(wanted->first[d], saved->first[d]);
        const uint64_t end =
            zi_min_u64(wanted->first[d] + wanted->shape[d], saved->first[d] + saved->shape[d]);
        if (first >= end) {
            return (zi_box_cut){0};
        }
        cut.extent[d] = end - first;
        cut.wanted += (first - wanted->first[d]) * cut.wanted_stride[d];
        cut.saved += (first - saved->first[d]) * cut.saved_stride[d];
    }
    /* A range goes on from one index of a dimension to the next if it has all that is inside. */
    bool neighbours = true;
    cut.outer = wanted->dims;
    while (cut.outer > 0 && neighbours) {
        const uint32_t d = --cut.outer;
        cut.range_count *= cut.extent[d];
        neighbours = cut.extent[d] == wanted->shape[d] && cut.extent[d] == saved->shape[d];
    }
    cut.ranges = 1;
    for (uint32_t d = 0; d < cut.outer; d++) {
        cut.ranges *= cut.extent[d];
    }
    return cut;
}

zi_box_range zi_box_range_at(const zi_box_cut *cut, uint64_t range)
{
    zi_box_range at = {.wanted = cut->wanted, .saved = cut->saved, .count = cut->range_count};
    for (uint32_t d = cut->outer; d-- > 0; range /= cut->extent[d]) {
        at.wanted += range % cut->extent[d] * cut->wanted_stride[d];
        at.saved += range % cut->extent[d] * cut->saved_stride[d];
    }
    return at;
}

uint64_t zi_box_first_range(const zi_box_cut *cut, uint64_t wanted)
{
    uint64_t first = 0;
    uint64_t end = cut->ranges;
    while (first < end) {
        const uint64_t middle = first + (end - first) / 2;
        if (zi_box_range_at(cut, middle).wanted + cut->range_count > wanted) {
            end = middle;
        } else {
            first = middle + 1;
        }
    }
    return first;
}

/* ---- tensors by name ---- */

static bool has_name(const void *items, uint32_t item, const void *wanted)
{
    const zi_checkpoint_tensor *tensors = items;
    return strcmp(tensors[item].name, wanted) == 0;
}

uint32_t zi_box_index_find(const zi_box_index *index, const char *name)
{
    return zi_table_find(&index->heads, zi_hash_text(ZI_HASH_START, name), has_name,
                         index->map->tensors, name);
}

/* The fault of two tensors of one name. */
static zi_box_fault fault_of(const zi_checkpoint_tensor *a, const zi_checkpoint_tensor *b)
{
    const zi_box first = zi_box_of(a);
    const zi_box other = zi_box_of(b);
    return a->part == b->part                       ? ZI_BOX_TWICE
           : !zi_box_same_global(&first, &other)    ? ZI_BOX_SHAPES
           : zi_box_meet(&first, &other).ranges > 0 ? ZI_BOX_OVERLAPS
                                                    : ZI_BOX_SOUND;
}

/* Put a tensor at the end of those of its name. */
static zi_box_conflict checkpoint_boxes_add_tensor(zi_box_index *index, uint32_t tensor)
{
    const zi_checkpoint_tensor *tensors = index->map->tensors;
    uint32_t at = zi_box_index_find(index, tensors[tensor].name);
    index->next[tensor] = UINT32_MAX;
    if (at == ZI_TABLE_NONE) {
        zi_table_add(&index->heads, zi_hash_text(ZI_HASH_START, tensors[tensor].name), tensor);
        return (zi_box_conflict){.fault = ZI_BOX_SOUND};
    }
    while (true) {
        const zi_box_fault fault = fault_of(&tensors[at], &tensors[tensor]);
        if (fault != ZI_BOX_SOUND) {
            return (zi_box_conflict){fault, at, tensor};
        }
        if (index->next[at] == UINT32_MAX) {
            index->next[at] = tensor;
            return (zi_box_conflict){.fault = ZI_BOX_SOUND};
        }
        at = index->next[at];
    }
}

zero_status zi_box_index_make(zi_box_index *index, const zi_checkpoint_map *map,
                              zi_box_conflict *conflict)
{
    *index = (zi_box_index){.map = map};
    *conflict = (zi_box_conflict){.fault = ZI_BOX_SOUND};
    ZI_TRY(zi_table_reserve(&index->heads, map->tensor_count));
    ZI_TRY(zi_calloc(map->tensor_count, sizeof *index->next, (void **)&index->next));
    for (uint32_t i = 0; i < map->tensor_count && conflict->fault == ZI_BOX_SOUND; i++) {
        *conflict = checkpoint_boxes_add_tensor(index, i);
    }
    return ZERO_OK;
}

void zi_box_index_free(zi_box_index *index)
{
    zi_table_free(&index->heads);
    zi_free(index->next);
    *index = (zi_box_index){0};
}

zero_status zi_box_refuse(const zi_checkpoint_map *map, const zi_box_conflict *conflict,
                          const char *where)
{
    char texts[2][56];
    if (conflict->fault == ZI_BOX_SOUND) {
        return ZERO_OK;
    }
    const zi_checkpoint_tensor *first = &map->tensors[conflict->first];
    const zi_checkpoint_tensor *other = &map->tensors[conflict->other];
    const zi_box boxes[2] = {zi_box_of(first), zi_box_of(other)};
    if (conflict->fault == ZI_BOX_TWICE) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "tensor \"%.80s\" of %.120s: it is there twice",
                other->name, where);
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "%.40s: \"%.40s\" is %s in part %" PRIu32 " and %s in part %" PRIu32 "; %s", where,
            first->name, zi_box_text(&boxes[0], texts[0], sizeof texts[0]), first->part,
            zi_box_text(&boxes[1], texts[1], sizeof texts[1]), other->part,
            conflict->fault == ZI_BOX_SHAPES ? "name them apart, or give one global_shape"
                                             : "they overlap: number copies by `replica`");
}
