/* Owns `zero ckpt diff`: two checkpoints by their manifests and sums. Invariant: no element is read
 * of tensors that both have in the same boxes; a sum does not depend on how many ranks saved it. */
#include "ckpt.h"
#include "optimizer/optimizer_table.h"

#include <inttypes.h>
#include <string.h>

enum { SAME = 0, DIFFERS = 1, ERROR = 2, LISTED_MAX = 20 };

typedef struct diff_side {
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    zi_source *reader;
    const zi_manifest *manifest;
    const zi_checkpoint_map *map;
    ckpt_whole whole;
} diff_side;

typedef struct ckpt_difference {
    diff_side sides[2];
    json_t *state;                     /* [what, A's, B's] */
    json_t *tensors;                   /* [name, in what they differ] */
    uint64_t by_role[ZI_SHARD_ROLES];  /* tensors whose values differ */
    uint64_t compared[ZI_SHARD_ROLES]; /* tensors that both have in one type */
} ckpt_difference;

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

/* ---- what is no tensor ---- */

static void add_state(ckpt_difference *d, const char *what, const char *left, const char *right)
{
    if (strcmp(left, right) != 0) {
        (void)json_array_append_new(d->state, json_pack("[s, s, s]", what, left, right));
    }
}

static void add_whole(ckpt_difference *d, const char *what, uint64_t left, uint64_t right)
{
    char texts[2][CKPT_TEXT_BYTES];
    (void)snprintf(texts[0], CKPT_TEXT_BYTES, "%" PRIu64, left);
    (void)snprintf(texts[1], CKPT_TEXT_BYTES, "%" PRIu64, right);
    add_state(d, what, texts[0], texts[1]);
}

/* So many digits that two numbers have one text only where they are equal. */
static void add_real(ckpt_difference *d, const char *what, double left, double right)
{
    char texts[2][CKPT_TEXT_BYTES];
    (void)snprintf(texts[0], CKPT_TEXT_BYTES, "%.9g", left);
    (void)snprintf(texts[1], CKPT_TEXT_BYTES, "%.9g", right);
    add_state(d, what, texts[0], texts[1]);
}

static const char *scale_text(bool dynamic)
{
    return dynamic ? "dynamic" : "static";
}

static void compare_groups(ckpt_difference *d, const zi_manifest *left, const zi_manifest *right)
{
    add_whole(d, "groups", left->group_count, right->group_count);
    for (uint32_t i = 0; i < ZERO_STEP_GROUPS; i++) {
        const zi_hyper *a = &left->groups[i];
        const zi_hyper *b = &right->groups[i];
        const zi_optimizer *optimizer = zi_optimizer_of(a->kind);
        const bool has_numbers = i < left->group_count && i < right->group_count;
        char what[CKPT_TEXT_BYTES];
        (void)snprintf(what, sizeof what, "optimizer, group %" PRIu32, i);
        add_state(d, what, optimizer->name, zi_optimizer_of(b->kind)->name);
        for (uint32_t k = 0; k < optimizer->number_count && has_numbers && a->kind == b->kind;
             k++) {
            (void)snprintf(what, sizeof what, "%s, group %" PRIu32, optimizer->numbers[k].name, i);
            add_real(d, what, (double)a->number[k], (double)b->number[k]);
        }
    }
}

static bool has_parts(const ckpt_difference *d)
{
    return d->sides[0].manifest->parts != NULL || d->sides[1].manifest->parts != NULL;
}

static void compare_state(ckpt_difference *d)
{
    const zi_manifest *left = d->sides[0].manifest;
    const zi_manifest *right = d->sides[1].manifest;
    const zero_step_state *a = &left->state;
    const zero_step_state *b = &right->state;
    add_whole(d, "steps", a->updates + a->skipped, b->updates + b->skipped);
    add_whole(d, "skipped", a->skipped, b->skipped);
    add_real(d, "loss scale", (double)a->loss_scale, (double)b->loss_scale);
    add_state(d, "loss scale is", scale_text(left->scale_dynamic),
              scale_text(right->scale_dynamic));
    add_whole(d, "good steps", a->good_steps, b->good_steps);
    add_whole(d, "overflows", a->overflows, b->overflows);
    add_whole(d, "data position", left->data_position, right->data_position);
    add_whole(d, "random seed", left->random_seed, right->random_seed);
    add_whole(d, "random position", left->random_position, right->random_position);
    add_whole(d, "seed", left->seed, right->seed);
    if (!has_parts(d)) { /* else each tensor's are compared */
        compare_groups(d, left, right);
    }
    if (!has_parts(d) && memcmp(a->carried, b->carried, sizeof a->carried) != 0) {
        add_state(d, "beta products", "A's", "B's");
    }
    if (left->user_bytes != right->user_bytes ||
        (left->user_bytes != 0 && memcmp(left->user, right->user, left->user_bytes) != 0)) {
        add_whole(d, "user bytes", left->user_bytes, right->user_bytes);
        if (left->user_bytes == right->user_bytes) {
            add_state(d, "user bytes", "A's", "B's");
        }
    }
}

/* ---- tensors ---- */

static void add_tensor(ckpt_difference *d, const char *name, const char *what)
{
    (void)json_array_append_new(d->tensors, json_pack("[s, s]", name, what));
}

static bool same_shape(const zi_checkpoint_tensor *a, const zi_checkpoint_tensor *b)
{
    return a->dims == b->dims && memcmp(a->shape, b->shape, a->dims * sizeof a->shape[0]) == 0;
}

/* Appends to what is said of a tensor. */
static void say(char *text, size_t bytes, const char *role, const char *what)
{
    const size_t used = strlen(text);
    (void)snprintf(text + used, bytes - used, "%s%s%s", used == 0 ? "" : "; ", role, what);
}

/* True if both sides have a tensor in the same boxes. */
static bool same_boxes(const ckpt_difference *d, const uint32_t heads[2])
{
    const diff_side *a = &d->sides[0];
    const diff_side *b = &d->sides[1];
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
static int compare_boxes(ckpt_difference *d, const uint32_t heads[2], int role, bool *same)
{
    uint32_t tensors[2] = {heads[0], heads[1]};
    *same = true;
    while (tensors[0] != UINT32_MAX && *same) {
        uint64_t sums[2] = {0, 0};
        for (int i = 0; i < 2; i++) {
            zi_source *reader = d->sides[i].reader;
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
static int compare_wholes(ckpt_difference *d, const uint32_t wholes[2], int role, bool *same)
{
    uint64_t sums[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        if (ckpt_whole_sum(d->sides[i].reader, &d->sides[i].whole, wholes[i], (zero_role)role,
                           &sums[i]) != 0) {
            return 1;
        }
    }
    *same = sums[0] == sums[1];
    return 0;
}

static int compare_role(ckpt_difference *d, const uint32_t wholes[2], int role, char *text,
                        size_t bytes)
{
    const zi_checkpoint_tensor *a = &d->sides[0].whole.tensors[wholes[0]];
    const zi_checkpoint_tensor *b = &d->sides[1].whole.tensors[wholes[1]];
    const uint32_t heads[2] = {d->sides[0].whole.heads[wholes[0]],
                               d->sides[1].whole.heads[wholes[1]]};
    const zero_dtype left = a->role[role].dtype;
    const zero_dtype right = b->role[role].dtype;
    const char *name = zero_role_name((zero_role)role);
    char what[64];
    bool same = true;
    if (left != right) {
        (void)snprintf(what, sizeof what, " %s and %s", zero_dtype_name(left),
                       zero_dtype_name(right));
        say(text, bytes, name, what);
    }
    if (left != right || !ckpt_has_role(a, role)) {
        return 0;
    }
    if (same_boxes(d, heads) ? compare_boxes(d, heads, role, &same) != 0
                             : compare_wholes(d, wholes, role, &same) != 0) {
        return 1;
    }
    d->compared[role]++;
    if (!same) {
        d->by_role[role]++;
        say(text, bytes, name, "");
    }
    return 0;
}

/* The numbers of a tensor's group in its part's steps. */
typedef struct group_numbers {
    const double *carried;
    zi_hyper last; /* numbers of 0: not given */
} group_numbers;

static group_numbers numbers_of(const diff_side *side, uint32_t tensor)
{
    const zi_manifest *manifest = side->manifest;
    const uint32_t g = side->map->tensors[tensor].group;
    const zi_manifest_part *part =
        manifest->parts != NULL ? &manifest->parts[side->map->tensors[tensor].part] : NULL;
    return part != NULL ? (group_numbers){part->carried[g], part->groups[g]}
                        : (group_numbers){manifest->state.carried[g], manifest->groups[g]};
}

static bool same_numbers(const group_numbers *a, const group_numbers *b)
{
    bool same = a->last.kind == b->last.kind;
    for (uint32_t i = 0; i < zi_optimizer_of(a->last.kind)->number_count; i++) {
        same = same && a->last.number[i] == b->last.number[i];
    }
    return same && memcmp(a->carried, b->carried, ZERO_STEP_CARRIED * sizeof *a->carried) == 0;
}

/* All boxes of a tensor, on both sides, had those of its first one. */
static bool alike_in_numbers(const ckpt_difference *d, const uint32_t heads[2])
{
    const group_numbers first = numbers_of(&d->sides[0], heads[0]);
    for (int i = 0; i < 2; i++) {
        for (uint32_t t = heads[i]; t != UINT32_MAX; t = zi_source_next(d->sides[i].reader, t)) {
            const group_numbers other = numbers_of(&d->sides[i], t);
            if (!same_numbers(&first, &other)) {
                return false;
            }
        }
    }
    return true;
}

static int compare_tensor(ckpt_difference *d, uint32_t left, uint32_t right)
{
    const zi_checkpoint_tensor *a = &d->sides[0].whole.tensors[left];
    const zi_checkpoint_tensor *b = &d->sides[1].whole.tensors[right];
    const uint32_t pair[2] = {left, right};
    const uint32_t heads[2] = {d->sides[0].whole.heads[left], d->sides[1].whole.heads[right]};
    char shapes[2][CKPT_SHAPE_BYTES];
    char text[2 * CKPT_SHAPE_BYTES + 32] = "";
    if (!same_shape(a, b)) {
        (void)snprintf(text, sizeof text, "shapes %s and %s", ckpt_shape(a, shapes[0]),
                       ckpt_shape(b, shapes[1]));
        add_tensor(d, a->name, text);
        return 0;
    }
    for (int r = 0; r < ZI_SHARD_ROLES; r++) {
        if (compare_role(d, pair, r, text, sizeof text) != 0) {
            return 1;
        }
    }
    if (a->flags != b->flags || a->group != b->group) {
        say(text, sizeof text, "flags or group", "");
    } else if (has_parts(d) && (a->flags & ZERO_TENSOR_FROZEN) == 0 &&
               !alike_in_numbers(d, heads)) {
        say(text, sizeof text, "hyper-parameters or beta products", "");
    }
    if (text[0] != '\0') {
        add_tensor(d, a->name, text);
    }
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

static int compare_tensors(ckpt_difference *d)
{
    for (uint32_t i = 0; i < d->sides[0].whole.count; i++) {
        const char *name = d->sides[0].whole.tensors[i].name;
        const uint32_t other = find_whole(&d->sides[1], name);
        if (other == UINT32_MAX) {
            add_tensor(d, name, "only in A");
        } else if (compare_tensor(d, i, other) != 0) {
            return 1;
        }
    }
    for (uint32_t i = 0; i < d->sides[1].whole.count; i++) {
        const char *name = d->sides[1].whole.tensors[i].name;
        if (find_whole(&d->sides[0], name) == UINT32_MAX) {
            add_tensor(d, name, "only in B");
        }
    }
    return 0;
}

/* ---- the report ---- */

static const char *text_at(const json_t *row, size_t i)
{
    return json_string_value(json_array_get(row, i));
}

static void print_differences(const ckpt_difference *d)
{
    size_t i;
    const json_t *row;
    char name[CKPT_NAME_BYTES];
    if (json_array_size(d->state) > 0) {
        printf("\n%-26s  %24s  %24s\n", "state", "A", "B");
    }
    json_array_foreach(d->state, i, row)
    {
        printf("%-26s  %24s  %24s\n", text_at(row, 0), text_at(row, 1), text_at(row, 2));
    }
    if (json_array_size(d->tensors) == 0) {
        return;
    }
    printf("\n%-26s  %24s  %24s\n", "values", "tensors that differ", "of");
    for (int r = 0; r < ZI_SHARD_ROLES; r++) {
        if (d->compared[r] != 0) {
            printf("%-26s  %24" PRIu64 "  %24" PRIu64 "\n", zero_role_name((zero_role)r),
                   d->by_role[r], d->compared[r]);
        }
    }
    printf("\n%-44s  %s\n", "tensor", "differs in");
    json_array_foreach(d->tensors, i, row)
    {
        if (i == LISTED_MAX) {
            printf("and %zu more; --json has all\n", json_array_size(d->tensors) - i);
            return;
        }
        printf("%-44s  %s\n", ckpt_name(text_at(row, 0), name), text_at(row, 1));
    }
}

static int report(const ckpt_line *line, const ckpt_difference *d)
{
    const bool same = json_array_size(d->state) == 0 && json_array_size(d->tensors) == 0;
    const uint32_t worlds[2] = {ckpt_ranks(d->sides[0].manifest), ckpt_ranks(d->sides[1].manifest)};
    if (ckpt_has_text(line)) {
        for (int i = 0; i < 2; i++) {
            printf("%c  %s, %" PRIu32 " tensors, saved by %" PRIu32 " ranks\n", 'A' + i,
                   d->sides[i].folder, d->sides[i].whole.count, worlds[i]);
        }
        if (same) {
            printf("the same state\n");
        } else {
            print_differences(d);
        }
    }
    json_t *roles = json_object();
    for (int r = 0; r < ZI_SHARD_ROLES; r++) {
        if (d->compared[r] != 0) {
            (void)json_object_set_new(roles, zero_role_name((zero_role)r),
                                      json_integer((json_int_t)d->by_role[r]));
        }
    }
    const int failed = ckpt_put_json(
        line,
        json_pack("{s:b, s:s, s:s, s:[I, I], s:O, s:o, s:O}", "same", same, "a", d->sides[0].folder,
                  "b", d->sides[1].folder, "worlds", (json_int_t)worlds[0], (json_int_t)worlds[1],
                  "state", d->state, "values_that_differ", roles, "tensors", d->tensors));
    return ckpt_flush() || failed ? ERROR : same ? SAME : DIFFERS;
}

int ckpt_diff(const ckpt_line *line)
{
    static ckpt_difference d; /* it has two paths */
    int result = ERROR;
    d = (ckpt_difference){.state = json_array(), .tensors = json_array()};
    if (open_side(line->words[0], &d.sides[0]) == 0 &&
        open_side(line->words[1], &d.sides[1]) == 0 && compare_tensors(&d) == 0) {
        compare_state(&d);
        result = report(line, &d);
    }
    for (int i = 0; i < 2; i++) {
        ckpt_whole_free(&d.sides[i].whole);
        zi_source_close(d.sides[i].reader);
    }
    json_decref(d.state);
    json_decref(d.tensors);
    return result;
}
