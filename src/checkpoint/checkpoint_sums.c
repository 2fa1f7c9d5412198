/* Owns the sums of a rank's pieces. Invariant: they lie in memory by role, tensor and piece, so
 * those that are neighbours in the file are neighbours here. */
#include "checkpoint/checkpoint_sums.h"

#include <endian.h>

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"

/* Of a tensor, in each of its roles. */
typedef struct own_pieces {
    uint64_t first;  /* within the tensor */
    uint64_t count;  /* 0: none */
    uint64_t before; /* of the tensors before it */
} own_pieces;

struct zi_checkpoint_sums {
    const zi_checkpoint_map *map;
    own_pieces *tensors; /* of the map */
    uint64_t role_count; /* pieces of a role that all tensors have */
    uint64_t *values;    /* little-endian; atomic: added to by any threads */
};

static own_pieces checkpoint_sums_pieces_of(const zi_checkpoint_tensor *tensor,
                                            const zi_checkpoint_slice *own)
{
    if (own->count == 0) {
        return (own_pieces){0};
    }
    const uint64_t first = zi_checkpoint_piece_at(tensor, own->first).index;
    const uint64_t last = zi_checkpoint_piece_at(tensor, own->first + own->count - 1).index;
    return (own_pieces){.first = first, .count = last - first + 1};
}

static zero_status checkpoint_sums_make(zi_checkpoint_sums *sums, const zi_checkpoint_slice *own)
{
    const zi_checkpoint_map *map = sums->map;
    ZI_TRY(zi_calloc(map->tensor_count, sizeof *sums->tensors, (void **)&sums->tensors));
    for (uint32_t t = 0; t < map->tensor_count; t++) {
        sums->tensors[t] = checkpoint_sums_pieces_of(&map->tensors[t], &own[t]);
        sums->tensors[t].before = sums->role_count;
        sums->role_count += sums->tensors[t].count;
    }
    return zi_calloc(ZI_SHARD_ROLES * sums->role_count, sizeof *sums->values,
                     (void **)&sums->values);
}

zero_status zi_checkpoint_sums_create(const zi_checkpoint_map *map, const zi_checkpoint_slice *own,
                                      zi_checkpoint_sums **out)
{
    zi_checkpoint_sums *sums = NULL;
    *out = NULL;
    ZI_TRY(zi_calloc(1, sizeof *sums, (void **)&sums));
    sums->map = map;
    const zero_status status = checkpoint_sums_make(sums, own);
    if (status != ZERO_OK) {
        zi_checkpoint_sums_destroy(sums);
        return status;
    }
    *out = sums;
    return ZERO_OK;
}

void zi_checkpoint_sums_destroy(zi_checkpoint_sums *sums)
{
    if (sums != NULL) {
        zi_free(sums->values);
        zi_free(sums->tensors);
        zi_free(sums);
    }
}

static uint64_t *value(const zi_checkpoint_sums *sums, zero_role role, uint32_t tensor,
                       uint64_t piece)
{
    const own_pieces *own = &sums->tensors[tensor];
    zi_assert_cmp(piece - own->first, <, own->count);
    return &sums->values[(uint64_t)role * sums->role_count + own->before + piece - own->first];
}

/* Add to a sum, which is kept as the file has it. */
static void checkpoint_sums_add(uint64_t *sum, uint64_t part)
{
    uint64_t old = __atomic_load_n(sum, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(sum, &old, htole64(le64toh(old) + part), true,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

void zi_checkpoint_sums_add(zi_checkpoint_sums *sums, zero_role role, uint32_t tensor,
                            uint64_t first, uint64_t count, const unsigned char *elements)
{
    const zi_checkpoint_tensor *of = &sums->map->tensors[tensor];
    const zi_codec codec = zi_saved_codec(of, role);
    const uint64_t end = first + count;
    while (first < end) {
        const zi_checkpoint_piece piece = zi_checkpoint_piece_at(of, first);
        const uint64_t here = zi_min_u64(end, piece.first + piece.count) - first;
        checkpoint_sums_add(value(sums, role, tensor, piece.index),
                            zi_piece_sum(elements, first, here, codec));
        elements += zi_codec_bytes(codec, here);
        first += here;
    }
}

/* The next tensor of which there are sums, from the range's own on; false: there is none. */
static bool checkpoint_sums_find(const zi_checkpoint_sums *sums, zi_checkpoint_sum_range *range)
{
    for (; range->role < ZI_SHARD_ROLES; range->role++, range->tensor = 0) {
        for (; range->tensor < sums->map->tensor_count; range->tensor++) {
            if (sums->tensors[range->tensor].count != 0 &&
                sums->map->tensors[range->tensor].role[range->role].dtype != ZERO_DTYPE_NONE) {
                return true;
            }
        }
    }
    return false;
}

bool zi_checkpoint_sums_next(const zi_checkpoint_sums *sums, zi_checkpoint_sum_range *range)
{
    range->count = 0;
    while (checkpoint_sums_find(sums, range)) {
        const own_pieces *own = &sums->tensors[range->tensor];
        const uint64_t first =
            sums->map->tensors[range->tensor].role[range->role].first_piece + own->first;
        const uint64_t *values = value(sums, range->role, range->tensor, own->first);
        if (range->count == 0) {
            range->first = first;
            range->values = values;
        } else if (first != range->first + range->count || values != range->values + range->count) {
            break;
        }
        range->count += own->count;
        range->tensor++;
    }
    return range->count != 0;
}
