/* Owns `zero ckpt diff` but for what it says: two checkpoints' manifests and which values differ go
 * to a script. Invariant: no element is read of tensors that both have in the same boxes and kinds;
 * a sum does not depend on how many ranks saved it. */
#include "ckpt.h"

#include <string.h>

#include "script.h"

/* The script adds SAME to what it found; what else it ends with is an error. */
enum { SAME = 10, DIFFERS = 11, ERROR = 2 };

typedef struct diff_side {
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    zi_source *reader;
    const zi_manifest *manifest;
    const zi_checkpoint_map *map;
    ckpt_whole whole;
} diff_side;

static int open_side(const char *word, diff_side *side)
{
    if (ckpt_open(word, side->folder, &side->reader) != 0) {
        return 1;
    }
    side->manifest = side->reader->manifest;
    side->map = side->reader->map;
    if (side->manifest == NULL) {
        return bench_fail("%s has weights alone, without sums to compare; `zero ckpt import` makes "
                          "a checkpoint of them",
                          side->folder);
    }
    return CKPT_TRY(zi_source_check_files(side->reader)) ||
           ckpt_whole_make(side->reader, &side->whole);
}

static bool same_shape(const zi_checkpoint_tensor *a, const zi_checkpoint_tensor *b)
{
    return a->dims == b->dims && memcmp(a->shape, b->shape, a->dims * sizeof a->shape[0]) == 0;
}

/* True if both sides have a tensor in the same boxes. */
static bool same_boxes(const diff_side *sides, const uint32_t heads[2])
{
    const diff_side *a = &sides[0];
    const diff_side *b = &sides[1];
    uint32_t left = heads[0];
    uint32_t right = heads[1];
    while (left != UINT32_MAX && right != UINT32_MAX) {
        const zi_box boxes[2] = {zi_box_of(&a->map->tensors[left]),
                                 zi_box_of(&b->map->tensors[right])};
        if (!zi_box_same(&boxes[0], &boxes[1])) {
            return false;
        }
        left = zi_source_next(a->reader, left);
        right = zi_source_next(b->reader, right);
    }
    return left == right;
}

/* *same := true if the boxes' sums are alike. */
static int compare_boxes(diff_side *sides, const uint32_t heads[2], int role, bool *same)
{
    uint32_t tensors[2] = {heads[0], heads[1]};
    *same = true;
    while (tensors[0] != UINT32_MAX && *same) {
        uint64_t sums[2] = {0, 0};
        for (int i = 0; i < 2; i++) {
            zi_source *reader = sides[i].reader;
            if (CKPT_TRY(zi_source_tensor_sum(reader, tensors[i], (zero_role)role, &sums[i])) !=
                0) {
                return 1;
            }
            tensors[i] = zi_source_next(reader, tensors[i]);
        }
        *same = sums[0] == sums[1];
    }
    return 0;
}

/* *same := true if the elements are, of tensors that were cut into other boxes. */
static int compare_wholes(diff_side *sides, const uint32_t wholes[2], int role, bool widened,
                          bool *same)
{
    uint64_t sums[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        if (ckpt_whole_sum(sides[i].reader, &sides[i].whole, wholes[i], (zero_role)role, widened,
                           &sums[i]) != 0) {
            return 1;
        }
    }
    *same = sums[0] == sums[1];
    return 0;
}

/* A tensor by its first box; UINT32_MAX: there is none. */
static uint32_t find_whole(const diff_side *side, const char *name)
{
    const uint32_t head = zi_source_find(side->reader, name);
    uint32_t first = 0;
    uint32_t end = side->whole.count; /* heads ascend */
    while (first < end) {
        const uint32_t middle = first + (end - first) / 2;
        if (side->whole.heads[middle] < head) {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    return head != UINT32_MAX ? first : UINT32_MAX;
}

/* True if values of both kinds can be compared: of one type, or as fp32 where one is of few bits.
 */
static bool comparable(zero_dtype a, zero_dtype b)
{
    return a == b || ((a == ZERO_DTYPE_F32 || zi_dtype_is_small(a)) &&
                      (b == ZERO_DTYPE_F32 || zi_dtype_is_small(b)));
}

/* *same := true if the values of two tensors are, in one role. */
static int compare_role(diff_side *sides, const uint32_t wholes[2], zero_role role, bool *same)
{
    const uint32_t heads[2] = {sides[0].whole.heads[wholes[0]], sides[1].whole.heads[wholes[1]]};
    const zero_dtype saved[2] = {sides[0].map->tensors[heads[0]].role[role].dtype,
                                 sides[1].map->tensors[heads[1]].role[role].dtype};
    const zero_dtype types[2] = {sides[0].whole.tensors[wholes[0]].role[role].dtype,
                                 sides[1].whole.tensors[wholes[1]].role[role].dtype};
    if (types[0] == types[1] && saved[0] == saved[1] && same_boxes(sides, heads)) {
        return compare_boxes(sides, heads, (int)role, same);
    }
    const bool widened = types[0] != types[1] || types[0] == ZERO_DTYPE_F32;
    return compare_wholes(sides, wholes, (int)role, widened, same);
}

/* Compare the values of two tensors in each role that both have: true where they are the same. NULL
 * after bench_fail. */
static json_t *compare_values(diff_side *sides, const uint32_t wholes[2])
{
    const zi_checkpoint_tensor *a = &sides[0].whole.tensors[wholes[0]];
    const zi_checkpoint_tensor *b = &sides[1].whole.tensors[wholes[1]];
    json_t *roles = json_object();
    for (int r = 0; r < ZI_SHARD_ROLES; r++) {
        bool same = true;
        if (!ckpt_has_role(a, r) || !ckpt_has_role(b, r) ||
            !comparable(a->role[r].dtype, b->role[r].dtype)) {
            continue;
        }
        if (compare_role(sides, wholes, (zero_role)r, &same) != 0) {
            json_decref(roles);
            return NULL;
        }
        (void)json_object_set_new(roles, zero_role_name((zero_role)r), json_boolean(same));
    }
    return roles;
}

/* Of all tensors that both have in one shape, by name. NULL after bench_fail. */
static json_t *compare_tensors(diff_side *sides)
{
    json_t *tensors = json_object();
    for (uint32_t i = 0; i < sides[0].whole.count; i++) {
        const zi_checkpoint_tensor *tensor = &sides[0].whole.tensors[i];
        const uint32_t pair[2] = {i, find_whole(&sides[1], tensor->name)};
        if (pair[1] == UINT32_MAX || !same_shape(tensor, &sides[1].whole.tensors[pair[1]])) {
            continue;
        }
        json_t *roles = compare_values(sides, pair);
        if (roles == NULL) {
            json_decref(tensors);
            return NULL;
        }
        (void)json_object_set_new(tensors, tensor->name, roles);
    }
    return tensors;
}

/* Its manifest was compared with its hash when it was opened. */
static json_t *side_json(const diff_side *side)
{
    char path[ZI_CHECKPOINT_PATH_BYTES];
    json_t *manifest = zi_checkpoint_path(path, side->folder, ZI_MANIFEST_NAME) == ZERO_OK
                           ? json_load_file(path, 0, NULL)
                           : NULL;
    return json_pack("{s:o, s:I, s:i, s:o}", "folder", json_string_nocheck(side->folder), "ranks",
                     (json_int_t)ckpt_ranks(side->manifest), "groups_given",
                     (int)side->manifest->group_count, "manifest", manifest);
}

int ckpt_diff(const ckpt_line *line)
{
    static diff_side sides[2]; /* with two paths */
    int status = ERROR;
    json_t *values =
        open_side(line->words[0], &sides[0]) == 0 && open_side(line->words[1], &sides[1]) == 0
            ? compare_tensors(sides)
            : NULL;
    if (values != NULL) {
        json_t *report = json_pack("{s:[o, o], s:o}", "sides", side_json(&sides[0]),
                                   side_json(&sides[1]), "same_values", values);
        status = script_status("ckpt_diff", line->json_path, report);
    }
    for (int i = 0; i < 2; i++) {
        ckpt_whole_free(&sides[i].whole);
        zi_source_close(sides[i].reader);
    }
    return status == SAME || status == DIFFERS ? status - SAME : ERROR;
}
