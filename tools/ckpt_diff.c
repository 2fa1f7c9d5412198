/* Owns `zero ckpt diff`: two checkpoints by their manifests and sums. Invariant: no element is
 * read; a tensor's sum does not depend on how many ranks saved it. */
#include "ckpt.h"

#include <inttypes.h>
#include <string.h>

enum { SAME = 0, DIFFERS = 1, ERROR = 2, LISTED_MAX = 20 };

typedef struct diff_side {
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    zi_checkpoint_reader *reader;
    const zi_manifest *manifest;
    const zi_checkpoint_map *map;
} diff_side;

typedef struct ckpt_difference {
    diff_side sides[2];
    json_t *state;                       /* [what, A's, B's] */
    json_t *tensors;                     /* [name, in what they differ] */
    uint64_t by_role[ZERO_SHARD_ROLES];  /* tensors whose values differ */
    uint64_t compared[ZERO_SHARD_ROLES]; /* tensors that both have in one type */
} ckpt_difference;

static int open_side(const char *word, diff_side *side)
{
    if (ckpt_open(word, side->folder, &side->reader) != 0) {
        return 1;
    }
    side->manifest = zi_checkpoint_reader_manifest(side->reader);
    side->map = zi_checkpoint_reader_map(side->reader);
    if (side->manifest == NULL) {
        return bench_fail("%s has weights alone, without sums to compare; `zero ckpt import` makes "
                          "a checkpoint of them",
                          side->folder);
    }
    return CKPT_TRY(zi_checkpoint_reader_check_files(side->reader));
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

static void compare_groups(ckpt_difference *d, const zi_manifest *left, const zi_manifest *right)
{
    add_whole(d, "groups", left->group_count, right->group_count);
    for (uint32_t i = 0; i < left->group_count && i < right->group_count; i++) {
        const zero_adamw *a = &left->groups[i];
        const zero_adamw *b = &right->groups[i];
        const struct {
            const char *name;
            float left;
            float right;
        } rows[] = {{"lr", a->lr, b->lr},
                    {"beta1", a->beta1, b->beta1},
                    {"beta2", a->beta2, b->beta2},
                    {"eps", a->eps, b->eps},
                    {"weight decay", a->weight_decay, b->weight_decay}};
        for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
            char what[CKPT_TEXT_BYTES];
            (void)snprintf(what, sizeof what, "%s, group %" PRIu32, rows[k].name, i);
            add_real(d, what, (double)rows[k].left, (double)rows[k].right);
        }
    }
}

static void compare_state(ckpt_difference *d)
{
    const zi_manifest *left = d->sides[0].manifest;
    const zi_manifest *right = d->sides[1].manifest;
    const zero_step_state *a = &left->state;
    const zero_step_state *b = &right->state;
    const size_t products = sizeof a->beta1_product;
    add_whole(d, "steps", a->updates + a->skipped, b->updates + b->skipped);
    add_whole(d, "skipped", a->skipped, b->skipped);
    add_real(d, "loss scale", (double)a->loss_scale, (double)b->loss_scale);
    add_whole(d, "good steps", a->good_steps, b->good_steps);
    add_whole(d, "overflows", a->overflows, b->overflows);
    add_whole(d, "data position", left->data_position, right->data_position);
    add_whole(d, "random seed", left->random_seed, right->random_seed);
    add_whole(d, "random position", left->random_position, right->random_position);
    add_whole(d, "seed", left->seed, right->seed);
    compare_groups(d, left, right);
    if (memcmp(a->beta1_product, b->beta1_product, products) != 0 ||
        memcmp(a->beta2_product, b->beta2_product, products) != 0) {
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

static int compare_role(ckpt_difference *d, const uint32_t tensors[2], int role, char *text,
                        size_t bytes)
{
    const zi_checkpoint_tensor *a = &d->sides[0].map->tensors[tensors[0]];
    const zi_checkpoint_tensor *b = &d->sides[1].map->tensors[tensors[1]];
    const zero_dtype left = a->role[role].dtype;
    const zero_dtype right = b->role[role].dtype;
    const char *name = zero_role_name((zero_role)role);
    char what[64];
    uint64_t sums[2] = {0, 0};
    if (left != right) {
        (void)snprintf(what, sizeof what, " %s and %s", zero_dtype_name(left),
                       zero_dtype_name(right));
        say(text, bytes, name, what);
    }
    if (left != right || !ckpt_has_role(a, role)) {
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        if (CKPT_TRY(zi_checkpoint_tensor_sum(d->sides[i].reader, tensors[i], (zero_role)role,
                                              &sums[i])) != 0) {
            return 1;
        }
    }
    d->compared[role]++;
    if (sums[0] != sums[1]) {
        d->by_role[role]++;
        say(text, bytes, name, "");
    }
    return 0;
}

static int compare_tensor(ckpt_difference *d, uint32_t left, uint32_t right)
{
    const zi_checkpoint_tensor *a = &d->sides[0].map->tensors[left];
    const zi_checkpoint_tensor *b = &d->sides[1].map->tensors[right];
    const uint32_t pair[2] = {left, right};
    char shapes[2][CKPT_SHAPE_BYTES];
    char text[2 * CKPT_SHAPE_BYTES + 32] = "";
    if (!same_shape(a, b)) {
        (void)snprintf(text, sizeof text, "shapes %s and %s", ckpt_shape(a, shapes[0]),
                       ckpt_shape(b, shapes[1]));
        add_tensor(d, a->name, text);
        return 0;
    }
    for (int r = 0; r < ZERO_SHARD_ROLES; r++) {
        if (compare_role(d, pair, r, text, sizeof text) != 0) {
            return 1;
        }
    }
    if (a->flags != b->flags || a->group != b->group) {
        say(text, sizeof text, "flags or group", "");
    }
    if (text[0] != '\0') {
        add_tensor(d, a->name, text);
    }
    return 0;
}

static int compare_tensors(ckpt_difference *d)
{
    for (uint32_t i = 0; i < d->sides[0].map->tensor_count; i++) {
        const char *name = d->sides[0].map->tensors[i].name;
        const uint32_t other = zi_checkpoint_reader_find(d->sides[1].reader, name);
        if (other == UINT32_MAX) {
            add_tensor(d, name, "only in A");
        } else if (compare_tensor(d, i, other) != 0) {
            return 1;
        }
    }
    for (uint32_t i = 0; i < d->sides[1].map->tensor_count; i++) {
        const char *name = d->sides[1].map->tensors[i].name;
        if (zi_checkpoint_reader_find(d->sides[0].reader, name) == UINT32_MAX) {
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
    for (int r = 0; r < ZERO_SHARD_ROLES; r++) {
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
    const uint32_t worlds[2] = {d->sides[0].manifest->world, d->sides[1].manifest->world};
    if (ckpt_has_text(line)) {
        for (int i = 0; i < 2; i++) {
            printf("%c  %s, %" PRIu32 " tensors, saved by %" PRIu32 " ranks\n", 'A' + i,
                   d->sides[i].folder, d->sides[i].map->tensor_count, worlds[i]);
        }
        if (same) {
            printf("the same state\n");
        } else {
            print_differences(d);
        }
    }
    json_t *roles = json_object();
    for (int r = 0; r < ZERO_SHARD_ROLES; r++) {
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
    zi_checkpoint_reader_close(d.sides[0].reader);
    zi_checkpoint_reader_close(d.sides[1].reader);
    json_decref(d.state);
    json_decref(d.tensors);
    return result;
}
