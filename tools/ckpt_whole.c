/* Owns the tensors of a checkpoint as the model has them, whatever boxes of them its parts saved.
 * Invariant: each is there once, whole, and every element of it is in a box. */
#include "ckpt.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static _Alignas(4096) unsigned char staging[ZI_JOINED_STAGING_BYTES];

static zi_joined_from from(const zi_checkpoint_tensor *saved, const void *user)
{
    const ckpt_source *source = user;
    const zero_role role =
        source->best && ckpt_has_role(saved, ZERO_ROLE_MASTER) ? ZERO_ROLE_MASTER : source->role;
    return (zi_joined_from){role, source->widened && zi_dtype_is_small(saved->role[role].dtype)};
}

zi_joined ckpt_joined(zi_source *reader, uint32_t head, const ckpt_source *source)
{
    const zi_box box = zi_box_of(&reader->map->tensors[head]);
    return (zi_joined){.source = reader,
                       .head = head,
                       .wanted = zi_box_whole(box.dims, box.global),
                       .from = from,
                       .user = source,
                       .staging = staging};
}

/* The one type that all boxes of a tensor have in a role; fp32 where they differ. Codes of several
 * have blocks that are none of the whole's. */
static int join_types(const zi_source *reader, uint32_t head, zi_checkpoint_tensor *whole)
{
    const zi_checkpoint_map *map = reader->map;
    for (uint32_t t = zi_source_next(reader, head); t != UINT32_MAX;
         t = zi_source_next(reader, t)) {
        for (int r = 0; r < ZI_SHARD_ROLES; r++) {
            const zero_dtype type = map->tensors[t].role[r].dtype;
            if (zi_role_is_scales((zero_role)r)) {
                whole->role[r].dtype = ZERO_DTYPE_NONE;
                continue;
            }
            if (ckpt_has_role(whole, r) != ckpt_has_role(&map->tensors[t], r)) {
                return bench_fail("tensor \"%.127s\": parts %" PRIu32 " and %" PRIu32
                                  " have it with and without %s",
                                  whole->name, map->tensors[head].part, map->tensors[t].part,
                                  zero_role_name((zero_role)r));
            }
            whole->role[r].dtype =
                type == whole->role[r].dtype && !zi_dtype_is_code(type) ? type : ZERO_DTYPE_F32;
        }
    }
    return 0;
}

static int join_tensor(zi_source *reader, uint32_t head, zi_checkpoint_tensor *whole)
{
    const ckpt_source source = {.role = ZERO_ROLE_PARAM};
    const zi_joined joined = ckpt_joined(reader, head, &source);
    *whole = reader->map->tensors[head];
    memcpy(whole->shape, joined.wanted.shape, sizeof whole->shape);
    whole->is_box = false;
    whole->part = 0;
    whole->count = 1;
    for (uint32_t d = 0; d < whole->dims; d++) {
        whole->count *= whole->shape[d];
    }
    const uint64_t covered = zi_joined_covers(&joined);
    return covered == whole->count ? join_types(reader, head, whole)
                                   : bench_fail("tensor \"%.127s\": the parts have %" PRIu64
                                                " of its %" PRIu64 " elements",
                                                whole->name, covered, whole->count);
}

int ckpt_whole_make(zi_source *reader, ckpt_whole *whole)
{
    const zi_checkpoint_map *map = reader->map;
    *whole = (ckpt_whole){.tensors = calloc((size_t)map->tensor_count + 1, sizeof *whole->tensors),
                          .heads = calloc((size_t)map->tensor_count + 1, sizeof *whole->heads)};
    if (whole->tensors == NULL || whole->heads == NULL) {
        return bench_fail("no memory for %" PRIu32 " tensors", map->tensor_count);
    }
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        if (zi_source_find(reader, map->tensors[i].name) == i) {
            whole->heads[whole->count] = i;
            if (join_tensor(reader, i, &whole->tensors[whole->count++]) != 0) {
                return 1;
            }
        }
    }
    return 0;
}

void ckpt_whole_free(ckpt_whole *whole)
{
    free(whole->tensors);
    free(whole->heads);
    *whole = (ckpt_whole){0};
}

/* ---- sums ---- */

/* Of the elements of a tensor that is in boxes, as if it had been saved whole. */
static int read_sum(const zi_joined *joined, uint64_t count, uint64_t *sum)
{
    static _Alignas(4096) unsigned char values[ZI_PIECE_COUNT * sizeof(float)];
    *sum = 0;
    for (uint64_t first = 0; first < count; first += ZI_PIECE_COUNT) {
        const uint64_t left = count - first;
        const uint64_t run = left < ZI_PIECE_COUNT ? left : ZI_PIECE_COUNT;
        zi_codec codec = {ZERO_DTYPE_NONE, false};
        if (zi_joined_alike(joined, first, first + run, &codec) != run) {
            return bench_fail("tensor \"%.127s\": its parts were saved in different types",
                              joined->source->map->tensors[joined->head].name);
        }
        if (CKPT_TRY(zi_joined_read(joined, first, run, true, values)) != 0) {
            return 1;
        }
        *sum += zi_piece_sum(values, first, run, codec);
    }
    return 0;
}

int ckpt_whole_sum(zi_source *reader, const ckpt_whole *whole, uint32_t tensor, zero_role role,
                   bool widened, uint64_t *sum)
{
    const ckpt_source source = {.role = role, .widened = widened};
    const uint32_t head = whole->heads[tensor];
    const zi_joined joined = ckpt_joined(reader, head, &source);
    if (zi_source_next(reader, head) == UINT32_MAX &&
        !(widened && whole->tensors[tensor].role[role].dtype != ZERO_DTYPE_F32)) {
        return CKPT_TRY(zi_source_tensor_sum(reader, head, role, sum));
    }
    const uint64_t before = zi_source_count(reader).balance;
    if (read_sum(&joined, whole->tensors[tensor].count, sum) != 0) {
        return 1;
    }
    return zi_source_count(reader).balance == before
               ? 0
               : ckpt_find_damage(&joined, whole->tensors[tensor].count);
}

int ckpt_find_damage(const zi_joined *joined, uint64_t count)
{
    const char *name = joined->source->map->tensors[joined->head].name;
    return CKPT_TRY(zi_joined_check(joined, 0, count)) != 0
               ? 1
               : bench_fail("tensor \"%.127s\" changed while it was read", name);
}
