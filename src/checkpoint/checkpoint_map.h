/* Which bytes of which file of a checkpoint are a tensor's: a pure function of the model's
 * description, so no rank asks another where to write, and nothing is kept for each rank.
 *
 *   tensors   In the order of the layout: flat by flat, as they lie in them.
 *   files     A role's tensors, end to end, in one or more safetensors files. A file is ended
 *             before a tensor with which its tensors would have more than ZI_CHECKPOINT_FILE_BYTES
 *             or be more than ZI_CHECKPOINT_FILE_TENSORS. Within a file those of 4 bytes a
 *             value come before those of 2, and these before those of 1, so that every tensor is
 *             aligned to its values; the order stays as it is otherwise.
 *   cuts      Where the slices of ranks ended, in elements of the tensor: cut_first, and every
 *             cut_every from there on. Each rank writes its own slice of every role, whatever the
 *             degrees are, so replicas share the work evenly.
 *   pieces    Elements of one tensor in one role that have one sum: from one cut to the next, in
 *             pieces of ZI_PIECE_COUNT elements from the cut on. So one rank makes the whole sum.
 *   sums      The pieces' sums, 8 bytes each, little-endian, in the order role, tensor, piece.
 *   parts     Of a model that is split over model-parallel ranks: the tensors of one part after
 * those of the other, each part with files of its own, and its sums behind those of the parts
 *             before. So a part's places depend on its own tensors, and on how many sums the parts
 *             before it have. Several parts may have boxes of one tensor: see checkpoint_boxes.h.
 */
#ifndef ZI_CHECKPOINT_CHECKPOINT_MAP_H
#define ZI_CHECKPOINT_CHECKPOINT_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "core/codec.h"
#include "core/role.h"
#include "zero/model.h"

#define ZI_CHECKPOINT_FILE_BYTES ((uint64_t)4 << 30)
/* So a header stays below the 100 MB that safetensors allows, whatever names are escaped. */
#define ZI_CHECKPOINT_FILE_TENSORS 65536
#define ZI_CHECKPOINT_FILES_MAX 65536
#define ZI_CHECKPOINT_NAME_BYTES 64
/* The bytes of tensors begin at a multiple of this: a page, for direct access. */
#define ZI_CHECKPOINT_ALIGN ((uint64_t)4096)
#define ZI_PIECE_COUNT ((uint64_t)1 << 18)

/* A tensor in one role. */
typedef struct zi_checkpoint_place {
    zero_dtype dtype;     /* NONE: the tensor has no such role */
    uint32_t file;        /* in map->files */
    uint64_t at;          /* bytes from the file's beginning to its first element */
    uint64_t first_piece; /* its first sum, counted over all of the checkpoint */
} zi_checkpoint_place;

typedef struct zi_checkpoint_tensor {
    const char *name; /* borrowed; UTF-8, 1 to 127 bytes */
    uint32_t dims;
    uint32_t flags; /* zero_tensor_flags */
    uint32_t group; /* of hyper-parameters */
    uint32_t part;  /* of the model; not below that of the tensor before */
    bool is_box;    /* of the global tensor that the next two tell of; false: it is whole */
    uint64_t global_shape[ZERO_TENSOR_DIMS_MAX];
    uint64_t box_first[ZERO_TENSOR_DIMS_MAX];
    uint64_t shape[ZERO_TENSOR_DIMS_MAX];
    uint64_t count;     /* elements */
    uint64_t cut_first; /* a multiple of 256, as the next; in (0, cut_every] */
    uint64_t cut_every; /* at most 2^62; more than the tensor has: it is not cut */
    zi_checkpoint_place role[ZI_SHARD_ROLES]; /* by zero_role; GRAD is never there */
} zi_checkpoint_tensor;

/* How a tensor's elements lie in a role; it has no bytes of a role that it does not have. */
static inline zi_codec zi_saved_codec(const zi_checkpoint_tensor *tensor, zero_role role)
{
    return (zi_codec){tensor->role[role].dtype, zi_role_is_scales(role)};
}

/* Bytes of so many elements from a granule on, of scales from a block on. */
static inline uint64_t zi_saved_bytes(const zi_checkpoint_tensor *tensor, zero_role role,
                                      uint64_t count)
{
    return zi_codec_bytes(zi_saved_codec(tensor, role), count);
}

/* A safetensors file. Its name is "param.safetensors" where the role has one file, else
 * "param-00001-of-00003.safetensors"; with "part-00001." ahead of it for the first of several
 * parts.
 */
typedef struct zi_checkpoint_file {
    char name[ZI_CHECKPOINT_NAME_BYTES];
    zero_role role;
    uint32_t first_tensor; /* its tensors are those of [first_tensor, tensor_end) with the role */
    uint32_t tensor_end;
    uint64_t data_at; /* bytes before the first tensor: the header, filled up with spaces */
    uint64_t bytes;   /* of the file */
} zi_checkpoint_file;

typedef struct zi_checkpoint_map {
    zi_checkpoint_tensor *tensors;
    uint32_t tensor_count;
    uint32_t part_count;       /* of the model, whichever are in this map; 0 is 1 */
    zi_checkpoint_file *files; /* part by part, role by role */
    uint32_t file_count;
    uint64_t piece_count;
} zi_checkpoint_map;

/* Give every tensor its places. map->tensors are filled in but for file, at and first_piece, and
 * stay the caller's; map->files are made here. Errors: OUT_OF_MEMORY; INVALID_ARGUMENT for more
 * files than ZI_CHECKPOINT_FILES_MAX, for more than 2^57 elements and for names. */
zero_status zi_checkpoint_map_make(zi_checkpoint_map *map);
/* Put the sums of a map of one part behind so many of other parts. */
void zi_checkpoint_map_move_pieces(zi_checkpoint_map *map, uint64_t before);
/* Check that a tensor can have this name. INVALID_ARGUMENT. */
zero_status zi_checkpoint_check_tensor_name(const char *name);
/* Free the files. */
void zi_checkpoint_map_free(zi_checkpoint_map *map);

/* The header of a file: data_at bytes, the format's 8 bytes of length included. The text has the
 * tensors in the order of their bytes, and {"format":"pt"} as "__metadata__", without which some
 * readers refuse a file. Errors: OUT_OF_MEMORY. *header: zi_free gives it back. */
zero_status zi_checkpoint_header(const zi_checkpoint_map *map, uint32_t file, char **header);

/* Pieces of a tensor in one role; 0 where cut_every is 0, of weights that have no sums. */
uint64_t zi_checkpoint_piece_count(const zi_checkpoint_tensor *tensor);

typedef struct zi_checkpoint_piece {
    uint64_t index; /* within the tensor */
    uint64_t first; /* elements */
    uint64_t count;
} zi_checkpoint_piece;

/* The piece that has an element of the tensor. */
zi_checkpoint_piece zi_checkpoint_piece_at(const zi_checkpoint_tensor *tensor, uint64_t element);

/* Sum of elements [first, first + count) of a tensor, as they lie; first is a multiple of 256. Each
 * granule of 256 elements, the last may be shorter, has XXH3 of 64 bits, mixed with its number in
 * the tensor. The sum adds them modulo 2^64. So sums of neighbouring ranges can be added, and the
 * sum of a whole tensor does not depend on how it was cut. This is for faults of machines, not
 * against an adversary. */
uint64_t zi_piece_sum(const void *elements, uint64_t first, uint64_t count, zi_codec codec);

#endif
