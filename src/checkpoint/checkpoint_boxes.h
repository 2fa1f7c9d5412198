/* Boxes of tensors: what several parts of a model hold of one tensor, and how the elements that
 * somebody wants of it are put together from them, whatever boxes were saved.
 *
 *   box    The elements of a global tensor between two corners. In memory and in files they lie as
 *          those of a tensor of the box's own shape. A whole tensor is the box that has all of it.
 *   cut    The elements that a wanted and a saved box have in common, as ranges that are neighbours
 *          in both, in the order in which they lie in both.
 *
 * What has sums is counted by granules of 256 elements of the saved box: whoever wants a granule's
 * first element reads all of it and adds it to the source's balance. So every granule is counted
 * once, however its tensor was cut, as long as each element is wanted once; and the source's
 * coverage says whether that was so. */
#ifndef ZI_CHECKPOINT_CHECKPOINT_BOXES_H
#define ZI_CHECKPOINT_CHECKPOINT_BOXES_H

#include "checkpoint/checkpoint_map.h"
#include "core/table.h"
#include "zero/status.h"

/* ---- boxes ---- */

typedef struct zi_box {
    uint32_t dims;
    uint64_t global[ZERO_TENSOR_DIMS_MAX]; /* extents of the global tensor */
    uint64_t first[ZERO_TENSOR_DIMS_MAX];  /* index in it of the box's first element */
    uint64_t shape[ZERO_TENSOR_DIMS_MAX];  /* the box's own extents; inside */
} zi_box;

zi_box zi_box_of(const zi_checkpoint_tensor *tensor);
/* The box that has all of a tensor. */
zi_box zi_box_whole(uint32_t dims, const uint64_t *shape);
bool zi_box_same_global(const zi_box *a, const zi_box *b);
/* True if they are the same elements of tensors of one global shape. */
bool zi_box_same(const zi_box *a, const zi_box *b);
/* "[2, 3]", or of a box that is not the whole "[2, 3] at [0, 3] of [2, 12]", cut where it does not
 * fit. Returns text. */
const char *zi_box_text(const zi_box *box, char *text, size_t bytes);

typedef struct zi_box_cut {
    uint64_t ranges;      /* 0: the boxes have no element in common */
    uint64_t range_count; /* elements of each */
    uint64_t wanted;      /* the first range's first element, counted in the wanted box */
    uint64_t saved;       /* and in the saved one */
    uint32_t outer;       /* ranges are counted over so many dimensions */
    uint64_t extent[ZERO_TENSOR_DIMS_MAX];
    uint64_t wanted_stride[ZERO_TENSOR_DIMS_MAX];
    uint64_t saved_stride[ZERO_TENSOR_DIMS_MAX];
} zi_box_cut;

typedef struct zi_box_range {
    uint64_t wanted; /* first element, counted in the wanted box */
    uint64_t saved;  /* in the saved one */
    uint64_t count;
} zi_box_range;

/* The elements of two boxes of one global tensor that both have. */
zi_box_cut zi_box_meet(const zi_box *wanted, const zi_box *saved);
zi_box_range zi_box_range_at(const zi_box_cut *cut, uint64_t range);
/* The first range that has an element at or behind `wanted`; cut->ranges: none has. */
uint64_t zi_box_first_range(const zi_box_cut *cut, uint64_t wanted);

/* ---- tensors by name ---- */

/* Which tensors of a map are boxes of one tensor: those of one name, in the order of the map. */
typedef struct zi_box_index {
    const zi_checkpoint_map *map;
    zi_table heads; /* the first tensor of each name */
    uint32_t *next; /* by tensor: the next of its name; UINT32_MAX: it is the last */
} zi_box_index;

typedef enum zi_box_fault {
    ZI_BOX_SOUND,
    ZI_BOX_TWICE,    /* two tensors of one part have one name */
    ZI_BOX_SHAPES,   /* two boxes of one name have different global shapes */
    ZI_BOX_OVERLAPS, /* two boxes of one name have an element in common */
} zi_box_fault;

/* Two tensors that cannot both be there. */
typedef struct zi_box_conflict {
    zi_box_fault fault;
    uint32_t first;
    uint32_t other;
} zi_box_conflict;

/* conflict: out, the first; the index is good if there is none. Free it in any case. Errors:
 * OUT_OF_MEMORY. */
zero_status zi_box_index_make(zi_box_index *index, const zi_checkpoint_map *map,
                              zi_box_conflict *conflict);
void zi_box_index_free(zi_box_index *index);
/* The first tensor of this name; UINT32_MAX: there is none. */
uint32_t zi_box_index_find(const zi_box_index *index, const char *name);
/* INVALID_ARGUMENT that names both tensors of a conflict, their parts and boxes; OK where there is
 * none. where: what the message begins with. */
zero_status zi_box_refuse(const zi_checkpoint_map *map, const zi_box_conflict *conflict,
                          const char *where);

#endif
