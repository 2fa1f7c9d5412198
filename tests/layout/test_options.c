/* Owns the tests of the table of options: it has every field and nothing else, every option is
 * refused outside its bounds by its own name, set from text and written as text, printed by a plan,
 * and compared over the ranks where it says so. */
#include "core/role.h"
#include "plan_rig.h"

static zero_model *one_tensor_model(void)
{
    return model_of(300, ZERO_DTYPE_BF16);
}

typedef struct both {
    zero_engine_options options;
    zero_tuning tuning;
} both;

static both defaults(void)
{
    return (both){zero_engine_options_init(), zero_tuning_init()};
}

/* The options with their tuning, for one call. */
static const zero_engine_options *whole(both *b)
{
    b->options.tuning = &b->tuning;
    return &b->options;
}

static unsigned char *field_of(const zero_option *option, both *b)
{
    unsigned char *at =
        option->is_tuning != 0 ? (unsigned char *)&b->tuning : (unsigned char *)&b->options;
    return at + option->offset;
}

/* Fields in their order, with no hole that a field could be in. */
TEST(the_table_has_every_field)
{
    size_t end = sizeof(size_t); /* of struct_bytes */
    int32_t is_tuning = 0;
    const zero_option *option = NULL;
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        CHECK_EQ(zero_option_find(option->name) - option, 0);
        CHECK(option->text[0] != '\0');
        CHECK(option->fallback[0] != '\0');
        if (option->is_tuning != is_tuning) {
            CHECK(sizeof(zero_engine_options) - end < sizeof(size_t));
            end = sizeof(size_t);
            is_tuning = option->is_tuning;
        }
        if (option->offset < end || option->offset - end >= sizeof(size_t)) {
            TEST_FAIL("%s is at %zu, and what is before it ends at %zu", option->name,
                      option->offset, end);
        }
        end = option->offset + option->bytes;
    }
    CHECK_EQ(is_tuning, 1);
    CHECK(sizeof(zero_tuning) - end < sizeof(size_t)); /* which is its alignment */
}

static void refuse(const zero_option *option, both *b)
{
    zero_model *model = one_tensor_model();
    refuse_plan(model, whole(b), 4, ZERO_ERR_INVALID_ARGUMENT,
                test_text("%s.%s", option->is_tuning != 0 ? "tuning" : "options", option->name));
    zero_model_destroy(model);
}

static void refuse_whole(const zero_option *option, uint64_t value)
{
    both b = defaults();
    const uint32_t narrow = (uint32_t)value;
    memcpy(field_of(option, &b), option->bytes == 4 ? (const void *)&narrow : &value,
           option->bytes);
    refuse(option, &b);
}

TEST(values_outside_the_bounds_are_refused_by_name)
{
    static const float bad[] = {-1.0f, NAN, INFINITY};
    const zero_option *option = NULL;
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        switch (option->kind) {
        case ZERO_OPTION_REAL:
            for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
                both b = defaults();
                memcpy(field_of(option, &b), &bad[k], sizeof bad[k]);
                refuse(option, &b);
            }
            break;
        case ZERO_OPTION_CHOICE:
            refuse_whole(option, option->choice_count);
            refuse_whole(option, UINT32_MAX);
            for (uint32_t k = 0; k < option->choice_count; k++) {
                if (option->choices[k] == NULL) {
                    refuse_whole(option, k);
                }
            }
            break;
        case ZERO_OPTION_TIERS:
            for (uint32_t role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
                both b = defaults();
                b.options.tier[role] =
                    role < ZI_SHARD_ROLES ? (zero_tier)option->choice_count : ZERO_TIER_DEVICE;
                refuse(option, &b);
            }
            break;
        case ZERO_OPTION_GROUPS:
            for (uint32_t group = 0; group < ZERO_STEP_GROUPS; group++) {
                both b = defaults();
                b.options.group_optimizer[group] = (zero_optimizer)option->choice_count;
                refuse(option, &b);
            }
            break;
        case ZERO_OPTION_FLAG:
        case ZERO_OPTION_COUNT:
        case ZERO_OPTION_BYTES:
        case ZERO_OPTION_NUMBER:
            if (option->low > 1) {
                refuse_whole(option, option->low - 1);
            }
            if (option->high < (option->bytes == 4 ? UINT32_MAX : UINT64_MAX)) {
                refuse_whole(option, option->high + 1);
            }
            break;
        case ZERO_OPTION_POINTER:
        case ZERO_OPTION_TEXT:
            break;
        }
    }
}

/* The default that the table says is the one that the plan uses. */
TEST(defaults_are_what_the_table_says)
{
    zero_model *model = one_tensor_model();
    zero_plan *plan = plan_of(model, NULL, 4);
    both used = {plan_options(plan), plan_tuning(plan)};
    const zero_option *option = NULL;
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        uint64_t whole_value = 0;
        uint32_t narrow = 0;
        float real = 0.0f;
        if (option->value == 0 || option->kind == ZERO_OPTION_TIERS) {
            continue;
        }
        if (option->kind == ZERO_OPTION_REAL) {
            memcpy(&real, field_of(option, &used), sizeof real);
            CHECK_SAME(real, (float)option->value);
            continue;
        }
        memcpy(option->bytes == 4 ? (void *)&narrow : &whole_value, field_of(option, &used),
               option->bytes);
        CHECK_EQ(option->bytes == 4 ? narrow : whole_value, option->value);
    }
    zero_plan_destroy(plan);
    zero_model_destroy(model);
}

/* 0 of either sign is the default. */
TEST(minus_zero_is_zero)
{
    both b = defaults();
    zero_model *model = one_tensor_model();
    b.tuning.loss_scale_min = -0.0f;
    zero_plan *plan = plan_of(model, whole(&b), 4);
    CHECK_SAME(plan_tuning(plan).loss_scale_min, 1.0f);
    zero_plan_destroy(plan);
    zero_model_destroy(model);
}

/* ---- texts ---- */

static void set(both *b, const char *name, const char *text)
{
    CHECK_OK(zero_option_set(&b->options, &b->tuning, name, text));
}

static void check_set(const char *name, const char *text, const char *expected)
{
    both b = defaults();
    char said[128];
    set(&b, name, text);
    const zero_option *option = zero_option_find(name);
    CHECK_EQ(zero_option_print(option, &b.options, &b.tuning, said, sizeof said), strlen(expected));
    if (strcmp(said, expected) != 0) {
        TEST_FAIL("%s %s is %s, not %s", name, text, said, expected);
    }
    set(&b, name, said); /* the text that is written can be read */
}

TEST(options_are_set_from_text)
{
    check_set("stage", "2", "2");
    check_set("shard_group", "8", "8");
    check_set("shard-group", "8", "8");
    check_set("grad_dtype", "bf16", "bf16");
    check_set("grad_dtype", "default", "default");
    check_set("master-dtype", "none", "none");
    check_set("bucket_bytes", "25M", "25M");
    check_set("bucket_bytes", "1", "1");
    check_set("extent_bytes", "64K", "64K");
    check_set("host_budget_bytes", "3G", "3G");
    check_set("host_budget_bytes", "1025", "1025");
    check_set("extent_bytes", "default", "0");
    check_set("disk_path", "/a:/b", "/a:/b");
    check_set("hang-directory", "/var/run", "/var/run");
    check_set("loss_scale", "1024", "1024");
    check_set("loss_scale", "0.5", "0.5");
    check_set("seed", "18446744073709551615", "18446744073709551615");
    check_set("no_prefetch", "1", "1");
    check_set("updater", "both", "both");
    check_set("tier", "master=disk",
              "param=default,grad=default,master=disk,moment1=default,moment2=default");
    check_set("tier", "param=host,moment2=disk",
              "param=host,grad=default,master=default,moment1=default,moment2=disk");
    check_set("io_window", "0", "0"); /* the default */
}

static void check_refused(const char *name, const char *text, const char *said)
{
    both b = defaults();
    const both before = b;
    CHECK_FAILS(zero_option_set(&b.options, &b.tuning, name, text), ZERO_ERR_INVALID_ARGUMENT,
                said);
    CHECK_BYTES(&b, &before, sizeof b);
}

TEST(texts_that_will_not_do)
{
    check_refused("stage", "4", "stage \"4\" is not one of 0, 1, 2, 3");
    check_refused("stage", "", "stage \"\"");
    check_refused("no_such", "1", "no option \"no_such\"");
    check_refused("grad_dtype", "none", "is not one of default, f32, bf16, f16");
    check_refused("grad_dtype", "f3", "\"f3\"");
    check_refused("param_slots", "65", "param_slots \"65\" is not in [1, 64]");
    check_refused("param_slots", "-1", "\"-1\"");
    check_refused("param_slots", " 1", "\" 1\"");
    check_refused("param_slots", "1x", "\"1x\"");
    check_refused("param_slots", "1K", "\"1K\"");
    check_refused("param_slots", "99999999999999999999", "99999999999999999999");
    check_refused("io_window", "2", "[3, 64]");
    check_refused("extent_bytes", "4095", "extent_bytes \"4095\"");
    check_refused("host_budget_bytes", "17179869184G", "17179869184G");
    check_refused("host_budget_bytes", "1Kb", "1Kb");
    check_refused("loss_scale", "nan", "finite");
    check_refused("loss_scale", "-1", "\"-1\"");
    check_refused("loss_scale", "1e39", "finite");
    check_refused("tier", "disk", "ROLE=TIER");
    check_refused("tier", "io_window=disk", "ROLE=TIER");
    check_refused("tier", "param=", "ROLE=TIER");
    check_refused("tier", "param=disk,", "ROLE=TIER");
    check_refused("tier", "param=disks", "ROLE=TIER");
    check_refused("disk_weights", "1", "cannot be given as text");
}

/* Elements in blocks are no parameters, gradients or states; they are what gathers bring. */
/* True if an option has the type, which is of blocks, as a choice. */
static bool has_block_type(const zero_option *option, zero_dtype dtype)
{
    const bool gathers = strcmp(option->name, "gather_dtype") == 0;
    const bool hosts = strcmp(option->name, "host_wire_dtype") == 0;
    switch ((int)dtype) {
    case ZERO_DTYPE_MXFP8:
        return gathers;
    case ZERO_DTYPE_INT8_BLOCK:
        return gathers || hosts || strcmp(option->name, "wire_dtype") == 0;
    default:
        return hosts;
    }
}

TEST(types_of_blocks_are_of_what_crosses_ranks)
{
    const zero_dtype blocks[] = {ZERO_DTYPE_MXFP8, ZERO_DTYPE_INT8_BLOCK, ZERO_DTYPE_INT4_BLOCK};
    const zero_option *option = NULL;
    int refused = 0;
    int taken = 0;
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        if (strstr(option->name, "_dtype") == NULL) {
            continue;
        }
        CHECK_EQ(option->kind, ZERO_OPTION_CHOICE);
        for (int k = 0; k < 3; k++) {
            const zero_dtype dtype = blocks[k];
            if (has_block_type(option, dtype)) {
                CHECK((uint32_t)dtype < option->choice_count);
                CHECK_EQ(strcmp(option->choices[dtype], zero_dtype_name(dtype)), 0);
                taken++;
            } else {
                refuse_whole(option, dtype);
                check_refused(option->name, zero_dtype_name(dtype), option->name);
                refused++;
            }
        }
    }
    CHECK_EQ(taken, 5);
    CHECK(refused >= 16);
}

TEST(what_is_not_given)
{
    both b = defaults();
    char text[16] = "before";
    const zero_option *slots = zero_option_find("param_slots");
    const zero_option *stage = zero_option_find("stage");
    check_refused(NULL, "1", "name is NULL");
    check_refused("stage", NULL, "text is NULL");
    CHECK_FAILS(zero_option_set(&b.options, NULL, "param_slots", "2"), ZERO_ERR_INVALID_ARGUMENT,
                "is NULL and has param_slots");
    CHECK_FAILS(zero_option_set(NULL, &b.tuning, "stage", "2"), ZERO_ERR_INVALID_ARGUMENT,
                "is NULL and has stage");
    CHECK(zero_option_find(NULL) == NULL && zero_option_at(zero_option_count()) == NULL);
    CHECK_EQ(zero_option_print(NULL, NULL, NULL, text, sizeof text), 0);
    CHECK_EQ(text[0], '\0');
    CHECK_EQ(zero_option_print(slots, NULL, NULL, text, sizeof text), 1);
    CHECK_EQ(strcmp(text, "0"), 0);
    CHECK_EQ(zero_option_print(stage, NULL, NULL, NULL, 0), 1);
    CHECK_EQ(zero_option_print(stage, NULL, NULL, text, sizeof text), 1);
    CHECK_EQ(strcmp(text, "3"), 0);
}

TEST(an_older_struct_lacks_newer_options)
{
    both b = defaults();
    b.tuning.struct_bytes = zero_option_find("io_window")->offset;
    CHECK_FAILS(zero_option_set(&b.options, &b.tuning, "io_window", "5"), ZERO_ERR_UNSUPPORTED,
                "io_window");
    CHECK_EQ(b.tuning.io_window, 0);
    CHECK_OK(zero_option_set(&b.options, &b.tuning, "extent_bytes", "4096"));
    CHECK_EQ(b.tuning.extent_bytes, 4096);
}

TEST(the_plan_prints_every_option_as_it_is_used)
{
    char text[4096];
    both b = defaults();
    zero_model *model = one_tensor_model();
    b.options.tier[ZERO_ROLE_MOMENT1] = ZERO_TIER_HOST;
    b.tuning.look_ahead = 2;
    zero_plan *plan = plan_of(model, whole(&b), 4);
    const size_t bytes = zero_plan_print_options(plan, NULL, 0);
    CHECK(bytes < sizeof text);
    CHECK_EQ(zero_plan_print_options(plan, text, sizeof text), bytes);
    CHECK_EQ(strlen(text), bytes);
    const zero_option *option = NULL;
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        const char *line = test_text("\n%s ", option->name);
        const bool first = strncmp(text, line + 1, strlen(line + 1)) == 0;
        CHECK_EQ(first || strstr(text, line) != NULL, option->kind != ZERO_OPTION_POINTER);
    }
    CHECK(strstr(text, "\nlook_ahead             2\n") != NULL);
    CHECK(strstr(text, "\nbucket_bytes           1M\n") != NULL);
    CHECK(strstr(text, "\nwire_dtype             default\n") != NULL);
    CHECK(strstr(text, "moment1=host,") != NULL);
    char cut[20];
    CHECK_EQ(zero_plan_print_options(plan, cut, sizeof cut), bytes);
    CHECK_EQ(strlen(cut), sizeof cut - 1);
    zero_plan_destroy(plan);
    zero_model_destroy(model);
}

/* ---- what ranks compare ---- */

/* A value besides the default, for those that do not take 7 or "1". */
static const char *const others[][2] = {
    {"stage", "2"},
    {"shard_group", "2"},
    {"grad_dtype", "f32"},
    {"master_dtype", "none"},
    {"moment_dtype", "bf16"},
    {"tier", "master=host"},
    {"group_optimizer", "0=lion,63=sgd"},
    {"grad_group", "4"},
    {"optimizer_group", "4"},
    {"wire_dtype", "f32"},
    {"accum_dtype", "bf16"},
    {"reduction", "exact"},
    {"accumulation", "local"},
    {"device", "cuda"},
    {"extent_bytes", "8K"},
    {"device_budget_bytes", "1G"},
    {"host_budget_bytes", "1G"},
    {"disk_budget_bytes", "1G"},
    {"trace_events", "4096"},
    {"save_staging_bytes", "32M"},
};

/* NULL: it needs a GPU, NCCL, a callback or disks. */
static const char *other_value(const zero_option *option)
{
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (strcmp(option->name, others[i][0]) == 0) {
            return others[i][1];
        }
    }
    if (option->kind == ZERO_OPTION_CHOICE || option->kind == ZERO_OPTION_POINTER ||
        option->kind == ZERO_OPTION_TEXT || strcmp(option->name, "update_states") == 0 ||
        strcmp(option->name, "speculative_step") == 0 ||
        strncmp(option->name, "nccl_", strlen("nccl_")) == 0) {
        return NULL;
    }
    return option->kind == ZERO_OPTION_FLAG ? "1" : "7";
}

TEST(ranks_compare_what_the_table_says)
{
    zero_model *model = one_tensor_model();
    const zero_option *option = NULL;
    uint32_t changed = 0;
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        const char *value = other_value(option);
        both plain = defaults();
        if (value == NULL) {
            continue;
        }
        if (strcmp(option->name, "shard_group") != 0 && strstr(option->name, "_group") != NULL) {
            plain.options.shard_group = 2; /* else theirs is the whole world */
        }
        if (strcmp(option->name, "loss_scale_static") == 0) {
            plain.options.loss_scale = 8.0f; /* else it is off, so static */
        }
        if (strcmp(option->name, "encoded_views") == 0) {
            plain.tuning.gather_dtype = ZERO_DTYPE_MXFP8; /* whose codes they are */
        }
        both other = plain;
        set(&other, option->name, value);
        zero_plan *plans[2] = {plan_of(model, whole(&plain), 4), plan_of(model, whole(&other), 4)};
        if ((zero_plan_hash(plans[0]) != zero_plan_hash(plans[1])) !=
            (option->same_on_ranks != 0)) {
            TEST_FAIL("%s: ranks %s it", option->name,
                      option->same_on_ranks != 0 ? "do not compare" : "compare");
        }
        changed++;
        zero_plan_destroy(plans[0]);
        zero_plan_destroy(plans[1]);
    }
    CHECK(changed > 25);
    zero_model_destroy(model);
}
