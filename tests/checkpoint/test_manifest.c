/* Owns the tests of manifests: what is written is read back to the bit, in any locale; and every
 * flipped bit, every other version and every member that says what cannot be is refused by name. */
#include <locale.h>

#include "checkpoint_case.h"
#include "folders.h"
#include "sanitizer.h"

#include "format/json.h"
#include "optimizer/optimizer_table.h"

static char *home;

static void make_home(void)
{
    home = rig_folder(true);
}

static void remove_home(void)
{
    case_remove(home, true);
    free(home);
}

/* A checkpoint's folder with this text alone. */
static void put_text(const char *text, size_t bytes)
{
    const int file = case_open(home, ZI_MANIFEST_NAME);
    CHECK(ftruncate(file, 0) == 0);
    case_put(file, text, bytes, 0);
    CHECK(close(file) == 0);
}

static char *text_of(const case_model *c, uint64_t step, size_t *bytes)
{
    zi_manifest m = case_manifest(c, step);
    char *text = NULL;
    for (uint32_t i = 0; i < c->map.file_count; i++) {
        m.header_hash[i] = case_random(9, i);
    }
    m.sums_hash = UINT64_MAX;
    CHECK_OK(zi_manifest_write(&m, &text, bytes));
    free(m.header_hash);
    return text;
}

/* ---- round trips ---- */

static void check_tensor(const zi_checkpoint_tensor *a, const zi_checkpoint_tensor *b)
{
    CHECK(strcmp(a->name, b->name) == 0);
    CHECK_EQ(a->dims, b->dims);
    CHECK_BYTES(a->shape, b->shape, sizeof a->shape);
    const zi_box boxes[2] = {zi_box_of(a), zi_box_of(b)};
    CHECK(zi_box_same(&boxes[0], &boxes[1]));
    CHECK_EQ(a->part, b->part);
    CHECK_EQ(a->count, b->count);
    CHECK_EQ(a->flags, b->flags);
    CHECK_EQ(a->group, b->group);
    CHECK_EQ(a->cut_first, b->cut_first);
    CHECK_EQ(a->cut_every, b->cut_every);
    for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
        CHECK_EQ(case_has(a, role), case_has(b, role));
        if (case_has(a, role)) {
            CHECK_BYTES(&a->role[role], &b->role[role], sizeof a->role[role]);
        }
    }
}

/* Of an optimizer with few numbers the rest of a group has no value. */
static void check_groups(const zi_hyper *a, const zi_hyper *b, uint32_t count)
{
    for (uint32_t i = 0; i < ZERO_STEP_GROUPS; i++) {
        const uint32_t numbers = i < count ? zi_optimizer_of(a[i].kind)->number_count : 0;
        CHECK_EQ(a[i].kind, b[i].kind);
        CHECK_BYTES(a[i].number, b[i].number, numbers * sizeof a[i].number[0]);
    }
}

static void check_same(const zi_manifest *a, const zi_manifest *b)
{
    CHECK_EQ(a->world, b->world);
    CHECK_EQ(a->seed, b->seed);
    CHECK_EQ(a->model_hash, b->model_hash);
    CHECK_BYTES(&a->state, &b->state, sizeof a->state);
    CHECK_EQ(a->scale_dynamic, b->scale_dynamic);
    CHECK_EQ(a->group_count, b->group_count);
    check_groups(a->groups, b->groups, a->group_count);
    CHECK_EQ(a->data_position, b->data_position);
    CHECK_EQ(a->random_seed, b->random_seed);
    CHECK_EQ(a->random_position, b->random_position);
    CHECK_EQ(a->user_bytes, b->user_bytes);
    CHECK_BYTES(a->user, b->user, a->user_bytes);
    CHECK_EQ(a->sums_hash, b->sums_hash);
    CHECK_EQ(a->map.tensor_count, b->map.tensor_count);
    CHECK_EQ(a->map.file_count, b->map.file_count);
    CHECK_EQ(a->map.piece_count, b->map.piece_count);
    CHECK_EQ(a->parts != NULL, b->parts != NULL);
    for (uint32_t i = 0; a->parts != NULL && i < a->map.part_count; i++) {
        const zi_manifest_part *part = &a->parts[i];
        CHECK_EQ(part->group_count, b->parts[i].group_count);
        check_groups(part->groups, b->parts[i].groups, part->group_count);
        CHECK_BYTES(part->carried, b->parts[i].carried, sizeof part->carried);
    }
    for (uint32_t i = 0; i < a->map.tensor_count; i++) {
        check_tensor(&a->map.tensors[i], &b->map.tensors[i]);
    }
    for (uint32_t i = 0; i < a->map.file_count; i++) {
        CHECK_BYTES(&a->map.files[i], &b->map.files[i], sizeof a->map.files[i]);
        CHECK_EQ(a->header_hash[i], b->header_hash[i]);
    }
}

static bool has_small(const case_model *c)
{
    bool found = false;
    for (uint32_t i = 0; i < c->map.tensor_count; i++) {
        for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
            found = found || zi_dtype_is_small(c->map.tensors[i].role[role].dtype);
        }
    }
    return found;
}

/* parts: of the model; small: its states are remainders and codes. */
static void round_trip(uint64_t seed, uint32_t parts, bool small)
{
    case_model c;
    zi_manifest read;
    size_t bytes = 0;
    case_make(&c, test_chance(seed, 40), 3000, 1 + test_chance(seed + 1, 8), seed);
    const uint64_t model_hash = zi_manifest_model_hash(&c.map);
    if (parts > 1) {
        case_split(&c, parts);
    }
    if (small) {
        case_shrink(&c);
    }
    zi_manifest m = case_manifest(&c, seed);
    for (int i = 0; i < ZERO_STEP_GROUPS; i++) {
        m.state.carried[i][0] = (double)case_random(seed, (uint64_t)i) * 0x1p-64;
        m.state.carried[i][1] = i % 3 == 0 ? 0 : i % 3 == 1 ? 0x1p-1074 : 1 - 0x1p-53;
    }
    m.groups[1].adamw = (zero_adamw){0x1.fffffep127f, 0x1p-149f, 0.1f, 1e-30f, 0};
    m.groups[2] = (zi_hyper){.kind = ZERO_OPTIMIZER_LION, .lion = {0.1f, 0x1p-126f, 1e30f, 7}};
    m.groups[63].kind = ZERO_OPTIMIZER_CALLBACK;
    m.sums_hash = case_random(seed, 5);
    m.scale_dynamic = seed % 3 == 0;
    m.commit = UINT64_MAX - seed;
    m.weights = seed % 4 == 1;
    char *text = NULL;
    CHECK_OK(zi_manifest_write(&m, &text, &bytes));
    put_text(text, bytes);
    CHECK(strstr(text, test_text("\"version\": %d,", has_small(&c) ? 3
                                                     : parts > 1   ? 2
                                                                   : 1)) != NULL);
    CHECK_OK(zi_manifest_read(&read, home));
    check_same(&m, &read);
    CHECK_EQ(read.model_hash, model_hash); /* however it is cut */
    zi_manifest_head head;
    CHECK_OK(zi_manifest_read_head(home, false, &head));
    CHECK(head.step == seed && head.commit == m.commit && read.commit == m.commit);
    CHECK_EQ(zi_manifest_commit(home), m.commit);
    CHECK(head.weights == m.weights && read.weights == m.weights);
    zi_manifest_free(&read);
    free(m.header_hash);
    zi_free(text);
    case_free(&c);
}

TEST(what_is_written_is_read)
{
    make_home();
    for (uint64_t seed = 1; seed <= 40; seed++) {
        round_trip(seed, 1, false);
        round_trip(seed, 2 + (uint32_t)seed % 5, false);
        round_trip(seed, 1 + (uint32_t)seed % 3, true);
    }
    remove_home();
}

/* Of a model in one part: the bytes that the first release writes of it. */
TEST(texts_stay_as_they_are)
{
    case_model c;
    size_t bytes = 0;
    case_make(&c, 30, 3000, 3, 1);
    char *text = text_of(&c, 9, &bytes);
    CHECK_EQ(zi_checkpoint_hash(text, bytes), UINT64_C(0xc1c45229cb578798));
    zi_free(text);
    case_shrink(&c);
    text = text_of(&c, 9, &bytes);
    CHECK_EQ(zi_checkpoint_hash(text, bytes), UINT64_C(0xb01dd46d4d69da22));
    zi_free(text);
    case_free(&c);
}

/* One that is made here or installed. */
static bool enter_locale(const char *name)
{
    const char *line =
        test_text("localedef -i %.5s -f UTF-8 %s/%s >/dev/null 2>&1", name, home, name);
    (void)!system(line); /* it warns of much */
    CHECK(setenv("LOCPATH", home, 1) == 0);
    const bool made = setlocale(LC_ALL, name) != NULL;
    CHECK(unsetenv("LOCPATH") == 0);
    return made || setlocale(LC_ALL, name) != NULL;
}

/* Of one byte, and of two. */
TEST(what_is_written_is_read_with_another_decimal_point)
{
    static const char *const names[] = {"de_DE.UTF-8", "ps_AF.UTF-8"};
    make_home();
    for (int i = 0; i < 2; i++) {
        if (!enter_locale(names[i])) {
            remove_home();
            SKIP(test_text("there is no locale %s, and localedef cannot make it", names[i]));
        }
        CHECK_EQ(strlen(localeconv()->decimal_point), i + 1);
        round_trip(77, 3, false);
    }
    remove_home();
}

static void check_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        TEST_FAIL("the manifest has no %s:\n%s", part, text);
    }
}

TEST(numbers_and_names_are_valid_json)
{
    case_model c;
    char *text = NULL;
    size_t bytes = 0;
    case_make(&c, 3, 300, 2, 3);
    c.map.tensors[2].name = "\n\"\\é\x01";
    zi_manifest m = case_manifest(&c, 9);
    m.state.updates = UINT64_MAX;
    m.state.loss_scale = 1;
    m.state.carried[0][0] = 1;
    m.state.carried[0][1] = 0.1;
    m.groups[0].adamw = (zero_adamw){1e-8f, -0.0f, 0.1f, 0.5f, 3};
    m.sums_hash = 0xabc;
    CHECK_OK(zi_manifest_write(&m, &text, &bytes));
    check_has(text, "\"updates\": \"18446744073709551615\",\n");
    check_has(text, "\"loss_scale\": 1.0,\n");
    check_has(text, "\"carried\": [1.0, 0.10000000000000001], \"lr\": 9.9999999392252903e-9, "
                    "\"beta1\": -0.0, \"beta2\": 0.10000000149011612, \"eps\": 0.5, "
                    "\"weight_decay\": 3.0}");
    check_has(text, "\"xxh3\": \"0000000000000abc\"}");
    check_has(text, "{\"name\": \"\\n\\\"\\\\é\\u0001\", ");
    zi_free(text);
    free(m.header_hash);
    case_free(&c);
}

/* Calls of jansson's for memory that are granted; then none is, until this is set anew. */
static size_t granted;
static size_t held;

static void *grant(size_t bytes)
{
    void *memory = granted > 0 ? malloc(bytes) : NULL;
    granted -= granted > 0;
    held += memory != NULL;
    return memory;
}

static void give_back(void *memory)
{
    held -= memory != NULL;
    free(memory);
}

TEST(a_text_that_memory_lacks_for_is_none)
{
    case_model c;
    case_make(&c, 2, 300, 2, 3);
    case_split(&c, 2);
    zi_manifest m = case_manifest(&c, 9);
    char *text = NULL;
    size_t bytes = 0;
    size_t calls = 0;
    json_set_alloc_funcs(grant, give_back);
    for (zero_status status = ZERO_ERR_OUT_OF_MEMORY; status != ZERO_OK; calls++) {
        char *header = NULL;
        zi_checkpoint_map map = c.map;
        granted = calls;
        status = zi_manifest_write(&m, &text, &bytes);
        CHECK_EQ(held, 0);
        CHECK(status == ZERO_OK || (status == ZERO_ERR_OUT_OF_MEMORY && text == NULL));
        granted = calls;
        const bool made = zi_checkpoint_map_make(&map) == ZERO_OK;
        CHECK_EQ(held, 0);
        CHECK(made || map.files == NULL);
        zi_checkpoint_map_free(&map);
        granted = calls;
        const bool whole = zi_checkpoint_header(&c.map, 0, &header) == ZERO_OK;
        CHECK_EQ(held, 0);
        CHECK(whole == (header != NULL) && (whole || !made));
        zi_free(header);
    }
    CHECK(calls > 1000);
    json_set_alloc_funcs(malloc, free);
    zi_free(text);
    free(m.header_hash);
    case_free(&c);
}

/* ---- damage ---- */

TEST(every_flipped_bit_is_seen)
{
    case_model c;
    size_t bytes = 0;
    zi_manifest_head head;
    zi_manifest read;
    make_home();
    case_make(&c, 3, 300, 2, test_seed);
    char *text = text_of(&c, 9, &bytes);
    for (size_t bit = 0; bit < bytes * 8; bit++) {
        if (!IN_SAMPLE(bit)) {
            continue;
        }
        text[bit / 8] ^= (char)(1 << bit % 8);
        put_text(text, bytes);
        CHECK_EQ(ZERO_ERR_CORRUPT, zi_manifest_read_head(home, false, &head));
        CHECK_SAID(ZI_MANIFEST_NAME);
        text[bit / 8] ^= (char)(1 << bit % 8);
    }
    for (size_t end = 0; end < bytes; end++) {
        put_text(text, end);
        const zero_status status = zi_manifest_read(&read, home);
        CHECK(status == ZERO_ERR_CORRUPT || (status == ZERO_ERR_INVALID_ARGUMENT && end < 21));
        CHECK_SAID(ZI_MANIFEST_NAME);
        zi_manifest_free(&read);
    }
    zi_free(text);
    case_free(&c);
    remove_home();
}

/* ---- hostile texts ---- */

/* The forgery that an author with a right hash may write: `old` for `new`, once. */
typedef struct forgery {
    const char *old;
    const char *new;
    zero_status status;
    const char *words;
} forgery;

static void put_forged(const char *text, size_t bytes, const forgery *f)
{
    const char *at = strstr(text, f->old);
    char *forged = calloc(1, bytes + strlen(f->new) + 1);
    if (at == NULL || forged == NULL) {
        TEST_FAIL("the manifest has no %s:\n%s", f->old, text);
    }
    (void)sprintf(forged, "%.*s%s%s", (int)(at - text), text, f->new, at + strlen(f->old));
    case_seal(forged, strlen(forged));
    put_text(forged, strlen(forged));
    free(forged);
}

static const forgery forgeries[] = {
    {"libzero checkpoint", "libzero checkbook!", ZERO_ERR_INVALID_ARGUMENT, "first lines"},
    {"\"version\": 1", "\"version\": 4", ZERO_ERR_UNSUPPORTED, "version 4"},
    {"\"version\": 1", "\"version\": 0", ZERO_ERR_UNSUPPORTED, "version 0"},
    {"\"version\": 1", "\"version\": 2", ZERO_ERR_INVALID_ARGUMENT, "\"parts\""},
    {"\"version\": 1", "\"version\": 18446744073709551617", ZERO_ERR_INVALID_ARGUMENT,
     "first lines"},
    {"\"updates\": \"8\"", "\"updates\": 8", ZERO_ERR_INVALID_ARGUMENT, "first lines"},
    {"\"updates\": \"8\"", "\"updates\": \"18446744073709551615\"", ZERO_ERR_INVALID_ARGUMENT,
     "\"updates\""},
    {"\"little\"", "\"big\"", ZERO_ERR_UNSUPPORTED, "\"big\""},
    {"\"world\": 2", "\"world\": -2", ZERO_ERR_INVALID_ARGUMENT, "\"world\""},
    {"\"world\": 2", "\"world\": 2, \"world\": 2", ZERO_ERR_INVALID_ARGUMENT, "duplicate"},
    {"\"world\": 2", "\"world\": 2.0", ZERO_ERR_INVALID_ARGUMENT, "\"world\""},
    {"\"seed\": \"1", "\"seed\": \"91", ZERO_ERR_INVALID_ARGUMENT, "\"seed\""},
    {"\"seed\": \"1", "\"seed\": \"-1", ZERO_ERR_INVALID_ARGUMENT, "\"seed\""},
    {"\"loss_scale\": 65536", "\"loss_scale\": 1e39, \"x\": 0", ZERO_ERR_INVALID_ARGUMENT,
     "\"loss_scale\""},
    {"\"loss_scale_dynamic\": false", "\"loss_scale_dynamic\": 1", ZERO_ERR_INVALID_ARGUMENT,
     "\"loss_scale_dynamic\" of "},
    {"\"loss_scale_dynamic\": false", "\"x\": false", ZERO_ERR_INVALID_ARGUMENT,
     "\"loss_scale_dynamic\""},
    {"\"commit\": \"1\"", "\"x\": \"1\"", ZERO_ERR_INVALID_ARGUMENT, "\"commit\" and \"kind\""},
    {"\"kind\": \"full\"", "\"kind\": \"half\"", ZERO_ERR_INVALID_ARGUMENT,
     "\"commit\" and \"kind\""},
    {"\"overflows\": 0", "\"overflows\": 4294967296", ZERO_ERR_INVALID_ARGUMENT, "\"overflows\""},
    {"\"carried\": [", "\"carried\": [1.0, ", ZERO_ERR_INVALID_ARGUMENT, "\"carried\""},
    {"\"carried\": [", "\"carried\": [7, 1], \"x\": [", ZERO_ERR_INVALID_ARGUMENT,
     "\"carried\" of a group"},
    {"\"optimizer\": \"adamw\"", "\"optimizer\": \"adam\"", ZERO_ERR_INVALID_ARGUMENT,
     "is adam, none"},
    {"\"optimizer\": \"adamw\"", "\"optimizer\": 1", ZERO_ERR_INVALID_ARGUMENT, "is no text"},
    {"\"groups\": [\n{", "\"groups\": [[], {", ZERO_ERR_INVALID_ARGUMENT, "\"groups\""},
    {"\"beta1\": ", "\"1beta\": ", ZERO_ERR_INVALID_ARGUMENT, "\"beta1\""},
    {"\"user\": \"", "\"user\": \"0", ZERO_ERR_INVALID_ARGUMENT, "\"user\""},
    {"\"user\": \"", "\"user\": \"zz", ZERO_ERR_INVALID_ARGUMENT, "\"user\""},
    {"\"sums.bin\"", "\"../sums.bin\"", ZERO_ERR_INVALID_ARGUMENT, "../sums.bin"},
    {"\"pieces\": ", "\"pieces\": 9", ZERO_ERR_INVALID_ARGUMENT, "\"pieces\""},
    {"\"piece_elements\": 262144", "\"piece_elements\": 0", ZERO_ERR_INVALID_ARGUMENT,
     "\"piece_elements\""},
    {"\"param.safetensors\"", "\"../../etc/passwd\"", ZERO_ERR_INVALID_ARGUMENT,
     "../../etc/passwd"},
    {"\"param.safetensors\"", "\"/etc/passwd\"", ZERO_ERR_INVALID_ARGUMENT, "/etc/passwd"},
    {"\"header_xxh3\": \"", "\"header_xxh3\": \"X", ZERO_ERR_INVALID_ARGUMENT, "\"header_xxh3\""},
    {"\"data_at\": 4096", "\"data_at\": 0", ZERO_ERR_INVALID_ARGUMENT, "does not follow"},
    {"\"data_at\": 4096", "\"data_at\": 9223372036854775808", ZERO_ERR_INVALID_ARGUMENT, "too big"},
    {"\"files\": [", "\"files\": [{}, ", ZERO_ERR_INVALID_ARGUMENT, "\"files\""},
    {"\"tensors\": [", "\"tensors\": [null, ", ZERO_ERR_INVALID_ARGUMENT, "\"tensors\""},
    {"\"tensors\": [", "\"tensors\": 4294967296, \"x\": [", ZERO_ERR_INVALID_ARGUMENT,
     "\"tensors\""},
    {"größe \\\"2", "größe \\\"1", ZERO_ERR_INVALID_ARGUMENT, "twice"},
    {"h.0.größe \\\"2\\\"", "", ZERO_ERR_INVALID_ARGUMENT, "1 to 127"},
    {"h.0.größe \\\"2\\\"", "\\u0000", ZERO_ERR_INVALID_ARGUMENT, "line"},
    {"\"shape\": [", "\"shape\": [4294967296, 4294967296, 2], \"x\": [", ZERO_ERR_INVALID_ARGUMENT,
     "\"shape\""},
    {"\"shape\": [", "\"shape\": [1, 1, 1, 1, 1, 1, 1, 1, 1], \"x\": [", ZERO_ERR_INVALID_ARGUMENT,
     "\"shape\""},
    {"\"shape\": [", "\"shape\": [288230376151711744], \"x\": [", ZERO_ERR_INVALID_ARGUMENT,
     "2^57"},
    {"\"shape\": [", "\"shape\": [-1], \"x\": [", ZERO_ERR_INVALID_ARGUMENT, "\"shape\""},
    {"\"flags\": 0", "\"flags\": 4", ZERO_ERR_INVALID_ARGUMENT, "\"flags\""},
    {"\"group\": 1", "\"group\": 64", ZERO_ERR_INVALID_ARGUMENT, "\"group\""},
    {"\"cuts\": [", "\"cuts\": [0, 256], \"x\": [", ZERO_ERR_INVALID_ARGUMENT, "\"cuts\""},
    {"\"cuts\": [", "\"cuts\": [256, 0], \"x\": [", ZERO_ERR_INVALID_ARGUMENT, "\"cuts\""},
    {"\"cuts\": [", "\"cuts\": [512, 256], \"x\": [", ZERO_ERR_INVALID_ARGUMENT, "\"cuts\""},
    {"\"cuts\": [", "\"cuts\": [100, 256], \"x\": [", ZERO_ERR_INVALID_ARGUMENT, "\"cuts\""},
    {"\"cuts\": [", "\"cuts\": [256, 9223372036854775552], \"x\": [", ZERO_ERR_INVALID_ARGUMENT,
     "\"cuts\""},
    {"\"places\": {", "\"places\": {\"grad\": [\"f32\", 0, 4096, 0], ", ZERO_ERR_INVALID_ARGUMENT,
     "\"places\""},
    {"\"param\": [\"f32\"", "\"param\": [\"f64\"", ZERO_ERR_INVALID_ARGUMENT, "a place"},
    {"\"param\": [\"f32\"", "\"param\": [\"bf16\"", ZERO_ERR_INVALID_ARGUMENT, "follow"},
    {"\"f32\", 0, 4096", "\"f32\", 0, 4100", ZERO_ERR_INVALID_ARGUMENT, "follows from"},
    {"\"f32\", 0, 4096", "\"f32\", 4294967296, 4096", ZERO_ERR_INVALID_ARGUMENT, "follows from"},
    {"\"model_hash\": \"", "\"model_hash\": \"0000000000000000\", \"x\": \"",
     ZERO_ERR_INVALID_ARGUMENT, "\"model_hash\""},
};

/* In a model of a matrix of 6 x 4 in two parts, and a tensor that the first part has. */
static const forgery part_forgeries[] = {
    {"\"version\": 2", "\"version\": 1", ZERO_ERR_INVALID_ARGUMENT, "twice"},
    {"\"parts\": [", "\"parts\": [{}, ", ZERO_ERR_INVALID_ARGUMENT, "\"part\""},
    {"{\"part\": 1, \"g", "{\"part\": 0, \"g", ZERO_ERR_INVALID_ARGUMENT, "\"part\""},
    {"{\"part\": 1, \"g", "{\"part\": 1, \"groups\": 7, \"g", ZERO_ERR_INVALID_ARGUMENT,
     "duplicate"},
    {"\"part\": 1, \"shape\"", "\"part\": 2, \"shape\"", ZERO_ERR_INVALID_ARGUMENT, "\"part\""},
    {"\"part\": 0, \"shape\"", "\"part\": 1, \"shape\"", ZERO_ERR_INVALID_ARGUMENT, "\"part\""},
    {"\"part\": 1, \"shape\"", "\"shape\"", ZERO_ERR_INVALID_ARGUMENT, "\"part\""},
    {"\"box_first\": [3, 0]", "\"box_first\": [4, 0]", ZERO_ERR_INVALID_ARGUMENT, "no box around"},
    {"\"box_first\": [3, 0]", "\"box_first\": [3]", ZERO_ERR_INVALID_ARGUMENT, "no box around"},
    {"\"box_first\": [3, 0]", "\"box_last\": [3, 0]", ZERO_ERR_INVALID_ARGUMENT, "no box around"},
    {"\"box_first\": [3, 0]", "\"box_first\": [9223372036854775807, 0]", ZERO_ERR_INVALID_ARGUMENT,
     "no box around"},
    {"\"box_first\": [3, 0]", "\"box_first\": [2, 0]", ZERO_ERR_INVALID_ARGUMENT, "overlap"},
    {"\"global_shape\": [6, 4], \"box_first\": [3, 0]", "\"x\": 0", ZERO_ERR_INVALID_ARGUMENT,
     "global_shape"},
    {"\"global_shape\": [6, 4], \"box_first\": [3, 0]",
     "\"global_shape\": [8, 4], \"box_first\": [3, 0]", ZERO_ERR_INVALID_ARGUMENT, "[8, 4]"},
    {"\"global_shape\": [6, 4], \"box_first\": [3, 0]",
     "\"global_shape\": [4294967296, 4294967296], \"box_first\": [3, 0]", ZERO_ERR_INVALID_ARGUMENT,
     "no box around"},
    {"part-00002.param", "param", ZERO_ERR_INVALID_ARGUMENT, "does not follow"},
};

/* In a model of four tensors in bf16, with remainders and codes. */
static const forgery small_forgeries[] = {
    {"\"version\": 3", "\"version\": 1", ZERO_ERR_INVALID_ARGUMENT, "this version"},
    {"\"version\": 3", "\"version\": 2", ZERO_ERR_INVALID_ARGUMENT, "\"parts\""},
    {"\"param\": [\"bf16\"", "\"param\": [\"f32\"", ZERO_ERR_INVALID_ARGUMENT, "go together"},
    {"\"param\": [\"bf16\"", "\"param\": [\"remainder16\"", ZERO_ERR_INVALID_ARGUMENT,
     "go together"},
    {"\"param\": [\"bf16\"", "\"param\": [\"i8\"", ZERO_ERR_INVALID_ARGUMENT, "go together"},
    {"\"param\": [\"bf16\"", "\"param\": [\"none\"", ZERO_ERR_INVALID_ARGUMENT, "a place"},
    {"\"master\": [\"remainder16\"", "\"master\": [\"i8\"", ZERO_ERR_INVALID_ARGUMENT,
     "go together"},
    {"\"master\": [\"remainder16\"", "\"master\": [\"remainder8\"", ZERO_ERR_INVALID_ARGUMENT,
     "follow"},
    {"\"moment1\": [\"companded8\"", "\"moment1\": [\"bf16\"", ZERO_ERR_INVALID_ARGUMENT,
     "go together"},
    {"\"moment1\": [\"companded8\"", "\"moment1\": [\"remainder8\"", ZERO_ERR_INVALID_ARGUMENT,
     "go together"},
    {"\"scale1\": [\"bf16\"", "\"scale1\": [\"f32\"", ZERO_ERR_INVALID_ARGUMENT, "go together"},
    {"\"scale1\": [", "\"scale3\": [", ZERO_ERR_INVALID_ARGUMENT, "\"places\""},
    {"\"scale1.safetensors\"", "\"scales.safetensors\"", ZERO_ERR_INVALID_ARGUMENT, "follow"},
};

/* Four tensors of one type; the first is a matrix. */
static void make_plain(case_model *c)
{
    case_make(c, 4, 300, 2, 3);
    for (uint32_t i = 0; i < 4; i++) {
        case_roles(&c->map.tensors[i], 0);
        c->map.tensors[i].flags = 0;
    }
    zi_checkpoint_map_free(&c->map);
    CHECK_OK(zi_checkpoint_map_make(&c->map));
}

static void refuse_forgeries(const case_model *c, const forgery *all, size_t count)
{
    size_t bytes = 0;
    zi_manifest read;
    make_home();
    char *text = text_of(c, 9, &bytes);
    put_forged(text, bytes, &(forgery){"\"world\": 2", "\"world\":  2", ZERO_OK, ""});
    CHECK_OK(zi_manifest_read(&read, home)); /* a forger's hash is right */
    zi_manifest_free(&read);
    for (size_t i = 0; i < count; i++) {
        const forgery *f = &all[i];
        put_forged(text, bytes, f);
        const zero_status status = zi_manifest_read(&read, home);
        if (status != f->status || strstr(zero_last_error()->message, f->words) == NULL) {
            TEST_FAIL("%s: %s (%s)", f->new, zero_status_name(status), zero_last_error()->message);
        }
        zi_manifest_free(&read);
    }
    zi_free(text);
    remove_home();
}

/* As earlier versions wrote them. */
TEST(floats_of_nine_digits_are_read)
{
    case_model c;
    size_t bytes = 0;
    zi_manifest read;
    make_home();
    make_plain(&c);
    char *text = text_of(&c, 9, &bytes);
    put_forged(text, bytes,
               &(forgery){.old = "\"lr\": 9.9999997473787516e-5", .new = "\"lr\": 9.99999975e-05"});
    CHECK_OK(zi_manifest_read(&read, home));
    CHECK(read.groups[0].adamw.lr == 1e-4f);
    zi_manifest_free(&read);
    zi_free(text);
    case_free(&c);
    remove_home();
}

TEST(hostile_texts_are_refused)
{
    case_model c;
    make_plain(&c);
    refuse_forgeries(&c, forgeries, sizeof forgeries / sizeof forgeries[0]);
    case_free(&c);
    make_plain(&c);
    c.map.tensors[0].dims = 2;
    c.map.tensors[0].shape[0] = 6;
    c.map.tensors[0].shape[1] = 4;
    c.map.tensors[0].count = 24;
    case_split(&c, 2);
    refuse_forgeries(&c, part_forgeries, sizeof part_forgeries / sizeof part_forgeries[0]);
    case_free(&c);
    make_plain(&c);
    for (uint32_t i = 0; i < 4; i++) {
        case_roles(&c.map.tensors[i], 1);
    }
    case_shrink(&c);
    for (uint32_t i = 0; i < 4; i++) {
        c.map.tensors[i].role[ZERO_ROLE_MASTER].dtype = ZERO_DTYPE_REMAINDER16;
        c.map.tensors[i].role[ZERO_ROLE_MOMENT1].dtype = ZERO_DTYPE_COMPANDED8;
    }
    zi_checkpoint_map_free(&c.map);
    CHECK_OK(zi_checkpoint_map_make(&c.map));
    refuse_forgeries(&c, small_forgeries, sizeof small_forgeries / sizeof small_forgeries[0]);
    case_free(&c);
}

TEST(what_is_no_manifest)
{
    zi_manifest read;
    make_home();
    CHECK_FAILS(zi_manifest_read(&read, home), ZERO_ERR_INVALID_ARGUMENT, "its save did not end");
    zi_manifest_free(&read);
    CHECK_FAILS(zi_manifest_read(&read, "/nowhere"), ZERO_ERR_INVALID_ARGUMENT, "/nowhere");
    zi_manifest_free(&read);
    put_text("{}", 2);
    CHECK_FAILS(zi_manifest_read(&read, home), ZERO_ERR_INVALID_ARGUMENT, "not a checkpoint's");
    zi_manifest_free(&read);
    const char *path = test_text("%s/" ZI_MANIFEST_NAME, home);
    CHECK(unlink(path) == 0 && symlink("/etc/passwd", path) == 0);
    CHECK_FAILS(zi_manifest_read(&read, home), ZERO_ERR_INVALID_ARGUMENT, "symbolic link");
    zi_manifest_free(&read);
    CHECK(unlink(path) == 0 && mkfifo(path, 0600) == 0);
    CHECK_FAILS(zi_manifest_read(&read, home), ZERO_ERR_INVALID_ARGUMENT, "no regular file");
    zi_manifest_free(&read);
    remove_home();
}

TEST(models_have_one_hash_in_any_order)
{
    case_model c;
    case_make(&c, 20, 300, 2, 3);
    const uint64_t hash = zi_manifest_model_hash(&c.map);
    const zi_checkpoint_tensor first = c.map.tensors[0];
    c.map.tensors[0] = c.map.tensors[7];
    c.map.tensors[7] = first;
    CHECK_EQ(zi_manifest_model_hash(&c.map), hash);
    c.map.tensors[7].dims++;
    CHECK(zi_manifest_model_hash(&c.map) != hash);
    c.map.tensors[7] = first;
    c.map.tensors[7].name = "another";
    CHECK(zi_manifest_model_hash(&c.map) != hash);
    case_free(&c);
}
